"""scikit-learn estimators: ``members`` are the family, ``base`` what they share.

``plan`` reads an estimator's parameters into one frozen description, ``training`` fits it to data (``diagnosis`` puts
that into words), ``prediction`` answers requests of a fitted model, ``persist`` keeps it in a file, ``plots`` draws it.
``latent`` is a classifier of plain matrices, ``selection`` cross-validation of ragged data.
"""

from mssvm.estimators.latent import LatentClassifier
from mssvm.estimators.members import (
    CRF,
    HCRF,
    LSSVM,
    M3E,
    MSSVM,
    SSVM,
    EpsilonSSVM,
    LossAugmentedCRF,
    ModLat,
    UnifiedSSVM,
)
from mssvm.estimators.persist import load
from mssvm.estimators.selection import cross_val_predict
from mssvm.estimators.training import HeldOut

__all__ = [
    "CRF", "HCRF", "LSSVM", "M3E", "MSSVM", "SSVM", "EpsilonSSVM", "HeldOut", "LatentClassifier", "LossAugmentedCRF",
    "ModLat", "UnifiedSSVM", "cross_val_predict", "load",
]  # fmt: skip

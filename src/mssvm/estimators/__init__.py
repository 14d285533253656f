"""scikit-learn estimators: ``members`` are the family, ``base`` is their common base class.

``plan`` turns an estimator's parameters into one frozen description, ``training`` fits it to data (``diagnosis``
describes that in sentences; ``sharded`` is the same on a cluster), ``prediction`` answers requests of a fitted model
(``kbest``: for several outputs; ``calibration``: the temperature of its probabilities), ``persist`` saves and loads it,
``plots`` draws it. ``latent`` is a classifier of plain matrices, ``selection``
cross-validation of ragged data, ``docstrings`` the text that members share.
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
    "CRF",
    "HCRF",
    "LSSVM",
    "M3E",
    "MSSVM",
    "SSVM",
    "EpsilonSSVM",
    "HeldOut",
    "LatentClassifier",
    "LossAugmentedCRF",
    "ModLat",
    "UnifiedSSVM",
    "cross_val_predict",
    "load",
]

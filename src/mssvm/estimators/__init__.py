"""scikit-learn estimators: ``members`` are the family; ``base`` is their common base class, which joins ``parameters``
(their constructor) and ``fitted`` (the methods of a fitted model) and adds ``fit``.

plan            parameters of an estimator as one frozen description of its training
training_data   X and y as a sample of a problem; ``sharded`` is the same on a cluster
training        the problem solved; ``hooks`` are what users attach to it
outcome         how training ended; ``diagnosis`` says it in sentences
prediction      requests of a fitted model, with ``prediction_status``; ``kbest`` for several outputs
segmenting      segments with probabilities, for the structure ``Segments``
suggestion      what to label next
crowd           training on the votes of several annotators
calibration     the temperature of probabilities
persist, plots  files and pictures of a fitted model
latent          a classifier of plain matrices
selection       cross-validation of ragged data
docstrings      the text that members share
availability    methods that only some estimators have; ``feature_names``: columns of data frames
"""

from mssvm.estimators.hooks import HeldOut
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

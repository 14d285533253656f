"""scikit-learn estimators and the structures they learn on."""

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
    "LatentClassifier",
    "LossAugmentedCRF",
    "ModLat",
    "UnifiedSSVM",
    "cross_val_predict",
    "load",
]

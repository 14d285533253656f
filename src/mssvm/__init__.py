"""mssvm: structured prediction when part of the structure is never seen.

import mssvm as ms
clf = ms.MSSVM(ms.Chain(hidden=4), C=1.0).fit(X, y)       # y may hold ms.MISSING, and sets of candidate labels
clf.predict(X); clf.predict_marginals(X); clf.score(X, y); clf.save("m.safetensors"); ms.load("m.safetensors")

Names are imported when they are first used, so that ``import mssvm`` itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from mssvm._moved import install
from mssvm.core import errors

if TYPE_CHECKING:
    from mssvm.data.graphs import Graph
    from mssvm.data.labels import MISSING
    from mssvm.estimators import (
        CRF,
        HCRF,
        LSSVM,
        M3E,
        MSSVM,
        SSVM,
        EpsilonSSVM,
        LatentClassifier,
        LossAugmentedCRF,
        ModLat,
        UnifiedSSVM,
        cross_val_predict,
        load,
    )
    from mssvm.structures import Chain, FactorModel, GraphModel, Grid, SequenceClass

_MEMBERS = ("CRF", "HCRF", "LSSVM", "M3E", "MSSVM", "SSVM", "EpsilonSSVM", "LossAugmentedCRF", "ModLat", "UnifiedSSVM")
_HOMES = {
    **dict.fromkeys((*_MEMBERS, "LatentClassifier", "cross_val_predict", "load"), "mssvm.estimators"),
    **dict.fromkeys(("Chain", "FactorModel", "GraphModel", "Grid", "SequenceClass"), "mssvm.structures"),
    "MISSING": "mssvm.data.labels",
    "Graph": "mssvm.data.graphs",
}

__all__ = [
    "CRF",
    "HCRF",
    "LSSVM",
    "M3E",
    "MISSING",
    "MSSVM",
    "SSVM",
    "Chain",
    "EpsilonSSVM",
    "FactorModel",
    "Graph",
    "GraphModel",
    "Grid",
    "LatentClassifier",
    "LossAugmentedCRF",
    "ModLat",
    "SequenceClass",
    "UnifiedSSVM",
    "__version__",
    "cross_val_predict",
    "errors",
    "load",
]

install()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("mssvm")
        except PackageNotFoundError:
            return "unknown"
    if name not in _HOMES:
        raise AttributeError(f"module 'mssvm' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

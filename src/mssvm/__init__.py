"""mssvm: structured prediction when part of the structure is never seen.

import mssvm as ms
clf = ms.MSSVM(ms.Chain(hidden=4), C=1.0).fit(X, y)       # y may hold ms.MISSING, and sets of candidate labels
clf.predict(X); clf.predict_marginals(X); clf.score(X, y); clf.save("m.safetensors"); ms.load("m.safetensors")

``ms.solvers``, ``ms.losses``, ``ms.inference`` and ``ms.engines`` hold the objects that the parameters ``solver``,
``loss``, ``inference`` and ``engine`` accept. ``ms.data`` reads files and tables, ``ms.metrics`` scores predictions,
and ``ms.features`` computes features. ``ms.conformal`` makes label sets with guaranteed coverage, ``ms.annotators``
handles votes of several people, ``ms.torch`` is the family as a PyTorch layer, and ``ms.hf`` has taggers on the
encoders of transformers. Names are imported when they are first used, so that ``import mssvm`` itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mssvm._moved import moved_name
from mssvm.core import errors
from mssvm.core.registry import MEMBERS, STRUCTURES

if TYPE_CHECKING:
    from mssvm import annotators, conformal, data, engines, inference, losses
    from mssvm import optim as solvers
    from mssvm.annotators import Annotators
    from mssvm.data import features, metrics
    from mssvm.data.graphs import FactorInput, Graph
    from mssvm.data.labels import MISSING
    from mssvm.data.shards import ShardedDataset
    from mssvm.estimators import (
        CRF,
        HCRF,
        LSSVM,
        M3E,
        MSSVM,
        SSVM,
        EpsilonSSVM,
        HeldOut,
        LatentClassifier,
        LossAugmentedCRF,
        ModLat,
        UnifiedSSVM,
        cross_val_predict,
        load,
    )
    from mssvm.parallel.cluster import distributed
    from mssvm.structures import Chain, FactorModel, GraphModel, Grid, MultiLabel, Segments, SequenceLabel

_HOMES = {
    **dict.fromkeys((*MEMBERS, "HeldOut", "LatentClassifier", "cross_val_predict", "load"), "mssvm.estimators"),
    **{entry.name: "mssvm.structures" for entry in STRUCTURES.values()},
    "Annotators": "mssvm.annotators",
    "MISSING": "mssvm.data.labels",
    "ShardedDataset": "mssvm.data.shards",
    "distributed": "mssvm.parallel.cluster",
    **dict.fromkeys(("FactorInput", "Graph"), "mssvm.data.graphs"),
}
_MODULES = {
    "annotators": "mssvm.annotators",
    "conformal": "mssvm.conformal",
    "data": "mssvm.data",
    "engines": "mssvm.engines",
    "features": "mssvm.data.features",
    "hf": "mssvm.hf",
    "inference": "mssvm.inference",
    "losses": "mssvm.losses",
    "metrics": "mssvm.data.metrics",
    "solvers": "mssvm.optim",
    "torch": "mssvm.torch",
}

__all__ = [
    "CRF",
    "HCRF",
    "LSSVM",
    "M3E",
    "MISSING",
    "MSSVM",
    "SSVM",
    "Annotators",
    "Chain",
    "EpsilonSSVM",
    "FactorInput",
    "FactorModel",
    "Graph",
    "GraphModel",
    "Grid",
    "HeldOut",
    "LatentClassifier",
    "LossAugmentedCRF",
    "ModLat",
    "MultiLabel",
    "Segments",
    "SequenceLabel",
    "ShardedDataset",
    "UnifiedSSVM",
    "__version__",
    "annotators",
    "conformal",
    "cross_val_predict",
    "data",
    "distributed",
    "engines",
    "errors",
    "features",
    "inference",
    "load",
    "losses",
    "metrics",
    "solvers",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # half of this module's import time

        try:
            return version("mssvm")
        except PackageNotFoundError:
            return "unknown"
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        return moved_name(__name__, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

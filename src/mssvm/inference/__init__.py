"""Inference: the methods that compute nested power sums, and the guarantees of each.

``Exact`` refuses instances that do not fit into memory, ``Propagate`` approximates by messages, ``Decompose`` bounds
from above by chains, ``Auto`` is ``Exact`` where that fits and one of the others elsewhere, ``Toulbar2`` maximises on
loopy graphs, ``Enumerate`` is brute force; ``bounds`` adds upper and lower bounds to any of them. Each is a set of
settings that plans a batch on an engine (``base``): plan once, bind a query once, run on many potentials.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Auto": "mssvm.inference.auto",
    "Bounded": "mssvm.inference.bounds",
    "Decompose": "mssvm.inference.decomposition",
    "Enumerate": "mssvm.inference.enumerate",
    "Exact": "mssvm.inference.exact",
    "Propagate": "mssvm.inference.propagation",
    "Toulbar2": "mssvm.inference.toulbar2",
}

__all__ = ["Auto", "Bounded", "Decompose", "Enumerate", "Exact", "Propagate", "Toulbar2"]


def __getattr__(name: str) -> Any:
    """The settings by name, imported on first use, so that their kernels are loaded only when needed."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mssvm.inference' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

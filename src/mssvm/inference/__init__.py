"""Inference: which plan answers which question, and what its answer promises.

``Exact`` refuses what does not fit, ``Propagate`` approximates by messages, ``Decompose`` bounds from above by chains,
``Auto`` takes the first where it fits and another elsewhere, ``Toulbar2`` maximises on loopy graphs, ``Enumerate`` is
brute force; ``bounds`` certifies any of them from both sides. Each is a set of settings that plans a batch on an engine
(``base``): plan once, bind a query once, run on many potentials.
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
    """The settings by name, imported on first use: their kernels are not loaded before."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mssvm.inference' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

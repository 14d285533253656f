"""Taking instances apart that carry edge features beside the features of their sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.errors import InputError

KNOWN = ("x", "edge_x")


def split(item: Any, b: int, axes: int = 2) -> tuple[Any, Any]:
    """Features of the sites, and of the edges (None where there are none) of one instance.

    An instance with edge features is ``{"x": ..., "edge_x": ...}`` or a tuple of arrays with ``axes`` axes.
    """
    if isinstance(item, Mapping):
        if "x" not in item or any(name not in KNOWN for name in item):
            raise InputError(f"X, instance {b}: a dict needs the key 'x' and may have 'edge_x', got {sorted(item)}.")
        return item["x"], item.get("edge_x")
    if isinstance(item, tuple) and len(item) > 1 and all(_is_array(part, axes) for part in item):
        return item[0], item[1] if len(item) == 2 else item[1:]
    return item, None


def edge_parts(X: Sequence[Any]) -> dict[str, list[Any]]:
    """The sources "node" and, where instances have them, "edge"."""
    pairs = [split(item, b) for b, item in enumerate(X)]
    return {"node": [x for x, _ in pairs], **edge_source([e for _, e in pairs])}


def edge_source(edges: list[Any]) -> dict[str, list[Any]]:
    """The source "edge", or nothing where no instance has edge features."""
    without = [b for b, e in enumerate(edges) if e is None]
    if len(without) == len(edges):
        return {}
    if without:
        raise InputError(f"X, instance {without[0]}: edge features are missing, but other instances have them.")
    return {"edge": edges}


def _is_array(part: Any, axes: int) -> bool:
    return sparse.issparse(part) or (isinstance(part, np.ndarray) and part.ndim == axes)

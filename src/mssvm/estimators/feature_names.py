"""Names of the columns of data frames: predictions need those of the training data, in the same order, as scikit-learn
requires. Instances are frames (chains), or X itself is one (multi-label)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.data.graphs import Graph


def names_of(X: Any) -> AnyArray | None:
    """The names of the columns of X, None if it has none. Frames with different names are an error."""
    names: tuple[str, ...] | None = None
    if hasattr(X, "columns"):
        names = _columns(X)
    elif isinstance(X, (list, tuple)) and X and _columns(X[0]) is not None:
        names = _columns(X[0])
        for b, item in enumerate(X):
            if _columns(item) != names:
                raise InputError(_difference(_columns(item), names or (), "the first instance"), instance=b)
    return None if names is None else np.array(names, dtype=object)


def check_names(X: Any, learned: AnyArray | None) -> None:
    """Raise unless X has the column names that the model learned; warn if only one of them has names."""
    found = names_of(X)
    if learned is None and found is None:
        return
    if learned is None or found is None:
        have, lack = ("the model", "X") if found is None else ("X", "the model")
        warnings.warn(
            f"{have} has names of features and {lack} has none; columns are taken in their order.",
            MssvmWarning,
            stacklevel=4,
        )
        return
    if tuple(found) != tuple(learned):
        raise InputError(_difference(tuple(found), tuple(learned), "the data the model learned from"))


def _columns(item: Any) -> tuple[str, ...] | None:
    """The names of one instance's columns, if all are text."""
    if isinstance(item, Graph):
        item = item.nodes
    elif isinstance(item, dict):
        item = item.get("x")
    elif isinstance(item, tuple) and item:
        item = item[0]
    columns = getattr(item, "columns", None)
    if columns is None or callable(columns):
        return None
    names = list(columns)
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def _difference(found: tuple[str, ...] | None, learned: tuple[str, ...], where: str) -> str:
    if found is None:
        return f"it has no names of features, unlike {where}; give every instance the same columns."
    if sorted(found) == sorted(learned):
        return f"the columns of X are in another order than in {where}; use X[{list(learned[:3])!r}...] for its order."
    new = [name for name in found if name not in learned]
    gone = [name for name in learned if name not in found]
    parts = [f"{len(new)} unknown ({', '.join(map(repr, new[:3]))})"] if new else []
    parts += [f"{len(gone)} missing ({', '.join(map(repr, gone[:3]))})"] if gone else []
    return f"the columns of X differ from those of {where}: {', '.join(parts) or 'some are repeated'}."

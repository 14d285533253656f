"""Ragged labels laid flat: one entry per site, instance by instance, with the words for what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets

Shapes = Sequence[tuple[int, ...]]


def plain(value: Any) -> Any:
    """NumPy scalars as the Python values they equal."""
    return value.item() if isinstance(value, np.generic) else value


def check_sequence(y: Any, what: str = "y") -> None:
    """Raise unless ``y`` is a sequence of instances."""
    if isinstance(y, (str, bytes, Mapping, set, frozenset)) or not hasattr(y, "__len__"):
        raise InputError(f"{what} must be a sequence with the labels of every instance, got {type(y).__name__}.")


def plain_array(y: Any, depth: int) -> AnyArray | None:
    """All labels as one flat array, if every instance is an array of plain numbers or strings of one kind."""
    if depth == 0:
        return y.ravel() if isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "iubfU" else None
    kinds = set()
    for item in y:
        if not isinstance(item, np.ndarray) or item.ndim != depth or item.dtype.kind not in "iubfU":
            return None
        kinds.add("i" if item.dtype.kind in "iu" else item.dtype.kind)
    return np.concatenate([item.ravel() for item in y]) if len(kinds) == 1 else None


def flat_sites(item: Any, depth: int, b: int, what: str = "y", shape: tuple[int, ...] | None = None) -> list[Any]:
    """The sites of one instance in C order."""
    if depth == 0:
        return [item]
    if not isinstance(item, (list, tuple, np.ndarray)):
        if hasattr(item, "to_numpy"):
            item = item.to_numpy()
        else:
            raise InputError(f"{what}, instance {b}: expected a sequence of labels, got {_short(item)}.")
    if isinstance(item, np.ndarray):
        if item.ndim < depth:
            raise InputError(f"{what}, instance {b}: expected {depth} axes of labels, got an array of {item.shape}.")
        return [plain(v) for v in item.reshape(-1, *item.shape[depth:]).tolist()] if item.ndim > depth else _list(item)
    if depth == 1:
        return list(item)
    rows = [flat_sites(row, depth - 1, b, what) for row in item]
    if shape is not None and (len(rows) != shape[0] or any(len(row) != prod(shape[1:]) for row in rows)):
        widths = sorted({len(row) for row in rows})
        raise InputError(mismatch((len(rows), *widths[:1]) if len(widths) < 2 else (len(rows),), shape, b, what))
    return list(chain.from_iterable(rows))


def _list(item: AnyArray) -> list[Any]:
    values: list[Any] = item.ravel().tolist()
    return values


def check_size(sites: list[Any], shape: tuple[int, ...], b: int, what: str) -> None:
    if len(sites) != prod(shape):
        raise InputError(mismatch((len(sites),), shape, b, what))


def mismatch(got: tuple[int, ...], shape: tuple[int, ...], b: int, what: str) -> str:
    return (
        f"{what}, instance {b}: labels for {' x '.join(map(str, got))} sites, but X has {' x '.join(map(str, shape))}; "
        "give one label (or MISSING) per site."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def site_ptr(shapes: Shapes) -> Ints:
    return offsets(np.array([prod(s) for s in shapes], dtype=np.int64))


def site_place(s: int, shapes: Shapes) -> tuple[int, int]:
    """Instance and site within it of the flat site ``s``."""
    ptr = site_ptr(shapes)
    b = int(np.searchsorted(ptr, s, side="right")) - 1
    return b, s - int(ptr[b])

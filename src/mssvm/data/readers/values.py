"""Checks of the features and labels in files; every error names the place."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NoReturn

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.checks import shown

Fail = Callable[[str], NoReturn]
"""Raises with the place of the current instance in front of the given reason (a clause without a full stop)."""

TYPE_TITLES = {str: "text", int: "whole numbers", bool: "true and false"}


class LabelReader:
    """Labels of a file: all text, all whole numbers or all booleans; null and ``missing_label`` are missing labels, a
    list is a candidate set.

    Equal labels become one object, so that a site costs one pointer.
    """

    def __init__(self, missing_label: Hashable = None) -> None:
        self.type: type | None = None
        self._interned: dict[Any, Any] = {}
        if missing_label is not None:  # as it is, and as text: a command line cannot tell 0 from "0"
            self._interned = {missing_label: None, str(missing_label): None}
        self._type_place = 0  # the line of the first label, whose type all labels must have

    def read(self, value: Any, shape: tuple[int, ...], fail: Fail, place: int = 0) -> Any:
        """Labels of one instance, nested like ``shape``; None if it has none."""
        if not shape:
            return self._site(value, fail, place)
        if value is None:
            return None
        if not isinstance(value, list):
            fail(f"'y' should be a list with one entry per site, got {shown(value)}")
        if len(value) != shape[0]:
            labels, sites = ("labels", "sites") if len(shape) == 1 else ("rows of labels", "rows")
            fail(f"{len(value)} {labels} for {shape[0]} {sites}; give one (or null) each")
        if len(shape) > 1:
            return [self._row(row, i, shape[1:], fail, place) for i, row in enumerate(value)]
        types = set(map(type, value)) - {type(None)}
        if len(types) == 1:
            (kind,) = types
            if kind in TYPE_TITLES and self.type in (None, kind):  # the common case, without a check of every site
                self._note(kind, place)
                interned = self._interned
                return [interned.setdefault(v, v) for v in value]
        return [self._site(v, fail, place) for v in value]

    def _row(self, row: Any, i: int, shape: tuple[int, ...], fail: Fail, place: int) -> Any:
        if not isinstance(row, list):
            fail(f"row {i} of 'y' should be a list of labels, got {shown(row)}")
        return self.read(row, shape, fail, place)

    def _site(self, value: Any, fail: Fail, place: int) -> Any:
        if isinstance(value, list):
            if not value:
                fail("a list of candidate labels is empty; name at least one, or use null for a missing label")
            if any(v is None or isinstance(v, list) for v in value):
                fail(f"candidate labels {shown(value)} must be plain labels; use null alone for a missing label")
            return [self._site(v, fail, place) for v in value]
        if value is None:
            return None
        kind = type(value)
        if kind not in TYPE_TITLES:
            fail(f"{shown(value)} cannot be a label; labels are text, whole numbers or true and false")
        if self.type is not None and self.type is not kind:
            fail(
                f"label {shown(value)} is of another type than those before it ({TYPE_TITLES[self.type]} since line "
                f"{self._type_place}); write all labels as one type"
            )
        self._note(kind, place)
        return self._interned.setdefault(value, value)

    def _note(self, kind: type, place: int) -> None:
        """Remember the type of the first label."""
        if self.type is None:
            self.type = kind
            self._type_place = place


def table(value: Any, axes: int, what: str, fail: Fail) -> AnyArray:
    """An array of finite numbers with ``axes`` axes from nested lists."""
    try:
        array = np.array(value)
    except ValueError:
        fail(_ragged(value, what))
    except OverflowError:
        fail(f"{what} holds a number too large to compute with; scale it")
    if array.size == 0:
        fail(f"{what} is empty; leave out instances without sites, and give every site at least one feature")
    if array.dtype.kind not in "fiub":
        fail(f"{what} holds {_not_number(value)}; features must be numbers (or all of them named)")
    if array.ndim != axes:
        hint = ""
        if axes == 2 and array.ndim == 1:
            hint = "; write [[1.5], [2.5]] for one number per site, or use --structure multilabel for several labels"
        fail(f"{what} is nested {array.ndim} deep instead of {axes}{hint}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        site = ", ".join(map(str, np.argwhere(~np.isfinite(array))[0][:-1]))
        fail(f"site {site} of {what} has a feature that is NaN or infinite; impute it or leave the instance out")
    return array


def flags(value: Any, shape: tuple[int, ...], fail: Fail) -> Any:
    """The mask ``hidden`` of an instance: true or false per site."""
    if value is None:
        return None
    array = np.array(value, dtype=object)
    if array.shape != shape or not all(isinstance(v, bool) for v in array.ravel()):
        fail(f"'hidden' needs true or false for each of {' x '.join(map(str, shape)) or 'the'} sites")
    return np.array(value, dtype=bool)


def _ragged(value: Any, what: str) -> str:
    rows = value if isinstance(value, list) else []
    sizes = [len(row) if isinstance(row, (list, tuple)) else -1 for row in rows]
    odd = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if odd is None:
        return f"{what} is not a regular table; give every site the same number of features"
    if sizes[odd] < 0 or sizes[0] < 0:
        return f"{what} mixes lists and single values; give every site a list of features"
    return f"row {odd} of {what} has {sizes[odd]} entries, but row 0 has {sizes[0]}; give all the same number"


def _not_number(value: Any) -> str:
    """The first entry of nested lists that is no number, as text; "" if all are."""
    if isinstance(value, (list, tuple)):
        for entry in value:
            text = _not_number(entry)
            if text:
                return text
        return ""
    if isinstance(value, (int, float)) and abs(value) < 2**63:
        return ""
    return shown(value)

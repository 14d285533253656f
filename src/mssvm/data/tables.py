"""Tables with a row per site: long-format data frames with a column of groups, and rows of all instances with lengths.

train = from_frame(frame, group="sentence", label="tag")          clf.fit(train.X, train.labels)
frame["predicted"] = to_column(frame, "sentence", clf.predict(train.X))
X, y = split(X, lengths), split(y, lengths)                       as hmmlearn has them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets
from mssvm.data.dataset import Dataset
from mssvm.data.labels import is_missing, plain
from mssvm.data.words import words

NUMERIC = "fiub"  # kinds of arrays


def split(rows: Any, lengths: Any) -> list[Any]:
    """``rows`` (an array, a sparse matrix, a data frame or a list) cut into instances of the given ``lengths``.

    >>> [part.tolist() for part in ms.data.split(np.arange(5), [2, 3])]
    [[0, 1], [2, 3, 4]]
    """
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise InputError("lengths must be a list of whole numbers, the rows of each instance.")
    n = int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)
    if sizes.sum() != n:
        raise InputError(
            f"lengths add up to {int(sizes.sum())}, but there are {n} rows; give the rows of each instance."
        )
    if sparse.issparse(rows):
        rows = rows.tocsr()
    rows = rows.iloc if hasattr(rows, "iloc") else rows
    ends = offsets(sizes.astype(np.int64)).tolist()
    return [rows[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]


def from_frame(frame: Any, group: str, label: str | None = None, features: Sequence[str] | None = None) -> Dataset:
    """Chains from a data frame (pandas, polars, or a dict of columns) with one row per site.

    Rows with the same value in the column ``group`` are one chain, in the order of the rows, and chains come in the
    order of their first rows; ``ids`` of the result names them. ``features`` are all other columns by default: numbers
    make arrays; if all are text, they are a word and its further columns, as in CoNLL files; text and numbers together
    make named features. Missing labels are None or NaN.

    >>> frame = {"s": [1, 1, 2], "x": [0.5, 1.0, 2.0], "tag": ["a", None, "b"]}
    >>> data = ms.data.from_frame(frame, group="s", label="tag")
    >>> [x.ravel().tolist() for x in data.X], data.labels
    ([[0.5, 1.0], [2.0]], [['a', None], ['b']])
    """
    all_names = list(frame) if isinstance(frame, dict) else list(frame.columns)
    if features is None:
        features = [name for name in all_names if name not in (group, label)]
    names = list(features)
    for name in (group, *names) if label is None else (group, label, *names):
        if name not in all_names:
            raise InputError(f"the table has no column {name!r}; it has {', '.join(map(repr, all_names))}.")
    if not names:
        raise InputError("the table has no column of features beside group and label; name some as features.")
    order, sizes, ids = _groups(frame, group)
    columns = [np.asarray(frame[name])[order] for name in names]
    y = None
    if label is not None:
        labels = np.asarray(frame[label])[order].tolist()
        y = split([None if _absent(value) else plain(value) for value in labels], sizes)
    for name, column in zip(names, columns, strict=True):
        _check_column(name, column, order)
    lines = order[offsets(sizes)[:-1]].tolist()
    return Dataset("the table", "chain", _features(columns, names, sizes), y, lines, ids, unit="row")


def to_column(frame: Any, group: str, y: Sequence[Any]) -> AnyArray:
    """Labels ``y``, instance by instance as ``predict`` gives them, in the order of the rows of ``frame``, whose column
    ``group`` says which belong together.

    >>> ms.data.to_column({"s": [1, 2, 1]}, "s", [["a", "b"], ["c"]]).tolist()
    ['a', 'c', 'b']
    """
    order, sizes, _ = _groups(frame, group)
    if [len(part) for part in y] != sizes.tolist():
        raise InputError(f"y does not fit the groups of column {group!r}; predict what from_frame made of this table.")
    values = np.concatenate([np.asarray(part) for part in y])
    out = np.empty_like(values)
    out[order] = values
    return out


def _groups(frame: Any, group: str) -> tuple[Ints, Ints, list[Any]]:
    """The rows in the order of their groups, the sizes of the groups, and their names."""
    numbers: dict[Any, int] = {}
    group_of = []
    for row, value in enumerate(np.asarray(frame[group]).tolist()):
        if _absent(value):
            raise InputError(f"row {row} of column {group!r} is missing; every row needs a group.")
        group_of.append(numbers.setdefault(plain(value), len(numbers)))
    if not group_of:
        raise InputError("the table has no rows; give at least one.")
    of = np.array(group_of, dtype=np.int64)
    return np.argsort(of, kind="stable"), np.bincount(of), list(numbers)


def _check_column(name: str, column: AnyArray, order: Ints) -> None:
    """Raise unless a column of features is numbers or text throughout."""
    if column.dtype.kind in NUMERIC:
        return
    for row, value in zip(order, column, strict=True):
        if not isinstance(value, str):
            place = f"row {row} of column {name!r} holds {shown(value)}"
            raise InputError(f"{place}; a column is numbers or text, without gaps.")


def _absent(value: Any) -> bool:
    return is_missing(value) or type(value).__name__ == "NAType"  # pandas' NA, which is not equal to itself


def _features(columns: list[AnyArray], names: list[str], sizes: Ints) -> list[Any]:
    numeric = [column.dtype.kind in NUMERIC for column in columns]
    if all(numeric):
        return split(np.stack([column.astype(np.float64) for column in columns], axis=1), sizes)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    if any(numeric):
        return split([dict(zip(names, row, strict=True)) for row in rows], sizes)
    return words(split(rows, sizes))

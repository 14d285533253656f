"""Long tables, a row per site: CSV with a line of column names, and Parquet (which needs pyarrow).

Rows with the same value in the group's column are one chain. ``Options.columns`` names the columns of groups and of
labels; without it they are the first of ``GROUPS`` and of ``LABELS`` that are there. All other columns are features, as
in ``ms.data.from_frame``: numbers make arrays, text makes words. An empty cell of labels is a missing label.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from mssvm.core.checks import shown
from mssvm.core.errors import InputError, MssvmError, UnsupportedError
from mssvm.data.dataset import Dataset, Record
from mssvm.data.readers.stream import Opened, Options, Stream
from mssvm.data.tables import from_frame

GROUPS = ("group", "sentence", "sentence_id", "sequence", "sequence_id", "id")
LABELS = ("label", "tag", "ner_tag", "y")
WHOLE = re.compile("0|-?[1-9][0-9]{0,999}")  # as Python writes them, and not too long for it to read: 01 stays text

Table = dict[str, list[Any]]


def open_csv(stream: Stream, options: Options) -> Opened:
    """Chains of a CSV file."""
    return _opened(_read_csv(stream), stream, options, "a table of rows")


def open_parquet(stream: Stream, options: Options) -> Opened:
    """Chains of a Parquet file."""
    return _opened(_read_parquet(stream), stream, options, "a table of rows")


def _opened(table: Table, stream: Stream, options: Options, what: str) -> Opened:
    options.demand("chain", stream.name, what)
    group, label = _columns(table, options, stream.name)
    if label is not None:
        table = {**table, label: _labels(table[label], options)}
    table = {**table, group: [None if value == "" else value for value in table[group]]}
    columns: Table = {}
    for name, values in table.items():
        columns[name] = values if name in (group, label) else _feature(values, name, stream.name)
    try:
        data = from_frame(columns, group, label)
    except MssvmError as error:
        raise type(error)(f"{stream.name}: {error}") from None
    return Opened("chain", _records(data), "row")


def _records(data: Dataset) -> Iterator[Record]:
    for b, x in enumerate(data.X):
        yield Record(data.lines[b], x, None if data.y is None else data.y[b], data.ids[b])


def _columns(table: Table, options: Options, name: str) -> tuple[str, str | None]:
    """The columns of groups and of labels; None: there are no labels."""
    listed = ", ".join(map(repr, table))
    if options.columns:
        for column in options.columns:
            if column not in table:
                raise InputError(f"{name} has no column {column!r}; it has {listed}.")
        group, *label = options.columns
        return group, label[0] if label else None
    group = next((column for column in GROUPS if column in table), "")
    if not group:
        needs = f"it has {listed}; name that of the groups and that of the labels with --columns GROUP,LABEL"
        raise InputError(f"{name} has no column 'group' or 'sentence' for rows that belong together: {needs}.")
    return group, next((column for column in LABELS if column in table), None)


def _labels(values: list[Any], options: Options) -> list[Any]:
    """Labels, None where missing; whole numbers if all are."""
    missing = {"", None, options.missing_label, str(options.missing_label)}
    present = [value for value in values if value not in missing]
    whole = all(isinstance(value, str) and WHOLE.fullmatch(value) for value in present)
    if whole:
        return [None if value in missing else int(value) for value in values]
    return [None if value in missing else value for value in values]


def _feature(values: list[Any], name: str, table: str) -> Any:
    """A column of features as numbers, if all its cells are, or as text; a gap among numbers is refused."""
    numbers = _numbers(values)
    if numbers is None:
        gaps = [row for row, value in enumerate(values) if _is_gap(value)]
        if not gaps or _numbers([value for value in values if not _is_gap(value)]) is None:
            out = np.empty(len(values), dtype=object)
            out[:] = values
            return out
        row = gaps[0]
        found = "is empty"
    else:
        wrong = np.flatnonzero(~np.isfinite(numbers))
        if not len(wrong):
            return numbers
        row = int(wrong[0])
        found = "is empty" if _is_gap(values[row]) else f"holds {shown(values[row])}"
    raise InputError(f"{table}: row {row} of column {name!r} {found}; impute it, or leave the row out.")


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _numbers(values: list[Any]) -> Any:
    """The cells as numbers, None where one is not a number."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _read_csv(stream: Stream) -> Table:
    """Columns of text by name."""
    rows = csv.reader((text for _, text in stream.lines()), strict=True)
    table: Table = {}
    try:
        names = [name.strip() for name in next(rows, [])]
        if not names or len(set(names)) < len(names) or not all(names):
            stream.fail("the first line must name every column once", 1)
        table = {name: [] for name in names}
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                stream.fail(f"{len(row)} cells, but the first line names {len(names)} columns; give every row the same")
            for name, cell in zip(names, row, strict=True):
                table[name].append(cell)
    except csv.Error as error:
        stream.fail(f"this is not CSV ({error}); quote cells that hold commas or quotes")
    return table


def _read_parquet(stream: Stream) -> Table:
    try:
        parquet: Any = import_module("pyarrow.parquet")
        arrow: Any = import_module("pyarrow")
    except ImportError:
        raise UnsupportedError(
            f"{stream.name}: Parquet files need pyarrow; run pip install pyarrow, or save the table as CSV."
        ) from None
    try:
        found: Table = parquet.read_table(arrow.BufferReader(stream.content())).to_pydict()
    except arrow.ArrowInvalid:
        raise InputError(f"{stream.name} is damaged or not a Parquet file; save it again.") from None
    return found

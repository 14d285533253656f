"""A data set in memory: ragged instances, their labels, and the line of a file that each was read from.

Dense features of all instances are rows of one growing array; instances are views of it. Equal labels are one shared
object, so that a site costs one pointer. Reading therefore needs little more memory than the features themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, MssvmError

Kind = Literal["chain", "sequence", "grid", "graph", "multilabel"]


@dataclass(frozen=True, eq=False)
class Record:
    """One instance as read; ``y`` is None where the file has no labels for it, ``hidden`` marks sites that are never
    labelled. ``votes`` maps annotators to labels in the shape of ``y``, None where they abstained. ``source`` is the
    text of its lines, if the caller asked for it: CoNLL files can be written again with predictions beside the labels.
    """

    line: int
    x: Any
    y: Any = None
    id: Any = None
    hidden: Any = None
    source: Any = None
    votes: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Instances ``X`` with labels ``y`` (None: missing, a list: candidates) for ``fit``, ``predict`` and ``score``.

    ``y`` is None if no instance has labels; ``hidden`` marks sites that are never labelled; ``votes`` maps, for every
    instance, annotators to their labels, and is None if the file has no votes. ``name`` is that of the file, ``kind``
    the structure of its instances, ``ids`` their names in the file, ``sources`` the text of their lines
    (``Options.sources``); ``unit`` is what ``lines`` counts: lines, rows, images or entries of an array.

    >>> data = ms.data.chunking("test")
    >>> len(data) == len(data.X) == len(data.labels), data.kind
    (True, 'chain')
    """

    name: str
    kind: Kind
    X: list[Any]
    y: list[Any] | None
    lines: list[int]
    ids: list[Any]
    hidden: list[Any] | None = None
    unit: str = "line"
    sources: list[Any] | None = None
    votes: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.X)

    @property
    def labels(self) -> list[Any]:
        """Labels of every instance, missing ones included."""
        if self.y is not None:
            return self.y
        if self.votes is not None:
            raise InputError(
                f"{self.name} holds votes and no labels 'y'; mssvm fit --annotators learns from votes, and mssvm "
                "aggregate finds the labels behind them."
            )
        raise InputError(f"{self.name} holds no labels; give every instance a 'y' (null where a label is missing).")

    def unlabelled(self) -> list[Any]:
        """A missing label for every site of every instance."""
        return [_at_every_site(x, self.kind, None) for x in self.X]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the instances' labels."""
        if self.kind == "multilabel":
            return [(len(y),) for y in self.y or [()] * len(self)]
        return [n_sites(x, self.kind) for x in self.X]

    def place(self, b: int, site: int | None = None) -> str:
        """Where instance ``b`` was read."""
        number = self.ids[b] if self.unit == "image" else self.lines[b]
        place = f"{self.name}, {self.unit} {number}"
        if site is None:
            return place
        return f"{place}, site {site}"

    @contextmanager
    def places(self) -> Iterator[None]:
        """Within this context errors about X name the file instead, those about instance b of X or y also the line."""
        try:
            yield
        except MssvmError as error:
            if error.instance is None and error.reason.startswith("X "):
                raise type(error)(error.reason.replace("X", self.name, 1)) from None
            if error.instance is None or error.instance >= len(self):
                raise
            raise type(error)(f"{self.place(error.instance, error.site)}: {error.reason}") from None

    def select(self, instances: Iterable[int]) -> Dataset:
        """The named instances."""
        chosen = [int(b) for b in instances]
        return replace(
            self,
            X=[self.X[b] for b in chosen],
            y=_selected(self.y, chosen),
            lines=[self.lines[b] for b in chosen],
            ids=[self.ids[b] for b in chosen],
            hidden=_selected(self.hidden, chosen),
            sources=_selected(self.sources, chosen),
            votes=_selected(self.votes, chosen),
        )


def _selected(column: list[Any] | None, chosen: list[int]) -> list[Any] | None:
    if column is None:
        return None
    return [column[b] for b in chosen]


class Collector:
    """Collects records; ``finish`` makes the data set. All sites of a file must have the same number of features."""

    def __init__(self, name: str, kind: Kind, unit: str = "line") -> None:
        self.name = name
        self.kind = kind
        self.unit = unit
        self._records: list[Record] = []
        self._shapes: dict[int, tuple[int, ...]] = {}  # shapes of the records whose features are in ``_data``
        # Grows by the system's realloc, which moves large blocks by remapping pages: no two copies exist at any time.
        # (``ndarray.resize`` did so until NumPy 2.4 and copies since.)
        self._data = array("d")
        self._width = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        if isinstance(record.x, np.ndarray) and self.kind != "graph":
            self._append(record.x, record.id if self.unit == "image" else record.line)
            self._shapes[len(self._records)] = record.x.shape
            record = replace(record, x=None)
        self._records.append(record)

    def _append(self, x: Any, place: Any) -> None:
        """Append the rows of an array to ``_data``."""
        self._width = self._width or int(x.shape[-1])
        if x.shape[-1] != self._width:
            raise InputError(
                f"{self.name}, {self.unit} {place}: {x.shape[-1]} features per site, but the instances before "
                f"have {self._width}; give every site the same number."
            )
        if x.size:
            self._data.frombytes(np.ascontiguousarray(x, dtype=np.float64).data.cast("B"))

    def finish(self) -> Dataset:
        """The data set; an empty one is an error."""
        if not self._records:
            raise InputError(f"{self.name} holds no instances; give at least one.")
        matrix: Floats = np.frombuffer(self._data, dtype=np.float64).reshape(-1, max(self._width, 1))
        X = [record.x for record in self._records]
        first = 0
        for b, shape in self._shapes.items():
            n = int(np.prod(shape[:-1]))
            X[b] = matrix[first : first + n].reshape(shape)
            first += n
        y = self._column(X, [record.y for record in self._records], None)
        hidden = self._column(X, [record.hidden for record in self._records], False)
        lines = [record.line for record in self._records]
        ids = [record.id for record in self._records]
        sources = [record.source for record in self._records]
        votes = None
        if any(record.votes is not None for record in self._records):
            votes = [record.votes or {} for record in self._records]
        return Dataset(self.name, self.kind, X, y, lines, ids, hidden, self.unit, sources, votes)

    def _column(self, X: list[Any], values: list[Any], default: Any) -> list[Any] | None:
        """One value per instance; an instance without a value has ``default`` at all its sites. None if no instance
        has a value."""
        first = next((value for value in values if value is not None), None)
        if first is None:
            return None
        column = []
        for x, value in zip(X, values, strict=True):
            if value is None:
                value = [default] * len(first) if self.kind == "multilabel" else _at_every_site(x, self.kind, default)
            column.append(value)
        return column


def n_sites(x: Any, kind: Kind) -> tuple[int, ...]:
    """The shape of an instance's labels."""
    if kind == "sequence":
        return ()
    if isinstance(x, dict):
        x = x["x"]
    if isinstance(x, tuple) and all(hasattr(part, "shape") for part in x):
        x = x[0]  # edge features follow
    if hasattr(x, "shape"):
        return tuple(x.shape[: 2 if kind == "grid" else 1])
    if kind == "grid":
        return len(x), len(x[0])
    return (len(x),)


def _at_every_site(x: Any, kind: Kind, value: Any) -> Any:
    """``value`` for every site, nested like labels."""
    shape = n_sites(x, kind)
    if not shape:
        return value
    if len(shape) == 1:
        return [value] * shape[0]
    return [[value] * shape[1] for _ in range(shape[0])]

"""A data set in memory: ragged instances, their labels, and where each came from.

Dense features of all instances lie under each other in one growing array; instances are views of it. Labels are shared
objects, so that a site costs one pointer. Reading therefore needs little more memory than the features themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, MssvmError

Kind = Literal["chain", "sequence", "grid", "graph"]
KINDS: tuple[Kind, ...] = ("chain", "sequence", "grid", "graph")


@dataclass(frozen=True, eq=False)
class Instance:
    """One instance as read; ``y`` is None where no labels are given, ``hidden`` marks sites that have none at all."""

    line: int
    x: Any
    y: Any = None
    id: Any = None
    hidden: Any = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Instances ``X`` with labels ``y`` (None = missing, a list = one of these) for ``fit``, ``predict`` and ``score``.

    ``y`` is None where no instance has labels. ``unit`` is what ``lines`` counts: lines, or entries of an array.
    """

    name: str
    kind: Kind
    X: list[Any]
    y: list[Any] | None
    lines: list[int]
    ids: list[Any]
    hidden: list[Any] | None = None
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.X)

    @property
    def labels(self) -> list[Any]:
        """Labels of every instance, missing ones included."""
        if self.y is None:
            raise InputError(f"{self.name} holds no labels; give every instance a 'y' (null where a label is missing).")
        return self.y

    def place(self, b: int, site: int | None = None) -> str:
        """Where instance ``b`` was read."""
        at = f", site {site}" if site is not None else ""
        return f"{self.name}, {self.unit} {self.ids[b] if self.unit == 'image' else self.lines[b]}{at}"

    @contextmanager
    def places(self) -> Iterator[None]:
        """Errors about instance b of X or y speak of the file and its line instead."""
        try:
            yield
        except MssvmError as error:
            if error.instance is None or error.instance >= len(self):
                raise
            raise type(error)(f"{self.place(error.instance, error.site)}: {error.reason}") from None

    def select(self, which: Iterable[int]) -> Dataset:
        """Some of the instances."""
        at = [int(b) for b in which]
        return Dataset(
            self.name,
            self.kind,
            [self.X[b] for b in at],
            None if self.y is None else [self.y[b] for b in at],
            [self.lines[b] for b in at],
            [self.ids[b] for b in at],
            None if self.hidden is None else [self.hidden[b] for b in at],
            self.unit,
        )


@dataclass
class Rows:
    """Rows of numbers that come one instance at a time."""

    width: int = 0
    _data: Floats = field(default_factory=lambda: np.zeros(0))
    _used: int = 0

    def append(self, rows: Any) -> None:
        need = self._used + rows.size
        if need > len(self._data):
            # The system's realloc moves large blocks by remapping pages, so growing does not hold two copies.
            self._data.resize(max(need, len(self._data) + (len(self._data) >> 3) + 4096), refcheck=False)
        self._data[self._used : need] = rows.ravel()
        self._used = need

    def finish(self) -> Floats:
        self._data.resize(self._used, refcheck=False)
        return self._data.reshape(-1, self.width) if self.width else self._data.reshape(0, 0)


class Collector:
    """Puts instances together; ``finish`` makes the data set. The labels of a file must be of one type."""

    def __init__(self, name: str, kind: Kind, unit: str = "line") -> None:
        self.name, self.kind, self.unit = name, kind, unit
        self._rows, self._shapes = Rows(), list[tuple[int, ...] | None]()
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._lines: list[int] = []
        self._ids: list[Any] = []
        self._hidden: list[Any] = []

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def n_values(self) -> int:
        return self._rows._used

    def add(self, instance: Instance) -> None:
        x = instance.x
        if isinstance(x, np.ndarray) and self.kind != "graph":
            self._check_width(x, instance)
            self._rows.append(x)
            self._shapes.append(x.shape)
            x = None
        else:
            self._shapes.append(None)
        self._x.append(x)
        self._y.append(instance.y)
        self._lines.append(instance.line)
        self._ids.append(instance.id)
        self._hidden.append(instance.hidden)

    def _check_width(self, x: Any, instance: Instance) -> None:
        width = self._rows.width or int(x.shape[-1])
        if x.shape[-1] != width:
            at = instance.id if self.unit == "image" else instance.line
            raise InputError(
                f"{self.name}, {self.unit} {at}: {x.shape[-1]} features per site, but the instances before "
                f"have {width}; give every site the same number."
            )
        self._rows.width = width

    def finish(self) -> Dataset:
        """The data set; an empty one is an error."""
        if not self._lines:
            raise InputError(f"{self.name} holds no instances; give at least one.")
        matrix = self._rows.finish()
        first = 0
        for b, shape in enumerate(self._shapes):
            if shape is not None:
                n = int(np.prod(shape[:-1]))
                self._x[b] = matrix[first : first + n].reshape(shape)
                first += n
        labelled = any(y is not None for y in self._y)
        y = [self._unlabelled(x) if y is None else y for x, y in zip(self._x, self._y, strict=True)]
        hidden = None
        if any(h is not None for h in self._hidden):
            hidden = [
                h if h is not None else _spread(x, self.kind, False)
                for x, h in zip(self._x, self._hidden, strict=True)
            ]
        return Dataset(
            self.name, self.kind, self._x, y if labelled else None, self._lines, self._ids, hidden, self.unit
        )

    def _unlabelled(self, x: Any) -> Any:
        return _spread(x, self.kind, None)


def n_sites(x: Any, kind: Kind) -> tuple[int, ...]:
    """The shape of an instance's labels."""
    if kind == "sequence":
        return ()
    if isinstance(x, dict):
        x = x["x"]
    if kind == "grid":
        return (len(x), len(x[0]))
    return (len(x),)


def _spread(x: Any, kind: Kind, value: Any) -> Any:
    """``value`` at every site."""
    shape = n_sites(x, kind)
    if not shape:
        return value
    return [value] * shape[0] if len(shape) == 1 else [[value] * shape[1] for _ in range(shape[0])]

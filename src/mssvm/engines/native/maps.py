"""Sparse linear maps from the scores of graphs to those of forests made from them (``cpp/maps.cpp``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import FLOATS, INT, INTS, Function, Record
from mssvm.core.topology import offsets

NO_WEIGHT = np.zeros(0)
_MAP = Function(
    "mssvm_map_entries",
    of=INTS,
    here=INTS,
    at=INTS,
    place=INTS,
    ptr=INTS,
    runs=INTS,
    graphs=FLOATS,
    forests=FLOATS,
    weight=FLOATS,
    back=INT,
)
_RUNS = Function("mssvm_map_runs", rows=INTS, runs=INTS)


@dataclass(frozen=True, eq=False)
class EntryMap:
    """A sparse matrix of ones from an array of graphs to one of forests, as blocks of a few kinds.

    Block i, of kind ``of[i]``, begins at ``here[i]`` of the forests, and its slot s at ``place[at[i] + s]`` of the
    graphs. A kind has the runs ``ptr[kind] : ptr[kind + 1]``: slot, entry, to, length, step of entry, step of to.
    """

    of: Ints
    here: Ints
    at: Ints
    place: Ints
    ptr: Ints
    runs: Ints

    @classmethod
    def make(cls, of: Ints, here: Ints, at: Ints, place: Ints, lists: Sequence[Ints]) -> EntryMap:
        """``lists`` by kind: rows (to, slot, entry)."""
        runs = [_runs_of(rows) for rows in lists]
        ptr = offsets(np.array([len(rows) for rows in runs], dtype=np.int64))
        every = np.concatenate([np.zeros((0, 6), dtype=np.int64), *runs])
        return cls(
            of=np.ascontiguousarray(of),
            here=np.ascontiguousarray(here),
            at=np.ascontiguousarray(at),
            place=np.ascontiguousarray(place),
            ptr=ptr,
            runs=every,
        )

    def some(self, chosen: Bools) -> EntryMap:
        """The chosen blocks only."""
        if chosen.all():
            return self
        return EntryMap(self.of[chosen], self.here[chosen], self.at[chosen], self.place, self.ptr, self.runs)

    def add(self, graphs: Floats, forests: Floats) -> None:
        """forests += map(graphs)."""
        _MAP.run(self._record.changed(graphs=graphs, forests=forests))

    def add_back(self, forests: Floats, graphs: Floats, weight: Floats = NO_WEIGHT) -> None:
        """graphs += the transposed map of forests, each block times its weight (default 1)."""
        _MAP.run(self._transposed.changed(graphs=graphs, forests=forests, weight=weight))

    @cached_property
    def _record(self) -> Record:
        """The record of a call, without the arrays that change from call to call."""
        return _MAP.record(
            of=self.of,
            here=self.here,
            at=self.at,
            place=self.place,
            ptr=self.ptr,
            runs=self.runs,
            graphs=NO_WEIGHT,
            forests=NO_WEIGHT,
            weight=NO_WEIGHT,
            back=0,
        )

    @cached_property
    def _transposed(self) -> Record:
        return self._record.changed(back=1)


def _runs_of(rows: Ints) -> Ints:
    """Rows (to, slot, entry) as runs with constant steps, in the order of forests or of graphs, whichever has fewer."""
    to, slot, entry = rows.T
    candidates: list[Ints] = []
    for order in ((to, slot), (to, entry, slot)):
        ordered = np.ascontiguousarray(rows[np.lexsort(order)])
        runs = np.empty((len(rows), 6), dtype=np.int64)
        candidates.append(runs[: _RUNS(rows=ordered, runs=runs)])
    return min(candidates, key=len)

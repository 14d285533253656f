"""Which variables of loopy graphs share a vector, and where their numbers are stored (``cpp/trws.hpp``).

A sweep visits variables in the order of their levels. The level of a variable is the length of the longest monotone
chain that ends at it, so neighbours have different levels, and variables of one level may be updated together: on a
grid they are a diagonal. The kind of a variable says which code its update needs: its number of states, and for each of
its factors the neighbour's number of states, the direction, and how the chain goes on; at two temperatures also the
roles. A group is as many variables of one level and one kind as a vector has lanes, from one instance or from several
instances of one graph.

A slot is one factor of one variable. The k-th slots of all variables of a group form the k-th slot of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.library import FLOATS, INT, INTS, MASK, SHORTS, Record, RecordType, lanes
from mssvm.core.topology import Batch, Topology, offsets, ranks
from mssvm.engines.native.chains import chain_cover

TASK_VARIABLES = 1 << 14  # of a task, which one thread runs; one vector of instances may have more
NO_INTS = np.zeros(0, dtype=np.int64)
MIX = np.uint64(0x9E3779B97F4A7C15)

LAYOUT = RecordType(
    "chain layout",
    {
        "task_ptr": INTS,
        "state_at": INTS,
        "slot_ptr": INTS,
        "in_count": INTS,
        "variable": INTS,
        "root": FLOATS,
        "left": FLOATS,
        "message_at": INTS,
        "read_at": INTS,
        "partner": INTS,
        "other_card": SHORTS,
        "transposed": MASK,
        "aligned": MASK,
        "tied": MASK,
        "reverse": SHORTS,
        "reverse_read": SHORTS,
        "table": SHORTS,
        "scaled": SHORTS,
        "mu": SHORTS,
        "other": SHORTS,
        "rho": FLOATS,
        "hidden": MASK,
        "other_hidden": MASK,
        "shift_at": INTS,
        "widest": INT,
        "degree": INT,
    },
)


class GraphSlots:
    """The slots of a topology, sorted by variable; a variable's slots to lower neighbours come first.

    For every slot:    ``variable``, ``factor``, the neighbour ``other``, the neighbour's slot of the same factor
                       (``reverse``), the slot by which the chain leaves the variable (``partner``, -1: it ends), the
                       chain's ``weight``, ``transposed`` (the variable is the factor's second), and ``upward`` (the
                       neighbour has a higher number).
    For every variable: its first slot (``ptr``), its ``level``, the weight ``left`` by its chains, and a hash of its
                       ``kind``: variables of one kind can share a vector.
    """

    def __init__(self, graph: Topology) -> None:
        cover = chain_cover(graph)
        ends = graph.scope_flat.reshape(-1, 2)
        variable = ends.ravel()
        other = ends[:, ::-1].ravel()
        factor = np.repeat(np.arange(graph.n_factors), 2)
        order = np.lexsort((factor, other > variable, variable))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self.variable = variable[order]
        self.other = other[order]
        self.factor = factor[order]
        self.transposed: Bools = order % 2 == 1
        self.upward: Bools = self.other > self.variable
        self.reverse = place[order ^ 1]
        self.weight = cover.weight[self.factor]
        self.ptr = offsets(np.bincount(variable, minlength=graph.n_vars).astype(np.int64))
        self.level = cover.level
        self.left = cover.left
        self.partner = self._partners(cover.chain, graph.n_vars)
        self.kind = self._kinds(graph.card_array)

    def _partners(self, chain: Ints, n: int) -> Ints:
        """The two slots of every variable that a chain passes: from a lower neighbour and to a higher one."""
        out = np.full(len(self.variable), -1)
        key = chain[self.factor] * n + self.variable
        below = np.flatnonzero(~self.upward)
        above = np.flatnonzero(self.upward)
        _, i, j = np.intersect1d(key[below], key[above], assume_unique=True, return_indices=True)
        out[below[i]] = above[j]
        out[above[j]] = below[i]
        return out

    def _kinds(self, cards: Ints) -> AnyArray:
        partner = np.where(self.partner < 0, -1, self.partner - self.ptr[self.variable])
        slot = _mixed(cards[self.other], self.transposed, partner + 1, self.upward)
        return _mixed(cards) + _sums_by_place(slot, self.variable, self.ptr)


@dataclass(frozen=True, eq=False)
class ScaledTables:
    """Pairs of a table and the weight of a chain that uses it: where theta is read and the scaled table is written."""

    table: Ints
    size: Ints
    weight: Floats
    scaled_at: Ints
    total: int


@dataclass(frozen=True, eq=False)
class ChainLayout:
    """The kernels' record for some instances of a batch, and the sizes of its arrays: scores (``n_states``), messages,
    shifts and marginals being read (``n_read``); ``nested``: at two temperatures."""

    record: Record
    tables: ScaledTables
    nested: bool
    n_states: int
    n_messages: int
    n_shifts: int
    n_read: int


def chain_layout(batch: Batch, instances: Ints, hidden: Bools | None = None) -> ChainLayout:
    """The layout of some instances; with a mask ``hidden`` over the batch's variables, for two temperatures.

    Messages to hidden variables then have a row for every state of an output.
    """
    made = LayoutBuilder(batch, instances, hidden)
    sizes = made.n_states, made.n_messages, made.n_shifts, made.n_read
    return ChainLayout(made.record, made.tables, made.nested, *sizes)


class LayoutBuilder:
    """Builds a layout from arrays over the variables and slots of all instances, which are freed with the builder."""

    def __init__(self, batch: Batch, instances: Ints, hidden: Bools | None = None) -> None:
        self.batch = batch
        self.width = lanes()
        self.nested = hidden is not None
        self._place_instances(instances)
        self._read_graphs(np.zeros(batch.n_vars, dtype=bool) if hidden is None else hidden)
        self._make_groups()
        self._place_slots()
        self.tables = self._tables()

    def _place_instances(self, instances: Ints) -> None:
        """Sort instances by graph, and cut those of one graph into tasks of whole vectors."""
        batch = self.batch
        self.instances = instances[np.argsort(batch.topology_of[instances], kind="stable")]
        kinds = batch.topology_of[self.instances]
        self.task_of_instance = np.zeros(len(kinds), dtype=np.int64)
        at = 0
        number = 0
        while at < len(kinds):
            n = max(batch.topologies[int(kinds[at])].n_vars, 1)
            many = max(1, TASK_VARIABLES // (n * self.width)) * self.width
            end = min(at + many, int(np.searchsorted(kinds, kinds[at], side="right")))
            self.task_of_instance[at:end] = number
            at = end
            number = number + 1
        self.n_tasks = number

    def _read_graphs(self, hidden: Bools) -> None:
        """Concatenate the variables and slots of all instances, renumbered consecutively."""
        batch = self.batch
        kinds = self.batch.topology_of[self.instances]
        graphs = {int(k): GraphSlots(batch.topologies[int(k)]) for k in np.unique(kinds)}
        parts = [graphs[int(k)] for k in kinds]
        n_vars = np.diff(batch.var_ptr)[self.instances]
        first = offsets(n_vars)
        self.local = ranks(first)
        self.of = np.repeat(np.arange(len(parts)), n_vars)
        self.variable = batch.var_ptr[self.instances][self.of] + self.local
        self.card = batch.cards[self.variable]
        self.hidden = hidden[self.variable]
        self.level = _joined([p.level for p in parts])
        self.left = _joined([p.left for p in parts], np.float64)
        self.degree = _joined([np.diff(p.ptr) for p in parts])

        begin = offsets(np.array([len(p.variable) for p in parts], dtype=np.int64))
        counted = list(zip(parts, first.tolist(), begin.tolist(), strict=False))
        self.mine = _joined([p.variable + v for p, v, _ in counted])
        self.other = _joined([p.other + v for p, v, _ in counted])
        self.reverse = _joined([p.reverse + s for p, _, s in counted])
        self.partner = _joined([np.where(p.partner < 0, -1, p.partner + s) for p, _, s in counted])
        self.factor = batch.factor_ptr[self.instances][self.of[self.mine]] + _joined([p.factor for p in parts])
        self.weight = _joined([p.weight for p in parts], np.float64)
        self.transposed = _joined([p.transposed for p in parts], bool)
        self.upward = _joined([p.upward for p in parts], bool)
        slot_ptr = offsets(self.degree)
        self.rank = ranks(slot_ptr)
        roles = _mixed(self.hidden) + _sums_by_place(_mixed(self.hidden[self.other]), self.mine, slot_ptr)
        self.kind = _joined([p.kind for p in parts], np.uint64) + roles

    def _make_groups(self) -> None:
        """Sort variables by task, level and kind, and cut equal ones into groups of the width of a vector."""
        task = self.task_of_instance[self.of]
        order = np.lexsort((self.of, self.local, self.kind, self.level, task))
        new = np.zeros(len(order), dtype=bool)
        new[:1] = True
        for column in (task, self.level, self.kind):
            ordered = column[order]
            new[1:] |= ordered[1:] != ordered[:-1]
        begin = np.flatnonzero(new)
        in_run = np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))
        starts = in_run % self.width == 0
        self.group, self.lane = np.empty((2, len(order)), dtype=np.int64)
        self.group[order] = np.cumsum(starts) - 1
        self.lane[order] = in_run % self.width
        self.heads = order[starts]
        self.task_ptr = np.searchsorted(task[self.heads], np.arange(self.n_tasks + 1)).astype(np.int64)
        self.slot_ptr = offsets(self.degree[self.heads])

    def _place_slots(self) -> None:
        """Offsets, in vectors, of the messages, shifts and readings of every slot."""
        self.slot = self.slot_ptr[self.group[self.mine]] + self.rank
        self.n_slots = int(self.slot_ptr[-1])
        self.widest = int(self.card.max(initial=1))
        # Rows of messages to hidden variables, and what these send, have a level beside their entries.
        size = np.where(self.hidden, self.widest * (self.card + 1), self.card)
        self.message_at = offsets(self._by_slot(size[self.mine], np.int64))
        readings = size[self.other] if self.nested else self.card[self.mine] + self.card[self.other]
        self.read_at = offsets(self._by_slot(np.where(self.upward, 0, readings), np.int64))
        owns = ~self.upward | (self.partner < 0)
        shift_at = offsets(self._by_slot(np.where(owns, self.card[self.mine], 0), np.int64))
        first_of_chain = np.where(owns, np.arange(len(self.mine)), self.partner)
        self.shift_at = self._by_slot(shift_at[self.slot[first_of_chain]], np.int64)
        width = self.width
        room = self.widest * (self.widest + 1 if self.nested else 2)
        self.n_states = int(self.card[self.heads].sum()) * width
        self.n_messages = (int(self.message_at[-1]) + room) * width
        self.n_read = (int(self.read_at[-1]) + room) * width
        self.n_shifts = int(shift_at[-1]) * width
        batch = self.batch
        largest = max(self.n_messages, self.n_read, batch.n_table_entries, batch.n_mu_entries, batch.n_vars)
        if largest > np.iinfo(np.int32).max:
            raise UnsupportedError("the chains of one block have more than 2^31 numbers; use smaller batches.")

    def _tables(self) -> ScaledTables:
        batch = self.batch
        at = batch.table_at[self.factor]
        weights, number = np.unique(self.weight, return_inverse=True)
        key = at * max(len(weights), 1) + number
        _, where, inverse = np.unique(key, return_index=True, return_inverse=True)
        sizes = batch.table_sizes[self.factor[where]] if len(where) else NO_INTS
        begin = offsets(sizes + 1)
        self.scaled = begin[:-1][inverse] if len(where) else NO_INTS
        return ScaledTables(at[where], sizes, self.weight[where], begin[:-1], int(begin[-1]))

    @property
    def record(self) -> Record:
        """The layout as the kernels take it."""
        batch = self.batch
        width = self.width
        back = self.slot[self.reverse]
        back_lane = self.lane[self.mine[self.reverse]]
        trash = int(self.message_at[-1]) * width
        trash_read = int(self.read_at[-1]) * width
        reverse = self._by_lane(self.message_at[back] * width + back_lane, np.int32, trash)
        readings = np.where(self.upward, self.read_at[back] * width + back_lane, trash_read)
        reverse_read = self._by_lane(readings, np.int32, trash_read)
        scaled = self._by_lane(self.scaled, np.int32)
        upward = self._by_slot(self.upward, bool)
        begins = (self.partner < 0) & self.upward
        starting = np.bincount(self.mine[begins], weights=self.weight[begins], minlength=len(self.left))
        return LAYOUT(
            task_ptr=self.task_ptr,
            state_at=offsets(self.card[self.heads]),
            slot_ptr=self.slot_ptr,
            in_count=np.bincount(self.mine[~self.upward], minlength=len(self.left))[self.heads],
            variable=self._by_group(self.variable, -1, np.int64),
            root=self._by_group(self.left + starting, 0.0, np.float64),
            left=self._by_group(self.left, 0.0, np.float64),
            message_at=self.message_at[:-1],
            read_at=self.read_at[:-1],
            partner=self._by_slot(np.where(self.partner < 0, -1, self.slot[self.partner]), np.int64),
            other_card=self._by_slot(self.card[self.other], np.int32),
            transposed=self._by_slot(self.transposed, bool),
            aligned=self._side_by_side(reverse) & (~upward | self._side_by_side(reverse_read)),
            tied=self._the_same(scaled),
            reverse=reverse,
            reverse_read=reverse_read,
            table=self._by_lane(batch.table_at[self.factor], np.int32),
            scaled=scaled,
            mu=self._by_lane(batch.mu_at[self.factor], np.int32, -1),
            other=self._by_lane(self.variable[self.other], np.int32, 0),
            rho=self._by_lane(self.weight, np.float64),
            hidden=self.hidden[self.heads],
            other_hidden=self._by_slot(self.hidden[self.other], bool),
            shift_at=self.shift_at,
            widest=self.widest,
            degree=int(self.degree.max(initial=0)),
        )

    def _by_slot(self, values: AnyArray, dtype: Any) -> AnyArray:
        """An array over the slots of groups, from values that are equal for all slots that share one."""
        out = np.zeros(self.n_slots, dtype=dtype)
        out[self.slot] = values
        return out

    def _by_lane(self, values: AnyArray, dtype: Any, empty: int | None = None) -> AnyArray:
        """Values by slot and lane; lanes without a variable have ``empty``, or what the first lane has."""
        out = np.zeros((self.n_slots, self.width), dtype=dtype)
        lane = self.lane[self.mine]
        first = lane == 0
        out[self.slot[first]] = values[first, None] if empty is None else empty
        out[self.slot, lane] = values
        return out.ravel()

    def _by_group(self, values: AnyArray, empty: float, dtype: Any) -> AnyArray:
        out = np.full(len(self.heads) * self.width, empty, dtype=dtype)
        out[self.group * self.width + self.lane] = values
        return out

    def _side_by_side(self, places: AnyArray) -> Bools:
        rows = places.reshape(-1, self.width)
        return np.asarray((rows == rows[:, :1] + np.arange(self.width)).all(axis=1))

    def _the_same(self, places: AnyArray) -> Bools:
        rows = places.reshape(-1, self.width)
        return np.asarray((rows == rows[:, :1]).all(axis=1))


def _joined(parts: list[AnyArray], dtype: Any = np.int64) -> AnyArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)


def _mixed(*columns: AnyArray) -> AnyArray:
    """A number for every row of some columns of whole numbers; equal rows have equal numbers."""
    out = np.zeros(len(columns[0]), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            out = (out + column.astype(np.uint64) + np.uint64(1)) * MIX
            out ^= out >> np.uint64(29)
    return out


def _sums_by_place(numbers: AnyArray, variable: Ints, ptr: Ints) -> AnyArray:
    """By variable, the numbers of its slots and of their places as one."""
    out = np.zeros(len(ptr) - 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(out, variable, _mixed(numbers, ranks(ptr)))
    return out

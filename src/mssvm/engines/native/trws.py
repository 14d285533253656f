"""The decomposition bound by sequential tree-reweighted messages (``cpp/trws.hpp``), many variables abreast.

A layout puts the variables of some instances into groups of as many as a vector has lanes: variables of one level that
have the same number of states and the same kinds of factors. Instances of one graph run side by side, position by
position; a single large graph runs along its levels, on a grid the diagonals.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.library import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    MASK,
    SHORTS,
    Function,
    Record,
    RecordKind,
    RecordType,
    lanes,
)
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, offsets, ranks
from mssvm.engines.native.chains import chain_cover

TASK_VARIABLES = 1 << 14  # of the instances of a task, unless one vector of them has more
MAXIMA, SCALED, SCORES = range(3)  # as ``Rule`` of the kernel
NO_FLOATS, NO_INTS = np.zeros(0), np.zeros(0, dtype=np.int64)
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
        "widest": INT,
    },
)
LOAD = Function(
    "mssvm_trws_load",
    layout=RecordKind(LAYOUT),
    scores=FLOATS,
    allowed=MASK,
    unary_ptr=INTS,
    unary=FLOATS,
    tables=FLOATS,
    table=INTS,
    size=INTS,
    scaled_at=INTS,
    weight=FLOATS,
    scaled=FLOATS,
    eps=FLOAT,
    threads=INT,
)
_CALL: dict[str, Any] = {
    "layout": RecordKind(LAYOUT),
    "unary": FLOATS,
    "tables": FLOATS,
    "scaled": FLOATS,
    "messages": FLOATS,
    "read": FLOATS,
    "unary_ptr": INTS,
    "owner": INTS,
    "value": FLOATS,
    "mu_unary": FLOATS,
    "mu_tables": FLOATS,
    "residual": FLOATS,
    "states": INTS,
    "eps": FLOAT,
    "rule": INT,
    "sweeps": INT,
    "threads": INT,
}
SWEEP = Function("mssvm_trws_sweep", **_CALL)
READ = Function("mssvm_trws_read", **_CALL)
DECODE = Function("mssvm_trws_decode", **_CALL)


class GraphSlots:
    """The slots of a topology: one for every end of every factor, by variable, those to lower variables first.

    By slot: ``variable``, ``factor``, the neighbour's variable ``other``, the slot at its end ``reverse``, the slot by
    which the chain goes on ``partner`` (-1: none), ``weight`` of the chain, and whether the variable is the factor's
    second (``transposed``). By variable: where slots begin (``ptr``), how many lead to lower variables (``lower``), and
    a number for its kind: variables of one kind can share a vector.
    """

    def __init__(self, graph: Topology) -> None:
        cover = chain_cover(graph)
        ends = graph.scope_flat.reshape(-1, 2)
        n, factors = graph.n_vars, np.arange(graph.n_factors)
        variable = ends.ravel()
        other = ends[:, ::-1].ravel()
        factor = np.repeat(factors, 2)
        upward = other > variable
        order = np.lexsort((factor, upward, variable))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self.variable, self.other, self.factor = variable[order], other[order], factor[order]
        self.transposed: Bools = order % 2 == 1
        self.reverse = place[order ^ 1]
        self.weight = cover.weight[self.factor]
        self.ptr = offsets(np.bincount(variable, minlength=n).astype(np.int64))
        self.lower = np.bincount(self.variable[~upward[order]], minlength=n)
        self.level, self.left = cover.level, cover.left
        self.partner = self._partners(cover.chain, upward[order], n)
        self.kind = self._kinds(graph)

    def _partners(self, chain: Ints, upward: Bools, n: int) -> Ints:
        """A chain passes a variable by one slot from below and one to above."""
        out = np.full(len(self.variable), -1)
        key = chain[self.factor] * n + self.variable
        below, above = np.flatnonzero(~upward), np.flatnonzero(upward)
        _, i, j = np.intersect1d(key[below], key[above], assume_unique=True, return_indices=True)
        out[below[i]] = above[j]
        out[above[j]] = below[i]
        return out

    def _kinds(self, graph: Topology) -> AnyArray:
        cards, begin = graph.card_array, self.ptr[self.variable]
        partner = np.where(self.partner < 0, -1, self.partner - begin)
        described = (cards[self.other], self.transposed, partner + 1, self.factor * 0 + 1)
        mixed = np.zeros(len(self.variable), dtype=np.uint64)
        with np.errstate(over="ignore"):
            for part in described:
                mixed = (mixed + part.astype(np.uint64) + np.uint64(1)) * MIX
                mixed ^= mixed >> np.uint64(29)
            at_place = mixed * (ranks(self.ptr).astype(np.uint64) * np.uint64(2) + np.uint64(1)) * MIX
            kind = (cards.astype(np.uint64) * MIX + self.lower.astype(np.uint64)) * MIX
            np.add.at(kind, self.variable, at_place)
        return kind


class ChainPlan:
    """The bound on some instances of a batch, pairwise all of them."""

    def __init__(self, batch: Batch, instances: Ints, workers: Workers) -> None:
        self.batch, self.instances, self.workers = batch, np.asarray(instances, dtype=np.int64), workers
        self.owner = np.ascontiguousarray(batch.owner, dtype=np.int64)
        self._build()

    def run(self) -> ChainRun:
        """Messages of zero."""
        return ChainRun(self)

    def _build(self) -> None:
        batch, width = self.batch, lanes()
        kinds = {int(k): GraphSlots(batch.topologies[int(k)]) for k in np.unique(batch.topology_of[self.instances])}
        instances, task = self._tasks()
        slots = [kinds[int(batch.topology_of[b])] for b in instances]
        n_vars = np.diff(batch.var_ptr)[instances]
        first = offsets(n_vars)
        local = ranks(first)
        of = np.repeat(np.arange(len(instances)), n_vars)
        variable = batch.var_ptr[instances][of] + local
        level = _joined([s.level for s in slots])
        kind = _joined([s.kind for s in slots], np.uint64)
        left = _joined([s.left for s in slots], np.float64)
        lower = _joined([s.lower for s in slots])
        degree = _joined([np.diff(s.ptr) for s in slots])

        # Groups: runs of one task, level and kind, cut to the width of a vector.
        task_of = task[of]
        order = np.lexsort((of, local, kind, level, task_of))
        new = np.ones(len(order), dtype=bool)
        for column in (task_of, level, kind):
            ordered = column[order]
            new[1:] &= ordered[1:] == ordered[:-1]
        new[1:] = ~new[1:]
        begin = np.flatnonzero(new)
        in_run = np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))
        starts = new | (in_run % width == 0)
        group_sorted = np.cumsum(starts) - 1
        n_groups = int(starts.sum())
        group, lane = np.empty((2, len(order)), dtype=np.int64)
        group[order] = group_sorted
        lane[order] = in_run % width
        heads = order[starts]

        # Slots of groups, and where every slot of every variable lies among them.
        slot_ptr = offsets(degree[heads])
        n_slots = int(slot_ptr[-1])
        card = batch.cards[variable]
        state_at = offsets(card[heads])
        message_at = offsets(np.repeat(card[heads], degree[heads]))
        n_messages = int(message_at[-1])
        slot_of = self._all_slots(slots, first)
        mine = slot_of["variable"]
        rank = np.arange(len(mine)) - np.repeat(slot_of["ptr"], degree)
        gslot = slot_ptr[group[mine]] + rank
        flat = gslot * width + lane[mine]

        def by_lane(values: AnyArray, empty: Any, dtype: Any) -> AnyArray:
            """Values of slots by group slot and lane; ``empty`` (None: the first lane's) where there is no variable."""
            out = np.full(n_slots * width, -1, dtype=dtype) if empty is None else np.full(n_slots * width, empty, dtype)
            out[flat] = values
            if empty is None:
                missing = np.ones(n_slots * width, dtype=bool)
                missing[flat] = False
                rows = out.reshape(-1, width)
                rows[missing.reshape(-1, width)] = np.repeat(rows[:, 0], missing.reshape(-1, width).sum(axis=1))
            return out

        def by_slot(values: AnyArray, dtype: Any) -> AnyArray:
            out = np.zeros(n_slots, dtype=dtype)
            out[gslot] = values
            return out

        back = slot_of["reverse"]
        back_slot, back_lane = gslot[back], lane[mine[back]]
        self.widest = int(card.max(initial=1))
        other_card = card[slot_of["other"]]
        is_lower = rank < lower[mine]
        read_size = np.zeros(n_slots, dtype=np.int64)
        read_size[gslot] = np.where(is_lower, card[mine] + other_card, 0)
        read_at = offsets(read_size)
        reverse = message_at[back_slot] * width + back_lane
        reverse_read = np.where(is_lower, read_at[-1] * width, read_at[back_slot] * width + back_lane)
        factors = batch.factor_ptr[instances][of[mine]] + slot_of["factor"]
        scaled = self._scaled(factors, slot_of["weight"])
        partner = np.where(slot_of["partner"] < 0, -1, gslot[slot_of["partner"]])
        _check_sizes((n_messages + self.widest) * width, batch.n_table_entries, batch.n_mu_entries, batch.n_vars)

        trash, trash_read = n_messages * width, int(read_at[-1]) * width
        columns: dict[str, Any] = {
            "reverse": by_lane(reverse, trash, np.int32),
            "reverse_read": by_lane(reverse_read, trash_read, np.int32),
            "table": by_lane(batch.table_at[factors], None, np.int32),
            "scaled": by_lane(scaled, None, np.int32),
            "mu": by_lane(batch.mu_at[factors], -1, np.int32),
            "other": by_lane(variable[slot_of["other"]], 0, np.int32),
            "rho": by_lane(slot_of["weight"], None, np.float64),
        }
        side_by_side = columns["reverse"].reshape(-1, width) - np.arange(width, dtype=np.int32)
        read_side = columns["reverse_read"].reshape(-1, width) - np.arange(width, dtype=np.int32)
        upper_slot = by_slot(~is_lower, bool)
        aligned = (side_by_side == side_by_side[:, :1]).all(axis=1)
        aligned &= ~upper_slot | (read_side == read_side[:, :1]).all(axis=1)
        tied = (columns["scaled"].reshape(-1, width) == columns["scaled"].reshape(-1, width)[:, :1]).all(axis=1)
        begins = (slot_of["partner"] < 0) & ~is_lower
        root = left + np.bincount(mine[begins], weights=slot_of["weight"][begins], minlength=len(left))

        def by_group(values: AnyArray, empty: Any, dtype: Any) -> AnyArray:
            out = np.full(n_groups * width, empty, dtype=dtype)
            out[group * width + lane] = values
            return out

        task_ptr = np.searchsorted(task_of[heads], np.arange(int(task.max(initial=-1)) + 2))
        self.layout = LAYOUT(
            task_ptr=task_ptr.astype(np.int64),
            state_at=state_at,
            slot_ptr=slot_ptr,
            in_count=lower[heads],
            variable=by_group(variable, -1, np.int64),
            root=by_group(root, 0.0, np.float64),
            left=by_group(left, 0.0, np.float64),
            message_at=message_at[:-1],
            read_at=read_at[:-1],
            partner=by_slot(partner, np.int64),
            other_card=by_slot(other_card, np.int32),
            transposed=by_slot(slot_of["transposed"], bool),
            aligned=aligned,
            tied=tied,
            widest=self.widest,
            **columns,
        )
        self.n_states = int(state_at[-1]) * width
        self.n_messages = (n_messages + self.widest) * width
        self.n_read = (int(read_at[-1]) + 2 * self.widest) * width

    def _tasks(self) -> tuple[Ints, Ints]:
        """Instances of one graph next to each other, and the task of each: some vectors of them."""
        batch, width = self.batch, lanes()
        instances = self.instances[np.argsort(batch.topology_of[self.instances], kind="stable")]
        task, at, number = np.zeros(len(instances), dtype=np.int64), 0, 0
        kinds = batch.topology_of[instances]
        while at < len(instances):
            n = max(batch.topologies[int(kinds[at])].n_vars, 1)
            many = max(1, TASK_VARIABLES // (n * width)) * width
            end = min(at + many, int(np.searchsorted(kinds, kinds[at], side="right")))
            task[at:end] = number
            at, number = end, number + 1
        return instances, task

    def _all_slots(self, slots: list[GraphSlots], first: Ints) -> dict[str, AnyArray]:
        """The slots of all instances one behind the other, numbers of variables and slots counted through."""
        begin = offsets(np.array([len(s.variable) for s in slots], dtype=np.int64))
        parts: dict[str, list[AnyArray]] = {}
        for k, s in enumerate(slots):
            columns = {
                "variable": s.variable + first[k],
                "other": s.other + first[k],
                "reverse": s.reverse + begin[k],
                "partner": np.where(s.partner < 0, -1, s.partner + begin[k]),
                "factor": s.factor,
                "weight": s.weight,
                "transposed": s.transposed,
                "ptr": s.ptr[:-1] + begin[k],
            }
            for name, column in columns.items():
                parts.setdefault(name, []).append(column)
        empty = {"weight": np.float64, "transposed": bool}
        names = ("variable", "other", "reverse", "partner", "factor", "weight", "transposed", "ptr")
        return {name: _joined(parts.get(name, []), empty.get(name, np.int64)) for name in names}

    def _scaled(self, factors: Ints, weight: Floats) -> Ints:
        """Where the scaled table of every slot lies; every table has one for each weight it occurs with."""
        batch = self.batch
        at = batch.table_at[factors]
        weights, number = np.unique(weight, return_inverse=True)
        _, where, inverse = np.unique(at * max(len(weights), 1) + number, return_index=True, return_inverse=True)
        sizes = batch.table_sizes[factors[where]] if len(where) else NO_INTS
        begin = offsets(sizes + 1)
        self.table, self.table_size, self.table_weight = at[where], sizes, weight[where]
        self.scaled_at, self.n_scaled = begin[:-1], int(begin[-1])
        return begin[:-1][inverse] if len(where) else NO_INTS


class ChainRun:
    """Messages of a plan in progress; scores are loaded before they are swept."""

    def __init__(self, plan: ChainPlan) -> None:
        self.plan = plan
        self.messages = _vectors(plan.n_messages)

    @cached_property
    def _unary(self) -> Floats:
        return _vectors(self.plan.n_states)

    @cached_property
    def _scaled(self) -> Floats:
        return np.zeros(self.plan.n_scaled)

    def load(self, theta: Potentials, allowed: Bools, eps: float) -> None:
        """Take scores over; messages stay as they are."""
        plan, batch = self.plan, self.plan.batch
        tables = np.ascontiguousarray(theta.tables, dtype=np.float64)
        safe = LOAD(
            layout=plan.layout,
            scores=np.ascontiguousarray(theta.unary, dtype=np.float64),
            allowed=np.ascontiguousarray(allowed, dtype=bool),
            unary_ptr=batch.unary_ptr,
            unary=self._unary,
            tables=tables,
            table=plan.table,
            size=plan.table_size,
            scaled_at=plan.scaled_at,
            weight=plan.table_weight,
            scaled=self._scaled,
            eps=float(eps),
            threads=plan.workers.idle,
        )
        rule = MAXIMA
        if eps > 0.0:
            rule = SCALED if safe else SCORES
        self._record = SWEEP.record(
            layout=plan.layout,
            unary=self._unary,
            tables=tables,
            scaled=self._scaled,
            messages=self.messages,
            read=NO_FLOATS,
            unary_ptr=batch.unary_ptr,
            owner=plan.owner,
            value=NO_FLOATS,
            mu_unary=NO_FLOATS,
            mu_tables=NO_FLOATS,
            residual=NO_FLOATS,
            states=NO_INTS,
            eps=float(eps),
            rule=rule,
            sweeps=0,
            threads=plan.workers.idle,
        )

    def sweep(self, n: int) -> Floats:
        """The bound of every instance of the batch (0 outside the plan) after n > 0 sweeps to and fro."""
        value = np.zeros(len(self.plan.batch))
        SWEEP.run(self._record.changed(value=value, sweeps=n))
        return value

    def read(self, mu: Marginals) -> Floats:
        """Write the marginals by which the bound changes with the scores, at the messages of the last sweep (eps > 0).

        Returns, by instance, the largest difference of a variable's marginals between two chains.
        """
        residual, read = np.zeros(len(self.plan.batch)), _vectors(self.plan.n_read)
        READ.run(self._changed(mu_unary=mu.unary, mu_tables=mu.tables, residual=residual, read=read))
        return residual

    def decode(self, states: Ints) -> None:
        """Write a labelling: states in order, given the earlier ones and the messages of later ones."""
        DECODE.run(self._changed(states=states))

    def _changed(self, **fields: Any) -> Record:
        return self._record.changed(**fields)


def _joined(parts: list[AnyArray], dtype: Any = np.int64) -> AnyArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)


def _vectors(n: int) -> Floats:
    """Zeros that begin with a cache line."""
    room = np.zeros(n + 8)
    first = (-room.ctypes.data // 8) % 8
    return room[first : first + n]


def _check_sizes(*sizes: int) -> None:
    if max(sizes) > np.iinfo(np.int32).max:
        raise UnsupportedError("the chains of one block have more than 2^31 numbers; use smaller batches.")

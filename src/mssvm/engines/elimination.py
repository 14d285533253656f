"""Compiled plans of bucket elimination: the order of variables, and the inputs and message of every step.

Exact elimination is mini-bucket elimination with nothing split, so one compiler serves both: without a limit on table
entries every variable is one step; with a limit the functions of a bucket are divided among mini-buckets that respect
the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mssvm.core.arrays import Bools, Ints
from mssvm.core.orders import Limits, Order, Orders
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.program import Program

HIDDEN = 0
OUTPUT = 1
CLAMPED = 2


class Function(NamedTuple):
    """A table in the work vector.

    ``strides`` by variable; ``at`` and ``size``: its entries; ``source``: the step whose message it is (-1: scores).
    """

    strides: dict[int, int]
    at: int
    size: int
    source: int


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one instance: induced width, bytes of workspace, table entries visited in one sweep."""

    width: int
    bytes: int
    operations: int


@dataclass(frozen=True, eq=False)
class EliminationPlan:
    """Exact elimination of one topology under one pattern (HIDDEN, OUTPUT or CLAMPED per variable).

    The order is found at once; the program is compiled on first use, so that costs can be computed for any graph.
    """

    topology: Topology
    pattern: bytes
    order: Order

    @classmethod
    def of(cls, topology: Topology, pattern: bytes, restarts: int, seed: int, limits: Limits) -> EliminationPlan | None:
        """The plan with the best order found within ``limits``, if there is one."""
        roles = np.frombuffer(pattern, dtype=np.uint8)
        groups = [np.flatnonzero(roles == kind) for kind in (HIDDEN, OUTPUT)]
        sizes = np.diff(topology.scope_ptr)
        order = Orders(topology.card_array, topology.scope_flat, sizes, groups, restarts, seed).find(limits)
        if order is None:
            return None
        return cls(topology, pattern, order)

    def cost(self, marginals: bool) -> Cost:
        """The predicted cost; its bytes are those of slots and messages, and with ``marginals`` of their gradients."""
        entries = self.order.messages + self._score_entries
        return Cost(self.order.width, 8 * entries * (2 if marginals else 1), self.order.total)

    @cached_property
    def program(self) -> Program:
        output = np.frombuffer(self.pattern, dtype=np.uint8) == OUTPUT
        return compile_elimination(self.topology, self.order.variables, output)

    @cached_property
    def _score_entries(self) -> int:
        cards = self.topology.cards
        entries = sum(cards)
        for scope in self.topology.scopes:
            entries += prod(cards[v] for v in scope if self.pattern[v] != CLAMPED)
        return entries


def pattern_of(batch: Batch, query: Query, eps_y: float, eps_h: float) -> NDArray[np.uint8]:
    """The role of every variable; at equal temperatures the order is free, so hidden variables count as outputs."""
    roles = np.where(query.output | (eps_y == eps_h), OUTPUT, HIDDEN)
    return np.where(query.n_allowed(batch) == 1, CLAMPED, roles).astype(np.uint8)


def compile_elimination(topology: Topology, order: Sequence[int], output: Bools, entries: int | None = None) -> Program:
    """The program that eliminates the variables of ``order``; those it does not name are clamped.

    ``entries`` limits the table (with the eliminated variable) of a mini-bucket, None splits nothing, 0 puts every
    function into its own mini-bucket. A score whose own table exceeds ``entries`` stays whole.
    """
    return _Compiler(topology, order, entries).program(output)


class _Compiler:
    """Builds the flat arrays of ``Program`` from an order."""

    def __init__(self, topology: Topology, order: Sequence[int], entries: int | None) -> None:
        self.cards = topology.cards
        self.scopes = topology.scopes
        self.order = order
        self.entries = entries
        self.rank = {v: position for position, v in enumerate(order)}
        self.buckets: list[list[Function]] = [[] for _ in order]
        self.n_work = 1

    def program(self, output: Bools) -> Program:
        scores = self._scores()
        n_slots = self.n_work
        steps = self._steps()
        return Program(
            **scores,
            **steps,
            clamped=np.array([v not in self.rank for v in range(len(self.cards))], dtype=bool),
            card=np.array(self.cards, dtype=np.int64)[steps["var"]],
            output=output[steps["var"]].astype(np.int64),
            n_slots=n_slots,
            n_work=self.n_work,
            n_hidden=sum(not output[v] for v in self.order),
            max_axes=int(np.diff(steps["axis_ptr"]).max(initial=0)),
            max_inputs=int(np.diff(steps["input_ptr"]).max(initial=1)),
            max_card=max((self.cards[v] for v in self.order), default=1),
        )

    def _axes(self, variables: Iterable[int]) -> tuple[int, ...]:
        """The unclamped variables in storage order: the one eliminated first is the last axis."""
        unclamped = [v for v in variables if v in self.rank]
        return tuple(sorted(unclamped, key=lambda v: self.rank[v], reverse=True))

    def _strides(self, variables: Sequence[int]) -> tuple[dict[int, int], int]:
        """Strides of a C-ordered table over ``variables``, in their order, and its number of entries."""
        strides = dict.fromkeys(variables, 1)
        size = 1
        for v in reversed(variables):
            strides[v] = size
            size *= self.cards[v]
        return strides, size

    def _allocate(self, axes: tuple[int, ...], source: int = -1) -> Function:
        """A table over ``axes``, entered in the bucket of its last axis; ``source`` is a step or -1."""
        strides, size = self._strides(axes)
        table = Function(strides, self.n_work, size, source)
        self.n_work += size
        if axes:
            self.buckets[self.rank[axes[-1]]].append(table)
        return table

    def _scores(self) -> dict[str, Ints]:
        """The slots of unary scores and tables, and the permutation of every table's entries."""
        slot_of_axes: dict[tuple[int, ...], int] = {(): 0}

        def slot(scope: Sequence[int]) -> int:
            axes = self._axes(scope)
            if axes not in slot_of_axes:
                slot_of_axes[axes] = self._allocate(axes).at
            return slot_of_axes[axes]

        factor_slot = [slot(scope) for scope in self.scopes]
        unary_slot = [slot((v,)) for v in range(len(self.cards))]

        # Tables with the same cardinalities and strides share one permutation.
        permutations = [np.zeros(0, dtype=np.int64)]
        n_entries = 0
        place_of_shape: dict[tuple[tuple[int, int], ...], tuple[int, int]] = {}
        entry_at = []
        factor_size = []
        clamps = []
        for scope in self.scopes:
            strides, _ = self._strides(scope)
            shape = tuple((self.cards[v], strides[v]) for v in self._axes(scope))
            if shape not in place_of_shape:
                permutations.append(_offsets_of(shape))
                place_of_shape[shape] = (n_entries, len(permutations[-1]))
                n_entries += len(permutations[-1])
            at, size = place_of_shape[shape]
            entry_at.append(at)
            factor_size.append(size)
            clamps.append([(v, strides[v]) for v in scope if v not in self.rank])
        return {
            "unary_slot": _ints(unary_slot),
            "factor_slot": _ints(factor_slot),
            "entry_at": _ints(entry_at),
            "factor_size": _ints(factor_size),
            "entry": np.concatenate(permutations),
            "clamp_ptr": _offsets(clamps),
            "clamp_var": _ints([v for row in clamps for v, _ in row]),
            "clamp_stride": _ints([stride for row in clamps for _, stride in row]),
        }

    def _steps(self) -> dict[str, Ints]:
        """Eliminate position by position, mini-bucket by mini-bucket; their messages enter later buckets."""
        steps = _Steps()
        position_ptr = [0]
        for position, v in enumerate(self.order):
            groups = self._mini_buckets(self.buckets[position])
            shared = self._axes(set[int].intersection(*(_variables(group) for group in groups)))
            for group in groups:
                shift = None
                if len(groups) > 1:
                    shift = self._allocate(shared)
                    group.append(shift)
                axes = self._axes(_variables(group) - {v})
                message = self._allocate(axes, len(steps.var))
                steps.add(v, shift, message, _merge(axes, group), group)
            position_ptr.append(len(steps.var))
        return {"position_ptr": _ints(position_ptr), **steps.arrays(self.cards)}

    def _mini_buckets(self, bucket: list[Function]) -> list[list[Function]]:
        """First fit, large functions first, each to the mini-bucket it enlarges least."""
        if self.entries is None or len(bucket) == 1:
            return [bucket]
        groups: list[list[Function]] = []
        scopes: list[set[int]] = []
        sizes: list[int] = []
        for table in sorted(bucket, key=lambda f: (-len(f.strides), f.at)):
            best = -1
            best_growth = self.entries + 1
            for g, scope in enumerate(scopes):
                growth = prod([self.cards[v] for v in table.strides if v not in scope])
                if sizes[g] * growth <= self.entries and growth < best_growth:
                    best = g
                    best_growth = growth
            if best < 0:
                groups.append([])
                scopes.append(set())
                sizes.append(1)
                best_growth = table.size
            groups[best].append(table)
            scopes[best].update(table.strides)
            sizes[best] *= best_growth
        return groups


@dataclass
class _Steps:
    """The steps compiled so far: of each its variable, shift (None: it has none), message, blocks of merged axes, and
    inputs, with the inputs' levels and strides."""

    var: list[int] = field(default_factory=list)
    shifts: list[Function | None] = field(default_factory=list)
    messages: list[Function] = field(default_factory=list)
    blocks: list[list[tuple[int, ...]]] = field(default_factory=list)
    inputs: list[list[Function]] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    strides: list[list[int]] = field(default_factory=list)

    def add(
        self, v: int, shift: Function | None, message: Function, blocks: list[tuple[int, ...]], group: list[Function]
    ) -> None:
        """Append a step; its inputs are sorted by level, then by strides and place."""
        rows = sorted((*_level_and_strides(table, blocks), table.at, table) for table in group)
        for level, strides, _, _ in rows:
            self.levels.append(level)
            self.strides.append(strides)
        self.inputs.append([table for _, _, _, table in rows])
        self.var.append(v)
        self.shifts.append(shift)
        self.messages.append(message)
        self.blocks.append(blocks)

    def arrays(self, cards: Sequence[int]) -> dict[str, Ints]:
        """The arrays of ``Program`` about steps and their inputs."""
        flat = [table for row in self.inputs for table in row]
        sources = _ints([table.source for table in flat])
        message_input = np.full(len(self.var), -1, dtype=np.int64)
        message_input[sources[sources >= 0]] = np.flatnonzero(sources >= 0)
        all_blocks = [block for blocks in self.blocks for block in blocks]
        return {
            "var": _ints(self.var),
            "shift_at": _ints([-1 if shift is None else shift.at for shift in self.shifts]),
            "shift_size": _ints([0 if shift is None else shift.size for shift in self.shifts]),
            "message_at": _ints([table.at for table in self.messages]),
            "message_size": _ints([table.size for table in self.messages]),
            "message_input": message_input,
            "separator_ptr": _offsets([table.strides for table in self.messages]),
            "separator": _ints([v for table in self.messages for v in table.strides]),
            "separator_stride": _ints([stride for table in self.messages for stride in table.strides.values()]),
            "axis_ptr": _offsets(self.blocks),
            "axis_size": _ints([prod(cards[v] for v in block) for block in all_blocks]),
            "input_ptr": _offsets(self.inputs),
            "input_at": _ints([table.at for table in flat]),
            "input_size": _ints([table.size for table in flat]),
            "level": _ints(self.levels),
            "stride_ptr": _offsets(self.strides),
            "stride": _ints([x for row in self.strides for x in row]),
        }


def _variables(group: list[Function]) -> set[int]:
    """All variables of a mini-bucket."""
    return set().union(*(table.strides for table in group))


def _level_and_strides(table: Function, blocks: list[tuple[int, ...]]) -> tuple[int, list[int]]:
    """Level of an input (one more than its deepest merged axis), and its strides along all merged axes."""
    strides = [table.strides.get(block[-1], 0) for block in blocks]
    level = max((k for k, stride in enumerate(strides, start=1) if stride), default=0)
    return level, strides


def _merge(axes: tuple[int, ...], inputs: list[Function]) -> list[tuple[int, ...]]:
    """Runs of neighbouring axes that every input has together or not at all."""
    merged: list[tuple[int, ...]] = []
    previous: list[bool] | None = None
    for v in axes:
        members = [v in table.strides for table in inputs]
        if members == previous:
            merged[-1] += (v,)
        else:
            merged.append((v,))
        previous = members
    return merged


def _offsets_of(axes: tuple[tuple[int, int], ...]) -> Ints:
    """Offsets, in C order, of the entries of a table whose axes have the given sizes and strides."""
    out = np.zeros(1, dtype=np.int64)
    for size, stride in axes:
        out = (out[:, None] + stride * np.arange(size, dtype=np.int64)).ravel()
    return out


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _offsets(rows: Iterable[Sized]) -> Ints:
    return offsets(_ints([len(row) for row in rows]))

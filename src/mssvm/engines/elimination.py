"""Compiled plans of bucket elimination: what is eliminated when, from which inputs, into which message."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import log2, prod

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.orders import Order, find_order
from mssvm.core.topology import Topology, offsets
from mssvm.engines.program import Program

HIDDEN, OUTPUT, CLAMPED = 0, 1, 2


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one instance: induced width, bytes of workspace, table entries visited in one sweep."""

    width: int
    bytes: int
    operations: int


@dataclass(frozen=True, eq=False)
class EliminationPlan:
    """Elimination of one topology under one pattern (HIDDEN, OUTPUT or CLAMPED per variable).

    The order is found at once; the program is compiled when first used, so that costs can be asked of any graph.
    """

    graph: Topology
    pattern: bytes
    order: Order

    @classmethod
    def of(cls, graph: Topology, pattern: bytes, restarts: int, seed: int) -> EliminationPlan:
        groups = [[v for v, role in enumerate(pattern) if role == kind] for kind in (HIDDEN, OUTPUT)]
        return cls(graph, pattern, find_order(graph.cards, graph.scopes, groups, restarts, seed))

    def cost(self, marginals: bool) -> Cost:
        """Bytes count slots and messages, twice when their gradients are wanted too."""
        entries = self.order.messages + self._score_entries
        return Cost(self.order.width, 8 * entries * (2 if marginals else 1), self.order.total)

    @cached_property
    def program(self) -> Program:
        return _Compiler(self.graph, self.pattern, self.order).program()

    @cached_property
    def _score_entries(self) -> int:
        tables = sum(prod(self.graph.cards[v] for v in s if self.pattern[v] != CLAMPED) for s in self.graph.scopes)
        return tables + sum(self.graph.cards)

    @property
    def size(self) -> int:
        """Bound on the number of integers the plan holds, for bounding a cache."""
        return (
            self._score_entries
            + 16 * (self.graph.n_vars + self.graph.n_factors)
            + 4 * sum(map(len, self.order.separators))
        )


@dataclass
class _Compiler:
    """Builds the flat arrays of ``Program`` from an order."""

    graph: Topology
    pattern: bytes
    order: Order
    n_work: int = 1
    buckets: list[list[tuple[int, tuple[int, ...], int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rank = {v: k for k, v in enumerate(self.order.variables)}
        self.buckets = [[] for _ in self.order.variables]
        self.slots: dict[tuple[int, ...], int] = {(): 0}

    def axes(self, variables: tuple[int, ...]) -> tuple[int, ...]:
        """The unclamped ones in storage order: eliminated first comes last."""
        return tuple(sorted((v for v in variables if v in self.rank), key=self.rank.__getitem__, reverse=True))

    def allocate(self, axes: tuple[int, ...], source: int) -> int:
        """Room for a table over ``axes``, entered in the bucket of its last axis; ``source`` is a step or -1."""
        at = self.n_work
        self.n_work += prod(self.graph.cards[v] for v in axes)
        if axes:
            self.buckets[self.rank[axes[-1]]].append((at, axes, source))
        return at

    def slot(self, axes: tuple[int, ...]) -> int:
        if axes not in self.slots:
            self.slots[axes] = self.allocate(axes, -1)
        return self.slots[axes]

    def program(self) -> Program:
        scores = self._scores()
        n_slots = self.n_work
        message_axes = [self.axes(s) for s in self.order.separators]
        message_at = [self.allocate(axes, s) for s, axes in enumerate(message_axes)]
        steps = self._steps(message_axes)
        cards = self.graph.cards
        variables = self.order.variables
        return Program(
            **scores,
            **steps,
            clamped=np.frombuffer(self.pattern, dtype=np.uint8) == CLAMPED,
            var=_ints(variables),
            card=_ints([cards[v] for v in variables]),
            output=_ints([int(self.pattern[v] == OUTPUT) for v in variables]),
            message_at=_ints(message_at),
            message_size=_ints([prod(cards[v] for v in axes) for axes in message_axes]),
            separator_ptr=offsets(_ints([len(axes) for axes in message_axes])),
            separator=_ints([v for axes in message_axes for v in axes]),
            n_slots=n_slots,
            n_work=self.n_work,
            max_axes=int(np.diff(steps["axis_ptr"]).max(initial=0)),
            max_card=max((cards[v] for v in variables), default=1),
        )

    def _scores(self) -> dict[str, Ints]:
        """Where unary scores and tables are copied to, and in which arrangement."""
        cards, scopes = self.graph.cards, self.graph.scopes
        patterns: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int]] = {}
        index: list[Ints] = [np.zeros(0, dtype=np.int64)]
        filled = 0
        slots, places, sizes, clamps = [], [], [], []
        for scope in scopes:
            strides = {v: prod(cards[u] for u in scope[k + 1 :]) for k, v in enumerate(scope)}
            axes = self.axes(scope)
            key = tuple(cards[v] for v in axes), tuple(strides[v] for v in axes)
            if key not in patterns:
                index.append(_offsets_of(*key))
                patterns[key] = filled, len(index[-1])
                filled += len(index[-1])
            slots.append(self.slot(axes))
            places.append(patterns[key][0])
            sizes.append(patterns[key][1])
            clamps.append([(v, strides[v]) for v in scope if v not in self.rank])
        return {
            "unary_slot": _ints([self.slot(self.axes((v,))) for v in range(len(cards))]),
            "factor_slot": _ints(slots),
            "factor_size": _ints(sizes),
            "entry_at": _ints(places),
            "entry": np.concatenate(index),
            "clamp_ptr": offsets(_ints([len(c) for c in clamps])),
            "clamp_var": _ints([v for c in clamps for v, _ in c]),
            "clamp_stride": _ints([s for c in clamps for _, s in c]),
        }

    def _steps(self, message_axes: list[tuple[int, ...]]) -> dict[str, Ints]:
        strides: list[list[int]] = []
        axis_sizes, n_axes, n_inputs, levels = list[int](), list[int](), list[int](), list[int]()
        at, sizes = list[int](), list[int]()
        message_input = [-1] * len(self.buckets)
        for bucket, axes in zip(self.buckets, message_axes, strict=True):
            merged = _merge(axes, [set(scope) for _, scope, _ in bucket])
            rows = sorted(((*self._strides(scope, merged), start, scope, source) for start, scope, source in bucket))
            for level, row, start, scope, source in rows:
                if source >= 0:
                    message_input[source] = len(at)
                levels.append(level)
                strides.append(row)
                at.append(start)
                sizes.append(prod(self.graph.cards[v] for v in scope))
            axis_sizes += [prod(self.graph.cards[v] for v in block) for block in merged]
            n_axes.append(len(merged))
            n_inputs.append(len(bucket))
        return {
            "message_input": _ints(message_input),
            "axis_ptr": offsets(_ints(n_axes)),
            "axis_size": _ints(axis_sizes),
            "input_ptr": offsets(_ints(n_inputs)),
            "input_at": _ints(at),
            "input_size": _ints(sizes),
            "level": _ints(levels),
            "stride_ptr": offsets(_ints([len(r) for r in strides])),
            "stride": _ints([x for r in strides for x in r]),
        }

    def _strides(self, scope: tuple[int, ...], merged: list[tuple[int, ...]]) -> tuple[int, list[int]]:
        """Level of an input, and how far one step along each merged axis moves in it."""
        row, level = [], 0
        for k, block in enumerate(merged):
            inside = block[-1] in scope
            row.append(prod(self.graph.cards[v] for v in scope[scope.index(block[-1]) + 1 :]) if inside else 0)
            level = k + 1 if inside else level
        return level, row


def _merge(axes: tuple[int, ...], scopes: list[set[int]]) -> list[tuple[int, ...]]:
    """Runs of neighbouring axes that every input has together or not at all."""
    merged: list[tuple[int, ...]] = []
    previous: list[bool] | None = None
    for v in axes:
        members = [v in scope for scope in scopes]
        if members == previous:
            merged[-1] += (v,)
        else:
            merged.append((v,))
        previous = members
    return merged


def _offsets_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    """Offsets, in C order over ``shape``, of the entries of a table with the given strides."""
    out = np.zeros(1, dtype=np.int64)
    for size, stride in zip(shape, strides, strict=True):
        out = (out[:, None] + stride * np.arange(size, dtype=np.int64)).ravel()
    return out


def _ints(values: object) -> Ints:
    return np.array(values, dtype=np.int64)


def describe(n_bytes: int) -> str:
    """Bytes for a reader: ``3.2 GiB``, or a power of two when no unit fits."""
    if n_bytes >= 1 << 60:
        return f"2^{log2(n_bytes):.0f} bytes"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"

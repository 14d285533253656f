"""Compiling mini-bucket elimination: which functions share a mini-bucket, and where every table lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Topology, offsets
from mssvm.engines.numba.elimination.bounds import Buckets

Function = tuple[tuple[int, ...], int]


@dataclass
class _Steps:
    """Rows of ``Buckets`` while they are collected."""

    var: list[int] = field(default_factory=list)
    pos: list[int] = field(default_factory=list)
    axes: list[tuple[int, ...]] = field(default_factory=list)
    message_at: list[int] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    strides: list[list[int]] = field(default_factory=list)


@dataclass
class _Loads:
    slot: list[int] = field(default_factory=list)
    factor: list[int] = field(default_factory=list)
    axes: list[list[tuple[int, int]]] = field(default_factory=list)
    clamps: list[list[tuple[int, int]]] = field(default_factory=list)


class Compiler:
    """Mini-buckets of one topology; ``entries`` bounds the table (with the eliminated variable) of a mini-bucket.

    ``entries = 0`` leaves every function alone in a mini-bucket of its own. Variables that ``order`` does not name are
    clamped. A score whose own table exceeds ``entries`` stays whole.
    """

    def __init__(self, graph: Topology, order: Sequence[int], output: Bools, entries: int) -> None:
        self.graph, self.order, self.output, self.entries = graph, order, output, entries
        self.rank = {v: p for p, v in enumerate(order)}
        self.buckets: list[list[Function]] = [[] for _ in order]
        self.n_work = 1

    def compile(self) -> Buckets:
        cards = self.graph.cards
        loads = self._load()
        n_slots = self.n_work
        steps = self._eliminate()
        axis_count = np.array([len(a) for a in steps.axes], dtype=np.int64)
        step_cards = _ints([cards[v] for v in steps.var])
        delta_at = offsets(step_cards)
        n_inputs = _ints([len(i) for i in steps.inputs])
        return Buckets(
            var=_ints(steps.var),
            card=step_cards,
            output=self.output[_ints(steps.var)],
            pos_ptr=np.searchsorted(_ints(steps.pos), np.arange(len(self.order) + 1)).astype(np.int64),
            delta_at=delta_at[:-1],
            axis_ptr=offsets(axis_count),
            axis_size=_ints([cards[v] for axes in steps.axes for v in axes]),
            axis_var=_ints([v for axes in steps.axes for v in axes]),
            message_at=_ints(steps.message_at),
            message_size=_ints([prod(cards[v] for v in axes) for axes in steps.axes]),
            input_ptr=offsets(n_inputs),
            input_at=_ints([at for row in steps.inputs for at in row]),
            stride_ptr=offsets(n_inputs * axis_count)[:-1],
            stride=_ints([x for row in steps.strides for x in row]),
            slot=_ints(loads.slot),
            factor=_ints(loads.factor),
            load_ptr=offsets(_ints([len(a) for a in loads.axes])),
            load_size=_ints([size for axes in loads.axes for size, _ in axes]),
            load_stride=_ints([stride for axes in loads.axes for _, stride in axes]),
            clamp_ptr=offsets(_ints([len(c) for c in loads.clamps])),
            clamp_var=_ints([v for clamps in loads.clamps for v, _ in clamps]),
            clamp_stride=_ints([stride for clamps in loads.clamps for _, stride in clamps]),
            n_slots=n_slots,
            n_work=self.n_work,
            n_delta=int(delta_at[-1]),
            n_hidden=int(sum(not self.output[v] for v in self.order)),
            max_axes=max([len(a) for a in loads.axes] + [len(a) for a in steps.axes], default=0),
            max_inputs=int(n_inputs.max(initial=1)),
            max_card=int(step_cards.max(initial=1)),
        )

    def _axes(self, variables: set[int] | tuple[int, ...]) -> tuple[int, ...]:
        """The unclamped ones in storage order: eliminated first comes last."""
        return tuple(sorted((v for v in variables if v in self.rank), key=self.rank.__getitem__, reverse=True))

    def _room(self, axes: tuple[int, ...]) -> int:
        at = self.n_work
        self.n_work += prod(self.graph.cards[v] for v in axes)
        if axes:
            self.buckets[self.rank[axes[-1]]].append((axes, at))
        return at

    def _load(self) -> _Loads:
        """Scores over the same unclamped variables share a slot; those without any go to the constant."""
        cards = self.graph.cards
        loads = _Loads()
        slots: dict[tuple[int, ...], int] = {(): 0}
        scopes = [(-1 - v, (v,)) for v in range(len(cards))] + list(enumerate(self.graph.scopes))
        for factor, scope in scopes:
            axes = self._axes(scope)
            if axes not in slots:
                slots[axes] = self._room(axes)
            strides = dict(zip(scope, _strides([cards[v] for v in scope]), strict=True))
            loads.slot.append(slots[axes])
            loads.factor.append(factor)
            loads.axes.append([(cards[v], strides[v]) for v in axes])
            loads.clamps.append([(v, strides[v]) for v in scope if v not in self.rank])
        return loads

    def _eliminate(self) -> _Steps:
        cards = self.graph.cards
        steps = _Steps()
        for p, v in enumerate(self.order):
            for group in self._groups(self.buckets[p]):
                axes = self._axes(set().union(*(scope for scope, _ in group)) - {v})
                rows = [dict(zip(s, _strides([cards[u] for u in s]), strict=True)) for s, _ in group]
                steps.var.append(v)
                steps.pos.append(p)
                steps.axes.append(axes)
                steps.inputs.append([at for _, at in group])
                steps.strides.append([row.get(u, 0) for u in axes for row in rows])
                steps.message_at.append(self._room(axes))
        return steps

    def _groups(self, bucket: list[Function]) -> list[list[Function]]:
        """First fit, large functions first, each to the mini-bucket it enlarges least."""
        cards = self.graph.cards
        groups: list[list[Function]] = []
        scopes: list[set[int]] = []
        for function in sorted(bucket, key=lambda f: (-len(f[0]), f[1])):
            best, best_growth = -1, self.entries + 1.0
            for g, scope in enumerate(scopes):
                union = prod(cards[v] for v in scope | set(function[0]))
                growth = union / prod(cards[v] for v in scope)
                if union <= self.entries and growth < best_growth:
                    best, best_growth = g, growth
            if best < 0:
                groups.append([function])
                scopes.append(set(function[0]))
            else:
                groups[best].append(function)
                scopes[best] |= set(function[0])
        return groups


def _strides(sizes: Sequence[int]) -> list[int]:
    out = [1] * len(sizes)
    for k in range(len(sizes) - 2, -1, -1):
        out[k] = out[k + 1] * sizes[k + 1]
    return out


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)

"""Zeros as hard constraints: which states can have positive probability, and complete assignments that have.

Arc consistency removes a state that no possible entry of some table allows any more, again and again, at the root and
after every decision of a depth-first search. What is decided next is whatever has failed most (none yet: the
variables as they come, parents first in most files); the state is the one whose tables promise most. A search that
fails too often starts again with its counts of failures, and some noise in the promises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from time import monotonic

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.library import FLOATS, INT, INTS, MASK, Function, Record, RecordKind, RecordType
from mssvm.core.potentials import segment_argmax
from mssvm.core.topology import offsets
from mssvm.inference.bounds.relaxation import OneInstance

# Failures before the first new start; each later one may fail so many times more often.
FAILURES, GROWTH = 64, 1.3
NOISE = 0.5
# What a preferred state promises more than others.
PREFERENCE = 20.0

FIELDS = ("near_ptr", "near", "scope_ptr", "scope", "stride", "table_at", "table_size", "owner", "unary_ptr")
WIRING = RecordType("Wiring", dict.fromkeys(FIELDS, INTS))
ARCS = Function("mssvm_support_arcs", wiring=RecordKind(WIRING), hard=MASK, tables=FLOATS, left=MASK)
SEARCH = Function(
    "mssvm_support_search",
    wiring=RecordKind(WIRING),
    hard=MASK,
    tables=FLOATS,
    promise=FLOATS,
    left=MASK,
    fails=INTS,
    most=INT,
)
IMPOSSIBLE, FOUND = 0, 1


@dataclass(frozen=True, eq=False)
class Wiring:
    """Factors of every variable (``near``), variables of every factor with their strides (``scope``), the tables of
    factors, the variable of every state (``owner``) and the first state of every variable (``unary_ptr``)."""

    near_ptr: Ints
    near: Ints
    scope_ptr: Ints
    scope: Ints
    stride: Ints
    table_at: Ints
    table_size: Ints
    owner: Ints
    unary_ptr: Ints

    @cached_property
    def record(self) -> Record:
        """The same for native functions."""
        return WIRING(**{name: np.ascontiguousarray(getattr(self, name), dtype=np.int64) for name in FIELDS})


@dataclass(frozen=True, eq=False)
class Support:
    """The possible states of one instance."""

    instance: OneInstance

    @cached_property
    def wiring(self) -> Wiring:
        """Who is next to whom."""
        graph = self.instance.topology
        factor = np.repeat(np.arange(graph.n_factors), np.diff(graph.scope_ptr))
        near_ptr = offsets(np.bincount(graph.scope_flat, minlength=graph.n_vars))
        near = factor[np.argsort(graph.scope_flat, kind="stable")]
        table_at = self.instance.table_at[: graph.n_factors]
        owner = np.repeat(np.arange(graph.n_vars), graph.card_array)
        return Wiring(
            near_ptr,
            near,
            graph.scope_ptr,
            graph.scope_flat,
            graph.scope_strides,
            table_at,
            graph.table_sizes,
            owner,
            graph.unary_ptr,
        )

    @cached_property
    def hard(self) -> Bools:
        """Factors with zeros."""
        none = np.append(0, np.cumsum(self.instance.tables == -np.inf))
        start = self.wiring.table_at
        found: Bools = none[start + self.wiring.table_size] > none[start]
        return found

    def states_left(self, states: Ints | None = None, within: Bools | None = None) -> Bools | None:
        """The states that arc consistency leaves, with variables at the given states (-1: any), of those ``within``;
        None if some variable has none left, so that nothing is possible."""
        left = self.instance.unary > -np.inf if within is None else within.copy()
        if states is not None:
            at = self.wiring.unary_ptr
            held = np.repeat(states >= 0, np.diff(at))
            chosen = np.zeros_like(left)
            chosen[at[:-1][states >= 0] + states[states >= 0]] = True
            left &= ~held | chosen
        possible = ARCS(wiring=self.wiring.record, hard=self.hard, tables=self.instance.tables, left=left)
        return left if possible else None

    def narrowed(self, left: Bools) -> OneInstance:
        """The instance with only the states left; variables with a single one are clamped to it."""
        i, at = self.instance, self.wiring.unary_ptr
        size = np.bincount(self.wiring.owner[left], minlength=len(at) - 1)
        first = segment_argmax(left.astype(np.float64), at)
        unary = np.where(left, i.unary, -np.inf)
        return replace(i, unary=unary, clamped=size == 1, states=np.where(size == 1, first, i.states))

    def greedy(self) -> Ints:
        """A complete assignment, possible or not: variables one by one, each at the best state given those before.

        Tables are read as those of a child, named last, given
        its parents, and parents come first: in a Bayesian network it is possible unless evidence forbids it.
        """
        i, graph = self.instance, self.instance.topology
        near_ptr, near, at = self.wiring.near_ptr, self.wiring.near.tolist(), self.wiring.table_at
        states = np.where(i.clamped, i.states, -1).tolist()
        parents: dict[int, set[int]] = {v: set() for v in range(graph.n_vars)}
        for scope in graph.scopes:
            parents[scope[-1]].update(scope[:-1])
        try:
            order = list(TopologicalSorter(parents).static_order())
        except CycleError:
            order = list(parents)
        for v in order:
            if states[v] >= 0:
                continue
            total = i.unary[graph.unary_ptr[v] : graph.unary_ptr[v + 1]].copy()
            for f in near[near_ptr[v] : near_ptr[v + 1]]:
                table = i.tables[at[f] : at[f] + graph.table_sizes[f]].reshape(graph.table_shape(f))
                scope = graph.scopes[f]
                part = table[tuple(slice(None) if states[u] < 0 else states[u] for u in scope)]
                open_ = [u for u in scope if states[u] < 0]
                total += part.max(axis=tuple(k for k, u in enumerate(open_) if u != v))
            states[v] = int(total.argmax())
        return np.array(states, dtype=np.int64)

    def find(self, deadline: float, seed: int = 0, noise: float = 0.0, prefer: Ints | None = None) -> Ints | None:
        """A complete assignment of positive probability, good by its score, with states like ``prefer`` (-1: any)
        where that is possible; None if none exists or time is up."""
        left, wanted = self.states_left(), np.zeros(len(self.instance.unary))
        if prefer is not None:
            wanted[(self.wiring.unary_ptr[:-1] + prefer)[prefer >= 0]] = PREFERENCE
        rng, most = np.random.default_rng(seed), FAILURES
        fails = np.zeros(self.instance.topology.n_vars, dtype=np.int64)
        while left is not None:
            promise = self.instance.unary + wanted + noise * rng.gumbel(size=len(left))
            trial = left.copy()
            outcome = SEARCH(
                wiring=self.wiring.record,
                hard=self.hard,
                tables=self.instance.tables,
                promise=promise,
                left=trial,
                fails=fails,
                most=most,
            )
            if outcome == FOUND:
                return segment_argmax(trial.astype(np.float64), self.wiring.unary_ptr)
            if outcome == IMPOSSIBLE or monotonic() >= deadline:
                return None
            most, noise = int(GROWTH * most) + 1, NOISE
        return None

    def score(self, states: Ints) -> float:
        """Of a complete assignment: a lower bound on the value of its outputs, at any temperatures."""
        w = self.wiring
        steps = np.append(0, np.cumsum(states[w.scope] * w.stride))
        place = w.table_at + steps[w.scope_ptr[1:]] - steps[w.scope_ptr[:-1]]
        return float(self.instance.unary[w.unary_ptr[:-1] + states].sum() + self.instance.tables[place].sum())

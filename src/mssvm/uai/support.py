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

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.core.potentials import segment_argmax
from mssvm.core.topology import offsets
from mssvm.inference.bounds.relaxation import OneInstance

# Failures before the first new start; each later one may fail so many times more often.
FAILURES, GROWTH = 64, 1.3
NOISE = 0.5
# What a preferred state promises more than others.
PREFERENCE = 20.0
# ``Support.wiring``; the states left, and how many of every variable; tables that wait, which do, and where they begin
# and end.
Wiring = tuple[Ints, ...]
Domains = tuple[Bools, Ints]
Queue = tuple[Ints, Bools, Ints]


@dataclass(frozen=True, eq=False)
class Support:
    """The possible states of one instance."""

    instance: OneInstance

    @cached_property
    def wiring(self) -> Wiring:
        """Factors of every variable, variables of every factor with their strides, tables and states."""
        graph = self.instance.topology
        factor = np.repeat(np.arange(graph.n_factors), np.diff(graph.scope_ptr))
        near_ptr = offsets(np.bincount(graph.scope_flat, minlength=graph.n_vars))
        near = factor[np.argsort(graph.scope_flat, kind="stable")]
        table_at = self.instance.table_at[: graph.n_factors]
        owner = np.repeat(np.arange(graph.n_vars), graph.card_array)
        return (near_ptr, near, graph.scope_ptr, graph.scope_flat, graph.scope_strides, table_at, graph.table_sizes,
                owner, graph.unary_ptr)  # fmt: skip

    @cached_property
    def hard(self) -> Bools:
        """Factors with zeros."""
        none = np.append(0, np.cumsum(self.instance.tables == -np.inf))
        start, size = self.wiring[5:7]
        found: Bools = none[start + size] > none[start]
        return found

    def states_left(self, states: Ints | None = None, within: Bools | None = None) -> Bools | None:
        """The states that arc consistency leaves, with variables at the given states (-1: any), of those ``within``;
        None if some variable has none left, so that nothing is possible."""
        left = self.instance.unary > -np.inf if within is None else within.copy()
        if states is not None:
            at = self.wiring[-1]
            held = np.repeat(states >= 0, np.diff(at))
            chosen = np.zeros_like(left)
            chosen[at[:-1][states >= 0] + states[states >= 0]] = True
            left &= ~held | chosen
        possible: bool = arc_consistent(self.wiring, self.hard, self.instance.tables, left)
        return left if possible else None

    def narrowed(self, left: Bools) -> OneInstance:
        """The instance with only the states left; variables with a single one are clamped to it."""
        i, at = self.instance, self.wiring[-1]
        size = np.bincount(self.wiring[-2][left], minlength=len(at) - 1)
        first = segment_argmax(left.astype(np.float64), at)
        unary = np.where(left, i.unary, -np.inf)
        return replace(i, unary=unary, clamped=size == 1, states=np.where(size == 1, first, i.states))

    def greedy(self) -> Ints:
        """A complete assignment, possible or not: variables one by one, each at the best state given those before.

        Nothing is compiled for it, so that it is there at once. Tables are read as those of a child, named last, given
        its parents, and parents come first: in a Bayesian network it is possible unless evidence forbids it.
        """
        i, graph = self.instance, self.instance.topology
        near_ptr, near, at = self.wiring[0], self.wiring[1].tolist(), self.wiring[5]
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
            wanted[(self.wiring[-1][:-1] + prefer)[prefer >= 0]] = PREFERENCE
        rng, fails, most = np.random.default_rng(seed), np.zeros(len(self.wiring[0]) - 1, dtype=np.int64), FAILURES
        while left is not None:
            promise = self.instance.unary + wanted + noise * rng.gumbel(size=len(left))
            trial = left.copy()
            outcome = search(self.wiring, self.hard, self.instance.tables, promise, trial, fails, most)
            if outcome > 0:
                return segment_argmax(trial.astype(np.float64), self.wiring[-1])
            if outcome == 0 or monotonic() >= deadline:
                return None
            most, noise = int(GROWTH * most) + 1, NOISE
        return None

    def score(self, states: Ints) -> float:
        """Of a complete assignment: a lower bound on the value of its outputs, at any temperatures."""
        _, _, ptr, scope, stride, table_at, _, _, unary_ptr = self.wiring
        steps = np.append(0, np.cumsum(states[scope] * stride))
        place = table_at + steps[ptr[1:]] - steps[ptr[:-1]]
        return float(self.instance.unary[unary_ptr[:-1] + states].sum() + self.instance.tables[place].sum())


@njit(cache=True, nogil=True)
def _possible(f: int, place: int, wiring: Wiring, left: Bools) -> bool:
    """Whether all states of a table's entry are left."""
    _, _, ptr, scope, stride, _, _, _, unary_ptr = wiring
    for a in range(ptr[f], ptr[f + 1]):
        first = unary_ptr[scope[a]]
        if not left[first + place // stride[a] % (unary_ptr[scope[a] + 1] - first)]:
            return False
    return True


@njit(cache=True, nogil=True)
def _drop(state: int, wiring: Wiring, hard: Bools, domains: Domains, trail: Ints, queue: Queue) -> None:
    """Remove a state, remember that, and call for the tables around its variable."""
    near_ptr, near, owner = wiring[0], wiring[1], wiring[7]
    left, size = domains
    waiting, queued, ends = queue
    v = owner[state]
    left[state] = False
    size[v] -= 1
    trail[trail[-1]] = state
    trail[-1] += 1
    for e in range(near_ptr[v], near_ptr[v + 1]):
        if hard[near[e]] and not queued[near[e]]:
            queued[near[e]] = True
            waiting[ends[1]] = near[e]
            ends[1] = (ends[1] + 1) % len(waiting)


@njit(cache=True, nogil=True)
def _propagate(
    wiring: Wiring, hard: Bools, tables: Floats, domains: Domains, trail: Ints, queue: Queue, marks: Bools
) -> int:
    """Remove unsupported states until none is left; returns the table that leaves a variable none, or -1."""
    _, _, ptr, scope, stride, table_at, sizes, _, unary_ptr = wiring
    left, size = domains
    waiting, queued, ends = queue
    failed = -1
    while ends[0] != ends[1]:
        f = waiting[ends[0]]
        ends[0] = (ends[0] + 1) % len(waiting)
        if failed >= 0:
            queued[f] = False
            continue
        for a in range(ptr[f], ptr[f + 1]):
            marks[unary_ptr[scope[a]] : unary_ptr[scope[a] + 1]] = False
        for place in range(sizes[f]):
            if tables[table_at[f] + place] > -np.inf and _possible(f, place, wiring, left):
                for a in range(ptr[f], ptr[f + 1]):
                    first = unary_ptr[scope[a]]
                    marks[first + place // stride[a] % (unary_ptr[scope[a] + 1] - first)] = True
        # What this table removes gives it nothing new to remove.
        for a in range(ptr[f], ptr[f + 1]):
            for state in range(unary_ptr[scope[a]], unary_ptr[scope[a] + 1]):
                if left[state] and not marks[state]:
                    _drop(state, wiring, hard, domains, trail, queue)
            if size[scope[a]] == 0:
                failed = f
        queued[f] = False
    return failed


@njit(cache=True, nogil=True)
def _prepared(wiring: Wiring, hard: Bools, left: Bools) -> tuple[Domains, Ints, Queue, Bools]:
    """Domains with their sizes, a trail (its length last), a queue and marks."""
    size = np.zeros(len(wiring[-1]) - 1, dtype=np.int64)
    for state in range(len(left)):
        size[wiring[7][state]] += left[state]
    trail = np.zeros(len(left) + 1, dtype=np.int64)
    queue = np.zeros(len(hard) + 1, dtype=np.int64), np.zeros(len(hard), dtype=np.bool_), np.zeros(2, dtype=np.int64)
    return (left, size), trail, queue, np.zeros(len(left), dtype=np.bool_)


@njit(cache=True, nogil=True)
def arc_consistent(wiring: Wiring, hard: Bools, tables: Floats, left: Bools) -> bool:
    """Remove what is impossible from ``left``; returns whether every variable has a state left."""
    domains, trail, queue, marks = _prepared(wiring, hard, left)
    waiting, queued, ends = queue
    for f in range(len(hard)):
        if hard[f]:
            waiting[ends[1]], queued[f] = f, True
            ends[1] += 1
    failed = _propagate(wiring, hard, tables, domains, trail, queue, marks)
    return failed < 0 and bool((domains[1] > 0).all())


@njit(cache=True, nogil=True)
def _next_variable(size: Ints, fails: Ints, cursor: int) -> tuple[int, int]:
    """The open variable with the fewest states for its failures; -1 if all are decided. Cursor: -1 once one failed."""
    if cursor >= 0:
        while cursor < len(size) and size[cursor] == 1:
            cursor += 1
        return (cursor if cursor < len(size) else -1), cursor
    best, least = -1, np.inf
    for v in range(len(size)):
        if size[v] > 1 and size[v] / (1.0 + fails[v]) < least:
            best, least = v, size[v] / (1.0 + fails[v])
    return best, cursor


@njit(cache=True, nogil=True)
def _best_state(v: int, wiring: Wiring, tables: Floats, promise: Floats, left: Bools) -> int:
    """The state with the largest sum of its own score and the best possible entries of the tables around."""
    near_ptr, near, ptr, scope, stride, table_at, sizes, _, unary_ptr = wiring
    first, card = unary_ptr[v], unary_ptr[v + 1] - unary_ptr[v]
    total, best = promise[first : first + card].copy(), np.empty(card)
    for e in range(near_ptr[v], near_ptr[v + 1]):
        f, step = near[e], 1
        for a in range(ptr[f], ptr[f + 1]):
            if scope[a] == v:
                step = stride[a]
        best[:] = -np.inf
        for place in range(sizes[f]):
            j, score = place // step % card, tables[table_at[f] + place]
            if score > best[j] and _possible(f, place, wiring, left):
                best[j] = score
        total += best
    chosen = -1
    for j in range(card):
        if left[first + j] and (chosen < 0 or total[j] > total[chosen]):
            chosen = j
    return int(first + chosen)


@njit(cache=True, nogil=True)
def search(wiring: Wiring, hard: Bools, tables: Floats, promise: Floats, left: Bools, fails: Ints, most: int) -> int:
    """Leave every variable one state in the arc consistent ``left``: 1 if done, 0 if impossible, -1 after ``most``
    failures, which ``fails`` counts by variable."""
    domains, trail, queue, marks = _prepared(wiring, hard, left)
    _, _, ptr, scope, _, _, _, owner, unary_ptr = wiring
    size, depth, failures, cursor = domains[1], 0, 0, 0 if fails.sum() == 0 else -1
    decided = np.empty((2, len(size)), dtype=np.int64)
    while True:
        v, cursor = _next_variable(size, fails, cursor)
        if v < 0:
            return 1
        chosen = _best_state(v, wiring, tables, promise, left)
        decided[0, depth], decided[1, depth] = chosen, trail[-1]
        depth += 1
        for state in range(unary_ptr[v], unary_ptr[v + 1]):
            if left[state] and state != chosen:
                _drop(state, wiring, hard, domains, trail, queue)
        failed = _propagate(wiring, hard, tables, domains, trail, queue, marks)
        while failed >= 0:
            failures, cursor = failures + 1, -1
            for a in range(ptr[failed], ptr[failed + 1]):
                fails[scope[a]] += 1
            if depth == 0 or failures >= most:
                return 0 if depth == 0 else -1
            depth -= 1
            while trail[-1] > decided[1, depth]:
                trail[-1] -= 1
                left[trail[trail[-1]]] = True
                size[owner[trail[trail[-1]]]] += 1
            # The state is refuted; its variable had others, or it would not have been decided.
            _drop(decided[0, depth], wiring, hard, domains, trail, queue)
            failed = _propagate(wiring, hard, tables, domains, trail, queue, marks)

"""Zeros as hard constraints: the states that can have positive probability, and complete assignments that do.

Arc consistency removes a state once all entries of one of its tables are impossible, until nothing changes: at the root
and after every decision of a depth-first search. The search decides the variable with the fewest states left per
failure (at first the variables in their order, which has parents first in most files), at the state with the highest
scores. A search that fails too often restarts; it keeps its counts of failures and adds some noise to the scores.
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

# Failures before the first restart, and the growth of that number from one restart to the next.
FAILURES = 64
GROWTH = 1.3
NOISE = 0.5
# Added to the score of a preferred state.
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
IMPOSSIBLE = 0
FOUND = 1


@dataclass(frozen=True, eq=False)
class Wiring:
    """A factor graph as arrays.

    ``near`` has the factors of every variable; ``scope`` and ``stride`` the variables of every factor with their
    strides; ``table_at`` and ``table_size`` its table; ``owner`` the variable of every state; ``unary_ptr`` the first
    state of every variable.
    """

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
        """These arrays as the record that native functions take."""
        return WIRING(**{name: np.ascontiguousarray(getattr(self, name), dtype=np.int64) for name in FIELDS})


@dataclass(frozen=True, eq=False)
class Support:
    """The possible states of one instance."""

    instance: OneInstance

    @cached_property
    def wiring(self) -> Wiring:
        """The factor graph as arrays."""
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
        zeros_before = np.append(0, np.cumsum(self.instance.tables == -np.inf))
        start = self.wiring.table_at
        has_zeros: Bools = zeros_before[start + self.wiring.table_size] > zeros_before[start]
        return has_zeros

    def states_left(self, states: Ints | None = None, within: Bools | None = None) -> Bools | None:
        """Mask of the states that arc consistency leaves; None if a variable has none left: nothing is possible.

        Variables are held at ``states`` (-1: free), and only the states of the mask ``within`` are considered.
        """
        left = self.instance.unary > -np.inf if within is None else within.copy()
        if states is not None:
            unary_ptr = self.wiring.unary_ptr
            held = states >= 0
            chosen = np.zeros_like(left)
            chosen[unary_ptr[:-1][held] + states[held]] = True
            left &= ~np.repeat(held, np.diff(unary_ptr)) | chosen
        possible = ARCS(wiring=self.wiring.record, hard=self.hard, tables=self.instance.tables, left=left)
        return left if possible else None

    def narrowed(self, left: Bools) -> OneInstance:
        """The instance with only the states left; variables with a single one are clamped to it."""
        instance = self.instance
        unary_ptr = self.wiring.unary_ptr
        n_left = np.bincount(self.wiring.owner[left], minlength=len(unary_ptr) - 1)
        decided = n_left == 1
        first = segment_argmax(left.astype(np.float64), unary_ptr)
        return replace(
            instance,
            unary=np.where(left, instance.unary, -np.inf),
            clamped=decided,
            states=np.where(decided, first, instance.states),
        )

    def greedy(self) -> Ints:
        """A complete assignment, possible or not: variables one by one, each at the best state given those before.

        Tables are read as those of a child, named last, given its parents, and parents come first: in a Bayesian
        network the assignment is possible unless evidence forbids it.
        """
        instance = self.instance
        states = np.where(instance.clamped, instance.states, -1).tolist()
        for v in self._parents_first():
            if states[v] < 0:
                states[v] = self._best_state(v, states)
        return np.array(states, dtype=np.int64)

    def _parents_first(self) -> list[int]:
        graph = self.instance.topology
        parents: dict[int, set[int]] = {v: set() for v in range(graph.n_vars)}
        for scope in graph.scopes:
            parents[scope[-1]].update(scope[:-1])
        try:
            return list(TopologicalSorter(parents).static_order())
        except CycleError:
            return list(parents)

    def _best_state(self, v: int, states: list[int]) -> int:
        """The state of v with the highest sum of scores, tables maximised over variables without a state (-1)."""
        instance = self.instance
        graph = instance.topology
        wiring = self.wiring
        total = instance.unary[graph.unary_ptr[v] : graph.unary_ptr[v + 1]].copy()
        for f in wiring.near[wiring.near_ptr[v] : wiring.near_ptr[v + 1]].tolist():
            scope = graph.scopes[f]
            first = wiring.table_at[f]
            table = instance.tables[first : first + graph.table_sizes[f]].reshape(graph.table_shape(f))
            index = tuple(slice(None) if states[u] < 0 else states[u] for u in scope)
            undecided = [u for u in scope if states[u] < 0]
            total += table[index].max(axis=tuple(axis for axis, u in enumerate(undecided) if u != v))
        return int(total.argmax())

    def find(
        self,
        deadline: float,
        seed: int = 0,
        noise: float = 0.0,
        prefer: Ints | None = None,
        within: Bools | None = None,
    ) -> Ints | None:
        """A complete assignment of positive probability and high score; None if none exists or time is up.

        States of ``prefer`` (-1: no preference) get a bonus, so that they are tried first; only states of the mask
        ``within`` are considered.
        """
        left = self.states_left(within=within)
        preference = np.zeros(len(self.instance.unary))
        if prefer is not None:
            preference[(self.wiring.unary_ptr[:-1] + prefer)[prefer >= 0]] = PREFERENCE
        rng = np.random.default_rng(seed)
        max_failures = FAILURES
        fails = np.zeros(self.instance.topology.n_vars, dtype=np.int64)
        while left is not None:
            promise = self.instance.unary + preference + noise * rng.gumbel(size=len(left))
            trial = left.copy()
            outcome = SEARCH(
                wiring=self.wiring.record,
                hard=self.hard,
                tables=self.instance.tables,
                promise=promise,
                left=trial,
                fails=fails,
                most=max_failures,
            )
            if outcome == FOUND:
                return segment_argmax(trial.astype(np.float64), self.wiring.unary_ptr)
            if outcome == IMPOSSIBLE or monotonic() >= deadline:
                return None
            max_failures = int(GROWTH * max_failures) + 1
            noise = NOISE
        return None

    def score(self, states: Ints) -> float:
        """Score of a complete assignment: a lower bound on the value of its outputs, at any temperatures."""
        wiring = self.wiring
        steps = np.append(0, np.cumsum(states[wiring.scope] * wiring.stride))
        entry = wiring.table_at + steps[wiring.scope_ptr[1:]] - steps[wiring.scope_ptr[:-1]]
        unary = self.instance.unary[wiring.unary_ptr[:-1] + states]
        return float(unary.sum() + self.instance.tables[entry].sum())

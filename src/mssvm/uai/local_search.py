"""Local search for marginal MAP: two ways to better outputs, which share the time by their success.

A walk (``regions.Walk``) re-optimises small regions of outputs; conditioning holds a few outputs at their states and
maximises exactly over all others (``ConditionedElimination``), with kicks out of local optima.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from mssvm.inference.bounds.conditioning import ConditionedElimination
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.uai.regions import Walk

if TYPE_CHECKING:
    from mssvm.uai.search import AnytimeSearch

# A value must grow by this share of its size to count as better.
TOLERANCE = 1e-9
# While no possible outputs are known, a forbidden entry counts as this much below the smallest score.
SOFT_STEP = 25.0
# Failed maximisations before a kick, and the probability that a kick changes a held output.
PATIENCE = 6
KICK_RATE = 0.4
# Conditioning draws one of these exponents: its tables have 2**exponent times fewer entries than the limit, but at
# least LEAST_ENTRIES. Smaller tables hold more outputs but are faster: which pays depends on the model.
SMALLER_TABLES = (2, 2, 5, 8)
LEAST_ENTRIES = 64
# Elimination orders to choose from, and the probability that a new one is added.
N_ORDERS = 3
NEW_ORDER_RATE = 0.1
SLICE_SECONDS = 0.25

# The two ways, and the walk's share of the time, depending on which way found the last better outputs.
WALK = 0
CONDITIONING = 1
WALK_SHARES = (0.85, 0.6)


class LocalSearch:
    """Improves the incumbent of a search; keeps its state from one slice of time to the next."""

    def __init__(self, search: AnytimeSearch) -> None:
        self.search = search
        self.softened = _softened(search.instance)
        self.current = search.best.copy()
        self.value = -np.inf
        self.walk: Walk | None = None
        self.short_regions = 0  # regions that short cycles have still to make before the next long one
        self.walk_share = WALK_SHARES[WALK]
        self.seconds = [0.0, 0.0]  # time spent on each way
        self.conditionable = search.conditions  # False once conditioning has found no set of outputs to hold

    def run(self, deadline: float, max_kicks: int) -> None:
        """Improve until the deadline, or until ``max_kicks`` kicks in a row led to nothing better."""
        search = self.search
        search.phase = "blocks"
        stale = 0
        kicks = 0
        while kicks < max_kicks and not search.proven and not search.out_of_time(deadline):
            before = search.lower
            began = monotonic()
            if self._is_walks_turn():
                self._walk(deadline)
                if search.lower > before:
                    kicks = 0
                self._account(WALK, began, before)
                continue
            conditioned = self._conditioned()
            held = conditioned.hold(search.rng)
            if held is None:
                self.conditionable = False
                if self._is_walks_turn():
                    continue
                return
            if stale >= PATIENCE:
                self._kick(held)
                stale = 0
                kicks += 1
            stale += 1
            improved, better = self._maximise(conditioned, held)
            if improved:
                stale = 0
            if better:
                kicks = 0
            self._account(CONDITIONING, began, before)
            if held == 0 and conditioned.instance is search.instance:
                # Nothing was held: the maximum is that of the whole instance.
                search.improve_upper(search.lower)

    def _maximise(self, conditioned: ConditionedElimination, held: int) -> tuple[bool, bool]:
        """Maximise over all outputs but the held ones: whether the current outputs improved, and the incumbent."""
        value, states = conditioned.maximise(held, self.current)
        if value <= self.value + TOLERANCE * max(1.0, abs(value)):
            return False, False
        self.current = states
        self.value = value
        if conditioned.instance is not self.softened:
            return True, self.search.offer(states, value)
        better = self.search.offer(states)
        if better:
            self.value = self.search.lower
        return True, better

    def _is_walks_turn(self) -> bool:
        """Whether the walk has had less than its share of the time; it needs possible outputs to begin with."""
        search = self.search
        if not (search.outputs and search.evaluated):
            return False
        if not (search.evaluator.exact and self.conditionable):
            return True
        return (1.0 - self.walk_share) * self.seconds[WALK] <= self.walk_share * self.seconds[CONDITIONING]

    def _account(self, way: int, began: float, before: float) -> None:
        """Add the time of one of the two ways; the one that found better outputs last gets more of it."""
        self.seconds[way] += monotonic() - began
        if self.search.lower > before:
            self.walk_share = WALK_SHARES[way]

    def _walk(self, deadline: float) -> None:
        """Walk over regions for a slice of time. When a cycle ends, the next one may begin at other outputs."""
        search = self.search
        if self.walk is None:
            self.walk = Walk(search.support, search.eps_h, int(search.rng.integers(1 << 30)))
            self.walk.restart(search.best, search.lower)
        seconds = min(SLICE_SECONDS, max(deadline - monotonic(), 0.0))
        cycle_ended, better = self.walk.run(seconds, search.lower)
        if better is not None and search.offer(better):
            self.current = search.best.copy()
            self.value = search.lower
        if cycle_ended:
            self._next_cycle(self.walk)

    def _next_cycle(self, walk: Walk) -> None:
        """Begin the walk's next cycle: a long one, or as many regions in short ones, each after a changed output.

        A long cycle begins at outputs that the search has set aside, at the incumbent or where the last one ended.
        """
        search = self.search
        self.short_regions += -walk.length if walk.is_short else walk.length
        if self.short_regions > 0:
            walk.begin(short=True)
            self._restart_beside(walk)
            return
        walk.begin(short=False)
        if search.runners_up:
            value, states = search.runners_up.pop()
            walk.restart(states, value)
        elif search.rng.random() < 0.5:
            walk.restart(search.best, search.lower)

    def _restart_beside(self, walk: Walk) -> None:
        """Restart the walk at the incumbent with an output changed, or at the incumbent where that is not possible."""
        search = self.search
        walk.restart(search.best, search.lower)
        changed = walk.changed(search.best)
        if changed is None:
            return
        value, exact = search.evaluate(changed)
        if exact and value > -np.inf:
            walk.restart(changed, value)

    def _conditioned(self) -> ConditionedElimination:
        """Conditioned elimination along a random order, in tables of a random size."""
        search = self.search
        if len(search.orders) < N_ORDERS and search.rng.random() < NEW_ORDER_RATE:
            search.orders.append(search.instance.order(False, restarts=1, seed=len(search.orders)))
        order = search.orders[search.rng.integers(len(search.orders))]
        instance = search.instance if search.lower > -np.inf else self.softened
        smaller = search.entries >> int(search.rng.choice(SMALLER_TABLES))
        entries = max(min(search.entries, LEAST_ENTRIES), smaller)
        conditioned = ConditionedElimination(instance, order, entries, search.outputs, 0.0, search.eps_h)
        if conditioned.fits:
            return conditioned
        larger = replace(conditioned, entries=search.entries)
        if larger.fits or not search.evaluator.exact:
            return larger
        return replace(larger, order=search.evaluation_order)

    def _kick(self, held: int) -> None:
        """Go back to the incumbent with some of the held outputs (a bit mask) changed at random."""
        search = self.search
        topology = search.instance.topology
        self.current = search.best.copy()
        self.value = -np.inf
        for v in range(topology.n_vars):
            if held >> v & 1 and search.rng.random() < KICK_RATE:
                unary = search.instance.unary[topology.unary_ptr[v] : topology.unary_ptr[v + 1]]
                self.current[v] = search.rng.choice(np.flatnonzero(unary > -np.inf))


def _softened(instance: OneInstance) -> OneInstance:
    """Forbidden table entries as very small ones, so that local search can walk through infeasible outputs."""
    finite = instance.tables[np.isfinite(instance.tables)]
    floor = float(min(finite.min(initial=0.0), 0.0)) - SOFT_STEP
    return replace(instance, tables=np.maximum(instance.tables, floor))

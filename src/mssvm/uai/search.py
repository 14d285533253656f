"""Anytime marginal MAP: an incumbent and an upper bound that only ever improve (paper eq. 5 at eps_y = 0).

    bound       mini-buckets with moment matching; their back-substitution is the first incumbent
    starts      outputs decoded from other inference, as far as time allows
    blocks      local search: hold a few outputs, maximise exactly over all others (``conditioned``)
    tighten     the bound's shifts and weights by L-BFGS
    branch      depth-first branch and bound over the outputs, guided by the bound, blocks in between

No table exceeds ``2**ibound`` entries. A search that branches to the end has proved its incumbent optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.numba import elimination as kernels
from mssvm.inference.base import Inference
from mssvm.inference.bounds.conditioning import ConditionedElimination
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation

TOLERANCE = 1e-9
# A forbidden entry counts as this much below the smallest score while no feasible outputs are known.
SOFT_STEP = 25.0
PATIENCE = 6
SMALLER_BLOCKS = (0, 0, 3, 6)
N_ORDERS = 3
SLICE_SECONDS = 0.5
QUICK_SHARE = 0.01
# Bounds are tightened in turns with branching: share of the time left, and iterations, of each turn.
TIGHTEN_SHARES = (0.1, 0.2, 0.5)
TIGHTEN_ITERATIONS = (24, 80, 400)


@dataclass(frozen=True)
class SearchProgress:
    """Where a search stands: called back whenever one of the bounds improves."""

    seconds: float
    lower: float
    upper: float
    phase: str


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Outcome of a search: ``states`` of the outputs (hidden: -1), their value, and an upper bound on any value.

    ``evaluated`` says that ``value`` is exact for these outputs; otherwise it is itself an upper bound on their value.
    """

    states: Ints
    value: float
    upper: float
    evaluated: bool
    proven: bool
    interrupted: bool
    seconds: float


class AnytimeSearch:
    """One search on one instance; ``run`` may be interrupted by a signal and then returns what it has."""

    def __init__(
        self,
        instance: OneInstance,
        eps_h: float,
        ibound: int = 14,
        time_limit: float = 20.0,
        seed: int = 0,
        starts: tuple[Callable[[], Ints], ...] = (),
        report: Callable[[SearchProgress], None] | None = None,
    ) -> None:
        self.instance, self.eps_h, self.entries = instance, eps_h, 1 << ibound
        self.rng = np.random.default_rng(seed)
        self.starts, self.report = starts, report
        warm()
        self.began = monotonic()
        self.deadline = self.began + time_limit
        self.lower, self.upper, self.phase = -np.inf, np.inf, "bound"
        self.best = np.where(instance.clamped, instance.states, 0)
        self.orders = [self._first_order(instance, time_limit, seed)]
        everything = replace(instance, clamped=instance.clamped | instance.output)
        self.evaluator = Relaxation(everything, everything.order(False, restarts=0), self.entries, 0.0, eps_h)
        self.outputs = sum(1 << int(v) for v in instance.free[1])

    def _first_order(self, instance: OneInstance, time_limit: float, seed: int) -> tuple[int, ...]:
        """A good order where one is found quickly; on large graphs the plain one, or nothing else would be done."""
        plain = instance.order(False, restarts=0, seed=seed)
        if monotonic() - self.began > QUICK_SHARE * time_limit:
            return plain
        return instance.order(False, restarts=8, seed=seed)

    @property
    def proven(self) -> bool:
        return self.evaluator.exact and self.upper <= self.lower + self._slack

    @property
    def _slack(self) -> float:
        return TOLERANCE * max(1.0, abs(self.lower)) if self.lower > -np.inf else 0.0

    def _late(self, deadline: float | None = None) -> bool:
        return monotonic() >= (self.deadline if deadline is None else min(deadline, self.deadline))

    def run(self) -> SearchResult:
        interrupted = False
        try:
            self._search()
        except KeyboardInterrupt:
            interrupted = True
        states = np.where(self.instance.output, self.best, -1)
        seconds = monotonic() - self.began
        return SearchResult(
            states, self.lower, max(self.upper, self.lower), self.evaluator.exact, self.proven, interrupted, seconds
        )

    def _search(self) -> None:
        relaxation = Relaxation(self.instance, self.orders[0], self.entries, 0.0, self.eps_h)
        self._bounded(relaxation.improve(0))
        if self.upper == -np.inf:
            return
        self._offer_decoded(relaxation)
        self.phase = "starts"
        for start in self.starts:
            if self.proven or self._late():
                return
            states = start()
            self.offer(np.where(self.instance.clamped, self.instance.states, states))
        if not self.evaluator.exact:
            self._tighten(relaxation, self.deadline, TIGHTEN_ITERATIONS[-1])
            return
        blocks = Blocks(self)
        blocks.run(self.began + 0.3 * (self.deadline - self.began), max_kicks=3)
        if self.proven or self._late():
            return
        for effort, iterations in zip(TIGHTEN_SHARES, TIGHTEN_ITERATIONS, strict=True):
            began = monotonic()
            self._tighten(relaxation, began + effort * (self.deadline - began), iterations)
            # A tree may take as long as its bound did; the last one may take all that is left.
            last = effort == TIGHTEN_SHARES[-1]
            until = self.deadline if last else monotonic() + 2.0 * (monotonic() - began)
            self._branch(BranchAndBound(self, relaxation), blocks, until)
            if self.proven or self._late():
                return

    def _branch(self, tree: BranchAndBound, blocks: Blocks, deadline: float) -> None:
        while not self.proven and not self._late(deadline) and not tree.done:
            tree.run(monotonic() + SLICE_SECONDS)
            if not tree.done:
                blocks.run(monotonic() + SLICE_SECONDS, max_kicks=1)

    def _tighten(self, relaxation: Relaxation, deadline: float, iterations: int) -> None:
        self.phase = "tighten"
        self._bounded(relaxation.improve(iterations, min(deadline, self.deadline)))
        self._offer_decoded(relaxation)

    def _offer_decoded(self, relaxation: Relaxation) -> None:
        states = self.instance.states.copy()
        relaxation.decode(states)
        self.offer(states)

    def offer(self, states: Ints, value: float | None = None) -> bool:
        """Make these outputs the incumbent if they are better; ``value`` is their exact value where known."""
        if value is None:
            self.evaluator.load(states)
            value = self.evaluator.improve(0)
        if not value > self.lower:
            return False
        self.best, self.lower = states.copy(), value
        self._tell()
        return True

    def _bounded(self, upper: float) -> None:
        if upper < self.upper:
            self.upper = upper
            self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            self.report(SearchProgress(monotonic() - self.began, self.lower, self.upper, self.phase))


class Blocks:
    """Local search over large exact neighbourhoods, with kicks out of local optima."""

    def __init__(self, search: AnytimeSearch) -> None:
        self.search = search
        self.soft = _softened(search.instance)
        self.current = search.best.copy()
        self.value = -np.inf

    def run(self, deadline: float, max_kicks: int) -> None:
        """Improve until the deadline, or until ``max_kicks`` perturbations in a row found nothing better."""
        s = self.search
        s.phase = "blocks"
        stale = kicks = 0
        while kicks < max_kicks and not s.proven and not s._late(deadline):
            conditioned = self._conditioned()
            held = conditioned.hold(s.rng)
            if held is None:
                return
            if stale >= PATIENCE:
                self._kick(held)
                stale, kicks = 0, kicks + 1
            value, found = conditioned.maximise(held, self.current)
            stale += 1
            if value > self.value + TOLERANCE * max(1.0, abs(value)):
                self.current, self.value, stale = found, value, 0
                better = s.offer(found) if conditioned.instance is self.soft else s.offer(found, value)
                kicks = 0 if better else kicks
                if better and conditioned.instance is self.soft:
                    self.value = s.lower
            if held == 0 and conditioned.instance is s.instance:
                s._bounded(s.lower)

    def _conditioned(self) -> ConditionedElimination:
        s = self.search
        if len(s.orders) < N_ORDERS and s.rng.random() < 0.1:
            s.orders.append(s.instance.order(False, restarts=1, seed=len(s.orders)))
        order = s.orders[s.rng.integers(len(s.orders))]
        instance = s.instance if s.lower > -np.inf else self.soft
        # Smaller tables hold more outputs but are faster: which pays depends on the model.
        entries = max(2, s.entries >> int(s.rng.choice(SMALLER_BLOCKS)))
        found = ConditionedElimination(instance, order, entries, s.outputs, 0.0, s.eps_h)
        return found if found.fits else replace(found, entries=s.entries)

    def _kick(self, held: int) -> None:
        """Start again from the incumbent with some of the held outputs changed."""
        s = self.search
        self.current, self.value = s.best.copy(), -np.inf
        for v in range(s.instance.topology.n_vars):
            if held >> v & 1 and s.rng.random() < 0.4:
                span = slice(*s.instance.topology.unary_ptr[v : v + 2])
                self.current[v] = s.rng.choice(np.flatnonzero(s.instance.unary[span] > -np.inf))


class BranchAndBound:
    """Depth-first branch and bound; resumes where the last slice stopped."""

    def __init__(self, search: AnytimeSearch, relaxation: Relaxation) -> None:
        self.search, self.relaxation = search, relaxation
        program = relaxation.program
        n_levels = len(program.position_ptr) - 1 - program.n_hidden
        self.states = search.instance.states.copy()
        self.bound = np.full(n_levels + 1, search.upper)
        self.bound[0] = relaxation.run()
        self.open = np.full((max(n_levels, 1), program.max_card), -np.inf)
        self.depth = -1
        self.done = False

    def run(self, deadline: float) -> None:
        s, r = self.search, self.relaxation
        s.phase = "branch"
        while not s._late(deadline) and not s.proven:
            self.depth, leaf = kernels.descend(
                r.program, r.work, self.states, self.depth, self.bound, self.open, s.lower + s._slack, 20_000
            )
            if leaf:
                s.offer(self.states)
            if self.depth < 0:
                self.done = True
                s._bounded(s.lower + s._slack)
                return
            s._bounded(max(s.lower + s._slack, float(self.open[: self.depth + 1].max())))


def _softened(instance: OneInstance) -> OneInstance:
    """Forbidden table entries as very small ones, so that local search can walk through infeasible outputs."""
    finite = instance.tables[np.isfinite(instance.tables)]
    floor = float(min(finite.min(initial=0.0), 0.0)) - SOFT_STEP
    return replace(instance, tables=np.maximum(instance.tables, floor))


def warm(starts: tuple[Inference, ...] = ()) -> None:
    """Compile the kernels on a tiny model, so that compilation does not count against a time limit."""
    batch = Batch.build([Topology((2, 2, 2), ((0, 1), (1, 2), (0, 2), (0, 1, 2)))])
    query = Query.of(batch, np.array([True, True, False]))
    for start in starts:
        start(batch, Potentials.zeros(batch), query, 0.0, 1.0)
    relaxation = Relaxation(OneInstance.of(batch, 0, Potentials.zeros(batch), query), (2, 1, 0), 4, 0.0, 1.0)
    relaxation.improve(1)
    states = np.zeros(3, dtype=np.int64)
    relaxation.decode(states)
    kernels.descend(relaxation.program, relaxation.work, states, -1, np.zeros(3), np.zeros((2, 2)), -1.0, 1)

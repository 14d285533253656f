"""Anytime marginal MAP: an incumbent and an upper bound that only ever improve (paper eq. 5 at eps_y = 0).

    support     zeros as constraints: impossible states removed, a first possible assignment (``Support``)
    bound       mini-buckets with moment matching; their back-substitution is another assignment
    starts      outputs decoded from other inference, as far as time allows
    blocks      local search: from region to region of outputs (``Walk``), or hold a few outputs and maximise exactly
                over all others (``ConditionedElimination``)
    tighten     the bound's shifts and weights by L-BFGS
    branch      depth-first branch and bound over the outputs, guided by the bound, blocks in between
    prove       the same over parts of the outputs, with new bounds in each (``Proof``)

No table exceeds ``2**ibound`` entries. A search that branches to the end has proved its incumbent optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.inference.base import Inference
from mssvm.inference.bounds.conditioning import ConditionedElimination
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.inference.exact import Exact
from mssvm.inference.propagation import Propagate
from mssvm.uai.conditional import ConditionalBound, Tree
from mssvm.uai.proof import Proof, relaxed
from mssvm.uai.regions import Walk
from mssvm.uai.support import Support

TOLERANCE = 1e-9
STEPS = 20_000  # of branch and bound between two looks at the clock
# A forbidden entry counts as this much below the smallest score while no feasible outputs are known.
SOFT_STEP = 25.0
PATIENCE = 6
SMALLER_BLOCKS, LEAST_BLOCKS = (2, 2, 5, 8), 64
N_ORDERS = 3
# Of the time of local search, the walk's share after it, or conditioning, found the last better outputs.
WALK_SHARES = (0.75, 0.4)
SLICE_SECONDS = 0.25
QUICK_SHARE = 0.01
# Outputs are evaluated one by one in tables so many times (2**WIDER) larger where small ones do not do.
WIDER = 6
# Bounds begin in tables 2**QUICKER times smaller than what is allowed, proofs go on in ones 2**PROVING times smaller.
# Shares of the time: for local search before bounds, to choose orders, and to tighten the first bound; iterations of
# that, and of one that nothing follows. Trees and proofs have most of the time while the bounds are NEAR (nats), or
# where local search has found nothing for long.
QUICKER, PROVING = 4, 3
FIRST_SHARE, ORDER_SHARE, TIGHTEN_SHARE = 0.15, 0.05, 0.1
TIGHTEN_ITERATIONS = (40, 400)
NEAR = 5.0
BLOCKS = (2.0, 0.3)  # time of local search for that of a tree, far and near
# Outputs that are possible, though no better than the incumbent, are kept for the walk to start from.
MOST_KEPT = 8


@dataclass(frozen=True)
class SearchProgress:
    """Where a search stands: called back whenever one of the bounds improves. ``states`` are the incumbent's, and
    ``evaluated`` says that ``lower`` is their exact value."""

    seconds: float
    lower: float
    upper: float
    phase: str
    states: Ints
    evaluated: bool


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


@dataclass(frozen=True)
class Anytime:
    """Marginal MAP within a time limit per instance (seconds), as an inference at eps_y = 0.

    ``starts`` are inferences whose decoded outputs the search begins with. mu is that of the outputs found, computed
    exactly within ``memory_limit`` bytes. A ``deadline`` is a moment of the monotonic clock.
    """

    time_limit: float = 20.0
    ibound: int = 16
    memory_limit: int = 4 << 30
    seed: int = 0
    starts: tuple[Inference, ...] = ()
    report: Callable[[SearchProgress], None] | None = field(default=None, compare=False)
    deadline: float = np.inf

    def __post_init__(self) -> None:
        if not (self.time_limit >= 0.0 and 1 <= self.ibound <= 32):
            raise InputError(f"time_limit must be >= 0 and ibound 1 to 32, got {self.time_limit} and {self.ibound}.")

    def search(self, batch: Batch, b: int, theta: Potentials, query: Query, eps_h: float) -> SearchResult:
        """The search on instance b."""
        one = batch.select([b])
        rows = slice(int(batch.var_ptr[b]), int(batch.var_ptr[b + 1]))
        alone = Query(query.output[rows], query.allowed[batch.state_span(b)])
        tables = np.zeros(one.n_table_entries)
        for at, source, size in zip(one.table_at, batch.table_at[batch.factor_ptr[b] :], one.table_sizes, strict=False):
            tables[at : at + size] = theta.tables[source : source + size]
        scores = Potentials(theta.unary[batch.state_span(b)], tables)
        given = one, scores, alone, 0.0, eps_h
        starts = tuple(lambda left, s=start: _timed(s, left, given).decode(one) for start in self.starts)
        return AnytimeSearch(self, OneInstance.of(one, 0, scores, alone), eps_h, starts).run()

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        if eps_y != 0.0:
            raise UnsupportedError(f"anytime search maximises over outputs and needs eps_y = 0, got {eps_y}.")
        theta.check(batch)
        query.check(batch)
        found = [self.search(batch, b, theta, query, eps_h) for b in range(len(batch))]
        states = np.concatenate([np.zeros(0, dtype=np.int64), *(f.states for f in found)])
        outputs = np.flatnonzero(query.output)
        clamped = query.clamp(batch, outputs, states[outputs])
        belief = Exact(self.memory_limit)(batch, theta, clamped, 0.0, eps_h)
        return replace(belief, status=_status(belief.value, found))


def _status(value: Floats, found: list[SearchResult]) -> Status:
    n = len(found)
    proven = np.array([f.proven for f in found], dtype=bool)
    upper = np.array([f.upper for f in found])
    sweeps = np.ones(n, dtype=np.int64)
    return Status(("anytime search",) * n, proven, proven, sweeps, upper - value, value.copy(), upper)


class AnytimeSearch:
    """One search on one instance; ``run`` may be interrupted by a signal and then returns what it has."""

    def __init__(
        self, settings: Anytime, instance: OneInstance, eps_h: float, starts: tuple[Callable[[float], Ints], ...] = ()
    ) -> None:
        self.eps_h, self.entries = eps_h, 1 << settings.ibound
        self.proof_entries = max(2, self.entries >> PROVING)
        self.wide = max(self.entries, min(self.entries << WIDER, settings.memory_limit >> 6))
        self.starts, self.report, self.memory_limit = starts, settings.report, settings.memory_limit
        self.kept: list[tuple[float, Ints]] = []
        self.rng = np.random.default_rng(settings.seed)
        self.began = monotonic()
        self.deadline = min(self.began + settings.time_limit, settings.deadline)
        self.lower, self.upper, self.phase, self.evaluated = -np.inf, np.inf, "support", False
        support = Support(instance)
        left = support.states_left()
        if left is None:
            self.upper = -np.inf
        else:
            instance = support.narrowed(left)
            support = Support(instance)
        self.instance, self.support = instance, support
        self.best, self.unknown = np.where(instance.clamped, instance.states, 0), -np.inf
        self.orders = [self._first_order(settings)]
        everything = replace(instance, clamped=instance.clamped | instance.output)
        self.evaluator = Relaxation(everything, everything.order(False, restarts=0), self.entries, 0.0, eps_h)
        self.outputs = sum(1 << int(v) for v in instance.free[1])

    def _first_order(self, settings: Anytime) -> tuple[int, ...]:
        """A good order where one is found quickly; on large graphs the plain one, or nothing else would be done."""
        plain = self.instance.order(False, restarts=0, seed=settings.seed)
        if monotonic() - self.began > QUICK_SHARE * settings.time_limit:
            return plain
        return self.instance.order(False, restarts=8, seed=settings.seed)

    @property
    def proven(self) -> bool:
        return self.evaluated and self.upper <= self.lower + self._slack

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
        evaluated = self.evaluated or self.upper == -np.inf
        proven = self.proven or self.upper == -np.inf
        return SearchResult(states, self.lower, max(self.upper, self.lower), evaluated, proven, interrupted, seconds)

    def _search(self) -> None:
        if self.upper == -np.inf:
            return
        for states in (self.support.greedy(), self.support.find(self.deadline)):
            if states is not None:
                self.offer(states)
        self.phase = "bound"
        quick = self._relaxation(max(2, self.entries >> QUICKER))
        self._bounded(quick.improve(0))
        if self.upper == -np.inf:
            return
        self._offer_decoded(quick)
        # Messages know little of constraints: where there are some, local search comes first.
        constrained = self.evaluated and bool(self.support.hard.any())
        if not constrained:
            self._offer_starts()
        if self.lower > -np.inf and not self.evaluated:
            self._tighten(self._relaxation(self.entries), self.deadline, TIGHTEN_ITERATIONS[-1])
            return
        blocks = Blocks(self)
        blocks.run(self.began + FIRST_SHARE * (self.deadline - self.began), max_kicks=3)
        if constrained:
            self._offer_starts()
        if self.proven or self._late():
            return
        began = monotonic()
        self._tighten(quick, began + TIGHTEN_SHARE * (self.deadline - began), TIGHTEN_ITERATIONS[0])
        # A tree may take half as long as its bound did; the proof may take all that is left.
        until = 1.5 * monotonic() - 0.5 * began
        for kind, end in ((BranchAndBound, until), (Proof, self.deadline)):
            if not (self.proven or self._late()):
                self._branch(kind(self, quick), blocks, end)

    def _relaxation(self, entries: int) -> Relaxation:
        """In tables of at most so many entries; smaller ones where all of them would not fit in memory."""
        until = self.began + ORDER_SHARE * (self.deadline - self.began)
        while True:
            relaxation = relaxed(self.instance, entries, self.eps_h, self.rng, until)
            if 8 * 4 * relaxation.program.n_work <= self.memory_limit or entries <= 2:
                return relaxation
            entries >>= 1

    def _offer_starts(self) -> None:
        self.phase = "starts"
        for start in self.starts:
            if self.proven or self._late():
                return
            self._offer_start(np.where(self.instance.clamped, self.instance.states, start(self.deadline - monotonic())))

    def _branch(self, tree: BranchAndBound | Proof, blocks: Blocks, deadline: float) -> None:
        stale = 0
        while not self.proven and not self._late(deadline) and not tree.done:
            before, near = self.lower, self.upper - self.lower < NEAR
            began = monotonic()
            tree.run(began + (min(1 + stale // 8, 4) if near else 1) * SLICE_SECONDS)
            if not tree.done:
                share = BLOCKS[near] / (1 + stale // 4)
                blocks.run(min(deadline, monotonic() + share * (monotonic() - began)), max_kicks=PATIENCE)
            stale = 0 if self.lower > before else stale + 1

    def _tighten(self, relaxation: Relaxation, deadline: float, iterations: int) -> None:
        self.phase = "tighten"
        self._bounded(relaxation.improve(iterations, min(deadline, self.deadline)))
        self._offer_decoded(relaxation)

    def _offer_decoded(self, relaxation: Relaxation) -> None:
        states = self.instance.states.copy()
        relaxation.decode(states)
        self._offer_start(states)

    def _offer_start(self, states: Ints) -> None:
        """Offer outputs that something else suggests, or possible ones like them; both are starts, if no better."""
        value, evaluated = self._evaluate(states)
        if value == -np.inf:
            wanted = np.where(self.instance.output, states, -1)
            near = self.support.find(min(self.deadline, monotonic() + SLICE_SECONDS), prefer=wanted)
            if near is None:
                return
            states, (value, evaluated) = near, self._evaluate(near)
        if not self.offer(states, value, evaluated) and evaluated:
            self.kept = [*self.kept[-MOST_KEPT + 1 :], (value, states)]

    def offer(self, states: Ints, value: float | None = None, evaluated: bool = True) -> bool:
        """Make these outputs the incumbent if they are better; ``value`` is their value where known, if ``evaluated``
        exactly."""
        if value is None:
            value, evaluated = self._evaluate(states)
        # An estimate, which is an upper bound, never replaces a value that is known; nor is it forgotten.
        self.unknown = self.unknown if evaluated else max(self.unknown, value)
        if not (evaluated, value) > (self.evaluated, self.lower) or value == -np.inf:
            return False
        self.best, self.lower, self.evaluated = states.copy(), value, evaluated
        self._tell()
        return True

    def _evaluate(self, states: Ints) -> tuple[float, bool]:
        """The value of outputs and whether it is exact: in small tables, or in larger ones for what they leave open."""
        if self.evaluator.exact:
            self.evaluator.load(states)
            return self.evaluator.improve(0), True
        left = self.support.states_left(np.where(self.instance.output, states, -1))
        if left is None:
            return -np.inf, True
        given = self.support.narrowed(left)
        relaxation = Relaxation(given, given.order(False, restarts=0), self.wide, 0.0, self.eps_h)
        return relaxation.improve(0), relaxation.exact

    def _bounded(self, upper: float) -> None:
        if max(upper, self.unknown) < self.upper:
            self.upper = max(upper, self.unknown)
            self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            seconds, states = monotonic() - self.began, np.where(self.instance.output, self.best, -1)
            self.report(SearchProgress(seconds, self.lower, self.upper, self.phase, states, self.evaluated))


class Blocks:
    """Local search over large exact neighbourhoods, with kicks out of local optima."""

    def __init__(self, search: AnytimeSearch) -> None:
        self.search = search
        self.soft = _softened(search.instance)
        self.current = search.best.copy()
        self.value = -np.inf
        self.walk: Walk | None = None
        self.share, self.spent = WALK_SHARES[0], [0.0, 0.0]

    def run(self, deadline: float, max_kicks: int) -> None:
        """Improve until the deadline, or until ``max_kicks`` perturbations in a row found nothing better."""
        s = self.search
        s.phase = "blocks"
        stale = kicks = 0
        while kicks < max_kicks and not s.proven and not s._late(deadline):
            before, began = s.lower, monotonic()
            if self._walks():
                self._walk(deadline)
                kicks = 0 if s.lower > before else kicks
                self._learn(0, began, before)
                continue
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
            self._learn(1, began, before)
            if held == 0 and conditioned.instance is s.instance:
                s._bounded(s.lower)

    def _walks(self) -> bool:
        """Whether it is the walk's turn, of the two ways to search."""
        s = self.search
        if not (s.outputs and s.evaluated):
            return False
        return not s.evaluator.exact or (1.0 - self.share) * self.spent[0] <= self.share * self.spent[1]

    def _learn(self, way: int, began: float, before: float) -> None:
        """The way that found better outputs last has more of the time."""
        self.spent[way] += monotonic() - began
        if self.search.lower > before:
            self.share = WALK_SHARES[way]

    def _walk(self, deadline: float) -> None:
        """Go on walking over regions."""
        s = self.search
        if self.walk is None:
            self.walk = Walk(s.support, s.eps_h, int(s.rng.integers(1 << 30)))
            self.walk.restart(s.best, s.lower)
        ended, found = self.walk.run(min(SLICE_SECONDS, max(deadline - monotonic(), 0.0)), s.lower)
        if found is not None and s.offer(found):
            self.current, self.value = s.best.copy(), s.lower
        if ended and s.kept:
            value, states = s.kept.pop()
            self.walk.restart(states, value)
        elif ended and s.rng.random() < 0.5:
            self.walk.restart(s.best, s.lower)

    def _conditioned(self) -> ConditionedElimination:
        s = self.search
        if len(s.orders) < N_ORDERS and s.rng.random() < 0.1:
            s.orders.append(s.instance.order(False, restarts=1, seed=len(s.orders)))
        order = s.orders[s.rng.integers(len(s.orders))]
        instance = s.instance if s.lower > -np.inf else self.soft
        # Smaller tables hold more outputs but are faster: which pays depends on the model.
        entries = max(min(s.entries, LEAST_BLOCKS), s.entries >> int(s.rng.choice(SMALLER_BLOCKS)))
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
        self.tree = Tree(program, search.instance.states, search.upper)
        self.tree.bound[0] = relaxation.run()
        order = program.var[program.position_ptr[program.n_hidden : -1]][::-1].tolist()
        self.conditional = ConditionalBound(search.instance, order, search.eps_h)
        self.done = False

    def run(self, deadline: float) -> None:
        s, tree = self.search, self.tree
        s.phase = "branch"
        while not s._late(deadline) and not s.proven:
            if self.conditional.descend(self.relaxation.sweep, tree, s.lower + s._slack, STEPS):
                s.offer(tree.states)
            if tree.exhausted:
                self.done = True
                s._bounded(s.lower + s._slack)
                return
            s._bounded(max(s.lower + s._slack, tree.upper))


Given = tuple[Batch, Potentials, Query, float, float]


def _timed(start: Inference, seconds: float, given: Given) -> Belief:
    """The start's belief; propagation makes as many sweeps as there is time for, by what the first takes."""
    if isinstance(start, Propagate):
        began = monotonic()
        replace(start, max_sweeps=1)(*given)
        sweep = monotonic() - began
        start = replace(start, max_sweeps=int(np.clip(seconds / max(sweep, 1e-9) - 1.0, 1, start.max_sweeps)))
    return start(*given)


def _softened(instance: OneInstance) -> OneInstance:
    """Forbidden table entries as very small ones, so that local search can walk through infeasible outputs."""
    finite = instance.tables[np.isfinite(instance.tables)]
    floor = float(min(finite.min(initial=0.0), 0.0)) - SOFT_STEP
    return replace(instance, tables=np.maximum(instance.tables, floor))

"""Proofs of optimality: bounds tightened anew in every part of the output space (paper eq. 5 at eps_y = 0).

A part is the set of outputs whose states are all in a mask ``left``. Its mini-bucket bound, followed back from the last
variable eliminated to the first, also bounds every single state of every output. States whose bound is below the
incumbent are removed, then states that arc consistency rules out without them; the bound of the rest is lower. When no
more states fall, the part is split at the output whose states, tried one by one, have the lowest bounds. Each child
begins with the shifts and weights of its parent. A part with far fewer variables than its mini-buckets were built for
gets new ones, which need less splitting of buckets.

Threads share the open parts: each takes one, and puts back its children.
"""

from __future__ import annotations

from copy import copy
from threading import Lock, get_ident
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import FLOATS, INTS, Function, RecordKind
from mssvm.engines.native.elimination import PROGRAM, ScoreSweep
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation

if TYPE_CHECKING:
    from mssvm.uai.local_search import LocalSearch
    from mssvm.uai.search import AnytimeSearch

STATE_BOUNDS = Function(
    "mssvm_branching_state_bounds", program=RecordKind(PROGRAM), work=FLOATS, unary_ptr=INTS, bounds=FLOATS
)
# Iterations of L-BFGS for new mini-buckets, and for those that already have parameters.
NEW_ITERATIONS = 40
ITERATIONS = 8
# Bounds are tightened again when less than this share of the gap is left.
TIGHTEN = 0.8
# Mini-buckets are built again when fewer than this share of the variables is left.
RENEW = 0.94
# Outputs that are tried before a part is split: this many with low state bounds, this many in the most buckets. A
# child's score is exp(STEEPNESS * relative bound), so that one low bound counts for several high ones.
TRIALS = 6
STEEPNESS = 8.0
# Sweep orders that ``best_relaxation`` compares.
SWEEPS = 8
# State removal is repeated while more than this share of the outputs lost a state.
WORTH_REPEATING = 0.02
# A thread that finds no part to split searches locally, or waits, for this long.
IDLE_SECONDS = 0.05
IDLE_KICKS = 6


class MiniBuckets:
    """Mini-buckets of a proof; every thread that uses them has work memory of its own."""

    def __init__(self, relaxation: Relaxation) -> None:
        self.program = relaxation.program
        self._first = relaxation
        self._of_thread = {get_ident(): relaxation}

    @property
    def here(self) -> Relaxation:
        """The mini-buckets of this thread."""
        thread = get_ident()
        if thread not in self._of_thread:
            self._of_thread[thread] = self._first.beside()
        return self._of_thread[thread]

    @property
    def n_work(self) -> int:
        """Numbers in all work memory."""
        return len(self._of_thread) * self.program.n_work


class OpenPart(NamedTuple):
    """A part of the output space that is still to be searched.

    ``left`` masks its states, ``bound`` is an upper bound on its values by ``mini_buckets`` with ``parameters``.
    ``tightened`` is the bound when these parameters were optimised, ``size`` the number of free variables when the
    mini-buckets were built.
    """

    left: Bools
    bound: float
    mini_buckets: MiniBuckets
    parameters: tuple[Floats, Floats, Floats]
    tightened: float
    size: int


class OpenParts:
    """The parts that are still to be searched: those waiting, and one for every thread that is splitting one."""

    def __init__(self, root: OpenPart) -> None:
        self.waiting = [root]
        self.taken: list[OpenPart] = []
        self.n_threads = 1
        self._lock = Lock()

    @property
    def done(self) -> bool:
        with self._lock:
            return not (self.waiting or self.taken)

    def join(self) -> None:
        """One more thread takes parts."""
        with self._lock:
            self.n_threads += 1

    def take(self, memory_limit: int) -> OpenPart | None:
        """The waiting part with the highest bound, or the last one where memory is short; None if none waits."""
        with self._lock:
            if not self.waiting:
                return None
            best = len(self.waiting) - 1
            if 2 * self._n_bytes() <= memory_limit:
                best = max(range(len(self.waiting)), key=lambda k: self.waiting[k].bound)
            part = self.waiting.pop(best)
            self.taken.append(part)
            return part

    def replace(self, part: OpenPart, children: list[OpenPart]) -> float:
        """Let the children, in the order of their bounds, take the part's place; returns the highest bound of all."""
        with self._lock:
            self.taken = [other for other in self.taken if other is not part]
            self.waiting += children
            return max((other.bound for other in (*self.waiting, *self.taken)), default=-np.inf)

    def n_bytes(self, *more: OpenPart) -> int:
        """Memory of all mini-buckets in use, which several parts may share, and of work on the largest of them."""
        with self._lock:
            return self._n_bytes(*more)

    def _n_bytes(self, *more: OpenPart) -> int:
        in_use = {part.mini_buckets for part in (*self.waiting, *self.taken, *more)}
        largest = max((mini_buckets.program.n_work for mini_buckets in in_use), default=0)
        return 8 * sum(mini_buckets.n_work for mini_buckets in in_use) + 8 * 3 * largest * self.n_threads


class Proof:
    """Best-first search over parts: the highest bound of an open part bounds all outputs not yet searched.

    Open parts keep their mini-buckets. Once these fill half of the memory, the search continues depth-first.
    """

    def __init__(self, search: AnytimeSearch, relaxation: Relaxation) -> None:
        self.search = search
        self.entries = search.proof_entries
        root = OpenPart(
            left=search.instance.unary > -np.inf,
            bound=search.upper,
            mini_buckets=MiniBuckets(relaxation),
            parameters=relaxation.parameters,
            tightened=search.upper,
            size=_n_free(search.instance),
        )
        self.parts = OpenParts(root)

    def beside(self, search: AnytimeSearch) -> Proof:
        """The same proof on another thread, with that thread's search."""
        other = copy(self)
        other.search = search
        self.parts.join()
        return other

    @property
    def done(self) -> bool:
        """Whether no part waits; other threads may still be splitting theirs."""
        return not self.parts.waiting

    @property
    def _unary_ptr(self) -> Ints:
        return self.search.instance.topology.unary_ptr

    def run(self, deadline: float) -> None:
        """Continue until the deadline, by at least one part; at once where no part waits."""
        search = self.search
        search.phase = "prove"
        while part := self.parts.take(search.memory_limit):
            children = self._split(part)
            threshold = search.threshold
            promising = [child for child in children if child.bound > threshold]
            bound = self.parts.replace(part, sorted(promising, key=lambda child: child.bound))
            search.improve_upper(max(search.threshold, bound))
            if search.out_of_time(deadline):
                return

    def run_with(self, local_search: LocalSearch) -> None:
        """Continue to the end of the search, in turns with local search, which has all the time while no part waits."""
        search = self.search
        while True:
            search.alternate(self, local_search, search.deadline)
            if self.parts.done or search.ended:
                return
            began = monotonic()
            local_search.run(began + IDLE_SECONDS, IDLE_KICKS)
            search.stopping.wait(max(began + IDLE_SECONDS - monotonic(), 0.0))

    def _split(self, part: OpenPart) -> list[OpenPart]:
        """The children of a part that may hold better outputs than the incumbent; the part itself if time is up."""
        search = self.search
        bounds = np.zeros(0)
        for step in (self._run, self._tighten, self._renew):
            bounded = step(part)
            if bounded is not None:
                pruned = self._pruned(bounded)
                if pruned is None:
                    return []
                part, bounds = pruned
            if search.out_of_time():
                return [part]
        return self._children(part, bounds)

    def _pruned(self, part: OpenPart) -> tuple[OpenPart, Floats] | None:
        """A part that has just been bounded, without the states that the bound rules out, and the bounds of its states;
        None if nothing better than the incumbent is left. While many states fall, the part is bounded and pruned again.
        """
        search = self.search
        while part.bound > search.threshold:
            bounds = np.full(len(part.left), np.inf)
            state_bounds(part.mini_buckets.here.sweep, self._unary_ptr, bounds)
            removed = part.left & (bounds <= search.threshold)
            left = search.support.states_left(within=part.left & ~removed)
            if left is None:
                return None
            part = part._replace(left=left)
            if removed.sum() <= WORTH_REPEATING * part.size:
                return part, bounds
            part = self._run(part)
        return None

    def _run(self, part: OpenPart) -> OpenPart:
        """The part with its bound by the mini-buckets as they are."""
        self._load(part, part.left)
        return self._with_bound(part, part.mini_buckets.here.run())

    def _tighten(self, part: OpenPart) -> OpenPart | None:
        """The part with optimised parameters of its mini-buckets; None if that is not due."""
        threshold = self.search.threshold
        if part.bound - threshold > TIGHTEN * (part.tightened - threshold):
            return None
        self._load(part, part.left)
        relaxation = part.mini_buckets.here
        bound = relaxation.improve(ITERATIONS, self.search.deadline, threshold, warm_start=True)
        part = part._replace(parameters=relaxation.parameters, tightened=bound)
        return self._with_bound(part, bound)

    def _renew(self, part: OpenPart) -> OpenPart | None:
        """The part with mini-buckets of its own, if these are better; None if not due or beyond the memory limit."""
        search = self.search
        instance = search.support.narrowed(part.left)
        size = _n_free(instance)
        if size >= RENEW * part.size or self.parts.n_bytes(part) > search.memory_limit:
            return None
        relaxation = best_relaxation(instance, self.entries, search.eps_h, search.rng, search.deadline)
        bound = relaxation.improve(NEW_ITERATIONS, search.deadline, search.threshold)
        if bound >= part.bound:
            return self._run(part)._replace(size=size)
        renewed = OpenPart(part.left, part.bound, MiniBuckets(relaxation), relaxation.parameters, bound, size)
        return self._with_bound(renewed, bound)

    def _load(self, part: OpenPart, left: Bools) -> None:
        """Set the part's mini-buckets to its parameters and the states ``left``."""
        relaxation = part.mini_buckets.here
        relaxation.instance = self.search.support.narrowed(left)
        relaxation.load(relaxation.instance.states)
        relaxation.parameters = part.parameters

    def _with_bound(self, part: OpenPart, bound: float) -> OpenPart:
        """The part with its bound; the outputs that the bound suggests are offered to the search."""
        if bound > self.search.threshold:
            relaxation = part.mini_buckets.here
            states = relaxation.instance.states.copy()
            relaxation.decode(states)
            self.search.offer(states)
        return part._replace(bound=min(bound, part.bound))

    def _children(self, part: OpenPart, bounds: Floats) -> list[OpenPart]:
        """The part split at the output whose children have the lowest bounds, of those that promise most."""
        search = self.search
        instance = search.support.narrowed(part.left)
        if not len(instance.free[1]):
            search.offer(instance.states)
            return []
        gap = part.bound - search.threshold
        best: list[OpenPart] = []
        least = np.inf
        for v in self._candidates(part, instance.free[1], bounds, gap):
            first = self._unary_ptr[v]
            states = np.flatnonzero(part.left[first : self._unary_ptr[v + 1]])
            children = [self._child(part, v, int(state)) for state in states]
            promising = [child for child in children if child is not None and child.bound > search.threshold]
            score = sum(np.exp((child.bound - part.bound) * STEEPNESS / gap) for child in promising)
            if score < least:
                best = promising
                least = score
        return best

    def _candidates(self, part: OpenPart, outputs: Ints, bounds: Floats, gap: float) -> Ints:
        """Outputs to try a split at: those with low state bounds, and those that most mini-buckets share."""
        unary_ptr = self._unary_ptr
        below = np.where(part.left, np.minimum(bounds - part.bound, 0.0), 0.0)
        weight = np.where(part.left, np.exp(below * STEEPNESS / gap), 0.0)
        score = np.array([weight[unary_ptr[v] : unary_ptr[v + 1]].sum() for v in outputs])
        copies = np.bincount(part.mini_buckets.program.var, minlength=len(unary_ptr) - 1)[outputs]
        low_bounds = np.argsort(score, kind="stable")[:TRIALS]
        most_copies = np.argsort(-copies, kind="stable")[:TRIALS]
        candidates: Ints = outputs[np.unique(np.append(low_bounds, most_copies))]
        return candidates

    def _child(self, part: OpenPart, v: int, state: int) -> OpenPart | None:
        """The part with output v at a state; None if that is impossible."""
        first = self._unary_ptr[v]
        within = part.left.copy()
        within[first : self._unary_ptr[v + 1]] = False
        within[first + state] = True
        left = self.search.support.states_left(within=within)
        if left is None:
            return None
        self._load(part, left)
        return part._replace(left=left, bound=min(part.bound, part.mini_buckets.here.run()))


def best_relaxation(
    instance: OneInstance, entries: int, eps_h: float, rng: np.random.Generator, deadline: float
) -> Relaxation:
    """Mini-buckets along the elimination order, of several, whose bound by moment matching is lowest.

    Hidden variables are eliminated as in the plain order; outputs likewise, or in breadth-first sweeps that end at
    random variables. Mini-buckets like sweeps: few outputs separate the eliminated ones from the rest, whatever the
    width of the whole graph.
    """
    plain = instance.order(False, restarts=0)
    best = Relaxation(instance, plain, entries, 0.0, eps_h)
    least = best.run(match=True)
    if best.exact:
        return best
    neighbours = _neighbours(instance)
    hidden = [v for v in plain if not instance.output[v]]
    outputs = instance.free[1]
    for end in rng.permutation(outputs)[:SWEEPS]:
        if monotonic() >= deadline:
            break
        sweep = [v for v in reversed(_breadth_first(neighbours, int(end))) if instance.output[v]]
        unreached = set(outputs.tolist()).difference(sweep)
        order = [*hidden, *(v for v in outputs.tolist() if v in unreached), *sweep]
        relaxation = Relaxation(instance, order, entries, 0.0, eps_h)
        bound = relaxation.run(match=True)
        if bound < least:
            best = relaxation
            least = bound
    return best


def _neighbours(instance: OneInstance) -> list[set[int]]:
    """Unclamped neighbours of every variable."""
    neighbours: list[set[int]] = [set() for _ in instance.topology.cards]
    for scope in instance.topology.scopes:
        free = [v for v in scope if not instance.clamped[v]]
        for v in free:
            neighbours[v].update(free)
    return neighbours


def _breadth_first(neighbours: list[set[int]], start: int) -> list[int]:
    """Variables in the order of their distance from ``start``."""
    seen = {start}
    order = [start]
    for v in order:
        unseen = neighbours[v] - seen
        seen |= unseen
        order += sorted(unseen)
    return order


def _n_free(instance: OneInstance) -> int:
    """Number of variables that are not clamped."""
    return int((~instance.clamped).sum())


def state_bounds(sweep: ScoreSweep, unary_ptr: Ints, bounds: Floats) -> None:
    """Lower ``bounds`` of the outputs' states to those that the last run of ``sweep`` implies (at eps_y = 0)."""
    STATE_BOUNDS(program=sweep.program, work=sweep.work, unary_ptr=unary_ptr, bounds=bounds)

"""Proofs of optimality: bounds made tight again in every part of the space of outputs (paper eq. 5 at eps_y = 0).

A part is the outputs whose states are among those left. Its mini-bucket bound, followed back from the last variable
eliminated to the first, also bounds every single state of every output: states that no better outputs can have are
removed, then what arc consistency makes impossible without them, and the bound of what is left is lower. Where this
ends, a part is split at the output whose states, tried one by one, have the lowest bounds; each begins with the shifts
and weights of the whole. Parts with far fewer variables than their mini-buckets were made for get new ones, which are
split less.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import FLOATS, INTS, Function, RecordKind
from mssvm.engines.native.elimination import PROGRAM, ScoreSweep
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation

if TYPE_CHECKING:
    from mssvm.uai.anytime import AnytimeSearch

STATE_BOUNDS = Function(
    "mssvm_branching_state_bounds", program=RecordKind(PROGRAM), work=FLOATS, unary_ptr=INTS, bounds=FLOATS
)
# Iterations of L-BFGS for new mini-buckets, and for those that have parameters.
NEW_ITERATIONS, ITERATIONS = 40, 8
# Bounds are made tight again when less than this share of the gap is left, mini-buckets are made again when fewer than
# this share of the variables is.
TIGHTEN, RENEW = 0.8, 0.94
# Outputs that are tried before a part is split, of each kind, and how much a lower bound of one state is worth.
TRIALS, STEEPNESS = 6, 8.0
# Sweeps that mini-buckets are made for, to choose from.
SWEEPS = 8
# States are removed again while more than this share of the outputs lost one.
WORTH = 0.02


class OpenPart(NamedTuple):
    """Outputs to search: states left, an upper bound, and the mini-buckets that gave it, with their parameters, the
    bound when these were found, and the number of variables when new ones were made last."""

    left: Bools
    bound: float
    relaxation: Relaxation
    parameters: tuple[Floats, Floats, Floats]
    tightened: float
    size: int


class Proof:
    """Depth first over parts, the one with the highest bound first: what waits bounds all outputs not yet searched."""

    def __init__(self, search: AnytimeSearch, relaxation: Relaxation) -> None:
        self.search = search
        left, size = search.instance.unary > -np.inf, _size(search.instance)
        self.parts = [OpenPart(left, search.upper, relaxation, relaxation.parameters, search.upper, size)]

    @property
    def done(self) -> bool:
        return not self.parts

    @property
    def _enough(self) -> float:
        return self.search.lower + self.search._slack

    def run(self, deadline: float) -> None:
        """Go on until the deadline, at least by one part."""
        s = self.search
        s.phase = "prove"
        while self.parts:
            found = self._split(self.parts.pop())
            self.parts += sorted((p for p in found if p.bound > self._enough), key=lambda p: p.bound)
            s._bounded(max(self._enough, *(p.bound for p in self.parts)) if self.parts else self._enough)
            if s._late(deadline):
                return

    def _split(self, part: OpenPart) -> list[OpenPart]:
        """The parts of a part that may have better outputs than the incumbent; itself if time is up."""
        bounds = np.zeros(0)
        for step in (self._run, self._tighten, self._renew):
            bounded = step(part)
            while bounded is not None:
                part = bounded
                if part.bound <= self._enough:
                    return []
                bounds = np.full(len(part.left), np.inf)
                state_bounds(part.relaxation.sweep, self._at, bounds)
                removed = part.left & (bounds <= self._enough)
                left = self.search.support.states_left(within=part.left & ~removed)
                if left is None:
                    return []
                part = part._replace(left=left)
                bounded = self._run(part) if removed.sum() > WORTH * part.size else None
            if self.search._late():
                return [part]
        return self._children(part, bounds)

    @property
    def _at(self) -> Ints:
        return self.search.instance.topology.unary_ptr

    def _run(self, part: OpenPart) -> OpenPart:
        """Its bound by the mini-buckets as they are."""
        self._load(part, part.left)
        return self._found(part, part.relaxation.run())

    def _tighten(self, part: OpenPart) -> OpenPart | None:
        """Its bound by mini-buckets with new parameters, if that is due."""
        if part.bound - self._enough > TIGHTEN * (part.tightened - self._enough):
            return None
        self._load(part, part.left)
        bound = part.relaxation.improve(ITERATIONS, self.search.deadline, self._enough, warm_start=True)
        return self._found(part._replace(parameters=part.relaxation.parameters, tightened=bound), bound)

    def _renew(self, part: OpenPart) -> OpenPart | None:
        """Its bound by mini-buckets of its own, if that is due, there is memory for them, and they are better."""
        s, instance = self.search, self.search.support.narrowed(part.left)
        kept = {id(p.relaxation): p.relaxation.program.n_work for p in (*self.parts, part)}
        size = _size(instance)
        if size >= RENEW * part.size or 8 * 4 * sum(kept.values()) > s.memory_limit:
            return None
        relaxation = relaxed(instance, s.proof_entries, s.eps_h, s.rng, s.deadline)
        bound = relaxation.improve(NEW_ITERATIONS, s.deadline, self._enough)
        if bound >= part.bound:
            part = self._run(part)
            return part._replace(size=size)
        return self._found(OpenPart(part.left, part.bound, relaxation, relaxation.parameters, bound, size), bound)

    def _load(self, part: OpenPart, left: Bools) -> None:
        """Give the part's mini-buckets its parameters and these states."""
        relaxation = part.relaxation
        relaxation.instance = self.search.support.narrowed(left)
        relaxation.load(relaxation.instance.states)
        relaxation.parameters = part.parameters

    def _found(self, part: OpenPart, bound: float) -> OpenPart:
        """The part with its bound; the outputs that the bound suggests are offered."""
        if bound > self._enough:
            states = part.relaxation.instance.states.copy()
            part.relaxation.decode(states)
            self.search.offer(states)
        return part._replace(bound=min(bound, part.bound))

    def _children(self, part: OpenPart, bounds: Floats) -> list[OpenPart]:
        """The part split at one output, of some that promise most: the states' bounds are low, or it is split most."""
        instance, at, gap = self.search.support.narrowed(part.left), self._at, part.bound - self._enough
        outputs = instance.free[1]
        if not len(outputs):
            self.search.offer(instance.states)
            return []
        worth = np.where(part.left, np.exp(np.minimum(bounds - part.bound, 0.0) * STEEPNESS / gap), 0.0)
        promise = np.array([worth[at[v] : at[v + 1]].sum() for v in outputs])
        copies = np.bincount(part.relaxation.program.var, minlength=len(at) - 1)[outputs]
        tried = np.append(np.argsort(promise, kind="stable")[:TRIALS], np.argsort(-copies, kind="stable")[:TRIALS])
        best, least = list[OpenPart](), np.inf
        for v in outputs[np.unique(tried)]:
            found = [self._child(part, v, int(j)) for j in np.flatnonzero(part.left[at[v] : at[v + 1]])]
            alive = [p for p in found if p is not None and p.bound > self._enough]
            score = sum(np.exp((p.bound - part.bound) * STEEPNESS / gap) for p in alive)
            if score < least:
                best, least = alive, score
        return best

    def _child(self, part: OpenPart, v: int, state: int) -> OpenPart | None:
        """The part with an output at a state; None if that is impossible."""
        within, at = part.left.copy(), self._at
        within[at[v] : at[v + 1]] = False
        within[at[v] + state] = True
        left = self.search.support.states_left(within=within)
        if left is None:
            return None
        self._load(part, left)
        return part._replace(left=left, bound=min(part.bound, part.relaxation.run()))


def relaxed(instance: OneInstance, entries: int, eps_h: float, rng: np.random.Generator, deadline: float) -> Relaxation:
    """Mini-buckets with the lowest bound by moment matching, of some orders: hidden variables as in the plain one, the
    outputs as in that, or in sweeps that end at random variables. Mini-buckets like sweeps: few outputs lie between
    those eliminated and the others, whatever the width of the whole."""
    plain = instance.order(False, restarts=0)
    hidden, outputs = [v for v in plain if not instance.output[v]], instance.free[1]
    best = Relaxation(instance, plain, entries, 0.0, eps_h)
    least, near = best.run(match=True), _neighbours(instance)
    for end in rng.permutation(outputs)[:SWEEPS] if not best.exact else ():
        if monotonic() >= deadline:
            break
        reached = _reached(near, int(end), len(plain))
        sweep = [v for v in reversed(reached) if instance.output[v]]
        order = [*hidden, *(v for v in outputs.tolist() if v not in set(sweep)), *sweep]
        found = Relaxation(instance, order, entries, 0.0, eps_h)
        bound = found.run(match=True)
        if bound < least:
            best, least = found, bound
    return best


def _neighbours(instance: OneInstance) -> list[set[int]]:
    """Of every variable, unclamped ones."""
    near: list[set[int]] = [set() for _ in instance.topology.cards]
    for scope in instance.topology.scopes:
        free = [v for v in scope if not instance.clamped[v]]
        for v in free:
            near[v].update(free)
    return near


def _reached(near: list[set[int]], start: int, most: int) -> list[int]:
    """Variables in the order of their distance from one of them."""
    seen, found = {start}, [start]
    for v in found:
        new = near[v] - seen
        seen |= new
        found += sorted(new)
    assert len(found) <= most
    return found


def _size(instance: OneInstance) -> int:
    """Variables that are not clamped."""
    return int((~instance.clamped).sum())


def state_bounds(sweep: ScoreSweep, unary_ptr: Ints, bounds: Floats) -> None:
    """After a run at temperature zero of the outputs: lower ``bounds`` of their states to what the run says of them."""
    STATE_BOUNDS(program=sweep.program, work=sweep.work, unary_ptr=unary_ptr, bounds=bounds)

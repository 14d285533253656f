"""The anytime search for marginal MAP on one instance, phase by phase (paper eq. 5 at eps_y = 0).

    support     zeros as constraints: impossible states removed, a first possible assignment (``Support``); the bound
                by one pass over the tables (``quick_bound``)
    layers      search over plans, layer by layer, where few states separate them (``LayeredSearch``)
    bound       mini-buckets with moment matching; their back-substitution is another assignment
    starts      outputs decoded from other inference, as far as time allows
    blocks      local search (``LocalSearch``): a walk over regions of outputs, or exact maximisation with a few held
    enumerate   all outputs one by one, where constraints leave few (``Enumeration``)
    tighten     the bound's shifts and weights by L-BFGS
    branch      depth-first branch and bound over the outputs, guided by the bound, blocks in between
    prove       the same over parts of the output space, with new bounds in each (``Proof``)

With several threads (``Portfolio``) local search goes on beside all of these, from the first bound on.

Tables have at most ``2**ibound`` entries, with two exceptions: if time and memory allow, bounds on the whole output
space use up to ``2**(ibound + widest)``, and a single assignment is evaluated in up to ``2**(ibound + 6)``. A search
that branches to the end has proved its incumbent optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.uai.branching import BranchAndBound
from mssvm.uai.enumeration import Enumeration
from mssvm.uai.incumbent import Incumbent, Valued
from mssvm.uai.layered_search import LayeredSearch
from mssvm.uai.layers import layers_of
from mssvm.uai.local_search import LocalSearch
from mssvm.uai.portfolio import Portfolio
from mssvm.uai.proof import Proof, best_relaxation
from mssvm.uai.quick_bound import quick_bound
from mssvm.uai.support import Support

if TYPE_CHECKING:
    from mssvm.uai.anytime import Anytime

# Table sizes, as powers of two relative to the limit 2**ibound.
FIRST_BOUND_SHIFT = 4  # the first bound has tables smaller by this
PROOF_SHIFT = 3  # those of proofs have tables smaller by this, unless a larger bound pays
EVALUATION_SHIFT = 6  # tables larger by this evaluate outputs for which 2**ibound is too small
ROOT_SHIFTS = (2, 0)  # before a proof, bounds with tables smaller by these are tried in turn
# Then tables larger than 2**ibound are tried, in steps of this power of two. A proof uses them only if they leave less
# than this share of the gap.
WIDER_STEP = 2
WORTH_WIDER = 0.7
# Bytes that L-BFGS with ten corrections needs for each entry of the work vector of mini-buckets.
MINIMISER_BYTES = 128

# Shares of the time limit.
QUICK_SHARE = 0.01  # if the plain elimination order takes longer, no better one is searched for
LAYERS_SHARE = 0.5  # layers and the search over them
START_SHARE = 0.05  # each start that has no limit of its own
SIMILAR_SHARE = 0.09  # starts similar to a helpful one
FIRST_SHARE = 0.15  # local search before bounds
ORDER_SHARE = 0.05  # the choice of orders
TIGHTEN_SHARE = 0.1  # the first tightening of the bound
# Share of the remaining time for the bound with which a proof begins.
ROOT_SHARE = 0.35
# Iterations of L-BFGS: for the first bound, for each that a proof may begin with, and for one that nothing follows.
TIGHTEN_ITERATIONS = 40
ROOT_ITERATIONS = 120
LAST_ITERATIONS = 400

# Trees and proofs take turns with local search, in slices of SLICE_SECONDS. Per second of a tree, local search gets
# LOCAL_SHARE_FAR seconds, or LOCAL_SHARE_NEAR once the bounds are within NEAR (nats), and less the longer it has found
# nothing; it ends early after PATIENCE kicks that led to nothing better.
SLICE_SECONDS = 0.25
NEAR = 3.5
LOCAL_SHARE_FAR = 6.0
LOCAL_SHARE_NEAR = 0.3
PATIENCE = 6
FAR = 5.5  # nats between the bounds after the first tightening, above which joint MAP is tried again

# A start that is worse than the incumbent by less than this (nats) is followed by others, if bounds stay far apart.
HELPFUL = 2.0

# Possible outputs that are no better than the incumbent are kept as starts of the walk, up to this number.
MOST_RUNNERS_UP = 8


class Suggestion(NamedTuple):
    """Outputs that another method suggests, and whether they are the exact answer to what that method asks."""

    states: Ints
    exact: bool


Start = Callable[[float], Suggestion]


@dataclass(frozen=True)
class Starts:
    """Other methods whose outputs the search begins with (see ``Anytime``)."""

    first: tuple[Start, ...] = ()
    closer: tuple[Start, ...] = ()
    coarser: tuple[Start, ...] = ()
    again: tuple[Start, ...] = ()


Exhaustive = BranchAndBound | Proof | Enumeration | LayeredSearch


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
    """One search on one instance; ``run`` may be interrupted by a signal and then returns the incumbent."""

    def __init__(
        self,
        settings: Anytime,
        instance: OneInstance,
        eps_h: float,
        starts: Starts | None = None,
    ) -> None:
        self.eps_h = eps_h
        self.entries = 1 << settings.ibound
        self.proof_entries = max(2, self.entries >> PROOF_SHIFT)
        memory_of_thread = settings.memory_limit // settings.threads
        self.wide_entries = max(self.entries, min(self.entries << EVALUATION_SHIFT, memory_of_thread >> 6))
        self.widest = settings.widest
        self.starts = starts or Starts()
        self.later: tuple[Start, ...] = ()  # starts that are offered if bounds stay far apart
        self.memory_limit = settings.memory_limit
        self.seed = settings.seed
        self.rng = np.random.default_rng(settings.seed)
        self.began = monotonic()
        self.deadline = min(self.began + settings.time_limit, settings.deadline)

        self.portfolio = Portfolio(self, settings.threads)
        self.helped = False  # other threads search locally, so that this one need not
        self.conditions = True  # whether local search may condition
        self.stopping = Event()

        self.phase = "support"
        self.layered: LayeredSearch | None = None
        self.runners_up: list[tuple[float, Ints]] = []

        self.support = Support(instance)
        possible = self.support.states_left()
        if possible is not None:
            self.support = Support(self.support.narrowed(possible))
        self.instance = self.support.instance
        first = np.where(self.instance.clamped, self.instance.states, 0)
        self.incumbent = Incumbent(first, self.instance.output, self.began, settings.report)
        if possible is None:
            self.incumbent.upper = -np.inf
        self.outputs = sum(1 << int(v) for v in self.instance.free[1])
        self.orders = [self._first_order(settings)]
        outputs_given = replace(self.instance, clamped=self.instance.clamped | self.instance.output)
        order = outputs_given.order(False, restarts=0)
        self.evaluator = Relaxation(outputs_given, order, self.entries, 0.0, eps_h)
        # Tables along this order are as small as the evaluator's when all outputs are held.
        self.evaluation_order = (*order, *(v for v in self.orders[0] if self.instance.output[v]))

    def _first_order(self, settings: Anytime) -> tuple[int, ...]:
        """A good order if one is found quickly; on large graphs the plain order, since the search for a better one
        would take all the time."""
        plain = self.instance.order(False, restarts=0, seed=settings.seed)
        if monotonic() - self.began > QUICK_SHARE * settings.time_limit:
            return plain
        return self.instance.order(False, restarts=8, seed=settings.seed)

    def beside(self, number: int) -> AnytimeSearch:
        """The same search for another thread: the incumbent is shared, random choices and work memory are its own.

        The first one has the starts that may follow later.
        """
        other = copy(self)
        other.rng = np.random.default_rng([self.seed, number])
        other.evaluator = self.evaluator.beside()
        other.orders = [*self.orders]
        other.runners_up = []
        other.later = self.later if number == 1 else ()
        other.helped = False
        return other

    @property
    def best(self) -> Ints:
        """The incumbent's states."""
        return self.incumbent.valued.states

    @property
    def lower(self) -> float:
        """The incumbent's value."""
        return self.incumbent.valued.value

    @property
    def evaluated(self) -> bool:
        """Whether ``lower`` is exact."""
        return self.incumbent.valued.evaluated

    @property
    def upper(self) -> float:
        """An upper bound on the value of all outputs."""
        return self.incumbent.upper

    @property
    def proven(self) -> bool:
        return self.incumbent.proven

    @property
    def threshold(self) -> float:
        """A part of the output space whose bound is at most this has no outputs better than the incumbent."""
        return self.incumbent.valued.threshold

    @property
    def ended(self) -> bool:
        """Whether there is a proof, or no time for one."""
        return self.proven or self.out_of_time()

    def out_of_time(self, deadline: float = np.inf) -> bool:
        """Whether the search's deadline or the earlier ``deadline`` has passed, or the search is to stop."""
        return monotonic() >= min(deadline, self.deadline) or self.stopping.is_set()

    def run(self) -> SearchResult:
        interrupted = False
        try:
            self.portfolio.run(self._search)
        except KeyboardInterrupt:
            interrupted = True
        impossible = self.upper == -np.inf
        return SearchResult(
            states=np.where(self.instance.output, self.best, -1),
            value=self.lower,
            upper=max(self.upper, self.lower),
            evaluated=self.evaluated or impossible,
            proven=self.proven or impossible,
            interrupted=interrupted,
            seconds=monotonic() - self.began,
        )

    def _search(self) -> None:
        """All phases in their order; returns early at a proof or at the deadline."""
        if self.upper == -np.inf:
            return
        self.improve_upper(quick_bound(self.instance, self.eps_h))
        self.offer(self.support.greedy())
        self._search_layers()
        if self.proven:
            return
        possible = self.support.find(self.deadline)
        if possible is not None:
            self.offer(possible)
        if self.proven:
            return
        self.phase = "bound"
        relaxation = self._relaxation(max(2, self.entries >> FIRST_BOUND_SHIFT))
        self.improve_upper(relaxation.improve(0))
        if self.upper == -np.inf:
            return
        self._offer_decoded(relaxation)
        if self.evaluated:
            self.portfolio.start(ask=True)
        local_search = LocalSearch(self) if self.helped else self.find_outputs()
        if self.lower > -np.inf and not self.evaluated:
            self._tighten(self._relaxation(self.entries), self.deadline, LAST_ITERATIONS)
            return
        if self.ended:
            return
        if not self.helped:
            self.portfolio.start(ask=False)
        self._prove(relaxation, local_search)

    @property
    def _first_deadline(self) -> float:
        """The end of local search before bounds."""
        return self.began + FIRST_SHARE * (self.deadline - self.began)

    def find_outputs(self) -> LocalSearch:
        """Starts, then local search, which is returned; it has not run if outputs could not be evaluated.

        Messages know little of constraints: with constraints local search comes first.
        """
        constrained = self.evaluated and bool(self.support.hard.any())
        if not constrained:
            self._offer_starts()
        local_search = LocalSearch(self)
        if self.lower > -np.inf and not self.evaluated:
            return local_search
        local_search.run(self._first_deadline, max_kicks=3)
        if constrained:
            self._offer_starts()
        return local_search

    def _search_layers(self) -> None:
        """Search over layers, where the model has them; most plans are proven here."""
        deadline = self.began + LAYERS_SHARE * (self.deadline - self.began)
        layers = layers_of(self.instance, self.eps_h, deadline, self.memory_limit)
        if layers is not None:
            self.layered = LayeredSearch(self, layers)
            self.layered.run(deadline)

    def _prove(self, relaxation: Relaxation, local_search: LocalSearch) -> None:
        """Tighten the bound, then search the whole space: first one tree by this bound, then part by part.

        Where constraints leave few outputs, these are searched one by one, without any bound.
        """
        if self.layered is not None:
            self.alternate(self.layered, local_search, self.deadline)
        self._enumerate(local_search)
        if self.ended:
            return
        began = monotonic()
        self._tighten(relaxation, began + TIGHTEN_SHARE * (self.deadline - began), TIGHTEN_ITERATIONS)
        # A tree may take half as long as its bound did; the proof may take all that is left.
        tree_deadline = monotonic() + 0.5 * (monotonic() - began)
        if self.helped:  # a tree ends soon once the helpers have found the best outputs
            tree_deadline = max(tree_deadline, self._first_deadline)
        if not self.ended:
            self.alternate(BranchAndBound(self, relaxation), local_search, tree_deadline)
        if not (self.ended or self.helped):
            self.offer_later()
        if not self.ended:
            relaxation = self._widened(relaxation)
        if not self.ended:
            proof = Proof(self, relaxation)
            self.portfolio.share(proof)
            proof.run_with(local_search)

    def _enumerate(self, local_search: LocalSearch) -> None:
        """Enumerate the possible outputs if their number, which is an estimate, promises an end in time."""
        enumeration = Enumeration(self)
        if monotonic() + enumeration.expected_seconds() < self.deadline:
            self.alternate(enumeration, local_search, self.deadline)

    def _widened(self, relaxation: Relaxation) -> Relaxation:
        """The relaxation, optimised further, or one with larger tables whose bound is lower.

        The proof's mini-buckets get tables as large as those of the result.
        """
        deadline = monotonic() + ROOT_SHARE * (self.deadline - monotonic())
        self.phase = "tighten"
        least = relaxation.improve(ROOT_ITERATIONS, deadline, self.threshold, warm_start=True)
        self.improve_upper(least)
        took = np.inf
        for shift in ROOT_SHIFTS:
            began = monotonic()
            if self.proven or began >= deadline:
                break
            wider = self._relaxation(self.entries >> shift)
            bound = wider.improve(ROOT_ITERATIONS, deadline, self.threshold)
            self.improve_upper(bound)
            self._offer_decoded(wider)
            if bound < least:
                relaxation = wider
                least = bound
                self.proof_entries = self.entries >> shift
            took = monotonic() - began
        return self._widest(relaxation, least, took, deadline)

    def _widest(self, relaxation: Relaxation, least: float, took: float, deadline: float) -> Relaxation:
        """Mini-buckets beyond the usual size, as long as they can be optimised by the deadline.

        The time of each is estimated from that of the one before (``took``, in seconds), in proportion to their
        entries. Parts are bounded by the new ones only if they close much of the gap.
        """
        for shift in range(WIDER_STEP, self.widest + 1, WIDER_STEP):
            took *= 1 << WIDER_STEP
            if self.proven or monotonic() + took >= deadline:
                break
            wider = self._relaxation(self.entries << shift)
            if MINIMISER_BYTES * wider.program.n_work > self.memory_limit:
                break
            bound = wider.improve(ROOT_ITERATIONS, deadline, self.threshold)
            self.improve_upper(bound)
            self._offer_decoded(wider)
            if bound - self.threshold < WORTH_WIDER * (least - self.threshold):
                relaxation = wider
                least = bound
        return relaxation

    def _relaxation(self, entries: int) -> Relaxation:
        """Mini-buckets of at most ``entries`` per table; smaller ones if all tables together exceed the memory."""
        deadline = self.began + ORDER_SHARE * (self.deadline - self.began)
        while True:
            relaxation = best_relaxation(self.instance, entries, self.eps_h, self.rng, deadline)
            if 8 * 4 * relaxation.program.n_work <= self.memory_limit or entries <= 2:
                return relaxation
            entries >>= 1

    def _offer_starts(self) -> None:
        self.phase = "starts"
        for k, start in enumerate(self.starts.first):
            before = self.lower
            value, exact = self._offer_start(start)
            if k > 0 or value <= before - HELPFUL:
                continue
            if exact:
                self.later = self.starts.closer
            elif value <= before:
                self.later = self.starts.coarser
            else:
                any_exact = self._offer_similar(self.starts.coarser)
                self.later = () if any_exact else self.starts.again

    def _offer_similar(self, starts: tuple[Start, ...]) -> bool:
        """Starts like the first, for a share of the time; whether one was exact."""
        deadline = monotonic() + SIMILAR_SHARE * (self.deadline - self.began)
        any_exact = False
        for start in starts:
            if monotonic() >= deadline:
                break
            any_exact |= self._offer_start(start)[1]
        return any_exact

    def offer_later(self) -> None:
        """The starts that follow the first only where bounds stay far apart."""
        if self.upper - self.lower > FAR:
            self.phase = "starts"
            self._offer_similar(self.later)

    def _offer_start(self, start: Start) -> tuple[float, bool]:
        """Offer what a start suggests; its value, and whether it is exact. Nothing once time is up."""
        if self.ended:
            return -np.inf, False
        suggestion = start(min(self.deadline - monotonic(), START_SHARE * (self.deadline - self.began)))
        value = self._offer_suggestion(np.where(self.instance.clamped, self.instance.states, suggestion.states))
        return value, suggestion.exact

    def alternate(self, tree: Exhaustive, local_search: LocalSearch, deadline: float) -> None:
        """Slices of a tree or proof and of local search in turn, until one ends the search or time is up.

        Where other threads search locally, the tree has all of the time.
        """
        stale = 0
        while not (self.proven or tree.done or self.out_of_time(deadline)):
            before = self.lower
            near = self.upper - self.lower < NEAR
            began = monotonic()
            slices = min(1 + stale // 8, 4) if near else 1
            tree.run(began + slices * SLICE_SECONDS)
            if not (tree.done or self.helped):
                share = LOCAL_SHARE_NEAR / (1 + stale // 4) if near else LOCAL_SHARE_FAR / (1 + stale // 8)
                tree_seconds = monotonic() - began
                local_search.run(min(deadline, monotonic() + share * tree_seconds), max_kicks=PATIENCE)
            stale = 0 if self.lower > before else stale + 1

    def _tighten(self, relaxation: Relaxation, deadline: float, iterations: int) -> None:
        """Optimise the bound, and offer the outputs that it suggests."""
        self.phase = "tighten"
        self.improve_upper(relaxation.improve(iterations, min(deadline, self.deadline)))
        self._offer_decoded(relaxation)

    def _offer_decoded(self, relaxation: Relaxation) -> None:
        states = self.instance.states.copy()
        relaxation.decode(states)
        self._offer_suggestion(states)

    def _offer_suggestion(self, states: Ints) -> float:
        """Offer outputs that another method suggests, or possible ones like them; keep them as a start otherwise.

        Returns the value of what was offered.
        """
        value, evaluated = self.evaluate(states)
        if value == -np.inf:
            preferred = np.where(self.instance.output, states, -1)
            possible = self.support.find(min(self.deadline, monotonic() + SLICE_SECONDS), prefer=preferred)
            if possible is None:
                return value
            states = possible
            value, evaluated = self.evaluate(states)
        if not self.offer(states, value, evaluated) and evaluated:
            self.runners_up = [*self.runners_up[-MOST_RUNNERS_UP + 1 :], (value, states)]
        return value

    def offer(self, states: Ints, value: float | None = None, evaluated: bool = True) -> bool:
        """Make these outputs the incumbent if they are better than it, and say whether they are.

        ``value`` is the value of the outputs if the caller knows it; ``evaluated`` says that it is exact.
        """
        if value is None:
            value, evaluated = self.evaluate(states)
        return self.incumbent.offer(Valued(states.copy(), value, evaluated), self.phase)

    def evaluate(self, states: Ints) -> tuple[float, bool]:
        """The value of outputs and whether it is exact: in small tables if possible, else in larger ones."""
        if self.evaluator.exact:
            self.evaluator.load(states)
            return self.evaluator.improve(0), True
        possible = self.support.states_left(np.where(self.instance.output, states, -1))
        if possible is None:
            return -np.inf, True
        outputs_given = self.support.narrowed(possible)
        order = outputs_given.order(False, restarts=0)
        relaxation = Relaxation(outputs_given, order, self.wide_entries, 0.0, self.eps_h)
        return relaxation.improve(0), relaxation.exact

    def improve_upper(self, upper: float) -> None:
        """Lower the upper bound to ``upper``, but not below the estimate of outputs that were never evaluated."""
        self.incumbent.improve_upper(upper, self.phase)

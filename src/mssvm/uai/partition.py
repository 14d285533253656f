"""log Z and marginals within a time limit, with bounds from both sides (paper eq. 5 at eps_y = eps_h = 1).

A part is the set of assignments whose states are all in a mask ``left``; parts divide the space, so that their sums add
up to Z. A part that elimination can sum within the budget is summed exactly, with its marginals. Any other has an upper
bound by mini-buckets, and the one with the highest is split next, at the variable that the cliques of elimination gain
most from; arc consistency removes the states that each of its states rules out, so that fewer variables are left to
condition on. Once every part is summed, the answer is exact: this is conditioning, best part first.

With L the sum of the parts summed, L(v, s) that of their assignments with x_v = s, and R the bounds of the others,

    L  <=  Z  <=  L + R,        L(v, s) / (L + R)  <=  p(x_v = s)  <=  (L(v, s) + R) / (L + R).

Proof: Z = L + r and Z(v, s) = L(v, s) + r(s) with 0 <= r(s) <= r <= R. The quotient grows with r(s) and falls with
r - r(s), so it is least at r(s) = 0, r = R and greatest at r(s) = r = R (as L(v, s) <= L). An estimate
(L(v, s) + r p(s)) / (L + r) with any r in [0, R] and any distribution p is between these bounds for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from mssvm.core.arrays import Bools, Floats
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch
from mssvm.engines.base import ExactSettings
from mssvm.engines.elimination import compile_elimination
from mssvm.engines.native.elimination import EliminationPlanner, EliminationRoute
from mssvm.engines.program import Program
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.uai.quick_bound import quick_bound, quick_lower_bound
from mssvm.uai.support import Support

# Table entries that elimination visits in a second, at least; only used to choose budgets.
ENTRIES_A_SECOND = 3e7
# A part takes at most this share of the time that is left, unless all parts together fit into the time.
PART_SHARE = 0.02
# Bytes of elimination per entry of its cliques: scores, messages and their gradients.
BYTES_PER_ENTRY = 32
# Mini-buckets that are tried for bounds: their table size as a power of two, the iterations of L-BFGS, and the share of
# the time after which each must have ended.
ROOTS = ((10, 40, 0.1), (13, 80, 0.25), (16, 80, 0.4))
# Bounds of larger mini-buckets must be this much lower (nats) for parts to be bounded by them: they take longer.
WORTHWHILE = 0.1
# No search sums more than 2**MOST_BITS parts, so that larger numbers are not counted exactly.
MOST_BITS = 60.0
# Compiled eliminations are cached by the variables that they eliminate, in this share of the memory.
PROGRAMS_SHARE = 0.125
# exp of larger numbers overflows.
MOST_EXPONENT = 700.0
# Rounding errors of sums: bounds are widened by this share of their size.
ROUNDING = 1e-12


class SumProgress(NamedTuple):
    """Bounds on log Z and on the marginals of every state, and estimates between these bounds."""

    lower: float
    upper: float
    value: float
    marginals: Floats
    least: Floats
    most: Floats
    closed: bool


class OpenPart(NamedTuple):
    """A part that is still to be summed: its place in the queue (minus the bound, then a number), and its states."""

    priority: tuple[float, int]
    left: Bools

    @property
    def bound(self) -> float:
        return -self.priority[0]


@dataclass(frozen=True, eq=False)
class Cliques:
    """The cliques of an elimination order: which variables each holds, and the size of every variable in bits."""

    order: tuple[int, ...]
    members: csr_array
    bits: Floats

    @classmethod
    def of(cls, instance: OneInstance, order: tuple[int, ...]) -> Cliques:
        cards = instance.topology.cards
        near: list[set[int]] = [set() for _ in cards]
        waiting = set(order)
        for scope in instance.topology.scopes:
            free = waiting.intersection(scope)
            for v in free:
                near[v] |= free
        sizes = []
        columns: list[int] = []
        for v in order:
            clique = near[v] | {v}
            for u in clique - {v}:
                near[u] |= clique
                near[u].discard(v)
            sizes.append(len(clique))
            columns += clique
        pointers = np.append(0, np.cumsum(np.array(sizes, dtype=np.int64)))
        held = csr_array((np.ones(len(columns)), columns, pointers), shape=(len(order), len(cards)))
        return cls(order, held, np.log2(np.array(cards, dtype=np.float64)))

    def entries(self, free: Bools) -> Floats:
        """Table entries of each clique when only the variables ``free`` are eliminated."""
        bits: Floats = self.members @ (self.bits * free)
        return np.where(free[list(self.order)], np.exp2(bits), 0.0)

    def worst(self, free: Bools, entries: Floats) -> int:
        """The free variable whose states would divide the largest share of the entries."""
        shares = (self.members.T @ entries) * (1.0 - np.exp2(-self.bits))
        return int(np.where(free, shares, -1.0).argmax())

    def parts(self, free: Bools, budget: float) -> float:
        """The number of parts that conditioning makes until each fits the budget, if no state is ruled out.

        Numbers above 2**MOST_BITS are not counted to the end.
        """
        free = free.copy()
        bits = 0.0
        while free.any() and bits < MOST_BITS:
            entries = self.entries(free)
            if entries.sum() <= budget:
                break
            v = self.worst(free, entries)
            bits += float(self.bits[v])
            free[v] = False
        return float(np.exp2(bits))


class Partition:
    """A search that encloses log Z of one instance; ``belief`` is an estimate for the parts that are not summed.

    ``lower`` is a lower bound that the caller knows; ``marginals`` says whether they are computed. ``report`` is called
    at the beginning and whenever one of the bounds improves.
    """

    def __init__(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        belief: Belief,
        memory_limit: int,
        deadline: float,
        seed: int = 0,
        lower: float = -np.inf,
        marginals: bool = True,
        report: Callable[[SumProgress], None] | None = None,
    ) -> None:
        self.batch = batch
        self.theta = theta
        self.roles = Query.all_outputs(batch).output
        self.belief = belief
        self.memory_limit = memory_limit
        self.deadline = deadline
        self.marginals = marginals
        self.report = report
        self.began = monotonic()
        self.support = Support(OneInstance.of(batch, 0, theta, Query(self.roles, query.allowed)))
        self.seed = seed
        self.waiting: list[OpenPart] = []
        self.divided = False  # whether ``waiting`` and the parts summed are the whole space
        self.numbers = count()
        everything_hidden = OneInstance.of(batch, 0, theta, Query(~self.roles, query.allowed))
        self.lower = max(lower, quick_lower_bound(everything_hidden))
        self.upper = quick_bound(everything_hidden, 1.0)
        # The parts summed: their logarithm, and their states' shares of it.
        self.summed = -np.inf
        self.shares = np.zeros(batch.n_states)
        self.relaxation: Relaxation | None = None
        self.programs: dict[bytes, Program] = {}
        self.program_bytes = 0
        self.planner = EliminationPlanner(batch, ExactSettings(memory_limit), Workers(1), log_space=False)

    @property
    def done(self) -> bool:
        """Whether every part is summed."""
        return self.divided and not self.waiting

    @property
    def out_of_time(self) -> bool:
        return monotonic() >= self.deadline

    def run(self) -> SumProgress:
        """Search until every part is summed or time is up."""
        left = self.support.states_left()
        if left is None:
            self.upper = -np.inf
            self.divided = True
            return self.progress()
        self.possible = left
        self._report()
        instance = self.support.narrowed(left)
        self.cliques = Cliques.of(instance, instance.order(True, restarts=8, seed=self.seed))
        self.budget = self._budget(self._free(left))
        if self.cliques.entries(self._free(left)).sum() > self.budget:
            self._bound(instance)
        else:
            self.relaxation = Relaxation(instance, (), 2, 1.0, 1.0)
        if self.upper > -np.inf:
            self.waiting.append(self._part(self.upper, left))
        self.divided = True
        while self.waiting and not self.out_of_time:
            began = monotonic()
            self._advance(to_the_end=True)
            until = 2.0 * monotonic() - began  # as long again, part by part, to lower the upper bound
            while self.waiting and monotonic() < min(until, self.deadline):
                self._advance(to_the_end=False)
        return self.progress()

    def progress(self) -> SumProgress:
        """Bounds and estimates as they are now."""
        if self.done:
            return SumProgress(self.summed, self.summed, self.summed, self.shares, self.shares, self.shares, True)
        estimate = float(np.clip(self.belief.value[0], self.lower, self.upper))
        rest = np.inf
        marginals = self.belief.mu.unary
        least = np.zeros(len(self.shares))
        most = np.ones(len(self.shares))
        if self.summed > -np.inf:
            # In units of the parts summed: Z is 1 + extra by the estimate, and 1 + rest at most.
            rest = max(float(np.expm1(min(self.upper - self.summed, MOST_EXPONENT))), 0.0)
            extra = min(max(float(np.expm1(min(estimate - self.summed, MOST_EXPONENT))), 0.0), rest)
            marginals = (self.shares + extra * marginals) / (1.0 + extra)
            least = np.maximum(self.shares / (1.0 + rest) - ROUNDING, 0.0)
            most = np.minimum((self.shares + rest) / (1.0 + rest) + ROUNDING, 1.0)
        single = np.repeat(~self._free(self.possible), np.diff(self.batch.unary_ptr))
        least = np.where(single & self.possible, 1.0, least)
        most = np.where(self.possible, most, 0.0)
        return SumProgress(self.lower, self.upper, estimate, marginals, least, most, False)

    def _free(self, left: Bools) -> Bools:
        """The variables with several states left."""
        several: Bools = np.add.reduceat(left, self.batch.unary_ptr[:-1], dtype=np.int64) > 1
        return several

    def _budget(self, free: Bools) -> float:
        """Clique entries of a part that is summed: as many as memory allows, if all parts can then be summed in time.

        Otherwise fewer, so that parts take a small share of the time each.
        """
        seconds = max(self.deadline - monotonic(), 0.0)
        most = self.memory_limit / BYTES_PER_ENTRY
        if self.cliques.parts(free, most) * most <= ENTRIES_A_SECOND * seconds:
            return most
        return min(most, max(ENTRIES_A_SECOND * PART_SHARE * seconds, 1024.0))

    def _bound(self, instance: OneInstance) -> None:
        """Mini-buckets of several sizes, optimised; parts are bounded by those with the lowest bound."""
        seconds = self.deadline - self.began
        least = np.inf
        for bits, iterations, share in ROOTS:
            relaxation = Relaxation(instance, self.cliques.order, 1 << bits, 1.0, 1.0)
            if self.relaxation is not None and 32 * relaxation.program.n_work > self.memory_limit:
                break
            bound = relaxation.improve(iterations, self.began + share * seconds)
            self._improve_upper(bound)
            if bound < least - WORTHWHILE:
                self.relaxation = relaxation
                least = bound
            if monotonic() >= self.began + share * seconds:
                break

    def _part(self, bound: float, left: Bools) -> OpenPart:
        return OpenPart((-bound, next(self.numbers)), left)

    def _advance(self, to_the_end: bool) -> None:
        """Sum the most promising part if it is within the budget, otherwise split it.

        With ``to_the_end`` its most promising child is treated likewise, and so on until a part is summed.
        """
        part: OpenPart | None = heappop(self.waiting)
        while part is not None:
            free = self._free(part.left)
            entries = self.cliques.entries(free)
            if entries.sum() <= self.budget:
                self._sum(part.left, free)
                break
            children = self._children(part, self.cliques.worst(free, entries))
            for child in children:
                heappush(self.waiting, child)
            self._update_bounds()
            part = None
            if children and to_the_end and not self.out_of_time:
                part = min(children)
                self.waiting.remove(part)
                heapify(self.waiting)
        self._update_bounds()

    def _children(self, part: OpenPart, v: int) -> list[OpenPart]:
        """The parts in which v has one of its states, but for those that are certainly impossible."""
        first, end = self.batch.unary_ptr[v : v + 2]
        relaxation = self.relaxation
        assert relaxation is not None
        children = []
        for state in np.flatnonzero(part.left[first:end]):
            within = part.left.copy()
            within[first:end] = False
            within[first + state] = True
            left = self.support.states_left(within=within)
            if left is None:
                continue
            relaxation.instance = self.support.narrowed(left)
            relaxation.load(relaxation.instance.states)
            bound = min(part.bound, relaxation.run())
            if bound > -np.inf:
                children.append(self._part(bound, left))
        return children

    def _sum(self, left: Bools, free: Bools) -> None:
        """Add a part to those summed, by elimination of its free variables."""
        one = np.zeros(1, dtype=np.int64)
        jobs = [(self._program(free), one)]
        query = Query(self.roles, left)
        route = EliminationRoute(self.planner, query, (1.0, 1.0), one, jobs, self.planner.workers, self.marginals)
        value = np.full(1, -np.inf)
        mu = Marginals.zeros(self.batch)
        route.infer_into(self.theta, value, mu)
        if value[0] == -np.inf:
            return
        total = float(np.logaddexp(self.summed, value[0]))
        self.shares *= np.exp(self.summed - total)
        self.shares += np.exp(value[0] - total) * mu.unary
        self.summed = total

    def _program(self, free: Bools) -> Program:
        """The elimination of the variables ``free``."""
        key = free.tobytes()
        program = self.programs.get(key)
        if program is None:
            order = [v for v in self.cliques.order if free[v]]
            program = compile_elimination(self.batch.topology(0), order, self.roles)
            self.program_bytes += sum(array.nbytes for array in program if isinstance(array, np.ndarray))
            if self.program_bytes > PROGRAMS_SHARE * self.memory_limit:
                self.programs.clear()
                self.program_bytes = 0
            else:
                self.programs[key] = program
        return program

    def _update_bounds(self) -> None:
        """Update the bounds on log Z from those of all parts."""
        lower = self.summed
        if lower - ROUNDING * (1.0 + abs(lower)) > self.lower:
            self.lower = lower - ROUNDING * (1.0 + abs(lower))
            self._report()
        waiting = np.array([part.bound for part in self.waiting])
        self._improve_upper(float(np.logaddexp.reduce(np.append(waiting, self.summed))))

    def _improve_upper(self, bound: float) -> None:
        """Lower the upper bound to this one, if it is lower."""
        bound += ROUNDING * (1.0 + abs(bound))
        if bound < self.upper:
            self.upper = bound
            self._report()

    def _report(self) -> None:
        if self.report is not None:
            self.report(self.progress())

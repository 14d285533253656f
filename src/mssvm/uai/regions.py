"""Local search over regions of outputs, exact inside each: max_y PS_h[eps_h] theta (paper eq. 5), in ``cpp/walk.cpp``.

A region is a few outputs near each other; all others are held at their states. Arc consistency removes the states that
these rule out; the rest of the region, with the hidden variables it reaches, is eliminated in small tables: hidden
variables are summed, then the outputs maximised. Only the factors that the region touches are evaluated again,
thousands of regions a second. The gain of new outputs is a difference of the functions without hidden variables.

Gumbel noise on the outputs' scores, times a temperature, turns the best outputs of a region into random good ones. With
cycles of cooling the walk leaves local optima, and its outputs always have positive probability.

Functions are scaled probabilities; callers evaluate the outputs that are returned in log space.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, MASK, Function, RecordKind
from mssvm.uai.support import WIRING, Support

# A region has between LARGEST**LEAST_POWER and LARGEST outputs, and its tables have at most ENTRIES entries.
LARGEST = 400.0
LEAST_POWER = 0.4
ENTRIES = 1 << 12
# Temperatures from which a cycle cools down, one of them at random; regions in the first cycle, the growth of cycles
# from one to the next, and their greatest length.
HEATS = (0.15, 0.3, 0.6)
FIRST = 300
GROWTH = 1.3
MOST_REGIONS = 20_000
# Regions of a short cycle, and the temperature from which it cools down.
SHORT = 300
SHORT_HEAT = 0.1
DRAWS = 64  # random numbers of one region
WALK = Function(
    "mssvm_regions_walk",
    wiring=RecordKind(WIRING),
    hard=MASK,
    scores=FLOATS,
    prob=FLOATS,
    possible=MASK,
    free=MASK,
    states=INTS,
    draws=FLOATS,
    columns=INT,
    hot=FLOAT,
    cold=FLOAT,
    most_entries=FLOAT,
    most_outputs=FLOAT,
    least_power=FLOAT,
    eps=FLOAT,
    progress=FLOATS,
    best=INTS,
)


class Walk:
    """A walk from region to region, in cycles of cooling; ``states`` are possible outputs, whose value is ``value``."""

    def __init__(self, support: Support, eps_h: float, seed: int) -> None:
        instance = support.instance
        self.support = support
        self.eps_h = eps_h
        self.rng = np.random.default_rng(seed)
        # Unary scores and tables are one vector, in which the tables come second.
        self.wiring = replace(support.wiring, table_at=support.wiring.table_at + len(instance.unary))
        self.scores = np.concatenate([instance.unary, instance.tables])
        self.prob = np.exp(self.scores / (eps_h or 1.0))
        self.free = instance.output & ~instance.clamped
        self.longest = FIRST  # regions of the next long cycle
        self.is_short = False
        self.length = FIRST  # regions of the present cycle
        self.done = 0
        self.heat = 0.0
        self.rate = 0.0

    def restart(self, states: Ints, value: float) -> None:
        """Continue from these outputs, which have this value."""
        self.states = states.copy()
        self.value = value

    def begin(self, short: bool) -> None:
        """Begin a short cycle, or a long one, longer than the last."""
        self.done = 0
        self.is_short = short
        self.length = SHORT if short else self.longest
        self.heat = SHORT_HEAT if short else float(self.rng.choice(HEATS))
        if not short:
            self.longest = min(int(GROWTH * self.longest), MOST_REGIONS)

    def changed(self, states: Ints) -> Ints | None:
        """Possible outputs of which a random one differs from ``states``, and no more of the others than need be."""
        unary_ptr = self.support.wiring.unary_ptr
        v = self.rng.choice(np.flatnonzero(self.free))
        within = self.support.instance.unary > -np.inf
        others = np.arange(unary_ptr[v], unary_ptr[v + 1])
        others = others[within[others] & (others != unary_ptr[v] + states[v])]
        within[unary_ptr[v] : unary_ptr[v + 1]] = False
        within[self.rng.choice(others)] = True
        prefer = np.where(self.support.instance.output, states, -1)
        return self.support.find(monotonic(), prefer=prefer, within=within)

    def run(self, seconds: float, lower: float) -> tuple[bool, Ints | None]:
        """Walk for about this many seconds, or to the end of the cycle.

        Returns whether the cycle ended, and outputs of a value above ``lower`` if there were any.
        """
        if self.done == self.length or not self.heat:
            self.begin(short=False)
        began = monotonic()
        n = min(max(20, int(self.rate * seconds)), self.length - self.done)
        hot = self.heat * (1.0 - self.done / self.length)
        cold = self.heat * (1.0 - (self.done + n) / self.length)
        progress = np.array([self.value, lower])
        best = self.states.copy()
        self.value = self.call(self.rng.random((n, DRAWS)), self.states, progress, best, hot, cold)
        self.rate = n / max(monotonic() - began, 1e-6)
        self.done += n
        ended = self.done >= self.length
        better = best if progress[1] > lower else None
        return ended, better

    def call(self, draws: Floats, states: Ints, progress: Floats, best: Ints, hot: float, cold: float) -> float:
        """A region for every row of ``draws``, with noise from ``hot`` to ``cold``, and the value that is reached.

        Three arrays are changed in place: ``states``; ``progress``, which has their value and the best value so far;
        and ``best``, the states of the best value if this call raised it.
        """
        WALK(
            wiring=self.wiring.record,
            hard=self.support.hard,
            scores=self.scores,
            prob=self.prob,
            possible=self.support.instance.unary > -np.inf,
            free=self.free,
            states=states,
            draws=draws,
            columns=DRAWS,
            hot=hot,
            cold=cold,
            most_entries=ENTRIES,
            most_outputs=min(LARGEST, float(self.free.sum())),
            least_power=LEAST_POWER,
            eps=self.eps_h,
            progress=progress,
            best=best,
        )
        return float(progress[0])

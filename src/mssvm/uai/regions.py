"""Local search over regions of outputs, exact inside each: max_y PS_h[eps_h] theta (paper eq. 5), all of it compiled.

A region is a few outputs near each other; all others are held at their states. Arc consistency removes what that rules
out, and what is left of the region, with the hidden variables it reaches, is eliminated in small tables: hidden ones
summed, then the outputs maximised. Only what the region touches is evaluated again, thousands of regions a second; the
difference that new outputs make is that of the functions which are left when the hidden variables are gone.

Noise on the outputs' scores (Gumbel's, times a temperature) turns the best outputs of a region into random good ones:
cooled down again and again, the walk leaves local optima without ever leaving what is possible.

Functions are scaled probabilities. What is found is a suggestion: callers evaluate it in log space.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, MASK, Function, RecordKind
from mssvm.uai.support import WIRING, Support

# Regions have up to so many outputs, at least this power of them, in tables of so many entries.
LARGEST, LEAST_POWER, ENTRIES = 400.0, 0.4, 1 << 12
# Temperatures from which a cycle cools down, one of them at random; regions of the first, and how cycles grow.
HEATS, FIRST, GROWTH = (0.15, 0.3, 0.6), 300, 1.3
MOST_REGIONS = 20_000
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
        i = support.instance
        self.support, self.eps_h, self.rng = support, eps_h, np.random.default_rng(seed)
        # Unary scores and tables in one vector, where the factors' tables then begin later.
        self.wiring = replace(support.wiring, table_at=support.wiring.table_at + len(i.unary))
        self.scores = np.concatenate([i.unary, i.tables])
        self.prob = np.exp(self.scores / (eps_h or 1.0))
        self.free = i.output & ~i.clamped
        self.length, self.done, self.heat, self.rate = FIRST, 0, 0.0, 0.0

    def restart(self, states: Ints, value: float) -> None:
        """Go on from these outputs, whose value is known."""
        self.states, self.value = states.copy(), value

    def run(self, seconds: float, lower: float) -> tuple[bool, Ints | None]:
        """Walk for about so long, or to the end of a cycle: whether that is reached, and outputs better than ``lower``
        if there were some."""
        if self.done == 0:
            self.heat = float(self.rng.choice(HEATS))
        began, n = monotonic(), min(max(20, int(self.rate * seconds)), self.length - self.done)
        hot, cold = (self.heat * (1.0 - done / self.length) for done in (self.done, self.done + n))
        progress, best = np.array([self.value, lower]), self.states.copy()
        WALK(
            wiring=self.wiring.record,
            hard=self.support.hard,
            scores=self.scores,
            prob=self.prob,
            possible=self.support.instance.unary > -np.inf,
            free=self.free,
            states=self.states,
            draws=self.rng.random((n, DRAWS)),
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
        self.rate, self.value = n / max(monotonic() - began, 1e-6), float(progress[0])
        self.done += n
        ended = self.done >= self.length
        if ended:
            self.length, self.done = min(int(GROWTH * self.length), MOST_REGIONS), 0
        return ended, best if progress[1] > lower else None

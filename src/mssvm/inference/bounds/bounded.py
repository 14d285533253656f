"""Certificates for any inference: [lower, upper] around the true nested power sum (paper eq. 5), in its ``Status``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.inference.base import Inference
from mssvm.inference.bounds.conditioning import ConditionedElimination
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.bounds.upper import MiniBucket, UpperBound


@dataclass(frozen=True)
class Bounded:
    """An inference whose calls take ``bound=True``: instances that are not exact then get bounds [lower, upper].

    The lower bound holds variables at the belief's most probable states until all others can be eliminated exactly in
    tables of ``2**ibound`` entries; the upper bound is ``upper``'s. ``seed`` is that of elimination orders.

    >>> ms.CRF(ms.Chain(), inference=ms.inference.Bounded(ms.inference.Exact())).fit(X, y).score(X, y)
    1.0
    """

    inference: Inference
    upper: UpperBound = field(default_factory=MiniBucket)
    ibound: int = 14
    seed: int = 0

    def __call__(
        self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float, bound: bool = False
    ) -> Belief:
        belief = self.inference(batch, theta, query, eps_y, eps_h)
        if not bound or belief.status.exact.all():
            return belief
        exact = belief.status.exact
        lower = np.where(exact, belief.value, self.lower(batch, theta, query, eps_y, eps_h, belief))
        upper = np.where(exact, belief.value, self.upper(batch, theta, query, eps_y, eps_h))
        return replace(belief, status=replace(belief.status, lower=lower, upper=upper))

    def lower(
        self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float, belief: Belief
    ) -> Floats:
        """Lower bounds by conditioning on the belief's decoded states."""
        states = belief.decode(batch)
        out = np.empty(len(batch))
        for b in range(len(batch)):
            instance = OneInstance.of(batch, b, theta, query)
            decoded = states[batch.var_ptr[b] : batch.var_ptr[b + 1]]
            held_states = np.where(instance.clamped, instance.states, decoded)
            order = instance.order(eps_y == eps_h, seed=self.seed)
            holdable = sum(1 << v for v in order)
            conditioned = ConditionedElimination(instance, order, 1 << self.ibound, holdable, eps_y, eps_h)
            held = conditioned.hold(np.random.default_rng(self.seed))
            # Every variable may be held, and holding all of them leaves nothing to eliminate.
            assert held is not None
            out[b] = conditioned.relax(held, held_states).run()
        return out

"""What inference is to the rest of the library: settings that plan how questions about a batch are answered.

plan = Planner(inference, engine)(batch)     once for a batch
bound = plan.bind(query, eps_y, eps_h)       once for a query and a pair of temperatures
belief = bound(theta)                        as often as there are potentials
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, spread
from mssvm.engines.base import Bound, Engine, Pair, Plan, TwoCalls


class Inference(Protocol):
    """Callable computing PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta for every instance of a batch."""

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief: ...


@dataclass(frozen=True, eq=False)
class Planner:
    """An inference on an engine: what objectives and predictions plan their batches with."""

    inference: Inference
    engine: Engine

    def __call__(self, batch: Batch) -> Plan:
        """The plan of a batch; an inference without a method ``plan`` is called anew with every potentials."""
        plan: Callable[[Batch, Engine], Plan] | None = getattr(self.inference, "plan", None)
        return CalledAnew(self.inference, batch) if plan is None else plan(batch, self.engine)


@dataclass(frozen=True, eq=False)
class CalledAnew:
    """The plan of an inference that resolves everything in every call."""

    inference: Inference
    batch: Batch

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Bound:
        def bound(theta: Potentials) -> Belief:
            return self.inference(self.batch, theta, query, eps_y, eps_h)

        return bound if instances is None else partial(_only, bound, self.batch, instances)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))


def _only(bound: Bound, batch: Batch, instances: Ints, theta: Potentials) -> Belief:
    """A belief with everything zero outside the named instances."""
    belief, mine = bound(theta), spread(instances, len(batch))
    weights = mine.astype(np.float64)
    return replace(belief, value=np.where(mine, belief.value, 0.0), mu=belief.mu.scaled(batch, weights))

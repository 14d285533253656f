"""The interface of inference: settings that plan how queries about a batch are answered.

    plan = Planner(inference, engine)(batch)     once for a batch
    bound_query = plan.bind(query, eps_y, eps_h) once for a query and a pair of temperatures
    belief = bound_query(theta)                  as often as there are potentials

``Inference`` is the protocol, ``exact`` and ``auto`` are the settings most users need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mssvm._moved import moved_name
from mssvm.core.arrays import Ints
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, mask_from_indices
from mssvm.engines.base import BoundQuery, Engine, Pair, Plan, TwoCalls


class Inference(Protocol):
    """Callable computing PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta for every instance of a batch."""

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief: ...


@dataclass(frozen=True, eq=False)
class Planner:
    """An inference on an engine: what objectives and predictions plan their batches with."""

    inference: Inference
    engine: Engine

    def __call__(self, batch: Batch) -> Plan:
        """The plan of a batch; an inference without a method ``plan`` resolves everything in every call."""
        plan: Callable[[Batch, Engine], Plan] | None = getattr(self.inference, "plan", None)
        if plan is None:
            return UnplannedInference(self.inference, batch)
        return plan(batch, self.engine)


@dataclass(frozen=True, eq=False)
class UnplannedInference:
    """The plan of an inference that resolves everything in every call."""

    inference: Inference
    batch: Batch

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> BoundQuery:
        def all_instances(theta: Potentials) -> Belief:
            return self.inference(self.batch, theta, query, eps_y, eps_h)

        if instances is None:
            return all_instances
        mask = mask_from_indices(instances, len(self.batch))

        def named_instances(theta: Potentials) -> Belief:
            belief = all_instances(theta)
            mu = belief.mu.scaled(self.batch, mask.astype(np.float64))
            return replace(belief, value=np.where(mask, belief.value, 0.0), mu=mu)

        return named_instances

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))


def __getattr__(name: str) -> Any:
    """``Exact`` and ``Auto`` have modules of their own."""
    return moved_name(__name__, name)

"""What inference is to the rest of the library: settings that plan how questions about a batch are answered.

    plan = plan_of(inference, batch, engine)     once for a batch
    bound = plan.bind(query, eps_y, eps_h)       once for a query and a pair of temperatures
    belief = bound(theta)                        as often as there are potentials
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines.base import Bound, Engine, Pair, Plan, TwoCalls

Planner = Callable[[Batch], Plan]
"""An inference on an engine: what objectives and predictions plan their batches with."""


class Inference(Protocol):
    """Callable computing PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta for every instance of a batch."""

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief: ...


def plan_of(inference: Inference, batch: Batch, engine: Engine | None = None) -> Plan:
    """The plan of an inference on a batch; one without a method ``plan`` is called anew with every potentials."""
    plan: Callable[[Batch, Engine | None], Plan] | None = getattr(inference, "plan", None)
    return CalledAnew(inference, batch) if plan is None else plan(batch, engine)


@dataclass(frozen=True, eq=False)
class CalledAnew:
    """The plan of an inference that resolves everything in every call."""

    inference: Inference
    batch: Batch

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Bound:
        return lambda theta: self.inference(self.batch, theta, query, eps_y, eps_h)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))


class Contrast(Protocol):
    """A method that some inferences have: a value, the value under a narrower mask and the difference of the gradients
    in one pass; None where only two calls can give them."""

    def __call__(
        self, batch: Batch, theta: Potentials, query: Query, given: Query, eps_y: float, eps_h: float
    ) -> tuple[Floats, Floats, Marginals] | None: ...


class Filler(Protocol):
    """An exact method that handles some instances of a batch and writes its results in place."""

    def fill(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        eps_y: float,
        eps_h: float,
        which: Ints,
        value: Floats,
        mu: Marginals | None,
    ) -> None: ...

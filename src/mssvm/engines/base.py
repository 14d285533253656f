"""What an engine is: the one door between inference and compiled code (CPU, GPU, or plain NumPy).

    engine.exact(batch)     -> Plan          exact nested power sums (paper eq. 5) on any graph
    engine.messages(batch)  -> MessagePlan   belief propagation: what a search over starts needs (``engines.messages``)
    plan.bind(query, eps_y, eps_h) -> Bound  routes, orders, masks, kernels and scratch are resolved here, once
    bound(theta)            -> Belief        run many times

Plan once, bind once, run many: nothing is looked up by identity, whoever calls often holds its bounds. How a batch is
run (lanes, sub-blocks, threads) is the engine's own business and never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.engines.messages import MessagePlan

T = TypeVar("T")


class Bound(Protocol):
    """Inference with everything but the potentials resolved."""

    def __call__(self, theta: Potentials) -> Belief:
        """PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta of every instance, its gradient, and what is known about it.

        A bound of some instances leaves the others at value 0, marginals 0 and ``Status.nothing``.
        """
        ...


@dataclass(frozen=True, eq=False)
class Paired:
    """Values under a query and under a narrower one, and the difference of their gradients, plus - minus."""

    plus: Floats
    minus: Floats
    mu: Marginals
    plus_status: Status
    minus_status: Status


class Pair(Protocol):
    """Paired inference: a query and a narrower one (U+ and U-) in one call, sharing work where they can."""

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired: ...


class Plan(Protocol):
    """Inference on one batch, before roles, masks and temperatures are known."""

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Bound:
        """Resolve a query at a pair of temperatures, for some instances (default all)."""
        ...

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        """Resolve two queries that are always asked together."""
        ...


@dataclass(frozen=True, eq=False)
class Costs:
    """What exact inference would take, per instance: induced width, bytes of workspace, table entries visited."""

    width: Ints
    bytes: Floats
    operations: Floats


class ExactPlan(Plan, Protocol):
    """Exact inference on one batch; ``costs`` is known before anything is allocated."""

    def costs(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Costs: ...


@runtime_checkable
class Engine(Protocol):
    """A way to run inference. ``name`` is what estimators call it, ``threads`` how many it may use."""

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    def exact(self, batch: Batch, memory_limit: int) -> ExactPlan: ...

    def messages(self, batch: Batch) -> MessagePlan: ...

    def each(self, function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        """``function`` of every row of ``columns``, on this engine's threads; results in order."""
        ...


@dataclass(frozen=True, eq=False)
class TwoCalls:
    """Paired inference as two bounds, one after the other."""

    plus: Bound
    minus: Bound

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        minus, plus = self.minus(theta_minus), self.plus(theta_plus)
        return Paired(plus.value, minus.value, plus.mu - minus.mu, plus.status, minus.status)


def spread(instances: Ints | None, n: int) -> Bools:
    """Instances as a mask over all ``n`` of a batch (None: all)."""
    if instances is None:
        return np.ones(n, dtype=bool)
    out = np.zeros(n, dtype=bool)
    out[instances] = True
    return out

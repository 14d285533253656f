"""What inference is to the rest of the library: settings that plan how questions about a batch are answered.

    plan = Planner(inference, engine)(batch)     once for a batch
    bound = plan.bind(query, eps_y, eps_h)       once for a query and a pair of temperatures
    belief = bound(theta)                        as often as there are potentials

``Exact`` answers on any graph, or refuses before anything is allocated; ``Auto`` is exact where that fits and
propagates elsewhere, decided per instance, and says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch, spread
from mssvm.engines import engine_of
from mssvm.engines.base import METHODS, Bound, Engine, ExactPlan, ExactSettings, Pair, Plan, TwoCalls

if TYPE_CHECKING:
    from mssvm.inference.decomposition.plan import DecompositionPlan

WIDE = ("propagate", "decompose")  # what answers where exact inference does not fit


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


@dataclass(frozen=True)
class Exact(Settings):
    """PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta without approximation, or a MemoryLimitError before allocating.

    Parameters
    ----------
    memory_limit : bytes of workspace that an instance may need.
    threads : threads of the engine where none is given; results do not depend on it.
    restarts, seed : of the search for elimination orders.
    methods : those that an engine may choose from, cheapest first; without "side by side" every instance is computed
        alone, more slowly, and its result does not depend on the last bits of anything else in the batch.

    >>> ms.HCRF(ms.Chain(hidden=2), inference=ms.inference.Exact(), random_state=0).fit(X, y).training_["exact"]
    True
    """

    memory_limit: int = 4 << 30
    threads: int = 1
    restarts: int = 8
    seed: int = 0
    methods: tuple[str, ...] = METHODS

    def plan(self, batch: Batch, engine: Engine | None = None) -> ExactPlan:
        settings = ExactSettings(self.memory_limit, self.restarts, self.seed, tuple(self.methods))
        return (engine or engine_of("auto", self.threads)).exact(batch, settings)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        return self.plan(batch).bind(query, eps_y, eps_h)(theta)


@dataclass(frozen=True)
class Auto(Settings):
    """``Exact`` for instances whose elimination fits the limits, ``Propagate`` or ``Decompose`` for the others;
    ``Status.method`` tells.

    Parameters
    ----------
    memory_limit : bytes of workspace that exact inference may use on an instance.
    operations_limit : table entries that exact inference may visit in a call on an instance.
    effort : of propagation: "fast", "normal", "careful" or a number.
    wide : what answers where exact inference does not fit: "propagate" (belief propagation) or "decompose" (a
        convergent upper bound, on graphs whose factors join two variables; belief propagation on others).
    threads : threads of the engine where none is given; results do not depend on it.
    seed : of propagation.

    >>> ms.HCRF(ms.Chain(), inference=ms.inference.Auto(operations_limit=1e6)).fit(X, y).score(X, y)
    1.0
    """

    memory_limit: int = 1 << 30
    operations_limit: float = 2e8
    effort: int | str = "normal"
    threads: int = 1
    seed: int = 0
    wide: str = "propagate"

    def __post_init__(self) -> None:
        if self.wide not in WIDE:
            raise InputError(f"wide is {self.wide!r}; it must be one of {', '.join(map(repr, WIDE))}.")

    def converges(self, batch: Batch) -> bool:
        """Whether small changes of weights change all values little, so that L-BFGS can minimise them."""
        return self.wide == "decompose" and bool(batch.pairwise.all())

    def plan(self, batch: Batch, engine: Engine | None = None) -> AutoPlan:
        engine = engine or engine_of("auto", self.threads)
        settings = ExactSettings(self.memory_limit, operations_limit=self.operations_limit)
        return AutoPlan(self, batch, engine, engine.exact(batch, settings))

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        return self.plan(batch).bind(query, eps_y, eps_h)(theta)


@dataclass(frozen=True, eq=False)
class AutoPlan:
    """Both plans of a batch; propagation's is made when an instance needs it."""

    settings: Auto
    batch: Batch
    engine: Engine
    exact: ExactPlan

    def fits(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is exact inference within the limits?"""
        costs, limits = self.exact.costs(query, eps_y, eps_h), self.settings
        return (costs.bytes <= limits.memory_limit) & (costs.operations <= limits.operations_limit)

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Bound:
        query.check(self.batch)
        return self._bound(query, eps_y, eps_h, self.fits(query, eps_y, eps_h), instances)

    def _bound(
        self, query: Query, eps_y: float, eps_h: float, fits: Bools, instances: Ints | None = None, side: str = ""
    ) -> Bound:
        """Each instance by its method; ``side`` names the query in training, which goes on from earlier messages."""
        asked = spread(instances, len(self.batch))
        exact, others = np.flatnonzero(asked & fits), np.flatnonzero(asked & ~fits)
        if not len(others):
            return self.exact.bind(query, eps_y, eps_h, instances)
        chains = np.zeros(len(self.batch), dtype=bool)
        if self.settings.wide == "decompose":
            chains = self.batch.pairwise & asked & ~fits
        bounded, others = np.flatnonzero(chains), np.flatnonzero(asked & ~fits & ~chains)
        parts = list[tuple[Bools, Bound]]()
        if len(exact):
            parts.append((fits, self.exact.bind(query, eps_y, eps_h, exact)))
        if len(bounded):
            parts.append((chains, self._decomposition.bound(query, eps_y, eps_h, bounded, side)))
        if len(others):
            parts.append((asked & ~fits & ~chains, self._propagation.bind(query, eps_y, eps_h, others)))
        bound = parts[0][1]
        for mine, part in parts[1:]:
            bound = Merged(~mine, bound, part)
        return bound

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        fits, narrower_fits = self.fits(query, eps_y, eps_h), self.fits(narrower, eps_y, eps_h)
        if fits.all() and narrower_fits.all():
            return self.exact.pair(query, narrower, eps_y, eps_h)
        query.check(self.batch)
        narrower.check(self.batch)
        if self.settings.wide == "decompose":  # the difference of two bounds; forests are exact there too
            narrower_fits = narrower_fits & fits
        plus = self._bound(query, eps_y, eps_h, fits, side="plus")
        return TwoCalls(plus, self._bound(narrower, eps_y, eps_h, narrower_fits, side="minus"))

    def memory(self) -> dict[str, Floats]:
        return self._decomposition.memory() if "_decomposition" in self.__dict__ else {}

    def recall(self, name: str, messages: Floats) -> None:
        self._decomposition.recall(name, messages)

    @cached_property
    def _decomposition(self) -> DecompositionPlan:
        from mssvm.inference.decomposition import Decompose  # its kernels are loaded only when used

        limits = self.settings
        return Decompose(memory_limit=limits.memory_limit).plan(self.batch, self.engine)

    @cached_property
    def _propagation(self) -> Plan:
        from mssvm.inference.propagation import Propagate  # its kernels are loaded only when used

        return Propagate(effort=self.settings.effort, seed=self.settings.seed).plan(self.batch, self.engine)


@dataclass(frozen=True, eq=False)
class Merged:
    """The answers of two methods as one: of the first where it ``fits``."""

    fits: Bools
    first: Bound
    second: Bound

    def __call__(self, theta: Potentials) -> Belief:
        return joined(self.first(theta), self.second(theta), self.fits)


def joined(one: Belief, two: Belief, first: Bools) -> Belief:
    """Two beliefs, each zero where the other answers, as one; ``first`` are the instances of the first."""
    a, b = one.status, two.status
    names = tuple(x if use else y for x, y, use in zip(a.method, b.method, first, strict=True))
    arrays = ("exact", "converged", "sweeps", "residual", "lower", "upper")
    status = Status(names, *(np.where(first, getattr(a, name), getattr(b, name)) for name in arrays))
    mu = Marginals(one.mu.unary + two.mu.unary, one.mu.tables + two.mu.tables)
    return replace(one, value=np.where(first, one.value, two.value), mu=mu, status=status)

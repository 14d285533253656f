"""Exact inference for the instances within its limits, propagation for the rest of the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Ints
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch, mask_from_indices
from mssvm.engines import engine_of
from mssvm.engines.base import Bound, Engine, ExactPlan, ExactSettings, Pair, Plan, TwoCalls


@dataclass(frozen=True)
class Auto(Settings):
    """``Exact`` for instances whose elimination fits the limits, ``Propagate`` for the others (see ``Status.method``).

    Parameters
    ----------
    memory_limit : bytes of workspace that exact inference may use on an instance.
    operations_limit : table entries that exact inference may visit in a call on an instance.
    effort : of propagation: "fast", "normal", "careful" or a number.
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

    @cached_property
    def _propagation(self) -> Plan:
        from mssvm.inference.propagation import Propagate  # its kernels are loaded only when used

        return Propagate(effort=self.settings.effort, seed=self.settings.seed).plan(self.batch, self.engine)

    def fits(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is exact inference within the limits?"""
        costs = self.exact.costs(query, eps_y, eps_h)
        enough_memory = costs.bytes <= self.settings.memory_limit
        return enough_memory & (costs.operations <= self.settings.operations_limit)

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Bound:
        query.check(self.batch)
        return self._bind(query, eps_y, eps_h, self.fits(query, eps_y, eps_h), instances)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        fits = self.fits(query, eps_y, eps_h)
        narrower_fits = self.fits(narrower, eps_y, eps_h)
        if fits.all() and narrower_fits.all():
            return self.exact.pair(query, narrower, eps_y, eps_h)
        query.check(self.batch)
        narrower.check(self.batch)
        plus = self._bind(query, eps_y, eps_h, fits)
        minus = self._bind(narrower, eps_y, eps_h, narrower_fits)
        return TwoCalls(plus, minus)

    def _bind(self, query: Query, eps_y: float, eps_h: float, fits: Bools, instances: Ints | None = None) -> Bound:
        named = mask_from_indices(instances, len(self.batch))
        fitting = np.flatnonzero(named & fits)
        too_large = np.flatnonzero(named & ~fits)
        if not len(too_large):
            return self.exact.bind(query, eps_y, eps_h, instances)
        messages = self._propagation.bind(query, eps_y, eps_h, too_large)
        if not len(fitting):
            return messages
        return ExactOrMessages(fits, self.exact.bind(query, eps_y, eps_h, fitting), messages)


@dataclass(frozen=True, eq=False)
class ExactOrMessages:
    """Exact answers for the instances that fit, messages for the others, as one belief."""

    fits: Bools
    exact: Bound
    messages: Bound

    def __call__(self, theta: Potentials) -> Belief:
        return merge_beliefs(self.exact(theta), self.messages(theta), self.fits)


def merge_beliefs(first: Belief, second: Belief, from_first: Bools) -> Belief:
    """One belief of two, each with marginals zero on the other's instances; ``from_first`` masks those of the first."""

    def choose(name: str) -> AnyArray:
        return np.asarray(np.where(from_first, getattr(first.status, name), getattr(second.status, name)))

    both_methods = zip(first.status.method, second.status.method, from_first, strict=True)
    status = Status(
        method=tuple(one if use_first else two for one, two, use_first in both_methods),
        exact=choose("exact"),
        converged=choose("converged"),
        sweeps=choose("sweeps"),
        residual=choose("residual"),
        lower=choose("lower"),
        upper=choose("upper"),
    )
    mu = Marginals(first.mu.unary + second.mu.unary, first.mu.tables + second.mu.tables)
    return replace(first, value=np.where(from_first, first.value, second.value), mu=mu, status=status)

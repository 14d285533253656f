"""Exact where it fits, belief propagation elsewhere, decided per instance before anything is allocated; says which."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.inference.exact.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.inference.remember import WhileAlive


@dataclass(frozen=True)
class Auto:
    """``Exact`` for instances whose elimination fits ``memory_limit`` (bytes) and ``operations_limit`` (table entries
    visited a call), ``Propagate`` with the given ``effort`` for the others. ``Status.method`` names what was used."""

    memory_limit: int = 1 << 30
    operations_limit: float = 2e8
    effort: int | str = "normal"
    threads: int = 1
    seed: int = 0
    _fits: WhileAlive[Batch, WhileAlive[Query, dict[bool, Bools]]] = field(
        default_factory=WhileAlive, init=False, repr=False, compare=False
    )

    @cached_property
    def exact(self) -> Exact:
        return Exact(memory_limit=self.memory_limit, threads=self.threads)

    @cached_property
    def propagate(self) -> Propagate:
        return Propagate(effort=self.effort, seed=self.seed, threads=self.threads)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        fits = self.fits(batch, query, eps_y, eps_h)
        if fits.all():
            return self.exact(batch, theta, query, eps_y, eps_h)
        belief = self.propagate.plan(batch).bind(query, eps_y, eps_h, np.flatnonzero(~fits))(theta)
        value, mu, status = belief.value, belief.mu, belief.status
        if fits.any():
            names = self.exact.fill(batch, theta, query, eps_y, eps_h, np.flatnonzero(fits), value, mu)
            status = _merge(status, Status.exactly(value, names), fits)
        return Belief(value, mu, status)

    def contrast(
        self, batch: Batch, theta: Potentials, query: Query, given: Query, eps_y: float, eps_h: float
    ) -> tuple[Floats, Floats, Marginals] | None:
        """As ``Exact.contrast``, where everything is exact."""
        if not self.fits(batch, query, eps_y, eps_h).all():
            return None
        return self.exact.contrast(batch, theta, query, given, eps_y, eps_h)

    def fits(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is exact inference within the limits? Remembered for as long as batch and query live."""
        known = self._fits.get(batch, WhileAlive).get(query, dict)
        free_order = eps_y == eps_h
        if free_order not in known:
            known[free_order] = self._measure(batch, query, eps_y, eps_h)
        return known[free_order]

    def _measure(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Bools:
        fits = np.ones(len(batch), dtype=bool)
        eliminate = self.exact.eliminate
        for b in self.exact.eliminated(batch, query, eps_y, eps_h):
            cost = eliminate.predict(batch, query, eps_y, eps_h, np.array([b]))
            fits[b] = cost.bytes <= self.memory_limit and cost.operations <= self.operations_limit
        return fits


def _merge(first: Status, second: Status, take_second: Bools) -> Status:
    """``first`` with the rows of ``second`` where asked."""

    def pick(a: AnyArray, b: AnyArray) -> AnyArray:
        return np.where(take_second, b, a)

    method = tuple(b if use else a for a, b, use in zip(first.method, second.method, take_second, strict=True))
    return Status(
        method,
        pick(first.exact, second.exact),
        pick(first.converged, second.converged),
        pick(first.sweeps, second.sweeps),
        pick(first.residual, second.residual),
        pick(first.lower, second.lower),
        pick(first.upper, second.upper),
    )

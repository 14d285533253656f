"""Exact inference for any graph.

Each instance goes to the cheapest exact method that fits it:

    every variable has one allowed state             Clamped
    pairwise forest, order of elimination legal      Trees          (kernels with run-time roles and masks)
    one variable away from such a forest             Conditioning
    anything else                                    Eliminate      (compiled per topology and role pattern)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.power import check_temperature
from mssvm.core.topology import Batch
from mssvm.inference.base import Filler
from mssvm.inference.exact.conditioning import Conditioning
from mssvm.inference.exact.eliminate import Eliminate
from mssvm.inference.exact.given import Clamped
from mssvm.inference.exact.trees import Trees
from mssvm.inference.remember import WhileAlive

Route = list[tuple[str, Filler, Ints]]


@dataclass(frozen=True)
class Exact:
    """PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta without approximation, or a MemoryLimitError before allocating."""

    memory_limit: int = 4 << 30
    threads: int = 1
    _routes: WhileAlive[Batch, WhileAlive[Query, dict[tuple[float, float], Route]]] = field(
        default_factory=WhileAlive, init=False, repr=False, compare=False
    )

    @cached_property
    def eliminate(self) -> Eliminate:
        return Eliminate(memory_limit=self.memory_limit, threads=self.threads)

    @cached_property
    def trees(self) -> Trees:
        return Trees(threads=self.threads)

    @cached_property
    def conditioning(self) -> Conditioning:
        return Conditioning(threads=self.threads)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        theta.check(batch)
        value, mu = np.empty(len(batch)), Marginals.zeros(batch)
        names = self.fill(batch, theta, query, eps_y, eps_h, None, value, mu)
        return Belief(value, mu, Status.exactly(value, names))

    def fill(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        eps_y: float,
        eps_h: float,
        which: Ints | None,
        value: Floats,
        mu: Marginals | None,
    ) -> tuple[str, ...]:
        """Write value and marginals of the instances ``which`` (default all); the method used for each instance."""
        names = np.full(len(batch), "", dtype=object)
        for name, filler, members in self.route(batch, query, eps_y, eps_h):
            mine = members if which is None else np.intersect1d(members, which)
            if len(mine):
                filler.fill(batch, theta, query, eps_y, eps_h, mine, value, mu)
                names[mine] = name
        return tuple(names)

    def contrast(
        self, batch: Batch, theta: Potentials, query: Query, given: Query, eps_y: float, eps_h: float
    ) -> tuple[Floats, Floats, Marginals] | None:
        """Values under ``query`` and under the narrower ``given``, and the difference of their marginals, in one pass;
        None where only two calls can give them."""
        if any(filler is not self.conditioning for _, filler, _ in self.route(batch, query, eps_y, eps_h)):
            return None
        theta.check(batch)
        return self.conditioning.contrast(batch, theta, query, given, eps_y, eps_h)

    def eliminated(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Ints:
        """The instances that no fast path takes."""
        parts = [which for _, filler, which in self.route(batch, query, eps_y, eps_h) if filler is self.eliminate]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def route(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Route:
        """Which method computes which instances; remembered for as long as batch and query live."""
        known = self._routes.get(batch, WhileAlive).get(query, dict)
        if (eps_y, eps_h) not in known:
            known[eps_y, eps_h] = self._plan(batch, query, eps_y, eps_h)
        return known[eps_y, eps_h]

    def _plan(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Route:
        check_temperature(eps_y, "eps_y")
        check_temperature(eps_h, "eps_h")
        query.check(batch)
        route: Route = []
        left = np.ones(len(batch), dtype=bool)
        left[batch.owner[query.n_allowed(batch) > 1]] = False
        if left.any():
            given = np.flatnonzero(left)
            route.append(("given states", Clamped.of(batch, query, given), given))
        left = ~left
        for name, method in (("tree recursion", self.trees), ("conditioning", self.conditioning)):
            if not left.any():
                break
            mine = left & method.supports(batch, query, eps_y, eps_h)
            if mine.any():
                route.append((name, method, np.flatnonzero(mine)))
                left &= ~mine
        if left.any():
            route.append(("elimination", self.eliminate, np.flatnonzero(left)))
        return route

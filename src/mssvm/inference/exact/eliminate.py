"""Exact inference on any graph by bucket elimination: PS_outputs[eps_y] PS_hidden[eps_h] theta (paper eq. 5).

Hidden variables are eliminated before outputs, each with the power sum of its temperature; when the two temperatures
are equal the order is free. The reverse sweep through the power sums gives mu = d value / d theta.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch, Topology
from mssvm.engines.elimination import Cost, EliminationPlan, describe, pattern_of
from mssvm.engines.numba.elimination import EliminationKernels
from mssvm.engines.program import Call, Eliminator
from mssvm.inference.remember import Recent

# Instances handed to a thread at a time.
CHUNK = 32


@dataclass
class Eliminate:
    """Bucket elimination with a cache of plans; raises before allocating more than ``memory_limit`` bytes.

    ``restarts`` and ``seed`` steer the search for orders, ``cache_size`` bounds the integers held by cached plans.
    Results do not depend on ``threads``.
    """

    engine: Eliminator = field(default_factory=EliminationKernels)
    memory_limit: int = 4 << 30
    threads: int = 1
    restarts: int = 8
    seed: int = 0
    cache_size: int = 20_000_000
    plans: Recent[tuple[Topology, bytes], EliminationPlan] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")
        self.plans = Recent(self.cache_size, attrgetter("size"))

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        theta.check(batch)
        query.check(batch)
        value, mu = np.zeros(len(batch)), Marginals.zeros(batch)
        self.fill(batch, theta, query, eps_y, eps_h, np.arange(len(batch)), value, mu)
        return Belief(value, mu, Status.exactly(value, "elimination"))

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
    ) -> None:
        """Write value and marginals (``None``: value only) of the instances ``which``; inputs are not checked again."""
        call = Call.of(batch, theta, query, eps_y, eps_h)
        jobs = []
        workers = self.threads
        for plan, members in self._groups(batch, query, call.eps_y, call.eps_h, which):
            needed = self._admit(plan, members, batch, query, call, mu is not None)
            workers = max(1, min(workers, self.memory_limit // needed))
            program = plan.program
            jobs += [(program, members[k : k + CHUNK]) for k in range(0, len(members), CHUNK)]
        if workers == 1 or len(jobs) == 1:
            for program, members in jobs:
                self.engine.run(program, call, members, value, mu)
            return
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self.engine.run, program, call, members, value, mu) for program, members in jobs]:
                done.result()

    def decode(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> tuple[Floats, Ints]:
        """Value and maximising states at eps_y = 0, in half the memory of marginals.

        Hidden variables get -1 unless eps_h = 0 too, and so does every unclamped variable of an infeasible instance.
        """
        if eps_y != 0.0:
            raise UnsupportedError(f"decode needs eps_y = 0, got {eps_y}; decode the marginals of a call instead.")
        theta.check(batch)
        query.check(batch)
        call = Call.of(batch, theta, query, eps_y, eps_h)
        value, states = np.zeros(len(batch)), np.zeros(batch.n_vars, dtype=np.int64)
        for plan, members in self._groups(batch, query, call.eps_y, call.eps_h, np.arange(len(batch))):
            self._admit(plan, members, batch, query, call, False)
            self.engine.decode(plan.program, call, members, value, states)
        return value, states

    def predict(
        self,
        batch: Batch,
        query: Query,
        eps_y: float,
        eps_h: float,
        which: Ints | None = None,
        marginals: bool = True,
    ) -> Cost:
        """Cost of the most expensive of the instances ``which`` (operations: of all), from orders alone."""
        which = np.arange(len(batch)) if which is None else which
        width = n_bytes = operations = 0
        for plan, members in self._groups(batch, query, eps_y, eps_h, which):
            cost = plan.cost(marginals)
            width, n_bytes = max(width, cost.width), max(n_bytes, cost.bytes)
            operations += cost.operations * len(members)
        return Cost(width, n_bytes, operations)

    def _groups(
        self, batch: Batch, query: Query, eps_y: float, eps_h: float, which: Ints
    ) -> Iterator[tuple[EliminationPlan, Ints]]:
        """Instances that share a plan: same topology, same variables clamped and, unless eps_y = eps_h, same roles."""
        pattern = pattern_of(batch, query, eps_y, eps_h)
        which = np.asarray(which, dtype=np.int64)
        for g, graph in enumerate(batch.topologies):
            members = which[batch.topology_of[which] == g]
            if not len(members):
                continue
            rows = pattern[batch.var_ptr[members][:, None] + np.arange(graph.n_vars)]
            kinds, kind_of = np.unique(rows, axis=0, return_inverse=True) if graph.n_vars else (rows[:1], 0 * members)
            by_kind = np.argsort(kind_of.ravel(), kind="stable")
            bounds = np.searchsorted(kind_of.ravel()[by_kind], np.arange(len(kinds) + 1))
            for k, kind in enumerate(kinds):
                yield self.plans.get((graph, kind.tobytes()), self._plan), members[by_kind[bounds[k] : bounds[k + 1]]]

    def _plan(self, key: tuple[Topology, bytes]) -> EliminationPlan:
        return EliminationPlan.of(*key, self.restarts, self.seed)

    def _admit(
        self, plan: EliminationPlan, members: Ints, batch: Batch, query: Query, call: Call, marginals: bool
    ) -> int:
        """Bytes one instance of the plan needs; raises when they exceed the limit."""

        def advice() -> str:
            if call.eps_y == call.eps_h:
                return ""
            free = self.predict(batch, query, call.eps_h, call.eps_h, members[:1], marginals)
            fits = free.bytes <= self.memory_limit
            return f", or set eps_y = eps_h (free order: width {free.width}, {describe(free.bytes)})" if fits else ""

        return plan.admit(self.memory_limit, marginals, int(members[0]), advice)

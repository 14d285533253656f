"""Exact inference on any graph by bucket elimination: PS_outputs[eps_y] PS_hidden[eps_h] theta (paper eq. 5).

Hidden variables are eliminated before outputs, each with the power sum of its temperature; when the two temperatures
are equal the order is free. The reverse sweep through the power sums gives mu = d value / d theta.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.orders import Room
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import Costs, ExactSettings, in_bytes, too_large
from mssvm.engines.elimination import EliminationPlan, pattern_of
from mssvm.engines.numba.elimination.kernels import EliminationKernels
from mssvm.engines.program import Call, Program

CHUNK = 32  # instances handed to a thread at a time


@lru_cache(1024)
def plan_of(topology: Topology, pattern: bytes, restarts: int, seed: int, room: Room) -> EliminationPlan | None:
    """The plan of a topology and role pattern, if one was found in ``room``; once for all batches that hold them."""
    return EliminationPlan.of(topology, pattern, restarts, seed, room)


class EliminationPlanner:
    """Elimination on one batch: orders are searched when a query is bound or measured."""

    def __init__(self, batch: Batch, settings: ExactSettings, workers: Workers, log_space: bool) -> None:
        self.batch, self.settings, self.workers = batch, settings, workers
        self.kernels = EliminationKernels(0.0) if log_space else EliminationKernels()

    def measure(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints, costs: Costs, marginals: bool
    ) -> None:
        """Enter what the named instances would take, from orders alone; infinity where none within limits is found."""
        for plan, members in self.groups(query, eps_y, eps_h, instances, self._room):
            if plan is None:
                costs.bytes[members] = costs.operations[members] = np.inf
                continue
            cost = plan.cost(marginals)
            costs.width[members], costs.bytes[members] = cost.width, float(cost.bytes)
            costs.operations[members] = float(cost.operations)

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints, marginals: bool
    ) -> EliminationRoute:
        """Compiled programs; raises before more memory than allowed would be needed."""
        threads, jobs = self.workers.threads, []
        for plan, members in self._planned(query, eps_y, eps_h, instances):
            needed = self._admit(plan, query, (eps_y, eps_h), members, marginals)
            threads = max(1, min(threads, self.settings.memory_limit // needed))
            program = plan.program
            jobs += [(program, members[k : k + CHUNK]) for k in range(0, len(members), CHUNK)]
        workers = self.workers if threads == self.workers.threads else Workers(threads)
        return EliminationRoute(self, query, (eps_y, eps_h), instances, jobs, workers, marginals)

    @cached_property
    def _room(self) -> Room:
        """What orders may take, where costs beyond the limits need not be known."""
        limits = self.settings
        return Room(limits.operations_limit, limits.memory_limit / 8) if limits.operations_limit < np.inf else Room()

    def _planned(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints
    ) -> Iterator[tuple[EliminationPlan, Ints]]:
        """Instances with a plan, whatever it takes: within limits if there is one, as measured."""
        for limited, members in self.groups(query, eps_y, eps_h, instances, self._room):
            if limited is not None:
                yield limited, members
            else:
                for plan, _ in self.groups(query, eps_y, eps_h, members, Room()):
                    assert plan is not None, "without limits there is always an order"
                    yield plan, members

    def groups(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints, room: Room
    ) -> Iterator[tuple[EliminationPlan | None, Ints]]:
        """Instances that share a plan: same topology, same variables clamped and, unless eps_y = eps_h, same roles."""
        batch, settings = self.batch, self.settings
        pattern = pattern_of(batch, query, eps_y, eps_h)
        for g, topology in enumerate(batch.topologies):
            members = instances[batch.topology_of[instances] == g]
            if not len(members):
                continue
            alike: dict[bytes, list[int]] = {}
            for b in members:
                alike.setdefault(pattern[batch.var_ptr[b] : batch.var_ptr[b + 1]].tobytes(), []).append(int(b))
            for kind in sorted(alike):
                yield plan_of(topology, kind, settings.restarts, settings.seed, room), np.array(alike[kind])

    def _admit(
        self, plan: EliminationPlan, query: Query, eps: tuple[float, float], members: Ints, marginals: bool
    ) -> int:
        """Bytes one instance of the plan needs; raises when they exceed the limit."""
        (eps_y, eps_h), cost, limit = eps, plan.cost(marginals), self.settings.memory_limit
        if cost.bytes <= limit:
            return max(1, cost.bytes)
        advice = ""
        if eps_y != eps_h:
            free = next(self._planned(query, eps_h, eps_h, members[:1]))[0].cost(marginals)
            if free.bytes <= limit:
                advice = f", or set eps_y = eps_h (free order: width {free.width}, {in_bytes(free.bytes)})"
        raise too_large(int(members[0]), cost.width, cost.bytes, limit, advice)


class EliminationRoute:
    """Programs of a query, each with the instances it is run on; without ``marginals`` only values are written."""

    def __init__(
        self, planner: EliminationPlanner, query: Query, eps: tuple[float, float], instances: Ints,
        jobs: list[tuple[Program, Ints]], workers: Workers, marginals: bool,
    ) -> None:  # fmt: skip
        self.batch, self.kernels, self.query, self.eps = planner.batch, planner.kernels, query, eps
        self.instances, self.jobs, self.workers, self.marginals = instances, jobs, workers, marginals
        self.first = segment_argmax(query.allowed.astype(np.float64), self.batch.unary_ptr)

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances."""
        call, wanted = self._call(theta), mu if self.marginals else None
        self.workers.each(lambda job: self.kernels.run(job[0], call, job[1], value, wanted), self.jobs)

    def decode_into(self, theta: Potentials, value: Floats, states: Ints) -> None:
        """Write value and maximising states by back-substitution."""
        call = self._call(theta)
        self.workers.each(lambda job: self.kernels.decode(job[0], call, job[1], value, states), self.jobs)

    def _call(self, theta: Potentials) -> Call:
        return Call(self.batch, theta, self.query.allowed, self.first, *self.eps)

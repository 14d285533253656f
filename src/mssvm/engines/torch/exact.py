"""Exact inference in plain PyTorch: the elimination of ``engines.reference``, for many instances at once.

Instances of one topology and one pattern of roles form a group; the tables of a group have an axis of instances in
front (of length one where they share a table). Masks are numbers like any other: forbidden states score -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from typing import TypeAlias

import numpy as np
import torch

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.collector import gc_paused
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, mask_from_indices
from mssvm.engines.base import Costs, ExactSettings, Pair, TwoCalls, check_decodable, decoded
from mssvm.engines.native.exact import NativeBoundQuery, NativePlan
from mssvm.engines.torch.arrays import Device, DeviceMarginals, DevicePotentials, DeviceQuery, Parts, fetched
from mssvm.engines.torch.chains import ChainRoute, able_chains
from mssvm.engines.torch.trees import NestedRoute, Postorder, TreeRoute, able_trees, postorders

CHUNK = 1 << 30  # bytes of weights that the instances of one call may keep

Route: TypeAlias = "ChainRoute | TreeRoute | NestedRoute"

Table = tuple[tuple[int, ...], torch.Tensor]
"""Scores over the variables of a scope: an axis of instances, then one axis per variable."""


def power_sum(a: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """PS_eps over the last axis and its derivative, as ``core.power.power_sum``."""
    top, index = a.max(dim=-1, keepdim=True)
    feasible = top > -torch.inf
    if eps == 0.0:
        weights = torch.zeros_like(a).scatter_(-1, index, feasible.to(a.dtype))
        return top.squeeze(-1), weights
    shift = torch.where(feasible, top, torch.zeros_like(top))
    weights = torch.exp((a - shift) / eps)
    total = torch.where(feasible, weights.sum(dim=-1, keepdim=True), torch.ones_like(top))
    value = torch.where(feasible, shift + eps * torch.log(total), top)
    return value.squeeze(-1), weights / total


@dataclass(frozen=True, eq=False)
class Group:
    """Instances of one topology and one order of elimination; ``eps`` is the temperature of every variable."""

    topology: Topology
    instances: Ints
    order: tuple[tuple[int, frozenset[int]], ...]
    eps: tuple[float, ...]

    @property
    def size(self) -> int:
        """Table entries that an instance visits."""
        return sum(prod(self.topology.cards[u] for u in clique) for _, clique in self.order)

    @property
    def width(self) -> int:
        return max((len(clique) - 1 for _, clique in self.order), default=0)


def elimination_order(
    topology: Topology, late: tuple[bool, ...], fixed: tuple[bool, ...]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """Variables with their cliques, in elimination order.

    Simplicial variables come first (in forests the leaves: no clique grows), then the smallest clique; ``late``
    variables after all others. Those ``fixed`` at a state may come at any time: late if a clique would grow.
    """
    near = [{v} for v in range(topology.n_vars)]
    for scope in topology.scopes:
        for v in scope:
            near[v] |= set(scope)

    def rank(v: int) -> tuple[bool, bool, int, int]:
        grows = any(not near[v] <= near[u] for u in near[v] if u != v)
        return late[v] or (fixed[v] and grows), grows, prod(topology.cards[a] for a in near[v]), v

    cost = {v: rank(v) for v in range(topology.n_vars)}
    out = []
    while cost:
        v = min(cost, key=lambda u: cost[u])
        del cost[v]
        out.append((v, frozenset(near[v])))
        for u in near[v] - {v}:
            near[u] = (near[u] | near[v]) - {v}
        for u in near[v] - {v}:
            cost[u] = rank(u)
    return tuple(out)


@dataclass(frozen=True, eq=False)
class TorchPlan:
    """Exact inference on one batch."""

    batch: Batch
    settings: ExactSettings
    at: Device

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None, marginals: bool = True
    ) -> TorchBoundQuery:
        eps_y = temperature(eps_y, "eps_y")
        eps_h = temperature(eps_h, "eps_h")
        query = DeviceQuery.on(self.at, query)
        query.check(self.batch)
        chosen = mask_from_indices(instances, len(self.batch))
        routes = self._by_kernel(query, eps_y, eps_h, chosen)
        for route in routes:
            chosen[route.instances] = False
        groups = list(self._groups(query, eps_y, eps_h, np.flatnonzero(chosen)))
        # Labels make cliques smaller, which these orders ignore: groups that seem too large go to the CPU engine.
        large = [group for group in groups if 16 * group.size > self.settings.memory_limit]
        host = None
        if large:
            host = self._host.bind(query, eps_y, eps_h, np.concatenate([group.instances for group in large]))
        fit = tuple(group for group in groups if 16 * group.size <= self.settings.memory_limit)
        return TorchBoundQuery(self, query, (eps_y, eps_h), fit, tuple(routes), host)

    @cached_property
    def _host(self) -> NativePlan:
        return NativePlan(self.batch, self.settings, Workers(1))

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs:
        """Zero if kernels are certain to run all instances; otherwise the costs on the CPU engine, which bounds them
        before it searches for orders."""
        n = len(self.batch)
        paths = np.array([t is not None and t.is_path for t in self._orders], dtype=bool)
        if np.all((self._trees if eps_y == eps_h else paths[self.batch.topology_of]) | self._chains):
            return Costs(np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n))
        return self._host.costs(query, eps_y, eps_h, marginals)

    @cached_property
    def _orders(self) -> tuple[Postorder | None, ...]:
        return postorders(self.batch, self.at)

    @cached_property
    def _chains(self) -> Bools:
        return able_chains(self.batch, self.at)

    @cached_property
    def _trees(self) -> Bools:
        return able_trees(self.batch, self._orders) & ~self._chains

    def _by_kernel(self, query: DeviceQuery, eps_y: float, eps_h: float, chosen: Bools) -> list[Route]:
        """Chains and forests, by the temperatures of the variables that can vary, where there are kernels."""
        chains = chosen & self._chains
        trees = chosen & self._trees
        n = len(self.batch)
        if not (chains.any() or trees.any()):
            return []
        has_output = np.zeros(n, dtype=bool)
        has_hidden = np.ones(n, dtype=bool)
        if eps_y != eps_h:
            has_output, has_hidden = query.has_free(self.batch)
        out: list[Route] = []
        for eps, mine in ((eps_h, ~has_output), (eps_y, has_output & ~has_hidden)):
            out += ChainRoute.all_of(self.batch, np.flatnonzero(chains & mine), eps, self.at)
            out += TreeRoute.all_of(self.batch, np.flatnonzero(trees & mine), eps, self.at, self._orders)
        return out + self.nested(np.flatnonzero((chains | trees) & has_output & has_hidden), query, eps_y, eps_h)

    def nested(self, instances: Ints, query: DeviceQuery, eps_y: float, eps_h: float) -> list[NestedRoute]:
        """Forests in logs, at any temperatures."""
        return NestedRoute.all_of(self.batch, instances, query, (eps_y, eps_h), self.at, self._orders)

    def _groups(self, query: Query, eps_y: float, eps_h: float, chosen: Ints) -> Iterator[Group]:
        batch = self.batch
        found = dict[tuple[int, bytes], list[int]]()
        if not len(chosen):
            return
        # Variables with one allowed state have no temperature, so labels make no groups.
        free = query.n_allowed(batch) > 1
        output = query.output & free
        one = eps_y == eps_h
        hides = np.bincount(batch.owner[free & ~query.output], minlength=len(batch)) > 0
        for b in chosen.tolist():
            mine = slice(batch.var_ptr[b], batch.var_ptr[b + 1])
            roles = b"" if one else (output[mine] | (not hides[b])).tobytes()
            found.setdefault((int(batch.topology_of[b]), roles), []).append(b)
        for (kind, roles), members in found.items():
            topology = batch.topologies[kind]
            instances = np.array(members, dtype=np.int64)
            outputs = tuple(map(bool, np.frombuffer(roles, dtype=bool))) or (False,) * topology.n_vars
            fixed = ~free[batch.var_ptr[instances][:, None] + np.arange(topology.n_vars)].any(axis=0)
            eps = tuple(eps_y if output else eps_h for output in outputs)
            order = elimination_order(topology, outputs, tuple(map(bool, fixed)))
            yield Group(topology, instances, order, eps)


@dataclass(frozen=True, eq=False)
class TorchBoundQuery:
    """The groups of a query at a pair of temperatures, the ``routes`` of instances that have a kernel, and the query on
    the CPU engine (``host``) for those that are too large."""

    plan: TorchPlan
    query: DeviceQuery
    temperatures: tuple[float, float]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...]
    host: NativeBoundQuery | None = None

    @property
    def batch(self) -> Batch:
        return self.plan.batch

    @property
    def at(self) -> Device:
        return self.plan.at

    def __call__(self, theta: Potentials) -> Belief:
        value, mu = self._infer(theta)
        return Belief(value, mu, Status.exactly(value, self._methods))

    @cached_property
    def _methods(self) -> tuple[str, ...]:
        names = np.array(self.host.methods if self.host else [""] * len(self.batch), dtype=object)
        for group in self.groups:
            names[group.instances] = "elimination"
        for route in self.routes:
            names[route.instances] = route.method
        return tuple(names)

    def value(self, theta: Potentials) -> Floats:
        return self._infer(theta)[0]

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        eps_y, eps_h = self.temperatures
        check_decodable(eps_y)
        belief = self(theta)
        return belief.value, decoded(self.batch, self.query, belief, eps_h)

    @cached_property
    def _forbidden(self) -> torch.Tensor:
        return ~self.query.parts[1]

    @cached_property
    def _chunks(self) -> list[Chunk]:
        return self._cut(self.groups)

    def _cut(self, groups: Iterable[Group]) -> list[Chunk]:
        each = []
        for group in groups:
            n = max(1, CHUNK // (16 * max(group.size, 1)))
            each += [
                Chunk.of(self.batch, group, group.instances[k : k + n], self.at)
                for k in range(0, len(group.instances), n)
            ]
        return each

    def _infer(self, theta: Potentials) -> tuple[Floats, Marginals]:
        unary, tables = self.at.theta(theta, self.batch)
        unary = unary.masked_fill(self._forbidden, -torch.inf)
        with self.at.current:
            value, *mu = self._repeated(unary, tables) if self._repeated else self._run(unary, tables)
        values = fetched(value)
        if self.host is not None:
            found = self.host(Potentials(theta.unary, theta.tables))
            values += found.value
            mu[0].add_(self.at.floats(found.mu.unary))
            mu[1].add_(self.at.floats(found.mu.tables))
        unsafe = np.flatnonzero(np.isnan(values))
        if len(unsafe):
            self._again(unsafe, (unary, tables), (mu[0], mu[1]), values)
        marginals = DeviceMarginals(*mu)
        return values, marginals if isinstance(theta, DevicePotentials) else Marginals(
            marginals.unary, marginals.tables
        )

    def _run(self, unary: torch.Tensor, tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Values and marginals (of variables and of tables) of all instances that run on the device."""
        value = unary.new_zeros(len(self.batch))
        mu = torch.zeros_like(unary), unary.new_zeros(self.batch.n_mu_entries)
        for route in self.routes:
            value[route.where] = route.infer_into(unary, tables, mu)
        for chunk in self._chunks:
            value[chunk.instances] = chunk.infer_into(unary, tables, mu)
        return value, *mu

    @cached_property
    def _repeated(self) -> Repeated | None:
        """On a GPU: elimination is thousands of small steps, which are recorded once and replayed without the host."""
        on_gpu = self.at.device.type == "cuda" and not self.at.plain
        return Repeated(self._run) if on_gpu and self.groups else None

    def _again(self, instances: Ints, theta: Parts, mu: Parts, values: Floats) -> None:
        """Forests that left a kernel's safe range, in log space."""
        batch = self.batch
        unsafe = mask_from_indices(instances, len(self.batch))
        mu[0][self.at.bools(unsafe[batch.owner][batch.state_var])] = 0.0
        mu[1][self.at.bools(unsafe[batch.mu_owner])] = 0.0
        for route in self.plan.nested(instances, self.query, *self.temperatures):
            values[route.instances] = fetched(route.infer_into(*theta, mu))


class Repeated:
    """A function of tensors whose steps on a GPU are recorded when it is called for the second time, and replayed."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        self._function = function
        self._calls = 0

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._calls += 1
        if self._calls == 1:
            return self._function(*inputs)
        if self._calls == 2:
            self._graph = torch.cuda.CUDAGraph()
            self._inputs = [x.clone() for x in inputs]
            # Freeing another recording would invalidate this one: garbage collection is paused.
            with gc_paused(), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._outputs = self._function(*self._inputs)
        for static, x in zip(self._inputs, inputs, strict=True):
            static.copy_(x)
        self._graph.replay()
        return tuple(x.clone() for x in self._outputs)


@dataclass(frozen=True, eq=False)
class Chunk:
    """A part of a group, with the index of its tables (unaries first) in theta and in mu.

    ``theta_at`` has one row if all instances share a table.
    """

    group: Group
    instances: torch.Tensor
    scopes: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    theta_at: tuple[torch.Tensor, ...]
    mu_at: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, batch: Batch, group: Group, instances: Ints, at: Device) -> Chunk:
        topology = group.topology
        n = group.topology.n_vars
        scopes = (*((v,) for v in range(n)), *topology.scopes)
        shapes = tuple(tuple(topology.cards[v] for v in scope) for scope in scopes)
        theta_at = []
        mu_at = []
        first = batch.unary_ptr[batch.var_ptr[instances]]
        for k, shape in enumerate(shapes):
            if k < n:
                starts = mu_starts = first + topology.unary_ptr[k]
            else:
                f = batch.factor_ptr[instances] + k - n
                starts = batch.table_at[f]
                mu_starts = batch.mu_at[f]
            same = bool(np.all(starts == starts[0])) and k >= n
            entries = np.arange(prod(shape))
            theta_at.append(at.ints((starts[:1] if same else starts)[:, None] + entries))
            mu_at.append(at.ints(mu_starts[:, None] + entries))
        return cls(group, at.ints(instances), scopes, shapes, tuple(theta_at), tuple(mu_at))

    def infer_into(
        self, unary: torch.Tensor, tables: torch.Tensor, mu: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Values of the instances; their marginals are added to ``mu``."""
        n = self.group.topology.n_vars
        mine: list[Table] = []
        for k, (scope, shape, at) in enumerate(zip(self.scopes, self.shapes, self.theta_at, strict=True)):
            mine.append((scope, (unary if k < n else tables)[at].reshape(len(at), *shape)))
        if not mine:
            return unary.new_zeros(len(self.instances))
        value, gradient = eliminate(mine, self.group, len(self.instances))
        feasible = (value > -torch.inf).to(unary.dtype)
        for k, at in enumerate(self.mu_at):
            here = gradient[k].reshape(len(gradient[k]), -1) * feasible[:, None]
            mu[k >= n].index_add_(0, at.reshape(-1), here.expand(at.shape).reshape(-1))
        return value


def eliminate(tables: list[Table], group: Group, n: int) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Eliminate, then go backwards: the gradient of a message, times its weights, is that of its tables."""
    steps = []
    alive = set(range(len(tables)))
    given = len(tables)
    for v, _ in group.order:
        inputs = [k for k in sorted(alive) if v in tables[k][0]]
        touched = dict.fromkeys(u for k in inputs for u in tables[k][0])  # without repeats, in order
        scope = (*(u for u in touched if u != v), v)
        message, weights = power_sum(reduce(torch.add, [_over(scope, tables[k]) for k in inputs]), group.eps[v])
        steps.append((inputs, scope, weights, len(tables)))
        alive = alive - set(inputs) | {len(tables)}
        tables.append((scope[:-1], message))
    value = reduce(torch.add, [tables[k][1] for k in sorted(alive)]).expand(n)
    gradient = {k: torch.ones_like(value) for k in alive}
    for inputs, scope, weights, k in reversed(steps):
        spread_out = weights * gradient.pop(k)[..., None]
        for i in inputs:
            away = [a + 1 for a, u in enumerate(scope) if u not in tables[i][0]]
            inside = spread_out.sum(dim=away) if away else spread_out
            rest = [u for u in scope if u in tables[i][0]]
            gradient[i] = inside.permute([0, *(rest.index(u) + 1 for u in tables[i][0])])
    return value, {k: g for k, g in gradient.items() if k < given}


def _over(scope: tuple[int, ...], table: Table) -> torch.Tensor:
    """The table with the axes of ``scope``, of length one where it does not depend on the variable."""
    axes, array = table
    order = np.argsort([scope.index(u) for u in axes])
    ordered = array.permute([0, *(int(a) + 1 for a in order)])
    for axis, u in enumerate(scope):
        if u not in axes:
            ordered = ordered.unsqueeze(axis + 1)
    return ordered

"""Exact inference on CPUs: each instance by the cheapest method that is exact on it.

every variable has one allowed state             given states
pairwise forest, order of elimination legal      tree recursion   (kernels with run-time roles and masks), eight
                                                                  instances side by side where they are alike
one variable away from such a forest             conditioning
such a forest if some variables are joined       clustering
anything else                                    elimination      (compiled per topology and role pattern)

``JoinedInference`` goes from weights to U+ - U- and its gradient in a few compiled calls, in memory that threads keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mssvm.core.arrays import Floats, Ints, sum_by
from mssvm.core.checks import temperature
from mssvm.core.errors import UnsupportedError
from mssvm.core.jit import njit
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, counts, gather, offsets, spread
from mssvm.engines.base import METHODS, Costs, ExactSettings, Pair, TwoCalls
from mssvm.engines.clusters import clusters_of
from mssvm.engines.native.elimination import EliminationPlanner, EliminationRoute
from mssvm.engines.numba.forests.clustering import ClusterPlan, cluster_routes
from mssvm.engines.numba.forests.cutset import CutsetPair, CutsetPlan, CutsetRoute
from mssvm.engines.numba.forests.lane_groups import Calls, Kernel, parts_of
from mssvm.engines.numba.forests.plan import BLOCK, NO_COST, NO_SETS, ForestPlan, ForestRoute
from mssvm.engines.numba.forests.registers import BASE, NUMBER, SIDE, TABLE_PARTS
from mssvm.engines.numba.vector import WIDTH

if TYPE_CHECKING:
    from mssvm.engines.native.features import LinearFeatures


class Route(Protocol):
    """Some instances of a batch, bound to the method that is exact on them."""

    @property
    def instances(self) -> Ints: ...

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances."""
        ...


@dataclass(frozen=True, eq=False)
class NumbaPlan:
    """Exact inference on one batch; ``settings`` bound memory and name the methods that may be used."""

    batch: Batch
    settings: ExactSettings
    workers: Workers
    log_space: bool = False

    @cached_property
    def _forests(self) -> ForestPlan:
        return ForestPlan(self.batch, "side by side" in self.settings.methods)

    @cached_property
    def _cutsets(self) -> CutsetPlan:
        return CutsetPlan(self.batch)

    @cached_property
    def _clusters(self) -> ClusterPlan:
        found = list(map(clusters_of, self.batch.topologies))
        return ClusterPlan(self.batch, "side by side" in self.settings.methods, found)

    @cached_property
    def _eliminations(self) -> EliminationPlanner:
        return EliminationPlanner(self.batch, self.settings, self.workers, self.log_space)

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None, marginals: bool = True
    ) -> NumbaBound:
        eps_y, eps_h = temperature(eps_y, "eps_y"), temperature(eps_h, "eps_h")
        query.check(self.batch)
        eps_h = eps_y if query.output.all() else eps_h
        routes, methods = list[Route](), np.full(len(self.batch), "", dtype=object)
        for name, mine in self._shares(query, eps_y, eps_h, instances):
            methods[mine] = name
            if name == "given states":
                routes.append(GivenStates(self.batch, query, mine))
            elif name == "elimination":
                routes.append(self._eliminations.bind(query, eps_y, eps_h, mine, marginals))
            elif name == "tree recursion":
                routes.append(ForestRoute(self._forests, query, eps_y, eps_h, mine, self.workers))
            elif name == "clustering":
                routes += cluster_routes(self._clusters, query, eps_y, eps_h, mine, self.workers)
            else:
                routes.append(CutsetRoute(self._cutsets, query, eps_y, eps_h, mine, self.workers))
        return NumbaBound(self.batch, query, (eps_y, eps_h), tuple(routes), tuple(methods), self.workers)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        plus, bind_minus = self.bind(query, eps_y, eps_h), partial(self.bind, narrower, eps_y, eps_h)
        first = plus.routes[0] if len(plus.routes) == 1 else None
        if isinstance(first, CutsetRoute) and self._cutsets.narrows_cuts(query, narrower):
            return CutsetPair(first, plus, narrower, bind_minus)
        return TwoCalls(plus, bind_minus())

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs:
        """Nothing worth counting where a fast path applies."""
        n, eps_h = len(self.batch), eps_y if query.output.all() else eps_h
        costs = Costs(np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n))
        for name, mine in self._shares(query, eps_y, eps_h, None):
            if name == "elimination":
                self._eliminations.measure(query, eps_y, eps_h, mine, costs, marginals)
        return costs

    def _shares(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None) -> Iterator[tuple[str, Ints]]:
        """The methods, cheapest first, each with the instances on which it is exact and no cheaper one is."""
        left, methods = spread(instances, len(self.batch)), self.settings.methods
        for name in METHODS:
            if name not in methods or name == "side by side" or not left.any():
                continue
            able = left
            if name == "given states":
                able = counts(query.n_allowed(self.batch) > 1, self.batch.var_ptr) == 0
            elif name != "elimination":
                plans = {"tree recursion": "_forests", "conditioning": "_cutsets", "clustering": "_clusters"}
                able = getattr(self, plans[name]).supports(query, eps_y, eps_h)
            mine = np.flatnonzero(left & able)
            if len(mine):
                yield name, mine
            left = left & ~able


@dataclass(frozen=True, eq=False)
class NumbaBound:
    """The routes of a query, run one after the other into the same arrays; ``methods`` has that of every instance."""

    batch: Batch
    query: Query
    temperatures: tuple[float, float]
    routes: tuple[Route, ...]
    methods: tuple[str, ...]
    workers: Workers

    @property
    def strategies(self) -> tuple[str, ...]:
        """By instance how it is run first, finer than ``methods``: which lanes, or as matrix products; what is not safe
        there runs again alone."""
        names = np.array(self.methods, dtype=object)
        for route in self.routes:
            if isinstance(route, ForestRoute):
                for instances, name in route.strategies:
                    names[instances] = name
        return tuple(names)

    def __call__(self, theta: Potentials) -> Belief:
        batch, first = self.batch, self.routes[0] if len(self.routes) == 1 else None
        in_registers = isinstance(first, ForestRoute) and not first.dense
        theta.check(batch, not in_registers)  # forests in registers see for themselves whether scores are numbers
        value = np.zeros(len(batch))
        if in_registers and first is not None and len(first.instances) == len(batch):  # which write every entry
            mu = Marginals(*self.workers.spare.empty(batch.n_states, batch.n_mu_entries))
        else:
            mu = Marginals.zeros(batch)
        for route in self.routes:
            route.infer_into(theta, value, mu)
        return Belief(value, mu, Status.exactly(value, self.methods))

    def value(self, theta: Potentials) -> Floats:
        return self(theta).value

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        eps_y, eps_h = self.temperatures
        if eps_y != 0.0:
            raise UnsupportedError(f"decode needs eps_y = 0, got {eps_y}; decode the marginals of a call instead.")
        belief = self(theta)
        batch, value, states = self.batch, belief.value, belief.decode(self.batch)
        free = self.query.n_allowed(batch) > 1
        only = segment_argmax(self.query.allowed.astype(np.float64), batch.unary_ptr)
        unknown = (~self.query.output & (eps_h > 0.0)) | (value == -np.inf)[batch.owner]
        states = np.where(free, np.where(unknown, -1, states), only)
        for route in self.routes:
            if isinstance(route, EliminationRoute) and not route.marginals:
                route.decode_into(theta, value, states)
        return value, states


class GivenStates:
    """Instances in which every variable has one allowed state: the value is theta(z) and mu its indicator.

    U- of fully labelled data is of this kind. Nothing is left to infer, so only the entries to read are kept.
    """

    def __init__(self, batch: Batch, query: Query, instances: Ints) -> None:
        chosen = spread(instances, len(batch))
        self.sizes = np.diff(batch.var_ptr)[instances], np.diff(batch.factor_ptr)[instances]
        variables, factors = (np.flatnonzero(np.repeat(chosen, np.diff(p))) for p in (batch.var_ptr, batch.factor_ptr))
        self.instances = instances
        self.unary = np.flatnonzero(query.allowed)
        if len(variables) < batch.n_vars:
            self.unary = self.unary[np.repeat(chosen, np.diff(batch.unary_ptr[batch.var_ptr]))[self.unary]]
        state, inside = np.zeros(batch.n_vars, dtype=np.int64), np.zeros(batch.n_factors, dtype=np.int64)
        state[variables] = self.unary - batch.unary_ptr[variables]
        if batch.n_factors:
            of = batch.topology_of  # the scopes are not kept: where nothing is inferred nobody else asks for them
            ptr = offsets(gather([t.scope_sizes for t in batch.topologies], of))
            places = state[gather([t.scope_flat for t in batch.topologies], of, batch.var_ptr[:-1])]
            inside = np.add.reduceat(places * gather([t.scope_strides for t in batch.topologies], of), ptr[:-1])
        size = max(batch.n_states, batch.n_table_entries, batch.n_mu_entries)
        short: Any = np.int32 if size <= np.iinfo(np.int32).max else np.int64  # data have many sites
        self.unary = self.unary.astype(short)
        self.tables, self.mu = ((at + inside)[factors].astype(short) for at in (batch.table_at, batch.mu_at))

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        owner, table_owner = (np.repeat(self.instances, sizes) for sizes in self.sizes)
        total = sum_by(owner, theta.unary[self.unary], len(value))
        total += sum_by(table_owner, theta.tables[self.tables], len(value))
        value[self.instances] = total[self.instances]
        feasible = total > -np.inf
        mu.unary[self.unary[feasible[owner]]] = 1.0
        np.add.at(mu.tables, self.mu[feasible[table_owner]], 1.0)


def joined_inference(features: LinearFeatures, pair: Pair, cost: Potentials | None) -> JoinedInference | None:
    """Both sides of the objective from the weights in one call, if forests in registers do nearly all of the work."""
    if not isinstance(pair, TwoCalls) or not isinstance(pair.plus, NumbaBound):
        return None
    assert isinstance(pair.minus, NumbaBound)
    plus, minus = pair.plus.routes, pair.minus.routes
    given, forests = list[GivenStates](), list[ForestRoute]()
    for route in (*plus, *minus):
        if isinstance(route, GivenStates):
            given.append(route)
        elif isinstance(route, ForestRoute) and route.mostly_in_registers:
            forests.append(route)
    if len(plus) != 1 or len(forests) + len(given) != 1 + len(minus) or plus[0] not in forests:
        return None
    return JoinedInference(features, forests, given[0] if given else None, cost)


class JoinedInference:
    """Forests that run in registers, nearly all of them, under a query and a narrower one, or with given states."""

    def __init__(
        self, features: LinearFeatures, sides: list[ForestRoute], given: GivenStates | None, cost: Potentials | None
    ) -> None:
        self.features, self.sides, self.given = features, sides, given
        self.workers, self.calls = sides[0].workers, list[Calls]()  # of every side
        unary, tables = (NO_COST, NO_COST) if cost is None else (cost.unary, cost.tables)
        # One type: a kernel is compiled for it.
        self.cost = [np.require(unary, np.float64, ["C", "W"]), np.require(tables, np.float64, ["C", "W"])]
        batch, sets, heads, tails = features.batch, [], [], list[Floats]()
        self.missing, needs = np.ones((len(sides), len(batch)), dtype=bool), (0, 0)
        for k, side in enumerate(sides):
            lanes = side.registers
            self.calls.append([])
            for kernel, rows in lanes.calls:
                own = rows.copy()
                own[:, SIDE], own[:, NUMBER] = k, own[:, NUMBER] - 1 + len(sides) + sum(map(len, tails))
                own[:, BASE : BASE + 4] += k * TABLE_PARTS * batch.n_table_entries
                self.calls[k].append((kernel, own))
            sets.append(lanes.sets)
            heads.append(lanes.numbers[:1])
            tails.append(lanes.numbers[1:])
            self.missing[k, side.instances] = False
            needs = max(needs[0], lanes.needs[0]), max(needs[1], lanes.needs[1])
        self.sets, self.numbers = np.concatenate(sets), np.concatenate(heads + tails)
        self.wanted, self.counts = int(np.count_nonzero(~self.missing)), needs[1]
        sizes = [batch.n_states, batch.n_states, batch.n_table_entries, batch.n_mu_entries]
        sizes += [len(sides) * TABLE_PARTS * batch.n_table_entries, needs[0]]
        self.at = offsets(-(-np.array(sizes) // WIDTH) * WIDTH).tolist()
        self.spans = list(map(slice, self.at, np.add(self.at[:-1], sizes)))

    def __call__(self, w: Floats) -> tuple[Floats, Floats, Floats]:
        batch, given, size = self.features.batch, self.given, (self.at[-1], self.counts)
        space = self.workers.scratch(*size)[0]
        unary, mu, raw, mu_tables, made, _ = (space[span] for span in self.spans)
        self.features.forward(w, Potentials(unary, raw))
        value, done = np.zeros((2, len(batch))), np.zeros((len(self.sides), len(batch)), dtype=bool)
        unmade = [self.sets]

        def run(kernel: Kernel, rows: Ints) -> int:
            rest, counts = self.workers.scratch(*size)  # behind the arrays above, on whichever thread
            count = kernel(
                rows, self.numbers, unmade.pop() if unmade else NO_SETS, made, raw, self.cost[1], unary, self.cost[0],
                value, mu, mu_tables, done, rest[self.at[-2] :], counts,
            )  # fmt: skip
            return count

        if self.workers.idle == 1:
            count = sum(starmap(run, chain(*self.calls)))
        else:
            kernel, rows = self.calls[0][0]
            count = run(kernel, rows[:0])
            for calls in self.calls:  # one after the other: the second is subtracted
                count += sum(self.workers.each(run, *zip(*parts_of(calls, BLOCK // WIDTH), strict=True)))
        theta, marginals = Potentials(unary, raw), Marginals(mu, mu_tables)
        if count < self.wanted:
            self._one_by_one(np.flatnonzero(~np.all(done | self.missing, axis=0)), theta, value, marginals)
        if given is not None:
            subtract_given(
                given.instances, *given.sizes, given.unary, given.tables, given.mu, unary, raw, value[1], mu, mu_tables
            )
        return value[0], value[1], self.features.adjoint(marginals)

    def _one_by_one(self, rest: Ints, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Instances that do not run in registers, or whose sums are not safe there."""
        batch, chosen = self.features.batch, spread(rest, len(self.features.batch))
        found = [Marginals.zeros(batch) for _ in self.sides]
        for k, side in enumerate(self.sides):
            scores = theta + Potentials(*self.cost) if k == 0 and len(self.cost[0]) else theta
            scores.check(batch)
            side.one_by_one(rest[~self.missing[k, rest]], scores, value[k], found[k])
        states, entries = chosen[batch.owner][batch.state_var], chosen[batch.mu_owner]
        difference = found[0] if len(found) == 1 else found[0] - found[1]
        mu.unary[states], mu.tables[entries] = difference.unary[states], difference.tables[entries]


@njit(cache=True, nogil=True, error_model="numpy")
def subtract_given(
    instances: Ints, n_vars: Ints, n_factors: Ints, states: Ints, entries: Ints, places: Ints, unary: Floats,
    tables: Floats, value: Floats, mu: Floats, mu_tables: Floats,
) -> None:  # fmt: skip
    """Values of given states, added up as ``sum_by`` does, and their marginals off those of another query."""
    first, first_factor = 0, 0
    for k in range(len(instances)):
        total, table_total = 0.0, 0.0
        for i in range(first, first + n_vars[k]):
            total += unary[states[i]]
            mu[states[i]] -= 1.0
        for i in range(first_factor, first_factor + n_factors[k]):
            table_total += tables[entries[i]]
            mu_tables[places[i]] -= 1.0
        value[instances[k]] = total + table_total
        first, first_factor = first + n_vars[k], first_factor + n_factors[k]

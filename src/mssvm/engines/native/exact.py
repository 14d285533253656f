"""Exact inference on CPUs: each instance by the cheapest method that is exact on it.

every variable has one allowed state             given states
pairwise forest, order of elimination legal      tree recursion   (one instance per vector lane where tables are shared)
one variable away from such a forest             conditioning
such a forest if some variables are joined       clustering
anything else                                    elimination
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.errors import UnsupportedError
from mssvm.core.library import FLOATS, INT, INTS, SHORTS, Function, Record
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.recycling import RecycledArray
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, counts, gather, mask_from_indices, offsets
from mssvm.engines.base import METHODS, Costs, ExactSettings, Pair, TwoCalls, check_decodable, decoded
from mssvm.engines.clusters import clusters_of
from mssvm.engines.native.clustering import ClusterPlan, cluster_routes
from mssvm.engines.native.cutset import CutsetPair, CutsetPlan, CutsetRoute
from mssvm.engines.native.elimination import EliminationPlanner, EliminationRoute
from mssvm.engines.native.forests import NO_VALUES, ForestPlan, ForestRoute

NO_SHORT = np.zeros(0, dtype=np.int32)
NO_WIDE = np.zeros(0, dtype=np.int64)
GIVEN = Function(
    "mssvm_given_states",
    instances=INTS,
    variables=INTS,
    factors=INTS,
    states=SHORTS,
    entries=SHORTS,
    places=SHORTS,
    wide_states=INTS,
    wide_entries=INTS,
    wide_places=INTS,
    scores=INT,
    entries_of_tables=INT,
    marginals_of_tables=INT,
    unary=FLOATS,
    tables=FLOATS,
    value=FLOATS,
    mu_unary=FLOATS,
    mu_tables=FLOATS,
    subtract=INT,
)


class Route(Protocol):
    """A subset of the instances of a batch, bound to a method that is exact on them."""

    @property
    def instances(self) -> Ints: ...

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> object:
        """Write value and marginals of the instances."""
        ...


@dataclass(frozen=True, eq=False)
class NativePlan:
    """Exact inference on one batch; ``settings`` limit memory and name the methods that may be used."""

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
    ) -> NativeBoundQuery:
        eps_y = temperature(eps_y, "eps_y")
        eps_h = temperature(eps_h, "eps_h")
        query.check(self.batch)
        eps_h = eps_y if query.output.all() else eps_h
        routes = list[Route]()
        methods = np.full(len(self.batch), "", dtype=object)
        for name, members in self._shares(query, eps_y, eps_h, instances):
            methods[members] = name
            if name == "given states":
                routes.append(GivenStates(self.batch, query, members))
            elif name == "elimination":
                routes.append(self._eliminations.bind(query, eps_y, eps_h, members, marginals))
            elif name == "tree recursion":
                routes.append(ForestRoute(self._forests, query, eps_y, eps_h, members, self.workers))
            elif name == "clustering":
                routes += cluster_routes(self._clusters, query, eps_y, eps_h, members, self.workers)
            else:
                routes.append(CutsetRoute(self._cutsets, query, eps_y, eps_h, members, self.workers))
        return NativeBoundQuery(self.batch, query, (eps_y, eps_h), tuple(routes), tuple(methods))

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        plus = self.bind(query, eps_y, eps_h)
        bind_minus = partial(self.bind, narrower, eps_y, eps_h)
        first = plus.routes[0] if len(plus.routes) == 1 else None
        if isinstance(first, CutsetRoute) and self._cutsets.narrows_cuts(query, narrower):
            return CutsetPair(first, plus, narrower, bind_minus)
        return TwoCalls(plus, bind_minus())

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs:
        """Costs of elimination; zero for instances of cheaper methods."""
        n = len(self.batch)
        eps_h = eps_y if query.output.all() else eps_h
        costs = Costs(np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n))
        for name, members in self._shares(query, eps_y, eps_h, None):
            if name == "elimination":
                self._eliminations.measure(query, eps_y, eps_h, members, costs, marginals)
        return costs

    def _shares(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None) -> Iterator[tuple[str, Ints]]:
        """The methods, cheapest first, each with the instances on which it is exact and no cheaper one is."""
        left = mask_from_indices(instances, len(self.batch))
        methods = self.settings.methods
        for name in METHODS:
            if name not in methods or name == "side by side" or not left.any():
                continue
            supported = self._supports(name, query, eps_y, eps_h)
            members = np.flatnonzero(left & supported)
            if len(members):
                yield name, members
            left = left & ~supported
        if left.any():
            names = ", ".join(methods)
            raise UnsupportedError(
                f"instance {int(np.argmax(left))} cannot be computed exactly by the methods {names}; add 'elimination'."
            )

    def _supports(self, method: str, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is the method exact on it?"""
        if method == "given states":
            return np.asarray(counts(query.n_allowed(self.batch) > 1, self.batch.var_ptr) == 0)
        if method == "tree recursion":
            return self._forests.supports(query, eps_y, eps_h)
        if method == "conditioning":
            return self._cutsets.supports(query, eps_y, eps_h)
        if method == "clustering":
            return self._clusters.supports(query, eps_y, eps_h)
        return np.ones(len(self.batch), dtype=bool)  # elimination


@dataclass(frozen=True, eq=False)
class NativeBoundQuery:
    """The routes of a query, run one after the other into the same arrays; ``methods`` has that of every instance."""

    batch: Batch
    query: Query
    temperatures: tuple[float, float]
    routes: tuple[Route, ...]
    methods: tuple[str, ...]

    @cached_property
    def _results(self) -> tuple[RecycledArray, RecycledArray]:
        """Memory of marginals, of variables and of tables."""
        return RecycledArray(self.batch.n_states), RecycledArray(self.batch.n_mu_entries)

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategy of every instance: finer than ``methods``."""
        names = np.array(self.methods, dtype=object)
        for route in self.routes:
            if isinstance(route, ForestRoute):
                for instances, name in route.strategies:
                    names[instances] = name
        return tuple(names)

    def __call__(self, theta: Potentials) -> Belief:
        batch = self.batch
        first = self.routes[0] if len(self.routes) == 1 else None
        whole = isinstance(first, ForestRoute) and len(first.instances) == len(batch)
        if whole:
            theta.check_shapes(batch)  # the kernel of forests checks scores
        else:
            theta.check(batch)
        value = np.zeros(len(batch))
        unary, tables = self._results
        mu = Marginals(unary.empty(), tables.empty()) if whole else Marginals.zeros(batch)  # forests write every entry
        for route in self.routes:
            route.infer_into(theta, value, mu)
        return Belief(value, mu, Status.exactly(value, self.methods))

    def value(self, theta: Potentials) -> Floats:
        return self(theta).value

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        eps_y, eps_h = self.temperatures
        check_decodable(eps_y)
        belief = self(theta)
        value = belief.value
        states = decoded(self.batch, self.query, belief, eps_h)
        for route in self.routes:
            if isinstance(route, EliminationRoute) and not route.marginals:
                route.decode_into(theta, value, states)
        return value, states


class GivenStates:
    """Instances in which every variable has one allowed state: the value is theta(z) and mu its indicator.

    U- of fully labelled data is of this kind. Nothing is left to infer: only the positions of the scores to add
    up are stored.
    """

    def __init__(self, batch: Batch, query: Query, instances: Ints) -> None:
        chosen = mask_from_indices(instances, len(batch))
        self.instances = instances
        self.n_vars = np.diff(batch.var_ptr)[instances]
        self.n_factors = np.diff(batch.factor_ptr)[instances]
        variables = np.flatnonzero(np.repeat(chosen, np.diff(batch.var_ptr)))
        factors = np.flatnonzero(np.repeat(chosen, np.diff(batch.factor_ptr)))
        states = np.flatnonzero(query.allowed)
        if len(variables) < batch.n_vars:
            states = states[np.repeat(chosen, np.diff(batch.unary_ptr[batch.var_ptr]))[states]]
        state = np.zeros(batch.n_vars, dtype=np.int64)
        inside = np.zeros(batch.n_factors, dtype=np.int64)
        state[variables] = states - batch.unary_ptr[variables]
        if batch.n_factors:
            of = batch.topology_of  # scopes are gathered here, not cached: nothing else needs them
            ptr = offsets(gather([t.scope_sizes for t in batch.topologies], of))
            places = state[gather([t.scope_flat for t in batch.topologies], of, batch.var_ptr[:-1])]
            inside = np.add.reduceat(places * gather([t.scope_strides for t in batch.topologies], of), ptr[:-1])
        self._sizes = (batch.n_states, batch.n_table_entries, batch.n_mu_entries)
        self._wide = max(self._sizes) > np.iinfo(np.int32).max
        short: Any = np.int64 if self._wide else np.int32  # half the memory where it suffices
        self.states = states.astype(short)
        self.entries = (batch.table_at + inside)[factors].astype(short)
        self.places = (batch.mu_at + inside)[factors].astype(short)

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write values and add marginals."""
        GIVEN.run(
            self.record.changed(
                unary=np.ascontiguousarray(theta.unary),
                tables=np.ascontiguousarray(theta.tables),
                value=value,
                mu_unary=mu.unary,
                mu_tables=mu.tables,
            )
        )

    @cached_property
    def record(self) -> Record:
        """Complete but for scores and results; marginals are added."""
        found = [self.states, self.entries, self.places]
        none = [NO_WIDE if not self._wide else NO_SHORT] * 3
        short, wide = (none, found) if self._wide else (found, none)
        return GIVEN.record(
            instances=np.ascontiguousarray(self.instances),
            variables=self.n_vars,
            factors=self.n_factors,
            states=short[0],
            entries=short[1],
            places=short[2],
            wide_states=wide[0],
            wide_entries=wide[1],
            wide_places=wide[2],
            scores=self._sizes[0],
            entries_of_tables=self._sizes[1],
            marginals_of_tables=self._sizes[2],
            unary=NO_VALUES,
            tables=NO_VALUES,
            value=NO_VALUES,
            mu_unary=NO_VALUES,
            mu_tables=NO_VALUES,
            subtract=0,
        )

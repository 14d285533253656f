"""Exact inference on graphs that are forests of clusters (``engines.clusters``), by the recursions of forests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import NONE, Batch, factorize, gather, mask_from_indices, offsets, ranks
from mssvm.engines.clusters import COPY, Clusters, FormKey, spanning_forest
from mssvm.engines.native.forests import ForestPlan, ForestRoute
from mssvm.engines.native.maps import EntryMap

FEWEST = 3  # instances that share a table: with fewer, elimination is as fast
LARGEST = 1 << 20  # numbers in the workspace of a forest with rows


class ClusterPlan:
    """The instances of a batch that are forests of clusters, as a batch of forests.

    ``clusters`` are those of every topology, or None where it has none.
    """

    def __init__(self, batch: Batch, side_by_side: bool, clusters: Sequence[Clusters | None]) -> None:
        able = np.array([kind is not None for kind in clusters], dtype=bool)
        self.batch = batch
        self.side_by_side = side_by_side
        self.able = able[batch.topology_of]
        self.kinds = [kind for kind in clusters if kind is not None]
        self.instances = np.flatnonzero(self.able)
        self.number = np.cumsum(self.able) - 1  # index of an instance in ``instances``
        self.of = (np.cumsum(able) - 1)[batch.topology_of[self.instances]]

    @cached_property
    def forests(self) -> ForestPlan:
        """The forests of clusters; edges share a table if they have one form and sum the same tables."""
        unique = dict.fromkeys(kind.forest for kind in self.kinds)
        sizes = np.diff(self._factor_ptr)
        forest = {topology: k for k, topology in enumerate(unique)}
        numbers = np.array([forest[kind.forest] for kind in self.kinds], dtype=np.int64)
        number = factorize(self.batch.table_at)[1]
        ids = self._form_numbers
        table = np.append(number[self._factors], 0) + 1
        for k in range(int(sizes.max(initial=0))):
            own = np.where(k < sizes, table[np.where(k < sizes, self._factor_ptr[:-1] + k, -1)], 0)
            ids = factorize(ids * (int(number.max()) + 2) + own)[1]
        return ForestPlan(Batch.of_kinds(tuple(unique), numbers[self.of], ids), self.side_by_side)

    @cached_property
    def _forms(self) -> dict[FormKey, Ints]:
        """The pairs of all forms of edges by key, numbered in this order."""
        return {form.key: form.pairs for kind in self.kinds for form in kind.forms}

    @cached_property
    def _form_numbers(self) -> Ints:
        """The number of the form of every edge of the forests."""
        number = {key: k for k, key in enumerate(self._forms)}
        rows = [np.array([number[form.key] for form in kind.forms], dtype=np.int64) for kind in self.kinds]
        return gather(rows, self.of)

    @cached_property
    def _factor_ptr(self) -> Ints:
        rows = [np.array(list(map(len, kind.factors)), dtype=np.int64) for kind in self.kinds]
        return offsets(gather(rows, self.of))

    @cached_property
    def _factors(self) -> Ints:
        """The factors of every edge, from ``_factor_ptr`` on."""
        rows = [np.array([f for row in kind.factors for f in row], dtype=np.int64) for kind in self.kinds]
        return gather(rows, self.of, self.batch.factor_ptr[self.instances])

    @cached_property
    def starts(self) -> tuple[Ints, Ints]:
        """Where the states of every instance begin, in the forests and in the graphs."""
        batch = self.batch
        new = self.forests.batch
        return new.unary_ptr[new.var_ptr[:-1]], batch.unary_ptr[batch.var_ptr[self.instances]]

    def states(self, copies: bool) -> EntryMap:
        """Map from the states of the graphs to those of clusters, with or without ``copies`` of variables."""
        here, there = self.starts
        lists = [_member_states(kind, copies) for kind in self.kinds]
        return EntryMap.make(self.of, here, np.arange(len(self.of)), there, lists)

    def lifted(self, place: Ints) -> EntryMap:
        """Map from entries of tables inside clusters, which begin at ``place``, to states of clusters."""
        lists = [kind.lifted for kind in self.kinds]
        at = self.batch.factor_ptr[self.instances]
        return EntryMap.make(self.of, self.starts[0], at, place, lists)

    def edges(self, edges: Ints, starts: Ints, place: Ints) -> EntryMap:
        """Map from entries of tables, which begin at ``place``, to tables of edges, which begin at ``starts``."""
        lists = list(self._forms.values())
        return EntryMap.make(self._form_numbers[edges], starts, self._factor_ptr[edges], place[self._factors], lists)

    @cached_property
    def tables(self) -> tuple[Floats, EntryMap]:
        """Tables of the forests: -inf where copies of a variable differ, and the map that adds the graphs' tables."""
        new = self.forests.batch
        forbidden = {form.key: form.forbidden for kind in self.kinds for form in kind.forms}
        base_of_form = [np.where(mask, -np.inf, 0.0) for mask in forbidden.values()]
        first = factorize(new.table_at)[0]
        base = np.concatenate([np.zeros(0), *(base_of_form[k] for k in self._form_numbers[first])])
        return base, self.edges(first, new.table_at[first], self.batch.table_at)

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is the recursion over its clusters exact for this query?

        The variables of a cluster need one temperature. No instance is supported where few share their tables and can
        run side by side: elimination is as fast then.
        """
        ok = self.able.copy()
        if not ok.any() or self.forests.batch.n_mu_entries < FEWEST * self.forests.batch.n_table_entries:
            return np.zeros_like(ok)
        if eps_y != eps_h:
            small = np.array([2 * kind.forest.table_sizes.sum() <= LARGEST for kind in self.kinds], dtype=bool)
            ok[self.instances] = self._roles(query)[1] & small[self.of]  # larger ones do not run side by side
            if not self.forests.paths.all():
                ok[self.instances] &= self.forests.supports(self.query(query), eps_y, eps_h)
        return ok

    def _roles(self, query: Query) -> tuple[Bools, Bools]:
        """Which clusters are outputs, and which instances can be inferred at two temperatures.

        In these the free variables of a cluster have one role, and an output has copies of outputs only.
        """
        new = self.forests.batch
        free = query.n_allowed(self.batch) > 1
        members = [kind.members for kind in self.kinds]
        cluster = gather([rows[:, 0] for rows in members], self.of, new.var_ptr[:-1])
        variable = gather([rows[:, 1] for rows in members], self.of, self.batch.var_ptr[self.instances])
        copy = gather([rows[:, 2] for rows in members], self.of) == COPY
        out = query.output[variable]
        free = free[variable]
        output, hidden, copied = np.zeros((3, new.n_vars), dtype=bool)
        output[cluster[free & out & ~copy]] = True
        hidden[cluster[free & ~out & ~copy]] = True
        copied[cluster[free & ~out & copy]] = True
        wrong = output & (hidden | copied)
        return output, np.logical_or.reduceat(np.append(wrong, False), new.var_ptr[:-1]) == 0

    def query(self, query: Query) -> Query:
        """The query about clusters that a query about variables becomes."""
        masked = np.zeros(self.forests.batch.n_states)
        self.states(copies=True).add((~query.allowed).astype(np.float64), masked)
        return Query(self._roles(query)[0], masked == 0.0)


def cluster_routes(
    plan: ClusterPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
) -> list[ClusterRoute]:
    """Routes of the instances: forests after edges between given variables are removed, else forests of clusters."""
    batch = plan.batch
    out = list[ClusterRoute]()
    given = query.n_allowed(plan.batch) == 1
    found = list[Clusters | None]()
    mine = [NONE]
    left_out = [NONE]
    for g, topology in enumerate(batch.topologies):
        found.append(None)
        some = instances[batch.topology_of[instances] == g]
        given_ends = given[batch.var_ptr[some][:, None] + topology.scope_flat[: 2 * topology.n_factors]]
        constant = given_ends.reshape(len(some), topology.n_factors, 2).all(axis=2)
        if constant.any():
            # Factors that are constants in most instances enter the forest last; it serves the instances in which all
            # factors that it leaves out are constants.
            found[g], left = spanning_forest(topology, (2 * constant.sum(axis=0) > len(some)).tobytes())
            mine.append(some[constant[:, left].all(axis=1)])
            left_out.append((batch.factor_ptr[mine[-1]][:, None] + np.flatnonzero(left)).ravel())
    some = np.sort(np.concatenate(mine))
    factors = np.concatenate(left_out)
    own = None
    if len(some):
        own = ClusterPlan(batch, plan.side_by_side, found)
        able = own.supports(query, eps_y, eps_h)
        some = some[able[some]]
        factors = factors[able[batch.factor_owner[factors]]]
    if own is not None and len(some):
        out.append(ClusterRoute(own, query, eps_y, eps_h, some, workers, GivenFactors(batch, query, factors)))
    rest = np.setdiff1d(instances, some)
    return out if not len(rest) else [*out, ClusterRoute(plan, query, eps_y, eps_h, rest, workers)]


class GivenFactors:
    """Factors between variables with one allowed state: constants of their instances."""

    def __init__(self, batch: Batch, query: Query, factors: Ints) -> None:
        only = segment_argmax(query.allowed.astype(np.float64), batch.unary_ptr)
        self.batch = batch
        a, b = batch.scope_vars[batch.scope_ptr[factors] + np.arange(2)[:, None]]
        entry = only[a] * batch.cards[b] + only[b]
        self.owner = batch.factor_owner[factors]
        self.tables = batch.table_at[factors] + entry
        self.mu = batch.mu_at[factors] + entry

    def add_to(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Add the constants to values and marginals; instances that they make infeasible have marginals of zero."""
        batch = self.batch
        total = sum_by(self.owner, theta.tables[self.tables], len(value))
        mine = mask_from_indices(self.owner, len(value))
        value += total
        np.add.at(mu.tables, self.mu, np.where(value[self.owner] > -np.inf, 1.0, 0.0))
        for b in np.flatnonzero(mine & (total == -np.inf)).tolist():
            mu.unary[batch.state_span(b)] = 0.0
            mu.tables[batch.mu_owner == b] = 0.0


class ClusterRoute:
    """Forests of clusters bound to roles, masks and temperatures, with ``given`` factors as constants."""

    def __init__(
        self,
        plan: ClusterPlan,
        query: Query,
        eps_y: float,
        eps_h: float,
        instances: Ints,
        workers: Workers,
        given: GivenFactors | None = None,
    ) -> None:
        self.given = given
        self.plan = plan
        self.instances = instances
        self.mine = plan.number[instances]
        self.route = ForestRoute(plan.forests, plan.query(query), eps_y, eps_h, self.mine, workers)
        batch = plan.batch
        new = plan.forests.batch
        chosen = mask_from_indices(self.mine, len(plan.instances))
        self.states = plan.states(copies=False).some(chosen)
        self.lifted = [plan.lifted(place).some(chosen) for place in (batch.table_at, batch.mu_at)]
        owner = np.searchsorted(new.factor_ptr, new.mu_first, side="right") - 1
        self.edges = plan.edges(new.mu_first, new.mu_at[new.mu_first], batch.mu_at).some(chosen[owner])

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances, the latter into zeros."""
        new = self.plan.forests.batch
        base, tables = self.plan.tables
        workspace = self.route.workers.workspace("forests", 2 * new.n_states + new.n_mu_entries)
        unary, mu_unary, mu_tables = np.split(workspace, [new.n_states, 2 * new.n_states])
        unary[:] = 0.0
        if len(self.mine) < len(new):  # the kernel leaves the entries of other instances unwritten
            mu_unary[:] = 0.0
            mu_tables[:] = 0.0
        inner = Potentials(unary, base.copy())
        found = Marginals(mu_unary, mu_tables)
        own = np.zeros(len(new))
        scores = np.ascontiguousarray(theta.unary)
        entries = np.ascontiguousarray(theta.tables)
        self.states.add(scores, inner.unary)
        self.lifted[0].add(entries, inner.unary)
        tables.add(entries, inner.tables)
        self.route.infer_into(inner, own, found)
        value[self.instances] = own[self.mine]
        self.states.add_back(found.unary, mu.unary)
        self.lifted[1].add_back(found.unary, mu.tables)
        self.edges.add_back(found.tables, mu.tables)
        if self.given is not None:
            self.given.add_to(theta, value, mu)


def _member_states(kind: Clusters, copies: bool) -> Ints:
    """Rows (state of a cluster, 0, state of the graph) of every variable of a cluster, with or without copies."""
    members = kind.members if copies else kind.members[kind.members[:, 2] != COPY]
    size = members[:, 5:].prod(axis=1)  # states outside of the variable's, its own, states inside
    member = np.repeat(np.arange(len(members)), size)
    within = ranks(offsets(size))
    state = within // members[member, 7] % members[member, 6]
    return np.stack([members[member, 3] + within, np.zeros_like(within), members[member, 4] + state], axis=1)

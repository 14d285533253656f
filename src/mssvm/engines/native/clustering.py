"""Exact inference on graphs that are forests of clusters (``engines.clusters``), by the recursions of forests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import NONE, Batch, factorize, gather, mask_from_indices, offsets
from mssvm.engines.clusters import COPY, Clusters, FormKey, spanning_forest
from mssvm.engines.native.forests import ForestPlan, ForestRoute
from mssvm.engines.native.maps import EntryMap

FEWEST = 3  # instances a table: with fewer, elimination is as fast
LARGEST = 1 << 20  # numbers of a forest with rows


class ClusterPlan:
    """The instances of a batch that are forests of clusters (``found`` by topology), as a batch of these."""

    def __init__(self, batch: Batch, side_by_side: bool, found: Sequence[Clusters | None]) -> None:
        able = np.array([one is not None for one in found], dtype=bool)
        self.batch, self.side_by_side, self.able = batch, side_by_side, able[batch.topology_of]
        self.kinds, self.instances = [one for one in found if one is not None], np.flatnonzero(self.able)
        self.number = np.cumsum(self.able) - 1  # of an instance, among those
        self.of = (np.cumsum(able) - 1)[batch.topology_of[self.instances]]

    @cached_property
    def forests(self) -> ForestPlan:
        """Edges have one table where they have one form and the same tables to make it from."""
        unique, sizes = dict.fromkeys(kind.forest for kind in self.kinds), np.diff(self._factor_ptr)
        forest = {topology: k for k, topology in enumerate(unique)}
        numbers = np.array([forest[kind.forest] for kind in self.kinds], dtype=np.int64)
        number = factorize(self.batch.table_at)[1]
        ids, table = self._form, np.append(number[self._factors], 0) + 1
        for k in range(int(sizes.max(initial=0))):
            own = np.where(k < sizes, table[np.where(k < sizes, self._factor_ptr[:-1] + k, -1)], 0)
            ids = factorize(ids * (int(number.max()) + 2) + own)[1]
        return ForestPlan(Batch.of_kinds(tuple(unique), numbers[self.of], ids), self.side_by_side)

    @cached_property
    def _forms(self) -> dict[FormKey, Ints]:
        """The pairs of all forms of edges by key, numbered in this order."""
        return {form.key: form.pairs for kind in self.kinds for form in kind.forms}

    @cached_property
    def _form(self) -> Ints:
        """Of every edge of the forests the number of its form."""
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
        batch, new = self.batch, self.forests.batch
        return new.unary_ptr[new.var_ptr[:-1]], batch.unary_ptr[batch.var_ptr[self.instances]]

    def states(self, copies: bool) -> EntryMap:
        """States of the graphs, and those of clusters that they are part of; as copies of a variable too, or not."""
        here, there = self.starts
        lists = [_member_states(kind, copies) for kind in self.kinds]
        return EntryMap.make(self.of, here, np.arange(len(self.of)), there, lists)

    def lifted(self, place: Ints) -> EntryMap:
        """Entries of tables that begin at ``place``, and states."""
        lists, at = [kind.lifted for kind in self.kinds], self.batch.factor_ptr[self.instances]
        return EntryMap.make(self.of, self.starts[0], at, place, lists)

    def edges(self, some: Ints, here: Ints, place: Ints) -> EntryMap:
        """Entries of tables that begin at ``place``, and of those of some edges, which begin at ``here``."""
        lists = list(self._forms.values())
        return EntryMap.make(self._form[some], here, self._factor_ptr[some], place[self._factors], lists)

    @cached_property
    def tables(self) -> tuple[Floats, EntryMap]:
        """What forbids that copies differ, and what is added to it: tables of the forests."""
        new, holes = self.forests.batch, {form.key: form.holes for kind in self.kinds for form in kind.forms}
        first = factorize(new.table_at)[0]
        made = [np.where(mask, -np.inf, 0.0) for mask in holes.values()]
        base = np.concatenate([np.zeros(0), *(made[k] for k in self._form[first])])
        return base, self.edges(first, new.table_at[first], self.batch.table_at)

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: has it clusters of one temperature each, which are exact at these? None where tables are not
        shared, so that few instances run side by side: elimination is as fast then."""
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
        """Which clusters are outputs, and which instances may be asked at two temperatures: free variables of a cluster
        have one role, and an output has copies of outputs only."""
        new, free = self.forests.batch, query.n_allowed(self.batch) > 1
        members = [kind.members for kind in self.kinds]
        cluster = gather([rows[:, 0] for rows in members], self.of, new.var_ptr[:-1])
        variable = gather([rows[:, 1] for rows in members], self.of, self.batch.var_ptr[self.instances])
        copy = gather([rows[:, 2] for rows in members], self.of) == COPY
        out, free = query.output[variable], free[variable]
        output, hidden, copied = np.zeros((3, new.n_vars), dtype=bool)
        output[cluster[free & out & ~copy]] = True
        hidden[cluster[free & ~out & ~copy]] = True
        copied[cluster[free & ~out & copy]] = True
        wrong = output & (hidden | copied)
        return output, np.logical_or.reduceat(np.append(wrong, False), new.var_ptr[:-1]) == 0

    def query(self, query: Query) -> Query:
        """The same question about clusters."""
        masked = np.zeros(self.forests.batch.n_states)
        self.states(copies=True).add((~query.allowed).astype(np.float64), masked)
        return Query(self._roles(query)[0], masked == 0.0)


def cluster_routes(
    plan: ClusterPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
) -> list[ClusterRoute]:
    """Forests of what is left without the edges between given variables, where it is one, else of clusters."""
    batch, out, given = plan.batch, list[ClusterRoute](), query.n_allowed(plan.batch) == 1
    found, mine, left_out = list[Clusters | None](), [NONE], [NONE]
    for g, topology in enumerate(batch.topologies):
        found.append(None)
        some = instances[batch.topology_of[instances] == g]
        ends = given[batch.var_ptr[some][:, None] + topology.scope_flat[: 2 * topology.n_factors]]
        ends = ends.reshape(len(some), topology.n_factors, 2).all(axis=2)
        if ends.any():
            found[g], left = spanning_forest(topology, (2 * ends.sum(axis=0) > len(some)).tobytes())
            mine.append(some[ends[:, left].all(axis=1)])
            left_out.append((batch.factor_ptr[mine[-1]][:, None] + np.flatnonzero(left)).ravel())
    some, factors, own = np.sort(np.concatenate(mine)), np.concatenate(left_out), None
    if len(some):
        own = ClusterPlan(batch, plan.side_by_side, found)
        able = own.supports(query, eps_y, eps_h)
        some, factors = some[able[some]], factors[able[batch.factor_owner[factors]]]
    if own is not None and len(some):
        out.append(ClusterRoute(own, query, eps_y, eps_h, some, workers, GivenFactors(batch, query, factors)))
    rest = np.setdiff1d(instances, some)
    return out if not len(rest) else [*out, ClusterRoute(plan, query, eps_y, eps_h, rest, workers)]


class GivenFactors:
    """Factors between variables with one allowed state, some of every instance."""

    def __init__(self, batch: Batch, query: Query, factors: Ints) -> None:
        only, self.batch = segment_argmax(query.allowed.astype(np.float64), batch.unary_ptr), batch
        a, b = batch.scope_vars[batch.scope_ptr[factors] + np.arange(2)[:, None]]
        entry = only[a] * batch.cards[b] + only[b]
        self.owner, self.tables, self.mu = batch.factor_owner[factors], batch.table_at[factors], batch.mu_at[factors]
        self.tables, self.mu = self.tables + entry, self.mu + entry

    def add_to(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Add what is given; what it makes impossible has no marginals."""
        batch, total = self.batch, sum_by(self.owner, theta.tables[self.tables], len(value))
        mine = mask_from_indices(self.owner, len(value))
        value += total
        np.add.at(mu.tables, self.mu, np.where(value[self.owner] > -np.inf, 1.0, 0.0))
        for b in np.flatnonzero(mine & (total == -np.inf)).tolist():
            mu.unary[batch.state_span(b)] = 0.0
            mu.tables[batch.mu_owner == b] = 0.0


class ClusterRoute:
    """Forests of clusters at given roles, masks and temperatures, and with factors that are ``given``."""

    def __init__(
        self, plan: ClusterPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers,
        given: GivenFactors | None = None,
    ) -> None:  # fmt: skip
        self.given = given
        self.plan, self.instances, self.mine = plan, instances, plan.number[instances]
        self.route = ForestRoute(plan.forests, plan.query(query), eps_y, eps_h, self.mine, workers)
        batch, new, chosen = plan.batch, plan.forests.batch, mask_from_indices(self.mine, len(plan.instances))
        self.states = plan.states(copies=False).some(chosen)
        self.lifted = [plan.lifted(place).some(chosen) for place in (batch.table_at, batch.mu_at)]
        owner = np.searchsorted(new.factor_ptr, new.mu_first, side="right") - 1
        self.edges = plan.edges(new.mu_first, new.mu_at[new.mu_first], batch.mu_at).some(chosen[owner])

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances, the latter into zeros."""
        new, (base, tables) = self.plan.forests.batch, self.plan.tables
        room = self.route.workers.room(2 * new.n_states + new.n_mu_entries)
        unary, mu_unary, mu_tables = np.split(room, [new.n_states, 2 * new.n_states])
        unary[:] = 0.0
        if len(self.mine) < len(new):  # of which not every entry is written
            mu_unary[:] = 0.0
            mu_tables[:] = 0.0
        inner, found, own = Potentials(unary, base.copy()), Marginals(mu_unary, mu_tables), np.zeros(len(new))
        scores, entries = np.ascontiguousarray(theta.unary), np.ascontiguousarray(theta.tables)
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
    """Rows (state of a cluster, 0, state of the graph) of every variable of a cluster, those of copies or not."""
    parts = [np.zeros((0, 3), dtype=np.int64)]
    for _, _, role, to, at, outer, card, inner in kind.members.tolist():
        if role == COPY and not copies:
            continue
        there = to + np.arange(outer * card * inner)
        state = at + np.tile(np.repeat(np.arange(card), inner), outer)
        parts.append(np.stack([there, np.zeros_like(there), state], axis=1))
    return np.concatenate(parts)

"""Exact inference on graphs that are forests of clusters (``engines.clusters``), by the recursions of forests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import NONE, Batch, by_first_use, gather, offsets, spread
from mssvm.engines.clusters import COPY, FIRST, OTHER, Clusters, FormKey, block_width, spanning_forest
from mssvm.engines.numba.forests.lane_groups import FEWEST, LARGEST
from mssvm.engines.numba.forests.plan import ForestPlan, ForestRoute
from mssvm.engines.numba.vector import pointer_to


class Entries(NamedTuple):
    """Entries in an array of graphs, and those of an array of forests that they are added to, for things of some kinds.

    Thing i, of kind ``of[i]``, begins at ``here[i]`` of the forests. A target of its kind, a row (slot, entry, first,
    last), is the graph's entry ``entry`` from ``place[at[i] + slot]`` on, and goes with ``to[first:last]``.
    """

    of: Ints
    here: Ints
    at: Ints
    place: Ints
    ptr: Ints
    targets: Ints
    to: Ints

    @classmethod
    def make(cls, of: Ints, here: Ints, at: Ints, place: Ints, lists: Sequence[Ints]) -> Entries:
        """``lists`` by kind: rows (to, slot, entry)."""
        counts = np.array(list(map(len, lists)), dtype=np.int64)
        to, slot, entry = np.concatenate([np.zeros((0, 3), dtype=np.int64), *lists]).T
        kind = np.repeat(np.arange(len(lists)), counts)
        order = np.lexsort((to, entry, slot, kind))
        key = np.stack([kind, slot, entry])[:, order]
        first = np.flatnonzero(np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0))[: len(order)])
        targets = np.stack([*key[1:, first], first, np.append(first, len(order))[1:][: len(first)]], axis=1)
        ptr = np.searchsorted(key[0, first], np.arange(len(lists) + 1))
        return cls(of, here, at, place, ptr, targets, to[order])

    def some(self, chosen: Bools) -> Entries:
        """Of some things only."""
        return self if chosen.all() else Entries(self.of[chosen], self.here[chosen], self.at[chosen], *self[3:])


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
        number = by_first_use(self.batch.table_at)[1]
        ids, table = self._form, np.append(number[self._factors], 0) + 1
        for k in range(int(sizes.max(initial=0))):
            own = np.where(k < sizes, table[np.where(k < sizes, self._factor_ptr[:-1] + k, -1)], 0)
            ids = by_first_use(ids * (int(number.max()) + 2) + own)[1]
        batch, widths = Batch.of_kinds(tuple(unique), numbers[self.of], ids), np.array([*map(block_width, self._forms)])
        first = by_first_use(batch.table_at)[0]
        blocks = zip(batch.table_at[first].tolist(), widths[self._form[first]].tolist(), strict=True)
        return ForestPlan(batch, self.side_by_side, {at: width for at, width in blocks if width})

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
    def members(self) -> tuple[Ints, Ints]:
        """Where the members of every kind begin, and how their states lie, as ``expand`` takes them."""
        lists = [kind.members[:, 2:] for kind in self.kinds]
        ptr = offsets(np.array(list(map(len, lists)), dtype=np.int64))
        return ptr, np.concatenate([np.zeros((0, 6), dtype=np.int64), *lists])

    @cached_property
    def starts(self) -> tuple[Ints, Ints]:
        """Where the states of every instance begin, in the forests and in the graphs."""
        batch, new = self.batch, self.forests.batch
        return new.unary_ptr[new.var_ptr[:-1]], batch.unary_ptr[batch.var_ptr[self.instances]]

    def lifted(self, place: Ints) -> Entries:
        """Entries of tables that begin at ``place``, and states."""
        lists, at = [kind.lifted for kind in self.kinds], self.batch.factor_ptr[self.instances]
        return Entries.make(self.of, self.starts[0], at, place, lists)

    def edges(self, some: Ints, here: Ints, place: Ints) -> Entries:
        """Entries of tables that begin at ``place``, and of those of some edges, which begin at ``here``."""
        lists = list(self._forms.values())
        return Entries.make(self._form[some], here, self._factor_ptr[some], place[self._factors], lists)

    @cached_property
    def tables(self) -> tuple[Floats, Entries]:
        """What forbids that copies differ, and what is added to it: tables of the forests."""
        new, holes = self.forests.batch, {form.key: form.holes for kind in self.kinds for form in kind.forms}
        first = by_first_use(new.table_at)[0]
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
        masked = np.empty(self.forests.batch.n_states)
        expand(self.of, *self.starts, *self.members, COPY, (~query.allowed).astype(np.float64), masked)
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
        mine = spread(self.owner, len(value))
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
        batch, new, chosen = plan.batch, plan.forests.batch, spread(self.mine, len(plan.instances))
        here, there = plan.starts
        self.states = plan.of[self.mine], here[self.mine], there[self.mine], *plan.members
        self.lifted = [plan.lifted(place).some(chosen) for place in (batch.table_at, batch.mu_at)]
        owner = np.searchsorted(new.factor_ptr, new.mu_first, side="right") - 1
        self.edges = plan.edges(new.mu_first, new.mu_at[new.mu_first], batch.mu_at).some(chosen[owner])

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances, the latter into zeros."""
        new, (base, tables) = self.plan.forests.batch, self.plan.tables
        room = self.route.workers.room(2 * new.n_states + new.n_mu_entries)
        if self.route.dense or len(self.mine) < len(new):  # of which not every entry is written
            room[:] = 0.0
        unary, mu_unary, mu_tables = np.split(room, [new.n_states, 2 * new.n_states])
        inner, found, own = Potentials(unary, base.copy()), Marginals(mu_unary, mu_tables), np.zeros(len(new))
        scores, entries = np.ascontiguousarray(theta.unary), np.ascontiguousarray(theta.tables)
        expand(*self.states, OTHER, scores, inner.unary)
        take(*self.lifted[0], entries, inner.unary)
        take(*tables, entries, inner.tables)
        self.route.infer_into(inner, own, found)
        value[self.instances] = own[self.mine]
        contract(*self.states, found.unary, mu.unary)
        give(*self.lifted[1], found.unary, mu.tables)
        give(*self.edges, found.tables, mu.tables)
        if self.given is not None:
            self.given.add_to(theta, value, mu)


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def expand(of, here, there, ptr, members, most, x, out):
    """Scores of clusters as sums of those of their variables, up to those of kind ``most``."""
    x, out, rows = pointer_to(x), pointer_to(out), pointer_to(members)
    for i in range(len(of)):
        for r in range(6 * ptr[of[i]], 6 * ptr[of[i] + 1], 6):
            kind, to, at, outer, card, inner = rows[r], rows[r + 1], rows[r + 2], rows[r + 3], rows[r + 4], rows[r + 5]
            to, at = to + here[i], at + there[i]
            for _ in range(outer if kind <= most else 0):
                for s in range(card):
                    for _ in range(inner):
                        out[to] = x[at + s] if kind == FIRST else out[to] + x[at + s]
                        to += 1


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def contract(of, here, there, ptr, members, x, out):
    """The transpose of ``expand`` without copies: marginals of variables."""
    x, out, rows = pointer_to(x), pointer_to(out), pointer_to(members)
    for i in range(len(of)):
        for r in range(6 * ptr[of[i]], 6 * ptr[of[i] + 1], 6):
            kind, to, at, outer, card, inner = rows[r], rows[r + 1], rows[r + 2], rows[r + 3], rows[r + 4], rows[r + 5]
            to, at = to + here[i], at + there[i]
            for s in range(card if kind != COPY else 0):
                total = 0.0
                for o in range(outer):
                    for j in range(inner):
                        total += x[to + (o * card + s) * inner + j]
                out[at + s] = total


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def take(of, here, at, place, ptr, targets, to, x, out):
    """Add entries of graphs to those of forests that they go with (``Entries``)."""
    x, out, rows = pointer_to(x), pointer_to(out), pointer_to(targets)
    for i in range(len(of)):
        for r in range(4 * ptr[of[i]], 4 * ptr[of[i] + 1], 4):
            v = x[place[at[i] + rows[r]] + rows[r + 1]]
            for j in range(rows[r + 2], rows[r + 3]):
                out[here[i] + to[j]] += v


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def give(of, here, at, place, ptr, targets, to, x, out):
    """The transpose of ``take``."""
    x, out, rows = pointer_to(x), pointer_to(out), pointer_to(targets)
    for i in range(len(of)):
        for r in range(4 * ptr[of[i]], 4 * ptr[of[i] + 1], 4):
            total, target = 0.0, place[at[i] + rows[r]] + rows[r + 1]
            for j in range(rows[r + 2], rows[r + 3]):
                total += x[here[i] + to[j]]
            out[target] += total

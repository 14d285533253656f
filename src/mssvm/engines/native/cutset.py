"""Exact inference where fixing one variable (the cutset) leaves a pairwise forest, such as the class of a hidden chain.

value = PS over the cutset (at its own temperature) of [its score + nested power sum of the forest given it].

Every state of a cut variable makes an instance of its own: the remaining forest, with the scores and the slices of
tables that the state selects. These run like all forests (``native.forests``), side by side where they share tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query, Status, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import (
    CACHED_PARTS,
    Batch,
    Topology,
    counts,
    factorize,
    mask_from_indices,
    offsets,
    ranks,
    size_in_cache,
    spans,
)
from mssvm.engines.base import BoundQuery, Paired, TwoCalls
from mssvm.engines.native.families import distinct_rows
from mssvm.engines.native.forests import ForestPlan, ForestRoute
from mssvm.engines.native.maps import EntryMap
from mssvm.engines.rooting import rooting_of

NAME = "conditioning"
TRIED = 8  # candidates for the cut variable, those in most factors first
AT_ONCE = 1 << 18  # states of the forests of one batch


@dataclass(frozen=True, eq=False)
class CutTopology:
    """A topology with its cut variable and the remaining forest.

    edges      of the forest, rows (factor, stride of the cut variable in its table, 0 if it is not in the scope;
               strides of the two others; states of the two others)
    attached   factors of the cut variable and one other, rows (factor, offset of the other's states in the forest,
               their number, stride of the cut variable, stride of the other)
    """

    variable: int
    states: int
    rest: Topology
    edges: Ints
    attached: Ints

    @classmethod
    def at(cls, topology: Topology, v: int) -> CutTopology:
        """The topology cut at v, whose larger factors have v and two others in their scope."""
        cards = topology.cards[:v] + topology.cards[v + 1 :]
        first = offsets(np.array(cards, dtype=np.int64))
        edges = []
        attached = []
        scopes = list[tuple[int, ...]]()
        for f, scope in enumerate(topology.scopes):
            steps = topology.scope_strides[topology.scope_ptr[f] : topology.scope_ptr[f + 1]].tolist()
            step = steps.pop(scope.index(v)) if v in scope else 0
            others = tuple(u - (u > v) for u in scope if u != v)
            if len(others) == 1:
                attached.append((f, first[others[0]], cards[others[0]], step, *steps))
            else:
                edges.append((f, step, *steps, cards[others[0]], cards[others[1]]))
                scopes.append(others)
        return cls(
            variable=v,
            states=topology.cards[v],
            rest=Topology(cards, scopes),
            edges=np.array(edges, dtype=np.int64).reshape(-1, 6),
            attached=np.array(attached, dtype=np.int64).reshape(-1, 5),
        )


@cached_by_size(CACHED_PARTS, size_in_cache)
def cut_of(topology: Topology) -> CutTopology | None:
    """The topology cut at the variable in most factors that leaves a pairwise forest."""
    degree = np.bincount(topology.scope_flat, minlength=topology.n_vars)
    if topology.scope_sizes.max(initial=0) > 3 or topology.n_factors - degree.max(initial=0) > topology.n_vars - 2:
        return None  # whichever variable is cut, more factors are left than a forest can have
    large = [set(s) for s in topology.scopes if len(s) > 2]
    candidates = set.intersection(*large) if large else set(range(topology.n_vars))
    for v in sorted(candidates, key=lambda i: (-int(degree[i]), i))[:TRIED]:
        cut = CutTopology.at(topology, v)
        if rooting_of(cut.rest).valid:
            return cut
    return None


class CutForests:
    """The forests of a set of instances, one for every state of their cut variables, as a batch of its own.

    of, row        instance of each forest, and its index in ``instances``
    ptr            forests of instance k: ``ptr[k] : ptr[k + 1]``
    cut_state      index of each forest's cut state among the states of the batch
    first_state    first state of each forest, among the states of all forests; ``source_state``: that of its instance
                   in the batch
    table_source   entry of the batch's tables that each entry of the forests' tables is a copy of
    nodes          map of the unary scores of the remaining variables
    attached       maps of the slices of tables that these share with the cut variable: of theta, and of marginals
    edges          map of the marginals of the forests' tables back to the batch; ``edge_owner``: the forest of each
    """

    def __init__(self, batch: Batch, cuts: list[CutTopology | None], instances: Ints) -> None:
        self.source = batch
        self.instances = instances
        first, kind = factorize(batch.topology_of[instances])
        self.cuts = [_present(cuts[g]) for g in batch.topology_of[instances[first]].tolist()]
        self.variable = batch.var_ptr[instances] + np.array([cut.variable for cut in self.cuts], dtype=np.int64)[kind]
        n_states = np.diff(batch.unary_ptr)[self.variable]
        self.ptr = offsets(n_states)
        self.row = np.repeat(np.arange(len(instances)), n_states)
        self.of = instances[self.row]
        self.kinds = kind[self.row]
        state = ranks(self.ptr)
        self.cut_state = np.repeat(batch.unary_ptr[self.variable], n_states) + state
        self._lay_out_edges(batch, state)
        self.first_state = self.batch.unary_ptr[self.batch.var_ptr[:-1]]
        self.source_state = batch.unary_ptr[batch.var_ptr[self.of]]
        entries = [_node_entries(cut) for cut in self.cuts]
        every = np.arange(len(self.of))
        self.nodes = EntryMap.make(self.kinds, self.first_state, every, self.source_state, entries)
        self.attached = self._attached(batch, state)

    def _lay_out_edges(self, batch: Batch, state: Ints) -> None:
        """The batch of forests, with the source of its tables and the target of their marginals.

        An edge reads a slice of a table: the entries that agree with the cut variable's state. Edges with the same
        slice share a table.
        """
        edges = np.concatenate([cut.edges for cut in self.cuts])
        per_kind = np.array([len(cut.edges) for cut in self.cuts], dtype=np.int64)
        count = per_kind[self.kinds]
        each = spans((np.cumsum(per_kind) - per_kind)[self.kinds], count)  # the edges of every forest
        steps = edges[each, 2:4]
        shape = edges[each, 4:]
        factor = np.repeat(batch.factor_ptr[self.of], count) + edges[each, 0]
        inside = np.repeat(state, count) * edges[each, 1]  # where the slice begins in the table
        start = batch.table_at[factor] + inside
        patterns, pattern = distinct_rows(edges[:, 2:])
        slice_id = start * len(patterns) + pattern[each]
        forests, forest_of = _numbered([cut.rest for cut in self.cuts])
        self.batch = Batch.of_kinds(forests, forest_of[self.kinds], slice_id)
        stored, _ = factorize(slice_id)  # one edge for every table, in storage order
        self.table_source = _slices(start[stored], steps[stored], shape[stored])
        block = self.batch.mu_first
        self.edge_owner = self.batch.factor_owner[block]
        slices, slice_of = distinct_rows(np.concatenate([shape[block], steps[block]], axis=1))
        self.edges = EntryMap.make(
            slice_of,
            self.batch.mu_at[block],
            np.arange(len(block)),
            batch.mu_at[factor[block]] + inside[block],
            [_table_entries(*row) for row in slices.tolist()],
        )

    def _attached(self, batch: Batch, state: Ints) -> list[EntryMap]:
        """Slices of tables at the states of cut variables: of theta, and of marginals."""
        per_kind = np.array([len(cut.attached) for cut in self.cuts], dtype=np.int64)
        rows = np.concatenate([np.zeros((0, 5), dtype=np.int64), *(cut.attached for cut in self.cuts)])
        count = per_kind[self.kinds]
        each = spans((np.cumsum(per_kind) - per_kind)[self.kinds], count)  # the rows of every forest
        factor = np.repeat(batch.factor_ptr[self.of], count) + rows[each, 0]
        inside = np.repeat(state, count) * rows[each, 3]
        lists = [_attached_entries(cut) for cut in self.cuts]
        at = offsets(count)[:-1]
        return [
            EntryMap.make(self.kinds, self.first_state, at, place[factor] + inside, lists)
            for place in (batch.table_at, batch.mu_at)
        ]

    @cached_property
    def plan(self) -> ForestPlan:
        return ForestPlan(self.batch)

    def query(self, query: Query) -> Query:
        """Roles and masks of the variables other than the cut ones."""
        batch = self.source
        own = self.batch
        n_cut = np.diff(self.ptr)  # states of every cut variable
        n_vars = np.diff(own.var_ptr)
        cut = np.repeat(self.variable, n_cut)
        variables = spans(batch.var_ptr[self.of], n_vars)
        variables += variables >= np.repeat(cut, n_vars)
        n_states = np.diff(np.append(self.first_state, own.n_states))
        states = spans(self.source_state, n_states)
        states += (states >= np.repeat(batch.unary_ptr[cut], n_states)) * np.repeat(n_cut[self.row], n_states)
        return Query(query.output[variables], query.allowed[states])


def _present(cut: CutTopology | None) -> CutTopology:
    """The cut of an instance that is known to have one."""
    assert cut is not None, "forests are of instances that have a cut"
    return cut


def _numbered(graphs: list[Topology]) -> tuple[tuple[Topology, ...], Ints]:
    """The distinct graphs, and the number of each graph among them."""
    numbers: dict[Topology, int] = {}
    of = [numbers.setdefault(graph, len(numbers)) for graph in graphs]
    return tuple(numbers), np.array(of, dtype=np.int64)


def _slices(start: Ints, steps: Ints, shape: Ints) -> Ints:
    """Entries of slices of tables, one slice after the other in C order, with these steps from row to row and from
    column to column."""
    size = shape.prod(axis=1)
    entry = ranks(offsets(size))
    row, column = np.divmod(entry, np.repeat(shape[:, 1], size))
    entries: Ints = np.repeat(start, size) + row * np.repeat(steps[:, 0], size) + column * np.repeat(steps[:, 1], size)
    return entries


def _table_entries(rows: int, columns: int, down: int, right: int) -> Ints:
    """Rows (entry of a forest's table, 0, entry of the graph's) of a slice with these steps."""
    i, j = np.divmod(np.arange(rows * columns), columns)
    return np.stack([i * columns + j, 0 * i, i * down + j * right], axis=1)


def _node_entries(cut: CutTopology) -> Ints:
    """Rows (state of the forest, 0, state of the graph)."""
    gap = sum(cut.rest.cards[: cut.variable])
    to = np.arange(sum(cut.rest.cards))
    return np.stack([to, 0 * to, to + np.where(to >= gap, cut.states, 0)], axis=1)


def _attached_entries(cut: CutTopology) -> Ints:
    """Rows (state of the forest, number of the attached factor, entry of its table from the state's first on)."""
    parts = [np.zeros((0, 3), dtype=np.int64)]
    for slot, (_, first, states, _, step) in enumerate(cut.attached.tolist()):
        x = np.arange(states)
        parts.append(np.stack([first + x, 0 * x + slot, x * step], axis=1))
    return np.concatenate(parts)


class CutsetPlan:
    """Exact inference on graphs that one variable separates into a pairwise forest (factors up to order three).

    Exact when that variable is an output, is clamped, or the temperatures of all free variables agree with its own.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.cuts = [cut_of(topology) for topology in batch.topologies]
        self.ok: Bools = np.array([cut is not None for cut in self.cuts], dtype=bool)[batch.topology_of]

    @cached_property
    def forests(self) -> list[CutForests]:
        """The forests of all instances that have a cut, in parts that depend on the data alone (not on threads)."""
        states = [
            0 if cut is None else t.cards[cut.variable] for t, cut in zip(self.batch.topologies, self.cuts, strict=True)
        ]
        each = np.array(states, dtype=np.int64)[self.batch.topology_of] * np.diff(
            self.batch.unary_ptr[self.batch.var_ptr]
        )
        cut = np.flatnonzero(self.ok)
        parts = np.split(cut, np.flatnonzero(np.diff(np.cumsum(each[cut]) // AT_ONCE)) + 1)
        return [CutForests(self.batch, self.cuts, part) for part in parts if len(part)]

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: does one variable separate it into a forest on which these roles and temperatures are exact?"""
        ok = self.ok.copy()
        if eps_y == eps_h or not ok.any():
            return ok
        free = query.n_allowed(self.batch) > 1
        for part in self.forests:
            own = part.query(query)
            given = part.variable
            outputs = counts(own.output & (own.n_allowed(part.batch) > 1), part.batch.var_ptr)[part.ptr[:-1]] > 0
            ok[part.instances] = query.output[given] | ~free[given] | ~outputs
            ok[part.of[~part.plan.supports(own, eps_y, eps_h)]] = False
        return ok

    def narrows_cuts(self, query: Query, narrower: Query) -> bool:
        """Whether all instances have cut variables and the queries differ in these alone."""
        differs = query.allowed != narrower.allowed
        for part in self.forests:
            differs[part.cut_state] = False
        return bool(self.ok.all()) and np.array_equal(query.output, narrower.output) and not differs.any()


class BoundForests:
    """Forests bound to a query, and the states of their cut variables to a temperature."""

    def __init__(
        self, forests: CutForests, query: Query, eps_y: float, eps_h: float, some: Ints, workers: Workers
    ) -> None:
        own = forests.query(query)
        free = own.n_allowed(forests.batch) > 1
        low = eps_y if np.any(free & own.output) else eps_h
        high = eps_h if np.any(free & ~own.output) else low
        self.forests = forests
        self.route = ForestRoute(forests.plan, own, low, high, some, workers)
        self.wanted = mask_from_indices(some, len(forests.batch))
        self.nodes = forests.nodes.some(self.wanted)
        self.attached = forests.attached[0].some(self.wanted)
        self.asked = np.flatnonzero(mask_from_indices(forests.row[some], len(forests.instances)))
        self.eps = np.where(query.output[forests.variable], eps_y, eps_h)
        self.cold = self.eps == 0.0
        self.unit = np.where(self.cold, 1.0, self.eps)[forests.row]
        self.cold_states = np.flatnonzero(self.cold[forests.row])

    def weigh(self, values: Floats) -> tuple[Floats, Floats]:
        """PS over the states of every cut variable at its own temperature, and the weight of every state."""
        first = self.forests.ptr[:-1]
        row = self.forests.row
        top = np.maximum.reduceat(values, first)
        possible = top > -np.inf
        shift = np.where(possible, top, 0.0)
        with np.errstate(over="ignore"):
            weights = np.exp((values - shift[row]) / self.unit)
        if len(self.cold_states):
            weights[self.cold_states] = 0.0
            weights[(first + segment_argmax(values, self.forests.ptr))[self.cold & possible]] = 1.0
        total = np.add.reduceat(weights, first)
        total[~possible] = 1.0
        return np.where(possible, shift + self.eps * np.log(total), -np.inf), weights / total[row]


class CutsetRoute:
    """Conditioning bound to roles, masks and temperatures."""

    def __init__(
        self, plan: CutsetPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
    ) -> None:
        self.plan = plan
        self.instances = instances
        self.workers = workers
        self.parts = list[BoundForests]()
        chosen = mask_from_indices(instances, len(plan.batch))
        for part in plan.forests:
            some = np.flatnonzero(chosen[part.of] & query.allowed[part.cut_state])
            if len(some):
                self.parts.append(BoundForests(part, query, eps_y, eps_h, some, workers))

    def infer_into(
        self,
        theta: Potentials,
        value: Floats,
        mu: Marginals,
        narrower: Bools | None = None,
        minus: Floats | None = None,
    ) -> None:
        """Write value and marginals of the instances, the latter into zeros.

        With a mask ``narrower`` of the cut variables, values under it go to ``minus`` and mu is the difference of
        marginals.
        """
        if not self.plan.ok[self.instances].all():
            raise UnsupportedError(
                "no single variable separates an instance into an exactly solvable forest; use general elimination."
            )
        unary = np.ascontiguousarray(theta.unary)
        tables = np.ascontiguousarray(theta.tables)

        def run(bound: BoundForests) -> None:
            part = bound.forests
            route = bound.route
            own = part.batch
            n = own.n_states
            workspace = self.workers.workspace("forests", 2 * n + own.n_mu_entries)
            scores = Potentials(workspace[:n], tables[part.table_source])
            found = Marginals(workspace[n : 2 * n], workspace[2 * n :])
            scores.unary[:] = 0.0
            bound.nodes.add(unary, scores.unary)
            bound.attached.add(tables, scores.unary)
            values = np.full(len(own), -np.inf)
            route.infer_into(scores, values, found)
            values += unary[part.cut_state]
            mine = part.instances[bound.asked]
            best, share = bound.weigh(values)
            value[mine] = best[bound.asked]
            if narrower is not None and minus is not None:
                best, other = bound.weigh(np.where(narrower[part.cut_state], values, -np.inf))
                minus[mine] = best[bound.asked]
                share -= other
            share[~bound.wanted] = 0.0
            mu.unary[part.cut_state[route.instances]] = share[route.instances]
            part.nodes.add_back(found.unary, mu.unary, share)
            part.attached[1].add_back(found.unary, mu.tables, share)
            part.edges.add_back(found.tables, mu.tables, share[part.edge_owner])

        self.workers.parallel_map(run, self.parts)


@dataclass(frozen=True, eq=False)
class CutsetPair:
    """Paired inference in one pass, where the narrower query restricts cut variables (labels) alone.

    If the potentials of both queries differ, the narrower one is bound separately (``bind_minus``), at first need.
    """

    route: CutsetRoute
    plus: BoundQuery
    narrower: Query
    bind_minus: Callable[[], BoundQuery]

    @cached_property
    def minus(self) -> BoundQuery:
        return self.bind_minus()

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        if theta_plus is not theta_minus:
            return TwoCalls(self.plus, self.minus)(theta_plus, theta_minus)
        batch = self.route.plan.batch
        plus = np.zeros(len(batch))
        minus = np.zeros(len(batch))
        mu = Marginals.zeros(batch)
        theta_plus.check(batch)
        self.route.infer_into(theta_plus, plus, mu, self.narrower.allowed, minus)
        return Paired(plus, minus, mu, Status.exactly(plus, NAME), Status.exactly(minus, NAME))

"""Exact inference where fixing one variable (the cutset) leaves a pairwise forest, such as the class of a hidden chain.

value = PS over the cutset (at its own temperature) of [its score + nested power sum of the forest given it].

Every state of a cut variable makes an instance of its own: the forest that is left, with the scores and the slices of
tables that the state selects. These run as all forests do (``plan``), side by side where they are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals, Potentials, Query, Status, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, by_first_use, counts, offsets, ranks, spans, spread
from mssvm.engines.base import Bound, Paired, TwoCalls
from mssvm.engines.numba.forests.plan import ForestPlan, ForestRoute, distinct_rows
from mssvm.engines.numba.forests.rooting import rooting_of
from mssvm.engines.numba.vector import pointer_to

NAME = "conditioning"
TRIED = 8  # variables that are tried as cutsets, those in most factors first
AT_ONCE = 1 << 18  # states of the forests that are laid out together
LO, GAP, TO, SIZE, FACTORS, KIND = range(6)  # columns of an instance: see ``CutForests``
NODES = np.zeros((0, 5), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class CutTopology:
    """A topology with its cut variable and the forest that is left.

    A row of ``edges``: factor, steps in its table from a state of the cut variable to the next (0: not in its scope)
    and of the other two, and the states of these. A row of ``attached``, factors of the cut variable and one other:
    factor, where the states of the other begin in the forest, their number, steps of the cut variable and of the other.
    """

    variable: int
    rest: Topology
    edges: Ints
    attached: Ints

    @classmethod
    def at(cls, topology: Topology, v: int) -> CutTopology:
        """The topology cut at v, whose larger factors have v and two others in their scope."""
        cards = topology.cards[:v] + topology.cards[v + 1 :]
        first, edges, attached, scopes = offsets(np.array(cards, dtype=np.int64)), [], [], list[tuple[int, ...]]()
        for f, scope in enumerate(topology.scopes):
            steps = topology.scope_strides[topology.scope_ptr[f] : topology.scope_ptr[f + 1]].tolist()
            step = steps.pop(scope.index(v)) if v in scope else 0
            others = tuple(u - (u > v) for u in scope if u != v)
            if len(others) == 1:
                attached.append((f, first[others[0]], cards[others[0]], step, *steps))
            else:
                edges.append((f, step, *steps, cards[others[0]], cards[others[1]]))
                scopes.append(others)
        tables = np.array(edges, dtype=np.int64).reshape(-1, 6), np.array(attached, dtype=np.int64).reshape(-1, 5)
        return cls(v, Topology(cards, tuple(scopes)), *tables)


@lru_cache(4096)
def cut_of(topology: Topology) -> CutTopology | None:
    """The topology cut at the variable in most factors that leaves a pairwise forest."""
    large = [set(s) for s in topology.scopes if len(s) > 2]
    candidates = set.intersection(*large) if large else set(range(topology.n_vars))
    degree = np.bincount(topology.scope_flat, minlength=topology.n_vars)
    if topology.scope_sizes.max(initial=0) > 3 or topology.n_factors - degree.max(initial=0) > topology.n_vars - 2:
        return None  # whichever goes, more factors are left than a forest of the others has
    for v in sorted(candidates, key=lambda i: (-int(degree[i]), i))[:TRIED]:
        found = CutTopology.at(topology, v)
        if rooting_of(found.rest).valid:
            return found
    return None


class CutForests:
    """The forests of some instances, one for every state of their cut variables, as a batch of its own.

    ``of`` is the instance of each and ``row`` its number among ``instances``, ``ptr`` the forests of each instance,
    ``cut_state`` where the state lies among those of the batch. ``rows``, by instance: its states begin at LO, those of
    the cut variable GAP behind; those of its forests at TO, SIZE each; its factors at FACTORS. ``table_source`` has the
    entry that each entry of the tables is a copy of; ``blocks`` say where marginals of tables go: forest, from, to,
    rows, columns, steps of these.
    """

    def __init__(self, batch: Batch, cuts: list[CutTopology | None], instances: Ints) -> None:
        self.source, self.instances, self.cuts = batch, instances, list[CutTopology]()
        first, kind = by_first_use(batch.topology_of[instances])
        graphs, number = dict[Topology, int](), []
        for g in batch.topology_of[instances[first]].tolist():
            cut = cuts[g]
            assert cut is not None
            self.cuts.append(cut)
            number.append(graphs.setdefault(cut.rest, len(graphs)))
        self.variable = batch.var_ptr[instances] + np.array([cut.variable for cut in self.cuts], dtype=np.int64)[kind]
        states = np.diff(batch.unary_ptr)[self.variable]
        self.ptr, self.row = offsets(states), np.repeat(np.arange(len(instances)), states)
        self.of, state, kinds = instances[self.row], ranks(self.ptr), kind[self.row]
        self.cut_state = np.repeat(batch.unary_ptr[self.variable], states) + state
        edges = np.concatenate([cut.edges for cut in self.cuts])
        per_kind = np.array([len(cut.edges) for cut in self.cuts], dtype=np.int64)
        patterns, pattern = distinct_rows(edges[:, 2:])
        each = spans((np.cumsum(per_kind) - per_kind)[kinds], per_kind[kinds])  # the edges of every forest
        factor = np.repeat(batch.factor_ptr[self.of], per_kind[kinds]) + edges[each, 0]
        inside = np.repeat(state, per_kind[kinds]) * edges[each, 1]
        start, steps, shape = batch.table_at[factor] + inside, edges[each, 2:4], edges[each, 4:]
        ids = start * len(patterns) + pattern[each]
        self.batch = own = Batch.of_kinds(tuple(graphs), np.array(number, dtype=np.int64)[kinds], ids)
        first = by_first_use(ids)[0]  # the order in which tables lie
        size, block = shape[first].prod(axis=1), own.mu_first
        at, width = ranks(offsets(size)), np.repeat(shape[first, 1], size)
        begin, down, right = (np.repeat(part, size) for part in (start[first], *steps[first].T))
        self.table_source = begin + at // width * down + at % width * right
        places = [own.factor_owner[block], own.mu_at[block], batch.mu_at[factor[block]] + inside[block]]
        self.blocks = np.stack([*places, *shape[block].T, *steps[block].T], axis=1)
        lo, to = batch.unary_ptr[batch.var_ptr[instances]], own.unary_ptr[own.var_ptr]
        columns = [lo, batch.unary_ptr[self.variable] - lo, to[self.ptr[:-1]], np.diff(to)[self.ptr[:-1]]]
        self.rows = np.stack([*columns, batch.factor_ptr[instances], kind], axis=1)
        attached = [cut.attached for cut in self.cuts]
        self.attached = np.concatenate([NODES, *attached])
        self.attached_ptr = offsets(np.array([len(rows) for rows in attached], dtype=np.int64))

    @cached_property
    def plan(self) -> ForestPlan:
        return ForestPlan(self.batch)

    def query(self, query: Query) -> Query:
        """Roles and masks of the variables that are left."""
        batch, own, n = self.source, self.batch, np.diff(self.ptr)
        sizes, first = np.diff(own.var_ptr), np.repeat(self.variable, n)
        variables = spans(batch.var_ptr[self.of], sizes)
        variables += variables >= np.repeat(first, sizes)
        sizes, lo, gap = (np.repeat(self.rows[:, k], n) for k in (SIZE, LO, GAP))
        states = spans(lo, sizes)
        states += (states >= np.repeat(lo + gap, sizes)) * np.repeat(np.repeat(n, n), sizes)
        return Query(query.output[variables], query.allowed[states])


class CutsetPlan:
    """Exact inference on graphs that one variable separates into a pairwise forest (factors up to order three).

    Exact when that variable is an output, is clamped, or the temperatures of all free variables agree with its own.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch, self.cuts = batch, [cut_of(topology) for topology in batch.topologies]
        self.ok: Bools = np.array([cut is not None for cut in self.cuts], dtype=bool)[batch.topology_of]

    @cached_property
    def forests(self) -> list[CutForests]:
        """The forests of all instances that have some, in parts that are a function of the data alone."""
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
            own, given = part.query(query), part.variable
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
        self.forests, self.route = forests, ForestRoute(forests.plan, own, low, high, some, workers)
        self.wanted = spread(some, len(forests.batch))
        self.asked = np.flatnonzero(spread(forests.row[some], len(forests.instances)))
        self.eps = np.where(query.output[forests.variable], eps_y, eps_h)
        self.cold = self.eps == 0.0
        self.unit = np.where(self.cold, 1.0, self.eps)[forests.row]
        self.cold_states = np.flatnonzero(self.cold[forests.row])

    def weigh(self, values: Floats) -> tuple[Floats, Floats]:
        """PS over the states of every cut variable at its own temperature, and the weight of every state."""
        first, row = self.forests.ptr[:-1], self.forests.row
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
    """Conditioning at given roles, masks and temperatures."""

    def __init__(
        self, plan: CutsetPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
    ) -> None:
        self.plan, self.instances, self.workers = plan, instances, workers
        self.parts, chosen = list[BoundForests](), spread(instances, len(plan.batch))
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
        """Write value and marginals of the instances, the latter into zeros. With a mask ``narrower`` of the cut
        variables, ``minus`` gets the values under it and mu is the difference of marginals."""
        if not self.plan.ok[self.instances].all():
            raise UnsupportedError(
                "no single variable separates an instance into an exactly solvable forest; use general elimination."
            )
        unary, tables = np.ascontiguousarray(theta.unary), np.ascontiguousarray(theta.tables)

        def run(bound: BoundForests) -> None:
            part, route = bound.forests, bound.route
            own, given = part.batch, (part.ptr, part.attached_ptr, part.attached, part.rows)
            n = own.n_states
            room = self.workers.room(2 * n + own.n_mu_entries)
            scores, found = Potentials(room[:n], tables[part.table_source]), Marginals(room[n : 2 * n], room[2 * n :])
            if route.dense:  # of which not every entry is written
                found.unary[:], found.tables[:] = 0.0, 0.0
            place(bound.wanted, *given, self.plan.batch.table_at, unary, tables, scores.unary)
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
            mu.unary[part.cut_state[route.instances]] = share[route.instances]
            add_marginals(
                *given, part.blocks, self.plan.batch.mu_at, share, found.unary, found.tables, mu.unary,
                mu.tables,
            )  # fmt: skip

        self.workers.each(run, self.parts)


@dataclass(frozen=True, eq=False)
class CutsetPair:
    """Paired inference in one pass, where the narrower query restricts cut variables (labels) alone and both have the
    same potentials; elsewhere it is bound by itself (``bind_minus``), once that is needed."""

    route: CutsetRoute
    plus: Bound
    narrower: Query
    bind_minus: Callable[[], Bound]

    @cached_property
    def minus(self) -> Bound:
        return self.bind_minus()

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        if theta_plus is not theta_minus:
            return TwoCalls(self.plus, self.minus)(theta_plus, theta_minus)
        batch = self.route.plan.batch
        plus, minus, mu = np.zeros(len(batch)), np.zeros(len(batch)), Marginals.zeros(batch)
        theta_plus.check(batch)
        self.route.infer_into(theta_plus, plus, mu, self.narrower.allowed, minus)
        return Paired(plus, minus, mu, Status.exactly(plus, NAME), Status.exactly(minus, NAME))


@njit(cache=True, nogil=True, error_model="numpy")
def place(
    wanted: Bools, ptr: Ints, attached_ptr: Ints, attached: Ints, rows: Ints, table_at: Ints, unary: Floats,
    tables: Floats, out: Floats,
) -> None:  # fmt: skip
    """Scores of the nodes of forests: their own, and those that the state of the cut variable adds."""
    source, extra, target = pointer_to(unary), pointer_to(tables), pointer_to(out)
    for b in range(len(rows)):
        first, n, lo, gap, to, size = ptr[b], ptr[b + 1] - ptr[b], rows[b, LO], rows[b, GAP], rows[b, TO], rows[b, SIZE]
        for c in range(n):
            if not wanted[first + c]:  # nobody reads these
                for j in range(size):
                    target[to + c * size + j] = 0.0
                continue
            for j in range(gap):
                target[to + c * size + j] = source[lo + j]
            for j in range(gap, size):
                target[to + c * size + j] = source[lo + n + j]
        for h in range(attached_ptr[rows[b, KIND]], attached_ptr[rows[b, KIND] + 1]):
            at, k, cut_step, step = attached[h, 1], attached[h, 2], attached[h, 3], attached[h, 4]
            table = table_at[rows[b, FACTORS] + attached[h, 0]]
            for c in range(n):
                for x in range(k if wanted[first + c] else 0):
                    target[to + c * size + at + x] += extra[table + c * cut_step + x * step]


@njit(cache=True, nogil=True, error_model="numpy")
def add_marginals(
    ptr: Ints, attached_ptr: Ints, attached: Ints, rows: Ints, blocks: Ints, mu_at: Ints, share: Floats,
    found: Floats, found_tables: Floats, mu: Floats, mu_tables: Floats,
) -> None:  # fmt: skip
    """mu += share * marginals of every forest: of nodes, of what is attached to them, and of edges."""
    source, tables, nodes, edges = pointer_to(found), pointer_to(found_tables), pointer_to(mu), pointer_to(mu_tables)
    for b in range(len(rows)):
        first, n, lo, gap, to, size = ptr[b], ptr[b + 1] - ptr[b], rows[b, LO], rows[b, GAP], rows[b, TO], rows[b, SIZE]
        for c in range(n):
            weight = share[first + c]
            if weight != 0.0:
                for j in range(gap):
                    nodes[lo + j] += weight * source[to + c * size + j]
                for j in range(gap, size):
                    nodes[lo + n + j] += weight * source[to + c * size + j]
        for h in range(attached_ptr[rows[b, KIND]], attached_ptr[rows[b, KIND] + 1]):
            at, k, cut_step, step = attached[h, 1], attached[h, 2], attached[h, 3], attached[h, 4]
            table = mu_at[rows[b, FACTORS] + attached[h, 0]]
            for c in range(n):
                weight = share[first + c]
                for x in range(k if weight != 0.0 else 0):
                    edges[table + c * cut_step + x * step] += weight * source[to + c * size + at + x]
    for p in range(len(blocks)):
        weight, at, table = share[blocks[p, 0]], blocks[p, 1], blocks[p, 2]
        for i in range(blocks[p, 3] if weight != 0.0 else 0):
            for j in range(blocks[p, 4]):
                edges[table + i * blocks[p, 5] + j * blocks[p, 6]] += weight * tables[at]
                at += 1

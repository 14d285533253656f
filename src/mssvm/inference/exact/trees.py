"""Exact nested power sums (paper eq. 5) on pairwise forests, chains above all, with run-time roles and masks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, offsets, spans
from mssvm.engines.numba.forests.chain import LANES, run_chains
from mssvm.engines.numba.forests.forest import AT_H, AT_Y, check_forests, read_modes, run_forests
from mssvm.engines.numba.forests.rooting import plan_forest
from mssvm.engines.numba.forests.scaled import Forest, Layout, Tables, exp_tables
from mssvm.inference.remember import Recent, WhileAlive

LANE_STATES = 48  # with more, one chain at a time is as fast
CACHED = 1 << 15  # doubles of one buffer of a group of chains
BLOCK = 64  # instances of one unit of work; fixed, so that results do not depend on the number of threads


@dataclass(frozen=True, eq=False)
class Rooting:
    """A topology with every component rooted at its last node; ``valid`` only if it is a pairwise forest."""

    valid: bool
    order: Ints
    parent: Ints
    edge: Ints
    flip: Bools
    degree: Ints
    ends: Ints

    @classmethod
    def of(cls, n: int, scopes: tuple[tuple[int, ...], ...]) -> Rooting:
        pairwise = all(len(s) == 2 for s in scopes)
        size = n if pairwise else 0
        ends = np.array(scopes if pairwise else (), dtype=np.int64).reshape(-1, 2)
        order, edge, degree = (np.zeros(size, dtype=np.int64) for _ in range(3))
        parent, flip = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=bool)
        valid = pairwise and bool(
            plan_forest(size, ends, order, parent, edge, flip, degree, np.zeros(size, dtype=bool))
        )
        return cls(valid, order, parent, edge, flip, degree, ends)


def stack_forests(rootings: list[Rooting], cards: list[Ints]) -> Forest:
    """Concatenate rooted topologies with the cardinalities of their nodes; those not valid become empty."""
    empty = np.zeros(0, dtype=np.int64)
    kept = [(r, c) if r.valid else (Rooting.of(0, ()), empty) for r, c in zip(rootings, cards, strict=True)]

    def joined(parts: list[Ints]) -> Ints:
        return np.concatenate([empty, *parts])

    return Forest(
        offsets(np.array([len(c) for _, c in kept], dtype=np.int64)),
        offsets(np.array([len(r.ends) for r, _ in kept], dtype=np.int64)),
        joined([c for _, c in kept]),
        joined([offsets(c)[:-1] for _, c in kept]),
        joined([r.order for r, _ in kept]),
        joined([r.parent for r, _ in kept]),
        joined([r.edge for r, _ in kept]),
        joined([r.flip.astype(np.int64) for r, _ in kept]).astype(bool),
        joined([r.degree for r, _ in kept]),
        np.concatenate([np.zeros((0, 2), dtype=np.int64), *[r.ends for r, _ in kept]]),
    )


def tables_of(batch: Batch, used: Ints, shapes: Ints, ok: Bools) -> tuple[Ints, Ints, Ints, Bools]:
    """Starts of the tables of the factors ``used``, the first factor of each, each factor's table, and which factors
    read a table in another shape than the first: it has no single transpose, so their instances are no longer ``ok``
    and are left to general elimination."""
    starts, first, inverse = np.unique(batch.table_at[used], return_index=True, return_inverse=True)
    odd = np.any(shapes[used] != shapes[used][first][inverse], axis=1)
    owner = np.repeat(np.arange(len(batch)), np.diff(batch.factor_ptr))
    ok[owner[used[odd]]] = False
    return starts, first, inverse, odd


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Everything about a batch that does not depend on potentials, roles or masks."""

    ok: Bools
    forest: Forest
    layout: Layout
    starts: Ints
    rows: Ints
    cols: Ints
    table_of: Ints  # factor -> index into starts; -1 for instances that are not pairwise forests
    chain_k: Ints  # states of every node where the instance is a chain 0 - 1 - 2 ... reading one table, else 0
    chain_order: Ints  # those chains, sorted by states, table and length

    @classmethod
    def of(cls, batch: Batch, rooting: Callable[[Topology], Rooting]) -> TreePlan:
        roots = [rooting(g) for g in batch.topologies]
        forest = stack_forests(roots, [g.card_array for g in batch.topologies])
        ok = np.array([r.valid for r in roots], dtype=bool)[batch.topology_of]
        shapes = [
            g.card_array[r.ends] if r.valid else np.zeros((g.n_factors, 2), dtype=np.int64)
            for g, r in zip(batch.topologies, roots, strict=True)
        ]
        shape = np.concatenate([np.zeros((0, 2), dtype=np.int64), *[shapes[g] for g in batch.topology_of]])
        used = np.flatnonzero(shape[:, 0] > 0)
        starts, first, inverse, _ = tables_of(batch, used, shape, ok)
        table_of = np.full(batch.n_factors, -1, dtype=np.int64)
        table_of[used] = inverse
        b = batch
        layout = Layout(b.topology_of, b.var_ptr, b.factor_ptr, b.unary_ptr, b.table_at, b.mu_at)
        chain_k = _chain_states(batch)
        chains = np.flatnonzero(chain_k)
        at = batch.table_at[batch.factor_ptr[chains]]
        order = chains[np.lexsort((np.diff(batch.var_ptr)[chains], at, chain_k[chains]))]
        return cls(
            ok, forest, layout, starts, shape[used][first, 0], shape[used][first, 1], table_of, chain_k, order
        )  # fmt: skip

    @cached_property
    def all_lane_groups(self) -> tuple[Ints, Ints]:
        return self.lane_groups(np.ones(len(self.ok), dtype=bool))

    def lane_groups(self, chosen: Bools) -> tuple[Ints, Ints]:
        """The chosen chains in groups with the same states and table: group offsets and members."""
        members = self.chain_order[chosen[self.chain_order]]
        at = self.layout.table_at[self.layout.factor_ptr[members]]
        k = self.chain_k[members]
        count = self.layout.var_ptr[members + 1] - self.layout.var_ptr[members]
        return group_lanes((at, k), k, count), members

    def tables(self, raw: Floats, eps: float, which: Ints) -> Tables:
        """exp(table / eps) of the tables that the named instances read."""
        if len(which) == len(self.ok):
            return make_tables(raw, eps, self.starts, self.rows, self.cols)
        count = self.layout.factor_ptr[which + 1] - self.layout.factor_ptr[which]
        chosen = np.unique(self.table_of[spans(self.layout.factor_ptr[which], count)])
        return make_tables(raw, eps, self.starts[chosen], self.rows[chosen], self.cols[chosen])


def group_lanes(keys: tuple[Ints, ...], k: Ints, count: Ints) -> Ints:
    """Cut sorted chains into groups of equal keys and of so many lanes that their beliefs stay in the cache."""
    n = len(k)
    new = np.zeros(max(n - 1, 0), dtype=bool)
    for key in keys:
        new |= np.diff(key) != 0
    runs = np.concatenate([[0], np.flatnonzero(new) + 1, [n]])
    ptr = []
    for lo, hi in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
        if hi > lo:
            size = int(k[lo] * count[lo:hi].max())
            parts = -(-(hi - lo) // max(32, min(LANES, CACHED // size // 8 * 8)))
            ptr.append(lo + (hi - lo) * np.arange(parts) // parts)
    return np.concatenate([*ptr, [n]]).astype(np.int64)


def _chain_states(batch: Batch) -> Ints:
    """Number of states of the instances that are chains in order with one cardinality and one table; 0 elsewhere."""
    per_graph = np.zeros(len(batch.topologies), dtype=np.int64)
    for g, graph in enumerate(batch.topologies):
        path = graph.n_vars > 1 and graph.scopes == tuple((t, t + 1) for t in range(graph.n_vars - 1))
        if path and len(set(graph.cards)) == 1 and graph.cards[0] <= LANE_STATES:
            per_graph[g] = graph.cards[0]
    states = per_graph[batch.topology_of]
    chains = np.flatnonzero(states)
    count = batch.factor_ptr[chains + 1] - batch.factor_ptr[chains]
    at = batch.table_at[spans(batch.factor_ptr[chains], count)]
    first = np.repeat(batch.table_at[batch.factor_ptr[chains]], count)
    states[np.repeat(chains, count)[at != first]] = 0
    return states


def make_tables(raw: Floats, eps: float, starts: Ints, rows: Ints, cols: Ints) -> Tables:
    """The tables at ``starts`` at temperature eps (see ``engines.scaled.Tables``)."""
    size = len(raw)
    e, et = (np.empty(size if eps > 0.0 else 0) for _ in range(2))
    tables = Tables(raw, e, et, np.empty(size), np.empty(size))
    exp_tables(raw, starts, rows, cols, eps, e, et, tables.top, tables.span)
    return tables


def in_blocks(which: Ints, threads: int, block: int, work: Callable[[Ints], bool]) -> bool:
    """Run ``work`` on all, in fixed blocks over a pool when there are several threads; whether all succeeded."""
    if threads == 1 or len(which) <= block:
        return work(which)
    with ThreadPoolExecutor(threads) as pool:
        return all(list(pool.map(work, [which[i : i + block] for i in range(0, len(which), block)])))


@dataclass
class Trees:
    """Exact inference on pairwise forests in which every hidden component touches at most two free outputs.

    Roles and masks are free where eps_y = eps_h, and where all free variables have one role.
    """

    threads: int = 1
    _rootings: Recent[Topology, Rooting] = field(default_factory=lambda: Recent(4096), init=False, repr=False)
    _plans: WhileAlive[Batch, TreePlan] = field(default_factory=WhileAlive, init=False, repr=False)

    def _plan(self, batch: Batch) -> TreePlan:
        def root(graph: Topology) -> Rooting:
            return self._rootings.get(graph, lambda g: Rooting.of(g.n_vars, g.scopes))

        return self._plans.get(batch, lambda: TreePlan.of(batch, root))

    def supports(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is it a pairwise forest on which these roles and temperatures are exact here?"""
        plan = self._plan(batch)
        ok = plan.ok.copy()
        if eps_y != eps_h and ok.any():
            check_forests(plan.forest, plan.layout, query.allowed, query.output, False, ok)
        return ok

    def fill(
        self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float,
        which: Ints, value: Floats, mu: Marginals | None,
    ) -> None:  # fmt: skip
        """Write value and marginals of the instances ``which`` in place."""
        plan = self._plan(batch)
        ty = plan.tables(theta.tables, eps_y, which)
        th = ty if eps_h == eps_y else plan.tables(theta.tables, eps_h, which)
        out = mu if mu is not None else Marginals(np.zeros(0), np.zeros(0))

        done = np.zeros(len(batch), dtype=bool)
        for mode, eps, tables in ((AT_Y, eps_y, ty), (AT_H, eps_h, th)):
            if eps > 0.0 and (mode == AT_Y or eps_y != eps_h):
                self._chains(plan, theta, query, which, mode, eps_y == eps_h, eps, tables, value, mu, done)

        def work(part: Ints) -> bool:
            return bool(
                run_forests(
                    part, plan.forest, plan.layout, theta.unary, query.allowed, query.output, eps_y, eps_h, ty, th,
                    value, mu is not None, out.unary, out.tables,
                )
            )  # fmt: skip

        which = which[~done[which]]
        if not len(which):
            return
        if not (plan.ok[which].all() and in_blocks(which, self.threads, BLOCK, work)):
            raise UnsupportedError(
                "an instance is no forest whose hidden components touch at most two outputs; use general elimination."
            )

    def _chains(
        self, plan: TreePlan, theta: Potentials, query: Query, which: Ints, mode: int, equal: bool, eps: float,
        tables: Tables, value: Floats, mu: Marginals | None, done: Bools,
    ) -> None:  # fmt: skip
        """Chains side by side wherever all free variables of an instance have the temperature ``eps``."""
        if equal and len(which) == len(done):
            ptr, members = plan.all_lane_groups
        else:
            modes = np.full(len(done), -1, dtype=np.int64)
            candidates = which[plan.chain_k[which] > 0]
            if equal:
                modes[candidates] = AT_Y
            else:
                read_modes(candidates, plan.layout, query.allowed, query.output, modes)
            ptr, members = plan.lane_groups(modes == mode)
        out = mu if mu is not None else Marginals(np.zeros(0), np.zeros(0))

        def work(part: Ints) -> bool:
            run_chains(
                ptr[part[0] : part[-1] + 2], members, plan.layout, plan.chain_k, theta.unary, query.allowed,
                eps, tables, value, mu is not None, out.unary, out.tables, done,
            )  # fmt: skip
            return True

        if len(ptr) > 1:
            in_blocks(np.arange(len(ptr) - 1), self.threads, 1, work)

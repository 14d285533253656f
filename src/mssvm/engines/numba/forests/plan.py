"""Exact nested power sums (paper eq. 5) on pairwise forests, chains above all: planned once, bound once, run often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, by_first_use, offsets, spans
from mssvm.engines.numba.forests.chain import LANES
from mssvm.engines.numba.forests.forest import AT_H, AT_Y, MIXED, check_forests, read_modes, run_forests
from mssvm.engines.numba.forests.lanes import Family, max_lanes, sum_lanes
from mssvm.engines.numba.forests.links import run_links
from mssvm.engines.numba.forests.rooting import plan_forest
from mssvm.engines.numba.forests.scaled import BatchPtr, Forest, Tables, exp_tables
from mssvm.engines.numba.vector import WIDTH

LANE_STATES = 48  # with more, one chain at a time is as fast
CACHED = 1 << 15  # doubles of one buffer of a group of chains
BLOCK = 64  # instances handed to a thread at a time
FEWEST = 3  # instances that are worth a register of eight
NOTHING = np.zeros(0, dtype=np.int64)


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
        valid = pairwise and plan_forest(size, ends, order, parent, edge, flip, degree, np.zeros(size, dtype=bool))
        return cls(bool(valid), order, parent, edge, flip, degree, ends)


@lru_cache(4096)
def rooting_of(topology: Topology) -> Rooting:
    """The rooting of a topology, worked out once for all batches that hold it."""
    return Rooting.of(topology.n_vars, topology.scopes)


class LinkPath(NamedTuple):
    """A chain of labels joined by links of other variables: y - h - y - ... - y, by variables and factors in order."""

    labels: Ints
    links: Ints
    left: Ints  # factors y - h
    right: Ints  # factors h - y
    flips: tuple[bool, bool]  # whether tables of either kind have their axes the other way round
    states: tuple[int, int]


@lru_cache(4096)
def link_path(topology: Topology) -> LinkPath | None:
    """The topology as labels and links in turn, or None if it is not made so."""
    n, near = topology.n_vars, [list[tuple[int, int]]() for _ in range(topology.n_vars)]
    if n < 3 or n % 2 == 0 or topology.n_factors != n - 1 or any(len(s) != 2 for s in topology.scopes):
        return None
    for f, (i, j) in enumerate(topology.scopes):
        near[i].append((j, f))
        near[j].append((i, f))
    ends = [v for v in range(n) if len(near[v]) == 1]
    if len(ends) != 2 or max(map(len, near)) > 2:
        return None
    path, factors = [ends[0]], list[int]()
    while len(path) < n:
        step = [(u, f) for u, f in near[path[-1]] if not factors or f != factors[-1]]
        if not step:
            return None
        path.append(step[0][0])
        factors.append(step[0][1])
    cards = topology.card_array[path]
    flips = [topology.scopes[f][0] != path[k] for k, f in enumerate(factors)]
    alike = len({*cards[::2]}) == len({*cards[1::2]}) == len({*flips[::2]}) == len({*flips[1::2]}) == 1
    if not alike:
        return None
    at, by = np.array(path), np.array(factors)
    return LinkPath(at[::2], at[1::2], by[::2], by[1::2], (flips[0], flips[1]), (int(cards[0]), int(cards[1])))


def stack_forests(rootings: list[Rooting], cards: list[Ints]) -> Forest:
    """Concatenate rooted topologies with the cardinalities of their nodes; those not valid become empty."""
    rows = [(NOTHING,) * 8]
    for rooting, cardinalities in zip(rootings, cards, strict=True):
        r, c = (rooting, cardinalities) if rooting.valid else (Rooting.of(0, ()), NOTHING)
        rows.append((c, offsets(c)[:-1], r.order, r.parent, r.edge, r.flip.astype(np.int64), r.degree, r.ends.ravel()))
    nodes, factors = (offsets(np.array([len(row[k]) for row in rows[1:]], dtype=np.int64)) for k in (0, 7))
    card, start, order, parent, edge, flip, degree, ends = map(np.concatenate, zip(*rows, strict=True))
    return Forest(
        nodes, factors // 2, card, start, order, parent, edge, flip.astype(bool), degree, ends.reshape(-1, 2)
    )


def layout_of(batch: Batch) -> BatchPtr:
    return BatchPtr(
        batch.topology_of, batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.table_at, batch.mu_at
    )


def tables_of(batch: Batch, used: Ints, shapes: Ints, ok: Bools) -> tuple[Ints, Ints, Ints, Bools]:
    """Starts of the tables of the factors ``used``, which of these is the first of each, each one's table, and which
    read a table in another shape than the first: it has no single transpose, so their instances are no longer ``ok``
    and are left to general elimination."""
    at, shape = batch.table_at[used], shapes[used]
    first, table = by_first_use(at)
    odd = np.any(shape != shape[first][table], axis=1)
    if odd.any():
        ok[batch.factor_owner[used[odd]]] = False
    return at[first], first, table, odd


@dataclass(frozen=True, eq=False)
class TableSet:
    """Tables that a bound reads, by start, rows and columns."""

    starts: Ints
    rows: Ints
    cols: Ints

    def at_both(self, raw: Floats, eps_y: float, eps_h: float) -> tuple[Tables, Tables]:
        """The tables at the temperatures of outputs and of hidden variables, one for both if these are equal."""
        size, made = len(raw), list[Tables]()
        for eps in (eps_y,) if eps_h == eps_y else (eps_y, eps_h):
            e, et = (np.empty(size if eps > 0.0 else 0) for _ in range(2))
            made.append(Tables(raw, e, et, np.empty(size), np.empty(size)))
            exp_tables(raw, self.starts, self.rows, self.cols, eps, e, et, made[-1].top, made[-1].span)
        return made[0], made[-1]


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Different rows of a matrix, and which of them each row is; all alike is the common case, and sooner told."""
    if not rows.size or (rows == rows[0]).all():
        return rows[:1], np.zeros(len(rows), dtype=np.int64)
    kinds, of = np.unique(rows, axis=0, return_inverse=True)
    return kinds, of.ravel()


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


def blocks(instances: Ints, size: int, threads: int) -> list[Ints]:
    """The instances in one piece for one thread, else in blocks; each is computed on its own, so bits stay the same."""
    if threads == 1 or len(instances) <= size:
        return [instances]
    return [instances[i : i + size] for i in range(0, len(instances), size)]


class ForestPlan:
    """Exact inference on pairwise forests in which every hidden component touches at most two free outputs.

    Roles and masks are free where eps_y = eps_h, and where all free variables have one role.
    """

    def __init__(self, batch: Batch, side_by_side: bool = True) -> None:
        self.batch, self.layout, self.side_by_side = batch, layout_of(batch), side_by_side
        roots = [rooting_of(t) for t in batch.topologies]
        self.forest = stack_forests(roots, [t.card_array for t in batch.topologies])
        self.ok = np.array([r.valid for r in roots], dtype=bool)[batch.topology_of]

    def tables(self, instances: Ints) -> TableSet:
        """The tables of some instances; tied ones have one shape."""
        batch = self.batch
        factors = spans(batch.factor_ptr[instances], np.diff(batch.factor_ptr)[instances])
        at = batch.table_at[factors]
        first = by_first_use(at)[0]
        ends = batch.cards[batch.scope_vars[batch.scope_ptr[factors[first]][:, None] + np.arange(2)]]
        return TableSet(at[first], *np.ascontiguousarray(ends.T))

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is it a pairwise forest on which these roles and temperatures are exact here?"""
        ok = self.ok.copy()
        if eps_y != eps_h and ok.any():
            check_forests(self.forest, self.layout, query.allowed, query.output, False, ok)
        return ok

    @cached_property
    def _reading(self) -> list[tuple[Ints, Ints, bytes]]:
        """Per topology: the factors to the parents by position from the leaves to the roots (-1 at a root), the
        positions of the parents counted from the end, and both with cardinalities read from the root."""
        out = []
        for t in self.batch.topologies:
            r = rooting_of(t)
            if not r.valid or not t.n_vars:
                out.append((NOTHING, NOTHING, b""))
                continue
            position = np.empty(t.n_vars, dtype=np.int64)
            position[r.order] = np.arange(t.n_vars)
            parent = r.parent[r.order]
            distance = np.where(parent < 0, -1, t.n_vars - 1 - position[parent])
            factor = np.where(parent < 0, -1, r.edge[r.order])
            read = np.stack([t.card_array[r.order], distance, r.flip[r.order]], axis=1)[::-1]
            out.append((factor, distance, np.ascontiguousarray(read).tobytes()))
        return out

    def families(self, instances: Ints) -> list[LaneGroup]:
        """Instances that can run side by side: one forest read from the root, some ending sooner, the same tables."""
        batch, found = self.batch, dict[tuple[int, bytes], list[_Members]]()
        for g in np.argsort([-t.n_vars for t in batch.topologies], kind="stable").tolist():
            mine = instances[batch.topology_of[instances] == g]
            factor, _, reading = self._reading[g]
            if not len(mine) or not reading:
                continue
            edges = factor[factor >= 0]
            tables = batch.table_at[batch.factor_ptr[mine][:, None] + edges]
            kinds, of = distinct_rows(tables)
            for k, row in enumerate(kinds):
                key = (int(row[-1]) if len(row) else -1, reading[:24])
                same = [m for m in found.get(key, []) if m.reading.startswith(reading) and m.ends_with(row)]
                if not same:
                    same = [_Members(g, reading, row, [])]
                    found.setdefault(key, []).append(same[0])
                same[0].instances.append(mine[of == k])
        groups = [m for members in found.values() for m in members if sum(map(len, m.instances)) >= FEWEST]
        return [self._group(m) for m in groups]

    def _group(self, members: _Members) -> LaneGroup:
        topology = self.batch.topologies[members.topology]
        r, factor = rooting_of(topology), self._reading[members.topology][0]
        n, card = topology.n_vars, topology.card_array[r.order]
        distance = self._reading[members.topology][1]
        parent = np.where(distance < 0, -1, n - 1 - distance)
        sent = np.where(parent < 0, 0, card[parent])
        table = np.full(n, -1, dtype=np.int64)
        start, table[factor >= 0] = np.unique(members.tables, return_inverse=True)
        positions = [np.flatnonzero(table == k) for k in range(len(start))]
        ends = topology.card_array[r.ends[[factor[p[0]] for p in positions]]].reshape(-1, 2)
        only = (parent >= 0) & (np.bincount(parent[parent >= 0], minlength=n)[parent] == 1)
        family = Family(
            card, offsets(card)[:-1], parent, only, r.flip[r.order], offsets(sent)[:-1], table,
            offsets(np.array([len(p) for p in positions], dtype=np.int64)), np.concatenate([NOTHING, *positions]),
            int(card.sum()), int(sent.sum()),
        )  # fmt: skip
        chosen = np.concatenate(members.instances)
        ptr = np.append(np.arange(0, len(chosen), WIDTH), len(chosen))
        return LaneGroup(family, start, np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1]), ptr, chosen)


    def link_groups(self, instances: Ints, query: Query) -> list[LinkGroup]:
        """Chains of labels and hidden links among the instances, of one topology and the same tables each."""
        batch, out, hidden = self.batch, list[LinkGroup](), ~query.output | (query.n_allowed(self.batch) == 1)
        for g, topology in enumerate(batch.topologies):
            mine, path = instances[batch.topology_of[instances] == g], link_path(topology)
            if path is None or len(mine) < FEWEST:
                continue
            left, right = (batch.table_at[batch.factor_ptr[mine][:, None] + f] for f in (path.left, path.right))
            # One table for both kinds would have one marginal, which the kernel does not add up.
            fits = (left == left[:, :1]).all(1) & (right == right[:, :1]).all(1) & (left[:, 0] != right[:, 0])
            fits &= hidden[batch.var_ptr[mine][:, None] + path.links].all(1)
            kinds, of = distinct_rows(np.stack([left[:, 0], right[:, 0]], axis=1))
            for k in range(len(kinds)):
                chosen = mine[fits & (of == k)]
                if len(chosen) >= FEWEST:
                    out.append(LinkGroup(path, np.append(np.arange(0, len(chosen), WIDTH), len(chosen)), chosen))
        return out


class LinkGroup(NamedTuple):
    """Chains of labels and links that run side by side."""

    path: LinkPath
    ptr: Ints
    members: Ints


@dataclass(frozen=True, eq=False)
class _Members:
    """Instances of a family while they are collected: the longest topology, its reading, its tables by position."""

    topology: int
    reading: bytes
    tables: Ints
    instances: list[Ints]

    def ends_with(self, tables: Ints) -> bool:
        return len(tables) == 0 or np.array_equal(self.tables[-len(tables) :], tables)


class LaneGroup(NamedTuple):
    """Instances that run side by side: their family, the tables it reads, registers of instances."""

    family: Family
    start: Ints
    rows: Ints
    cols: Ints
    ptr: Ints
    members: Ints


class ForestRoute:
    """Forests at given roles, masks and temperatures: those of one temperature side by side, others one by one."""

    name = "tree recursion"

    def __init__(
        self, plan: ForestPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
    ) -> None:
        self.plan, self.query, self.eps_y, self.eps_h = plan, query, eps_y, eps_h
        self.instances, self.workers = instances, workers
        self.tables = plan.tables(instances)
        self.lanes, self.links = self._lanes()

    def _lanes(self) -> tuple[list[tuple[bool, LaneGroup]], list[LinkGroup]]:
        """What runs side by side: instances all of whose free variables have one temperature (and whether it is
        eps_h), and chains of labels and hidden links at two."""
        plan, modes = self.plan, np.full(len(self.plan.batch), AT_Y, dtype=np.int64)
        if not plan.side_by_side:
            return [], []
        if self.eps_y != self.eps_h:
            read_modes(self.instances, plan.layout, self.query.allowed, self.query.output, modes)
        mine = modes[self.instances]
        one = [(m == AT_H, group) for m in (AT_Y, AT_H) for group in plan.families(self.instances[mine == m])]
        mixed = self.instances[mine == MIXED] if self.eps_h > 0.0 else NOTHING
        return one, plan.link_groups(mixed, self.query) if len(mixed) else []

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances."""
        plan, query, each = self.plan, self.query, self.workers.each
        forest, layout = plan.forest, plan.layout
        ty, th = self.tables.at_both(theta.tables, self.eps_y, self.eps_h)
        done = np.zeros(len(value), dtype=bool)

        def side_by_side(at_h: bool, group: LaneGroup, part: Ints) -> None:
            f, start, rows, cols, ptr, members = group
            tables, eps = (th, self.eps_h) if at_h else (ty, self.eps_y)
            where = (ptr[part[0] : part[-1] + 2], members, f, forest.order, forest.edge, forest.node_ptr, layout, start)
            if eps > 0.0:
                sum_lanes(
                    *where, rows, cols, tables, theta.unary, query.allowed, eps, value, mu.unary, mu.tables, done
                )
            else:
                max_lanes(*where, rows, cols, tables.raw, theta.unary, query.allowed, value, mu.unary, mu.tables)
                done[members[ptr[part[0]] : ptr[part[-1] + 1]]] = True

        ratio = log2(self.eps_h / self.eps_y) if self.eps_y > 0.0 < self.eps_h else -1.0
        squarings = int(ratio) if ratio >= 0.0 and ratio == int(ratio) else -1

        def chains(group: LinkGroup, part: Ints) -> None:
            path, ptr = group.path, group.ptr[part[0] : part[-1] + 2]
            run_links(
                ptr, group.members, path.labels, path.links, path.left[0], path.right[0], path.flips, *path.states,
                layout, th, theta.unary, query.allowed, query.output, self.eps_y, self.eps_h, squarings, value,
                mu.unary, mu.tables, done,
            )  # fmt: skip

        def one_by_one(part: Ints) -> bool:
            exact: bool = run_forests(
                part, forest, layout, theta.unary, query.allowed, query.output, self.eps_y, self.eps_h, ty, th, value,
                True, mu.unary, mu.tables,
            )  # fmt: skip
            return exact

        for at_h, group in self.lanes:
            parts = blocks(np.arange(len(group.ptr) - 1), BLOCK // WIDTH, self.workers.idle)
            each(side_by_side, [at_h] * len(parts), [group] * len(parts), parts)
        for linked in self.links:
            parts = blocks(np.arange(len(linked.ptr) - 1), BLOCK // WIDTH, self.workers.idle)
            each(chains, [linked] * len(parts), parts)
        rest = self.instances[~done[self.instances]]
        if len(rest) and not all(each(one_by_one, blocks(rest, BLOCK, self.workers.idle))):
            raise UnsupportedError(
                "an instance is no forest whose hidden components touch at most two outputs; use general elimination."
            )

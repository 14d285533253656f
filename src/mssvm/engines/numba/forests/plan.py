"""Exact nested power sums (paper eq. 5) on pairwise forests, chains above all: planned once, bound once, run often."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import chain

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import ONE_BLAS_THREAD, Workers
from mssvm.core.topology import Batch, Topology, by_first_use, counts, offsets, spans
from mssvm.engines.numba.forests.dense import DenseForests, dense_forests
from mssvm.engines.numba.forests.forest import AT_H, AT_Y, MIXED, check_forests, run_forests
from mssvm.engines.numba.forests.lane_groups import (
    FEWEST,
    NOTHING,
    BoundLanes,
    Kernel,
    Kinds,
    Lanes,
    lane_group,
    parts_of,
    read_from_root,
)
from mssvm.engines.numba.forests.registers import TABLE_PARTS
from mssvm.engines.numba.forests.replica_groups import MOST_COPIES, replica_group
from mssvm.engines.numba.forests.rooting import Rooting, rooting_of
from mssvm.engines.numba.forests.scaled import BatchPtr, Forest, TableSet
from mssvm.engines.numba.vector import WIDTH

DENSE_STATES = 160  # of all variables of a family; with fewer, registers are as fast as matrix products
BLOCK = 64  # instances handed to a thread at a time
NO_COST, NO_SETS = np.zeros(0), np.zeros((0, 4), dtype=np.int64)
NO_BLOCKS: Mapping[int, int] = {}


def stack_forests(topologies: tuple[Topology, ...]) -> Forest:
    """Concatenate rooted topologies; those that are no forests become empty."""
    rows, sizes = [(NOTHING,) * 8], list[tuple[int, int]]()
    for topology in topologies:
        r, c = rooting_of(topology), topology.card_array
        r, c = (r, c) if r.valid else (Rooting.of(0, ()), NOTHING)
        rows.append((c, offsets(c)[:-1], r.order, r.parent, r.edge, r.flip.astype(np.int64), r.degree, r.ends.ravel()))
        sizes.append((len(c), r.ends.size))
    nodes, factors = map(offsets, np.array(sizes, dtype=np.int64).reshape(-1, 2).T)
    card, start, order, parent, edge, flip, degree, ends = map(np.concatenate, zip(*rows, strict=True))
    return Forest(nodes, factors // 2, card, start, order, parent, edge, flip.astype(bool), degree, ends.reshape(-1, 2))


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Different rows of a matrix, and which of them each row is; all alike is the common case, and sooner told."""
    if not rows.size or (rows == rows[0]).all():
        return rows[:1], np.zeros(len(rows), dtype=np.int64)
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, of = np.unique(whole, return_index=True, return_inverse=True)
    return rows[first], of.ravel()


def modes_of(batch: Batch, query: Query) -> Ints:
    """Which temperatures the free variables of every instance have, where the two differ."""
    free = query.n_allowed(batch) > 1
    some_y = counts(free & query.output, batch.var_ptr) > 0
    some_h = counts(free & ~query.output, batch.var_ptr) > 0
    return np.where(some_h, np.where(some_y, MIXED, AT_H), AT_Y)


def blocks(instances: Ints, size: int, threads: int) -> list[Ints]:
    """The instances in one piece for one thread, else in blocks; each is computed on its own, so bits stay the same."""
    if threads == 1 or len(instances) <= size:
        return [instances]
    return [instances[i : i + size] for i in range(0, len(instances), size)]


class ForestPlan:
    """Exact inference on pairwise forests in which every hidden component touches at most two free outputs.

    Roles and masks are free where eps_y = eps_h, and where all free variables have one role. ``blocks`` names tables by
    their starts that allow a state of one variable only with so many of the other, one after the other.
    """

    def __init__(self, batch: Batch, side_by_side: bool = True, blocks: Mapping[int, int] = NO_BLOCKS) -> None:
        self.batch, self.side_by_side, self.blocks = batch, side_by_side, blocks
        ok = np.zeros((2, len(batch.topologies)), dtype=bool)
        for g, topology in enumerate(batch.topologies):
            root = rooting_of(topology)
            ok[:, g] = root.valid, root.degree.max(initial=0) <= 2
        self.ok: Bools = ok[0, batch.topology_of]
        self.paths: Bools = ok[1, batch.topology_of]

    @cached_property
    def stacked(self) -> tuple[Forest, BatchPtr]:
        """The rooted topologies and the layout of the batch, as kernels for one instance at a time take them."""
        b = self.batch
        layout = BatchPtr(b.topology_of, b.var_ptr, b.factor_ptr, b.unary_ptr, b.table_at, b.mu_at)
        return stack_forests(b.topologies), layout

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is it a pairwise forest on which these roles and temperatures are exact here?"""
        ok = self.ok.copy()
        # In a path every hidden component has two neighbours at most.
        if eps_y != eps_h and np.any(ok & ~self.paths):
            check_forests(*self.stacked, query.allowed, query.output, False, ok)
        return ok

    def families(self, instances: Ints, query: Query | None) -> list[Kinds]:
        """Instances that can run side by side: one forest read from the root, some ending sooner, the same tables.

        Without a query all variables have one temperature.
        """
        batch, found, out = self.batch, dict[tuple[int, bytes], list[Kinds]](), list[Kinds]()
        sizes, topology_of = np.zeros(len(batch.topologies), dtype=np.int64), batch.topology_of[instances]
        sizes[batch.topology_of] = np.diff(batch.var_ptr)
        for g in np.argsort(-sizes, kind="stable").tolist():
            mine, first = instances[topology_of == g], b""
            if not len(mine) or not sizes[g]:
                continue
            if query is not None:  # rooted at variables that are outputs somewhere, so that few rows reach a root
                first = bytes(query.output[batch.var_ptr[mine][:, None] + np.arange(sizes[g])].any(axis=0))
            reading = read_from_root(batch.topologies[g], first)
            tables = batch.table_at[batch.factor_ptr[mine][:, None] + reading.factor[reading.factor >= 0]]
            kinds, of = distinct_rows(tables)
            for k, row in enumerate(kinds):
                key = (int(row[-1]) if len(row) else -1, reading.text[:24])
                for family in found.setdefault(key, []):
                    same = not len(row) or np.array_equal(family.tables[-len(row) :], row)
                    if same and family.readings[0].text.startswith(reading.text):
                        break  # this forest, read from its root, is the beginning of the family's
                else:
                    family = Kinds(row, [], [], [])
                    found[key].append(family)
                family.topologies.append(batch.topologies[g])
                family.readings.append(reading)
                family.instances.append(mine[of == k])
        for family in chain.from_iterable(found.values()):
            if sum(map(len, family.instances)) >= FEWEST:
                out.append(family)
        return out


class ForestRoute:
    """Forests at given roles, masks and temperatures: those of one temperature side by side, others one by one."""

    def __init__(
        self, plan: ForestPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
    ) -> None:
        self.plan, self.query, self.eps_y, self.eps_h = plan, query, eps_y, eps_h
        self.instances, self.workers = instances, workers
        batch = plan.batch
        factors = spans(batch.factor_ptr[instances], np.diff(batch.factor_ptr)[instances])
        first = by_first_use(batch.table_at[factors])[0]  # tied tables have one shape
        shapes = np.ascontiguousarray(batch.pair_cards(factors[first]).T)
        self.tables = TableSet(batch.table_at[factors[first]], *shapes)
        self.lanes, self.dense = Lanes(), list[tuple[int, DenseForests]]()
        in_registers = self._group() if plan.side_by_side else 0
        self.mostly_in_registers = in_registers > 0.9 * len(instances)  # others cost as much as eight
        self.registers = BoundLanes.of(plan.batch, self.lanes, query.allowed, self.tables, eps_y, eps_h)

    def _group(self) -> int:
        """What runs side by side, in registers or as matrix products, by the temperatures of the free variables;
        returns how many run in registers."""
        plan, mine, count = self.plan, np.full(len(self.instances), AT_Y), 0
        ratio = self.eps_h / self.eps_y if self.eps_y > 0.0 else 0.0
        copies = int(ratio) if ratio <= MOST_COPIES and ratio == int(ratio) else 0
        if self.eps_y != self.eps_h:
            mine = modes_of(plan.batch, self.query)[self.instances]
        for mode, eps in ((AT_Y, self.eps_y), (AT_H, self.eps_h), (MIXED, self.eps_h)):
            some = self.instances[mine == mode]
            if len(some) and (mode != MIXED or eps > 0.0):
                query = self.query if mode == MIXED else None
                for kinds in plan.families(some, query):
                    card = kinds.topologies[0].card_array
                    if query is None and eps > 0.0 and card[0] >= DENSE_STATES and np.all(card == card[0]):
                        self.dense += [(mode, part) for part in dense_forests(plan.batch, kinds)]
                        continue
                    group = None
                    if query is not None and 1 < copies < card.max():
                        group = replica_group(plan.batch, kinds, query, copies)
                    group = group or lane_group(plan.batch, kinds, query, eps == 0.0, plan.blocks)
                    if group is not None:
                        self.lanes.append((mode, group))
                        count += len(group.members.instance)
        return count

    @property
    def strategies(self) -> list[tuple[Ints, str]]:
        """Instances that run side by side, and how."""
        names = {"run_sums": "lanes: sums", "run_lanes": "lanes: mixed", "run_copies": "lanes: copies"}
        found = [(group.members.instance, names[group.run.__name__]) for _, group in self.lanes]
        return found + [(part.members, "matrix products") for _, part in self.dense]

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances."""
        each, done, lanes = self.workers.each, np.zeros((1, len(value)), dtype=bool), self.registers
        unary, raw = np.ascontiguousarray(theta.unary), np.ascontiguousarray(theta.tables)
        made, unmade = np.empty(TABLE_PARTS * len(raw)), [lanes.sets]

        def side_by_side(run: Kernel, rows: Ints) -> None:
            run(
                rows, lanes.numbers, unmade.pop() if unmade else NO_SETS, made, raw, NO_COST, unary, NO_COST,
                value.reshape(1, -1), mu.unary, mu.tables, done, *self.workers.scratch(*lanes.needs),
            )  # fmt: skip

        def products(mode: int, some: DenseForests) -> None:
            eps = self.eps_h if mode == AT_H else self.eps_y
            some(theta, self.query.allowed, tables[mode == AT_H], eps, value, mu, done[0])

        if self.dense:
            with ONE_BLAS_THREAD:
                tables = self.tables.at_both(theta.tables, self.eps_y, self.eps_h)
                each(products, *zip(*self.dense, strict=True))
        several = self.workers.idle > 1
        for run, rows in lanes.calls[:1] if several else lanes.calls:
            side_by_side(run, rows[:0] if several else rows)
        if several:
            each(side_by_side, *zip(*parts_of(lanes.calls, BLOCK // WIDTH), strict=True))
        rest = self.instances[~done[0, self.instances]]
        if len(rest):
            theta.check(self.plan.batch)
            self.one_by_one(rest, theta, value, mu)

    def one_by_one(self, instances: Ints, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of some of the instances, none beside another."""
        query, plan = self.query, self.plan
        tables = self.tables.at_both(theta.tables, self.eps_y, self.eps_h)

        def run(part: Ints) -> bool:
            exact: bool = run_forests(
                part, *plan.stacked, theta.unary, query.allowed, query.output, self.eps_y, self.eps_h,
                *tables, value, mu.unary, mu.tables,
            )  # fmt: skip
            return exact

        if not all(self.workers.each(run, blocks(instances, BLOCK, self.workers.idle))):
            raise UnsupportedError(
                "an instance is no forest whose hidden components touch at most two outputs; use general elimination."
            )

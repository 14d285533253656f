"""Which instances run side by side, and how their forests, tables and roles are laid out in registers (``lanes``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from math import log2
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology, offsets, spans
from mssvm.engines.numba.forests.forest import AT_H, AT_Y
from mssvm.engines.numba.forests.lanes import run_lanes
from mssvm.engines.numba.forests.registers import COLUMNS, FIRST, LAST, NEAR, SLOT, U
from mssvm.engines.numba.forests.rooting import rooting_of
from mssvm.engines.numba.forests.scaled import TableSet
from mssvm.engines.numba.forests.sums import run_sums
from mssvm.engines.numba.vector import WIDTH

ADDRESS = attrgetter("ctypes.data")
LONG, FEW_TABLES = 4 * NEAR, 4  # registers of scores and tables of a forest whose way back is in pieces
FEWEST = 3  # instances that are worth a register of eight
Kernel = Callable[..., int]
Calls = list[tuple[Kernel, Ints]]
LARGEST = 1 << 20  # registers of a group with rows, 64 MiB: beyond, one instance at a time needs an eighth


class Reading(NamedTuple):
    """A rooted topology by position, from the leaves to the roots."""

    order: Ints
    parent: Ints  # position, -1 at a root
    factor: Ints  # to the parent, -1 at a root
    flip: Bools
    text: bytes  # cardinalities, parents and flips, read from the root


@lru_cache(4096)
def read_from_root(topology: Topology, first: bytes) -> Reading:
    r, n = rooting_of(topology, first), topology.n_vars
    position = np.empty(n, dtype=np.int64)
    position[r.order] = np.arange(n)
    up = r.parent[r.order]
    parent = np.where(up < 0, -1, position[up])
    read = np.stack([topology.card_array[r.order], np.where(up < 0, -1, n - 1 - parent), r.flip[r.order]], axis=1)
    text = np.ascontiguousarray(read[::-1]).tobytes()
    return Reading(r.order, parent, np.where(up < 0, -1, r.edge[r.order]), r.flip[r.order], text)


class Kinds(NamedTuple):
    """Instances of a family by topology, the longest first, and the starts of its tables by position."""

    tables: Ints
    topologies: list[Topology]
    readings: list[Reading]
    instances: list[Ints]


class Family(NamedTuple):
    """The longest forest of a group of instances, by position."""

    places: Ints  # (position, column)
    kids: Ints
    pair_ptr: Ints
    by_table: Ints  # positions by slot and flip
    n_pairs: int  # room for the places of pairs (belief, derivative)
    size: int  # registers of scores
    total: int  # entries of the buffer
    scratch: int
    marginals: int  # where the tables' marginals begin
    span: int  # positions whose beliefs have a place at a time


class Members(NamedTuple):
    """Instances in groups of at most eight, what tells them apart, and where their scores and tables lie.

    ``words[g, p]``: lanes of group g in which position p is a free output, ends rows, is present. Instances of a kind
    have the same topology.
    """

    ptr: Ints
    instance: Ints
    kind: Ints
    words: Ints
    fresh: Bools  # whether the roles of a group differ from those of the one before
    segment_ptr: Ints  # by kind
    segment: Ints  # (from, to, length): scores of the instance to scores of the family
    factor: Ints  # (kind, slot): a factor of the table, -1 if none
    start: Ints  # of the tables
    rows: Ints
    cols: Ints
    put: Ints


class LaneGroup(NamedTuple):
    """A family of forests, the instances that run side by side in it, the kernel that runs them, and what that kernel
    wants to know beside."""

    family: Family
    members: Members
    run: Kernel
    more: Ints


NOTHING = np.zeros(0, dtype=np.int64)
Lanes = list[tuple[int, LaneGroup]]  # by the temperatures of the free variables


@dataclass(frozen=True, eq=False)
class BoundLanes:
    """Groups at a mask and a pair of temperatures, as kernels take them: ``calls`` of each with rows of places in
    memory, ``numbers``, the set of their tables, scratch of ``needs`` doubles and integers; and what those places hold.
    """

    calls: Calls
    numbers: Floats
    sets: Ints
    needs: tuple[int, int]
    held: tuple[AnyArray, ...]

    @classmethod
    def of(cls, batch: Batch, lanes: Lanes, allowed: Bools, tables: TableSet, eps_y: float, eps_h: float) -> BoundLanes:
        ratio = log2(eps_h / eps_y) if eps_y > 0.0 < eps_h else -1.0
        squarings = int(ratio) if ratio >= 0.0 and ratio == int(ratio) else -1
        held = [np.ascontiguousarray(allowed), batch.unary_ptr[batch.var_ptr], batch.factor_ptr, batch.mu_at]
        shared, rows, numbers, needs = list(map(ADDRESS, held)), dict[Kernel, list[Ints]](), [(eps_y, eps_h)], [0, 0]
        for mode, (f, members, run, more) in lanes:
            n, low, high = batch.n_table_entries, 1 + 2 * (mode == AT_H), 1 + 2 * (mode != AT_Y)
            base = [n * low, n * (low + 1), n * high, n * (high + 1)]
            arrays = [f.places, f.kids, f.pair_ptr, f.by_table, *members, more]
            sizes = [len(f.places), len(members.start), f.n_pairs, f.size, f.total, f.scratch, f.marginals, f.span]
            head = [0, 0, len(members.ptr) - 1, len(numbers), *base, squarings, *sizes]
            rows.setdefault(run, []).append(np.array([*head, *shared, *map(ADDRESS, arrays)]))
            numbers.append((eps_h if mode == AT_H else eps_y, eps_y if mode == AT_Y else eps_h))
            held += arrays
            counts = f.places.size + f.n_pairs + 3 * WIDTH
            needs = [max(needs[0], f.total), max(needs[1], counts)]
        made = [tables.starts, tables.rows, tables.cols]
        sets = np.array([[*map(ADDRESS, made), len(tables.starts)]])
        calls = list(zip(rows, map(np.stack, rows.values()), strict=True))
        return cls(calls, np.array(numbers), sets, (needs[0], needs[1]), (*held, *made))


def parts_of(calls: Calls, size: int) -> Calls:
    """Calls in pieces of so many registers of instances."""
    out = Calls()
    for run, rows in calls:
        for row in rows:
            for first in range(0, row[LAST], size):
                part = row[None].copy()
                part[0, FIRST], part[0, LAST] = first, min(first + size, row[LAST])
                out.append((run, part))
    return out


@dataclass(frozen=True, eq=False)
class Roles:
    """Per instance and position: a free output, an end of rows, present at all."""

    sent: Bools
    closed: Bools
    here: Bools

    @classmethod
    def of(cls, batch: Batch, kinds: Kinds, query: Query | None, cold: bool) -> Roles:
        n, count = kinds.topologies[0].n_vars, sum(map(len, kinds.instances))
        sent, closed = np.full((count, n), cold and query is None), np.full((count, n), cold and query is None)
        here, lo = np.zeros((count, n), dtype=bool), 0
        free = query.n_allowed(batch) > 1 if query is not None else None
        for topology, reading, chosen in zip(kinds.topologies, kinds.readings, kinds.instances, strict=True):
            part = (slice(lo, lo + len(chosen)), slice(n - topology.n_vars, None))
            here[part] = True
            if query is not None and free is not None:
                at = batch.var_ptr[chosen][:, None] + reading.order
                sent[part], closed[part] = query.output[at] & free[at], query.output[at] | ~free[at]
            lo += len(chosen)
        return cls(sent, closed, here)

    def words(self, chosen: Ints, groups: int) -> Ints:
        """A 64-bit word of eight lanes for every role, group and position; the last instance fills the last group."""
        lanes = chosen[np.minimum(np.arange(groups * WIDTH), len(chosen) - 1)]
        out = []
        for flags in (self.sent, self.closed, self.here):
            byte = np.where(flags[lanes], 255, 0).astype(np.uint8).reshape(groups, WIDTH, -1)
            out.append(np.ascontiguousarray(byte.transpose(0, 2, 1)).view(np.int64)[:, :, 0])
        return np.stack(out, axis=2)

    def rows(self, card: Ints, kid_ptr: Ints, kids: Ints) -> tuple[Ints, Ints, Ints, Bools]:
        """Per position the rows of its belief, of its message, and the child that brings them; and which instances
        agree with that, having rows from one child at most."""
        n, fits = len(card), np.ones(len(self.sent), dtype=bool)
        rows, many, carrier = np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
        carries = np.zeros_like(self.sent)
        for p in range(n):
            mine = kids[kid_ptr[p] : kid_ptr[p + 1]]
            hidden = ~self.closed[:, p : p + 1] & self.here[:, p : p + 1]
            brings = (self.sent[:, mine] | carries[:, mine]) & hidden
            count = brings.sum(axis=0)
            if count.any():
                best = int(np.argmax(count))
                carrier[p], carries[:, p] = mine[best], brings[:, best]
                fits &= brings.sum(axis=1) <= brings[:, best]
                if (brings[:, best] & self.sent[:, mine[best]]).any():
                    many[mine[best]] = max(many[mine[best]], card[mine[best]])
                rows[p] = many[mine[best]]
            many[p] = rows[p]
        return rows, many, carrier, fits


def slots_of(batch: Batch, kinds: Kinds) -> tuple[Ints, Ints, Ints]:
    """The different tables of a family: their starts, which of them every position has to its parent, their shapes."""
    lead = kinds.readings[0]
    table, below = np.full(len(lead.parent), -1, dtype=np.int64), lead.parent >= 0
    start, table[below] = np.unique(kinds.tables, return_inverse=True)
    factor = np.empty(len(start), dtype=np.int64)
    factor[table[below]] = lead.factor[below]
    return start, table, batch.pair_cards(batch.factor_ptr[kinds.instances[0][0]] + factor)


def lane_group(
    batch: Batch, kinds: Kinds, query: Query | None, cold: bool, blocks: Mapping[int, int]
) -> LaneGroup | None:
    """The registers of a family; None if too few of its instances can run in it, or it would be too large. ``blocks``
    are those of tables, by their starts.

    For ``run_sums`` exponentials take the place of the scores, and t is of one position at a time: what is left of a
    long forest is read from memory.
    """
    topology, lead, roles = kinds.topologies[0], kinds.readings[0], Roles.of(batch, kinds, query, cold)
    sums = query is None and not cold
    n, card, parent = topology.n_vars, topology.card_array[lead.order], lead.parent
    kids = np.argsort(parent, kind="stable")[(parent < 0).sum() :]
    kid_ptr = offsets(np.bincount(parent[parent >= 0], minlength=n))
    rows, many, carrier = np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    chosen = np.arange(len(roles.sent))
    if query is not None:
        rows, many, carrier, fits = roles.rows(card, kid_ptr, kids)
        chosen = np.flatnonzero(fits)
    sent = np.where(parent < 0, 1, card[parent])
    start, table, shape = slots_of(batch, kinds)
    size = -(-int(card.sum()) // WIDTH) * WIDTH
    one = np.where(np.arange(n) == 0, card.max(), 0)
    b, t, w, span = rows * card, one if sums else rows * card, one if sums else sent, n
    if sums and len(start) <= FEW_TABLES and size > LONG:
        span = max(NEAR // int(card.max()), 1)
        b = np.where(np.arange(n) < span, card.max(), 0)
    parts = np.stack([b, t, many * sent, w, 0 * card + 2])  # scale last
    if len(chosen) < FEWEST or (rows.max() > 1 and parts.sum() > LARGEST):
        return None
    at = offsets(topology.card_array)[:-1][lead.order]
    scores, first = size if sums else 2 * size, offsets(parts.ravel())
    place, scratch = scores + first[:-1].reshape(5, n), scores + first[-1]
    if sums:
        place[0], place[1] = place[0, np.arange(n) % span], place[1, 0]
    growing = shape.prod(axis=1).max(initial=0)  # marginals of one table
    marginals = scratch + card.max() * (1 + many.max()) + 2 + growing
    put = offsets(shape.prod(axis=1))
    slot = np.maximum(table, 0)
    places = np.stack([
        card, np.where(parent < 0, -1, COLUMNS * parent), lead.flip, table, np.append(start, 0)[slot],
        WIDTH * put[slot], np.where(carrier < 0, -1, COLUMNS * carrier), kid_ptr[:-1], kid_ptr[1:],
        WIDTH * at, WIDTH * (scores - size + at), *(WIDTH * place),
    ], axis=1)  # fmt: skip
    of = np.where(parent < 0, 2 * len(start), 2 * table + lead.flip)
    pair_ptr = offsets(np.bincount(of, minlength=2 * len(start) + 1)[:-1])
    family = Family(
        np.ascontiguousarray(places, dtype=np.int64), COLUMNS * kids, pair_ptr, COLUMNS * np.argsort(of, kind="stable"),
        int(12 * len(start) + 2 * (many + 1).sum()), size, int(WIDTH * (marginals + put[-1])),
        int(WIDTH * scratch), int(WIDTH * marginals), span,
    )  # fmt: skip
    # A kernel for each, as either takes long to compile.
    members = members_of(kinds, family, start, shape, roles, chosen)
    widths = np.fromiter(map(blocks.get, start.tolist(), repeat(0)), np.int64, len(start))
    widths = np.append(widths.max(initial=0), widths)
    return LaneGroup(family, members, run_sums if sums else run_lanes, widths)


def members_of(kinds: Kinds, family: Family, start: Ints, shape: Ints, roles: Roles, chosen: Ints) -> Members:
    """The chosen instances of a family, all kinds at once. Segments are runs of scores that are contiguous in an
    instance and among the family's registers."""
    sizes, cards, orders, factors = [], [], [], []
    for topology, reading in zip(kinds.topologies, kinds.readings, strict=True):
        sizes.append(topology.n_vars)
        cards.append(topology.card_array)
        orders.append(reading.order)
        factors.append(reading.factor)
    counts = np.array(sizes, dtype=np.int64)
    first, row = offsets(counts), np.repeat(np.arange(len(counts)), counts)
    place, number = family.places[spans(len(family.places) - counts, counts)], np.concatenate(factors)
    factor, below = np.full((len(counts), len(start)), -1, dtype=np.int64), number >= 0
    factor[row[below], place[below, SLOT]] = number[below]
    source, to = offsets(np.concatenate(cards)), np.empty(len(row), dtype=np.int64)
    to[np.concatenate(orders) + first[row]] = place[:, U] // WIDTH
    begins = np.append(True, np.diff(to) != np.diff(source)[:-1])
    begins[first[:-1]] = True
    runs = np.flatnonzero(begins)
    lengths = np.diff(source[np.append(runs, len(row))])
    segment = np.stack([source[runs] - source[first[row[runs]]], to[runs], lengths], axis=1)
    kind = np.repeat(np.arange(len(kinds.instances)), list(map(len, kinds.instances)))
    ptr = np.append(np.arange(0, len(chosen), WIDTH), len(chosen))
    words = roles.words(chosen, len(ptr) - 1)
    return Members(
        ptr, np.concatenate(kinds.instances)[chosen], kind[chosen], words,
        np.append(True, (words[1:] != words[:-1]).any(axis=(1, 2))), np.searchsorted(runs, first), segment, factor,
        start, np.ascontiguousarray(shape[:, 0]), np.ascontiguousarray(shape[:, 1]),
        WIDTH * offsets(shape.prod(axis=1))[:-1],
    )  # fmt: skip

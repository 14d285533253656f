"""Families of forests that run side by side: their instances and memory layout.

Read from the root, a short chain is a prefix of a longer one. A family is the largest such forest with the same
tables; its members are the instances that are a prefix of it (``cpp/layout.hpp``).
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.library import BYTES, FLOAT, INT, INTS, MASK, RecordType
from mssvm.core.potentials import Query
from mssvm.core.topology import CACHED_PARTS, Batch, Topology, offsets, size_in_cache, spans
from mssvm.engines.rooting import rooting_of

# bits of a role, as in ``cpp/layout.hpp``
FREE_OUTPUT = 1
CLOSED = 2
PRESENT = 4
KEY_BYTES = 24  # prefix of ``text`` for hashing: one position, which distinguishes most families

FAMILY = RecordType(
    "Family",
    {
        "parent": INTS,
        "card": INTS,
        "slot": INTS,
        "flip": MASK,
        "at": INTS,
        "shapes": INTS,
        "instance": INTS,
        "kind": INTS,
        "first": INTS,
        "mu_at": INTS,
        "segment_ptr": INTS,
        "segments": INTS,
        "roles": BYTES,
        "allowed": MASK,
        "eps_y": FLOAT,
        "eps_h": FLOAT,
        "side": INT,
        "abreast": INT,
        "copies": INT,
    },
)


class Reading(NamedTuple):
    """A rooted topology by position, children before parents.

    ``text`` of a forest is a prefix of the ``text`` of a larger one if the forest is a prefix of that forest.
    """

    order: Ints
    parent: Ints  # position; the number of positions at a root
    factor: Ints  # factor to the parent, -1 at a root
    flip: Bools
    text: bytes  # cardinalities, parents and flips, read from the root


@cached_by_size(CACHED_PARTS, size_in_cache)
def read_from_root(topology: Topology, preferred: bytes) -> Reading:
    """The reading of a topology, rooted at ``preferred`` variables where it has any (``engines.rooting``)."""
    rooting = rooting_of(topology, preferred)
    n = topology.n_vars
    order = rooting.order
    position = np.empty(n + 1, dtype=np.int64)
    position[order] = np.arange(n)
    position[n] = n
    parent = position[rooting.parent[order]]  # parent -1 of a root reads the last entry, n
    from_root = np.where(parent == n, -1, n - 1 - parent)
    read = np.stack([topology.card_array[order], from_root, rooting.flip[order]], axis=1)
    text = np.ascontiguousarray(read[::-1]).tobytes()
    return Reading(order, parent, rooting.edge[order], rooting.flip[order], text)


class Kinds(NamedTuple):
    """The instances of a family by topology, the largest first, and the starts of its tables by position."""

    tables: Ints
    topologies: list[Topology]
    readings: list[Reading]
    instances: list[Ints]


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of a matrix, and the number of each row among them."""
    if not rows.size or (rows == rows[0]).all():  # the common case
        return rows[:1], np.zeros(len(rows), dtype=np.int64)
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, of = np.unique(whole, return_index=True, return_inverse=True)
    return rows[first], of.ravel()


def families_of(batch: Batch, instances: Ints, query: Query | None) -> list[Kinds]:
    """The families of the named instances.

    Without a query all variables have one temperature. With a query, forests are rooted at variables that are outputs
    in some instance, so that few rows reach a root.
    """
    by_key: dict[tuple[int, bytes], list[Kinds]] = {}
    sizes = np.zeros(len(batch.topologies), dtype=np.int64)
    sizes[batch.topology_of] = np.diff(batch.var_ptr)
    by_topology = np.argsort(batch.topology_of[instances], kind="stable")
    ends = np.searchsorted(batch.topology_of[instances], np.arange(len(sizes) + 1), sorter=by_topology)
    for g in np.argsort(-sizes, kind="stable").tolist():
        members = instances[by_topology[ends[g] : ends[g + 1]]]
        if not len(members):
            continue
        preferred = b""
        if query is not None:
            outputs: Bools = query.output[batch.var_ptr[members][:, None] + np.arange(sizes[g])]
            preferred = np.logical_or.reduce(outputs, axis=0).tobytes()
        reading = read_from_root(batch.topologies[g], preferred)
        tables = batch.table_at[batch.factor_ptr[members][:, None] + reading.factor[reading.factor >= 0]]
        rows, of = distinct_rows(tables)
        for k, row in enumerate(rows):
            key = (int(row[-1]) if len(row) else -1, reading.text[:KEY_BYTES])
            family = _family_with(by_key.setdefault(key, []), row, reading)
            family.topologies.append(batch.topologies[g])
            family.readings.append(reading)
            family.instances.append(members[of == k] if len(rows) > 1 else members)
    return list(chain.from_iterable(by_key.values()))


def _family_with(families: list[Kinds], tables: Ints, reading: Reading) -> Kinds:
    """The family that has this forest and these tables as a prefix, or a new one."""
    for family in families:
        same = not len(tables) or np.array_equal(family.tables[-len(tables) :], tables)
        if same and family.readings[0].text.startswith(reading.text):
            return family
    families.append(Kinds(tables, [], [], []))
    return families[-1]


def family_fields(
    batch: Batch, kinds: Kinds, query: Query | None, allowed: Bools, free: Bools, eps_y: float, eps_h: float
) -> dict[str, Any]:
    """The fields of a family's record, except ``side``, ``abreast`` and ``copies``."""
    largest = kinds.topologies[0]
    lead = kinds.readings[0]
    card = largest.card_array[lead.order]
    n = len(card)
    below = lead.factor >= 0
    starts, slot_below = np.unique(kinds.tables, return_inverse=True)
    slot = np.full(n, -1, dtype=np.int64)
    slot[below] = slot_below
    child = card[below]
    above = card[lead.parent[below]]
    shapes = np.zeros((len(starts), 3), dtype=np.int64)
    shapes[:, 0] = starts
    shapes[slot_below, 1] = np.where(lead.flip[below], above, child)
    shapes[slot_below, 2] = np.where(lead.flip[below], child, above)
    at = offsets(largest.card_array)[:-1][lead.order]
    counts = np.array([len(members) for members in kinds.instances], dtype=np.int64)
    instance = np.concatenate(kinds.instances)
    kind = np.repeat(np.arange(len(counts)), counts)
    factor = _factors_by_slot(kinds, slot, len(starts))[kind]
    mu_at = np.where(factor < 0, -1, batch.mu_at[np.where(factor < 0, 0, batch.factor_ptr[instance][:, None] + factor)])
    segment_ptr, segments = _segments(kinds, at)
    fields: dict[str, AnyArray | float] = {
        "parent": lead.parent,
        "card": card,
        "slot": slot,
        "flip": lead.flip,
        "at": at,
        "shapes": shapes,
        "instance": instance,
        "kind": kind,
        "first": batch.unary_ptr[batch.var_ptr[instance]],
        "mu_at": mu_at,
        "segment_ptr": segment_ptr,
        "segments": segments,
        "roles": _roles(batch, kinds, query, free),
        "allowed": allowed,
        "eps_y": eps_y,
        "eps_h": eps_h,
    }
    return fields


def _factors_by_slot(kinds: Kinds, slot: Ints, slots: int) -> Ints:
    """(kind, slot): a factor of the topology with that table, -1 if it has none."""
    out = np.full((len(kinds.readings), slots), -1, dtype=np.int64)
    for row, reading in zip(out, kinds.readings, strict=True):
        below = reading.factor >= 0
        row[slot[len(slot) - len(below) :][below]] = reading.factor[below]
    return out


def _segments(kinds: Kinds, at: Ints) -> tuple[Ints, Ints]:
    """By kind, rows (offset in the instance, offset in the family, length) of scores contiguous in both."""
    sizes = np.array([len(reading.order) for reading in kinds.readings], dtype=np.int64)
    first = offsets(sizes)
    row = np.repeat(np.arange(len(sizes)), sizes)
    source = offsets(np.concatenate([topology.card_array for topology in kinds.topologies]))
    to = np.empty(len(row), dtype=np.int64)
    order = np.concatenate([reading.order for reading in kinds.readings])
    to[order + first[row]] = at[spans(len(at) - sizes, sizes)]
    begins = np.append(True, np.diff(to) != np.diff(source)[:-1])[: len(row)]
    begins[first[:-1][sizes > 0]] = True
    runs = np.flatnonzero(begins)
    lengths = np.diff(source[np.append(runs, len(row))])
    segments = np.stack([source[runs] - source[first[row[runs]]], to[runs], lengths], axis=1)
    return np.searchsorted(runs, first), segments


def _roles(batch: Batch, kinds: Kinds, query: Query | None, free: Bools) -> AnyArray:
    """(member, position): role bits. At one temperature only PRESENT matters."""
    n = len(kinds.readings[0].order)
    parts = []
    for reading, chosen in zip(kinds.readings, kinds.instances, strict=True):
        roles = np.zeros((len(chosen), n), dtype=np.uint8)
        mine = roles[:, n - len(reading.order) :]
        mine[:] = PRESENT
        if query is not None:
            variables = batch.var_ptr[chosen][:, None] + reading.order
            output = query.output[variables]
            varies = free[variables]
            mine += (FREE_OUTPUT * (output & varies) + CLOSED * (output | ~varies)).astype(np.uint8)
        parts.append(roles)
    return np.concatenate(parts)

"""Topologies and ragged batches of them.

A ``Topology`` is the wiring of one instance: how many states each variable has and which variables each
factor touches. A ``Batch`` is a disjoint union of instances laid out in flat arrays without padding.
Neither holds potentials, labels or features.

Layout of a batch with N variables, F factors and S = sum of cardinalities:

    variables of instance b      var_ptr[b] : var_ptr[b+1]
    states of variable i         unary_ptr[i] : unary_ptr[i+1]      (in any array of length S)
    factors of instance b        factor_ptr[b] : factor_ptr[b+1]
    table of factor f            table_at[f] : table_at[f] + size   (in ``Potentials.tables``)
    marginal of factor f         mu_at[f] : mu_at[f] + size         (in ``Marginals.tables``)

Factors with the same table id are tied: they share one table in ``Potentials.tables``, and their marginals are
*summed per instance* in ``Marginals.tables``. Tables are C-ordered with axes in scope order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Self

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints, sum_by
from mssvm.core.caches import cached_by_size
from mssvm.core.errors import InputError

NONE = np.zeros(0, dtype=np.int64)
CACHED_PARTS = 1 << 20  # variables and factors of the topologies that are keys of a cache


class Topology:
    """Wiring of one instance: cardinalities, and scopes of the factors of order two or more.

    The same as arrays: variable v has ``card_array[v]`` states; factor f touches ``scope_flat[scope_ptr[f] :
    scope_ptr[f+1]]`` and has ``table_sizes[f]`` entries; ``shape_ids`` are equal where tables have the same shape.

    Topologies are immutable and compared by value. The hash is computed once, as batches use topologies as keys.
    """

    def __init__(self, cards: Sequence[int], scopes: Sequence[Sequence[int]]) -> None:
        sizes = np.fromiter(map(len, scopes), np.int64, len(scopes))
        flat = np.fromiter(chain.from_iterable(scopes), np.int64, int(sizes.sum()))
        self._set(np.fromiter(cards, np.int64, len(cards)), sizes, flat)

    @classmethod
    def of_arrays(cls, cards: Ints, groups: Sequence[Ints]) -> Self:
        """The topology of factors in groups, each an array with one row per factor and its variables in columns."""
        self = cls.__new__(cls)
        sizes = [np.broadcast_to(np.int64(scopes.shape[1]), len(scopes)) for scopes in groups]
        flat = [np.asarray(scopes, dtype=np.int64).ravel() for scopes in groups]
        self._set(np.array(cards, dtype=np.int64), _one_array(sizes), _one_array(flat))
        return self

    def _set(self, cards: Ints, scope_sizes: Ints, scope_flat: Ints) -> None:
        self.card_array = cards
        self.scope_sizes = _compact(scope_sizes)
        self.scope_flat = scope_flat
        self.n_vars = len(cards)
        self.n_factors = len(scope_sizes)
        self.scope_ptr = offsets(scope_sizes)
        _check_cards(cards)
        _check_scopes(scope_flat, self.scope_ptr, self.n_vars)
        digest = blake2b(digest_size=8)
        for part in (cards, scope_sizes, scope_flat):
            digest.update(part.tobytes())
        self._hash = hash(int.from_bytes(digest.digest(), "little"))
        self.table_sizes = NONE
        self.shape_ids = NONE
        if self.n_factors:
            scope_cards = self.card_array[self.scope_flat]
            self.table_sizes = _compact(np.multiply.reduceat(scope_cards, self.scope_ptr[:-1]))
            self.shape_ids = _compact(_shape_ids(scope_cards, self.scope_ptr))

    def __repr__(self) -> str:
        return f"Topology(cards={self.cards!r}, scopes={self.scopes!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self is other or (self._hash == other._hash and self._has_arrays_of(other))

    def __hash__(self) -> int:
        return self._hash

    def _has_arrays_of(self, other: Topology) -> bool:
        if not np.array_equal(self.card_array, other.card_array):
            return False
        if not np.array_equal(self.scope_sizes, other.scope_sizes):
            return False
        return np.array_equal(self.scope_flat, other.scope_flat)

    @cached_property
    def cards(self) -> tuple[int, ...]:
        """``card_array`` as a tuple."""
        return tuple(self.card_array.tolist())

    @cached_property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """The variables of every factor. Large graphs are better read from ``scope_flat``: a tuple takes 64 bytes."""
        flat = self.scope_flat.tolist()
        ptr = self.scope_ptr.tolist()
        return tuple(tuple(flat[begin:end]) for begin, end in pairwise(ptr))

    @cached_property
    def unary_ptr(self) -> Ints:
        return offsets(self.card_array)

    @cached_property
    def scope_strides(self) -> Ints:
        """Step in a factor's table for each variable of its scope, aligned with ``scope_flat``."""
        cards = self.card_array[self.scope_flat]
        from_end = np.repeat(self.scope_ptr[1:], self.scope_sizes) - 1 - np.arange(len(cards))
        strides = np.ones(len(cards), dtype=np.int64)
        for axis in range(1, int(self.scope_sizes.max(initial=1))):
            slots = np.flatnonzero(from_end == axis)
            strides[slots] = strides[slots + 1] * cards[slots + 1]
        return strides

    def table_shape(self, factor: int) -> tuple[int, ...]:
        return tuple(self.cards[v] for v in self.scopes[factor])


def size_in_cache(topology: Topology, *roles: object) -> int:
    """Size, for a cache, of what a function computes from a topology: its variables and factors, and 64 for the
    entry."""
    return 64 + topology.n_vars + topology.n_factors


@cached_by_size(CACHED_PARTS, size_in_cache)
def shared(topology: Topology) -> Topology:
    """The cached topology that is equal to this one: topologies that are keys of other caches then share memory."""
    return topology


def _one_array(parts: list[Ints]) -> Ints:
    """The parts one after the other; a single part is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate([NONE, *parts])


def _compact(values: Ints) -> Ints:
    """The values; if all are equal, a read-only array that stores the number once."""
    if len(values) < 2 or np.any(values != values[0]):
        return values
    return np.broadcast_to(values[0], len(values))


def _check_cards(cards: Ints) -> None:
    if cards.min(initial=1) < 1:
        v = int(np.argmax(cards < 1))
        raise InputError(f"variable {v} has {cards[v]} states; every variable needs at least one.")


def _check_scopes(flat: Ints, ptr: Ints, n_vars: int) -> None:
    """Raise unless every scope has two or more different variables of the topology."""
    outside = (flat < 0) | (flat >= n_vars)
    few = np.diff(ptr) < 2
    repeated = _repeated(flat, ptr)
    if not (few.any() or repeated.any() or outside.any()):
        return
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    few[owner[repeated]] = True
    wrong = few.copy()
    wrong[owner[outside]] = True
    factor = int(np.argmax(wrong))
    scope = tuple(flat[ptr[factor] : ptr[factor + 1]].tolist())
    if few[factor]:
        raise InputError(f"factor {factor} has scope {scope}; it needs two or more different variables.")
    raise InputError(f"factor {factor} has scope {scope}, but variables run from 0 to {n_vars - 1}.")


def _repeated(flat: Ints, ptr: Ints) -> Bools:
    """Which entries of ``flat`` occur a second time, later in the same segment of ``ptr``."""
    out = np.zeros(len(flat), dtype=bool)
    sizes = np.diff(ptr)
    for distance in range(1, int(sizes.max(initial=1))):
        begin = np.flatnonzero(sizes > distance)
        at = spans(ptr[begin], sizes[begin] - distance)
        out[at] |= flat[at] == flat[at + distance]
    return out


def _shape_ids(scope_cards: Ints, scope_ptr: Ints) -> Ints:
    """A hash of every factor's table shape, from the cardinalities along its axes."""
    axis = ranks(scope_ptr)
    with np.errstate(over="ignore"):
        mixed = (scope_cards + 1) * np.int64(0x5851F42D4C957F2D) ** (axis + 1)
    return np.asarray(np.add.reduceat(mixed, scope_ptr[:-1]))


def offsets(sizes: Ints) -> Ints:
    """Start offsets of consecutive blocks of the given sizes, with the total appended."""
    out = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def spans(starts: Ints, sizes: Ints) -> Ints:
    """Concatenated ranges ``starts[k] .. starts[k] + sizes[k]`` as one index array."""
    total = offsets(sizes)
    return np.repeat(starts - total[:-1], sizes) + np.arange(total[-1])


def entries_of(ptr: Ints, segments: Ints) -> slice | Ints:
    """Index of the entries of the named segments ``ptr[k] .. ptr[k + 1]``.

    Consecutive segments give a slice, so that indexing makes a view and no copy.
    """
    if len(segments) and np.all(np.diff(segments) == 1):
        return slice(int(ptr[segments[0]]), int(ptr[segments[-1] + 1]))
    return spans(ptr[segments], np.diff(ptr)[segments])


def ranks(ptr: Ints) -> Ints:
    """The place of each entry within its segment ``ptr[k] .. ptr[k + 1]``."""
    return np.arange(ptr[-1]) - np.repeat(ptr[:-1], np.diff(ptr))


def counts(flags: Bools, ptr: Ints) -> Ints:
    """How many flags are set in each segment ``ptr[k] .. ptr[k + 1]``."""
    total = offsets(flags.astype(np.int64))
    return np.asarray(total[ptr[1:]] - total[ptr[:-1]])


def mask_from_indices(members: Ints | None, n: int) -> Bools:
    """Instances, or variables, as a mask over all ``n`` of a batch (None: all)."""
    if members is None:
        return np.ones(n, dtype=bool)
    out = np.zeros(n, dtype=bool)
    out[members] = True
    return out


def gather(parts: Sequence[Ints], of: Ints, shift: Ints | None = None) -> Ints:
    """``parts[of[b]]``, plus ``shift[b]`` where given, for every b, one after the other.

    A single part that is not shifted is not copied.
    """
    if len(parts) == 1:
        part = np.asarray(parts[0], dtype=np.int64)
        if len(of) == 1 and (shift is None or shift[0] == 0):
            return part
        if shift is None:
            return np.tile(part, len(of))
        return (shift[:, None] + part).ravel()
    part_sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    part_starts = np.cumsum(part_sizes) - part_sizes
    sizes = part_sizes[of]
    gathered: Ints = np.concatenate([NONE, *parts])[spans(part_starts[of], sizes)]
    if shift is None:
        return gathered
    return gathered + np.repeat(shift, sizes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances of any sizes side by side in flat arrays (layout in the module docstring).

    ``mu_first`` is the first factor of every marginal in ``Marginals.tables``, in storage order.
    Rarely used arrays are derived from the topologies on request and not stored: training data have many sites.
    """

    topologies: tuple[Topology, ...]
    topology_of: Ints
    n_vars: int
    n_factors: int
    n_states: int
    n_table_entries: int
    n_mu_entries: int
    var_ptr: Ints
    factor_ptr: Ints
    unary_ptr: Ints
    table_at: Ints
    mu_at: Ints
    mu_first: Ints

    @classmethod
    def build(cls, graphs: Sequence[Topology], table_ids: Sequence[Sequence[int] | Ints] | None = None) -> Batch:
        """Lay out one instance per entry of ``graphs``.

        ``table_ids[b][f]`` names the table of factor f of instance b; equal ids share one table, within
        and across instances. ``None`` gives every factor a table of its own.
        """
        unique: dict[Topology, int] = {}
        topology_of = np.array([unique.setdefault(g, len(unique)) for g in graphs], dtype=np.int64)
        if table_ids is None:
            return cls.of_kinds(tuple(unique), topology_of)
        if len(table_ids) != len(graphs):
            raise InputError(f"table_ids has {len(table_ids)} rows for {len(graphs)} instances.")
        for b, (row, graph) in enumerate(zip(table_ids, graphs, strict=True)):
            if len(row) != graph.n_factors:
                raise InputError(f"instance {b}: {len(row)} table ids for {graph.n_factors} factors.")
        rows = [np.asarray(row, dtype=np.int64) for row in table_ids]
        return cls.of_kinds(tuple(unique), topology_of, np.concatenate([NONE, *rows]))

    @classmethod
    def of_kinds(cls, kinds: tuple[Topology, ...], topology_of: Ints, table_ids: Ints | None = None) -> Batch:
        """As ``build``, for instances ``kinds[topology_of[b]]`` of distinct kinds, with the table ids of all factors in
        one array."""
        n_vars = np.array([kind.n_vars for kind in kinds], dtype=np.int64)
        n_factors = np.array([kind.n_factors for kind in kinds], dtype=np.int64)
        var_ptr = offsets(n_vars[topology_of])
        factor_ptr = offsets(n_factors[topology_of])
        unary_ptr = offsets(gather([kind.card_array for kind in kinds], topology_of))
        sizes = gather([kind.table_sizes for kind in kinds], topology_of)
        if table_ids is None:
            table_ptr = offsets(sizes)
            mu_ptr = table_ptr
            table_at = table_ptr[:-1]
            mu_at = table_at
            mu_first = np.arange(len(sizes))
        else:
            # Tables are stored in order of first use, and so are the marginals of every instance.
            first, number = factorize(table_ids)
            shapes = gather([kind.shape_ids for kind in kinds], topology_of)
            misfits = np.flatnonzero(shapes != shapes[first][number])
            if len(misfits):
                f = int(misfits[0])
                raise InputError(f"factor {f} shares table {int(table_ids[f])} with a factor of another shape.")
            table_ptr = offsets(sizes[first])
            table_at = table_ptr[number]
            owner = np.repeat(np.arange(len(topology_of)), np.diff(factor_ptr))
            mu_first, mu_number = factorize(number + owner * len(first))
            mu_ptr = offsets(sizes[mu_first])
            # One instance sums the marginals of its tables in the order of the tables.
            mu_at = table_at if len(topology_of) == 1 else mu_ptr[mu_number]
        return cls(
            topologies=kinds,
            topology_of=topology_of,
            n_vars=int(var_ptr[-1]),
            n_factors=int(factor_ptr[-1]),
            n_states=int(unary_ptr[-1]),
            n_table_entries=int(table_ptr[-1]),
            n_mu_entries=int(mu_ptr[-1]),
            var_ptr=var_ptr,
            factor_ptr=factor_ptr,
            unary_ptr=unary_ptr,
            table_at=table_at,
            mu_at=mu_at,
            mu_first=mu_first,
        )

    def __len__(self) -> int:
        return len(self.topology_of)

    def topology(self, b: int) -> Topology:
        return self.topologies[int(self.topology_of[b])]

    @cached_property
    def owner(self) -> Ints:
        """Instance of each variable."""
        return np.repeat(np.arange(len(self)), np.diff(self.var_ptr))

    @cached_property
    def state_var(self) -> AnyArray:
        """Variable of each entry of an array of length S."""
        return np.repeat(np.arange(self.n_vars, dtype=np.int32), self.cards)

    @cached_property
    def factor_owner(self) -> Ints:
        """Instance of each factor."""
        return np.repeat(np.arange(len(self)), np.diff(self.factor_ptr))

    @property
    def cards(self) -> Ints:
        """States of each variable."""
        return np.diff(self.unary_ptr)

    @property
    def table_sizes(self) -> Ints:
        """Entries of each factor's table."""
        return gather([g.table_sizes for g in self.topologies], self.topology_of)

    @cached_property
    def scope_ptr(self) -> Ints:
        """Scope of factor f of the batch: ``scope_vars[scope_ptr[f] : scope_ptr[f+1]]``."""
        if len(self) == 1:
            return self.topology(0).scope_ptr
        return offsets(gather([g.scope_sizes for g in self.topologies], self.topology_of))

    @cached_property
    def scope_vars(self) -> Ints:
        """Variables of every factor's scope, numbered within the batch."""
        return gather([g.scope_flat for g in self.topologies], self.topology_of, self.var_ptr[:-1])

    def pair_cards(self, factors: Ints) -> Ints:
        """Cardinalities (factor, 2) of some factors of two variables."""
        out = np.empty((len(factors), 2), dtype=np.int64)
        owner = np.searchsorted(self.factor_ptr, factors, side="right") - 1
        local = factors - self.factor_ptr[owner]
        kind = self.topology_of[owner]
        for k in np.unique(kind).tolist():
            graph = self.topologies[k]
            members = np.flatnonzero(kind == k)
            slots = graph.scope_ptr[local[members]][:, None] + np.arange(2)
            out[members] = graph.card_array[graph.scope_flat[slots]]
        return out

    @cached_property
    def slot_factor(self) -> Ints:
        """Factor of each entry of ``scope_vars`` (a slot: one variable of one factor)."""
        return np.repeat(np.arange(self.n_factors), np.diff(self.scope_ptr))

    @cached_property
    def slots_by_variable(self) -> Ints:
        """The slots of the first variable, those of the second, and so on."""
        return np.argsort(self.scope_vars, kind="stable")

    @cached_property
    def pairwise(self) -> Bools:
        """Which instances have factors of order two only."""
        higher_order = np.diff(self.scope_ptr) != 2
        count = np.bincount(self.factor_owner[higher_order], minlength=len(self))
        return np.asarray(count == 0)

    @cached_property
    def message_ptr(self) -> Ints:
        """Where the log-messages of each instance begin: one message per entry of ``scope_vars``, in that order."""
        return offsets(self.cards[self.scope_vars])[self.scope_ptr[self.factor_ptr]]

    @cached_property
    def mu_source(self) -> Ints:
        """For every entry of ``Marginals.tables`` the entry of ``Potentials.tables`` it is a marginal of."""
        return spans(self.table_at[self.mu_first], self.table_sizes[self.mu_first])

    @cached_property
    def mu_owner(self) -> Ints:
        """Instance of each entry of ``Marginals.tables``."""
        return np.repeat(self.factor_owner[self.mu_first], self.table_sizes[self.mu_first])

    def mu_entries(self, entries: Ints) -> tuple[Ints, Ints]:
        """``mu_source`` and ``mu_owner`` of the named entries of ``Marginals.tables``, without computing all."""
        starts = self.mu_at[self.mu_first]
        block = np.searchsorted(starts, entries, side="right") - 1
        factor = self.mu_first[block]
        return self.table_at[factor] + entries - starts[block], self.factor_owner[factor]

    @cached_property
    def whole_copies(self) -> bool:
        """Whether the layout of ``Marginals.tables`` is that of ``Potentials.tables``, repeated a number of times."""
        n = self.n_table_entries
        if n == 0 or self.n_mu_entries % n != 0:
            return False
        return np.array_equal(self.mu_at[self.mu_first] % n, self.table_at[self.mu_first])

    def fold(self, mu_tables: Floats) -> Floats:
        """Sum per-instance table marginals over the instances that share a table."""
        if not self.whole_copies:
            return sum_by(self.mu_source, mu_tables, self.n_table_entries)
        copies = mu_tables.reshape(-1, self.n_table_entries)
        if len(copies) == 1:
            return mu_tables
        return np.asarray(copies.sum(axis=0))

    def state_span(self, b: int) -> slice:
        """Entries of instance b in an array of length S."""
        return slice(int(self.unary_ptr[self.var_ptr[b]]), int(self.unary_ptr[self.var_ptr[b + 1]]))

    def select(self, which: Sequence[int] | Ints) -> Batch:
        """The sub-batch of the named instances; tables are renumbered in order of first use."""
        chosen = np.asarray(which, dtype=np.int64)
        first, topology_of = factorize(self.topology_of[chosen])
        kinds = tuple(self.topologies[k] for k in self.topology_of[chosen[first]])
        factors = spans(self.factor_ptr[chosen], np.diff(self.factor_ptr)[chosen])
        return Batch.of_kinds(kinds, topology_of, self.table_at[factors])


def factorize(ids: Ints) -> tuple[Ints, Ints]:
    """Distinct ids numbered in order of first use: the index of each one's first use, and the number of every entry."""
    n = len(ids)
    span = int(ids.max(initial=-1)) + 1
    if span > 4 * n + 1024 or ids.min(initial=0) < 0:  # a table would cost more than sorting
        _, first, number = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        place = np.empty(len(first), dtype=np.int64)
        place[order] = np.arange(len(first))
        return first[order], place[number]
    table = np.full(span, -1, dtype=np.int64)
    table[ids[::-1]] = np.arange(n - 1, -1, -1)
    first = np.sort(table[table >= 0])
    table[ids[first]] = np.arange(len(first))
    return first, table[ids]

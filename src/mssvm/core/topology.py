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
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints, sum_by
from mssvm.core.errors import InputError

NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Topology:
    """Wiring of one instance: cardinalities, and scopes of the factors of order two or more.

    Then the same as arrays: variable v has ``card_array[v]`` states; factor f touches ``scope_flat[scope_ptr[f] :
    scope_ptr[f+1]]`` and has ``table_sizes[f]`` entries; ``shape_ids`` are equal where tables have the same shape.
    """

    cards: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    n_vars: int = field(init=False, repr=False, compare=False)
    n_factors: int = field(init=False, repr=False, compare=False)
    card_array: Ints = field(init=False, repr=False, compare=False)
    scope_ptr: Ints = field(init=False, repr=False, compare=False)
    scope_sizes: Ints = field(init=False, repr=False, compare=False)
    scope_flat: Ints = field(init=False, repr=False, compare=False)
    table_sizes: Ints = field(init=False, repr=False, compare=False)
    shape_ids: Ints = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cards, scopes = tuple(map(int, self.cards)), []
        for i, card in enumerate(cards):
            if card < 1:
                raise InputError(f"variable {i} has {card} states; every variable needs at least one.")
        n = len(cards)
        for f, given in enumerate(self.scopes):
            scope = tuple(map(int, given))
            if len(scope) < 2 or len(set(scope)) != len(scope):
                raise InputError(f"factor {f} has scope {scope}; it needs two or more different variables.")
            if min(scope) < 0 or max(scope) >= n:
                raise InputError(f"factor {f} has scope {scope}, but variables run from 0 to {n - 1}.")
            scopes.append(scope)
        card_array = np.array(cards, dtype=np.int64)
        orders = np.fromiter(map(len, scopes), np.int64, len(scopes))
        ptr = offsets(orders)
        flat = np.fromiter(chain.from_iterable(scopes), np.int64)
        table_sizes = shape_ids = flat
        if scopes:
            here, place = card_array[flat], ranks(ptr)
            with np.errstate(over="ignore"):
                mixed = (here + 1) * np.int64(0x5851F42D4C957F2D) ** (place + 1)
            table_sizes, shape_ids = np.multiply.reduceat(here, ptr[:-1]), np.add.reduceat(mixed, ptr[:-1])
        derived = {"cards": cards, "scopes": tuple(scopes), "n_vars": n, "n_factors": len(scopes)}
        derived |= {"card_array": card_array, "scope_ptr": ptr, "scope_sizes": orders, "scope_flat": flat}
        derived |= {"table_sizes": table_sizes, "shape_ids": shape_ids, "_hash": hash((cards, derived["scopes"]))}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return self._hash  # worked out once: batches look topologies up by value

    @cached_property
    def unary_ptr(self) -> Ints:
        return offsets(self.card_array)

    @cached_property
    def scope_strides(self) -> Ints:
        """Step in a factor's table for each variable of its scope, aligned with ``scope_flat``."""
        cards, size = self.card_array[self.scope_flat], self.scope_sizes
        from_end = np.repeat(self.scope_ptr[1:], size) - 1 - np.arange(len(cards))
        steps = np.ones(len(cards), dtype=np.int64)
        for at in range(1, int(size.max(initial=1))):
            here = np.flatnonzero(from_end == at)
            steps[here] = steps[here + 1] * cards[here + 1]
        return steps

    def table_shape(self, factor: int) -> tuple[int, ...]:
        return tuple(self.cards[v] for v in self.scopes[factor])


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
    """Where the entries of some segments ``ptr[k] .. ptr[k + 1]`` lie; of consecutive ones as a slice, which makes no
    copies."""
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
    """``parts[of[b]]``, plus ``shift[b]`` where given, for every b, one after the other."""
    if len(parts) == 1:
        once = np.asarray(parts[0], dtype=np.int64)
        return np.tile(once, len(of)) if shift is None else (shift[:, None] + once).ravel()
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    here = sizes[of]
    found: Ints = np.concatenate([NONE, *parts])[spans((np.cumsum(sizes) - sizes)[of], here)]
    return found if shift is None else found + np.repeat(shift, here)


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances of any sizes side by side in flat arrays (layout in the module docstring).

    ``mu_first`` is the first factor of every marginal in ``Marginals.tables``, in the order in which they lie there.
    What follows from topologies and is seldom needed is not kept: data have many sites, and one number each adds up.
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
        return cls.of_kinds(
            tuple(unique), topology_of, np.concatenate([NONE, *(np.asarray(row, dtype=np.int64) for row in table_ids)])
        )

    @classmethod
    def of_kinds(cls, kinds: tuple[Topology, ...], topology_of: Ints, table_ids: Ints | None = None) -> Batch:
        """``build`` of instances ``kinds[topology_of[b]]``, kinds all different; table ids of all factors in a row."""
        count, card_arrays, table_sizes, shape_ids = np.zeros((2, len(kinds)), dtype=np.int64), [], [], []
        for k, kind in enumerate(kinds):
            count[:, k] = kind.n_vars, kind.n_factors
            card_arrays.append(kind.card_array)
            table_sizes.append(kind.table_sizes)
            shape_ids.append(kind.shape_ids)
        var_ptr, factor_ptr = offsets(count[0, topology_of]), offsets(count[1, topology_of])
        sizes, shapes = gather(table_sizes, topology_of), gather(shape_ids, topology_of)
        unary_ptr = offsets(gather(card_arrays, topology_of))
        mu_first, tables = np.arange(len(sizes)), offsets(sizes)
        marginals, table_at = tables, tables[:-1]
        mu_at = table_at
        if table_ids is not None:  # blocks lie in order of first use
            first, number = factorize(table_ids)
            for f in np.flatnonzero(shapes != shapes[first][number])[:1].tolist():
                raise InputError(f"factor {f} shares table {int(table_ids[f])} with a factor of another shape.")
            tables = offsets(sizes[first])
            owner = np.repeat(np.arange(len(topology_of)), np.diff(factor_ptr))
            mu_first, mu_number = factorize(number + owner * len(first))
            marginals = offsets(sizes[mu_first])
            table_at, mu_at = tables[number], marginals[mu_number]
        totals = int(var_ptr[-1]), int(factor_ptr[-1]), int(unary_ptr[-1]), int(tables[-1]), int(marginals[-1])
        return cls(kinds, topology_of, *totals, var_ptr, factor_ptr, unary_ptr, table_at, mu_at, mu_first)

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
        return offsets(gather([g.scope_sizes for g in self.topologies], self.topology_of))

    @cached_property
    def scope_vars(self) -> Ints:
        """Variables of every factor's scope, numbered within the batch."""
        return gather([g.scope_flat for g in self.topologies], self.topology_of, self.var_ptr[:-1])

    def pair_cards(self, factors: Ints) -> Ints:
        """Cardinalities (factor, 2) of some factors of two variables."""
        out = np.empty((len(factors), 2), dtype=np.int64)
        owner = np.searchsorted(self.factor_ptr, factors, side="right") - 1
        local, kind = factors - self.factor_ptr[owner], self.topology_of[owner]
        for k in np.unique(kind).tolist():
            graph, mine = self.topologies[k], kind == k
            out[mine] = graph.card_array[graph.scope_flat[graph.scope_ptr[local[mine]][:, None] + np.arange(2)]]
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
        wide = np.diff(self.scope_ptr) != 2
        found: Bools = np.bincount(self.factor_owner[wide], minlength=len(self)) == 0
        return found

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
        """``mu_source`` and ``mu_owner`` of some entries of ``Marginals.tables``, without those of all."""
        first, at = self.mu_first, self.mu_at[self.mu_first]
        block = np.searchsorted(at, entries, side="right") - 1
        return self.table_at[first][block] + entries - at[block], self.factor_owner[first][block]

    @cached_property
    def whole_copies(self) -> bool:
        """Whether ``Marginals.tables`` is ``Potentials.tables`` so and so many times over, entry by entry."""
        n, first = self.n_table_entries, self.mu_first
        return n > 0 and self.n_mu_entries % n == 0 and np.array_equal(self.mu_at[first] % n, self.table_at[first])

    def fold(self, mu_tables: Floats) -> Floats:
        """Sum per-instance table marginals over the instances that share a table."""
        if not self.whole_copies:
            return sum_by(self.mu_source, mu_tables, self.n_table_entries)
        copies = mu_tables.reshape(-1, self.n_table_entries)
        return mu_tables if len(copies) == 1 else np.asarray(copies.sum(axis=0))

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
    """Different ids numbered in order of first use: where each is met first, and the number of every entry."""
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

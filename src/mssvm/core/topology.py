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

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.errors import InputError


@dataclass(frozen=True)
class Topology:
    """Wiring of one instance: cardinalities, and scopes of the factors of order two or more."""

    cards: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cards", tuple(int(c) for c in self.cards))
        object.__setattr__(self, "scopes", tuple(tuple(int(v) for v in s) for s in self.scopes))
        for i, card in enumerate(self.cards):
            if card < 1:
                raise InputError(f"variable {i} has {card} states; every variable needs at least one.")
        n = len(self.cards)
        for f, scope in enumerate(self.scopes):
            if len(scope) < 2 or len(set(scope)) != len(scope):
                raise InputError(f"factor {f} has scope {scope}; it needs two or more different variables.")
            if min(scope) < 0 or max(scope) >= n:
                raise InputError(f"factor {f} has scope {scope}, but variables run from 0 to {n - 1}.")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.cards, self.scopes))

    @property
    def n_vars(self) -> int:
        return len(self.cards)

    @property
    def n_factors(self) -> int:
        return len(self.scopes)

    @cached_property
    def card_array(self) -> Ints:
        return np.array(self.cards, dtype=np.int64)

    @cached_property
    def unary_ptr(self) -> Ints:
        return offsets(self.card_array)

    @cached_property
    def scope_ptr(self) -> Ints:
        return offsets(np.array([len(s) for s in self.scopes], dtype=np.int64))

    @cached_property
    def scope_flat(self) -> Ints:
        return np.array([v for s in self.scopes for v in s], dtype=np.int64)

    @cached_property
    def scope_strides(self) -> Ints:
        """Step in a factor's table for each variable of its scope, aligned with ``scope_flat``."""
        steps = [np.cumprod([1, *self.table_shape(f)[:0:-1]])[::-1] for f in range(self.n_factors)]
        return _concat([np.asarray(s, dtype=np.int64) for s in steps])

    @cached_property
    def table_sizes(self) -> Ints:
        return np.array([int(np.prod([self.cards[v] for v in s])) for s in self.scopes], dtype=np.int64)

    @cached_property
    def shape_ids(self) -> Ints:
        """A number for every factor, equal for factors whose tables have the same shape."""
        return np.array([hash(self.table_shape(f)) for f in range(self.n_factors)], dtype=np.int64)

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


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances of any sizes side by side in flat arrays (layout in the module docstring)."""

    topologies: tuple[Topology, ...]
    topology_of: Ints
    var_ptr: Ints
    factor_ptr: Ints
    unary_ptr: Ints
    table_at: Ints
    mu_at: Ints
    n_table_entries: int
    n_mu_entries: int

    @classmethod
    def build(cls, graphs: Sequence[Topology], table_ids: Sequence[Sequence[int] | Ints] | None = None) -> Batch:
        """Lay out one instance per entry of ``graphs``.

        ``table_ids[b][f]`` names the table of factor f of instance b; equal ids share one table, within
        and across instances. ``None`` gives every factor a table of its own.
        """
        unique: dict[Topology, int] = {}
        topology_of = np.array([unique.setdefault(g, len(unique)) for g in graphs], dtype=np.int64)
        kinds = tuple(unique)
        var_ptr = offsets(np.array([g.n_vars for g in graphs], dtype=np.int64))
        factor_ptr = offsets(np.array([g.n_factors for g in graphs], dtype=np.int64))
        cards = _concat([g.card_array for g in graphs])
        sizes = _concat([g.table_sizes for g in graphs])
        if table_ids is None:
            ids = np.arange(len(sizes), dtype=np.int64)
        else:
            if len(table_ids) != len(graphs):
                raise InputError(f"table_ids has {len(table_ids)} rows for {len(graphs)} instances.")
            for b, (row, graph) in enumerate(zip(table_ids, graphs, strict=True)):
                if len(row) != graph.n_factors:
                    raise InputError(f"instance {b}: {len(row)} table ids for {graph.n_factors} factors.")
            ids = _concat([np.asarray(row, dtype=np.int64) for row in table_ids])
            _check_tied(ids, _concat([kinds[k].shape_ids for k in topology_of]))
        table_at, n_table = _place(ids, sizes)
        owner = np.repeat(np.arange(len(graphs)), np.diff(factor_ptr))
        named, number = np.unique(ids, return_inverse=True)
        mu_ids = number + owner * len(named)
        mu_at, n_mu = _place(mu_ids, sizes)
        return cls(kinds, topology_of, var_ptr, factor_ptr, offsets(cards), table_at, mu_at, n_table, n_mu)

    def __len__(self) -> int:
        return len(self.topology_of)

    @property
    def n_vars(self) -> int:
        return int(self.var_ptr[-1])

    @property
    def n_factors(self) -> int:
        return int(self.factor_ptr[-1])

    @property
    def n_states(self) -> int:
        return int(self.unary_ptr[-1])

    def topology(self, b: int) -> Topology:
        return self.topologies[int(self.topology_of[b])]

    @cached_property
    def cards(self) -> Ints:
        return np.diff(self.unary_ptr)

    @cached_property
    def owner(self) -> Ints:
        """Instance of each variable."""
        return np.repeat(np.arange(len(self)), np.diff(self.var_ptr))

    @cached_property
    def state_var(self) -> Ints:
        """Variable of each entry of an array of length S."""
        return np.repeat(np.arange(self.n_vars), self.cards)

    @cached_property
    def factor_owner(self) -> Ints:
        """Instance of each factor."""
        return np.repeat(np.arange(len(self)), np.diff(self.factor_ptr))

    @cached_property
    def table_sizes(self) -> Ints:
        return _concat([self.topology(b).table_sizes for b in range(len(self))])

    @cached_property
    def scope_ptr(self) -> Ints:
        """Scope of factor f of the batch: ``scope_vars[scope_ptr[f] : scope_ptr[f+1]]``."""
        return offsets(_concat([np.diff(self.topology(b).scope_ptr) for b in range(len(self))]))

    @cached_property
    def scope_vars(self) -> Ints:
        """Variables of every factor's scope, numbered within the batch."""
        return _concat([self.topology(b).scope_flat + self.var_ptr[b] for b in range(len(self))])

    @cached_property
    def slot_factor(self) -> Ints:
        """Factor of each entry of ``scope_vars`` (a slot: one variable of one factor)."""
        return np.repeat(np.arange(self.n_factors), np.diff(self.scope_ptr))

    @cached_property
    def pairwise(self) -> Bools:
        """Which instances have factors of order two only."""
        wide = np.diff(self.scope_ptr) != 2
        found: Bools = np.bincount(self.factor_owner[wide], minlength=len(self)) == 0
        return found

    @cached_property
    def mu_source(self) -> Ints:
        """For every entry of ``Marginals.tables`` the entry of ``Potentials.tables`` it is a marginal of."""
        out = np.zeros(self.n_mu_entries, dtype=np.int64)
        out[spans(self.mu_at, self.table_sizes)] = spans(self.table_at, self.table_sizes)
        return out

    @cached_property
    def mu_owner(self) -> Ints:
        """Instance of each entry of ``Marginals.tables``."""
        out = np.zeros(self.n_mu_entries, dtype=np.int64)
        out[spans(self.mu_at, self.table_sizes)] = np.repeat(self.factor_owner, self.table_sizes)
        return out

    @cached_property
    def tables_shared_across_instances(self) -> bool:
        return self.n_mu_entries != self.n_table_entries

    def fold(self, mu_tables: Floats) -> Floats:
        """Sum per-instance table marginals over the instances that share a table."""
        if not self.tables_shared_across_instances and np.array_equal(self.mu_at, self.table_at):
            return mu_tables
        return sum_by(self.mu_source, mu_tables, self.n_table_entries)

    def state_span(self, b: int) -> slice:
        """Entries of instance b in an array of length S."""
        return slice(int(self.unary_ptr[self.var_ptr[b]]), int(self.unary_ptr[self.var_ptr[b + 1]]))

    def select(self, which: Sequence[int] | Ints) -> Batch:
        """The sub-batch of the named instances; tables are renumbered in order of first use."""
        graphs = [self.topology(int(b)) for b in which]
        rows = [self.table_at[self.factor_ptr[b] : self.factor_ptr[b + 1]] for b in which]
        return Batch.build(graphs, rows)


def _concat(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)


def _place(ids: Ints, sizes: Ints) -> tuple[Ints, int]:
    """Offsets of blocks named by ``ids`` in order of first appearance, and their total size."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    starts = np.zeros(len(first), dtype=np.int64)
    at = offsets(sizes[first][order])
    starts[order] = at[:-1]
    return starts[inverse], int(at[-1])


def _check_tied(ids: Ints, shape_ids: Ints) -> None:
    """Raise if factors of different table shapes name the same table."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    bad = np.flatnonzero(shape_ids != shape_ids[first][inverse])
    if len(bad):
        raise InputError(f"factor {int(bad[0])} shares table {int(ids[bad[0]])} with a factor of another shape.")

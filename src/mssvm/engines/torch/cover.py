"""The chains of a decomposition bound as ``kernels/cover.cu`` visits them: items, one for every variable of a chain.

Items are ordered by level; in a level by their number at their variable, then by variable. So items of neighbouring
threads have their numbers side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.topology import CACHED_PARTS, Batch, Topology, offsets, ranks, size_in_cache
from mssvm.engines.native.chains import ChainCover, chain_cover

WARP = 32
# columns of items, as in ``Item`` of the kernels
BEFORE, AFTER, VARIABLE, SECOND, CARDS, PLACE = range(6)
MOST_MARKED = 8  # places of a variable whose neighbours are marked by a bit


@dataclass(frozen=True, eq=False)
class GraphItems:
    """The items of a topology.

    levels     a row by level: its first variable, its first item, the number of its variables, and the number of places
               for items at each of them
    span       largest number of levels between neighbours
    variables  a row by variable, in the order of levels: first state, number of states, level, number in the topology
    left       by variable: its weight beside its chains
    items      a row by item: ``BEFORE`` .. ``PLACE``, the first fields of ``Item``
    rho        by item: the weight of its chain
    factor     by item: the factor to the next variable of the chain, -1 if there is none
    """

    levels: Ints
    span: int
    variables: Ints
    left: Floats
    items: Ints
    rho: Floats
    factor: Ints


@cached_by_size(CACHED_PARTS, size_in_cache)
def graph_items(graph: Topology) -> GraphItems:
    """The items of a topology with factors of two variables."""
    cover = chain_cover(graph)
    n = graph.n_vars
    order = np.argsort(cover.level, kind="stable")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    in_level = np.bincount(cover.level, minlength=1)
    level_variable = offsets(in_level)
    cards = graph.card_array
    first_state = offsets(cards)[:-1]
    variables = np.stack([first_state[order], cards[order], cover.level[order], order], axis=1)

    members = _chain_members(graph, cover)
    width = np.zeros(len(in_level), dtype=np.int64)  # places for items at each variable of a level
    np.maximum.at(width, cover.level, np.bincount(members.variable, minlength=n))
    level_item = offsets(width * in_level)
    level = cover.level[members.variable]
    in_order = place[members.variable] - level_variable[level]
    at = level_item[level] + members.rank * in_level[level] + in_order
    low = at[members.low]
    high = at[members.high]

    items = _empty_items(in_level, width)
    items[low, AFTER] = high
    items[high, BEFORE] = low
    ends = graph.scope_flat.reshape(-1, 2)
    starts_high = ends[:, 0] > ends[:, 1]
    items[low, SECOND] |= starts_high.astype(np.int64)
    items[high, SECOND] |= 2 * (~starts_high).astype(np.int64)
    _pack_cards(items, cards[order])
    _mark_neighbours(items, n)
    rho = np.zeros(len(items))
    rho[low] = cover.weight
    rho[high] = cover.weight
    factor = np.full(len(items), -1, dtype=np.int64)
    factor[low] = np.arange(graph.n_factors)
    level_of_ends = cover.level[ends]
    span = int(np.abs(level_of_ends[:, 0] - level_of_ends[:, 1]).max(initial=0))
    levels = np.stack([level_variable[:-1], level_item[:-1], in_level, width], axis=1)
    return GraphItems(levels, span, variables, cover.left[order], items, rho, factor)


class _ChainMembers(NamedTuple):
    """The members of chains: one for every chain and variable of it, with its ``rank`` among those of the variable.

    ``low`` and ``high`` are, by factor, the members at its end of lower and of higher number.
    """

    variable: Ints
    rank: Ints
    low: Ints
    high: Ints


def _chain_members(graph: Topology, cover: ChainCover) -> _ChainMembers:
    n = graph.n_vars
    n_factors = graph.n_factors
    ends = graph.scope_flat.reshape(-1, 2)
    keys = np.concatenate([cover.chain * n + ends.min(axis=1), cover.chain * n + ends.max(axis=1)])
    key, number = np.unique(keys, return_inverse=True)
    low = number[:n_factors]
    high = number[n_factors:]
    variable = key % max(n, 1)
    # The order of the native engine: chains that come from an earlier variable first, by their factors there.
    arrives = np.full(len(variable), n_factors)
    arrives[high] = np.arange(n_factors)
    leaves = np.zeros(len(variable), dtype=np.int64)
    leaves[low] = np.arange(n_factors)
    by_variable = np.lexsort((leaves, arrives, variable))
    rank = np.empty(len(variable), dtype=np.int64)
    rank[by_variable] = ranks(offsets(np.bincount(variable, minlength=n)))
    return _ChainMembers(variable, rank, low, high)


def _empty_items(in_level: Ints, width: Ints) -> Ints:
    """Items without neighbours: variable and place of each, also of the places that a variable does not need."""
    sizes = in_level * width
    level = np.repeat(np.arange(len(in_level)), sizes)
    inside = ranks(offsets(sizes))
    per_place = np.maximum(in_level[level], 1)
    items = np.zeros((len(level), 6), dtype=np.int64)
    items[:, BEFORE] = -1
    items[:, AFTER] = -1
    items[:, VARIABLE] = offsets(in_level)[level] + inside % per_place
    items[:, PLACE] = inside // per_place
    return items


def _pack_cards(items: Ints, cards: Ints) -> None:
    """The numbers of states of an item's variable and of its neighbours in the chain, eight bits each."""
    card_of = np.append(cards[items[:, VARIABLE]], 0)  # index -1, no neighbour, reads the zero
    items[:, CARDS] = card_of[:-1] + (card_of[items[:, BEFORE]] << 8) + (card_of[items[:, AFTER]] << 16)


def _mark_neighbours(items: Ints, n: int) -> None:
    """Add to every item's place two masks: which places of its variable have a neighbour before, and which after."""
    place = items[:, PLACE].copy()
    for column, shift in ((BEFORE, 8), (AFTER, 16)):
        marked = (items[:, column] >= 0) & (place < MOST_MARKED)
        mask = np.bincount(items[marked, VARIABLE], weights=2.0 ** place[marked], minlength=n).astype(np.int64)
        items[:, PLACE] |= mask[items[:, VARIABLE]] << shift


@dataclass(frozen=True, eq=False)
class BatchItems:
    """The items of some instances of a batch.

    ``levels`` to ``rho`` are the arrays of their topologies (``GraphItems``), one topology after the other; ``places``
    says by instance where everything begins (``Place`` of the kernels). ``table`` and ``mu`` have, by instance and
    item, where the table of the factor to the next variable begins and where its marginals are summed; ``table_before``
    is the table of the factor to the variable before. Where factors share their sums (``shared``), their items are a
    group, listed in ``group_items`` from ``group_at`` on, with the entries (``group_size``) and the place
    (``group_mu``) of its sum.
    """

    places: Ints
    levels: Ints
    variables: Ints
    left: Floats
    items: Ints
    rho: Floats
    table: Ints
    table_before: Ints
    mu: Ints
    group_at: Ints
    group_items: Ints
    group_size: Ints
    group_mu: Ints
    number: Ints  # numbers in the batch of the instances' variables, in the order of levels
    shared: bool
    busiest: int
    chains: int
    ring: int
    n_vars: int
    n_items: int
    variable: Ints  # by item of every instance: the place of its variable in ``number``
    before: Ints  # by item of every instance: the item before it in its chain, or itself at the beginning
    after: Ints

    @classmethod
    def of(cls, batch: Batch, instances: Ints) -> BatchItems:
        kinds = batch.topology_of[instances]
        used, kind = np.unique(kinds, return_inverse=True)
        graphs = [graph_items(batch.topologies[int(k)]) for k in used]
        levels = _counted(graphs, "levels")
        n_vars = np.array([len(g.variables) for g in graphs], dtype=np.int64)
        n_items = np.array([len(g.items) for g in graphs], dtype=np.int64)
        items_at = offsets(n_items[kind])
        table, mu = _factor_entries(batch, instances, kind, graphs, items_at)
        items = [graphs[int(k)].items for k in kind]
        at = np.repeat(items_at[:-1], n_items[kind])
        before, after = (_around(items, at, column) for column in (BEFORE, AFTER))
        groups = _Groups.of(batch, mu, items_at, kind, graphs)
        vars_at = offsets(n_vars[kind])
        ring = 1 + max(g.span for g in graphs)
        busiest = max(int((g.levels[:, 2] * g.levels[:, 3]).max(initial=0)) for g in graphs)
        busiest = -(-busiest // WARP) * WARP  # rounded up: a kernel is compiled for every size
        columns = (
            offsets(levels)[:-1][kind],
            levels[kind],
            offsets(n_vars)[:-1][kind],
            n_vars[kind],
            offsets(n_items)[:-1][kind],
            n_items[kind],
            vars_at[:-1],
            items_at[:-1],
            batch.unary_ptr[batch.var_ptr[instances]],
            batch.var_ptr[instances],
            groups.first[:-1],
            np.diff(groups.first),
        )
        return cls(
            places=np.stack(columns, axis=1),
            levels=_joined(graphs, "levels"),
            variables=_joined(graphs, "variables"),
            left=_joined(graphs, "left"),
            items=np.concatenate([_with_rings(g, ring, busiest) for g in graphs]),
            rho=_joined(graphs, "rho"),
            table=table,
            table_before=table[before],
            mu=np.maximum(mu, 0),
            group_at=groups.at,
            group_items=groups.items,
            group_size=groups.size,
            group_mu=groups.mu,
            number=_numbers(batch, instances, kind, graphs),
            shared=len(groups.mu) < len(groups.items),
            busiest=busiest,
            chains=max(int(g.levels[:, 3].max(initial=0)) for g in graphs),
            ring=ring,
            n_vars=int(vars_at[-1]),
            n_items=int(items_at[-1]),
            variable=_joined_columns(items, VARIABLE) + np.repeat(vars_at[:-1], n_items[kind]),
            before=before,
            after=after,
        )


@dataclass(frozen=True, eq=False)
class _Groups:
    """Items whose factors have one sum of marginals; ``first`` is the first group of every instance."""

    first: Ints
    at: Ints
    items: Ints
    size: Ints
    mu: Ints

    @classmethod
    def of(cls, batch: Batch, mu: Ints, items_at: Ints, kind: Ints, graphs: list[GraphItems]) -> _Groups:
        """The groups of all instances. Those of one topology mostly have the same pattern, which is computed once."""
        known: dict[int, _Pattern] = {}
        parts = []
        for b, k in enumerate(kind.tolist()):
            graph = graphs[k]
            mine = mu[items_at[b] : items_at[b + 1]]
            if k not in known or not known[k].fits(mine):
                known[k] = _Pattern.of(mine, graph.factor)
            parts.append((known[k], mine))
        counts = np.array([len(pattern.begin) for pattern, _ in parts], dtype=np.int64)
        n_items = offsets(np.array([len(pattern.items) for pattern, _ in parts], dtype=np.int64))
        none = np.zeros(0, dtype=np.int64)
        begin = [pattern.begin + first for (pattern, _), first in zip(parts, n_items.tolist(), strict=False)]
        sums = np.concatenate([none, *(mine[pattern.items[pattern.begin]] for pattern, mine in parts)])
        sizes = np.diff(np.append(batch.mu_at[batch.mu_first], batch.n_mu_entries))
        return cls(
            offsets(counts),
            np.append(np.concatenate([none, *begin]), n_items[-1]),
            np.concatenate([none, *(pattern.items for pattern, _ in parts)]),
            sizes[np.searchsorted(batch.mu_at[batch.mu_first], sums)],
            sums,
        )


@dataclass(frozen=True, eq=False)
class _Pattern:
    """How the factors of an instance share sums of marginals: the ``items`` that have a factor, grouped by their sum;
    where every group begins (``begin``); and how far every item's sum is from that of the first item (``distance``)."""

    items: Ints
    begin: Ints
    distance: Ints

    @classmethod
    def of(cls, mu: Ints, factor: Ints) -> _Pattern:
        sends = np.flatnonzero(factor >= 0)
        items = sends[np.argsort(mu[sends], kind="stable")]
        new = np.ones(len(items), dtype=bool)
        new[1:] = mu[items[1:]] != mu[items[:-1]]
        return cls(items, np.flatnonzero(new), mu[items] - (mu[items[0]] if len(items) else 0))

    def fits(self, mu: Ints) -> bool:
        """Whether another instance of the same topology shares its sums in this way."""
        found = mu[self.items]
        return bool(np.array_equal(found - (found[0] if len(found) else 0), self.distance))


def _factor_entries(
    batch: Batch, instances: Ints, kind: Ints, graphs: list[GraphItems], items_at: Ints
) -> tuple[Ints, Ints]:
    """By item, where the table of the factor to the next variable begins (0: no factor), and its marginals (-1)."""
    table = np.zeros(int(items_at[-1]), dtype=np.int64)
    mu = np.full(int(items_at[-1]), -1, dtype=np.int64)
    for number, graph in enumerate(graphs):
        sends = np.flatnonzero(graph.factor >= 0)
        members = np.flatnonzero(kind == number)
        at = items_at[members][:, None] + sends
        factor = batch.factor_ptr[instances[members]][:, None] + graph.factor[sends]
        table[at] = batch.table_at[factor]
        mu[at] = batch.mu_at[factor]
    return table, mu


def _numbers(batch: Batch, instances: Ints, kind: Ints, graphs: list[GraphItems]) -> Ints:
    local = [graphs[int(k)].variables[:, 3] for k in kind]
    sizes = np.array([len(part) for part in local], dtype=np.int64)
    return np.asarray(np.repeat(batch.var_ptr[instances], sizes) + np.concatenate(local))


def _joined_columns(items: list[Ints], column: int) -> Ints:
    return np.concatenate([part[:, column] for part in items])


def _around(items: list[Ints], at: Ints, column: int) -> Ints:
    """For every item, the item before or after it in its chain, or the item itself at the end of the chain."""
    found = _joined_columns(items, column)
    return np.asarray(np.where(found >= 0, found + at, np.arange(len(found))))


def _with_rings(graph: GraphItems, ring: int, busiest: int) -> Ints:
    """The items with the places of their neighbours' messages in shared memory."""
    levels = graph.levels
    sizes = levels[:, 2] * levels[:, 3]
    level = np.repeat(np.arange(len(levels)), sizes)
    slot = level % ring * busiest + ranks(offsets(sizes))
    around = np.append(slot, 0)[graph.items[:, [BEFORE, AFTER]]]
    return np.concatenate([graph.items, around], axis=1)


def _counted(graphs: list[GraphItems], name: str) -> Ints:
    return np.array([len(getattr(g, name)) for g in graphs], dtype=np.int64)


def _joined(graphs: list[GraphItems], name: str) -> AnyArray:
    return np.concatenate([getattr(g, name) for g in graphs])

"""The chains of a decomposition bound as ``kernels/cover.cu`` visits them: items, one for every variable of a chain.

Items are ordered by level; in a level by their number at their variable, then by variable. So items of neighbouring
threads have their numbers side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.topology import CACHED_PARTS, Batch, Topology, offsets, ranks, size_in_cache
from mssvm.engines.native.chains import chain_cover

WARP = 32


@dataclass(frozen=True, eq=False)
class GraphItems:
    """The items of a topology. By level: its first variable, its first item, and the numbers of its variables and of
    places for items at each (``levels``). ``span`` is the largest number of levels between neighbours.

    By variable, in the order of levels: first state, number of states, level, number in the topology (``variables``),
    and the weight ``left`` beside its chains. By item: the items before and after it, its variable, and the flags,
    numbers of states and places of ``Item`` (``items``), the weight ``rho`` of its chain, and the ``factor`` to the
    next variable (-1: none).
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

    ends = graph.scope_flat.reshape(-1, 2)
    low = ends.min(axis=1)
    high = ends.max(axis=1)
    key, number = np.unique(np.concatenate([cover.chain * n + low, cover.chain * n + high]), return_inverse=True)
    one = number[: len(low)]
    two = number[len(low) :]
    mine = key % max(n, 1)
    # The order of the native engine: chains that come from an earlier variable first, by their factors there.
    arrives = np.full(len(mine), len(low))
    arrives[two] = np.arange(len(low))
    leaves = np.zeros(len(mine), dtype=np.int64)
    leaves[one] = np.arange(len(low))
    by_variable = np.lexsort((leaves, arrives, mine))
    chains = np.bincount(mine, minlength=n)
    rank = np.empty(len(mine), dtype=np.int64)
    rank[by_variable] = ranks(offsets(chains))
    width = np.zeros(len(in_level), dtype=np.int64)
    np.maximum.at(width, cover.level, chains)
    level_item = offsets(width * in_level)
    level = cover.level[mine]
    at = level_item[level] + rank * in_level[level] + place[mine] - level_variable[level]

    total = int(level_item[-1])
    items = np.zeros((total, 6), dtype=np.int64)
    items[:, :2] = -1
    # Also of places that their variable does not need.
    of_level = np.repeat(np.arange(len(in_level)), in_level * width)
    inside = ranks(offsets(in_level * width))
    items[:, 2] = level_variable[of_level] + inside % np.maximum(in_level[of_level], 1)
    at_variable = inside // np.maximum(in_level[of_level], 1)
    items[:, 5] = at_variable
    items[at[one], 1] = at[two]
    items[at[two], 0] = at[one]
    starts_high = ends[:, 0] == high
    items[at[one], 3] |= starts_high.astype(np.int64)
    items[at[two], 3] |= 2 * (~starts_high).astype(np.int64)
    rho = np.zeros(total)
    rho[at[one]] = cover.weight
    rho[at[two]] = cover.weight
    factor = np.full(total, -1, dtype=np.int64)
    factor[at[one]] = np.arange(len(low))
    card_of = np.append(cards[order][items[:, 2]], 0)
    items[:, 4] = card_of[:-1] + (card_of[items[:, 0]] << 8) + (card_of[items[:, 1]] << 16)
    for column, shift in ((0, 8), (1, 16)):
        has = (items[:, column] >= 0) & (at_variable < 8)
        mask = np.bincount(items[has, 2], weights=2.0 ** at_variable[has], minlength=n).astype(np.int64)
        items[:, 5] |= mask[items[:, 2]] << shift
    span = int((cover.level[high] - cover.level[low]).max(initial=0))
    levels = np.stack([level_variable[:-1], level_item[:-1], in_level, width], axis=1)
    return GraphItems(levels, span, variables, cover.left[order], items, rho, factor)


@dataclass(frozen=True, eq=False)
class BatchItems:
    """The items of some instances of a batch: the arrays of their topologies, one after another, and by instance where
    everything begins (``places``, as ``Place`` of the kernels).

    By instance and item: the table and the sum of marginals of the factor to the next variable. Where factors share
    such sums (``shared``), the items of every group: ``group_at``, ``group_items``, and by group its size and its sum.
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
        table = np.zeros(int(items_at[-1]), dtype=np.int64)
        mu = np.full(int(items_at[-1]), -1, dtype=np.int64)
        for number, graph in enumerate(graphs):
            sends = np.flatnonzero(graph.factor >= 0)
            members = np.flatnonzero(kind == number)
            at = items_at[members][:, None] + sends
            factor = batch.factor_ptr[instances[members]][:, None] + graph.factor[sends]
            table[at] = batch.table_at[factor]
            mu[at] = batch.mu_at[factor]
        items = [graphs[int(k)].items for k in kind]
        at = np.repeat(items_at[:-1], n_items[kind])
        before, after = (_around(items, at, column) for column in (0, 1))
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
            variable=_joined_columns(items, 2) + np.repeat(vars_at[:-1], n_items[kind]),
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
        """Instances of one topology mostly share their factors' sums in the same way, which is sorted once."""
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
    """The items of an instance with a factor, those with one sum together; where every group begins; and the distances
    of their sums from the first one."""

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
    around = np.append(slot, 0)[graph.items[:, :2]]
    return np.concatenate([graph.items, around], axis=1)


def _counted(graphs: list[GraphItems], name: str) -> Ints:
    return np.array([len(getattr(g, name)) for g in graphs], dtype=np.int64)


def _joined(graphs: list[GraphItems], name: str) -> AnyArray:
    return np.concatenate([getattr(g, name) for g in graphs])

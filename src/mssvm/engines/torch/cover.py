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


@dataclass(frozen=True, eq=False)
class GraphItems:
    """The items of a topology. By level: its first variable and its first item (``level_variable``, ``level_item``).

    By variable, in the order of levels: first state, number of states, level, number in the topology (``variables``),
    and the weight ``left`` beside its chains. By item: the items ``before`` and ``after`` it, its variable and the
    flags of ``Item`` (``items``), the weight ``rho`` of its chain, and the ``factor`` to the next variable (-1: none).
    """

    level_variable: Ints
    level_item: Ints
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
    items = np.zeros((total, 4), dtype=np.int64)
    items[:, :2] = -1
    # Places that their variable does not need.
    items[:, 2] = _variables_of(in_level, width, level_variable)
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
    return GraphItems(level_variable, level_item, variables, cover.left[order], items, rho, factor)


def _variables_of(in_level: Ints, width: Ints, level_variable: Ints) -> Ints:
    """The variable of every place."""
    level = np.repeat(np.arange(len(in_level)), in_level * width)
    rank = ranks(offsets(in_level * width))
    return np.asarray(level_variable[level] + rank % np.maximum(in_level[level], 1))


@dataclass(frozen=True, eq=False)
class BatchItems:
    """The items of some instances of a batch: the arrays of their topologies, one after another, and by instance where
    everything begins (``places``, as ``Place`` of the kernels).

    By instance and item: the table and the sum of marginals of the factor to the next variable. Where factors share
    such sums (``shared``), the items of every group: ``group_at``, ``group_items``, and by group its size and its sum.
    """

    places: Ints
    level_variable: Ints
    level_item: Ints
    variables: Ints
    left: Floats
    items: Ints
    rho: Floats
    table: Ints
    mu: Ints
    group_at: Ints
    group_items: Ints
    group_size: Ints
    group_mu: Ints
    shared: bool
    busiest: int
    n_vars: int
    n_items: int

    @classmethod
    def of(cls, batch: Batch, instances: Ints) -> BatchItems:
        kinds = batch.topology_of[instances]
        used, kind = np.unique(kinds, return_inverse=True)
        graphs = [graph_items(batch.topologies[int(k)]) for k in used]
        levels = _counted(graphs, "level_variable")
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
        groups = _Groups.of(batch, mu, items_at, kind, graphs, instances)
        vars_at = offsets(n_vars[kind])
        columns = (
            offsets(levels)[:-1][kind],
            levels[kind] - 1,
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
            level_variable=_joined(graphs, "level_variable"),
            level_item=_joined(graphs, "level_item"),
            variables=_joined(graphs, "variables"),
            left=_joined(graphs, "left"),
            items=_joined(graphs, "items"),
            rho=_joined(graphs, "rho"),
            table=table,
            mu=np.maximum(mu, 0),
            group_at=groups.at,
            group_items=groups.items,
            group_size=groups.size,
            group_mu=groups.mu,
            shared=len(groups.mu) < len(groups.items),
            busiest=max(int(np.diff(g.level_item).max(initial=0)) for g in graphs),
            n_vars=int(vars_at[-1]),
            n_items=int(items_at[-1]),
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
    def of(
        cls, batch: Batch, mu: Ints, items_at: Ints, kind: Ints, graphs: list[GraphItems], instances: Ints
    ) -> _Groups:
        sends = np.flatnonzero(mu >= 0)
        owner = np.repeat(np.arange(len(items_at) - 1), np.diff(items_at))[sends]
        order = np.lexsort((sends, mu[sends], owner))
        sends = sends[order]
        owner = owner[order]
        new = np.ones(len(sends), dtype=bool)
        new[1:] = (mu[sends[1:]] != mu[sends[:-1]]) | (owner[1:] != owner[:-1])
        begin = np.flatnonzero(new)
        local = np.concatenate([np.zeros(0, dtype=np.int64), *(graphs[int(k)].factor for k in kind)])
        factor = batch.factor_ptr[instances][owner[begin]] + local[sends[begin]]
        return cls(
            offsets(np.bincount(owner[begin], minlength=len(items_at) - 1)),
            np.append(begin, len(sends)),
            sends - items_at[owner],
            batch.table_sizes[factor],
            mu[sends[begin]],
        )


def _counted(graphs: list[GraphItems], name: str) -> Ints:
    return np.array([len(getattr(g, name)) for g in graphs], dtype=np.int64)


def _joined(graphs: list[GraphItems], name: str) -> AnyArray:
    return np.concatenate([getattr(g, name) for g in graphs])

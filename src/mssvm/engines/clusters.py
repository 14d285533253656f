"""Graphs that become forests when neighbouring variables are joined, as Pearl's clustering does.

Two labels with an edge of their own and a hidden variable between them, y - h - z and y - z, are a triangle. With a
copy of y added to the hidden variable, k = (y', h), all factors are on the path y - k - z: the first edge requires
y' = y and has theta(y, h), the second has theta(h, z) + theta(y', z). Given y and z the sum over k is that over h, so
this holds at any temperatures. Other thin graphs, such as two parallel chains, are paths of their breadth-first layers;
the variables of a layer need one temperature.

Where labels are given, an edge between two of them is a constant, and the remaining edges may already be a forest.

theta of the forest is a linear map of theta of the graph; the transposed map takes marginals back to the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.topology import CACHED_PARTS, Topology, offsets, size_in_cache

LARGEST_EDGE = 1 << 10  # entries of a table between layers
LARGEST_TRIANGLE = 1 << 17  # states of a triangle, which are entries of a table with a copy
Variables = tuple[int, ...]
Graph = list[set[int]]
FIRST, OTHER, COPY = range(3)


class Clustering(NamedTuple):
    """Clusters of variables, the edges between them, and the ``home`` cluster of each variable; other clusters hold
    copies of it."""

    clusters: list[Variables]
    home: dict[int, int]
    edges: list[tuple[int, int]]


FormKey = tuple[tuple[Any, ...], ...]
"""Cards of the variables of an edge, those of its two clusters, and the scopes of its factors."""


class EdgeForm(NamedTuple):
    """How the table between two clusters is the sum of factors' tables.

    ``pairs`` has rows (entry, index of the factor, entry of its table); ``forbidden`` marks entries whose two clusters
    disagree about a variable that both have. Equal keys have equal forms.
    """

    key: FormKey
    pairs: Ints
    forbidden: Bools


@dataclass(frozen=True, eq=False)
class Clusters:
    """A topology as a forest of clusters of its variables.

    members   a row (cluster, variable, kind, to, at, outer, card, inner) for every variable of a cluster, its own
              variables first; kind is FIRST, OTHER or COPY. State s of the variable (state ``at + s`` of the graph) is
              part of the cluster's states ``to + (o * card + s) * inner + i``, o < outer, i < inner
    lifted    rows (state of a cluster, factor, entry) of the factors inside one cluster
    forms     of every edge between clusters
    factors   of every edge between clusters, in the order of its form
    """

    forest: Topology
    members: Ints
    lifted: Ints
    forms: tuple[EdgeForm, ...]
    factors: tuple[Variables, ...]


@cached_by_size(CACHED_PARTS, size_in_cache)
def clusters_of(topology: Topology) -> Clusters | None:
    """A forest of small clusters, if one is found."""
    if topology.n_factors >= 2 * topology.n_vars or np.any(topology.scope_sizes != 2):
        return None
    if _has_no_clusters(topology):
        return None
    graph: Graph = [set() for _ in range(topology.n_vars)]
    for a, b in topology.scopes:
        graph[a].add(b)
        graph[b].add(a)
    clustering = _triangles(topology, graph) or _layers(topology, graph)
    if clustering is None:
        return None
    return _cluster(topology, clustering, np.zeros(topology.n_factors, dtype=bool))


def _has_no_clusters(topology: Topology) -> bool:
    """A quick test, enough for large grids, that there is no clustering: there is a cycle but no triangle that could be
    opened, and the layers around the first variable are too large."""
    n = topology.n_vars
    ends = topology.scope_flat.reshape(-1, 2)
    keys = np.sort(ends.min(axis=1) * n + ends.max(axis=1))  # sorting is faster here than the hashing of np.unique
    edges = keys[np.diff(keys, prepend=-1) > 0]
    if len(edges) < max(n, 1):
        return False
    senders = np.concatenate([edges // n, edges % n])
    neighbours = np.concatenate([edges % n, edges // n])[np.argsort(senders, kind="stable")]
    ptr = offsets(np.bincount(senders, minlength=n))
    corners = ptr[np.flatnonzero(np.diff(ptr) == 2)]
    one = neighbours[corners]
    two = neighbours[corners + 1]
    opposite = np.minimum(one, two) * n + np.maximum(one, two)
    nearest = np.minimum(np.searchsorted(edges, opposite), len(edges) - 1)
    if np.any(edges[nearest] == opposite):
        return False
    cards = topology.card_array
    seen = {0}
    layer = {0}
    while layer:
        reached = set[int]().union(*(neighbours[ptr[v] : ptr[v + 1]].tolist() for v in layer)) - seen
        if reached and prod(cards[[*layer, *reached]].tolist()) > LARGEST_EDGE:
            return True
        seen |= reached
        layer = reached
    return False


@cached_by_size(CACHED_PARTS, size_in_cache)
def spanning_forest(topology: Topology, last: bytes) -> tuple[Clusters, Bools]:
    """Clusters of one variable each, joined by a spanning forest of the factors; and the factors left out.

    Factors marked in ``last`` (a mask, as bytes) enter the forest only where no other factor does.
    """
    n = topology.n_vars
    order = np.argsort(np.frombuffer(last, dtype=bool), kind="stable")
    in_forest = np.zeros(topology.n_factors, dtype=bool)
    in_forest[order] = _acyclic(n, [topology.scopes[f] for f in order.tolist()])
    edges = [(topology.scopes[f][0], topology.scopes[f][1]) for f in np.flatnonzero(in_forest).tolist()]
    singles = Clustering([(v,) for v in range(n)], {v: v for v in range(n)}, edges)
    return _cluster(topology, singles, ~in_forest), ~in_forest


def _acyclic(n: int, edges: Sequence[Variables]) -> list[bool]:
    """Which edges, added one after the other, close no cycle with those before (union-find)."""
    root = list(range(n))
    out = []

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for a, b in edges:
        root_a = find(a)
        root_b = find(b)
        out.append(root_a != root_b)
        root[root_a] = root_b
    return out


def _triangles(topology: Topology, graph: Graph) -> Clustering | None:
    """A clustering that opens triangles: a variable whose two neighbours are neighbours gets a copy of one of them.

    None if a cycle is left, or if a triangle has too many states.
    """
    cards = topology.cards
    n = len(cards)
    graph = [set(neighbours) for neighbours in graph]
    clusters: list[Variables] = [(v,) for v in range(n)]
    # Hidden variables usually have few states and come last in the numbering: they are tried first.
    for v in sorted(range(n), key=lambda v: (cards[v], -v)):
        if len(graph[v]) != 2:
            continue
        a, b = sorted(graph[v], key=lambda u: (cards[u], u))
        if b not in graph[a]:
            continue
        graph[a].discard(b)
        graph[b].discard(a)
        clusters[v] = (a, v)
        if cards[a] * cards[b] * cards[v] > LARGEST_TRIANGLE:
            return None
    edges = [(a, b) for a, neighbours in enumerate(graph) for b in sorted(neighbours) if a < b]
    if not all(_acyclic(n, edges)):
        return None
    return Clustering(clusters, {v: v for v in range(n)}, edges)


def _layers(topology: Topology, graph: Graph) -> Clustering | None:
    """Breadth-first layers as clusters, with an edge from each to the next, if their tables are small."""
    cards = topology.cards
    seen: set[int] = set()
    clusters: list[Variables] = []
    edges: list[tuple[int, int]] = []
    for root in range(len(cards)):
        if root in seen:
            continue
        layer = {root}
        first = len(clusters)
        while layer:
            seen |= layer
            clusters.append(tuple(sorted(layer)))
            if len(clusters) > first + 1:
                edges.append((len(clusters) - 2, len(clusters) - 1))
                if prod(cards[v] for cluster in clusters[-2:] for v in cluster) > LARGEST_EDGE:
                    return None
            layer = set[int]().union(*(graph[v] for v in layer)) - seen
    home = {v: k for k, cluster in enumerate(clusters) for v in cluster}
    return Clustering(clusters, home, edges)


def _places(topology: Topology, clustering: Clustering, left_out: Bools) -> tuple[list[list[int]], list[list[int]]]:
    """Factors inside every cluster, and those on every edge, except those ``left_out``."""
    clusters, home, edges = clustering
    inside: list[list[int]] = [[] for _ in clusters]
    across: list[list[int]] = [[] for _ in edges]
    number = {frozenset(edge): e for e, edge in enumerate(edges)}
    holders = {v: [k] for v, k in home.items()}
    for k, cluster in enumerate(clusters):
        for v in cluster:
            if home[v] != k:
                holders[v].append(k)
    for f in np.flatnonzero(~left_out).tolist():
        a, b = topology.scopes[f]
        pairs = [frozenset((i, j)) for i in holders[a] for j in holders[b]]
        edge = next((number[pair] for pair in pairs if pair in number), -1)
        if edge >= 0:
            across[edge].append(f)
        else:
            inside[next(min(pair) for pair in pairs if len(pair) == 1)].append(f)
    return inside, across


def _cluster(topology: Topology, clustering: Clustering, left_out: Bools) -> Clusters:
    """The maps of a clustering, without the factors ``left_out``."""
    cards = topology.cards
    inside, across = _places(topology, clustering, left_out)
    members, lifted = _members(topology, clustering, inside)
    forms = []
    for (one, two), factors in zip(clustering.edges, across, strict=True):
        forms.append(_edge_form(topology, clustering.clusters[one], clustering.clusters[two], factors))
    cluster_cards = tuple(prod(cards[v] for v in cluster) for cluster in clustering.clusters)
    return Clusters(
        forest=Topology(cluster_cards, clustering.edges),
        members=members,
        lifted=lifted,
        forms=tuple(forms),
        factors=tuple(tuple(factors) for factors in across),
    )


def _members(topology: Topology, clustering: Clustering, inside: list[list[int]]) -> tuple[Ints, Ints]:
    """The arrays ``members`` and ``lifted`` of ``Clusters``."""
    cards = topology.cards
    starts = offsets(topology.card_array)
    members: list[tuple[int, ...]] = []
    lifted = [np.zeros((0, 3), dtype=np.int64)]
    to = 0
    for k, cluster in enumerate(clustering.clusters):
        sizes = [cards[v] for v in cluster]
        own_first = sorted(cluster, key=lambda v: clustering.home[v] != k)
        for number, v in enumerate(own_first):
            if clustering.home[v] != k:
                kind = COPY
            elif number > 0:
                kind = OTHER
            else:
                kind = FIRST
            axis = cluster.index(v)
            outer = prod(sizes[:axis])
            inner = prod(sizes[axis + 1 :])
            members.append((k, v, kind, to, int(starts[v]), outer, cards[v], inner))
        digits = np.indices(sizes).reshape(len(cluster), -1)
        states = to + np.arange(digits.shape[1])
        for f in inside[k]:
            first, second = topology.scopes[f]
            entry = digits[cluster.index(first)] * cards[second] + digits[cluster.index(second)]
            lifted.append(np.stack([states, np.full_like(states, f), entry], axis=1))
        to += len(states)
    return np.array(members), np.concatenate(lifted)


def _edge_form(topology: Topology, one: Variables, two: Variables, factors: list[int]) -> EdgeForm:
    """The form of an edge; variables are renumbered in order of appearance, so that equal edges share one form."""
    number: dict[int, int] = {}
    for v in one + two:
        number.setdefault(v, len(number))
    return _form(
        tuple(topology.cards[v] for v in number),
        tuple(number[v] for v in one),
        tuple(number[v] for v in two),
        tuple(tuple(number[v] for v in topology.scopes[f]) for f in factors),
    )


@lru_cache(256)
def _form(cards: Variables, one: Variables, two: Variables, scopes: tuple[Variables, ...]) -> EdgeForm:
    """The form of an edge between clusters ``one`` and ``two`` with factors of ``scopes``."""
    digits = np.indices([cards[v] for v in one + two]).reshape(len(one + two), -1)
    n_entries = digits.shape[1]
    forbidden = np.zeros(n_entries, dtype=bool)
    state: dict[int, Ints] = {}
    for v, digit in zip(one + two, digits, strict=True):
        forbidden |= state.setdefault(v, digit) != digit
    allowed = np.flatnonzero(~forbidden)
    pairs = [np.zeros((0, 3), dtype=np.int64)]
    for k, (a, b) in enumerate(scopes):
        entry = state[a] * cards[b] + state[b]
        rows = np.stack([np.arange(n_entries), np.full(n_entries, k), entry], axis=1)
        pairs.append(rows[allowed])
    return EdgeForm((cards, one, two, scopes), np.concatenate(pairs), forbidden)

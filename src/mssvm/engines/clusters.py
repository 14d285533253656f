"""Graphs that become forests when neighbouring variables are joined, as Pearl's clustering does.

Two labels with an edge of their own and a hidden variable between them, y - h - z and y - z, are a triangle. With a
copy of y in the hidden variable's place, k = (y', h), all factors lie on the path y - k - z: the first edge wants
y' = y and has theta(y, h), the second has theta(h, z) + theta(y', z). Given y and z the sum over k is that over h, so
this holds at any temperatures. Other thin graphs, as two chains side by side, are paths of their breadth-first layers;
the variables of a layer need one temperature.

Where labels are given, an edge between two of them is a number, and what is left may be a forest by itself.

theta of the forest is a sum of entries of theta of the graph, so that marginals go the way back, transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Topology, offsets

LARGEST_EDGE = 1 << 10  # entries of a table between layers
LARGEST_TRIANGLE = 1 << 17  # states of a triangle, which are entries of a table with a copy
Variables = tuple[int, ...]
Graph = list[set[int]]
FIRST, OTHER, COPY = range(3)
Found = tuple[list[Variables], dict[int, int], list[tuple[int, int]]]
"""Clusters, the one that each variable belongs to (in others it is a copy), and the edges between clusters."""


FormKey = tuple[tuple[Any, ...], ...]
"""Cards of the variables of an edge, those of its two clusters, and the scopes of its factors."""


class EdgeForm(NamedTuple):
    """How the table of two clusters comes from those of factors: ``pairs`` (entry, which factor, its entry), and
    whether entries contradict each other in a variable of both. Equal keys have equal forms."""

    key: FormKey
    pairs: Ints
    holes: Bools


@dataclass(frozen=True, eq=False)
class Clusters:
    """A topology as a forest of clusters of its variables.

    ``members`` has a row (cluster, variable, kind, to, at, outer, card, inner) for every variable of a cluster, whose
    own come first: kind FIRST, OTHER or COPY; state s of the variable, state ``at + s`` of the graph, is part of the
    cluster's states ``to + (o card + s) inner + i``. ``lifted`` are (state of a cluster, factor, entry) of the factors
    inside one. Edge e has ``forms[e]``, of the factors ``factors[e]``.
    """

    forest: Topology
    members: Ints
    lifted: Ints
    forms: tuple[EdgeForm, ...]
    factors: tuple[Variables, ...]


@lru_cache(1024)
def clusters_of(topology: Topology) -> Clusters | None:
    """A forest of small clusters, if one is found."""
    n, factors = topology.n_vars, topology.n_factors
    if factors >= 2 * n or np.any(topology.scope_sizes != 2):
        return None
    graph: Graph = [set() for _ in range(n)]
    for a, b in topology.scopes:
        graph[a].add(b)
        graph[b].add(a)
    found = _triangles(topology, graph) or _layers(topology, graph)
    return None if found is None else _cluster(topology, found, np.zeros(factors, dtype=bool))


@lru_cache(1024)
def spanning_forest(topology: Topology, last: bytes) -> tuple[Clusters, Bools]:
    """The variables as clusters of one, with a forest of the factors, of those marked in ``last`` as few as can be; and
    which factors are left over."""
    marked = np.frombuffer(last, dtype=bool)
    order = np.argsort(marked, kind="stable").tolist()
    kept = _acyclic(topology.n_vars, [topology.scopes[f] for f in order])
    left = np.ones(topology.n_factors, dtype=bool)
    left[[f for f, is_kept in zip(order, kept, strict=True) if is_kept]] = False
    singles: list[Variables] = [(v,) for v in range(topology.n_vars)]
    edges = [(a, b) for (a, b), out in zip(topology.scopes, left, strict=True) if not out]
    return _cluster(topology, (singles, {v: v for v in range(topology.n_vars)}, edges), left), left


def _acyclic(n: int, edges: Sequence[Variables]) -> list[bool]:
    """Which edges, added one after the other, close no cycle with those before."""
    root, out = list(range(n)), []

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for a, b in edges:
        a, b = find(a), find(b)
        out.append(a != b)
        root[a] = b
    return out


def _triangles(topology: Topology, graph: Graph) -> Found | None:
    """Clusters and edges, if without the edges across hidden variables there is a forest: variables with two neighbours
    that are neighbours themselves get a copy of one of these."""
    cards, graph = topology.cards, [set(near) for near in graph]
    clusters: list[Variables] = [(v,) for v in range(len(cards))]
    for v in sorted(range(len(cards)), key=lambda v: (cards[v], -v)):  # hidden variables are small, and come last
        if len(graph[v]) == 2:
            a, b = sorted(graph[v], key=lambda u: (cards[u], u))
            if b in graph[a]:
                graph[a].discard(b)
                graph[b].discard(a)
                clusters[v] = (a, v)
                if cards[a] * cards[b] * cards[v] > LARGEST_TRIANGLE:
                    return None
    edges = [(a, b) for a, near in enumerate(graph) for b in sorted(near) if a < b]
    return (clusters, {v: v for v in range(len(cards))}, edges) if all(_acyclic(len(cards), edges)) else None


def _layers(topology: Topology, graph: Graph) -> Found | None:
    """Breadth-first layers as clusters, with an edge from each to the next, if their tables are small."""
    cards, seen, clusters, edges = topology.cards, set[int](), list[Variables](), list[tuple[int, int]]()
    for root in range(len(cards)):
        if root in seen:
            continue
        layer, first = {root}, len(clusters)
        while layer:
            seen |= layer
            clusters.append(tuple(sorted(layer)))
            if len(clusters) > first + 1:
                edges.append((len(clusters) - 2, len(clusters) - 1))
                if prod(cards[v] for cluster in clusters[-2:] for v in cluster) > LARGEST_EDGE:
                    return None
            layer = set[int]().union(*(graph[v] for v in layer)) - seen
    return clusters, {v: k for k, cluster in enumerate(clusters) for v in cluster}, edges


def _places(topology: Topology, found: Found, left: Bools) -> tuple[list[list[int]], list[list[int]]]:
    """Factors inside every cluster, and those on every edge, but for those ``left`` out."""
    clusters, home, edges = found
    inside, across = [list[int]() for _ in clusters], [list[int]() for _ in edges]
    number = {frozenset(edge): e for e, edge in enumerate(edges)}
    holders = {v: [k] for v, k in home.items()}
    for k, cluster in enumerate(clusters):
        for v in cluster:
            if home[v] != k:
                holders[v].append(k)
    for f in np.flatnonzero(~left).tolist():
        a, b = topology.scopes[f]
        pairs = [frozenset((i, j)) for i in holders[a] for j in holders[b]]
        edge = next((number[pair] for pair in pairs if pair in number), -1)
        if edge >= 0:
            across[edge].append(f)
        else:
            inside[next(min(pair) for pair in pairs if len(pair) == 1)].append(f)
    return inside, across


def _cluster(topology: Topology, found: Found, left: Bools) -> Clusters:
    """The maps of given clusters, without the factors ``left`` out."""
    cards, (clusters, home, edges) = topology.cards, found
    inside, across = _places(topology, found, left)
    starts, to = offsets(topology.card_array), 0
    members, lifted = list[tuple[int, ...]](), [np.zeros((0, 3), dtype=np.int64)]
    for k, cluster in enumerate(clusters):
        sizes = [cards[v] for v in cluster]
        for v in sorted(cluster, key=lambda v: home[v] != k):
            place = cluster.index(v)
            kind = COPY if home[v] != k else OTHER if members and members[-1][0] == k else FIRST
            inside_of = prod(sizes[:place]), cards[v], prod(sizes[place + 1 :])
            members.append((k, v, kind, to, int(starts[v]), *inside_of))
        digits = np.indices(sizes).reshape(len(cluster), -1)
        here = to + np.arange(digits.shape[1])
        for f in inside[k]:
            a, b = (digits[cluster.index(v)] for v in topology.scopes[f])
            lifted.append(np.stack([here, 0 * here + f, a * cards[topology.scopes[f][1]] + b], axis=1))
        to += len(here)
    forms, factors = [], []
    for e, (i, j) in enumerate(edges):
        one, two, name = clusters[i], clusters[j], dict[int, int]()
        for v in one + two:
            name.setdefault(v, len(name))  # so that equal edges have one form
        scopes = tuple((name[a], name[b]) for a, b in (topology.scopes[f] for f in across[e]))
        ends = tuple(name[v] for v in one), tuple(name[v] for v in two)
        forms.append(_form(tuple(cards[v] for v in name), *ends, scopes))
        factors.append(tuple(across[e]))
    forest = Topology(tuple(prod(cards[v] for v in c) for c in clusters), tuple(edges))
    return Clusters(forest, np.array(members), np.concatenate(lifted), tuple(forms), tuple(factors))


@lru_cache(256)
def _form(cards: Variables, one: Variables, two: Variables, scopes: tuple[Variables, ...]) -> EdgeForm:
    """The form of an edge between clusters ``one`` and ``two`` with factors of ``scopes``."""
    digits = np.indices([cards[v] for v in one + two]).reshape(len(one + two), -1)
    n, place, holes = digits.shape[1], dict[int, Ints](), np.zeros(digits.shape[1], dtype=bool)
    for v, digit in zip(one + two, digits, strict=True):
        holes |= place.setdefault(v, digit) != digit
    kept = np.flatnonzero(~holes)
    pairs = [np.zeros((0, 3), dtype=np.int64)]
    for k, (a, b) in enumerate(scopes):
        pairs.append(np.stack([np.arange(n), np.full(n, k), place[a] * cards[b] + place[b]], axis=1)[kept])
    return EdgeForm((cards, one, two, scopes), np.concatenate(pairs), holes)


def block_width(key: FormKey) -> int:
    """How many states of a cluster go with every state of a variable that it has a copy of, one after the other, across
    an edge between the two; 0 if it is no such edge."""
    cards, *ends, _ = key
    one, two = sorted(ends, key=len)
    return prod(cards[v] for v in two[1:]) if len(one) == 1 and two[:1] == one else 0

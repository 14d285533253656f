"""Elimination orders: the best of weighted min-fill and other greedy or sweeping candidates.

The nested power sum (paper eq. 5) is a sequence of eliminations in which every variable of an earlier group (hidden)
precedes those of a later group (outputs). What remains of the graph after a whole group is eliminated does not depend
on the order inside the group: the border of each of its connected components has become a clique. So groups are
searched one after the other without loss, and the sizes of borders bound the cost of every order before a search.

Images have no order that fits any machine, so a search may have ``Limits``: lower bounds are checked first, and a
candidate is dropped at the variable that leads it beyond the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf, log2, prod
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, MASK, Function, Record, RecordKind, RecordType
from mssvm.core.topology import mask_from_indices

# Work allowed for random restarts, in variables visited: a count, not a time, so that orders are reproducible.
RESTART_BUDGET = 4000
# No machine holds tables this large: a greedy search that exceeds it takes the remaining variables in given order.
HOPELESS = 1 << 64
# Where borders would become cliques with more edges than this, later groups are taken in their given order.
MOST_EDGES = 1 << 25
# Variables of the part of a large graph that is searched first.
BALL = 4096
# If the first candidate exceeds the limits by more than this factor, no other is tried.
NEAR = 16.0
# Tolerance for sums of logarithms, in bits.
ROUNDING = 1e-6
Sets = Sequence[Sequence[int]]

GRAPH = RecordType("Graph", {"first": INTS, "neighbours": INTS, "weight": FLOATS, "kind": INTS, "kinds": FLOATS})
ROWS = Function("mssvm_order_rows", edge_from=INTS, edge_to=INTS, first=INTS, neighbours=INTS)
SEPARATORS = Function(
    "mssvm_order_separators", graph=RecordKind(GRAPH), later=INTS, place=INTS, counts=INTS, bits=FLOATS, most=FLOAT
)
LEAST_CLIQUE = Function("mssvm_order_least_clique", graph=RecordKind(GRAPH), least=FLOATS)
AROUND = Function("mssvm_order_ball", graph=RecordKind(GRAPH), centre=INT, found=INTS)
BORDERS = Function("mssvm_order_borders", graph=RecordKind(GRAPH), inside=MASK, ptr=INTS, border=INTS, least=FLOATS)
CLIQUES = Function("mssvm_order_cliques", ptr=INTS, border=INTS, edge_from=INTS, edge_to=INTS)
GREEDY = Function(
    "mssvm_order_greedy",
    graph=RecordKind(GRAPH),
    group=INTS,
    order=INTS,
    by_size=INT,
    shuffle=INT,
    bar_largest=FLOAT,
    bar_total=FLOAT,
    most_total=FLOAT,
    most_messages=FLOAT,
    hopeless=FLOAT,
    filled=INTS,
)


class Limits(NamedTuple):
    """Limits of an order: table entries of all cliques together (operations), and of all messages (memory)."""

    total: float = inf
    messages: float = inf


@dataclass(frozen=True)
class Order:
    """Variables in elimination order, and the cost of eliminating them.

    A clique is a variable with those of its message. ``width`` is the largest number of variables in a message,
    ``largest`` and ``total`` count table entries of the cliques, ``messages`` those of all messages. They are Python
    integers, which cannot overflow.
    """

    variables: tuple[int, ...]
    width: int
    largest: int
    total: int
    messages: int


@dataclass(frozen=True, eq=False)
class _Graph:
    """A graph in CSR form: the neighbours of v are ``near[ptr[v] : ptr[v+1]]``.

    ``weight`` is the log2 cardinality of each variable, ``kinds`` the distinct cardinalities, and ``kind`` the index of
    each variable's cardinality in ``kinds``.
    """

    ptr: Ints
    near: Ints
    weight: Floats
    kind: Ints
    kinds: Floats

    @cached_property
    def record(self) -> Record:
        """The graph as a record for native functions."""
        near = np.ascontiguousarray(self.near)
        return GRAPH(first=self.ptr, neighbours=near, weight=self.weight, kind=self.kind, kinds=self.kinds)

    def joined(self, present: Bools, new_from: Ints, new_to: Ints) -> _Graph:
        """The subgraph of the variables ``present``, with new edges added, each given in both directions."""
        rows = np.repeat(np.arange(len(present)), np.diff(self.ptr))
        edge_from = np.append(rows, new_from)
        edge_to = np.append(self.near, new_to)
        inside = present[edge_from] & present[edge_to]
        edge_from = edge_from[inside]
        edge_to = edge_to[inside]
        ptr = np.append(0, np.cumsum(np.bincount(edge_from, minlength=len(present))))
        near = np.empty_like(edge_to)
        count = ROWS(edge_from=edge_from, edge_to=edge_to, first=ptr, neighbours=near)
        return replace(self, ptr=ptr, near=near[:count])

    def separators(self, order: Ints, most: float) -> Ints:
        """For each variable of ``order``, the number of variables of each kind in its message: (len(order), kinds).

        Variables that ``order`` does not name come after it. Empty if a clique has more than ``most`` bits.
        """
        place = np.full(len(self.kind), -1, dtype=np.int64)
        unnamed = ~mask_from_indices(order, len(place)) & (np.diff(self.ptr) > 0)
        later = np.append(order, np.flatnonzero(unnamed))
        place[later] = np.arange(len(later))
        counts = np.zeros((len(order), len(self.kinds)), dtype=np.int64)
        bits = self.weight[order]
        fits = SEPARATORS(graph=self.record, later=later, place=place, counts=counts, bits=bits, most=most + ROUNDING)
        return counts if fits else counts[:0]

    def least_clique(self) -> float:
        """A lower bound, in bits, on the largest clique of any order."""
        least = np.zeros(1)
        LEAST_CLIQUE(graph=self.record, least=least)
        return float(least[0])

    def ball(self, centre: int, most: int) -> Ints:
        """Up to ``most`` variables around one, breadth first."""
        found = np.empty(most, dtype=np.int64)
        return found[: AROUND(graph=self.record, centre=centre, found=found)]

    def borders(self, inside: Bools) -> _Borders:
        """Connected components of the variables ``inside``, and the neighbours of each."""
        n = len(inside)
        ptr = np.zeros(n + 1, dtype=np.int64)
        border = np.empty_like(self.near)
        least = np.empty(n)
        count = BORDERS(graph=self.record, inside=inside, ptr=ptr, border=border, least=least)
        return _Borders(ptr[: count + 1], border[: ptr[count]], least[:count])


@dataclass(frozen=True, eq=False)
class _Trial:
    """A candidate order of a group with its cost as floats: exact below 2^53, and infinite rather than overflowing."""

    order: Ints
    largest: float
    total: float
    messages: float

    @classmethod
    def worst(cls) -> _Trial:
        return cls(np.zeros(0, dtype=np.int64), inf, inf, inf)

    @property
    def rank(self) -> tuple[float, float]:
        return self.largest, self.total

    def within(self, limits: Limits) -> bool:
        return self.total <= limits.total and self.messages <= limits.messages


NONE: Ints = np.zeros(0, dtype=np.int64)
UNLIMITED = Limits()


def find_order(cards: Sequence[int], scopes: Sets, groups: Sets, restarts: int = 8, seed: int = 0) -> Order:
    """The best order found that eliminates ``groups`` one after the other.

    ``scopes`` name variables of any role; those in no group (clamped ones) are left out of the graph. Candidates
    per group: min-fill weighted by log2 cardinality, smallest clique, a bandwidth-reducing sweep, the variables'
    own order, and ``restarts`` runs of min-fill with random tie-breaking (fewer on large graphs). The best order is the
    one whose largest table is smallest; ties go to the fewest table entries in total.
    """
    order = find_order_within(UNLIMITED, cards, scopes, groups, restarts, seed)
    assert order is not None, "without limits there is always an order"
    return order


def find_order_within(
    limits: Limits, cards: Sequence[int], scopes: Sets, groups: Sets, restarts: int = 8, seed: int = 0
) -> Order | None:
    """The best order found within ``limits``; None if a bound excludes one, or if none was found.

    Restricting an order to a subgraph does not enlarge its tables. So the search in a large graph ends early if no
    order is found for the neighbourhood of one variable.
    """
    flat = np.fromiter(chain.from_iterable(scopes), dtype=np.int64)
    sizes = np.fromiter(map(len, scopes), dtype=np.int64)
    return Orders(cards, flat, sizes, groups, restarts, seed).find(limits)


class Orders:
    """The search for orders that eliminate ``groups`` one after the other, in a graph given by flat scopes."""

    def __init__(
        self,
        cards: Sequence[int] | Ints,
        scopes: Ints,
        scope_sizes: Ints,
        groups: Sequence[Sequence[int] | Ints],
        restarts: int = 8,
        seed: int = 0,
    ) -> None:
        self.groups = [np.sort(np.array(group, dtype=np.int64)) for group in groups if len(group)]
        self.restarts = restarts
        self.seed = seed
        n = len(cards)
        kinds, kind = np.unique(np.array(cards, dtype=np.float64), return_inverse=True)
        present = mask_from_indices(np.concatenate([NONE, *self.groups]), n)
        weight = np.where(present, np.log2(kinds)[kind], 0.0)
        edgeless = _Graph(np.zeros(n + 1, dtype=np.int64), NONE, weight, kind, kinds)
        first, second = _pairs_of(scopes, scope_sizes)
        self.graph = edgeless.joined(present, np.append(first, second), np.append(second, first))

    def find(self, limits: Limits = UNLIMITED) -> Order | None:
        """The best order found of those within ``limits``, or None."""
        if not self._neighbourhood_fits(limits):
            return None
        order = self._search(limits, self.graph, self.groups)
        return None if order is None else _measured(self.graph, order)

    def _neighbourhood_fits(self, limits: Limits) -> bool:
        """Whether an order within ``limits`` is found for the neighbourhood of one variable of a large graph."""
        n = len(self.graph.kind)
        if limits == UNLIMITED or not self.groups or n <= BALL:
            return True
        first_group = self.groups[0]
        ball = mask_from_indices(self.graph.ball(int(first_group[len(first_group) // 2]), BALL), n)
        if not ball.any():
            return True
        parts = [group[ball[group]] for group in self.groups]
        groups = [part for part in parts if len(part)]
        return self._search(limits, self.graph.joined(ball, NONE, NONE), groups) is not None

    def _search(self, limits: Limits, graph: _Graph, groups: list[Ints]) -> Ints | None:
        """The best order of a graph, group by group."""
        order = [NONE]
        limited = limits != UNLIMITED
        if limited and graph.least_clique() > log2(max(limits.total, 1.0)) + ROUNDING:
            return None
        for k, group in enumerate(groups):
            inside = mask_from_indices(group, len(graph.kind))
            border = graph.borders(inside)
            if limited and not border.admitted(limits, graph.weight):
                return None
            trial = _search_group(graph, group, limits, self.restarts, self.seed)
            if trial is None:
                return None
            order.append(trial.order)
            if limited:
                limits = Limits(limits.total - trial.total, limits.messages - trial.messages)
            if k + 1 < len(groups):
                if border.n_edges > MOST_EDGES:
                    order += groups[k + 1 :]
                    break
                graph = graph.joined(~inside, *border.cliques())
        return np.concatenate(order)


def _pairs_of(scopes: Ints, scope_sizes: Ints) -> tuple[Ints, Ints]:
    """All pairs of variables that share a scope, each once per scope."""
    scope_of = np.repeat(np.arange(len(scope_sizes)), scope_sizes)
    first = [NONE]
    second = [NONE]
    for distance in range(1, int(scope_sizes.max(initial=1))):
        same_scope = scope_of[distance:] == scope_of[:-distance]
        first.append(scopes[:-distance][same_scope])
        second.append(scopes[distance:][same_scope])
    return np.concatenate(first), np.concatenate(second)


class _Borders(NamedTuple):
    """Neighbours ``var[ptr[c] : ptr[c+1]]`` of component c of a group.

    ``least[c]`` is the log2 cardinality of the smallest variable in the component.
    """

    ptr: Ints
    var: Ints
    least: Floats

    @property
    def n_edges(self) -> int:
        sizes = np.diff(self.ptr)
        return int((sizes * (sizes - 1)).sum())

    def cliques(self) -> tuple[Ints, Ints]:
        """The edges, in both directions, that join all variables of every border."""
        edge_from = np.empty(self.n_edges, dtype=np.int64)
        edge_to = np.empty(self.n_edges, dtype=np.int64)
        CLIQUES(ptr=self.ptr, border=self.var, edge_from=edge_from, edge_to=edge_to)
        return edge_from, edge_to

    def admitted(self, limits: Limits, weight: Floats) -> bool:
        """Whether the limits admit the last clique of every component: its last member and its whole border."""
        bits = np.append(0.0, np.cumsum(weight[self.var]))
        bits = np.minimum(bits[self.ptr[1:]] - bits[self.ptr[:-1]], 1000.0) - ROUNDING
        return bool((2.0 ** (bits + self.least)).sum() <= limits.total and (2.0**bits).sum() <= limits.messages)


def _search_group(graph: _Graph, group: Ints, limits: Limits, restarts: int, seed: int) -> _Trial | None:
    """The best order of a group within ``limits``, or None; without limits there is always one."""
    # If the first candidate is far beyond the limits, so are the others.
    wider = Limits(NEAR * limits.total, NEAR * limits.messages)
    best, perfect = _greedy(graph, group, wider, _Trial.worst(), False, 0)
    if best is None:
        return None
    if not perfect:  # an order that adds no edge has the smallest possible tables
        best = _improve(graph, group, wider, best, restarts, seed)
    return best if best.within(limits) else None


def _improve(graph: _Graph, group: Ints, limits: Limits, best: _Trial, restarts: int, seed: int) -> _Trial:
    """The best of a first greedy order and all other candidates."""
    hopeful = best.largest <= HOPELESS
    best = _if_better(graph, _sweep(graph, group), best) or best
    best = _if_better(graph, group, best) or best
    if hopeful:
        best = _greedy(graph, group, limits, best, True, 0)[0] or best
        for k in range(min(restarts, RESTART_BUDGET // len(group))):
            best = _greedy(graph, group, limits, best, False, 1 + seed * restarts + k)[0] or best
    return best


def _greedy(
    graph: _Graph, group: Ints, limits: Limits, bar: _Trial, by_size: bool, shuffle: int
) -> tuple[_Trial | None, bool]:
    """A greedy order: always the cheapest variable next, by fill or by the size of its clique.

    Ties go to the lowest index or, with ``shuffle`` > 0, to a random one. None once the order is worse than the order
    ``bar`` or exceeds ``limits``. Also returned: whether no edge had to be added.
    """
    order = np.empty(len(group), dtype=np.int64)
    filled = np.zeros(1, dtype=np.int64)
    length = GREEDY(
        graph=graph.record,
        group=group,
        order=order,
        by_size=int(by_size),
        shuffle=shuffle,
        bar_largest=bar.largest,
        bar_total=bar.total,
        most_total=limits.total,
        most_messages=limits.messages,
        hopeless=float(HOPELESS),
        filled=filled,
    )
    order = order[:length]
    trial = _if_better(graph, order, bar) if len(order) else None
    return trial, trial is not None and not filled[0]


def _if_better(graph: _Graph, order: Ints, bar: _Trial) -> _Trial | None:
    """A given order with its cost; None if it is not better than ``bar``."""
    counts = graph.separators(order, log2(max(bar.largest, 1.0)))
    if not len(counts):
        return None
    with np.errstate(over="ignore"):
        entries = np.prod(graph.kinds**counts, axis=1)
        cliques = entries * graph.kinds[graph.kind[order]]
        trial = _Trial(order, float(cliques.max()), float(cliques.sum()), float(entries.sum()))
    # Beyond 1024 bits all costs are infinite, and the first candidate is kept.
    return trial if trial.rank < bar.rank or not len(bar.order) else None


def _sweep(graph: _Graph, group: Ints) -> Ints:
    """Reverse Cuthill-McKee order: a front moving through the graph, near-optimal on long grids."""
    n = len(graph.kind)
    ones = np.ones(len(graph.near), dtype=np.int8)
    adjacency = csr_matrix((ones, graph.near, graph.ptr), shape=(n, n))
    matrix = adjacency[group][:, group]
    return np.asarray(group[reverse_cuthill_mckee(matrix, symmetric_mode=True)])


def _measured(graph: _Graph, order: Ints) -> Order:
    """The order with its exact cost, in Python integers."""
    counts = graph.separators(order, inf)
    cards = [int(card) for card in graph.kinds]
    # Many variables have the same kind and the same counts: one product of integers for each distinct row.
    rows, repeats = np.unique(np.column_stack([graph.kind[order], counts]), axis=0, return_counts=True)
    largest = total = messages = 0
    for (kind, *row), repeat in zip(rows.tolist(), repeats.tolist(), strict=True):
        message = prod(card**count for card, count in zip(cards, row, strict=True))
        clique = cards[kind] * message
        largest = max(largest, clique)
        total += repeat * clique
        messages += repeat * message
    return Order(
        variables=tuple(order.tolist()),
        width=int(counts.sum(axis=1).max(initial=0)),
        largest=largest,
        total=total,
        messages=messages,
    )

"""Elimination orders: weighted min-fill and other greedy or sweeping candidates, the best one kept.

The nested power sum (paper eq. 5) is a sequence of eliminations in which every variable of an earlier group (hidden)
precedes those of a later group (outputs). What remains of the graph after a whole group is eliminated does not depend
on the order inside the group: the border of each of its connected components has become a clique. So groups are
searched one after the other without loss, and borders bound what any order takes before one is searched.

Images have no order that fits any machine, so orders may be asked for within limits (``Room``): bounds come first,
and a candidate is dropped at the variable that leads it beyond the limits.
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

# Work allowed for random restarts, in variables visited: a count, not a time, so that orders are reproducible.
RESTART_BUDGET = 4000
# No machine holds tables this large, so a greedy search led beyond it takes the other variables as they come.
HOPELESS = 1 << 64
# Borders that would become cliques of more edges are not searched beyond.
MOST_EDGES = 1 << 25
# The part of a large graph that is searched first has so many variables.
BALL = 4096
# A first candidate beyond the limits by a larger factor is not worth others.
NEAR = 16.0
# Of sums of logarithms.
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


class Room(NamedTuple):
    """What an order may take: table entries of all cliques together (operations), and of all messages (memory)."""

    total: float = inf
    messages: float = inf


@dataclass(frozen=True)
class Order:
    """Variables in elimination order. A clique is a variable and those in its message; ``width`` is the most variables
    in a message, ``largest`` and ``total`` count table entries of the cliques, ``messages`` those of all messages: in
    Python integers, which do not overflow however wide the order is."""

    variables: tuple[int, ...]
    width: int
    largest: int
    total: int
    messages: int


@dataclass(frozen=True, eq=False)
class _Graph:
    """Neighbours ``near[ptr[v] : ptr[v+1]]``; log2 cardinalities as ``weight``; ``kind``: their places in ``kinds``."""

    ptr: Ints
    near: Ints
    weight: Floats
    kind: Ints
    kinds: Floats

    @cached_property
    def record(self) -> Record:
        """The same for native functions."""
        near = np.ascontiguousarray(self.near)
        return GRAPH(first=self.ptr, neighbours=near, weight=self.weight, kind=self.kind, kinds=self.kinds)

    def joined(self, present: Bools, one: Ints, two: Ints) -> _Graph:
        """The part within the variables ``present``, with edges added, each given in both directions."""
        rows = np.repeat(np.arange(len(present)), np.diff(self.ptr))
        one, two = np.append(rows, one), np.append(self.near, two)
        inside = present[one] & present[two]
        one, two = one[inside], two[inside]
        ptr = np.append(0, np.cumsum(np.bincount(one, minlength=len(present))))
        near = np.empty_like(two)
        count = ROWS(edge_from=one, edge_to=two, first=ptr, neighbours=near)
        return replace(self, ptr=ptr, near=near[:count])

    def separators(self, order: Ints, most: float) -> Ints:
        """How many variables of every kind are in the message of each variable of ``order``; those it does not name
        come after. Empty where a clique has more than ``most`` bits."""
        place = np.full(len(self.kind), -1, dtype=np.int64)
        later = np.append(order, np.flatnonzero(~_mask(len(place), order) & (np.diff(self.ptr) > 0)))
        place[later] = np.arange(len(later))
        counts = np.zeros((len(order), len(self.kinds)), dtype=np.int64)
        bits = self.weight[order]
        fits = SEPARATORS(graph=self.record, later=later, place=place, counts=counts, bits=bits, most=most + ROUNDING)
        return counts if fits else counts[:0]

    def least_clique(self) -> float:
        """Bits of the largest clique of any order, at least."""
        least = np.zeros(1)
        LEAST_CLIQUE(graph=self.record, least=least)
        return float(least[0])

    def ball(self, centre: int, most: int) -> Ints:
        """Up to ``most`` variables around one, breadth first."""
        found = np.empty(most, dtype=np.int64)
        return found[: AROUND(graph=self.record, centre=centre, found=found)]

    def borders(self, inside: Bools) -> _Borders:
        """Components of the variables ``inside`` and what is next to them."""
        n = len(inside)
        ptr, border, least = np.zeros(n + 1, dtype=np.int64), np.empty_like(self.near), np.empty(n)
        count = BORDERS(graph=self.record, inside=inside, ptr=ptr, border=border, least=least)
        return _Borders(ptr[: count + 1], border[: ptr[count]], least[:count])


@dataclass(frozen=True, eq=False)
class _Trial:
    """A candidate order of a group and what it takes, in floats: exact where that matters."""

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

    def within(self, room: Room) -> bool:
        return self.total <= room.total and self.messages <= room.messages


NONE: Ints = np.zeros(0, dtype=np.int64)
_ANY = Room()


def find_order(cards: Sequence[int], scopes: Sets, groups: Sets, restarts: int = 8, seed: int = 0) -> Order:
    """The best order found that eliminates ``groups`` one after the other.

    ``scopes`` name variables of any kind; those in no group (clamped ones) are left out of the graph. Candidates
    per group: min-fill weighted by log2 cardinality, smallest clique, a bandwidth-reducing sweep, the variables'
    own order, and ``restarts`` runs of min-fill with random tie-breaking (fewer on large graphs). The best has the
    smallest largest table, then the fewest table entries in total.
    """
    order = find_order_within(_ANY, cards, scopes, groups, restarts, seed)
    assert order is not None, "without limits there is always an order"
    return order


def find_order_within(
    room: Room, cards: Sequence[int], scopes: Sets, groups: Sets, restarts: int = 8, seed: int = 0
) -> Order | None:
    """The best order found of those within ``room``; None where a bound says that there is none, or none was found.

    An order of a graph is one of any part of it, with tables no larger: where none is found for a part around one
    variable, a large graph is given up.
    """
    flat = np.fromiter(chain.from_iterable(scopes), dtype=np.int64)
    sizes = np.fromiter(map(len, scopes), dtype=np.int64)
    return Orders(cards, flat, sizes, groups, restarts, seed).find(room)


class Orders:
    """The search for orders that eliminate ``groups`` one after the other, in a graph given by flat scopes."""

    def __init__(
        self, cards: Sequence[int] | Ints, scopes: Ints, scope_sizes: Ints, groups: Sequence[Sequence[int] | Ints],
        restarts: int = 8, seed: int = 0,
    ) -> None:  # fmt: skip
        self.groups = [np.sort(np.array(group, dtype=np.int64)) for group in groups if len(group)]
        self.restarts, self.seed, n = restarts, seed, len(cards)
        kinds, kind = np.unique(np.array(cards, dtype=np.float64), return_inverse=True)
        present = _mask(n, np.concatenate([NONE, *self.groups]))
        of, ones, twos = np.repeat(np.arange(len(scope_sizes)), scope_sizes), [NONE], [NONE]
        for apart in range(1, int(scope_sizes.max(initial=1))):
            same = of[apart:] == of[:-apart]
            ones.append(scopes[:-apart][same])
            twos.append(scopes[apart:][same])
        weight = np.where(present, np.log2(kinds)[kind], 0.0)
        bare = _Graph(np.zeros(n + 1, dtype=np.int64), NONE, weight, kind, kinds)
        self.graph = bare.joined(present, np.concatenate(ones + twos), np.concatenate(twos + ones))

    def find(self, room: Room = _ANY) -> Order | None:
        """The best order found of those within ``room``, or None."""
        ball = NONE
        if room != _ANY and self.groups and len(self.graph.kind) > BALL:
            ball = self.graph.ball(int(self.groups[0][len(self.groups[0]) // 2]), BALL)
        if len(ball):
            part = _mask(len(self.graph.kind), ball)
            groups = [g for g in (group[part[group]] for group in self.groups) if len(g)]
            if self._search(room, self.graph.joined(part, NONE, NONE), groups) is None:
                return None
        order = self._search(room, self.graph, self.groups)
        return None if order is None else _measured(self.graph, order)

    def _search(self, room: Room, graph: _Graph, groups: list[Ints]) -> Ints | None:
        """The best order of a graph, group by group."""
        found, limited, n = [NONE], room != _ANY, len(graph.kind)
        if limited and graph.least_clique() > log2(max(room.total, 1.0)) + ROUNDING:
            return None
        for k, group in enumerate(groups):
            inside = _mask(n, group)
            border = graph.borders(inside)
            if limited and not border.admitted(room, graph.weight):
                return None
            trial = _search(graph, group, room, self.restarts, self.seed)
            if trial is None:
                return None
            found.append(trial.order)
            if limited:
                room = Room(room.total - trial.total, room.messages - trial.messages)
            if k + 1 < len(groups):
                if border.n_edges > MOST_EDGES:
                    found += groups[k + 1 :]
                    break
                graph = graph.joined(~inside, *border.cliques())
        return np.concatenate(found)


class _Borders(NamedTuple):
    """Variables ``var[ptr[c] : ptr[c+1]]`` next to component c of a group, and the ``least`` bits of its members."""

    ptr: Ints
    var: Ints
    least: Floats

    @property
    def n_edges(self) -> int:
        sizes = np.diff(self.ptr)
        return int((sizes * (sizes - 1)).sum())

    def cliques(self) -> tuple[Ints, Ints]:
        """The edges, in both directions, that join all variables of every border."""
        one, two = np.empty(self.n_edges, dtype=np.int64), np.empty(self.n_edges, dtype=np.int64)
        CLIQUES(ptr=self.ptr, border=self.var, edge_from=one, edge_to=two)
        return one, two

    def admitted(self, room: Room, weight: Floats) -> bool:
        """Whether there is room for the last clique of every component: its last member and its whole border."""
        bits = np.append(0.0, np.cumsum(weight[self.var]))
        bits = np.minimum(bits[self.ptr[1:]] - bits[self.ptr[:-1]], 1000.0) - ROUNDING
        return bool((2.0 ** (bits + self.least)).sum() <= room.total and (2.0**bits).sum() <= room.messages)


def _search(graph: _Graph, group: Ints, room: Room, restarts: int, seed: int) -> _Trial | None:
    """The best order of a group within ``room``, or None; without limits there is always one."""
    # What is not nearly found at first is not found by other ways either.
    near = Room(NEAR * room.total, NEAR * room.messages)
    best, perfect = _greedy(graph, group, near, _Trial.worst(), False, 0)
    if perfect or best is None:
        return best if best is None or best.within(room) else None  # without new edges no other has smaller tables
    worth = best.largest <= HOPELESS
    for order in (_sweep(graph, group), group):
        best = _fixed(graph, order, best) or best
    if worth:
        tries = min(restarts, RESTART_BUDGET // len(group))
        for by_size, shuffle in ((True, 0), *((False, 1 + seed * restarts + k) for k in range(tries))):
            best = _greedy(graph, group, near, best, by_size, shuffle)[0] or best
    return best if best.within(room) else None


def _mask(n: int, members: Ints) -> Bools:
    out = np.zeros(n, dtype=bool)
    out[members] = True
    return out


def _greedy(
    graph: _Graph, group: Ints, room: Room, bar: _Trial, by_size: bool, shuffle: int
) -> tuple[_Trial | None, bool]:
    """The cheapest variable first: by fill, or by the size of its clique; ties by index or, shuffled, at random. None
    once worse than ``bar`` or beyond ``room``. Also returned: whether no edge had to be added."""
    order, filled = np.empty(len(group), dtype=np.int64), np.zeros(1, dtype=np.int64)
    length = GREEDY(
        graph=graph.record,
        group=group,
        order=order,
        by_size=int(by_size),
        shuffle=shuffle,
        bar_largest=bar.largest,
        bar_total=bar.total,
        most_total=room.total,
        most_messages=room.messages,
        hopeless=float(HOPELESS),
        filled=filled,
    )
    order = order[:length]
    trial = _fixed(graph, order, bar) if len(order) else None
    return trial, trial is not None and not filled[0]


def _fixed(graph: _Graph, order: Ints, bar: _Trial) -> _Trial | None:
    """What a given order takes; None if it is not better than ``bar``."""
    counts = graph.separators(order, log2(max(bar.largest, 1.0)))
    if not len(counts):
        return None
    with np.errstate(over="ignore"):
        entries = np.prod(graph.kinds**counts, axis=1)
        cliques = entries * graph.kinds[graph.kind[order]]
        trial = _Trial(order, float(cliques.max()), float(cliques.sum()), float(entries.sum()))
    # Beyond 1024 bits all are infinite, and the first one stays.
    return trial if trial.rank < bar.rank or not len(bar.order) else None


def _sweep(graph: _Graph, group: Ints) -> Ints:
    """Reverse Cuthill-McKee order: a front moving through the graph, near-optimal on long grids."""
    n = len(graph.kind)
    matrix = csr_matrix((np.ones(len(graph.near), dtype=np.int8), graph.near, graph.ptr), shape=(n, n))[group][:, group]
    return np.asarray(group[reverse_cuthill_mckee(matrix, symmetric_mode=True)])


def _measured(graph: _Graph, order: Ints) -> Order:
    """The order with its exact figures."""
    counts = graph.separators(order, inf)
    rows, times = np.unique(np.column_stack([graph.kind[order], counts]), axis=0, return_counts=True)
    kinds = [int(c) for c in graph.kinds]
    messages = [prod(c**k for c, k in zip(kinds, row[1:], strict=True)) for row in rows.tolist()]
    cliques = [kinds[row[0]] * entries for row, entries in zip(rows.tolist(), messages, strict=True)]
    return Order(
        tuple(order.tolist()),
        int(counts.sum(axis=1).max(initial=0)),
        max(cliques, default=0),
        sum(k * c for k, c in zip(times.tolist(), cliques, strict=True)),
        sum(k * m for k, m in zip(times.tolist(), messages, strict=True)),
    )

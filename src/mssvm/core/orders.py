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
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from math import inf, log2, prod
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.jit import njit

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


class _Graph(NamedTuple):
    """Neighbours ``near[ptr[v] : ptr[v+1]]``; log2 cardinalities as ``weight``; ``kind``: their places in ``kinds``."""

    ptr: Ints
    near: Ints
    weight: Floats
    kind: Ints
    kinds: Floats

    def joined(self, present: Bools, one: Ints, two: Ints) -> _Graph:
        """The part within the variables ``present``, with edges added, each given in both directions."""
        rows = np.repeat(np.arange(len(present)), np.diff(self.ptr))
        one, two = np.append(rows, one), np.append(self.near, two)
        inside = present[one] & present[two]
        one, two = one[inside], two[inside]
        ptr, near = _rows(one, two, np.append(0, np.cumsum(np.bincount(one, minlength=len(present)))))
        return self._replace(ptr=ptr, near=near)

    def separators(self, order: Ints, most: float) -> Ints:
        """How many variables of every kind are in the message of each variable of ``order``; those it does not name
        come after. Empty where a clique has more than ``most`` bits."""
        place = np.full(len(self.kind), -1, dtype=np.int64)
        later = np.append(order, np.flatnonzero(~_mask(len(place), order) & (np.diff(self.ptr) > 0)))
        place[later] = np.arange(len(later))
        counts, bits = np.zeros((len(order), len(self.kinds)), dtype=np.int64), self.weight[order]
        wiring, scratch = (self.ptr, self.near, self.weight, self.kind), np.full((3, len(order)), -1)
        fits: bool = _count(wiring, later, place, scratch, counts, bits, most + ROUNDING)
        return counts if fits else counts[:0]


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
            ball = _ball(self.graph.ptr, self.graph.near, int(self.groups[0][len(self.groups[0]) // 2]), BALL)
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
        if limited and _least_clique(graph.ptr, graph.near, graph.weight) > log2(max(room.total, 1.0)) + ROUNDING:
            return None
        for k, group in enumerate(groups):
            inside = _mask(n, group)
            border = _Borders(*_borders(graph.ptr, graph.near, graph.weight, inside))
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
                graph = graph.joined(~inside, *_cliques(border.ptr, border.var, border.n_edges))
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
    sizes = np.diff(graph.ptr)
    pool = np.empty(2 * len(graph.near) + 64, dtype=np.int32)
    pool[: len(graph.near)] = graph.near
    order, filled = _greedy_order(
        graph.ptr[:-1].copy(), sizes, sizes.copy(), pool, len(graph.near), graph.weight, graph.kind, graph.kinds,
        group, by_size, shuffle, bar.rank, room, float(HOPELESS),
    )  # fmt: skip
    trial = _fixed(graph, order, bar) if len(order) else None
    return trial, trial is not None and not filled


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


# --- kernels ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _rows(one: Ints, two: Ints, ptr: Ints) -> tuple[Ints, Ints]:
    """Rows of a graph from edges in both directions (``ptr``: their numbers), each kept once."""
    n, near = len(ptr) - 1, np.empty(len(two), dtype=np.int64)
    for e in range(len(one)):
        near[ptr[one[e]]] = two[e]
        ptr[one[e]] += 1
    seen, begin, at = np.empty(n, dtype=np.int64), 0, 0
    seen[:] = -1
    for v in range(n):
        end, ptr[v] = ptr[v], at
        for e in range(begin, end):
            if seen[near[e]] != v:
                seen[near[e]] = v
                near[at] = near[e]
                at += 1
        begin = end
    ptr[n] = at
    return ptr, near[:at]


@njit(cache=True, nogil=True)
def _count(
    wiring: tuple[Ints, AnyArray, Floats, Ints], later: Ints, place: Ints, scratch: tuple[Ints, Ints, Ints],
    counts: Ints, bits: Floats, most: float,
) -> bool:  # fmt: skip
    """The kernel of ``_Graph.separators``. ``later`` are all variables in order, ``place`` is its inverse.

    A variable's message goes to the next variable in it (its parent); w is in the messages of its earlier neighbours
    and of their ancestors before w, so no edge has to be added (Gilbert, Ng and Peyton 1994).
    """
    (ptr, near, weight, kind), (parent, above, seen), m = wiring, scratch, len(bits)
    for i in range(len(later)):
        v = later[i]
        for e in range(ptr[v], ptr[v + 1]):
            j = place[near[e]]
            while 0 <= j < m and j < i:  # to the root of what came before, by the shortcuts of ``above``
                up = above[j]
                above[j] = i
                if up < 0:
                    parent[j] = i
                j = up
        for e in range(ptr[v], ptr[v + 1]):
            j = place[near[e]]
            while 0 <= j < m and j < i and seen[j] != i:
                seen[j] = i
                counts[j, kind[v]] += 1
                bits[j] += weight[v]
                if bits[j] > most:
                    return False
                j = parent[j]
    return True


@njit(cache=True, nogil=True)
def _least_clique(ptr: Ints, near: AnyArray, weight: Floats) -> float:
    """Bits of the largest clique of any order, at least: the most that a variable and its neighbours have left when
    the smallest such clique is taken away each time (degeneracy)."""
    bits, gone = weight.copy(), np.zeros(len(weight), dtype=np.bool_)
    heap = [(0.0, 0) for _ in range(0)]
    for v in range(len(bits)):
        for e in range(ptr[v], ptr[v + 1]):
            bits[v] += weight[near[e]]
        heappush(heap, (bits[v], v))
    least = 0.0
    while len(heap) > 0:
        value, v = heappop(heap)
        if gone[v] or value != bits[v]:
            continue
        gone[v] = True
        if value > least:
            least = value
        for e in range(ptr[v], ptr[v + 1]):
            a = near[e]
            if not gone[a]:
                bits[a] -= weight[v]
                heappush(heap, (bits[a], a))
    return least


@njit(cache=True, nogil=True)
def _ball(ptr: Ints, near: AnyArray, centre: int, most: int) -> Ints:
    """Up to ``most`` variables around one, breadth first."""
    found, seen = np.empty(most, dtype=np.int64), np.zeros(len(ptr), dtype=np.bool_)
    found[0], seen[centre], head, tail = centre, True, 0, 1
    while head < tail:
        for e in range(ptr[found[head]], ptr[found[head] + 1]):
            if tail < most and not seen[near[e]]:
                seen[near[e]] = True
                found[tail] = near[e]
                tail += 1
        head += 1
    return found[:tail]


@njit(cache=True, nogil=True)
def _borders(ptr: Ints, near: AnyArray, weight: Floats, inside: Bools) -> tuple[Ints, Ints, Floats]:
    """Components of the variables ``inside``, as ``_Borders``."""
    n = len(inside)
    seen, touched = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
    queue, out, least = np.empty(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64), np.empty(n)
    border, at, count = np.empty(len(near), dtype=np.int64), 0, 0
    for root in range(n):
        if not inside[root] or seen[root]:
            continue
        seen[root], queue[0], head, tail, least[count] = True, root, 0, 1, weight[root]
        count += 1
        while head < tail:
            v = queue[head]
            head += 1
            if weight[v] < least[count - 1]:
                least[count - 1] = weight[v]
            for e in range(ptr[v], ptr[v + 1]):
                a = near[e]
                if inside[a] and not seen[a]:
                    seen[a], queue[tail] = True, a
                    tail += 1
                elif not inside[a] and touched[a] != count:
                    touched[a], border[at] = count, a
                    at += 1
        out[count] = at
    return out[: count + 1], border[:at], least[:count]


@njit(cache=True, nogil=True)
def _cliques(ptr: Ints, border: Ints, n_edges: int) -> tuple[Ints, Ints]:
    """The edges, in both directions, that join all variables of every border."""
    one, two, at = np.empty(n_edges, dtype=np.int64), np.empty(n_edges, dtype=np.int64), 0
    for c in range(len(ptr) - 1):
        for i in range(ptr[c], ptr[c + 1]):
            for j in range(ptr[c], ptr[c + 1]):
                if i != j:
                    one[at], two[at] = border[i], border[j]
                    at += 1
    return one, two


@njit(cache=True, nogil=True)
def _price(
    v: int, by_size: bool, start: Ints, size: Ints, pool: AnyArray, weight: Floats, kind: Ints, bits: Floats,
    have: Ints, hits: Ints, stamp: Ints, token: int,
) -> float:  # fmt: skip
    """Bits of the clique of v, or the weight products of the pairs of its neighbours not joined yet, each twice."""
    around = pool[start[v] : start[v] + size[v]]
    if by_size:
        clique: float = weight[v]
        for a in around:
            clique += weight[a]
        return clique
    for k in range(len(bits)):
        have[k] = 0
    for a in around:
        stamp[a] = token
        have[kind[a]] += 1
    total: float = 0.0
    for a in around:
        for k in range(len(bits)):
            hits[k] = 0
        for b in pool[start[a] : start[a] + size[a]]:
            if stamp[b] == token:
                hits[kind[b]] += 1
        hits[kind[a]] += 1
        missing = 0.0
        for k in range(len(bits)):
            missing += bits[k] * (have[k] - hits[k])
        total += weight[a] * missing
    return total


@njit(cache=True, nogil=True)
def _join(
    a: int, v: int, around: AnyArray, start: Ints, size: Ints, space: Ints, pool: AnyArray, end: int, stamp: Ints,
    token: int,
) -> tuple[AnyArray, int, int]:  # fmt: skip
    """Take v from the neighbours of a and add those ``around`` v; returns the pool, its end, and how many are new."""
    n, s = 0, start[a]
    for e in range(s, s + size[a]):
        stamp[pool[e]] = token
        if pool[e] != v:
            pool[s + n] = pool[e]
            n += 1
    old = n
    stamp[a] = token
    if n + len(around) > space[a]:
        space[a] = 2 * (n + len(around))
        if end + space[a] > len(pool):
            larger = np.empty(2 * len(pool) + space[a], dtype=pool.dtype)
            for e in range(end):
                larger[e] = pool[e]
            pool = larger
        for e in range(n):
            pool[end + e] = pool[s + e]
        start[a], s, end = end, end, end + space[a]
    for b in around:
        if stamp[b] != token:
            pool[s + n] = b
            n += 1
    size[a] = n
    return pool, end, n - old


@njit(cache=True, nogil=True)
def _greedy_order(
    start: Ints, size: Ints, space: Ints, pool: AnyArray, end: int, weight: Floats, kind: Ints, kinds: Floats,
    group: Ints, by_size: bool, shuffle: int, bar: tuple[float, float], room: Room, hopeless: float,
) -> tuple[Ints, bool]:  # fmt: skip
    """The order of ``_greedy`` and whether edges were added; empty where it is dropped. Beyond ``hopeless`` the rest
    is taken as it comes. Neighbours are ``pool[start[v] : start[v] + size[v]]``, with ``space`` for more."""
    n, bits = len(kind), np.log2(kinds)
    stamp, token = np.zeros(n, dtype=np.int64), 0
    have, hits = np.zeros(len(kinds), dtype=np.int64), np.zeros(len(kinds), dtype=np.int64)
    met, times = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    waiting, current = np.zeros(n, dtype=np.bool_), np.zeros(n)
    random, heap, changed = np.uint64(shuffle), [(0.0, np.uint64(0), 0) for _ in range(0)], [0 for _ in range(0)]
    order, done, filled, largest, total, messages = np.empty(len(group), dtype=np.int64), 0, False, 0.0, 0.0, 0.0
    for v in group:
        waiting[v] = True
        changed.append(v)
        current[v] = -1.0
    while True:
        for a in changed:
            token += 1
            price = _price(a, by_size, start, size, pool, weight, kind, bits, have, hits, stamp, token)
            if price != current[a]:
                current[a] = price
                if shuffle:
                    random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                heappush(heap, (price, random >> np.uint64(33) if shuffle else random, a))
        changed.clear()
        if done == len(group):
            return order, filled
        price, _, v = heappop(heap)
        while not waiting[v] or price != current[v]:
            price, _, v = heappop(heap)
        waiting[v], order[done] = False, v
        done += 1
        around = pool[start[v] : start[v] + size[v]].copy()
        clique = kinds[kind[v]]
        for a in around:
            clique *= kinds[kind[a]]
        largest, total, messages = max(largest, clique), total + clique, messages + clique / kinds[kind[v]]
        over = largest > bar[0] or (largest == bar[0] and total >= bar[1] and largest < np.inf)
        if over or total > room.total or messages > room.messages:
            return order[:0], filled
        if largest > hopeless:
            for a in group:
                if waiting[a]:
                    order[done] = a
                    done += 1
            return order, True
        grown = 0
        for a in around:
            token += 1
            pool, end, new = _join(a, v, around, start, size, space, pool, end, stamp, token)
            grown += new
            if waiting[a]:
                changed.append(a)
            met[a] = done
        if grown == 0:
            continue
        filled = True
        # A new edge also changes the fill of whoever is next to both its ends.
        token += 1
        for a in around:
            for b in pool[start[a] : start[a] + size[a]]:
                if met[b] != done and waiting[b]:
                    times[b] = times[b] + 1 if stamp[b] == token else 1
                    stamp[b] = token
                    if times[b] == 2:
                        changed.append(b)

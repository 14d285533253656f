"""Elimination orders: weighted min-fill and other greedy or sweeping candidates, the best one kept.

The nested power sum (paper eq. 5) is a sequence of eliminations in which every variable of an earlier group (hidden)
precedes those of a later group (outputs). What remains of the graph after a whole group is eliminated does not
depend on the order inside the group, so groups are searched one after the other without loss.
Neighbour sets are the bits of Python integers: fill counts are a few word operations a neighbour.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np
from numpy.random import Generator
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee

# Work allowed for random restarts, in variables visited: a count, not a time, so that orders are reproducible.
RESTART_BUDGET = 4000
# No machine holds tables this large, so the greedy search stops being choosy and only the sweeps may still help.
HOPELESS = 1 << 64
Sets = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Order:
    """Variables in elimination order, with the variables left in each one's message (its separator).

    ``largest`` and ``total`` count table entries of the cliques (variable and separator), ``messages`` those of
    all messages; they are Python integers and do not overflow however wide the order is.
    """

    variables: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    width: int
    largest: int
    total: int
    messages: int


@dataclass
class _Trial:
    """One candidate order of one group: eliminated variables, separators as bits, and the remaining graph."""

    adjacent: list[int]
    steps: list[tuple[int, int]]
    largest: int = 0
    total: int = 0
    fill_edges: int = 0

    def eliminate(self, v: int, cards: Sequence[int]) -> bool:
        """Remove v and join its neighbours; returns whether an edge was added."""
        around = self.adjacent[v]
        size = cards[v] * prod(cards[a] for a in bits(around))
        filled = 0
        for a in bits(around):
            joined = (self.adjacent[a] | around) & ~((1 << a) | (1 << v))
            filled += (joined & ~self.adjacent[a]).bit_count()
            self.adjacent[a] = joined
        self.steps.append((v, around))
        self.largest = max(self.largest, size)
        self.total += size
        self.fill_edges += filled
        return filled > 0

    @property
    def rank(self) -> tuple[int, int]:
        return self.largest, self.total


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits of a non-negative integer, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def find_order(cards: Sequence[int], scopes: Sets, groups: Sets, restarts: int = 8, seed: int = 0) -> Order:
    """The best order found that eliminates ``groups`` one after the other.

    ``scopes`` name variables of any kind; those in no group (clamped ones) are left out of the graph. Candidates
    per group: min-fill weighted by log2 cardinality, smallest clique, a bandwidth-reducing sweep, the variables'
    own order, and ``restarts`` runs of min-fill with random tie-breaking (fewer on large graphs). The best has the
    smallest largest table, then the fewest table entries in total.
    """
    adjacent = adjacency(len(cards), scopes, sum(1 << v for group in groups for v in group))
    found = []
    for group in filter(len, groups):
        found.append(_search(cards, adjacent, list(group), restarts, seed))
        adjacent = found[-1].adjacent
    variables = tuple(v for trial in found for v, _ in trial.steps)
    separators = tuple(tuple(bits(around)) for trial in found for _, around in trial.steps)
    width = max((len(s) for s in separators), default=0)
    messages = sum(prod(cards[a] for a in s) for s in separators)
    largest, total = max((t.largest for t in found), default=0), sum(t.total for t in found)
    return Order(variables, separators, width, largest, total, messages)


def adjacency(n: int, scopes: Sets, present: int) -> list[int]:
    """Neighbours of each of n variables as bits, within the variables ``present`` (bits)."""
    adjacent = [0] * n
    for scope in scopes:
        clique = sum(1 << v for v in scope) & present
        for v in bits(clique):
            adjacent[v] |= clique & ~(1 << v)
    return adjacent


def _search(cards: Sequence[int], adjacent: list[int], group: list[int], restarts: int, seed: int) -> _Trial:
    weights = [log2(c) if c > 1 else 0.0 for c in cards]
    cost = _fill_cost(weights)
    best = _greedy(cards, adjacent, group, cost, None, None)
    assert best is not None
    if best.fill_edges == 0:
        return best  # a perfect elimination order: no other has smaller tables
    rng = np.random.default_rng(seed)
    trials: list[Callable[[_Trial], _Trial | None]] = [
        lambda bar: _fixed(cards, adjacent, _sweep(adjacent, group), bar),
        lambda bar: _fixed(cards, adjacent, sorted(group), bar),
    ]
    if best.largest <= HOPELESS:
        tries = min(restarts, RESTART_BUDGET // len(group))
        trials.append(lambda bar: _greedy(cards, adjacent, group, _size_cost(weights), None, bar))
        trials += [lambda bar: _greedy(cards, adjacent, group, cost, rng, bar)] * tries
    for trial in trials:
        found = trial(best)
        if found is not None and found.rank < best.rank:
            best = found
    return best


Price = Callable[[list[int], int], float]


def _fill_cost(weights: Sequence[float]) -> Price:
    """Sum of weight products over the pairs of neighbours that elimination would join (each pair twice)."""
    classes: dict[float, int] = {}
    for v, w in enumerate(weights):
        classes[w] = classes.get(w, 0) | (1 << v)

    def cost(adjacent: list[int], v: int) -> float:
        around = adjacent[v]
        total = 0.0
        for a in bits(around):
            missing = around & ~adjacent[a] & ~(1 << a)
            if missing:
                total += weights[a] * sum(w * (missing & members).bit_count() for w, members in classes.items())
        return total

    return cost


def _size_cost(weights: Sequence[float]) -> Price:
    """Log2 of the clique's table entries."""
    return lambda adjacent, v: weights[v] + sum(weights[a] for a in bits(adjacent[v]))


def _greedy(
    cards: Sequence[int], adjacent: list[int], group: list[int], cost: Price, rng: Generator | None, bar: _Trial | None
) -> _Trial | None:
    """Eliminate the cheapest variable each time; ties by index or at random; None once worse than ``bar``."""
    trial = _Trial(list(adjacent), [])
    waiting = sum(1 << v for v in group)
    current = {v: cost(trial.adjacent, v) for v in group}

    def entry(v: int) -> tuple[float, float, int]:
        return current[v], float(rng.random()) if rng is not None else 0.0, v

    heap = [entry(v) for v in group]
    heapq.heapify(heap)
    while waiting:
        price, _, v = heapq.heappop(heap)
        if not waiting >> v & 1 or price != current[v]:
            continue  # an outdated entry: the variable was eliminated or has been pushed again
        waiting ^= 1 << v
        around = trial.adjacent[v]
        changed = around
        if trial.eliminate(v, cards):
            # A new edge also changes the fill of whoever is next to both its ends.
            for a in bits(around):
                changed |= trial.adjacent[a]
        if bar is not None and trial.rank >= bar.rank:
            return None
        if trial.largest > HOPELESS:
            for a in bits(waiting):
                trial.eliminate(a, cards)
            return trial
        for a in bits(changed & waiting):
            if not around >> a & 1 and (trial.adjacent[a] & around).bit_count() < 2:
                continue
            fresh = cost(trial.adjacent, a)
            if fresh != current[a]:
                current[a] = fresh
                heapq.heappush(heap, entry(a))
    return trial


def _fixed(cards: Sequence[int], adjacent: list[int], order: Sequence[int], bar: _Trial) -> _Trial | None:
    """Eliminate in the given order; None once worse than ``bar``."""
    trial = _Trial(list(adjacent), [])
    for v in order:
        trial.eliminate(v, cards)
        if trial.rank >= bar.rank:
            return None
    return trial


def _sweep(adjacent: list[int], group: list[int]) -> list[int]:
    """Reverse Cuthill-McKee order: a front moving through the graph, near-optimal on long grids."""
    place = {v: k for k, v in enumerate(group)}
    inside = sum(1 << v for v in group)
    rows = [list(map(place.__getitem__, bits(adjacent[v] & inside))) for v in group]
    ptr = np.cumsum([0] + [len(r) for r in rows])
    flat = np.array([c for r in rows for c in r], dtype=np.int32)
    matrix = csr_matrix((np.ones(len(flat), dtype=np.int8), flat, ptr.astype(np.int32)), shape=(len(group),) * 2)
    return [group[int(k)] for k in reverse_cuthill_mckee(matrix, symmetric_mode=True)]

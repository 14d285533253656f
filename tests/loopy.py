"""Random pairwise graphs, most of them with cycles, and masks for their states."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.topology import Batch, Topology


def grid(height: int, width: int, cards: tuple[int, ...], eight: bool) -> Topology:
    """A grid with four or eight neighbours, numbered by rows."""
    at = np.arange(height * width).reshape(height, width)
    ends = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    if eight:
        ends += [(at[:-1, :-1], at[1:, 1:]), (at[:-1, 1:], at[1:, :-1])]
    scopes = [tuple(pair) for one, two in ends for pair in zip(one.ravel().tolist(), two.ravel().tolist(), strict=True)]
    return Topology(cards, tuple(scopes))


def random_graph(rng: np.random.Generator, least: int = 3) -> Topology:
    """A grid with four or eight neighbours, or a graph of at least ``least`` variables whose factors name their ends in
    either order."""
    kind = rng.integers(3)
    if kind < 2:
        height, width = rng.integers(2, 4, size=2).tolist()
        n = height * width
        same = rng.random() < 0.7
        cards = (int(rng.integers(2, 4)),) * n if same else tuple(rng.integers(1, 4, size=n).tolist())
        return grid(height, width, cards, eight=bool(kind == 1))
    n = int(rng.integers(least, 8))
    pairs = [(i, j) for i in range(n) for j in range(i)]
    chosen = rng.choice(len(pairs), size=min(len(pairs), n + int(rng.integers(0, 4))), replace=False)
    scopes = [pairs[k] if rng.random() < 0.5 else pairs[k][::-1] for k in chosen]
    return Topology(tuple(rng.integers(1, 4, size=n).tolist()), tuple(scopes))


def random_graphs(rng: np.random.Generator, n: int, least: int = 3) -> tuple[list[Topology], bool]:
    """One graph n times, or n graphs; and whether all their variables have the same number of states."""
    graphs = [random_graph(rng, least)] * n if rng.random() < 0.5 else [random_graph(rng, least) for _ in range(n)]
    return graphs, all(set(g.cards) == {graphs[0].cards[0]} for g in graphs)


def random_mask(rng: np.random.Generator, batch: Batch) -> Bools:
    """Allowed states: all of them, or four in five, and at least one of every variable."""
    allowed: Bools = rng.random(batch.n_states) < rng.choice([0.8, 1.0])
    allowed[batch.unary_ptr[:-1]] |= np.add.reduceat(allowed, batch.unary_ptr[:-1], dtype=np.int64) == 0
    return allowed

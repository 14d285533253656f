"""Elimination orders: validity, widths, reproducibility."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from builders import grid_scopes
from mssvm.core.orders import HOPELESS, Order, Room, find_order, find_order_within


def checkerboard(n: int) -> list[list[int]]:
    colour = np.add.outer(np.arange(n), np.arange(n)).ravel() % 2
    return [np.flatnonzero(colour == 1).tolist(), np.flatnonzero(colour == 0).tolist()]


def replay(order: Order, cards: list[int], scopes: list[tuple[int, ...]]) -> None:
    """Eliminate with plain sets and compare widths and sizes."""
    around: dict[int, set[int]] = {v: set() for v in order.variables}
    for scope in scopes:
        for v in scope:
            if v in around:
                around[v] |= {u for u in scope if u != v and u in around}
    sizes, separators = [], []
    for v in order.variables:
        separators.append(around.pop(v))
        sizes.append(cards[v] * prod(cards[u] for u in separators[-1]))
        for u in separators[-1]:
            around[u] = (around[u] | separators[-1]) - {u, v}
    assert order.largest == max(sizes, default=0)
    assert order.total == sum(sizes)
    assert order.width == max(map(len, separators), default=0)
    assert order.messages == sum(prod(cards[u] for u in s) for s in separators)


def simple_min_fill(n: int, scopes: list[tuple[int, ...]], groups: list[list[int]]) -> int:
    """Width of textbook min-fill with ties by index."""
    around = [{u for s in scopes if v in s for u in s if u != v} for v in range(n)]
    width = 0
    for group in groups:
        left = set(group)
        while left:
            v = min(left, key=lambda v: (sum(b not in around[a] for a in around[v] for b in around[v] if a < b), v))
            width = max(width, len(around[v]))
            for a in around[v]:
                around[a] = (around[a] | around[v]) - {a, v}
            left.remove(v)
    return width


@pytest.mark.parametrize("seed", range(20))
def test_random_orders_are_valid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 15))
    cards = rng.integers(1, 5, n).tolist()
    scopes = [tuple(rng.choice(n, min(n, int(rng.integers(2, 5))), replace=False).tolist()) for _ in range(n)]
    role = rng.integers(0, 3, n)
    groups = [np.flatnonzero(role == k).tolist() for k in (0, 1)]
    order = find_order(cards, scopes, groups, seed=seed)
    assert sorted(order.variables[: len(groups[0])]) == groups[0]
    assert sorted(order.variables[len(groups[0]) :]) == groups[1]
    replay(order, cards, scopes)
    assert order == find_order(cards, scopes, groups, seed=seed)
    enough = Room(float(order.total), float(order.messages))
    assert find_order_within(enough, cards, scopes, groups, seed=seed) == order
    if order.width > 0:
        # A bound that refuses says so of every order: the best of all has no fewer entries in all than the largest.
        assert find_order_within(Room(0.5 * least_total(cards, scopes, groups), np.inf), cards, scopes, groups) is None


def least_total(cards: list[int], scopes: list[tuple[int, ...]], groups: list[list[int]]) -> int:
    """A number of entries that every order needs: every variable has a clique, and every scope is in one."""
    present = {v for group in groups for v in group}
    return max(prod(cards[v] for v in s if v in present) for s in scopes)


@pytest.mark.parametrize(("rows", "columns", "width"), [(6, 6, 6), (4, 10, 4), (20, 40, 22)])
def test_free_grid_width(rows: int, columns: int, width: int) -> None:
    n = rows * columns
    order = find_order([4] * n, grid_scopes(rows, columns), [list(range(n))])
    replay(order, [4] * n, grid_scopes(rows, columns))
    assert order.width <= width


@pytest.mark.parametrize("n", [4, 6, 8])
def test_checkerboard_not_worse_than_simple_min_fill(n: int) -> None:
    groups = checkerboard(n)
    order = find_order([4] * n * n, grid_scopes(n, n), groups)
    replay(order, [4] * n * n, grid_scopes(n, n))
    assert order.width <= simple_min_fill(n * n, grid_scopes(n, n), groups)
    if n == 6:
        assert order.width == 6


def test_weights_prefer_small_tables() -> None:
    """A four-cycle: joining the two binary variables is cheaper than joining the two large ones."""
    order = find_order([9, 2, 9, 2], [(0, 1), (1, 2), (2, 3), (3, 0)], [[0, 1, 2, 3]])
    assert order.largest == 9 * 2 * 2


def test_hopeless_graph_is_quick_and_exact_about_its_size() -> None:
    n = 150
    order = find_order([10] * n, [(i, j) for i in range(n) for j in range(i)], [list(range(n))])
    assert order.largest == 10**n > HOPELESS
    assert order.width == n - 1


@pytest.mark.parametrize("roles", [False, True])
def test_images_are_refused_without_a_search(roles: bool) -> None:
    """A grid of 200 x 200, whole or with most of its pixels hidden, has no order within any machine."""
    n = 200
    output = np.random.default_rng(0).random(n * n) < 0.15
    groups = [np.flatnonzero(~output).tolist(), np.flatnonzero(output).tolist()] if roles else [list(range(n * n))]
    assert find_order_within(Room(2e8, 2.0**27), [2] * n * n, grid_scopes(n, n), groups) is None
    long = [2] * 6 * n
    order = find_order_within(Room(2e8, 2.0**27), long, grid_scopes(6, n), [list(range(6 * n))])
    assert order is not None and order.width <= 7


def test_orders_wider_than_any_float_are_still_orders() -> None:
    n = 1100
    order = find_order((2,) * n, [(0, v) for v in range(1, n)], [[0], list(range(1, n))])
    assert sorted(order.variables) == list(range(n))
    assert order.width == n - 1

"""Instances side by side in registers, forests that end sooner or later and chains of labels and links, by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import ExactSettings
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.native.exact import NativeBoundQuery
from mssvm.engines.native.forests import ForestRoute
from mssvm.engines.reference import ReferenceEngine
from mssvm.inference.exact import Exact


def linked(n: int, k: int, h: int, seed: int) -> tuple[Topology, list[int], np.ndarray]:
    """Labels and links in turn, their variables and the axes of their tables in any order; its label variables."""
    rng = np.random.default_rng(seed)
    at, (one, two) = rng.permutation(2 * n - 1), rng.random(2) < 0.5
    cards = np.empty(2 * n - 1, dtype=int)
    cards[at[:n]], cards[at[n:]] = k, h
    left = [(at[t], at[n + t]) for t in range(n - 1)]
    right = [(at[n + t], at[t + 1]) for t in range(n - 1)]
    scopes = [s[::-1] if one else s for s in left] + [s[::-1] if two else s for s in right]
    return Topology(tuple(cards), tuple(scopes)), [2 * one] * (n - 1) + [1 + 2 * two] * (n - 1), at[:n]


def comb(n: int) -> tuple[Topology, list[int]]:
    """A chain with a leaf at every node."""
    scopes = [(2 * t, 2 * t + 2) for t in range(n - 1)] + [(2 * t + 1, 2 * t) for t in range(n)]
    return Topology((3, 2) * n, tuple(scopes)), [0] * (n - 1) + [1] * n


def path(n: int) -> tuple[Topology, list[int]]:
    """Nodes of three and of two states in turn, one table for each way."""
    scopes = [(t, t + 1) for t in range(n - 1)]
    turns = [(n - t) % 2 for t in range(n)]
    return Topology(tuple(3 if turn else 2 for turn in turns), tuple(scopes)), turns[:-1]


def drawn(batch: Batch, seed: int, output: np.ndarray) -> tuple[Potentials, Query]:
    rng = np.random.default_rng(seed)
    allowed = rng.random(batch.n_states) < 0.8
    allowed[batch.unary_ptr[:-1]] = True
    theta = Potentials(3 * rng.normal(size=batch.n_states), 2 * rng.normal(size=batch.n_table_entries))
    return theta, Query(output, allowed)


def assert_by_numpy(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> NativeBoundQuery:
    plan, bound = Exact().plan(batch, ReferenceEngine()), Exact().plan(batch).bind(query, eps_y, eps_h)
    got, want = bound(theta), plan.bind(query, eps_y, eps_h)(theta)
    threaded = Exact().plan(batch, NativeEngine(3)).bind(query, eps_y, eps_h)(theta)
    for ours, theirs, other in (
        (got.value, want.value, threaded.value),
        (got.mu.unary, want.mu.unary, threaded.mu.unary),
        (got.mu.tables, want.mu.tables, threaded.mu.tables),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(ours, other)
    assert isinstance(bound, NativeBoundQuery)
    return bound


def side_by_side(bound: NativeBoundQuery) -> int:
    """How many instances run side by side."""
    routes = [route for route in bound.routes if isinstance(route, ForestRoute)]
    sizes = [len(family["instance"]) for route in routes for family in route.families]
    return sum(size for size in sizes if size > 1)


TEMPERATURES = [(0, 1), (0, 0.5), (0.5, 1), (0.3, 1), (1, 0.5), (0.03125, 1), (1e-3, 1)]


@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
@pytest.mark.parametrize("seed", range(5))
def test_labels_and_links_at_two_temperatures(seed: int, eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(seed)
    k, h = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    chains = [linked(int(n), k, h, int(n)) for n in np.repeat(rng.integers(2, 5, 3), 9)]
    batch = Batch.build([c[0] for c in chains], [c[1] for c in chains])
    output = np.zeros(batch.n_vars, dtype=bool)
    for b, (_, _, labels) in enumerate(chains):
        output[batch.var_ptr[b] + labels] = rng.random(len(labels)) < 0.6  # the others are missing
    bound = assert_by_numpy(batch, *drawn(batch, seed, output), eps_y, eps_h)
    assert side_by_side(bound) >= 10


@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
@pytest.mark.parametrize("seed", range(3))
def test_labels_with_leaves_at_two_temperatures(seed: int, eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(seed)
    combs = [comb(int(n)) for n in (*rng.integers(1, 5, 9), 4, 4, 4)]
    batch = Batch.build([c[0] for c in combs], [c[1] for c in combs])
    labels = np.concatenate([np.arange(t.n_vars) % 2 == 0 for t, _ in combs])
    for missing in (0.0, 0.4):  # the leaves of a missing label belong to one hidden component with it
        output = labels & (rng.random(batch.n_vars) >= missing)
        bound = assert_by_numpy(batch, *drawn(batch, seed, output), eps_y, eps_h)
        assert side_by_side(bound) >= 10


@pytest.mark.parametrize(("eps_y", "eps_h"), [*TEMPERATURES, (1, 1), (0.05, 0.05)])
def test_trees_with_any_roles(eps_y: float, eps_h: float) -> None:
    shown = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(4, 8))
        parents = [int(rng.integers(i)) for i in range(1, n)]
        scopes = tuple((i, j) if rng.random() < 0.5 else (j, i) for i, j in enumerate(parents, 1))
        tree = Topology(tuple(rng.integers(1, 4, n)), scopes)
        batch = Batch.build([tree] * 20, [list(range(n - 1))] * 20)
        bound = assert_by_numpy(batch, *drawn(batch, seed, rng.random(batch.n_vars) < 0.6), eps_y, eps_h)
        shown += side_by_side(bound)
    assert shown >= 60


@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 1.0), (0.5, 1.0)])
def test_one_table_for_all_edges_of_labels_and_links(eps_y: float, eps_h: float) -> None:
    batch = Batch.build([Topology((2,) * 5, ((0, 1), (1, 2), (2, 3), (3, 4)))] * 9, [[0] * 4] * 9)
    theta, query = drawn(batch, 3, np.tile([True, False, True, False, True], 9))
    assert_by_numpy(batch, theta, query, eps_y, eps_h)


@pytest.mark.parametrize("eps", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("forests", [[comb(3)] * 9, [path(n) for n in (7, 7, 6, 2, 1, 3, 5, 4, 2, 7, 3)]])
def test_forests_that_end_sooner_run_beside_longer_ones(forests: list[tuple[Topology, list[int]]], eps: float) -> None:
    batch = Batch.build([t for t, _ in forests], [ids for _, ids in forests])
    theta, query = drawn(batch, 7, np.ones(batch.n_vars, dtype=bool))
    bound = assert_by_numpy(batch, theta, query, eps, eps)
    routes = [route for route in bound.routes if isinstance(route, ForestRoute)]
    assert side_by_side(bound) >= len(forests) - 1
    assert sum(len(family["instance"]) > 1 for family in routes[0].families) == 1


@pytest.mark.parametrize("eps_y", [0.5, 1.0])
def test_scores_need_not_lie_side_by_side(eps_y: float) -> None:
    batch = Batch.build([linked(3, 2, 2, 0)[0]] * 9, [linked(3, 2, 2, 0)[1]] * 9)
    theta, query = drawn(batch, 1, np.ones(batch.n_vars, dtype=bool))
    assert_by_numpy(batch, Potentials(np.repeat(theta.unary, 2)[::2], np.repeat(theta.tables, 2)[::2]), query, eps_y, 1)


def test_ranges_that_are_not_safe_leave_the_registers() -> None:
    batch = Batch.build([linked(3, 2, 2, 0)[0]] * 9, [linked(3, 2, 2, 0)[1]] * 9)
    theta, query = drawn(batch, 1, np.ones(batch.n_vars, dtype=bool))
    theta.unary[batch.state_span(4)] *= 1e4
    for eps_y, eps_h in ((1.0, 1.0), (0.5, 1.0)):
        assert_by_numpy(batch, theta, query, eps_y, eps_h)


def tree(n: int) -> tuple[Topology, list[int]]:
    """A chain with a leaf at every second node, all of three states, and a node apart; a table is read both ways."""
    scopes = [(t, t + 1) if t % 3 else (t + 1, t) for t in range(n - 1)] + [(t, n + t // 2) for t in range(0, n, 2)]
    return Topology((3,) * (n + (n + 1) // 2 + 1), tuple(scopes)), [t % 2 for t in range(n - 1)] + [2] * ((n + 1) // 2)


def chain(n: int) -> tuple[Topology, list[int]]:
    return Topology((3,) * n, tuple((t, t + 1) for t in range(n - 1))), [0] * (n - 1)


@pytest.mark.parametrize(("eps_y", "eps_h", "output"), [(0.05, 0.05, True), (1.0, 1.0, True), (0.0, 0.5, False)])
@pytest.mark.parametrize("forests", [[tree(4)] * 5, [chain(n) for n in (7, 5, 2, 7, 3)]])
def test_an_instance_that_is_not_safe_beside_others_that_are(
    forests: list[tuple[Topology, list[int]]], eps_y: float, eps_h: float, output: bool
) -> None:
    batch = Batch.build([t for t, _ in forests], [ids for _, ids in forests])
    theta, query = drawn(batch, 7, np.full(batch.n_vars, output))
    theta.tables[4] = -np.inf
    theta.unary[batch.state_span(1)] *= 1e4  # not safe
    assert_by_numpy(batch, theta, query, eps_y, eps_h)


def test_blas_gets_its_threads_back() -> None:
    def count() -> list[int]:
        return [int(library["num_threads"]) for library in threadpool_info() if library["user_api"] == "blas"]

    before = count()
    with ONE_BLAS_THREAD:
        with ONE_BLAS_THREAD:
            assert set(count()) == {1}
        assert set(count()) == {1}
    assert count() == before


def test_marginals_where_two_sums_in_a_row_are_tiny() -> None:
    graph = Topology((2, 1, 2), ((0, 1), (1, 2)))
    batch = Batch.build([graph] * 4, [[0, 1]] * 4)
    theta = Potentials(np.tile([0.0, -900.0, 0.0, -900.0, 0.0], 4), np.array([-280.0, 0.0, 0.0, -449.0]))
    found, alone = (
        exact(batch, theta, Query.all_outputs(batch), 1.0, 1.0)
        for exact in (Exact(), Exact(methods=("tree recursion",)))
    )
    np.testing.assert_allclose(found.mu.unary, alone.mu.unary, atol=1e-12)
    np.testing.assert_allclose(found.mu.tables, alone.mu.tables, atol=1e-12)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("eps_y", [0.0, 0.5, 1.0])
def test_scores_that_are_no_numbers_are_refused(eps_y: float, wrong: float) -> None:
    for lengths in ([6] * 17, [3, 4, 5, 6] * 4):
        chains = [linked(n, 3, 2, 0) for n in lengths]
        batch = Batch.build([c[0] for c in chains], [c[1] for c in chains])
        output = np.concatenate([np.isin(np.arange(c[0].n_vars), c[2]) for c in chains])
        theta, query = drawn(batch, 0, output)
        bound = Exact().plan(batch).bind(query, eps_y, 1.0)
        assert side_by_side(bound) >= 14
        bound(Potentials(np.where(query.allowed, theta.unary, -np.inf), theta.tables))
        for place in (0, batch.n_states // 2, batch.n_states - 1, int(np.flatnonzero(~query.allowed)[0])):
            unary = theta.unary.copy()
            unary[place] = wrong
            with pytest.raises(InputError, match=r"potentials\.unary holds NaN"):
                bound(Potentials(unary, theta.tables))


@pytest.mark.parametrize("eps", [(1.0, 1.0), (0.5, 0.5), (0.25, 1.0)])
@pytest.mark.parametrize("cards", [(9, 10), (10, 3), (3, 12)])
@pytest.mark.parametrize("size", [700, 2200])
def test_forests_that_leave_the_near_cache(size: int, cards: tuple[int, int], eps: tuple[float, float]) -> None:
    n = 2 * size // sum(cards)
    chains = [
        Topology(tuple(cards[t % 2] for t in range(m)), tuple((t + 1, t) for t in range(m - 1))) for m in (n, n, n - 4)
    ]
    batch = Batch.build(chains, [[t % 2 for t in range(graph.n_factors)] for graph in chains])
    theta, query = drawn(batch, 0, np.concatenate([np.arange(graph.n_vars) % 2 == 0 for graph in chains]))
    bound = Exact().plan(batch).bind(query, *eps)
    assert side_by_side(bound) == len(chains)
    found, alone = bound(theta), Exact(methods=("tree recursion",))(batch, theta, query, *eps)
    np.testing.assert_allclose(found.value, alone.value, rtol=1e-12)
    np.testing.assert_allclose(found.mu.unary, alone.mu.unary, atol=1e-10)
    np.testing.assert_allclose(found.mu.tables, alone.mu.tables, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("states", [4, 70])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.25, 1.0), (0.03, 1.0), (0.0, 1.0), (1.0, 0.5)])
def test_what_underflow_takes_is_not_asked_for_later(eps_y: float, eps_h: float, states: int, hidden: int) -> None:
    """Labels fall into two groups between which nothing is allowed; one is far below at first and above in the end.
    And a table so wide that a state which is lost beside another would be the better one."""
    rng, half, sites = np.random.default_rng(0), states // 2, 12
    cards = [states if hidden == 0 or t % 2 == 0 else hidden for t in range(sites + (sites - 1) * (hidden > 0))]
    graph = Topology(tuple(cards), tuple((t, t + 1) for t in range(len(cards) - 1)))
    ids = [[(k % 2 if hidden else 0) + 2 * (b % 2) for k in range(graph.n_factors)] for b in range(8)]
    batch = Batch.build([graph] * 8, np.unique(ids, return_inverse=True)[1].reshape(8, -1).tolist())
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    labels = np.flatnonzero(batch.cards == states).reshape(8, -1)
    for b, own in enumerate(labels):
        for t, v in enumerate(own):
            upper = theta.unary[batch.unary_ptr[v] + half : batch.unary_ptr[v + 1]]
            upper += 100.0 if t else -250.0 - 600.0 * (b % 2)
    first = batch.factor_ptr[:2]
    for b, f in enumerate(first):
        for g in range(f, f + (2 if hidden else 1)):
            rows, columns = batch.pair_cards(np.array([g]))[0]
            table = theta.tables[batch.table_at[g] :][: rows * columns].reshape(rows, columns)
            lower, upper = slice(0, rows // 2), slice(rows // 2, rows)
            if b:
                table[lower, columns // 2 :] = table[upper, : columns // 2] = -np.inf
                continue
            table[lower] -= 400.0
            table[upper] += 400.0
    query = Query(batch.cards == states, np.ones(batch.n_states, dtype=bool))
    found, want = (
        engine.exact(batch, ExactSettings()).bind(query, eps_y, eps_h)(theta)
        for engine in (NativeEngine(), ReferenceEngine())
    )
    np.testing.assert_allclose(found.value, want.value, rtol=1e-10)
    np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=1e-8)


@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 0.01), (1.0, 0.03), (10.0, 1.0), (1.0, 0.5)])
def test_what_underflows_at_a_low_hidden_temperature_may_count_at_that_of_outputs(eps_y: float, eps_h: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        graph, ids, labels = linked(int(rng.integers(2, 6)), int(rng.integers(2, 6)), 2, seed)
        batch = Batch.build([graph] * 16, [np.unique(ids, return_inverse=True)[1].tolist()] * 16)
        scale = eps_h * float(rng.choice([30.0, 100.0]))
        theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
        output = np.isin(np.arange(batch.n_vars) % graph.n_vars, labels) & (rng.random(batch.n_vars) < 0.8)
        query = Query.of(batch, output)
        query.allowed[:] = rng.random(batch.n_states) < 0.9
        query.allowed[batch.unary_ptr[:-1]] = True
        found, want = (
            engine.exact(batch, ExactSettings()).bind(query, eps_y, eps_h)(theta)
            for engine in (NativeEngine(), ReferenceEngine())
        )
        np.testing.assert_allclose(found.value, want.value, rtol=1e-10)
        np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=1e-8)
        np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=1e-7)

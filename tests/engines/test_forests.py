"""Exact inference on forests against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.native.cutset import CutsetRoute
from mssvm.engines.native.forests import ForestPlan, ForestRoute
from mssvm.inference.enumerate import Enumerate

PAIRS = [*product((0.0, 0.5, 1.0), repeat=2), (1e-6, 1e-6), (1e-6, 1.0), (0.0, 1e-6), (1.0, 1e-6)]


def random_masks(rng: np.random.Generator, batch: Batch, share: float = 0.7) -> np.ndarray:
    allowed = rng.random(batch.n_states) < share
    allowed[batch.unary_ptr[:-1]] |= rng.random(batch.n_vars) < 0.5
    empty = np.add.reduceat(allowed.astype(int), batch.unary_ptr[:-1]) == 0
    allowed[batch.unary_ptr[:-1][empty]] = True
    return allowed


def random_forest(rng: np.random.Generator, tied: bool) -> Topology:
    n = int(rng.integers(1, 8))
    cards = np.full(n, 3) if tied else rng.integers(1, 4, n)
    scopes = []
    for i in range(1, n):
        if rng.random() < 0.85:
            j = i - 1 if rng.random() < 0.6 else int(rng.integers(i))
            scopes.append((i, j) if rng.random() < 0.5 else (j, i))
    return Topology(tuple(cards), tuple(scopes))


def random_batch(rng: np.random.Generator, tied: bool) -> Batch:
    graphs = [random_forest(rng, tied) for _ in range(4)]
    return Batch.build(graphs, [rng.integers(3, size=g.n_factors).tolist() for g in graphs] if tied else None)


def random_potentials(rng: np.random.Generator, batch: Batch, scale: float, forbidden: float) -> Potentials:
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < forbidden] = -np.inf
    theta.unary[rng.random(batch.n_states) < forbidden / 4] = -np.inf
    return theta


def run(method, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float, threads: int = 1):
    """Values and marginals of the instances that the method supports, and which those are."""
    plan = method(batch)
    which = np.flatnonzero(plan.supports(query, eps_y, eps_h))
    value = np.full(len(batch), np.nan)
    mu = Marginals(np.full(batch.n_states, np.nan), np.full(batch.n_mu_entries, np.nan))
    route = ForestRoute if method is ForestPlan else CutsetRoute
    if route is CutsetRoute:
        mu = Marginals.zeros(batch)
    route(plan, query, eps_y, eps_h, which, Workers(threads)).infer_into(theta, value, mu)
    return value, mu, which


def assert_same(batch: Batch, value: np.ndarray, mu: Marginals, which: np.ndarray, truth: Belief) -> None:
    for b in which:
        np.testing.assert_allclose(value[b], truth.value[b], rtol=1e-9, atol=1e-9)
        states = batch.state_span(b)
        np.testing.assert_allclose(mu.unary[states], truth.mu.unary[states], atol=1e-9)
        for f in range(batch.factor_ptr[b], batch.factor_ptr[b + 1]):
            table = slice(batch.mu_at[f], batch.mu_at[f] + batch.table_sizes[f])
            np.testing.assert_allclose(mu.tables[table], truth.mu.tables[table], atol=1e-9)


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_forests_equal_enumeration(eps_y: float, eps_h: float, scale: float) -> None:
    rng = np.random.default_rng(int(scale) + 17)
    covered = 0
    for trial in range(12):
        batch = random_batch(rng, tied=trial % 3 == 0)
        theta = random_potentials(rng, batch, scale, 0.2 if trial % 2 else 0.0)
        query = Query(rng.random(batch.n_vars) < 0.5, random_masks(rng, batch))
        value, mu, which = run(ForestPlan, batch, theta, query, eps_y, eps_h)
        assert_same(batch, value, mu, which, Enumerate()(batch, theta, query, eps_y, eps_h))
        covered += len(which)
    assert covered > 40


@pytest.mark.parametrize(("eps_y", "eps_h"), [p for p in PAIRS if p[0] != p[1]])
def test_scattered_hidden_runs_of_a_chain(eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(3)
    for length in (2, 5, 9):
        graph = Topology((2,) * length, tuple((t, t + 1) for t in range(length - 1)))
        batch = Batch.build([graph] * 4, [[0] * (length - 1)] * 4)
        theta = random_potentials(rng, batch, 1.0, 0.0)
        query = Query.of(batch, rng.random(batch.n_vars) < 0.4)
        value, mu, which = run(ForestPlan, batch, theta, query, eps_y, eps_h)
        assert len(which) == 4
        assert_same(batch, value, mu, which, Enumerate()(batch, theta, query, eps_y, eps_h))


@pytest.mark.parametrize("scale", [1.0, 40.0, 1e3])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_chains_side_by_side_equal_enumeration(k: int, scale: float) -> None:
    rng = np.random.default_rng(k)
    lengths = rng.integers(2, 6 if k > 4 else 8, size=20)
    graphs = [Topology((k,) * n, tuple((t, t + 1) for t in range(n - 1))) for n in lengths]
    batch = Batch.build(graphs, [[int(b % 5 == 0)] * g.n_factors for b, g in enumerate(graphs)])
    for forbidden in (0.0, 0.3):
        theta = random_potentials(rng, batch, scale, forbidden)
        theta.tables[np.isneginf(theta.tables)] = 0.0
        query = Query(rng.random(batch.n_vars) < 0.5, random_masks(rng, batch))
        value, mu, which = run(ForestPlan, batch, theta, query, 0.5, 0.5)
        assert len(which) == len(batch)
        assert_same(batch, value, mu, which, Enumerate(1 << 20)(batch, theta, query, 0.5, 0.5))


def test_long_chain_rescaling_against_the_robust_recursion() -> None:
    rng = np.random.default_rng(5)
    graph = Topology((3,) * 2000, tuple((t, t + 1) for t in range(1999)))
    tied, untied = Batch.build([graph] * 3, [[0] * 1999] * 3), Batch.build([graph] * 3)
    theta = random_potentials(rng, tied, 5.0, 0.0)
    spread = Potentials(theta.unary, np.tile(theta.tables, 3 * 1999))
    spread.tables[0] = np.nextafter(spread.tables[0], 9.0)
    query = Query.all_outputs(tied)
    lanes, one = run(ForestPlan, tied, theta, query, 1.0, 1.0), run(ForestPlan, untied, spread, query, 1.0, 1.0)
    np.testing.assert_allclose(lanes[0], one[0], rtol=1e-12)
    np.testing.assert_allclose(lanes[1].unary, one[1].unary, atol=1e-10)


def test_infeasible_instances() -> None:
    graph = Topology((2, 2), ((0, 1),))
    batch = Batch.build([graph, graph])
    theta = Potentials.zeros(batch)
    theta.tables[:4] = -np.inf
    for eps_y, eps_h in PAIRS:
        value, mu, _ = run(ForestPlan, batch, theta, Query.of(batch, np.array([True, False] * 2)), eps_y, eps_h)
        assert np.isneginf(value[0]) and np.isfinite(value[1])
        assert not mu.unary[:4].any() and not mu.tables[:4].any()


def test_zero_temperature_breaks_ties_to_one_assignment() -> None:
    graph = Topology((3,) * 4, ((0, 1), (1, 2), (2, 3)))
    batch = Batch.build([graph])
    _, mu, _ = run(ForestPlan, batch, Potentials.zeros(batch), Query.all_outputs(batch), 0.0, 0.0)
    np.testing.assert_array_equal(mu.unary, np.tile([1.0, 0.0, 0.0], 4))


def test_what_is_not_supported() -> None:
    star = Topology((2,) * 4, ((0, 1), (0, 2), (0, 3)))
    loop = Topology((2,) * 3, ((0, 1), (1, 2), (2, 0)))
    double = Topology((2,) * 2, ((0, 1), (1, 0)))
    batch = Batch.build([star, loop, double])
    query = Query.of(batch, np.array([False, True, True, True] + [True] * 5))
    assert ForestPlan(batch).supports(query, 1.0, 1.0).tolist() == [True, False, False]
    assert ForestPlan(batch).supports(query, 0.0, 1.0).tolist() == [False, False, False]
    clamped = query.clamp(batch, np.array([1]), np.array([0]))
    assert ForestPlan(batch).supports(clamped, 0.0, 1.0).tolist() == [True, False, False]
    with pytest.raises(UnsupportedError, match="forest"):
        ForestRoute(ForestPlan(batch), query, 0.0, 1.0, np.array([0]), Workers()).infer_into(
            Potentials.zeros(batch), np.zeros(3), Marginals.zeros(batch)
        )


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(8)
    graphs = [Topology((3,) * n, tuple((t, t + 1) for t in range(n - 1))) for n in rng.integers(2, 9, size=300)]
    batch = Batch.build(
        graphs, [[0] * g.n_factors if b % 2 else list(range(1, g.n_factors + 1)) for b, g in enumerate(graphs)]
    )
    theta = random_potentials(rng, batch, 1.0, 0.0)
    query = Query(rng.random(batch.n_vars) < 0.5, random_masks(rng, batch))
    for eps_h in (1.0, 0.5):
        one, four = (run(ForestPlan, batch, theta, query, 1.0, eps_h, t) for t in (1, 4))
        np.testing.assert_array_equal(one[0], four[0])
        np.testing.assert_array_equal(one[1].unary, four[1].unary)
        np.testing.assert_array_equal(one[1].tables, four[1].tables)

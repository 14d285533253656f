"""Locally consistent marginals: tables with given marginals, minorants of the bound, certificates of training."""

from __future__ import annotations

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference import Decompose
from mssvm.inference.decomposition.consistent import proven_point, with_marginals
from mssvm.inference.enumerate import Enumerate
from mssvm.optim import Regulariser


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 4)])
@pytest.mark.parametrize("strength", [0.5, 4.0])
def test_tables_have_the_marginals_that_are_asked_for(shape: tuple[int, int], strength: float) -> None:
    rng = np.random.default_rng(0)
    exponents = strength * rng.normal(size=(200, *shape))
    rows = rng.dirichlet(np.ones(shape[0]), 200)
    columns = rng.dirichlet(np.ones(shape[1]), 200)
    tables = with_marginals(exponents, rows, columns)
    assert tables.min() >= 0.0
    assert np.allclose(tables.sum(axis=2), rows, atol=1e-12)
    assert np.allclose(tables.sum(axis=1), columns, atol=1e-12)


def test_tables_keep_their_odds() -> None:
    rng = np.random.default_rng(1)
    for shape in ((2, 2), (3, 3)):
        exponents = rng.normal(size=(50, *shape))
        tables = with_marginals(exponents, rng.dirichlet(np.ones(shape[0]), 50), rng.dirichlet(np.ones(shape[1]), 50))
        log = np.log(tables) - exponents
        odds = log[:, :1, :1] + log[:, 1:, 1:] - log[:, 1:, :1] - log[:, :1, 1:]
        assert np.abs(odds).max() < 1e-5


def graphs(rng: np.random.Generator, n: int) -> tuple[Batch, Potentials, Query]:
    """Random graphs of three to six variables of two or three states, some of them forbidden."""
    kinds = []
    for _ in range(n):
        size = int(rng.integers(3, 7))
        cards = tuple(int(k) for k in rng.integers(2, 4, size))
        pairs = [(i, j) for i in range(size) for j in range(i + 1, size) if rng.random() < 0.7]
        kinds.append(Topology(cards, tuple(pairs or [(0, 1)])))
    batch = Batch.build(kinds)
    theta = Potentials(2.0 * rng.normal(size=batch.n_states), 2.0 * rng.normal(size=batch.n_table_entries))
    allowed = rng.random(batch.n_states) < 0.9
    allowed[batch.unary_ptr[:-1]] = True
    return batch, theta, Query(np.ones(batch.n_vars, dtype=bool), allowed)


@pytest.mark.parametrize("eps", [1.0, 0.3])
def test_values_are_below_the_bound_and_close_to_it(eps: float) -> None:
    batch, theta, query = graphs(np.random.default_rng(2), 40)
    plan = Decompose(tolerance=1e-10, sweeps=2000, operations_limit=0.0).plan(batch)
    found = proven_point(plan, query, theta, eps, eps, eps)
    assert found is not None
    value, mu = found
    bound = plan.bind(query, eps, eps)(theta)
    exact = Enumerate()(batch, theta, query, eps, eps).value
    assert np.all(value <= bound.value + 1e-8)
    assert np.all(bound.value >= exact - 1e-9)
    assert np.median(bound.value - value) < 1e-3
    ones = np.bincount(batch.state_var, weights=mu.unary, minlength=batch.n_vars)
    assert np.allclose(ones, 1.0)


@pytest.mark.parametrize("target", [1.0, 0.0])
def test_values_are_minorants_for_all_scores(target: float) -> None:
    rng = np.random.default_rng(3)
    batch, theta, query = graphs(rng, 30)
    plan = Decompose(operations_limit=0.0, sweeps=20).plan(batch)
    found = proven_point(plan, query, theta, 1.0, 1.0, target)
    assert found is not None
    value, mu = found
    for _ in range(10):
        change = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
        moved = theta + change
        entries = np.arange(batch.n_mu_entries)
        source, owner = batch.mu_entries(entries)
        rise = np.bincount(batch.owner[batch.state_var], weights=mu.unary * change.unary, minlength=len(batch))
        rise += np.bincount(owner, weights=mu.tables * change.tables[source], minlength=len(batch))
        bound = plan.bind(query, target, target)(moved)
        assert np.all(bound.status.upper >= value + rise - 1e-8)


def discs(n: int, side: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        labels = (np.hypot(*np.mgrid[-side / 2 : side / 2, -side / 2 : side / 2]) < rng.uniform(2, side / 2)).astype(
            int
        )
        X.append(np.stack([labels + rng.normal(size=labels.shape), np.ones(labels.shape)], axis=2))
        y.append(labels)
    return X, y


@pytest.mark.parametrize("edges", ["free", "contrast"])
def test_the_gap_of_a_crf_is_proven_and_small(edges: str) -> None:
    X, y = discs(4, 12, 0)
    model = ms.CRF(ms.Grid(edges=edges), random_state=0, inference="decompose").fit(X, y)
    gap = model.training_["gap"]
    assert model.training_["certified"]
    assert 0.0 <= gap < 2e-3 * model.objective_
    careful = Decompose(warm_sweeps=100, tolerance=1e-9)
    low = ms.CRF(ms.Grid(edges=edges), random_state=0, inference=careful, tol=1e-9).fit(X, y)
    assert low.objective_ >= model.objective_ - gap - 1e-9
    assert low.training_["gap"] < 2e-4 * low.objective_


def test_the_gap_of_a_crf_with_three_labels_is_less_than_a_tenth_of_a_percent() -> None:
    rng = np.random.default_rng(33)
    rows, columns = np.indices((40, 40))
    X, y = [], []
    for _ in range(6):
        labels = np.zeros((40, 40), dtype=int)
        for label in (1, 2):
            centre = rng.uniform(10.0, 30.0, 2)
            labels[np.hypot(rows - centre[0], columns - centre[1]) < rng.uniform(40 / 6, 40 / 3)] = label
        seen = np.eye(3)[labels][..., 1:] + 1.2 * rng.normal(size=(40, 40, 2))
        X.append(np.concatenate([seen, np.ones((40, 40, 1))], axis=-1))
        y.append(labels)
    model = ms.CRF(ms.Grid(), random_state=0).fit(X, y)
    assert model.training_["certified"]
    assert 0.0 <= model.training_["gap"] < 1e-3 * model.objective_


def test_a_margin_has_a_proven_gap_too() -> None:
    X, y = discs(3, 10, 1)
    model = ms.SSVM(ms.Grid(), random_state=0, inference="decompose").fit(X, y)
    low = ms.SSVM(ms.Grid(), random_state=0, inference=Decompose(warm_sweeps=60), tol=1e-7).fit(X, y)
    assert model.training_["gap"] >= 0.0
    assert low.objective_ >= model.objective_ - model.training_["gap"] - 1e-9


def test_missing_labels_have_no_certificate() -> None:
    X, y = discs(3, 10, 2)
    y[0] = np.where(np.arange(100).reshape(10, 10) % 3, y[0], -1)
    model = ms.HCRF(ms.Grid(), random_state=0, inference="decompose", missing_label=-1).fit(X, y)
    assert not model.training_["certified"]


def test_least_value_of_a_regulariser_with_a_slope() -> None:
    rng = np.random.default_rng(4)
    slope = rng.normal(size=6)
    strength = rng.uniform(0.5, 2.0, 6)
    absolute = np.array([0.0, 0.0, 0.4, 0.4, 0.0, 0.4])
    nonnegative = np.array([False, True, False, True, True, False])
    regulariser = Regulariser(strength, nonnegative, absolute)
    grid = np.linspace(-5.0, 5.0, 200_001)
    best = 0.0
    for j in range(6):
        w = grid[grid >= 0.0] if nonnegative[j] else grid
        best += float((0.5 * strength[j] * w**2 + absolute[j] * np.abs(w) + slope[j] * w).min())
    assert regulariser.least_with(slope) == pytest.approx(best, abs=1e-7)
    free = Regulariser(np.array([1.0, 0.0]))
    assert free.least_with(np.array([2.0, 0.0])) == -2.0
    assert free.least_with(np.array([2.0, 1.0])) == -np.inf

"""Minimum cuts: the best mixtures of two labellings, proven where they are exact, and decoding of fitted grids."""

from __future__ import annotations

import sys
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms
from builders import grid_scopes
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.inference.enumerate import Enumerate, score
from mssvm.inference.propagation.cuts import CutModel, minimum_cut
from mssvm.inference.propagation.propagate import Propagate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from attack_gaps import discs

# What SSVM(Grid()) had learned from eight noisy discs when its oracle missed maxima.
STRONG = [-2.79, 2.79, 8.41, -8.41, 8.41, -8.41, -2.42, -3.51, -4.42, 10.35, -5.4, -7.64, -1.11, 14.15]


def drawn(seed: int, n_states: int, associative: float) -> tuple[Batch, Potentials, CutModel]:
    """A random graph, some tables of it shared, on scales that differ."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 8))
    edges = [(a, b) for a in range(n) for b in range(n) if a != b and rng.random() < 0.4] or [(0, 1)]
    batch = Batch.build([Topology((n_states,) * n, tuple(edges))], [rng.integers(3, size=len(edges))])
    tables = rng.normal(size=batch.n_table_entries).reshape(-1, n_states, n_states) + associative * np.eye(n_states)
    unary = rng.choice([0.0, 1.0, 10.0]) * rng.normal(size=batch.n_states)
    theta = Potentials(unary, rng.choice([0.1, 1.0, 100.0]) * tables.ravel())
    model = CutModel.of(batch, theta, np.ones(batch.n_states, dtype=bool), 0)
    assert model is not None
    return batch, theta, model


def every(model: CutModel, n_states: int) -> Floats:
    n = len(model.unary_ptr) - 1
    return np.array([model.score(np.array(z)) for z in product(range(n_states), repeat=n)])


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_between_two_states_is_the_maximum(seed: int) -> None:
    batch, theta, model = drawn(seed, 2, associative=4.0)
    best = float(every(model, 2).max())
    y, upper = model.mix(*model.extremes())
    assert model.score(y) == pytest.approx(score(batch, theta, y)[0], rel=1e-12, abs=1e-12)
    assert model.score(y) == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert upper == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_mixtures_never_lose_and_their_bound_holds(seed: int) -> None:
    _, _, model = drawn(seed, 3, associative=0.0)
    rng = np.random.default_rng(seed)
    n = len(model.unary_ptr) - 1
    y, p = rng.integers(3, size=(2, n))
    mixed, upper = model.mix(y, p)
    best = max(model.score(np.where(take, p, y)) for take in product([False, True], repeat=n))
    slack = 1e-9 * (1.0 + abs(best))
    assert model.score(y) - slack <= model.score(mixed) <= best + slack
    assert upper >= best - slack
    assert model.score(model.expand(y, 10)) >= model.score(y)


def cost(inside: Bools, source: Floats, sink: Floats, i: Ints, j: Ints, w: Floats) -> float:
    """The capacity of a cut."""
    return float(source[~inside].sum() + sink[inside].sum() + w[inside[i] & ~inside[j]].sum())


def test_the_flow_bounds_every_cut_and_meets_the_one_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = int(rng.integers(1, 7))
        source, sink = rng.random((2, n)) * (rng.random((2, n)) < 0.7) * 10.0 ** rng.integers(-6, 7)
        i, j = rng.integers(n, size=(2, 8))
        w = rng.random(8)
        side, flow = minimum_cut(source, sink, i, j, w)
        lowest = min(cost(np.array(inside), source, sink, i, j, w) for inside in product([False, True], repeat=n))
        assert flow == pytest.approx(lowest, rel=1e-9, abs=1e-9)
        assert cost(side, source, sink, i, j, w) == pytest.approx(lowest, rel=1e-9, abs=1e-9)


def test_masks_and_forbidden_pairs() -> None:
    batch = Batch.build([Topology((3,) * 9, tuple(grid_scopes(3, 3)))])
    rng = np.random.default_rng(1)
    theta = Potentials(rng.normal(size=27), 2.0 * np.tile(np.eye(3).ravel(), batch.n_factors))
    allowed = np.ones(27, dtype=bool)
    allowed[rng.integers(3, size=9) + 3 * np.arange(9)] = False
    query = Query(np.ones(9, dtype=bool), allowed)
    exact = Enumerate()(batch, theta, query, 0.0, 0.0)
    found = Propagate("fast")(batch, theta, query, 0.0, 0.0)
    assert np.all(allowed[3 * np.arange(9) + found.decode(batch)])
    assert found.value <= exact.value + 1e-9 and not found.status.upper < exact.value - 1e-9
    theta.tables[4] = -np.inf
    assert CutModel.of(batch, theta, allowed, 0) is None
    forbidden = Propagate("fast")(batch, theta, query, 0.0, 0.0)
    assert np.isfinite(forbidden.value[0])


@pytest.mark.parametrize("effort", ["fast", "normal", "careful"])
def test_associative_grids_of_two_states_are_solved_and_said_to_be(effort: str) -> None:
    batch = Batch.build([Topology((2,) * 16, tuple(grid_scopes(4, 4)))] * 3)
    rng = np.random.default_rng(2)
    theta = Potentials(2.0 * rng.normal(size=batch.n_states), np.tile([1.5, 0.0, 0.0, 1.0], batch.n_factors))
    query = Query.all_outputs(batch)
    exact = Enumerate()(batch, theta, query, 0.0, 0.0)
    found = Propagate(effort)(batch, theta, query, 0.0, 0.0)
    np.testing.assert_allclose(found.value, exact.value, rtol=1e-12)
    np.testing.assert_array_equal(found.decode(batch), exact.decode(batch))
    assert found.status.exact.all() and found.status.converged.all()
    np.testing.assert_array_equal(found.status.upper, found.value)


def scores(model: ms.SSVM, X: list[Floats], labels: list[Ints]) -> Floats:
    """theta(y) of every instance at the weights of a model."""
    encoded = model.encoder_.encode(X)
    theta = model.encoder_.model.bind(encoded.inputs, engine_of()).forward(model.coef_)
    return score(encoded.batch, theta, np.concatenate([np.ravel(y) for y in labels]))


def test_strong_couplings_are_decoded_above_the_truth() -> None:
    X, y = discs(np.random.default_rng(2), 6, 32, 2, 1.2)
    with pytest.warns(ConvergenceWarning):
        model = ms.SSVM(ms.Grid(), max_iter=1, random_state=0).fit(X[:1], y[:1])
    model.coef_ = np.array(STRONG)
    found = model.predict(X, decode="map")
    assert np.all(scores(model, X, found) >= scores(model, X, y) - 1e-6)
    assert np.mean([np.mean(a == b) for a, b in zip(found, y, strict=True)]) > 0.9


def test_the_truth_never_scores_above_the_decoded_labelling() -> None:
    """50 models, fitted by an oracle that misses maxima, so that their weights are hard to decode."""
    rough = Propagate("fast", starts=("marginals", "regions"))
    missed = []
    for k in range(50):
        rng = np.random.default_rng([7, k])
        n_classes = 3 if k % 4 == 3 else 2
        X, y = discs(rng, 3, int(rng.integers(12, 21)), n_classes, float(rng.uniform(0.8, 1.5)))
        solver = ms.solvers.BCFW(max_iter=15, check_every=15)
        model = ms.SSVM(ms.Grid(), solver=solver, inference=rough, random_state=0, classes=range(n_classes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        model.set_params(inference=Propagate("fast"))
        decoded = scores(model, X, model.predict(X, decode="map"))
        truth = scores(model, X, y)
        if np.any(truth > decoded + 1e-9 * np.abs(decoded)):
            missed.append(k)
    assert not missed

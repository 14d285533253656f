"""Mean field against brute force, and the difference of bounds that is a bound of the objective itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from builders import node_term, table_term
from loopy import grid, random_graphs, random_mask
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.inference import Decompose, Enumerate, Exact
from mssvm.inference.decomposition import product
from mssvm.inference.decomposition.mean_field import MeanField, coloured
from mssvm.inference.decomposition.product import product_bound
from mssvm.losses import Hamming, Zero
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified
from mssvm.optim import Checkpoint

EVERY = [(eps_y, eps_h) for eps_y in (0.0, 0.4, 1.0) for eps_h in (0.0, 0.4, 1.0)]
# Outputs at eps_y > 0 over hidden maxima are not taken apart into chains.
BOUNDED = [(eps_y, eps_h) for eps_y, eps_h in EVERY if not eps_h == 0.0 < eps_y]
FEATURES = 3


@pytest.mark.parametrize(("eps_y", "eps_h"), EVERY)
@pytest.mark.parametrize("seed", range(20))
def test_mean_field_is_below_the_power_sum_and_never_falls(seed: int, eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(seed)
    graphs, square = random_graphs(rng, 6)
    tied = [np.zeros(g.n_factors, dtype=np.int64) for g in graphs]
    batch = Batch.build(graphs, tied if square and rng.random() < 0.5 else None)
    strength = float(rng.choice([0.3, 1.0, 5.0, 300.0]))
    theta = Potentials(strength * rng.normal(size=batch.n_states), strength * rng.normal(size=batch.n_table_entries))
    if seed % 4 == 0:
        theta.tables[rng.random(batch.n_table_entries) < 0.1] = -np.inf
    query = Query(rng.random(batch.n_vars) < 0.5, random_mask(rng, batch))
    exact = Enumerate()(batch, theta, query, eps_y, eps_h).value
    rounding = 1e-9 * (1.0 + np.abs(np.where(np.isfinite(exact), exact, 0.0)))
    ascent = MeanField(batch, query)
    q = ascent.start(Marginals.zeros(batch))
    last = np.full(len(batch), -np.inf)
    for _ in range(8):
        value, mu = ascent.bound(theta, eps_y, eps_h, q)
        assert np.all(value <= exact + rounding)
        assert np.all(value >= last - rounding)
        same = product_bound(batch, theta, query, eps_y, eps_h, mu, np.arange(len(batch)))
        np.testing.assert_allclose(value, same, rtol=1e-10, atol=1e-9)
        assert np.all(q[~query.allowed] == 0.0)
        last = value
        ascent.sweep(theta, eps_y, eps_h, q)


@pytest.mark.parametrize("instances", [[0, 1, 2, 3, 4, 5], [5, 1, 2]])
def test_the_bound_by_a_product_is_the_same_in_pieces(instances: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    batch = Batch.build(random_graphs(rng, 6)[0])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query(rng.random(batch.n_vars) < 0.5, random_mask(rng, batch))
    mu = Enumerate()(batch, theta, query, 0.4, 1.0).mu
    whole = product_bound(batch, theta, query, 0.4, 1.0, mu, np.array(instances))
    monkeypatch.setattr(product, "STATES_AT_ONCE", 3)
    monkeypatch.setattr(product, "FACTORS_AT_ONCE", 2)
    np.testing.assert_allclose(product_bound(batch, theta, query, 0.4, 1.0, mu, np.array(instances)), whole, rtol=1e-12)


def test_mean_field_is_exact_without_factors() -> None:
    rng = np.random.default_rng(0)
    batch = Batch.build([grid(2, 2, (3,) * 4, eight=False)])
    theta = Potentials(rng.normal(size=batch.n_states), np.zeros(batch.n_table_entries))
    query = Query(rng.random(batch.n_vars) < 0.5, np.ones(batch.n_states, dtype=bool))
    ascent = MeanField(batch, query)
    q = np.full(batch.n_states, 1.0 / 3.0)
    ascent.sweep(theta, 0.3, 1.0, q)
    exact = Enumerate()(batch, theta, query, 0.3, 1.0)
    value, mu = ascent.bound(theta, 0.3, 1.0, q)
    np.testing.assert_allclose(value, exact.value)
    np.testing.assert_allclose(mu.unary, exact.mu.unary)


@pytest.mark.parametrize("seed", range(10))
def test_neighbours_have_different_colours(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    ends = rng.integers(0, n, (2, 3 * n))
    first, second = ends[:, ends[0] != ends[1]]
    members = rng.random(n) < 0.8
    both = members[first] & members[second]
    colour = coloured(n, members, first[both], second[both])
    assert np.all((colour >= 0) == members)
    assert np.all(colour[first[both]] != colour[second[both]])
    assert set(colour[members].tolist()) == set(range(int(colour.max()) + 1))


def partly_labelled(rng: np.random.Generator, eps: tuple[float, float], loss: Any, n_states: int) -> TrainingProblem:
    """Grids of 3x3 with labels, candidate sets and hidden sites; one is labelled in full, and U- of another is a
    forest."""
    batch = Batch.build([grid(3, 3, (n_states,) * 9, eight=bool(k % 2)) for k in range(5)])
    variable = batch.state_var
    truth = np.zeros(batch.n_states, dtype=bool)
    truth[batch.unary_ptr[:-1] + rng.integers(0, batch.cards)] = True
    known = rng.random(batch.n_vars) < rng.choice([0.3, 0.6])
    known[batch.owner == 0] = True
    known[batch.owner == 1] = np.arange(9) % 2 == 0
    hidden = ~known & (rng.random(batch.n_vars) < 0.6)
    truth |= ~known[variable] & (rng.random(batch.n_states) < 0.8)
    truth |= hidden[variable]
    terms = (
        node_term(batch, rng.normal(size=(batch.n_vars, FEATURES))),
        table_term(batch, None, FEATURES * n_states),
    )
    inputs = LinearInputs(batch, terms)
    weight = rng.uniform(0.5, 2.0, len(batch))
    sample = Sample.of(inputs, Query.of(batch, ~hidden), truth, weight)
    model = LinearModel(FEATURES * n_states + n_states**2)
    inference = Decompose(warm_sweeps=int(rng.choice([1, 30])))
    return TrainingProblem(Unified(*eps, loss), model, sample, inference, 0.7, engine_of("native"))


@pytest.mark.parametrize(("eps_y", "eps_h"), BOUNDED)
@pytest.mark.parametrize("n_states", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_certified_loss_is_above_the_true_one(seed: int, n_states: int, eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(seed)
    problem = partly_labelled(rng, (eps_y, eps_h), Hamming() if seed % 2 else Zero(), n_states)
    certified = problem.as_certified()
    exactly = replace(problem, inference=Exact())
    w = rng.normal(size=problem.n_weights)
    for _ in range(4):
        true = exactly.difference(w)
        found = certified.difference(w)
        assert np.all(found.values >= true.values - 1e-9 * (1.0 + np.abs(true.values)))
        assert np.all(found.values >= -1e-9)
        w = w + 0.5 * rng.normal(size=len(w))


@pytest.mark.parametrize(("eps_y", "eps_h"), BOUNDED)
def test_the_certified_loss_only_falls_at_the_same_weights(eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(7)
    problem = partly_labelled(rng, (max(eps_y, 0.1), max(eps_h, 0.1)), Hamming(), 3)
    certified = replace(problem, inference=Decompose(warm_sweeps=1)).as_certified()
    w = 3.0 * rng.normal(size=certified.n_weights)
    values = np.array([certified.difference(w).values for _ in range(12)])
    assert np.all(np.diff(values, axis=0) <= 1e-9)
    assert values[-1].sum() < values[0].sum()


@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.4, 1.0), (0.4, 0.4), (1.0, 0.4)])
@pytest.mark.parametrize("n_states", [2, 3])
def test_the_gradient_is_that_of_the_certified_loss(n_states: int, eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(11)
    problem = partly_labelled(rng, (eps_y, eps_h), Hamming(), n_states)
    certified = replace(problem, inference=Decompose(warm_sweeps=10)).as_certified()
    w = 0.5 * rng.normal(size=certified.n_weights)
    for _ in range(60):
        at_rest = certified.difference(w)
    step = 1e-4
    for _ in range(4):
        direction = rng.normal(size=len(w))
        direction /= np.linalg.norm(direction)
        totals = []
        for sign in (1.0, -1.0):
            for _ in range(40):
                moved = certified.difference(w + sign * step * direction)
            totals.append(moved.total)
        slope = (totals[0] - totals[1]) / (2.0 * step)
        assert at_rest.gradient @ direction == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_known_labels_need_no_lower_bound() -> None:
    rng = np.random.default_rng(3)
    problem = partly_labelled(rng, (1.0, 1.0), Zero(), 2)
    known = replace(problem, sample=problem.sample.select([0]))
    w = rng.normal(size=known.n_weights)
    again = replace(known, inference=replace(problem.inference))  # type: ignore[type-var]
    assert known.convex
    assert known.as_certified().difference(w).total == again.difference(w).total


def scribbled(side: int = 12, n: int = 4, seed: int = 5) -> tuple[list[Any], list[Any]]:
    """Noisy halves of which a third of the pixels is labelled."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        labels = np.zeros((side, side), dtype=np.int64)
        labels[:, int(rng.integers(side // 3, side - side // 3)) :] = 1
        X.append(np.stack([labels + rng.normal(size=labels.shape), np.ones(labels.shape)], axis=-1))
        y.append(np.where(rng.random(labels.shape) < 0.33, labels, -1))
    return X, y


def model(member: str, certified: Any) -> Any:
    inference = Decompose(certified=certified)
    return getattr(ms, member)(ms.Grid(), missing_label=-1, random_state=0, inference=inference)


@pytest.mark.parametrize("member", ["HCRF", "MSSVM", "LSSVM", "LossAugmentedCRF"])
def test_the_stage_lowers_a_bound_of_the_true_objective(member: str) -> None:
    X, y = scribbled(side=3, n=12)
    for image in y:
        image[1, 1] = -1
    plain = model(member, "report").fit(X, y)
    staged = model(member, True).fit(X, y)
    for fitted in (plain, staged):
        # 3x3 pixels are few enough for exact inference: the true objective at the weights.
        exact = getattr(ms, member)(
            ms.Grid(), missing_label=-1, inference="exact", init=fitted.coef_, solver=ms.solvers.LBFGS(max_iter=1)
        )
        true = exact.fit(X, y).history_.objective[0]
        assert fitted.training_["objective_bound"] >= true - 1e-9
    assert staged.objective_ == staged.training_["objective_bound"]
    assert staged.objective_ <= plain.training_["objective_bound"] * (1.0 + 1e-3)


@pytest.mark.parametrize("member", ["HCRF", "MSSVM"])
def test_no_step_of_the_stage_raises_the_objective(member: str) -> None:
    X, y = scribbled()
    first = len(model(member, False).fit(X, y).history_)
    staged = model(member, True).fit(X, y)
    history = staged.history_
    assert np.array_equal(history.iteration, np.arange(len(history)))
    rows = history[first:]
    began, *_ = rows.objective
    assert len(rows) > 3
    assert staged.objective_ <= began
    at = (rows.eps_y == rows.eps_y[1]) & (rows.eps_h == rows.eps_h[1])
    assert np.all(np.diff(rows.objective[at][1:]) <= 1e-9 * began)
    assert np.all(np.diff(history.seconds) >= 0.0)


def test_the_report_is_one_sentence_where_it_is_a_theorem() -> None:
    X, y = scribbled()
    bounded = model("HCRF", "report").fit(X, y)
    bound = bounded.training_["objective_bound"]
    assert f"at these weights is at most {bound:.6g}." in bounded.diagnose()
    assert bound > bounded.objective_
    exact = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0, inference="exact").fit(
        [x[:4, :4] for x in X], [labels[:4, :4] for labels in y]
    )
    assert np.isnan(exact.training_["objective_bound"])
    assert "at most" not in exact.diagnose()
    messages = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0, inference="propagate", max_iter=3).fit(X, y)
    assert np.isnan(messages.training_["objective_bound"])
    silent = model("HCRF", False).fit(X, y)
    assert np.isnan(silent.training_["objective_bound"])
    assert "at most" not in silent.diagnose()
    np.testing.assert_array_equal(silent.coef_, bounded.coef_)


def test_labels_that_are_all_known_make_the_objective_a_bound() -> None:
    X, y = scribbled(side=3, n=12)
    y = [np.where(labels < 0, 0, labels) for labels in y]
    staged = ms.CRF(ms.Grid(), random_state=0, inference=Decompose(certified=True)).fit(X, y)
    plain = ms.CRF(ms.Grid(), random_state=0, inference=Decompose(certified="report")).fit(X, y)
    np.testing.assert_array_equal(staged.coef_, plain.coef_)
    assert staged.training_["objective_bound"] <= staged.objective_ * (1.0 + 1e-9)


def test_another_choice_is_refused() -> None:
    with pytest.raises(InputError, match="certified must be True, False or \"report\", not 'yes'"):
        Decompose(certified="yes")  # type: ignore[arg-type]


def test_the_stage_is_for_the_unified_objective() -> None:
    X, y = scribbled()
    with pytest.raises(UnsupportedError, match="unified objective"):
        ms.M3E(ms.Grid(), missing_label=-1, inference=Decompose(certified=True)).fit(X, y)
    with pytest.raises(UnsupportedError, match="loss over sites"):
        ms.MSSVM(ms.Grid(), missing_label=-1, inference=Decompose(certified=True), loss="zero-one").fit(X, y)


@pytest.mark.parametrize("member", ["HCRF", "MSSVM"])
def test_a_stage_that_was_interrupted_is_resumed_exactly(member: str, tmp_path: Path) -> None:
    X, y = scribbled()
    first = len(model(member, False).fit(X, y).history_)
    whole = model(member, True).fit(X, y, checkpoint=Checkpoint(tmp_path / "whole", every_seconds=0.0))
    count = [0]

    def stop(row: Any, w: Any) -> bool:
        count[0] += 1
        if count[0] == first + 4:
            raise KeyboardInterrupt
        return False

    file = Checkpoint(tmp_path / "cut", every_seconds=0.0)
    cut = model(member, True).fit(X, y, checkpoint=file, callback=stop)
    assert len(cut.history_) < len(whole.history_)
    resumed = model(member, True).fit(X, y, checkpoint=file)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert resumed.objective_ == whole.objective_


@pytest.mark.parametrize("certified", [True, "report"])
def test_a_saved_model_keeps_the_choice(certified: Any, tmp_path: Path) -> None:
    X, y = scribbled(side=8)
    staged = model("HCRF", certified).fit(X, y)
    staged.save(tmp_path / "model.safetensors")
    again = ms.load(tmp_path / "model.safetensors")
    assert again.inference == Decompose(certified=certified)
    assert again.diagnose() == staged.diagnose()
    for one, two in zip(again.predict(X), staged.predict(X), strict=True):
        np.testing.assert_array_equal(one, two)

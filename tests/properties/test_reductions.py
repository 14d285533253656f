"""L4 and L5: the rows of the family against implementations that share no code with them; limits and scaling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

from builders import AsymmetricLoss, DenseInputs, DenseModel, ScaledLoss, labels_as_truth
from mssvm.core.arrays import Floats
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified, crf, hcrf, loss_augmented_likelihood, lssvm, mssvm, softmax_margin, ssvm
from properties.strategies import (
    EXACT,
    N_WEIGHTS,
    Draw,
    delta_of,
    draws,
    joint_features,
    label_of,
    losses,
    temperature,
)


def evaluate(draw: Draw, objective: Unified) -> Evaluation:
    return TrainingProblem(objective, DenseModel(N_WEIGHTS), draw.sample, EXACT).difference(draw.w)


def multiclass(seed: int, n: int = 12, k: int = 4, d: int = 3) -> tuple[Floats, np.ndarray, Sample]:
    """n points in d dimensions with k classes, one weight vector a class: weights (k, d) flattened."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = rng.integers(0, k, n)
    batch = Batch.build([Topology((k,), ())] * n)
    unary = np.zeros((n, k, k, d))
    unary[:, np.arange(k), np.arange(k), :] = x[:, None, :]
    inputs = DenseInputs(batch, unary.reshape(n * k, k * d), np.zeros((0, k * d)))
    query = Query.all_outputs(batch)
    return x, y, Sample.of(inputs, query, labels_as_truth(batch, query.output, y))


@pytest.mark.parametrize("seed", range(5))
def test_ssvm_is_the_multiclass_hinge(seed: int) -> None:
    x, y, sample = multiclass(seed)
    w = np.random.default_rng(seed).normal(size=(4, 3))
    part = TrainingProblem(ssvm(), DenseModel(12), sample, EXACT).difference(w.ravel())
    scores = x @ w.T
    margins = scores + 1.0 - scores[np.arange(len(y)), y][:, None]
    margins[np.arange(len(y)), y] = 0.0
    np.testing.assert_allclose(part.values, margins.max(1), rtol=1e-12, atol=1e-12)
    gradient = np.zeros((4, 3))
    for i, rival in enumerate(margins.argmax(1)):
        gradient[rival] += x[i]
        gradient[y[i]] -= x[i]
    np.testing.assert_allclose(part.gradient, gradient.ravel(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_crf_is_multinomial_logistic_regression(seed: int) -> None:
    x, y, sample = multiclass(seed)
    w = np.random.default_rng(seed).normal(size=(4, 3))
    part = TrainingProblem(crf(), DenseModel(12), sample, EXACT).difference(w.ravel())
    scores = x @ w.T
    np.testing.assert_allclose(part.values, logsumexp(scores, axis=1) - scores[np.arange(len(y)), y], rtol=1e-12)
    residual = softmax(scores, axis=1) - np.eye(4)[y]
    np.testing.assert_allclose(part.gradient, (residual.T @ x).ravel(), rtol=1e-10, atol=1e-12)


def over(a: Floats, soft: bool) -> tuple[float, Floats]:
    """max or log-sum-exp of a vector, with its gradient."""
    return (float(logsumexp(a)), softmax(a)) if soft else (float(a.max()), np.eye(len(a))[int(a.argmax())])


def listed(draw: Draw, loss: Loss, soft_y: bool, soft_h: bool) -> tuple[Floats, Floats]:
    """U and its gradient written from the definition: scores of all (y, h) in a table, row by row."""
    values = []
    gradient = np.zeros(N_WEIGHTS)
    for b in range(len(draw.sample)):
        ys, phi = joint_features(draw.sample, b)
        scores = phi @ draw.w
        rows = [over(row, soft_h) for row in scores]
        inner = np.array([value for value, _ in rows])
        expected = np.array([p @ phi[k] for k, (_, p) in enumerate(rows)])
        cost = np.array([delta_of(draw.sample, loss, b, y) for y in ys])
        top, p = over(inner + cost, soft_y)
        truth = ys.index(label_of(draw.sample, b))
        values.append(top - inner[truth])
        gradient += p @ expected - expected[truth]
    return np.array(values), gradient


ROWS = {
    "lssvm": (lssvm(), Hamming(), False, False),
    "mssvm": (mssvm(), Hamming(), False, True),
    "hcrf": (hcrf(), Zero(), True, True),
    "loss-augmented likelihood": (loss_augmented_likelihood(), Hamming(), True, True),
    "eps-extension at one": (Unified(1.0, 1.0), Hamming(), True, True),
    "lssvm, asymmetric loss": (lssvm(AsymmetricLoss()), AsymmetricLoss(), False, False),
    "mssvm, asymmetric loss": (mssvm(AsymmetricLoss()), AsymmetricLoss(), False, True),
    "soft outputs, hard hidden": (Unified(1.0, 0.0, Hamming()), Hamming(), True, False),
}


@pytest.mark.parametrize("row", ROWS)
@settings(max_examples=25)
@given(draw=draws(hidden=True))
def test_members_with_hidden_variables(row: str, draw: Draw) -> None:
    assume(np.any(draw.w))  # at w = 0 maximisers tie and gradients may differ
    objective, loss = ROWS[row][:2]
    soft_y, soft_h = ROWS[row][2:]
    values, gradient = listed(draw, loss, soft_y, soft_h)
    part = evaluate(draw, objective)
    np.testing.assert_allclose(part.values, values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(part.gradient, gradient, rtol=1e-8, atol=1e-8)
    assert part.total == pytest.approx(values.sum(), abs=1e-9)


@settings(max_examples=25)
@given(draws(hidden=False), st.sampled_from([0.0, 0.3, 1.0, 7.0]))
def test_members_without_hidden_variables(draw: Draw, eps_h: float) -> None:
    assume(np.any(draw.w))
    for objective, loss, soft in (
        (ssvm(), Hamming(), False),
        (crf(), Zero(), True),
        (softmax_margin(), Hamming(), True),
    ):
        values, gradient = listed(draw, loss, soft, True)
        # eps_h has nothing to act on.
        for member in (objective, objective.at(objective.eps_y, eps_h)):
            part = evaluate(draw, member)
            np.testing.assert_allclose(part.values, values, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(part.gradient, gradient, rtol=1e-8, atol=1e-8)


@settings(max_examples=40)
@given(draws(), losses, st.sampled_from(["y", "h", "both"]))
def test_zero_is_the_limit_of_small_temperatures(draw: Draw, loss: Loss, slot: str) -> None:
    def pair(eps: float) -> tuple[float, float]:
        return (1.0 if slot == "h" else eps, 1.0 if slot == "y" else eps)

    base = draw.problem(*pair(0.0), loss)
    limit = base.difference(draw.w)
    sizes = np.log([max(2, np.prod(draw.sample.batch.topology(b).cards)) for b in range(len(draw.sample))])
    for eps in (1e-1, 1e-3, 1e-6, 1e-9):
        near = base.at(*pair(eps)).difference(draw.w)
        assert np.all(np.abs(near.values - limit.values) <= eps * sizes + 1e-9)


def test_gradients_converge_where_the_maximiser_is_unique() -> None:
    _, _, sample = multiclass(3)
    w = np.random.default_rng(3).normal(size=12)
    problem = TrainingProblem(ssvm(), DenseModel(12), sample, EXACT)
    limit = problem.difference(w).gradient
    far = np.abs(problem.at(0.5, 1.0).difference(w).gradient - limit).max()
    near = np.abs(problem.at(0.0001, 1.0).difference(w).gradient - limit).max()
    assert near < 1e-9 < 1e-2 < far


@settings(max_examples=60)
@given(draws(), temperature, temperature, losses, st.sampled_from([0.25, 2.0, 17.0]))
def test_scaling(draw: Draw, eps_y: float, eps_h: float, loss: Loss, s: float) -> None:
    """U(s w; s eps, s Delta) = s U(w; eps, Delta), and its gradient in the weights does not change."""
    here = draw.problem(eps_y, eps_h, loss).difference(draw.w)
    scaled = draw.problem(s * eps_y, s * eps_h, ScaledLoss(loss, s)).difference(s * draw.w)
    np.testing.assert_allclose(scaled.values, s * here.values, rtol=1e-9, atol=1e-9)
    if np.any(draw.w) or (eps_y > 0 and eps_h > 0):
        np.testing.assert_allclose(scaled.gradient, here.gradient, rtol=1e-8, atol=1e-8)

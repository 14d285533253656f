"""ModLat against brute force: its bound, its gradients, and the latent structured SVM as its special case."""

from __future__ import annotations

import numpy as np
import pytest

from builders import DenseModel, features
from mssvm.core.errors import InputError
from mssvm.engines import engine_of
from mssvm.inference.exact import Exact
from mssvm.objectives.modlat import ModLatProblems
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import lssvm
from mssvm.optim.alternate import alternate
from mssvm.optim.lbfgs import LBFGS
from mssvm.optim.subgradient import Subgradient
from objectives.test_m3e import N_WEIGHTS, sample_of


def modlat(sample: Sample, **options: float) -> ModLatProblems:
    return ModLatProblems(DenseModel(N_WEIGHTS), sample, Exact(), engine_of(), **options)


def assignments(sample: Sample, b: int) -> np.ndarray:
    return np.stack([a.ravel() for a in np.indices(sample.batch.topology(b).cards)], axis=1)


def brute(sample: Sample, w: np.ndarray, theta: np.ndarray, b: int, beta: float, weight: float) -> tuple[float, float]:
    """The dissimilarity from its definition, and the bound on its first term, by listing all assignments."""
    span = slice(sample.batch.var_ptr[b], sample.batch.var_ptr[b + 1])
    output = sample.query.output[span]
    ptr = sample.batch.unary_ptr[span.start : span.stop + 1]
    y = np.array([int(sample.truth[a:c].argmax()) for a, c in zip(ptr[:-1], ptr[1:], strict=True)])
    z = assignments(sample, b)
    phi = features(sample, b, z)
    right = (z[:, output] == y[output]).all(1)
    p = np.exp(phi[right] @ theta - np.logaddexp.reduce(phi[right] @ theta))
    h = z[right][:, ~output]

    def loss(first: np.ndarray, second: np.ndarray) -> float:
        return float((first[output] != second[output]).sum() + weight * (first[~output] != second[~output]).sum())

    apart = weight * (h[:, None, :] != h[None, :, :]).sum(2)
    scores = phi @ w
    predicted = z[int(scores.argmax())]
    cross = sum(q * loss(a, predicted) for q, a in zip(p, z[right], strict=True))
    expected = np.array([sum(q * loss(a, other) for q, a in zip(p, z[right], strict=True)) for other in z])
    return cross - beta * float(p @ apart @ p), float((scores + expected).max() - scores[right].max())


@pytest.mark.parametrize(("beta", "weight"), [(0.1, 1.0), (0.0, 0.5), (1.0, 2.0)])
def test_dissimilarity_and_its_bound(beta, weight):
    for seed in range(5):
        sample = sample_of(seed)
        rng = np.random.default_rng(seed)
        w, theta = rng.normal(size=(2, N_WEIGHTS))
        blocks = modlat(sample, beta=beta, latent_weight=weight)
        ours = blocks.dissimilarity(w, theta)
        bound = blocks.prediction_problem(theta).difference(w).values
        for b in range(len(sample)):
            truth, limit = brute(sample, w, theta, b, beta, weight)
            np.testing.assert_allclose(ours[b], truth, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(bound[b], limit, rtol=1e-9, atol=1e-9)
            first_term = modlat(sample, beta=0.0, latent_weight=weight).dissimilarity(w, theta)[b]
            assert first_term <= limit + 1e-9


def test_conditional_problem_is_the_dissimilarity_up_to_the_outputs_and_its_gradient_is_right():
    sample = sample_of(1)
    rng = np.random.default_rng(0)
    w, theta = rng.normal(size=(2, N_WEIGHTS))
    blocks = modlat(sample, beta=0.3, latent_weight=1.5)
    problem = blocks.conditional_problem(w)
    part = problem.difference(theta)
    other = rng.normal(size=N_WEIGHTS)
    shift = blocks.dissimilarity(w, theta) - part.values
    np.testing.assert_allclose(blocks.dissimilarity(w, other) - problem.difference(other).values, shift, atol=1e-9)
    numeric = np.zeros(N_WEIGHTS)
    for j in range(N_WEIGHTS):
        step = 1e-5 * np.eye(N_WEIGHTS)[j]
        numeric[j] = (problem.difference(theta + step).total - problem.difference(theta - step).total) / 2e-5
    np.testing.assert_allclose(part.gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


def test_without_a_latent_loss_it_is_the_latent_svm():
    sample = sample_of(2)
    rng = np.random.default_rng(1)
    w0, theta0 = 0.1 * rng.normal(size=(2, N_WEIGHTS))
    solver = Subgradient.literal(0.01, 60)
    blocks = modlat(sample, beta=0.0, latent_weight=0.0)
    found, _ = alternate(blocks, solver.minimize, w0, theta0, max_iter=1)
    plain = solver.minimize(TrainingProblem(lssvm(), DenseModel(N_WEIGHTS), sample, Exact()), w0)
    np.testing.assert_array_equal(found.w, plain.w)


def test_turns_end_and_return_the_lowest_bound():
    sample = sample_of(3)
    rng = np.random.default_rng(2)
    w0, theta0 = 0.1 * rng.normal(size=(2, N_WEIGHTS))
    blocks = modlat(sample)
    found, theta = alternate(blocks, LBFGS().minimize, w0, theta0, max_iter=4)
    start = blocks.prediction_problem(theta0)
    assert found.objective < 0.5 * w0 @ w0 + start.difference(w0).total
    again = blocks.prediction_problem(theta).difference(found.w).total + 0.5 * found.w @ found.w
    np.testing.assert_allclose(found.objective, again, rtol=1e-9)


def test_errors():
    with pytest.raises(InputError, match="beta must be a finite number >= 0 and <= 1"):
        modlat(sample_of(0), beta=2.0)

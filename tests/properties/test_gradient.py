"""L2 and L3: the gradient of the training problem, convexity of its two parts, and their dependence on temperature."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builders import DenseModel, random_sample
from mssvm.core.arrays import Floats
from mssvm.core.topology import Topology
from mssvm.losses import Hamming, Loss
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import lssvm
from properties.strategies import EXACT, N_WEIGHTS, Draw, assignments, draws, losses, positive_temperature, temperature

PARTS = ("plus", "minus", "difference")
STEP = 1e-5


def differences(problem: TrainingProblem, part: str, w: Floats) -> tuple[Floats, Floats]:
    """Forward and backward difference quotients along every axis."""
    evaluate = getattr(problem, part)
    here = evaluate(w).total
    axes = STEP * np.eye(len(w))
    forward = np.array([(evaluate(w + e).total - here) / STEP for e in axes])
    backward = np.array([(here - evaluate(w - e).total) / STEP for e in axes])
    return forward, backward


@settings(max_examples=60)
@given(draws(weighted=True), positive_temperature, positive_temperature, losses, st.sampled_from(PARTS))
def test_gradient_equals_central_differences(draw: Draw, eps_y: float, eps_h: float, loss: Loss, part: str) -> None:
    problem = draw.problem(eps_y, eps_h, loss)
    forward, backward = differences(problem, part, draw.w)
    gradient = getattr(problem, part)(draw.w).gradient
    np.testing.assert_allclose((forward + backward) / 2, gradient, rtol=1e-6, atol=1e-6 * (1 + np.abs(gradient).max()))


@settings(max_examples=60)
@given(draws(), st.sampled_from([(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]), losses, st.sampled_from(PARTS))
def test_gradient_at_zero_temperature_off_the_kinks(
    draw: Draw, pair: tuple[float, float], loss: Loss, part: str
) -> None:
    problem = draw.problem(*pair, loss)
    forward, backward = differences(problem, part, draw.w)
    assume(np.abs(forward - backward).max() < 1e-3)
    gradient = getattr(problem, part)(draw.w).gradient
    np.testing.assert_allclose((forward + backward) / 2, gradient, rtol=1e-6, atol=1e-6 * (1 + np.abs(gradient).max()))


@settings(max_examples=100)
@given(draws(weighted=True), temperature, temperature, losses, st.sampled_from(["plus", "minus"]))
def test_subgradient_inequality(draw: Draw, eps_y: float, eps_h: float, loss: Loss, part: str) -> None:
    evaluate = getattr(draw.problem(eps_y, eps_h, loss), part)
    here = evaluate(draw.w)
    for size in (0.01, 0.3, 3.0):
        move = size * draw.rng.normal(size=N_WEIGHTS)
        there = evaluate(draw.w + move).total
        assert there >= here.total + here.gradient @ move - 1e-9 * (1 + abs(there))


@settings(max_examples=60)
@given(draws(), temperature, temperature, losses, st.sampled_from(["plus", "minus"]), st.floats(0.05, 0.95))
def test_convex_in_w(draw: Draw, eps_y: float, eps_h: float, loss: Loss, part: str, t: float) -> None:
    evaluate = getattr(draw.problem(eps_y, eps_h, loss), part)
    other = 2 * draw.rng.normal(size=N_WEIGHTS)
    between = evaluate(t * draw.w + (1 - t) * other).values
    chord = t * evaluate(draw.w).values + (1 - t) * evaluate(other).values
    assert np.all(between <= chord + 1e-9)


def test_the_difference_is_not_convex() -> None:
    """With hidden variables U+ - U- is a difference of convex functions and not itself convex: the tests above would
    otherwise pass for a wrong reason."""
    rng = np.random.default_rng(0)
    sample = random_sample(rng, [Topology((3, 3), ((0, 1),))] * 3, np.array([True, False] * 3), N_WEIGHTS)
    problem = TrainingProblem(lssvm(), DenseModel(N_WEIGHTS), sample, EXACT)
    points = 2 * rng.normal(size=(60, 2, N_WEIGHTS))
    gaps = [
        problem.difference((a + b) / 2).total - (problem.difference(a).total + problem.difference(b).total) / 2
        for a, b in points
    ]
    assert max(gaps) > 0.1


def log_sizes(draw: Draw) -> tuple[Floats, Floats]:
    """log |Y_i| and log |H_i| by counting assignments."""
    counts = [assignments(draw.sample, b)[:2] for b in range(len(draw.sample))]
    return np.log([len(ys) for ys, _ in counts]), np.log([len(hs) for _, hs in counts])


@settings(max_examples=60)
@given(draws(), temperature, losses)
def test_tempering_the_outputs(draw: Draw, eps_h: float, loss: Loss) -> None:
    base = draw.problem(0.0, eps_h, loss)
    log_y, _ = log_sizes(draw)
    np.testing.assert_allclose(base.log_outputs, log_y, atol=1e-12)
    zero = base.plus(draw.w).values
    last = zero
    for eps_y in (1e-3, 0.1, 0.5, 1.0, 4.0):
        values = base.at(eps_y, eps_h).plus(draw.w).values
        assert np.all(values >= last - 1e-9)
        assert np.all(values <= zero + eps_y * log_y + 1e-9)
        last = values
    # Single labels leave nothing to temper in U-.
    np.testing.assert_allclose(base.minus(draw.w).values, base.at(1.0, eps_h).minus(draw.w).values, atol=1e-12)


@settings(max_examples=60)
@given(draws(hidden=True), temperature)
def test_tempering_the_hidden(draw: Draw, eps_y: float) -> None:
    base = draw.problem(eps_y, 0.0, Hamming())
    _, log_h = log_sizes(draw)
    for part in ("plus", "minus"):
        zero = getattr(base, part)(draw.w).values
        last = zero
        for eps_h in (1e-3, 0.1, 0.5, 1.0, 4.0):
            values = getattr(base.at(eps_y, eps_h), part)(draw.w).values
            assert np.all(values >= last - 1e-9)
            assert np.all(values <= zero + eps_h * log_h + 1e-9)
            last = values

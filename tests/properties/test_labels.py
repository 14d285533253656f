"""What labels may be: none at all, single ones, candidate sets; and how the training problem adds instances up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import AsymmetricLoss, DenseModel, ScaledLoss, parts_of, random_sample
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Topology
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.base import Inference
from mssvm.losses import Hamming, Loss, WeightedHamming, Zero
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified, hcrf, loss_augmented_likelihood, lssvm, mssvm
from properties.strategies import BRUTE, EXACT, N_WEIGHTS, Draw, decoded_outputs, delta_of, draws, losses, temperature

TEMPERATURES = [(y, h) for y in (0.0, 0.5, 1.0) for h in (0.0, 0.5, 1.0)]
PATH = Topology((3, 2, 3), ((0, 1), (1, 2)))


def problem_of(sample: Sample, objective: Unified, inference: Inference = EXACT, **options: float) -> TrainingProblem:
    return TrainingProblem(objective, DenseModel(N_WEIGHTS), sample, inference, **options)  # type: ignore[arg-type]


def with_unlabelled(seed: int) -> Sample:
    """Four instances, of which the second and the last have no labelled site."""
    output = np.array([True, False, True, False, False, False, True, True, False, False, False, False])
    return random_sample(np.random.default_rng(seed), [PATH] * 4, output, N_WEIGHTS)


# ------------------------------------------------------------------------------------- nothing labelled


@pytest.mark.parametrize(
    "loss", [Hamming(), Hamming(normalize=True), Zero(), AsymmetricLoss(), ScaledLoss(Hamming(), 9.0)]
)
@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
def test_an_unlabelled_instance_contributes_nothing(eps_y: float, eps_h: float, loss: Loss) -> None:
    sample = with_unlabelled(1)
    w = np.random.default_rng(2).normal(size=N_WEIGHTS)
    objective = Unified(eps_y, eps_h, loss)
    labelled = problem_of(sample.select([0, 2]), objective)
    everyone = problem_of(sample, objective)
    nobody = problem_of(sample.select([1, 3]), objective)
    for part in ("plus", "minus", "difference"):
        full = getattr(everyone, part)(w)
        kept = getattr(labelled, part)(w)
        none = getattr(nobody, part)(w)
        assert full.total == pytest.approx(kept.total, rel=1e-12)
        np.testing.assert_allclose(full.gradient, kept.gradient, rtol=1e-12, atol=1e-12)
        assert none.total == 0.0 and none.gradient.shape == (N_WEIGHTS,) and not none.gradient.any()
    assert labelled.difference(w).total > 1e-3
    # The objective itself, before any instance is dropped: U+ and U- are the same call.
    theta = DenseModel(N_WEIGHTS).forward(w, sample.inputs)
    delta = loss.delta(sample.batch, sample.query.output, sample.truth, sample.site_weight)
    parts = parts_of(objective, EXACT, sample, delta)
    low = parts.minus(theta)
    (high, _) = parts.plus(theta)
    for b in (1, 3):
        states = sample.batch.state_span(b)
        assert high.value[b] == low.value[b]
        np.testing.assert_array_equal(high.mu.unary[states], low.mu.unary[states])


@pytest.mark.parametrize("member", [lssvm(), mssvm(), hcrf(), loss_augmented_likelihood()], ids=str)
def test_a_full_candidate_set_asks_for_nothing(member: Unified) -> None:
    """Every state admitted, no loss anywhere: value and gradient are 0."""
    sample = random_sample(np.random.default_rng(0), [PATH] * 2, np.array([True, False, True] * 2), N_WEIGHTS)
    free = Sample.of(sample.inputs, sample.query, np.ones(sample.batch.n_states, dtype=bool))
    part = problem_of(free, member).difference(np.random.default_rng(1).normal(size=N_WEIGHTS))
    assert abs(part.total) < 1e-12
    np.testing.assert_allclose(part.gradient, 0.0, atol=1e-12)


# ------------------------------------------------------------------------------------- candidate sets


@settings(max_examples=40)
@given(draws(), temperature, temperature, losses)
def test_a_singleton_is_a_label(draw: Draw, eps_y: float, eps_h: float, loss: Loss) -> None:
    """Restricting the outputs by the mask or fixing them as the paper does: U- = PS_h[eps_h] theta(y_i, .), exactly."""
    sample = draw.sample
    theta = DenseModel(N_WEIGHTS).forward(draw.w, sample.inputs)
    objective = Unified(eps_y, eps_h, loss)
    got = parts_of(objective, EXACT, sample, Potentials.zeros(sample.batch)).minus(theta)
    outputs = np.flatnonzero(sample.query.output)
    first = np.array([np.flatnonzero(sample.truth[sample.batch.state_var == i])[0] for i in outputs])
    fixed = sample.query.clamp(sample.batch, outputs, first)
    # With the outputs fixed, which temperature they are summed at cannot matter.
    want = EXACT(sample.batch, theta, fixed, eps_h, eps_h)
    np.testing.assert_allclose(got.value, want.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, rtol=1e-9, atol=1e-11)


def candidate_sample(draw: Draw) -> Sample:
    """The drawn sample with more states admitted at random."""
    extra = draw.rng.random(draw.sample.batch.n_states) < 0.4
    return replace(draw.sample, truth=draw.sample.truth | extra)


@settings(max_examples=80)
@given(draws(), temperature, losses)
def test_lemma_one_with_candidate_sets(draw: Draw, eps_h: float, loss: Loss) -> None:
    sample = candidate_sample(draw)
    theta = DenseModel(N_WEIGHTS).forward(draw.w, sample.inputs)
    values = problem_of(sample, Unified(0.0, eps_h, loss)).difference(draw.w).values
    z = EXACT(sample.batch, theta, sample.query, 0.0, eps_h).decode(sample.batch)
    found = [decoded_outputs(sample.batch, sample.query.output, z, b) for b in range(len(sample))]
    assert np.all(values >= np.array([delta_of(sample, loss, b, y) for b, y in enumerate(found)]) - 1e-9)


@settings(max_examples=40)
@given(draws(), temperature, temperature, losses)
def test_candidate_sets_are_power_sums_over_the_set(draw: Draw, eps_y: float, eps_h: float, loss: Loss) -> None:
    sample = candidate_sample(draw)
    theta = DenseModel(N_WEIGHTS).forward(draw.w, sample.inputs)
    part = problem_of(sample, Unified(eps_y, eps_h, loss)).minus(draw.w)
    brute = BRUTE(sample.batch, theta, Query(sample.query.output, sample.truth), eps_y, eps_h)
    np.testing.assert_allclose(part.values, brute.value, rtol=1e-9, atol=1e-9)
    assert np.all(problem_of(sample, Unified(eps_y, eps_h, loss)).difference(draw.w).values >= -1e-12)


def full_and_missing(seed: int) -> tuple[Sample, Sample]:
    """One labelled path whose middle site admits every label, and the same path with that site MISSING (hidden)."""
    rng = np.random.default_rng(seed)
    missing = random_sample(rng, [PATH] * 2, np.array([True, False, True] * 2), N_WEIGHTS)
    query = Query(np.ones(6, dtype=bool), missing.query.allowed)
    return replace(missing, query=query), missing


@settings(max_examples=30)
@given(st.integers(0, 1000), temperature, losses)
def test_full_set_equals_missing_at_one_temperature(seed: int, eps: float, loss: Loss) -> None:
    full, missing = full_and_missing(seed)
    w = np.random.default_rng(seed).normal(size=N_WEIGHTS)
    a = problem_of(full, Unified(eps, eps, loss)).difference(w)
    b = problem_of(missing, Unified(eps, eps, loss)).difference(w)
    np.testing.assert_allclose(a.values, b.values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("eps_y", "eps_h"), [pair for pair in TEMPERATURES if pair[0] != pair[1]])
def test_full_set_differs_from_missing_at_two_temperatures(eps_y: float, eps_h: float) -> None:
    full, missing = full_and_missing(0)
    w = np.random.default_rng(0).normal(size=N_WEIGHTS)
    a = problem_of(full, Unified(eps_y, eps_h, Hamming())).difference(w).values
    b = problem_of(missing, Unified(eps_y, eps_h, Hamming())).difference(w).values
    assert np.abs(a - b).max() > 1e-3


# ------------------------------------------------------------------------------------- sums over instances


@settings(max_examples=30)
@given(draws(weighted=True), temperature, temperature, losses, st.sampled_from([0.5, 3.0]))
def test_totals_are_weighted_sums_of_single_instances(
    draw: Draw, eps_y: float, eps_h: float, loss: Loss, C: float
) -> None:
    sample = draw.sample
    problem = problem_of(sample, Unified(eps_y, eps_h, loss), C=C)
    whole = problem.plus(draw.w)
    np.testing.assert_allclose(problem.scale, C * sample.weight)
    total = 0.0
    gradient = np.zeros(N_WEIGHTS)
    for i in range(len(sample)):
        value, mu = problem.atom(draw.w, i)
        assert value == pytest.approx(whole.values[i], rel=1e-12, abs=1e-12)
        total += C * sample.weight[i] * value
        mine = C * sample.weight[i] * problem.features_of(i, mu)
        gradient += mine
        alone = problem.plus(draw.w, np.array([i]))
        np.testing.assert_allclose(alone.gradient, mine, rtol=1e-9, atol=1e-12)
    assert whole.total == pytest.approx(total, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(whole.gradient, gradient, rtol=1e-9, atol=1e-11)
    both = problem.minus(draw.w)
    difference = problem.difference(draw.w)
    np.testing.assert_allclose(difference.gradient, whole.gradient - both.gradient, rtol=1e-9, atol=1e-11)
    assert difference.total == pytest.approx(whole.total - both.total, rel=1e-9, abs=1e-9)


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mssvm.objectives.blocks.BLOCK_STATES", 40)
    rng = np.random.default_rng(0)
    sample = random_sample(rng, [PATH] * 60, rng.random(180) < 0.7, N_WEIGHTS)
    sample = replace(sample, weight=rng.random(60))
    w = rng.normal(size=N_WEIGHTS)
    one = problem_of(sample, mssvm(), engine=NativeEngine(1)).difference(w)
    three = problem_of(sample, mssvm(), engine=NativeEngine(3)).difference(w)
    assert one.total == three.total
    np.testing.assert_array_equal(one.gradient, three.gradient)
    np.testing.assert_array_equal(one.values, three.values)


def test_an_asymmetric_loss_takes_truth_first() -> None:
    """At w = 0 the objective is the largest cost: truth 0 mistaken for 1 costs 3, truth 1 mistaken for 0 costs 1."""
    loss = WeightedHamming(np.array([[0.0, 3.0], [1.0, 0.0]]))
    for truth, cost in ((0, 3.0), (1, 1.0)):
        rng = np.random.default_rng(0)
        sample = random_sample(rng, [Topology((2,), ())], np.array([True]), N_WEIGHTS, np.array([truth]))
        assert problem_of(sample, lssvm(loss)).difference(np.zeros(N_WEIGHTS)).total == cost

"""The whole objective through ``TrainingProblem``: gradients, unlabelled instances, candidate sets, weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from builders import node_term, parts_of, table_term
from mssvm.core.errors import InfeasibleError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.enumerate import Enumerate
from mssvm.losses import Hamming, Loss, TableLoss, WeightedHamming, Zero
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives import blocks
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified, hcrf, loss_augmented_likelihood, lssvm, mssvm

GRAPH = Topology((2, 3, 2, 3), ((0, 1), (1, 2), (2, 3), (3, 0)))
PAIR_COST = np.random.default_rng(7).random((2, 3, 2, 3)) * (1.0 - np.eye(6).reshape(2, 3, 2, 3))
LOSSES: dict[str, Loss] = {
    "hamming": Hamming(),
    "normalised": Hamming(normalize=True, scale=3.0),
    "weighted": WeightedHamming({2: np.array([[0.0, 2.0], [5.0, 0.0]]), 3: np.array([1.0, 2.0, 3.0])}),
    "tables": TableLoss({(2, 3): PAIR_COST}, sites=Hamming()),
    "zero": Zero(),
}
N_WEIGHTS = 2 * 2 + 3 * 2 + 4 * 6 + 3 * 6
TEMPERATURES = [(y, h) for y in (0.0, 0.5, 1.0) for h in (0.0, 0.5, 1.0)]


def sample_of(
    rng: np.random.Generator, n: int = 4, unlabelled: tuple[int, ...] = (), truth: np.ndarray | None = None
) -> Sample:
    """Rings of four variables with node features (tied), edge features (tied), and indicators (untied by position)."""
    batch = Batch.build([GRAPH] * n)
    two = np.flatnonzero(batch.cards == 2)
    three = np.flatnonzero(batch.cards == 3)
    terms = (
        node_term(batch, rng.normal(size=(len(two), 2)), 0, two),
        node_term(batch, rng.normal(size=(len(three), 2)), 4, three),
        table_term(batch, None, np.tile(10 + 6 * np.arange(4), n)),
        table_term(batch, rng.normal(size=(batch.n_factors, 3)), 34),
    )
    output = np.tile([True, True, False, True], n)
    output[np.isin(batch.owner, unlabelled)] = False
    labels = rng.integers(0, batch.cards)
    if truth is None:
        truth = ~output[batch.state_var]
        truth[batch.unary_ptr[:-1] + labels] = True
    sites = rng.uniform(0.5, 2.0, batch.n_vars)
    return Sample.of(LinearInputs(batch, terms), Query.of(batch, output), truth, rng.uniform(0.5, 2.0, n), sites)


def problem_of(sample: Sample, objective: Unified) -> TrainingProblem:
    return TrainingProblem(objective, LinearModel(N_WEIGHTS), sample, Enumerate(), C=0.7)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("eps_y", "eps_h"), [t for t in TEMPERATURES if min(t) > 0])
def test_gradient_equals_central_differences(eps_y: float, eps_h: float, loss: str) -> None:
    rng = np.random.default_rng(0)
    problem = problem_of(sample_of(rng), Unified(eps_y, eps_h, LOSSES[loss]))
    w = rng.normal(size=N_WEIGHTS)
    step = 1e-5
    for part in (problem.plus, problem.minus, problem.difference):
        gradient = part(w).gradient
        numeric = np.zeros(N_WEIGHTS)
        for k, e in enumerate(np.eye(N_WEIGHTS) * step):
            numeric[k] = (part(w + e).total - part(w - e).total) / (2 * step)
        assert np.abs(gradient - numeric).max() <= 1e-6 * np.abs(numeric).max()


@pytest.mark.parametrize("loss", ["hamming", "weighted", "tables"])
@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
def test_parts_lie_above_their_tangents(eps_y: float, eps_h: float, loss: str) -> None:
    rng = np.random.default_rng(1)
    problem = problem_of(sample_of(rng), Unified(eps_y, eps_h, LOSSES[loss]))
    for part in (problem.plus, problem.minus):
        for size in (1e-3, 0.3, 3.0):
            w = rng.normal(size=N_WEIGHTS)
            v = w + size * rng.normal(size=N_WEIGHTS)
            here = part(w)
            there = part(v)
            assert there.total >= here.total + here.gradient @ (v - w) - 1e-10 * abs(here.total)


@pytest.mark.parametrize("eps", TEMPERATURES)
def test_directional_derivative_of_every_member(eps: tuple[float, float]) -> None:
    """At a random point no maximiser ties, so that even at temperature 0 the subgradient is the derivative."""
    rng = np.random.default_rng(2)
    problem = problem_of(sample_of(rng), Unified(*eps))
    w = rng.normal(size=N_WEIGHTS)
    direction = rng.normal(size=N_WEIGHTS)
    step = 1e-6
    slope = (problem.difference(w + step * direction).total - problem.difference(w - step * direction).total) / (
        2 * step
    )
    assert problem.difference(w).gradient @ direction == pytest.approx(slope, rel=1e-6, abs=1e-6)


MEMBERS = [lssvm(), mssvm(), hcrf(), loss_augmented_likelihood(), Unified(0.3, 0.3)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("eps", [*TEMPERATURES, (0.3, 1e-3)])
def test_an_unlabelled_instance_contributes_exactly_nothing(eps: tuple[float, float], loss: str) -> None:
    w = np.random.default_rng(3).normal(size=N_WEIGHTS)
    objective = Unified(*eps, LOSSES[loss])
    alone = problem_of(sample_of(np.random.default_rng(4), 2, unlabelled=(0, 1)), objective).difference(w)
    assert alone.total == 0.0
    assert not alone.gradient.any()
    mixed = sample_of(np.random.default_rng(4), 4, unlabelled=(1, 3))
    both = problem_of(mixed, objective).difference(w)
    one = problem_of(mixed.select([0, 2]), objective).difference(w)
    assert both.total == one.total
    np.testing.assert_array_equal(both.gradient, one.gradient)
    # Dropping such instances is no convention: the two parts are equal where nothing is labelled.
    rest = mixed.select([1, 3])
    theta = LinearModel(N_WEIGHTS).forward(w, rest.inputs)  # type: ignore[arg-type]
    delta = objective.loss.delta(rest.batch, rest.query.output, rest.truth, rest.site_weight)
    parts = parts_of(objective, Enumerate(), rest, delta)
    low = parts.minus(theta)
    (high, _) = parts.plus(theta)
    np.testing.assert_array_equal(high.value, low.value)
    np.testing.assert_array_equal(high.mu.unary, low.mu.unary)


@pytest.mark.parametrize("objective", MEMBERS)
def test_the_objective_bounds_the_loss_of_its_decoder(objective: Unified) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sample = sample_of(rng, 1)
        w = 2.0 * rng.normal(size=N_WEIGHTS)
        theta = LinearModel(N_WEIGHTS).forward(w, sample.inputs)  # type: ignore[arg-type]
        y = Enumerate()(sample.batch, theta, sample.query, 0.0, objective.eps_h).decode(sample.batch)
        delta = objective.loss.delta(sample.batch, sample.query.output, sample.truth, sample.site_weight)
        cost = delta.unary[sample.batch.unary_ptr[:-1] + y].sum()
        assert problem_of(sample, objective).difference(w).values[0] >= cost - 1e-12


@pytest.mark.parametrize("eps", TEMPERATURES)
def test_the_full_candidate_set_is_nothing_to_learn_from(eps: tuple[float, float]) -> None:
    rng = np.random.default_rng(5)
    sample = sample_of(rng, 2)
    free = sample_of(np.random.default_rng(5), 2, truth=np.ones(sample.batch.n_states, dtype=bool))
    part = problem_of(free, Unified(*eps)).difference(rng.normal(size=N_WEIGHTS))
    assert part.total == 0.0
    assert not part.gradient.any()


@pytest.mark.parametrize("eps", TEMPERATURES)
def test_a_candidate_set_is_the_power_sum_over_its_labels(eps: tuple[float, float]) -> None:
    """U- of a set = PS[eps_y] over the set of the U- of its members; with a set of one, the label itself."""
    rng = np.random.default_rng(6)
    w = rng.normal(size=N_WEIGHTS)
    single = sample_of(np.random.default_rng(6), 1)
    values = []
    for states in ([0], [2], [0, 2]):
        truth = single.truth.copy()
        truth[2:5] = np.isin(np.arange(3), states)
        sample = sample_of(np.random.default_rng(6), 1, truth=truth)
        values.append(problem_of(sample, Unified(*eps)).minus(w).values[0])
    one, two, either = values
    expected = max(one, two) if eps[0] == 0 else eps[0] * np.logaddexp(one / eps[0], two / eps[0])
    assert either == pytest.approx(expected, rel=1e-12)


def test_full_set_equals_missing_only_at_equal_temperatures() -> None:
    """A site of which everything is admitted is hidden in U- exactly when outputs and hidden share a temperature."""
    w = np.random.default_rng(8).normal(size=N_WEIGHTS)
    base = sample_of(np.random.default_rng(8), 1)
    truth = base.truth.copy()
    truth[2:5] = True
    as_set = sample_of(np.random.default_rng(8), 1, truth=truth)
    hidden = Query.of(base.batch, base.query.output & (np.arange(4) != 1))
    missing = Sample.of(as_set.inputs, hidden, truth, as_set.weight, as_set.site_weight)
    for eps_y, eps_h, same in (
        (1.0, 1.0, True),
        (0.5, 0.5, True),
        (0.0, 0.0, True),
        (0.0, 1.0, False),
        (1.0, 0.5, False),
    ):
        one = problem_of(as_set, Unified(eps_y, eps_h)).difference(w).total
        two = problem_of(missing, Unified(eps_y, eps_h)).difference(w).total
        assert (one == pytest.approx(two, rel=1e-12)) is same


def test_instance_weights_scale_instances() -> None:
    sample = sample_of(np.random.default_rng(9), 3)
    w = np.random.default_rng(10).normal(size=N_WEIGHTS)
    whole = problem_of(sample, mssvm()).difference(w)
    singles = [problem_of(sample.select([i]), mssvm()).difference(w) for i in range(3)]
    assert whole.total == pytest.approx(sum(p.total for p in singles), rel=1e-13)
    np.testing.assert_allclose(whole.gradient, sum(p.gradient for p in singles), atol=1e-13)
    raw = [float(p.values[0]) for p in singles]
    assert whole.total == pytest.approx(0.7 * float(sample.weight @ raw), rel=1e-13)


def test_the_order_of_loss_arguments_reaches_the_objective() -> None:
    """One node at w = 0: U+ - U- of LSSVM is the dearest prediction for the given truth."""
    cost = np.array([[0.0, 1.0, 4.0], [9.0, 0.0, 2.0], [3.0, 5.0, 0.0]])
    batch = Batch.build([Topology((3,), ())])
    inputs = LinearInputs(batch, (node_term(batch, np.ones((1, 1))),))
    for truth, dearest in enumerate(cost.max(axis=1)):
        sample = Sample.of(inputs, Query.all_outputs(batch), np.arange(3) == truth)
        problem = TrainingProblem(lssvm(WeightedHamming(cost)), LinearModel(3), sample, Enumerate())
        assert problem.difference(np.zeros(3)).total == dearest


def test_atoms_lift_to_gradients() -> None:
    sample = sample_of(np.random.default_rng(11), 3)
    w = np.random.default_rng(12).normal(size=N_WEIGHTS)
    problem = problem_of(sample, mssvm())
    for i in range(3):
        value, mu = problem.atom(w, i)
        part = problem.plus(w, np.array([i]))
        assert value == part.values[0]
        np.testing.assert_allclose(problem.scale[i] * problem.features_of(i, mu), part.gradient, atol=1e-13)


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_of(np.random.default_rng(13), 12)
    w = np.random.default_rng(14).normal(size=N_WEIGHTS)
    whole = problem_of(sample, mssvm()).difference(w)
    monkeypatch.setattr(blocks, "BLOCK_STATES", 20)
    parts = [replace(problem_of(sample, mssvm()), engine=NativeEngine(t)).difference(w) for t in (1, 2, 3)]
    for part in parts:
        assert part.total == parts[0].total
        np.testing.assert_array_equal(part.gradient, parts[0].gradient)
        np.testing.assert_allclose(part.gradient, whole.gradient, atol=1e-12)


@pytest.mark.parametrize("everything", [True, False], ids=["nothing is allowed", "labels contradict"])
@pytest.mark.parametrize("part", ["plus", "minus", "difference"])
def test_an_instance_without_an_allowed_assignment_is_named(part: str, everything: bool, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_STATES", 4)
    batch = Batch.build([Topology((2, 2), ((0, 1),))] * 5)
    offset = Potentials.zeros(batch)
    offset.tables[12:16] = -np.inf if everything else [-np.inf, 0.0, 0.0, 0.0]
    inputs = LinearInputs(batch, (table_term(batch),), offset)
    truth = np.tile([True, False], 10)
    problem = TrainingProblem(mssvm(), LinearModel(4), Sample.of(inputs, Query.all_outputs(batch), truth), Enumerate())
    if part == "plus" and not everything:
        assert np.all(np.isfinite(problem.plus(np.zeros(4)).values))
        return
    with pytest.raises(InfeasibleError, match="instances with labels, instance 3"):
        getattr(problem, part)(np.zeros(4))


@pytest.mark.parametrize("missed", [0.0, 50.0])
def test_labels_are_inferred_again_only_where_approximate_inference_fell_below_them(missed: float) -> None:
    """With single labels U- is a sum of scores; its inference runs only to replace a value of U+ that is too low."""
    rng = np.random.default_rng(2)
    batch = Batch.build([Topology((2, 2, 2), ((0, 1), (1, 2), (2, 0)))] * 4)
    inputs = LinearInputs(batch, (table_term(batch),), None)
    truth = np.tile([True, False], 12)
    calls = Counter[str]()

    class Approximate:
        """Exact values, less ``missed`` where every state is allowed, that are not called exact."""

        def __call__(self, batch, theta, query, eps_y, eps_h):
            labels_only = bool((query.n_allowed(batch) == 1).all())
            calls["minus" if labels_only else "plus"] += 1
            found = Enumerate()(batch, theta, query, eps_y, eps_h)
            inexact = replace(found.status, exact=np.full(len(batch), labels_only))
            return replace(found, value=found.value - (0.0 if labels_only else missed), status=inexact)

    problem = TrainingProblem(
        mssvm(), LinearModel(4), Sample.of(inputs, Query.all_outputs(batch), truth), Approximate()
    )
    w = rng.normal(size=4)
    evaluation = problem.difference(w)
    assert evaluation.floored == (4 if missed else 0)
    before = calls["minus"]
    again = problem.difference(w)
    assert calls["minus"] - before == (1 if missed else 0)
    np.testing.assert_array_equal(again.values, evaluation.values)
    assert np.all(again.values >= 0.0)

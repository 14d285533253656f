"""M3E against brute force over all assignments, its limits in alpha, its gradient, and the convexity of its parts."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from builders import DenseModel, chain_scopes, grid_scopes, labels_as_truth, random_sample, table_term, tree_scopes
from mssvm.core.errors import InputError, MemoryLimitError, UnsupportedError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.inference.auto import Auto
from mssvm.inference.base import Planner
from mssvm.inference.enumerate import entries
from mssvm.inference.exact import Exact
from mssvm.losses import Hamming, Zero
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.m3e import RenyiMargin
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import lssvm, mssvm

ALPHAS = (0.3, 2.0, 5.0, np.inf)
N_WEIGHTS = 6


def sample_of(seed: int) -> Sample:
    """A chain, a tree, a loop and a model with a three-way factor, random roles."""
    rng = np.random.default_rng(seed)
    graphs = [
        Topology((3, 2, 3, 2, 2), tuple(chain_scopes(5))),
        Topology((2, 3, 2, 2, 2, 2), tuple(tree_scopes(rng, 6))),
        Topology((2,) * 6, tuple(grid_scopes(2, 3))),
        Topology((2, 3, 2, 2), ((0, 1, 2), (2, 3), (0, 3))),
        Topology((2, 2, 3), ((0, 1),)),
    ]
    output = rng.random(sum(g.n_vars for g in graphs)) < 0.5
    output[np.cumsum([0, *(g.n_vars for g in graphs[:-1])])] = True
    return random_sample(rng, graphs, output, N_WEIGHTS)


def brute_scores(sample: Sample, w: np.ndarray, b: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """S_alpha(y) from its definition, and the outputs y it belongs to."""
    batch = sample.batch
    span = slice(batch.var_ptr[b], batch.var_ptr[b + 1])
    output = sample.query.output[span]
    cards = batch.cards[span]
    theta = DenseModel(N_WEIGHTS).forward(w, sample.inputs)
    rows = []
    scores = []
    for y in product(*(range(k) for k in cards[output])):
        z = np.zeros((int(np.prod(cards[~output])), len(cards)), dtype=np.int64)
        z[:, output] = y
        z[:, ~output] = np.array(list(product(*(range(k) for k in cards[~output])))).reshape(len(z), -1)
        unary_at, table_at, _ = entries(batch, b, z)
        s = theta.unary[unary_at].sum(1) + theta.tables[table_at].sum(1)
        if np.isinf(alpha):
            scores.append(s.max())
        else:
            scores.append((np.logaddexp.reduce(alpha * s) - np.logaddexp.reduce(s)) / (alpha - 1))
        rows.append(z[0, output])
    return np.array(scores), np.array(rows)


def truth_of(sample: Sample, b: int) -> np.ndarray:
    batch = sample.batch
    labelled = [i for i in range(batch.var_ptr[b], batch.var_ptr[b + 1]) if sample.query.output[i]]
    return np.array([int(sample.truth[batch.unary_ptr[i] : batch.unary_ptr[i + 1]].argmax()) for i in labelled])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("eps_y", [0.0, 0.5])
def test_value_is_the_definition(alpha, eps_y):
    for seed in range(4):
        sample = sample_of(seed)
        w = np.random.default_rng(seed).normal(size=N_WEIGHTS)
        problem = TrainingProblem(RenyiMargin(alpha, eps_y=eps_y), DenseModel(N_WEIGHTS), sample, Exact())
        values = problem.difference(w).values
        for b in range(len(sample)):
            scores, rows = brute_scores(sample, w, b, alpha)
            wrong = (rows != truth_of(sample, b)).sum(1)
            top, _ = power_sum(scores + wrong, eps_y)
            np.testing.assert_allclose(values[b], top - scores[wrong == 0][0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_decoder_maximises_the_score_and_the_objective_bounds_its_loss(alpha):
    for seed in range(6):
        sample = sample_of(seed)
        w = np.random.default_rng(seed).normal(size=N_WEIGHTS)
        objective = RenyiMargin(alpha)
        inference = Exact()
        parts = objective.decoder(sample.batch, sample.query, Planner(inference, engine_of()))
        belief = parts.decode(DenseModel(N_WEIGHTS).forward(w, sample.inputs))
        decoded = belief.decode(sample.batch)
        bound = TrainingProblem(objective, DenseModel(N_WEIGHTS), sample, inference).difference(w).values
        for b in range(len(sample)):
            scores, rows = brute_scores(sample, w, b, alpha)
            span = slice(sample.batch.var_ptr[b], sample.batch.var_ptr[b + 1])
            y = decoded[span][sample.query.output[span]]
            np.testing.assert_allclose(scores[(rows == y).all(1)][0], scores.max(), rtol=1e-9)
            np.testing.assert_allclose(belief.value[b], scores.max(), rtol=1e-9)
            assert bound[b] >= (y != truth_of(sample, b)).sum() - 1e-9


@pytest.mark.parametrize("alpha", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("part", ["plus", "minus", "difference"])
def test_gradient_is_the_central_difference(alpha, part):
    sample = sample_of(1)
    problem = TrainingProblem(RenyiMargin(alpha, eps_y=0.4), DenseModel(N_WEIGHTS), sample, Exact())
    w = np.random.default_rng(5).normal(size=N_WEIGHTS)
    numeric = np.zeros(N_WEIGHTS)
    for j in range(N_WEIGHTS):
        step = 1e-5 * np.eye(N_WEIGHTS)[j]
        numeric[j] = (getattr(problem, part)(w + step).total - getattr(problem, part)(w - step).total) / 2e-5
    gradient = getattr(problem, part)(w).gradient
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("part", ["plus", "minus"])
def test_both_parts_lie_above_their_tangents(alpha, part):
    sample = sample_of(2)
    problem = TrainingProblem(RenyiMargin(alpha), DenseModel(N_WEIGHTS), sample, Exact())
    rng = np.random.default_rng(3)
    for _ in range(20):
        w, v = rng.normal(size=(2, N_WEIGHTS))
        here = getattr(problem, part)(w)
        there = getattr(problem, part)(v)
        assert there.total >= here.total + here.gradient @ (v - w) - 1e-9 * (1 + abs(here.total))


def test_alpha_infinite_is_the_latent_svm():
    sample = sample_of(3)
    w = np.random.default_rng(0).normal(size=N_WEIGHTS)
    ours = TrainingProblem(RenyiMargin(np.inf), DenseModel(N_WEIGHTS), sample, Exact()).difference(w)
    theirs = TrainingProblem(lssvm(), DenseModel(N_WEIGHTS), sample, Exact()).difference(w)
    np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.gradient, theirs.gradient, rtol=1e-9, atol=1e-9)


def test_alpha_to_zero_is_the_marginal_svm():
    """The constant log |H| cancels between the parts."""
    sample = sample_of(3)
    w = np.random.default_rng(0).normal(size=N_WEIGHTS)
    ours = TrainingProblem(RenyiMargin(1e-6), DenseModel(N_WEIGHTS), sample, Exact()).difference(w)
    theirs = TrainingProblem(mssvm(), DenseModel(N_WEIGHTS), sample, Exact()).difference(w)
    np.testing.assert_allclose(ours.values, theirs.values, atol=1e-4)
    np.testing.assert_allclose(ours.gradient, theirs.gradient, atol=1e-3)


def test_loss_does_not_reach_hidden_variables():
    sample = sample_of(0)
    w = np.zeros(N_WEIGHTS)
    n_outputs = np.bincount(sample.batch.owner, weights=sample.query.output)
    problem = TrainingProblem(RenyiMargin(2.0, Hamming()), DenseModel(N_WEIGHTS), sample, Exact())
    np.testing.assert_allclose(problem.difference(w).values, n_outputs)
    silent = TrainingProblem(RenyiMargin(2.0, Zero()), DenseModel(N_WEIGHTS), sample, Exact())
    np.testing.assert_allclose(silent.difference(w).values, 0.0, atol=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_impossible_states_score_minus_infinity(alpha):
    """An output that no hidden state goes with is never the answer; the rest is as if it were not among the states."""
    rng = np.random.default_rng(4)
    wide = Batch.build([Topology((3, 3, 2), ((0, 1), (1, 2)))] * 5)
    output = np.array([True, False, True] * 5)
    label = np.array([1, 0, 1] * 5)
    model = LinearModel(15)
    terms = tuple(table_term(wide, rng.normal(size=(5, 1)), 9 * k, np.arange(k, 10, 2)) for k in range(2))
    forbidden = Potentials.zeros(wide)
    forbidden.tables.reshape(5, 15)[:, :3] = -np.inf
    w = rng.normal(size=15)
    query = Query.of(wide, output)
    truth = labels_as_truth(wide, output, label)
    without = np.ones(wide.n_states, dtype=bool)
    without[wide.unary_ptr[:-1][::3]] = False
    shut = Sample.of(LinearInputs(wide, terms, forbidden), query, truth)
    gone = Sample.of(LinearInputs(wide, terms), query.restrict(without), truth)
    objective = RenyiMargin(alpha)
    got = TrainingProblem(objective, model, shut, Exact()).difference(w)
    expected = TrainingProblem(objective, model, gone, Exact()).difference(w)
    np.testing.assert_allclose(got.values, expected.values, rtol=1e-9)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-9, atol=1e-12)


def test_estimates_are_refused():
    """Auto may take propagation for hidden parts with cycles, and its estimate must not pass for M3E's score."""
    output = np.arange(10) % 5 == 0
    graph = Topology((2,) * 10, tuple(combinations(range(10), 2)))
    sample = random_sample(np.random.default_rng(0), [graph], output, N_WEIGHTS)
    w = np.random.default_rng(1).normal(size=N_WEIGHTS)
    with pytest.raises(UnsupportedError, match="M3E needs exact inference"):
        TrainingProblem(RenyiMargin(2.0), DenseModel(N_WEIGHTS), sample, Auto(memory_limit=1)).difference(w)


def test_errors():
    with pytest.raises(InputError, match="alpha must be > 0 and not 1"):
        RenyiMargin(1.0)
    rng = np.random.default_rng(0)
    star = Topology((2,) * 24, tuple((0, i) for i in range(1, 24)))
    output = np.arange(24) > 0
    sample = random_sample(rng, [star], output, N_WEIGHTS)
    with pytest.raises(MemoryLimitError, match="borders 23 outputs"):
        TrainingProblem(RenyiMargin(2.0), DenseModel(N_WEIGHTS), sample, Exact()).difference(np.zeros(N_WEIGHTS))

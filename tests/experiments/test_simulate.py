"""The simulator: exact draws against enumeration, the learner's true weights, and the known Bayes accuracy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.experiments import demo
from mssvm.experiments.members import Arena, Untrained
from mssvm.experiments.simulate import Recipe, Simulation, Truth, checkerboard, draw_states, hidden_chain
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact


def arena(simulation: Simulation) -> Arena:
    return Arena.of(simulation, 0.1, np.random.default_rng(0), Exact())


def joint_by_enumeration(truth: Truth) -> np.ndarray:
    """p(x, sites) of a tiny model as one array with axes x_0, s_0, x_1, s_1, ..."""
    n, k = truth.site.shape
    scores = np.zeros((k,) * (2 * n))
    axes = np.indices(scores.shape)
    x, s = axes[0::2], axes[1::2]
    for i in range(n):
        scores += truth.site[i][s[i]] + truth.x[i][x[i]] + truth.x_site[i][x[i], s[i]]
    for e, (i, j) in enumerate(truth.graph.scopes):
        scores += truth.edge[e][s[i], s[j]]
    p = np.exp(scores - scores.max())
    return np.asarray(p / p.sum())


@pytest.mark.parametrize("inputs", ["all", "hidden"])
def test_joint_draws_follow_the_model(inputs: str) -> None:
    recipe = Recipe(inputs=inputs, n_states=2, pair_std=1.0, sigma_x=0.7, sigma_y=0.5, sigma_h=0.5)  # type: ignore[arg-type]
    graph = Topology((2,) * 4, ((0, 1), (1, 2), (2, 3), (3, 0)))
    truth = Truth.draw(graph, np.array([True, False, True, False]), recipe, np.random.default_rng(0))
    n = 40_000
    x, states = truth.sample(n, np.random.default_rng(1))
    cell = np.ravel_multi_index(tuple(v for i in range(4) for v in (x[:, i], states[:, i])), (2,) * 8)
    seen, expected = np.bincount(cell, minlength=256), n * joint_by_enumeration(truth).ravel()
    common = expected > 5
    chi2 = ((seen - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert freedom > 40
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)


def test_frontier_sampling_on_a_grid_matches_its_marginals() -> None:
    rng = np.random.default_rng(2)
    edges = ((0, 1), (1, 2), (3, 4), (4, 5), (3, 0), (1, 4), (2, 5))
    graph = Topology((3,) * 6, edges)
    unary, edge = rng.normal(size=(6, 3)), rng.normal(size=(7, 3, 3))
    n = 40_000
    states = draw_states(graph, unary, edge, n, rng)
    batch = Batch.build([graph])
    theta = Potentials(unary.ravel(), edge.ravel())
    belief = Enumerate()(batch, theta, Query.all_outputs(batch), 1.0, 1.0)
    for f, (i, j) in enumerate(edges):
        seen = np.bincount(3 * states[:, i] + states[:, j], minlength=9) / n
        p = belief.mu.tables[9 * f : 9 * f + 9]
        assert np.all(np.abs(seen - p) < 4.5 * np.sqrt(p * (1 - p) / n))


@pytest.mark.parametrize("inputs", ["all", "hidden"])
def test_true_weights_give_the_true_conditional(inputs: str) -> None:
    """An estimator at the true weights has the marginals of log p(sites | x)."""
    recipe = Recipe(inputs=inputs, n_states=2, n_train=3, n_test=2)  # type: ignore[arg-type]
    simulation = hidden_chain(np.random.default_rng(3), recipe, n_sites=4)
    truth, X = simulation.truth, simulation.train.X
    joint = joint_by_enumeration(truth)
    fitted = arena(simulation).fit("H", Untrained(), init=truth.weights)
    for item, found in zip(X, fitted.predict_marginals(X), strict=True):
        x = np.zeros(4, dtype=int)
        x[truth.has_input] = [int(item.features[f"site {i}"].argmax()) for i in np.flatnonzero(truth.has_input)]
        given = joint[tuple(v for i in range(4) for v in (x[i], slice(None)))]
        given = given / given.sum()
        for k, i in enumerate(np.flatnonzero(truth.output)):
            marginal = given.sum(axis=tuple(a for a in range(4) if a != i))
            np.testing.assert_allclose(found[k], marginal, atol=1e-12)


def test_weights_are_named_by_site_and_edge_in_the_order_of_their_factors() -> None:
    """Initial weights are drawn in this order, so that it decides which random number lands on which weight."""
    simulation = hidden_chain(np.random.default_rng(3), Recipe(inputs="hidden", n_states=2, n_train=3), n_sites=4)
    truth = simulation.truth
    rows = arena(simulation).fit("M", Untrained(), init=truth.weights).weights_table()
    blocks = list(dict.fromkeys(row.block for row in rows))
    assert blocks == ["site 1", "site 1.x", "site 3", "site 3.x", "edge 0", "edge 1", "edge 2", "site 0", "site 2"]
    values = {block: np.array([row.value for row in rows if row.block == block]) for block in blocks}
    np.testing.assert_array_equal(values["site 1"], truth.site[1])
    np.testing.assert_array_equal(values["site 3.x"], truth.x_site[3].ravel())
    np.testing.assert_array_equal(values["edge 2"], truth.edge[2].ravel())
    np.testing.assert_array_equal(values["site 2"], truth.site[2])


def test_shapes_roles_and_reproducibility() -> None:
    chain = hidden_chain(np.random.default_rng(4))
    assert (len(chain.truth.weights), len(chain.train), len(chain.test)) == (704, 20, 100)
    assert chain.truth.output.tolist() == [True, False] * 10
    assert [len(y) for y in chain.train.y] == [10] * 20
    grid = checkerboard(np.random.default_rng(4))
    assert (len(grid.truth.weights), sum(len(y) for y in grid.train.y)) == (1680, 20 * 18)
    assert all(grid.truth.output[i] != grid.truth.output[j] for i, j in grid.truth.graph.scopes)
    blind = hidden_chain(np.random.default_rng(4), Recipe(inputs="hidden"))
    assert len(blind.truth.weights) == 10 * 20 + 10 * 4 + 19 * 16
    again = hidden_chain(np.random.default_rng(4), Recipe(n_train=7))
    np.testing.assert_array_equal(again.truth.weights, chain.truth.weights)
    np.testing.assert_array_equal(again.test.states, chain.test.states)
    wider = hidden_chain(np.random.default_rng(4), Recipe(sigma_h=1.0))
    np.testing.assert_allclose(wider.truth.site[1::2], 10 * chain.truth.site[1::2])


class Oracle:
    """Predicts what it was told."""

    def __init__(self, answers: np.ndarray) -> None:
        self.answers = answers

    def predict(self, X: object, hidden_sites: object, decode: str) -> np.ndarray:
        return self.answers


def test_accuracy_counts_the_labelled_sites_only() -> None:
    test = hidden_chain(np.random.default_rng(4)).test
    assert test.accuracy(Oracle(test.states)) == 100.0
    wrong = np.array(test.states)
    wrong[:, 0] = (wrong[:, 0] + 1) % 4
    assert test.accuracy(Oracle(wrong)) == pytest.approx(90.0)
    mask = np.zeros_like(wrong, dtype=bool)
    mask[:, 0] = True
    unseen = replace(test, hidden=list(mask))
    assert unseen.accuracy(Oracle(wrong)) == 100.0 and unseen.revealed().accuracy(Oracle(wrong)) == pytest.approx(90.0)
    assert unseen.y[0][0] is None and unseen.y[0][1] == test.states[0][1]


def test_bayes_accuracy_is_at_its_known_level() -> None:
    """100 draws of the reference run averaged 86.95 with a spread of about 5 between draws."""
    draws = [arena(hidden_chain(np.random.default_rng([5, k]))).bayes() for k in range(30)]
    standard_error = np.std(draws, ddof=1) / np.sqrt(len(draws))
    assert standard_error < 1.5
    assert abs(np.mean(draws) - 86.95) < 3 * standard_error


def test_the_demonstration_compares_every_method() -> None:
    settings = demo.DemoSettings(n_draws=2, n_steps=3, recipe=Recipe(n_train=3, n_test=4))
    table = demo.summary([demo.one_draw(settings, draw) for draw in range(2)], settings)
    assert [row[0] for row in table.rows] == ["MSSVM", "LSSVM", "HCRF", "Bayes-optimal"]
    assert "2 draws" in table.caption and "3 steps" in table.note
    assert all("±" in row[1] for row in table.rows) and table.rows[0][2] == "" != table.rows[1][2]


def test_one_draw_of_the_demonstration_learns() -> None:
    """Trained members end well above chance (25%) and none far above the Bayes-optimal decoder."""
    result = demo.one_draw(demo.DemoSettings(n_steps=60), 0)
    for name in ("MSSVM", "LSSVM", "HCRF"):
        assert 50 < result[name] < result[demo.BAYES] + 3

"""Losses: values against their definitions, argument order, candidate sets, weights, refusals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import mssvm as ms
from builders import labels_as_truth, random_graph
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials
from mssvm.core.topology import Batch, Topology
from mssvm.inference.enumerate import score
from mssvm.losses import Hamming, Loss, TableLoss, WeightedHamming, Zero

ASYMMETRIC = np.array([[0.0, 1.0, 5.0], [2.0, 0.0, 7.0], [11.0, 3.0, 0.0]])


def total(batch: Batch, delta: Potentials, y: np.ndarray) -> np.ndarray:
    return score(batch, delta, y)


def chain(n: int = 3, k: int = 3) -> Topology:
    return Topology((k,) * n, tuple((i, i + 1) for i in range(n - 1)))


@pytest.mark.parametrize("normalize", [False, True])
def test_hamming_counts_wrong_outputs(normalize: bool) -> None:
    rng = np.random.default_rng(0)
    batch = Batch.build([random_graph(rng, "trees") for _ in range(20)])
    output = rng.random(batch.n_vars) < 0.6
    weight = rng.random(batch.n_vars)
    truth = rng.integers(0, batch.cards)
    y = rng.integers(0, batch.cards)
    delta = Hamming(normalize, scale=2.0).delta(batch, output, labels_as_truth(batch, output, truth), weight)
    expected = np.zeros(len(batch))
    for b in range(len(batch)):
        sites = [i for i in range(batch.var_ptr[b], batch.var_ptr[b + 1]) if output[i]]
        wrong = sum(weight[i] for i in sites if y[i] != truth[i])
        expected[b] = 2.0 * wrong / (len(sites) if normalize and sites else 1)
    np.testing.assert_allclose(total(batch, delta, y), expected, rtol=1e-12)
    np.testing.assert_array_equal(total(batch, delta, truth), 0.0)


def test_first_index_is_the_truth() -> None:
    batch = Batch.build([chain(1)])
    output = np.ones(1, dtype=bool)
    ones = np.ones(1)
    for truth in range(3):
        mask = np.arange(3) == truth
        delta = WeightedHamming(ASYMMETRIC).delta(batch, output, mask, ones)
        np.testing.assert_array_equal(delta.unary, ASYMMETRIC[truth])
        by_class = WeightedHamming(np.array([1.0, 2.0, 4.0])).delta(batch, output, mask, ones)
        np.testing.assert_array_equal(by_class.unary, np.where(mask, 0.0, [1.0, 2.0, 4.0][truth]))


def test_weighted_hamming_with_mixed_cardinalities_hidden_sites_and_weights() -> None:
    two = np.array([[0.0, 3.0], [1.0, 0.0]])
    batch = Batch.build([Topology((3, 2, 3, 2), ((0, 1),)), Topology((2,), ())])
    output = np.array([True, True, False, True, True])
    truth = np.array([1, 0, 0, 1, 1])
    weight = np.array([1.0, 2.0, 9.0, 0.5, 1.0])
    mask = labels_as_truth(batch, output, truth)
    delta = WeightedHamming({2: two, 3: ASYMMETRIC}, normalize=True).delta(batch, output, mask, weight)
    expected = np.concatenate([ASYMMETRIC[1] / 3, 2 * two[0] / 3, np.zeros(3), 0.5 * two[1] / 3, two[1]])
    np.testing.assert_allclose(delta.unary, expected, rtol=1e-15)
    with pytest.raises(InputError, match="3 states, but some output has 2"):
        WeightedHamming(ASYMMETRIC).delta(batch, output, mask, weight)


def test_candidate_sets_cost_nothing_inside_and_the_cheapest_truth_outside() -> None:
    batch = Batch.build([chain(2, 3)])
    output = np.ones(2, dtype=bool)
    mask = np.array([True, False, True, True, True, True])
    delta = WeightedHamming(ASYMMETRIC).delta(batch, output, mask, np.ones(2))
    np.testing.assert_array_equal(delta.unary, [0, min(ASYMMETRIC[0, 1], ASYMMETRIC[2, 1]), 0, 0, 0, 0])
    np.testing.assert_array_equal(Hamming().delta(batch, output, mask, np.ones(2)).unary, [0, 1, 0, 0, 0, 0])


def test_table_loss_against_its_definition() -> None:
    rng = np.random.default_rng(3)
    graphs = [Topology((2, 3, 2), ((0, 1), (2, 0), (1, 2))), chain(3, 2), Topology((2, 2, 2), ((2, 0, 1),))]
    batch = Batch.build(graphs)
    costs = {}
    for shape in ((2, 3), (2, 2), (2, 2, 2)):
        cost = rng.random(shape + shape)
        for t in product(*(range(k) for k in shape)):
            cost[t + t] = 0.0
        costs[shape] = cost
    output = np.array([True, True, True, True, True, False, True, True, True])
    truth = rng.integers(0, batch.cards)
    y = rng.integers(0, batch.cards)
    weight = rng.random(batch.n_vars)
    mask = labels_as_truth(batch, output, truth)
    delta = TableLoss(costs, sites=Hamming()).delta(batch, output, mask, weight)
    expected = np.zeros(len(batch))
    for b, graph in enumerate(graphs):
        at = int(batch.var_ptr[b])
        expected[b] = sum(weight[at + i] for i in range(3) if output[at + i] and y[at + i] != truth[at + i])
        for f, scope in enumerate(graph.scopes):
            members = [at + v for v in scope]
            if output[members].all() and graph.table_shape(f) in costs:
                place = tuple(truth[members]) + tuple(y[members])
                expected[b] += costs[graph.table_shape(f)][place] * np.prod(weight[members])
    np.testing.assert_allclose(total(batch, delta, y), expected, rtol=1e-12)
    np.testing.assert_array_equal(total(batch, delta, truth), 0.0)
    by_function = TableLoss(lambda g, f: costs.get(g.table_shape(f)), Hamming()).delta(batch, output, mask, weight)
    np.testing.assert_array_equal(by_function.tables, delta.tables)


def test_table_loss_with_candidate_sets() -> None:
    rng = np.random.default_rng(4)
    batch = Batch.build([chain(2, 3)])
    cost = rng.random((3, 3, 3, 3))
    for s, t in product(range(3), range(3)):
        cost[s, t, s, t] = 0.0
    mask = np.array([True, True, False, False, True, False])
    delta = TableLoss({(3, 3): cost}).delta(batch, np.ones(2, dtype=bool), mask, np.ones(2))
    expected = np.minimum(cost[0, 1], cost[1, 1])
    expected[[0, 1], 1] = 0.0
    np.testing.assert_array_equal(delta.tables.reshape(3, 3), expected)


def test_table_loss_refuses_shared_tables() -> None:
    batch = Batch.build([chain(2, 2)] * 2, [[0], [0]])
    cost = np.ones((2, 2, 2, 2)) - np.eye(4).reshape(2, 2, 2, 2)
    with pytest.raises(InputError, match="untied"):
        TableLoss({(2, 2): cost}).delta(batch, np.ones(4, dtype=bool), np.arange(8) % 2 == 0, np.ones(4))


@pytest.mark.parametrize(
    "bad", [np.ones((2, 2)), np.array([[0.0, -1.0], [1.0, 0.0]]), np.zeros((2, 3)), np.inf * np.ones(2)]
)
def test_unusable_costs_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(InputError):
        WeightedHamming(bad)


def test_zero_and_scale() -> None:
    batch = Batch.build([chain(3, 2)])
    output = np.ones(3, dtype=bool)
    mask = np.arange(6) % 2 == 0
    assert not Zero().delta(batch, output, mask, np.ones(3)).unary.any()
    with pytest.raises(InputError):
        Hamming(scale=-1.0)


def pair_cost(k: int) -> np.ndarray:
    """Wrong sites of a pair: cost[a, b, c, d] = 1[a != c] + 1[b != d]."""
    wrong = 1.0 - np.eye(k)
    return wrong[:, None, :, None] + wrong[None, :, None, :]


@pytest.mark.parametrize("support", ["all", "seen"])
@pytest.mark.parametrize("structure", [ms.Chain(), ms.Chain(hidden=2, direct=True)])
def test_a_loss_on_pairs_trains_on_shared_tables(structure: ms.Chain, support: str) -> None:
    rng = np.random.default_rng(0)
    y = [rng.integers(0, 3, 2).tolist() for _ in range(15)]
    X = [sparse.csr_array(np.eye(3)[labels] + (rng.random((2, 3)) < 0.3)) for labels in y]
    settings = {"support": support, "random_state": 0, "solver": "lbfgs", "max_iter": 30}
    tables = ms.MSSVM(structure, loss=TableLoss({(3, 3): pair_cost(3)}), **settings).fit(X, y)
    sites = ms.MSSVM(structure, loss=Hamming(), **settings).fit(X, y)
    assert tables.objective_ == pytest.approx(sites.objective_, rel=1e-6)
    assert tables.objective_ > 1.0
    assert [a.tolist() for a in tables.predict(X)] == [a.tolist() for a in sites.predict(X)]


LOSSES = [Zero(), Hamming(True, 2.0), WeightedHamming(ASYMMETRIC), WeightedHamming({3: ASYMMETRIC}, scale=3.0)]


@pytest.mark.parametrize("loss", [*LOSSES, TableLoss({(3, 3): pair_cost(3)}, Hamming(scale=2.0))])
def test_losses_are_parameters_that_can_be_cloned_and_searched(loss: Loss) -> None:
    twin = clone(ms.SSVM(loss=loss)).loss
    assert type(twin) is type(loss) and twin is not loss
    batch = Batch.build([chain(3, 3)])
    args = batch, np.ones(3, dtype=bool), np.arange(9) % 4 == 0, np.ones(3)
    np.testing.assert_array_equal(twin.delta(*args).unary, loss.delta(*args).unary)
    np.testing.assert_array_equal(twin.delta(*args).tables, loss.delta(*args).tables)
    if not isinstance(loss, Zero):
        model = ms.SSVM(loss=twin).set_params(loss__scale=4 * twin.scale)
        ours = model.loss.delta(*args)
        theirs = loss.delta(*args)
        np.testing.assert_array_equal(ours.tables, 4 * theirs.tables)
        if not isinstance(loss, TableLoss):
            np.testing.assert_array_equal(ours.unary, 4 * theirs.unary)
        with pytest.raises(InputError, match="scale"):
            model.set_params(loss__scale=-1.0)


def test_costs_set_anew_act() -> None:
    loss = WeightedHamming(ASYMMETRIC)
    args = Batch.build([chain(1)]), np.ones(1, dtype=bool), np.arange(3) == 1, np.ones(1)
    assert loss.delta(*args).unary.tolist() == ASYMMETRIC[1].tolist()
    assert loss.set_params(cost=2 * ASYMMETRIC).delta(*args).unary.tolist() == (2 * ASYMMETRIC[1]).tolist()

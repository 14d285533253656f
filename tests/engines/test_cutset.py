"""Exact inference by conditioning on one variable, against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from engines.test_forests import assert_same, random_masks, random_potentials, run
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.native.cutset import CutsetPair, CutsetPlan, CutsetRoute
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact

PAIRS = [*product((0.0, 0.5, 1.0), repeat=2), (1e-6, 1e-6)]


def labelled_chain(n: int, states: int, k: int, first: bool, axis: int, nodes_too: bool = True) -> Topology:
    """A class label joined to every node and edge of a hidden chain; ``axis`` is its place in the scopes."""
    label, nodes = (0, range(1, n + 1)) if first else (n, range(n))

    def scope(*rest: int) -> tuple[int, ...]:
        out = list(rest)
        out.insert(min(axis, len(rest)), label)
        return tuple(out)

    cards = [k] * (n + 1)
    cards[label] = states
    return Topology(tuple(cards), tuple([scope(i) for i in nodes if nodes_too] + [scope(i, i + 1) for i in nodes[:-1]]))


def random_cut_graph(rng: np.random.Generator) -> Topology:
    n = int(rng.integers(2, 5))
    cut = int(rng.integers(n + 1))
    nodes = [i for i in range(n + 1) if i != cut]
    scopes = [tuple(rng.permutation([cut, i]).tolist()) for i in nodes if rng.random() < 0.7]
    for a in range(1, n):
        scope = [nodes[a], nodes[int(rng.integers(a))]] + ([cut] if rng.random() < 0.6 else [])
        scopes.append(tuple(rng.permutation(scope).tolist()))
    return Topology(tuple(rng.integers(1, 4, n + 1)), tuple(scopes))


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_random_graphs_equal_enumeration(eps_y: float, eps_h: float, scale: float) -> None:
    rng = np.random.default_rng(int(scale))
    covered = 0
    for trial in range(10):
        batch = Batch.build([random_cut_graph(rng) for _ in range(4)])
        theta = random_potentials(rng, batch, scale, 0.15 if trial % 2 else 0.0)
        query = Query(rng.random(batch.n_vars) < 0.5, random_masks(rng, batch))
        value, mu, which = run(CutsetPlan, batch, theta, query, eps_y, eps_h)
        assert_same(batch, value, mu, which, Enumerate()(batch, theta, query, eps_y, eps_h))
        covered += len(which)
    assert covered >= 15


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize(("first", "axis"), [(True, 0), (False, 0), (True, 1), (False, 2)])
def test_label_over_hidden_chains(eps_y: float, eps_h: float, first: bool, axis: int) -> None:
    rng = np.random.default_rng(axis)
    for shared in (True, False):
        graphs = [labelled_chain(int(n), 3, 2, first, axis) for n in rng.integers(2, 6, size=7)]
        ids = []
        for b, g in enumerate(graphs):
            n = g.n_vars - 1
            ids.append([1 if shared else 1 + 10 * b + i for i in range(n)] + [0] * (n - 1))
        batch = Batch.build(graphs, ids)
        label = np.array([batch.var_ptr[b] + (0 if first else g.n_vars - 1) for b, g in enumerate(graphs)])
        output = np.zeros(batch.n_vars, dtype=bool)
        output[label] = True
        for mask in (np.ones(batch.n_states, dtype=bool), random_masks(rng, batch, 0.6)):
            theta = random_potentials(rng, batch, 1.0, 0.0)
            query = Query(output, mask)
            for q in (
                query,
                query.clamp(
                    batch,
                    label,
                    np.array([np.flatnonzero(mask[batch.unary_ptr[i] : batch.unary_ptr[i + 1]])[-1] for i in label]),
                ),
            ):
                value, mu, which = run(CutsetPlan, batch, theta, q, eps_y, eps_h)
                assert len(which) == len(batch)
                assert_same(batch, value, mu, which, Enumerate()(batch, theta, q, eps_y, eps_h))


@pytest.mark.parametrize("eps_y", [0.0, 0.5, 1.0])
def test_label_on_the_edges_only(eps_y: float) -> None:
    rng = np.random.default_rng(2)
    graphs = [labelled_chain(int(n), 2, 3, True, 0, nodes_too=False) for n in rng.integers(2, 6, size=9)]
    batch = Batch.build(graphs, [[0] * g.n_factors for g in graphs])
    theta = random_potentials(rng, batch, 1.0, 0.0)
    query = Query(np.arange(batch.n_vars) == batch.var_ptr[batch.owner], random_masks(rng, batch))
    value, mu, which = run(CutsetPlan, batch, theta, query, eps_y, 1.0)
    assert len(which) == len(batch)
    assert_same(batch, value, mu, which, Enumerate()(batch, theta, query, eps_y, 1.0))


def test_what_is_not_supported() -> None:
    grid = Topology((2,) * 6, ((0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5), (0, 5), (1, 3)))
    label = labelled_chain(3, 2, 2, True, 0)
    batch = Batch.build([grid, label])
    hidden_label = Query.of(batch, np.array([True] * 6 + [False, True, True, True]))
    assert CutsetPlan(batch).supports(hidden_label, 1.0, 1.0).tolist() == [False, True]
    assert CutsetPlan(batch).supports(hidden_label, 0.0, 1.0).tolist() == [False, False]
    with pytest.raises(UnsupportedError, match="separates"):
        CutsetRoute(CutsetPlan(batch), hidden_label, 1.0, 1.0, np.array([0]), Workers()).infer_into(
            Potentials.zeros(batch), np.zeros(2), Marginals.zeros(batch)
        )


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(8)
    graphs = [labelled_chain(int(n), 3, 3, True, 0) for n in rng.integers(2, 9, size=200)]
    batch = Batch.build(graphs, [[1 + i for i in range(g.n_vars - 1)] + [0] * (g.n_vars - 2) for g in graphs])
    theta = random_potentials(rng, batch, 1.0, 0.0)
    query = Query(np.arange(batch.n_vars) == batch.var_ptr[batch.owner], random_masks(rng, batch))
    one, three = (run(CutsetPlan, batch, theta, query, 0.5, 1.0, t) for t in (1, 3))
    np.testing.assert_array_equal(one[0], three[0])
    np.testing.assert_array_equal(one[1].unary, three[1].unary)
    np.testing.assert_array_equal(one[1].tables, three[1].tables)


@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.5), (0.3, 1.0)])
def test_paired_inference_equals_two_enumerations(eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(3)
    graphs = [labelled_chain(int(n), 3, 2, True, 0) for n in rng.integers(2, 5, 11)]
    ids = [[0 if len(s) == 3 else 100 * b + f for f, s in enumerate(g.scopes, 1)] for b, g in enumerate(graphs)]
    batch = Batch.build(graphs, ids)
    theta = random_potentials(rng, batch, 1.0, 0.0)
    labels = batch.var_ptr[:-1]
    query = Query(np.isin(np.arange(batch.n_vars), labels), np.ones(batch.n_states, dtype=bool))
    some = rng.random((len(batch), 3)) < 0.4
    some[np.arange(len(batch)), rng.integers(3, size=len(batch))] = True
    mask = np.ones(batch.n_states, dtype=bool)
    mask[(batch.unary_ptr[labels][:, None] + np.arange(3)).ravel()] = some.ravel()
    given = query.restrict(mask)
    high, low = (Enumerate()(batch, theta, q, eps_y, eps_h) for q in (query, given))
    pair = Exact().plan(batch).pair(query, given, eps_y, eps_h)
    assert isinstance(pair, CutsetPair)
    copy = Potentials(theta.unary.copy(), theta.tables.copy())
    for found in (pair(theta, theta), pair(theta, copy)):
        assert np.allclose(found.plus, high.value, atol=1e-10) and np.allclose(found.minus, low.value, atol=1e-10)
        assert np.allclose(found.mu.unary, (high.mu - low.mu).unary, atol=1e-10)
        assert np.allclose(found.mu.tables, (high.mu - low.mu).tables, atol=1e-10)


def test_one_pass_for_both_only_where_it_can_give_them() -> None:
    rng = np.random.default_rng(4)
    batch = Batch.build([labelled_chain(3, 3, 2, True, 0)] * 2, [[0, 1, 2, 3, 3]] * 2)
    theta = random_potentials(rng, batch, 1.0, 0.0)
    query = Query(batch.owner * 0 == np.arange(batch.n_vars) % 4, np.ones(batch.n_states, dtype=bool))
    inside = query.clamp(batch, np.array([1]), np.array([0]))
    plan = Exact().plan(batch)
    assert not isinstance(plan.pair(query, inside, 1.0, 1.0), CutsetPair)
    label = query.clamp(batch, np.array([0, 4]), np.array([1, 2]))
    assert isinstance(plan.pair(query, label, 1.0, 1.0), CutsetPair)
    found, plus = plan.pair(query, label, 0.0, 0.0)(theta, theta), Exact()(batch, theta, query, 0.0, 0.0)
    assert np.allclose(found.plus, plus.value)

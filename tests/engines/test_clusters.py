"""Graphs as forests of clusters: labels with edges of their own beside hidden variables, against brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from builders import random_query
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines import clusters
from mssvm.engines.base import METHODS
from mssvm.engines.clusters import clusters_of
from mssvm.engines.native.clustering import ClusterPlan, cluster_routes
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact
from mssvm.objectives.training import TrainingProblem
from mssvm.structures.encoded import to_sample

PAIRS = list(product((0.0, 0.03, 0.5, 1.0), repeat=2))
CLUSTERING = Exact(methods=tuple(name for name in METHODS if name != "conditioning"))
ELIMINATION = Exact(methods=METHODS[-1:])


def constrained(length: int, labels: int, hidden: int, linked: bool) -> Topology:
    """The graph of ``Chain(hidden=..., linked=..., direct=True)``."""
    n = length if linked else length - 1
    edges = [(t, t + 1) for t in range(length - 1)]
    if linked:
        edges += [(t, length + t) for t in range(length)] + [(length + t, length + t + 1) for t in range(length - 1)]
    else:
        edges += [(t, length + t) for t in range(n)] + [(length + t, t + 1) for t in range(n)]
    return Topology((labels,) * length + (hidden,) * n, tuple(edges))


def case(rng: np.random.Generator, lengths: Any, labels: int, linked: bool, tied: bool, scale: float) -> Any:
    """Ragged chains with forbidden pairs, roles of labels and hidden variables, and no masks."""
    graphs = [constrained(t, labels, 2, linked) for t in lengths]
    kinds = [[0] * (t - 1) + [1] * (t if linked else t - 1) + [2] * (t - 1) for t in lengths]
    batch = Batch.build(graphs, kinds if tied else None)
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < 0.15] = -np.inf
    theta.unary[rng.random(batch.n_states) < 0.03] = -np.inf
    return batch, theta, Query.of(batch, batch.cards == labels)


def partly(rng: np.random.Generator, batch: Batch, query: Query, missing: float, keep: float) -> Query:
    """Some labels missing, some states not allowed."""
    allowed = rng.random(batch.n_states) < keep
    allowed[batch.unary_ptr[:-1] + rng.integers(0, batch.cards)] = True
    return Query(query.output & (rng.random(batch.n_vars) >= missing), allowed)


def assert_same(found: Belief, expected: Belief, within: float = 1e-9) -> None:
    np.testing.assert_allclose(found.value, expected.value, rtol=within, atol=within)
    np.testing.assert_allclose(found.mu.unary, expected.mu.unary, rtol=within, atol=within)
    np.testing.assert_allclose(found.mu.tables, expected.mu.tables, rtol=within, atol=within)


@pytest.mark.parametrize("scale", [1.0, 20.0, 400.0])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(("missing", "keep"), [(0.0, 1.0), (0.4, 1.0), (0.3, 0.7), (0.0, 0.2)])
def test_chains_with_label_edges_equal_brute_force(missing: float, keep: float, linked: bool, scale: float) -> None:
    rng = np.random.default_rng([int(10 * missing), int(10 * keep), linked, int(scale)])
    batch, theta, query = case(rng, [4, 3, 4, 2, 4, 3, 4, 4, 2, 4], 3, linked, True, scale)
    query = partly(rng, batch, query, missing, keep)
    for eps_y, eps_h in PAIRS:
        found = CLUSTERING(batch, theta, query, eps_y, eps_h)
        assert_same(found, Enumerate()(batch, theta, query, eps_y, eps_h))
        if not linked or eps_y == eps_h:
            assert set(found.status.method) <= {"clustering", "given states"}


@pytest.mark.parametrize("linked", [False, True])
def test_labels_that_are_given_leave_a_forest(linked: bool) -> None:
    """A pair of given labels that is forbidden makes its instance impossible, and no other."""
    rng = np.random.default_rng(3)
    batch, theta, query = case(rng, [4, 3, 4, 2, 4, 3, 4, 4, 2, 4], 3, linked, True, 1.0)
    theta.tables[:9] = rng.normal(size=9)
    theta.tables[1] = -np.inf  # label 1 after label 0
    states = rng.integers(1, 3, batch.n_vars)
    states[batch.var_ptr[4]], states[batch.var_ptr[4] + 1] = 0, 1
    given = query.clamp(batch, np.flatnonzero(query.output), states[query.output])
    for eps_y, eps_h in PAIRS:
        found = CLUSTERING(batch, theta, given, eps_y, eps_h)
        assert_same(found, Enumerate()(batch, theta, given, eps_y, eps_h))
        assert found.value[4] == -np.inf and set(found.status.method) == {"clustering"}


@pytest.mark.parametrize("seed", range(6))
def test_any_roles_and_own_tables(seed: int) -> None:
    """Where tables are not shared the dispatcher prefers elimination; clusters are as right."""
    rng = np.random.default_rng(seed)
    batch, theta, _ = case(rng, [4, 3, 2, 4, 3], 3, seed % 2 == 1, False, 1.0)
    query = random_query(rng, batch)
    plan = ClusterPlan(batch, True, [clusters_of(topology) for topology in batch.topologies])
    for eps_y, eps_h in PAIRS:
        able = plan._roles(query)[1] if eps_y != eps_h else np.ones(len(batch), dtype=bool)
        able &= plan.forests.supports(plan.query(query), eps_y, eps_h)
        expected = Enumerate()(batch, theta, query, eps_y, eps_h)
        value, mu = np.zeros(len(batch)), Marginals.zeros(batch)
        for route in cluster_routes(plan, query, eps_y, eps_h, np.flatnonzero(able), Workers()):
            route.infer_into(theta, value, mu)
        mine, states, entries = able, able[batch.owner][batch.state_var], able[batch.mu_owner]
        np.testing.assert_allclose(value[mine], expected.value[mine], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(mu.unary[states], expected.mu.unary[states], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(mu.tables[entries], expected.mu.tables[entries], rtol=1e-9, atol=1e-9)
        assert not mu.unary[~states].any() and not mu.tables[~entries].any()


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("linked", [False, True])
def test_the_same_as_elimination_to_the_last_digits(linked: bool, missing: float) -> None:
    rng = np.random.default_rng(5)
    batch, theta, query = case(rng, rng.integers(15, 40, 60), 7, linked, True, 1.0)
    query = partly(rng, batch, query, missing, 0.9)
    for eps_y, eps_h in [(1.0, 1.0), (0.0, 0.0)] if linked else [(1.0, 1.0), (0.0, 1.0), (0.03, 1.0), (0.0, 0.0)]:
        found = Exact()(batch, theta, query, eps_y, eps_h)
        assert set(found.status.method) == {"clustering"}
        assert_same(found, ELIMINATION(batch, theta, query, eps_y, eps_h), 1e-12)


def test_thin_graphs_have_clusters_and_wide_ones_have_none() -> None:
    found = clusters_of(constrained(5, 4, 3, False))
    assert found is not None and found.forest.cards == (4,) * 5 + (12,) * 4 and found.forest.n_factors == 8
    found = clusters_of(constrained(5, 4, 3, True))
    assert found is not None and found.forest.n_factors == found.forest.n_vars - 1 and max(found.forest.cards) == 12
    assert clusters_of(constrained(5, 12, 3, True)) is None  # tables of 36 x 36 entries
    assert clusters_of(Topology((3,) * 4, ((0, 1, 2), (2, 3)))) is None
    assert clusters_of(Topology((2,) * 5, tuple((a, b) for a in range(5) for b in range(a)))) is None


def test_threads_change_no_bit() -> None:
    rng = np.random.default_rng(7)
    batch, theta, query = case(rng, rng.integers(2, 9, 150), 4, False, True, 1.0)
    for pair in [(1.0, 1.0), (0.0, 1.0)]:
        one, two = (Exact(threads=n)(batch, theta, query, *pair) for n in (1, 2))
        assert np.array_equal(one.value, two.value) and np.array_equal(one.mu.unary, two.mu.unary)
        assert np.array_equal(one.mu.tables, two.mu.tables)


@pytest.mark.parametrize("eps", [(1.0, 1.0), (0.25, 1.0), (0.03, 0.5)])
@pytest.mark.parametrize(
    "given", [{"forbidden": [("a", "c"), (None, "b")]}, {"forced": {"a": ["a", "b"]}, "direct": True}]
)
def test_gradients_of_constrained_chains_match_finite_differences(given: Any, eps: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 2)) for n in (5, 4, 5, 3, 6, 6)]
    y = [["a", {"a", "b"}, *rng.choice(["a", "b", ms.MISSING], len(x) - 2).tolist()] for x in X[:-1]]
    y.append(list("aaabbc"))
    model = ms.UnifiedSSVM(ms.Chain(hidden=2, **given), eps_y=eps[0], eps_h=eps[1], max_iter=1).fit(X, y)
    encoder = model.encoder_
    encoded = encoder.encode(X)
    sample = to_sample(encoded, encoder.vocabulary.encode(y, encoded.labels.shapes))
    objective = model._objective(model._loss())
    problem = TrainingProblem(objective, encoder.model, sample, Exact(), 1.0)
    w = rng.normal(size=encoder.layout.n_weights)
    slope = problem.difference(w).gradient
    for j, e in enumerate(np.eye(len(w)) * 1e-5):
        change = (problem.difference(w + e).total - problem.difference(w - e).total) / 2e-5
        assert slope[j] == pytest.approx(change, abs=1e-5)


def test_elimination_stays_where_clusters_would_not_run_side_by_side() -> None:
    rng = np.random.default_rng(9)
    for lengths, labels, tied, pair, able in [
        ([30] * 3, 60, True, (0.0, 1.0), True),
        ([300] * 3, 60, True, (0.0, 1.0), False),  # rows of too many registers
        ([300] * 3, 60, True, (1.0, 1.0), True),
        ([30] * 3, 10, False, (1.0, 1.0), False),  # tables of their own
        ([30] * 2, 10, True, (1.0, 1.0), False),
    ]:
        batch, _, query = case(rng, lengths, labels, False, tied, 1.0)
        plan = ClusterPlan(batch, True, [clusters_of(topology) for topology in batch.topologies])
        assert plan.supports(query, *pair).tolist() == [able] * len(lengths)
    assert clusters_of(constrained(2, 300, 2, False)) is None


def test_graphs_that_arrays_rule_out_have_no_clustering() -> None:
    rng = np.random.default_rng(0)
    ruled_out = 0
    for _ in range(300):
        n = int(rng.integers(1, 30))
        n_factors = int(rng.integers(0, 2 * n)) if n > 1 else 0
        ends = [rng.choice(n, 2, replace=False).tolist() for _ in range(n_factors)]
        topology = Topology(rng.integers(1, 5, n).tolist(), ends)
        graph: list[set[int]] = [set() for _ in range(n)]
        for a, b in topology.scopes:
            graph[a].add(b)
            graph[b].add(a)
        if clusters._has_no_clusters(topology):
            ruled_out += 1
            assert clusters._triangles(topology, graph) is None
            assert clusters._layers(topology, graph) is None
    assert ruled_out > 20

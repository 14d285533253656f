"""Exact maxima by toulbar2: against brute force, within its time, and what is said where it has no answer."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError, MssvmWarning, UnsupportedError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference import toulbar2
from mssvm.inference.enumerate import Enumerate, entries
from mssvm.inference.toulbar2 import Toulbar2, WholeCosts, resolution


def case(seed: int = 0, zeros: float = 0.2) -> tuple[Batch, Potentials, Query]:
    """Three instances, two of them with the same tables, masks and forbidden entries among them."""
    rng = np.random.default_rng(seed)
    loop = Topology((2, 3, 2, 2), ((0, 1), (1, 2), (2, 3), (3, 0), (0, 1, 2)))
    batch = Batch.build([loop, loop, Topology((3, 3), ((1, 0),))], [[0, 1, 2, 2, 3], [0, 1, 2, 2, 3], [4]])
    theta = Potentials(rng.normal(size=batch.n_states), 3.0 * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < zeros] = -np.inf
    query = Query.of(batch, rng.random(batch.n_vars) < 0.5).clamp(batch, np.array([5]), np.array([2]))
    return batch, theta, query


@pytest.mark.parametrize("threads", [1, 2])
def test_maxima_and_marginals_are_those_of_brute_force(threads: int) -> None:
    for seed in range(2):
        batch, theta, query = case(seed)
        expected = Enumerate()(batch, theta, query, 0.0, 0.0)
        assert np.isfinite(expected.value).all()
        belief = Toulbar2(threads=threads)(batch, theta, query, 0.0, 0.0)
        assert belief.value == pytest.approx(expected.value)
        assert np.allclose(belief.mu.unary, expected.mu.unary) and np.allclose(belief.mu.tables, expected.mu.tables)
        assert belief.status.exact.all() and belief.status.method == ("toulbar2",) * 3
        assert (belief.status.lower <= expected.value + 1e-9).all() and (belief.status.upper >= expected.value).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e-6, 1.0, 1e6, 1e15])
def test_the_best_labelling_is_found_whatever_the_scale_of_scores(scale: float) -> None:
    """The precision of costs is relative: exact means within the rounding of sums in double precision."""
    batch, theta, query = case(0)
    small = Potentials(scale * theta.unary, scale * theta.tables)
    expected = Enumerate()(batch, small, query, 0.0, 0.0)
    belief = Toulbar2()(batch, small, query, 0.0, 0.0)
    np.testing.assert_array_equal(belief.mu.unary, expected.mu.unary)
    np.testing.assert_allclose(belief.value, expected.value, rtol=1e-13)
    assert belief.status.exact.all()
    assert np.all(belief.status.upper >= np.nextafter(expected.value, -np.inf))
    assert np.all(belief.status.upper - belief.value <= 1e-13 * scale * 100.0)


def test_bounds_hold_for_every_labelling_in_exact_arithmetic() -> None:
    """The bound from the best whole cost, by enumeration in rational numbers, is above every score and within the
    resolution of the best."""
    rng = np.random.default_rng(2)
    graph = Topology((2, 3, 2), ((0, 1), (1, 2), (2, 0), (0, 1, 2)))
    for scale in (1e-9, 0.1, 1e7):
        batch = Batch.build([graph])
        theta = Potentials(
            scale * rng.normal(size=batch.n_states) + scale, scale * rng.normal(size=batch.n_table_entries)
        )
        query = Query.all_outputs(batch)
        costs = WholeCosts.of(batch, 0, theta, query)
        scores = []
        wholes = []
        for z in product(*map(range, graph.cards)):
            unary_at, table_at, _ = entries(batch, 0, np.array([z]))
            numbers = [*theta.unary[unary_at].ravel(), *theta.tables[table_at].ravel()]
            scores.append(sum(Fraction(float(number)) for number in numbers))
            shapes = ((scope, costs_of.reshape([graph.cards[v] for v in scope])) for scope, costs_of in costs.functions)
            wholes.append(sum(int(table[tuple(z[v] for v in scope)]) for scope, table in shapes))
        assert 2**50 < max(wholes) < costs.most <= 2**52
        upper = Fraction(costs.upper(float(min(wholes))))
        assert max(scores) <= upper
        assert upper - scores[wholes.index(min(wholes))] <= Fraction(resolution(batch, 0, theta, query))


def test_what_has_no_answer_is_answered_by_auto_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = case()
    expected = Enumerate()(batch, theta, query, 0.0, 0.0)
    read = WholeCosts.read
    monkeypatch.setattr(WholeCosts, "read", lambda costs, found: None if len(costs.cards) == 2 else read(costs, found))
    with pytest.warns(MssvmWarning, match="found nothing for 1 instances"):
        belief = Toulbar2()(batch, theta, query, 0.0, 0.0)
    assert belief.value == pytest.approx(expected.value) and np.allclose(belief.mu.tables, expected.mu.tables)
    assert belief.status.method[:2] == ("toulbar2",) * 2 and belief.status.method[2] != "toulbar2"


def test_without_the_solver_auto_answers_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = case()
    monkeypatch.setattr(toulbar2, "find_spec", lambda name: None)
    with pytest.warns(MssvmWarning, match="not installed"):
        belief = Toulbar2()(batch, theta, query, 0.0, 0.0)
    assert belief.value == pytest.approx(Enumerate()(batch, theta, query, 0.0, 0.0).value)


def test_a_limit_that_is_too_short_leaves_bounds_and_the_next_instance_is_solved() -> None:
    rng = np.random.default_rng(0)
    n = 60
    pairs = tuple((i, j) for i in range(60) for j in range(i) if rng.random() < 0.5)
    batch = Batch.build([Topology((4,) * n, pairs), Topology((2, 2), ((0, 1),))])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    belief = Toulbar2(time_limit=1.0)(batch, theta, Query.all_outputs(batch), 0.0, 0.0)
    status = belief.status
    assert status.exact.tolist() == [False, True] and status.upper[0] > belief.value[0] == status.lower[0]


def test_refusals() -> None:
    batch, theta, query = case()
    with pytest.raises(UnsupportedError, match="eps_y = eps_h = 0"):
        Toulbar2()(batch, theta, query, 0.0, 1.0)
    with pytest.raises(InputError, match="time_limit"):
        Toulbar2(time_limit=0.0)


def test_cutting_planes_certify_on_a_loopy_graph() -> None:
    """Trained by name with proven maxima, the gap is that of exact inference."""
    rng = np.random.default_rng(1)
    y = [(rng.random((4, 4)) < 0.5).astype(int) for _ in range(3)]
    X = [np.dstack([label, np.ones((4, 4))]) + 0.7 * rng.normal(size=(4, 4, 2)) for label in y]
    fits = [
        ms.SSVM(ms.Grid(), C=1.0, solver="cutting-plane", inference=inference, max_iter=40).fit(X, y)
        for inference in ("exact", "toulbar2")
    ]
    values = [fit.objective_ for fit in fits]
    assert values[1] == pytest.approx(values[0], rel=1e-3)

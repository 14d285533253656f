"""Forests at the boundary of the compiled library: records that do not fit, lanes that run again, sides and costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, MssvmError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.recycling import WORTH_KEEPING, RecycledArray
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import ExactSettings
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.native.exact import GivenStates
from mssvm.engines.native.families import FAMILY
from mssvm.engines.native.forests import FORESTS, WRITTEN, ForestCall, ForestPlan, ForestRoute
from mssvm.engines.native.maps import EntryMap
from mssvm.engines.reference import ReferenceEngine


def chains(count: int, n: int = 4, states: int = 3) -> tuple[Batch, Potentials, Query]:
    """Chains with one table, every second variable hidden."""
    rng = np.random.default_rng(count)
    graph = Topology((states,) * n, tuple((t, t + 1) for t in range(n - 1)))
    batch = Batch.build([graph] * count, [[0] * (n - 1)] * count)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.of(batch, np.arange(batch.n_vars) % 2 == 0)


def route_of(batch: Batch, query: Query, eps_y: float, eps_h: float, threads: int = 1) -> ForestRoute:
    return ForestRoute(ForestPlan(batch), query, eps_y, eps_h, np.arange(len(batch)), Workers(threads))


def reference(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Any:
    return ReferenceEngine().exact(batch, ExactSettings()).bind(query, eps_y, eps_h)(theta)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("card", np.array([3, 3, 3]), "columns of different lengths"),
        ("card", np.array([3, 3, 3, 4]), "lie outside the family|another shape"),
        ("parent", np.array([1, 0, 3, 4]), "comes after its parent"),
        ("slot", np.array([0, 0, 7, -1]), "no table to its parent"),
        ("at", np.array([0, 3, 6, 10]), "lie outside the family"),
        ("shapes", np.array([[5, 3, 3]]), "a table lies outside the batch"),
        ("kind", np.array([0, 1]), "unknown kind"),
        ("first", np.array([0, 13]), "scores lie outside the batch"),
        ("instance", np.array([0, 2]), "no instance of the batch"),
        ("mu_at", np.array([[0], [10]]), "marginals lie outside the batch"),
        ("segment_ptr", np.array([0, 2]), "segments do not end"),
        ("segments", np.array([[0, 1, 12]]), "a segment lies outside the family"),
        ("roles", np.zeros(7, dtype=np.uint8), "columns of different lengths"),
        ("allowed", np.ones(5, dtype=bool), "the mask has another length"),
        ("eps_y", -1.0, "negative or not finite"),
        ("eps_h", np.nan, "negative or not finite"),
        ("side", 2, "a side other than 0 and 1"),
    ],
)
def test_families_that_do_not_fit_are_refused(field: str, value: Any, sentence: str) -> None:
    batch, theta, query = chains(2)
    (fields,) = route_of(batch, query, 0.3, 1.0).families
    sound = FAMILY(**fields, side=0)
    high, low = np.zeros((2, 2))
    mu = Marginals.zeros(batch)
    ForestCall(batch, [sound], None)(theta, high, low, mu, 1)
    with pytest.raises(MssvmError, match=sentence):
        ForestCall(batch, [FAMILY(**{**fields, "side": 0, field: value})], None)(theta, high, low, mu, 1)


def test_arrays_of_other_lengths_are_refused() -> None:
    batch, theta, query = chains(2)
    records = route_of(batch, query, 1.0, 1.0).records(0)
    high, low = np.zeros((2, 2))
    mu = Marginals.zeros(batch)
    with pytest.raises(MssvmError, match="marginals have another length"):
        ForestCall(batch, records, None)(theta, high, low, Marginals(mu.unary[:-1].copy(), mu.tables), 1)
    with pytest.raises(MssvmError, match="costs have another length than scores"):
        ForestCall(batch, records, Potentials(np.zeros(3), np.zeros(9)))(theta, high, low, mu, 1)
    with pytest.raises(MssvmError, match="costs have another length than tables"):
        ForestCall(batch, records, Potentials(np.zeros(24), np.zeros(3)))(theta, high, low, mu, 1)
    with pytest.raises(MssvmError, match="no instance of the batch"):
        ForestCall(batch, records, None)(theta, np.zeros(1), low, mu, 1)
    with pytest.raises(MssvmError, match="no instance of the batch"):
        ForestCall(batch, route_of(batch, query, 1.0, 1.0).records(1), None)(theta, high, np.zeros(0), mu, 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"of": np.array([2])}, "unknown kind"),
        ({"here": np.array([3])}, "outside the forests"),
        ({"place": np.array([-1])}, "outside the graphs"),
        ({"at": np.array([1])}, "too few places"),
        ({"ptr": np.array([0, 2])}, "runs do not end"),
        ({"here": np.array([0, 0])}, "different lengths"),
    ],
)
def test_maps_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    fields: dict[str, Any] = {
        "of": np.array([0]),
        "here": np.array([0]),
        "at": np.array([0]),
        "place": np.array([0]),
        "ptr": np.array([0, 1]),
        "runs": np.array([[0, 0, 0, 2, 1, 1]]),
    }
    graphs, forests = np.array([1.0, 2.0]), np.zeros(3)
    EntryMap(**fields).add(graphs, forests)
    assert forests.tolist() == [1.0, 2.0, 0.0]
    with pytest.raises(MssvmError, match=sentence):
        EntryMap(**(fields | changes)).add(graphs, forests)


def test_a_map_and_its_transpose() -> None:
    rng = np.random.default_rng(0)
    rows = [np.stack([rng.integers(0, 6, n), rng.integers(0, 2, n), rng.integers(0, 4, n)], axis=1) for n in (9, 0, 14)]
    of, here = np.array([0, 2, 1, 2]), np.array([0, 6, 12, 18])
    made = EntryMap.make(of, here, 2 * np.arange(4), 4 * np.arange(8), rows)
    matrix = np.zeros((24, 32))
    for i, kind in enumerate(of):
        for to, slot, entry in rows[kind]:
            matrix[here[i] + to, 4 * (2 * i + slot) + entry] += 1.0
    graphs, forests, weight = rng.normal(size=32), rng.normal(size=24), rng.normal(size=4)
    out, back = np.zeros(24), np.zeros(32)
    made.add(graphs, out)
    made.add_back(forests, back, weight)
    np.testing.assert_allclose(out, matrix @ graphs, atol=1e-12)
    np.testing.assert_allclose(back, matrix.T @ (np.repeat(weight, 6) * forests), atol=1e-12)


@pytest.mark.parametrize("eps", [1.0, 0.05])
def test_only_the_lane_that_is_not_safe_runs_again_in_scores(eps: float) -> None:
    """A star whose three leaves contradict its centre in one instance, by 200 temperatures each."""
    star = Topology((2,) * 4, ((0, 3), (1, 3), (2, 3)))
    batch = Batch.build([star] * 21, [[0] * 3] * 21)
    theta = Potentials(eps * np.random.default_rng(0).normal(size=batch.n_states), eps * np.array([0.0, -200, -200, 0]))
    theta.unary[batch.state_span(5)] = eps * np.array([0.0, 900, 0, 900, 0, 900, 600, 0])
    value, mu = np.zeros(21), Marginals.zeros(batch)
    query = Query.all_outputs(batch)
    assert route_of(batch, query, eps, eps).infer_into(theta, value, mu) == (0, 20, 1)
    want = reference(batch, theta, query, eps, eps)
    np.testing.assert_allclose(value, want.value, rtol=1e-12)
    np.testing.assert_allclose(mu.unary, want.mu.unary, atol=1e-10)
    np.testing.assert_allclose(mu.tables, want.mu.tables, atol=1e-10)


@pytest.mark.parametrize("eps", [(1.0, 1.0), (0.5, 1.0)])
def test_a_state_that_underflows_may_win_through_the_edge_above(eps: tuple[float, float]) -> None:
    """State 1 of the middle is 720 behind; two children are 270 each for it, and its parent 200: 740 in all."""
    graph = Topology((2, 2, 2, 2), ((0, 2), (1, 2), (2, 3)))
    batch = Batch.build([graph] * 3, [[0, 0, 1]] * 3)
    unary = np.tile([0.0, 0.0, 0.0, 0.0, 0.0, -720.0, 0.0, 0.0], 3)
    theta = Potentials(unary, np.array([-270.0, 0.0, -270.0, 0.0, -200.0, -200.0, 0.0, 0.0]))
    for output in (np.ones(12, dtype=bool), np.tile([False, False, False, True], 3)):
        query, value, mu = Query.of(batch, output), np.zeros(3), Marginals.zeros(batch)
        route_of(batch, query, *eps).infer_into(theta, value, mu)
        want = reference(batch, theta, query, *eps)
        np.testing.assert_allclose(value, want.value, rtol=1e-12)
        np.testing.assert_allclose(mu.unary, want.mu.unary, atol=1e-10)


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.25, 1.0), (0.0, 1.0)])
def test_two_sides_and_a_cost_in_one_call(eps_y: float, eps_h: float, threads: int) -> None:
    batch, theta, query = chains(150, 5)
    rng = np.random.default_rng(1)
    theta.unary[batch.state_span(77)] *= 1e4  # in scores
    cost = Potentials(rng.random(batch.n_states), rng.random(batch.n_table_entries))
    mask = np.ones(batch.n_states, dtype=bool)
    mask[batch.unary_ptr[:-1][query.output]] = False
    given = query.restrict(mask)
    plus, minus = (route_of(batch, q, eps_y, eps_h) for q in (query, given))
    value, mu = np.zeros((2, 150)), Marginals(np.full(batch.n_states, np.nan), np.full(batch.n_mu_entries, np.nan))
    call = ForestCall(batch, plus.records(0) + minus.records(1), cost)
    call(theta, *value, mu, threads)
    high, low = (reference(batch, t, q, eps_y, eps_h) for t, q in ((theta + cost, query), (theta, given)))
    np.testing.assert_allclose(value, [high.value, low.value], rtol=1e-12)
    np.testing.assert_allclose(mu.unary, high.mu.unary - low.mu.unary, atol=1e-9)
    np.testing.assert_allclose(mu.tables, high.mu.tables - low.mu.tables, atol=1e-9)
    other_value, other = np.zeros((2, 150)), Marginals.zeros(batch)
    call(theta, *other_value, other, 1)
    np.testing.assert_array_equal(value, other_value)
    np.testing.assert_array_equal(mu.unary, other.unary)
    np.testing.assert_array_equal(mu.tables, other.tables)
    cost.unary[5] = np.inf
    with pytest.raises(InputError, match=r"potentials\.unary holds NaN"):
        call(theta, *value, mu, threads)
    cost.unary[5] = 0.0
    cost.tables[-1] = np.nan
    with pytest.raises(InputError, match=r"potentials\.tables holds NaN"):
        call(theta, *value, mu, threads)


def test_given_states_refuse_scores_of_another_size() -> None:
    batch, theta, query = chains(2)
    given = GivenStates(batch, query.clamp(batch, np.arange(8), np.zeros(8, dtype=np.int64)), np.arange(2))
    value, mu = np.zeros(2), Marginals.zeros(batch)
    given.infer_into(theta, value, mu)
    sums = theta.unary[::3].reshape(2, 4).sum(axis=1) + 3 * theta.tables[0]
    np.testing.assert_allclose(value, sums, rtol=1e-12)
    for wrong in (Potentials(theta.unary[:-1], theta.tables), Potentials(theta.unary, theta.tables[:-1])):
        with pytest.raises(MssvmError, match="another size than the batch of the given states"):
            given.infer_into(wrong, value, mu)
    with pytest.raises(MssvmError, match="another size than the batch of the given states"):
        given.infer_into(theta, value, Marginals(mu.unary, mu.tables[:-1]))


def test_a_call_goes_on_where_its_cursor_is() -> None:
    batch, theta, query = chains(150)
    call = ForestCall(batch, route_of(batch, query, 1.0, 1.0).records(0), None)
    value, mu = np.zeros(150), Marginals.zeros(batch)
    record = call.record.changed(
        unary=theta.unary,
        tables=theta.tables,
        value=value,
        mu_unary=mu.unary,
        mu_tables=mu.tables,
        task=2,  # after two blocks of 64
    )
    FORESTS.run(record)
    want = reference(batch, theta, query, 1.0, 1.0)
    np.testing.assert_array_equal(value[:128], 0.0)
    np.testing.assert_allclose(value[128:], want.value[128:], rtol=1e-12)
    assert [record.get(name) for name in WRITTEN] == [2, 0, 0, 22, 0]


def test_every_entry_of_the_marginals_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of results is not cleared before a call; an infeasible instance and masked states are zeros."""

    def full_of_nothing(recycled: RecycledArray) -> Floats:
        return np.full(recycled.size, np.nan)

    batch, theta, query = chains(9)
    theta.tables[:] = np.where(np.arange(len(theta.tables)) % 4 == 0, -np.inf, theta.tables)
    theta.unary[:3] = -np.inf
    query.allowed[[5, 40]] = False
    monkeypatch.setattr(RecycledArray, "empty", full_of_nothing)
    for eps_y, eps_h in ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 1.0)):
        belief = NativeEngine().exact(batch, ExactSettings()).bind(query, eps_y, eps_h)(theta)
        expected = reference(batch, theta, query, eps_y, eps_h)
        np.testing.assert_allclose(belief.mu.unary, expected.mu.unary, atol=1e-12)
        np.testing.assert_allclose(belief.mu.tables, expected.mu.tables, atol=1e-12)


@pytest.mark.parametrize("count", [9, WORTH_KEEPING // 8])
def test_results_are_the_callers_own(count: int) -> None:
    batch, theta, query = chains(count)
    bound = NativeEngine().exact(batch, ExactSettings()).bind(query, 1.0, 1.0)
    first = bound(theta)
    kept = first.mu.unary.copy(), first.mu.tables.copy()
    second = bound(theta + theta)
    assert not np.shares_memory(first.mu.unary, second.mu.unary)
    assert not np.shares_memory(first.mu.tables, second.mu.tables)
    np.testing.assert_array_equal(first.mu.unary, kept[0])
    np.testing.assert_array_equal(first.mu.tables, kept[1])

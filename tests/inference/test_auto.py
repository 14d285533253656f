"""The choice between exact inference and propagation: by predicted cost, per instance, and said in the status."""

from __future__ import annotations

import numpy as np
import pytest

from builders import grid_scopes, random_case
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.auto import Auto, entries_per_sweep
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate


def grids(*shapes: tuple[int, int]) -> tuple[Batch, Potentials, Query]:
    rng = np.random.default_rng(0)
    batch = Batch.build([Topology((3,) * (r * c), tuple(grid_scopes(r, c))) for r, c in shapes])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5)


def test_everything_that_fits_is_exact():
    case = random_case("mixed", 40, seed=3)
    for eps_y, eps_h in ((0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0)):
        ours = Auto()(case.batch, case.theta, case.query, eps_y, eps_h)
        exact = Exact()(case.batch, case.theta, case.query, eps_y, eps_h)
        np.testing.assert_array_equal(ours.value, exact.value)
        np.testing.assert_array_equal(ours.mu.tables, exact.mu.tables)
        assert ours.status.exact.all()


def test_instances_that_do_not_fit_are_propagated_and_the_status_says_so():
    batch, theta, query = grids((2, 2), (12, 12), (1, 5), (12, 13))
    auto = Auto(memory_limit=1 << 20, operations_limit=1e6)
    belief = auto(batch, theta, query, 0.0, 1.0)
    fits = auto.plan(batch).fits(query, 0.0, 1.0)
    assert fits.tolist() == [True, False, True, False]
    assert belief.status.exact[fits].all()
    assert belief.status.method[0] in ("elimination", "tree recursion", "conditioning")
    assert belief.status.method[1] not in ("elimination", "tree recursion", "conditioning", "")
    exact = Exact()(batch.select([0, 2]), *_part(batch, theta, query, [0, 2]), 0.0, 1.0)
    np.testing.assert_allclose(belief.value[[0, 2]], exact.value)
    propagated = Propagate()(batch, theta, query, 0.0, 1.0)
    np.testing.assert_array_equal(belief.value[[1, 3]], propagated.value[[1, 3]])
    for b in range(4):
        span = batch.state_span(b)
        np.testing.assert_allclose(belief.mu.unary[span].sum(), batch.topology(b).n_vars)


def test_exact_inference_that_takes_no_longer_than_propagation_is_chosen_beyond_the_limit():
    triples = [(t, t + 1, t + 2) for t in range(8)]
    chain = Topology((3,) * 10, [(t, t + 1) for t in range(9)] + triples)
    batch = Batch.build([chain, Topology((3,) * 64, tuple(grid_scopes(8, 8)))])
    query = Query.all_outputs(batch)
    assert entries_per_sweep(batch).tolist() == [9 * 2 * 9 + 8 * 3 * 27, 112 * 2 * 9]
    assert Auto(operations_limit=100.0).plan(batch).fits(query, 1.0, 1.0).tolist() == [False, False]
    assert Auto(operations_limit=100.0, sweeps=12.0).plan(batch).fits(query, 1.0, 1.0).tolist() == [True, False]
    assert Auto(sweeps=0.1).plan(batch).fits(query, 1.0, 1.0).tolist() == [True, True]


def _part(batch: Batch, theta: Potentials, query: Query, which: list[int]) -> tuple[Potentials, Query]:
    from builders import state_rows, table_rows

    states = state_rows(batch, which)
    variables = np.isin(batch.owner, which)
    tables = table_rows(batch, batch.select(which), which)
    return Potentials(theta.unary[states], theta.tables[tables]), Query(query.output[variables], query.allowed[states])


def test_a_free_order_may_fit_where_hidden_first_does_not():
    batch, theta, query = grids((4, 12))
    auto = Auto(memory_limit=1 << 20, operations_limit=1e6)
    assert auto.plan(batch).fits(query, 1.0, 1.0).all()
    assert auto(batch, theta, query, 1.0, 1.0).status.exact.all()


def test_given_states_are_read_off():
    case = random_case("mixed", 60, seed=8)
    batch = case.batch
    rng = np.random.default_rng(0)
    some = np.flatnonzero(rng.random(batch.n_vars) < 0.9)
    query = case.query.clamp(batch, some, rng.integers(0, batch.cards[some]))
    query.allowed[batch.unary_ptr[some] + 0] |= query.n_allowed(batch)[some] == 0
    exact = Exact()(batch, case.theta, query, 0.5, 1.0)
    brute = Enumerate()(batch, case.theta, query, 0.5, 1.0)
    assert exact.status.method.count("given states") > 10
    np.testing.assert_allclose(exact.value, brute.value)
    np.testing.assert_allclose(exact.mu.unary, brute.mu.unary, atol=1e-12)
    np.testing.assert_allclose(exact.mu.tables, brute.mu.tables, atol=1e-12)


def test_bad_input_is_refused_whichever_method_is_chosen():
    batch, theta, query = grids((12, 12))
    theta.unary[3] = np.nan
    with pytest.raises(InputError, match="NaN"):
        Auto(memory_limit=1 << 20)(batch, theta, query, 0.0, 1.0)


def test_wide_graphs_are_measured_once_whatever_their_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too wide at one temperature is too wide at two, where every pattern of roles would be measured."""
    batch, _, query = grids((12, 12), (12, 12), (12, 12))
    plan = Auto(memory_limit=1 << 20, operations_limit=1e6).plan(batch)
    measured: list[tuple[float, float]] = []
    costs = type(plan.exact).costs

    def counted(exact, query, eps_y, eps_h, *marginals):
        measured.append((eps_y, eps_h))
        return costs(exact, query, eps_y, eps_h, *marginals)

    monkeypatch.setattr(type(plan.exact), "costs", counted)
    assert not plan.fits(query, 0.0, 1.0).any()
    assert measured == [(1.0, 1.0)]
    some, _, query = grids((2, 2), (12, 12))
    measured.clear()
    assert Auto(memory_limit=1 << 20, operations_limit=1e6).plan(some).fits(query, 0.0, 1.0).tolist() == [True, False]
    assert measured == [(1.0, 1.0), (0.0, 1.0)]

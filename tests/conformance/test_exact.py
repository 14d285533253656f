"""Every exact method against brute force on random models, for the nine temperature pairs and for tiny temperatures."""

from __future__ import annotations

import numpy as np
import pytest

from builders import KINDS, Case
from conformance.methods import METHODS, N_EACH, PAIRS, RANGES, TINY_PAIRS, case_of, expected, infer
from mssvm.core.arrays import Floats
from mssvm.core.potentials import Belief
from mssvm.inference.enumerate import Enumerate, score

TOLERANCE = 1e-9


def assert_values(got: Floats, want: Floats) -> None:
    """Equal to 1e-9 relative; -inf exactly where brute force says so."""
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=TOLERANCE, atol=TOLERANCE)


def assert_marginals(got: Belief, want: Belief) -> None:
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(got.mu.tables, want.mu.tables, rtol=TOLERANCE, atol=TOLERANCE)


def assert_decodes(case: Case, got: Belief, eps_h: float) -> None:
    """The decoded outputs, held fixed, have the value that was claimed; infeasible instances have no decode."""
    batch = case.batch
    z = got.decode(batch)
    feasible = np.isfinite(got.value)
    held = case.query.output & feasible[batch.owner]
    clamped = case.query.clamp(batch, np.flatnonzero(held), z[held])
    # A decode outside the mask would leave no allowed state, which Enumerate refuses by raising.
    again = Enumerate()(batch, case.theta, clamped, 0.0, eps_h)
    assert_values(got.value, again.value)


def test_there_are_at_least_200_models_of_every_sort() -> None:
    assert N_EACH * len(KINDS) >= 200
    cases = [case_of(kind) for kind in KINDS]
    graphs = [case.batch.topology(b) for case in cases for b in range(len(case.batch))]
    assert max(len(s) for g in graphs for s in g.scopes) == 4
    assert any(1 in g.cards for g in graphs) and any(len(set(g.cards)) > 2 for g in graphs)
    assert any(case.batch.n_mu_entries != case.batch.n_table_entries for case in cases)
    assert any(len(set(case.batch.mu_at.tolist())) < case.batch.n_factors for case in cases)
    values = np.concatenate([expected(kind, 1.0, False, 1.0, 1.0).value for kind in KINDS])
    assert 0 < np.isneginf(values).sum() < 30


@pytest.mark.parametrize("scale", RANGES)
@pytest.mark.parametrize(("eps_y", "eps_h"), [*PAIRS, *TINY_PAIRS])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_equals_brute_force(method: str, kind: str, eps_y: float, eps_h: float, scale: float) -> None:
    # Continuous random potentials have one maximiser, so marginals are comparable at eps = 0 too.
    case, want = case_of(kind, scale), expected(kind, scale, False, eps_y, eps_h)
    got = infer(method, case, eps_y, eps_h)
    assert_values(got.value, want.value)
    assert_marginals(got, want)
    if eps_y == 0.0:
        assert_decodes(case, got, eps_h)


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_ties_change_the_decode_but_not_the_value(method: str, kind: str, eps_y: float, eps_h: float) -> None:
    case, want = case_of(kind, integer=True), expected(kind, 1.0, True, eps_y, eps_h)
    got = infer(method, case, eps_y, eps_h)
    assert_values(got.value, want.value)
    if eps_y > 0.0 and eps_h > 0.0:
        assert_marginals(got, want)
    if eps_y == 0.0:
        assert_decodes(case, got, eps_h)
    if eps_y == eps_h == 0.0:
        feasible = np.isfinite(got.value)
        full = score(case.batch, case.theta, got.decode(case.batch))
        np.testing.assert_array_equal(full[feasible], got.value[feasible])
    if eps_h == 0.0 or eps_y == 0.0:
        # mu stays a subgradient: of the convex value along any direction.
        assert_subgradient(method, case, got, eps_y, eps_h)


def assert_subgradient(method: str, case: Case, got: Belief, eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(5)
    batch, feasible = case.batch, np.isfinite(got.value)
    du = np.where(np.isfinite(case.theta.unary), rng.normal(size=batch.n_states), 0.0)
    dt = np.where(np.isfinite(case.theta.tables), rng.normal(size=batch.n_table_entries), 0.0)
    moved = Case(batch, type(case.theta)(case.theta.unary + du, case.theta.tables + dt), case.query)
    slope = np.bincount(batch.owner[batch.state_var], weights=du * got.mu.unary, minlength=len(batch))
    slope += np.bincount(batch.mu_owner, weights=dt[batch.mu_source] * got.mu.tables, minlength=len(batch))
    there = Enumerate()(batch, moved.theta, case.query, eps_y, eps_h).value
    assert np.all(there[feasible] >= got.value[feasible] + slope[feasible] - 1e-9)

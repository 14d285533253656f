"""What mu must satisfy by itself: consistency, vertices, gradients, and independence of layout, order and threads."""

from __future__ import annotations

import numpy as np
import pytest

from builders import KINDS, Case, mu_rows, state_rows
from conformance.methods import METHODS, PAIRS, TINY, case_of, infer
from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, MemoryLimitError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.enumerate import Enumerate

SOME_PAIRS = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (1.0, 0.0), (TINY, 1.0)]
UNTIED = [kind for kind in KINDS if kind not in ("tied", "uniform", "mixed")]


def feasible_states(case: Case, belief: Belief) -> np.ndarray:
    return np.isfinite(belief.value)[case.batch.owner][case.batch.state_var]


@pytest.mark.parametrize(("eps_y", "eps_h"), [*PAIRS, (TINY, 1.0), (1.0, TINY)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_unary_marginals_are_distributions_on_allowed_states(
    method: str, kind: str, eps_y: float, eps_h: float
) -> None:
    case = case_of(kind)
    batch, belief = case.batch, infer(method, case, eps_y, eps_h)
    total = np.bincount(batch.state_var, weights=belief.mu.unary)
    feasible = np.isfinite(belief.value)[batch.owner]
    np.testing.assert_allclose(total[feasible], 1.0, rtol=1e-9)
    assert np.all(belief.mu.unary[~case.query.allowed] == 0.0)
    assert np.all(belief.mu.unary[np.isneginf(case.theta.unary)] == 0.0)
    assert np.all(belief.mu.tables[np.isneginf(case.theta.tables[batch.mu_source])] == 0.0)
    assert np.all(belief.mu.unary >= 0.0) and np.all(belief.mu.tables >= 0.0)
    # No assignment, no marginal: as with ``power_sum``, an infeasible instance has weight zero everywhere.
    assert np.all(belief.mu.unary[~feasible_states(case, belief)] == 0.0)
    assert np.all(belief.mu.tables[~np.isfinite(belief.value)[batch.mu_owner]] == 0.0)


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("kind", UNTIED)
@pytest.mark.parametrize("method", METHODS)
def test_table_marginals_sum_to_unary_marginals(method: str, kind: str, eps_y: float, eps_h: float) -> None:
    case = case_of(kind)
    batch, belief = case.batch, infer(method, case, eps_y, eps_h)
    for b in range(len(batch)):
        graph, first = batch.topology(b), batch.var_ptr[b]
        for f, scope in enumerate(graph.scopes):
            at = batch.mu_at[batch.factor_ptr[b] + f]
            table = belief.mu.tables[at : at + graph.table_sizes[f]].reshape(graph.table_shape(f))
            for axis, v in enumerate(scope):
                others = tuple(a for a in range(len(scope)) if a != axis)
                unary = belief.mu.unary[batch.unary_ptr[first + v] : batch.unary_ptr[first + v + 1]]
                np.testing.assert_allclose(table.sum(axis=others), unary, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("integer", [False, True], ids=["generic", "ties"])
@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0, TINY])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_zero_temperature_gives_a_vertex(method: str, kind: str, eps_h: float, integer: bool) -> None:
    case = case_of(kind, integer=integer)
    belief = infer(method, case, 0.0, eps_h)
    hard = np.ones(case.batch.n_states, dtype=bool) if eps_h == 0.0 else case.query.output[case.batch.state_var]
    at = belief.mu.unary[hard]
    np.testing.assert_allclose(at, np.round(at), atol=1e-12)
    if eps_h == 0.0:
        np.testing.assert_array_equal(belief.mu.unary, np.round(belief.mu.unary))
        np.testing.assert_array_equal(belief.mu.tables, np.round(belief.mu.tables))


@pytest.mark.parametrize(("eps_y", "eps_h"), SOME_PAIRS[:-1])
@pytest.mark.parametrize("kind", ["chains", "loops", "higher", "tied"])
@pytest.mark.parametrize("method", METHODS)
def test_mu_is_the_gradient_of_the_value(method: str, kind: str, eps_y: float, eps_h: float) -> None:
    everything = case_of(kind)
    value = infer(method, everything, eps_y, eps_h).value
    case = everything.select(np.flatnonzero(np.isfinite(value))[:3])
    batch, step = case.batch, 1e-5
    belief = infer(method, case, eps_y, eps_h)

    def total(unary: Floats, tables: Floats) -> float:
        return float(infer(method, Case(batch, Potentials(unary, tables), case.query), eps_y, eps_h).value.sum())

    u, t = case.theta.unary, case.theta.tables
    for which, analytic in ((u, belief.mu.unary), (t, batch.fold(belief.mu.tables))):
        for k in np.flatnonzero(np.isfinite(which))[:24]:
            up, down = which.copy(), which.copy()
            up[k] += step
            down[k] -= step
            high = total(up, t) if which is u else total(u, up)
            low = total(down, t) if which is u else total(u, down)
            assert (high - low) / (2 * step) == pytest.approx(analytic[k], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("eps_y", "eps_h"), SOME_PAIRS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_threads_and_repetition_do_not_change_a_bit(method: str, kind: str, eps_y: float, eps_h: float) -> None:
    case = case_of(kind)
    first, again = infer(method, case, eps_y, eps_h), infer(method, case, eps_y, eps_h)
    threaded = infer(method, case, eps_y, eps_h, threads=3)
    for other in (again, threaded):
        np.testing.assert_array_equal(first.value, other.value)
        np.testing.assert_array_equal(first.mu.unary, other.mu.unary)
        np.testing.assert_array_equal(first.mu.tables, other.mu.tables)


@pytest.mark.parametrize(("eps_y", "eps_h"), SOME_PAIRS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_order_and_company_do_not_matter(method: str, kind: str, eps_y: float, eps_h: float) -> None:
    case = case_of(kind)
    whole = infer(method, case, eps_y, eps_h)
    shuffled = np.random.default_rng(1).permutation(len(case.batch))
    for which in (shuffled, shuffled[:5], np.array([3])):
        part = case.select(which)
        got = infer(method, part, eps_y, eps_h)
        close = {"rtol": 1e-12, "atol": 1e-12}
        np.testing.assert_allclose(got.value, whole.value[which], **close)
        np.testing.assert_allclose(got.mu.unary, whole.mu.unary[state_rows(case.batch, which)], **close)
        np.testing.assert_allclose(got.mu.tables, whole.mu.tables[mu_rows(case.batch, part.batch, which)], **close)


@pytest.mark.parametrize(("eps_y", "eps_h"), [*PAIRS, (TINY, 1.0)])
@pytest.mark.parametrize("method", METHODS)
def test_an_infeasible_instance_spoils_only_itself(method: str, eps_y: float, eps_h: float) -> None:
    loop = Topology((2, 3, 2), ((0, 1), (1, 2), (2, 0)))
    chain = Topology((2, 3, 2), ((0, 1), (1, 2)))
    triple = Topology((2, 2, 2), ((0, 1, 2),))
    batch = Batch.build([loop, loop, chain, chain, triple, triple])
    rng = np.random.default_rng(0)
    unary, tables = rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries)
    bad = np.array([False, True, False, True, False, True])
    for b in np.flatnonzero(bad):
        f = batch.factor_ptr[b + 1] - 1
        tables[batch.table_at[f] : batch.table_at[f] + batch.table_sizes[f]] = -np.inf
    query = Query.of(batch, np.arange(batch.n_vars) % 3 != 1)
    case = Case(batch, Potentials(unary, tables), query)
    got = infer(method, case, eps_y, eps_h)
    want = Enumerate()(batch, case.theta, query, eps_y, eps_h)
    assert np.all(np.isneginf(got.value[bad]))
    np.testing.assert_allclose(got.value[~bad], want.value[~bad], rtol=1e-9)
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_one_query_serves_batches_of_other_shapes(method: str) -> None:
    """Plans may be remembered, but never for the wrong wiring or the wrong mask."""
    cards = (2, 3, 2, 3)
    rng = np.random.default_rng(3)
    query = None
    for scopes in (((0, 1), (1, 2), (2, 3)), ((0, 1), (1, 2), (2, 3), (3, 0)), ((0, 3),), ()):
        batch = Batch.build([Topology(cards, scopes)] * 2)
        query = query or Query.of(batch, np.arange(batch.n_vars) % 2 == 0)
        theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
        for eps_y, eps_h in ((0.0, 1.0), (1.0, 1.0)):
            for asked in (query, query.clamp(batch, np.array([0]), np.array([1]))):
                case = Case(batch, theta, asked)
                got = infer(method, case, eps_y, eps_h)
                want = Enumerate()(batch, theta, asked, eps_y, eps_h)
                np.testing.assert_allclose(got.value, want.value, rtol=1e-9)
                np.testing.assert_allclose(got.mu.unary, want.mu.unary, rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(got.mu.tables, want.mu.tables, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("eps_y", "eps_h"), SOME_PAIRS)
@pytest.mark.parametrize("method", METHODS)
def test_nothing_at_all_is_answered_too(method: str, eps_y: float, eps_h: float) -> None:
    empty = Batch.build([])
    belief = infer(method, Case(empty, Potentials.zeros(empty), Query.all_outputs(empty)), eps_y, eps_h)
    assert belief.value.shape == (0,) and belief.mu.unary.shape == (0,) and belief.decode(empty).shape == (0,)
    batch = Batch.build([Topology((2, 2), ((0, 1),)), Topology((), ()), Topology((3,), ())])
    theta = Potentials(np.arange(7.0), np.arange(4.0))
    got = infer(method, Case(batch, theta, Query.all_outputs(batch)), eps_y, eps_h)
    alone = Batch.build([Topology((2, 2), ((0, 1),)), Topology((3,), ())])
    want = Enumerate()(alone, theta, Query.all_outputs(alone), eps_y, eps_h)
    np.testing.assert_allclose(got.value, [want.value[0], 0.0, want.value[1]], rtol=1e-9)
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_status_says_exact(method: str) -> None:
    case = case_of("mixed")
    belief = infer(method, case, 0.0, 1.0)
    status = belief.status
    assert len(status.method) == len(case.batch) and status.exact.all() and status.converged.all()
    np.testing.assert_array_equal(status.lower, belief.value)
    np.testing.assert_array_equal(status.upper, belief.value)


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_be_computed_is_refused(method: str) -> None:
    n = 30
    clique = Batch.build([Topology((6,) * n, tuple((i, j) for i in range(n) for j in range(i)))])
    theta, query = Potentials.zeros(clique), Query.all_outputs(clique)
    with pytest.raises(MemoryLimitError) as refusal:
        infer(method, Case(clique, theta, query), 1.0, 1.0)
    for word in (f"width {n - 1}", "bytes", "memory_limit", "use "):
        assert word in str(refusal.value)
    pair = Batch.build([Topology((2, 2), ((0, 1),))])
    for eps_y, eps_h in ((-1.0, 1.0), (1.0, np.nan), (np.inf, 1.0)):
        with pytest.raises(InputError):
            infer(method, Case(pair, Potentials.zeros(pair), Query.all_outputs(pair)), eps_y, eps_h)
    broken = Potentials(np.full(4, np.nan), np.zeros(4))
    with pytest.raises(InputError):
        infer(method, Case(pair, broken, Query.all_outputs(pair)), 1.0, 1.0)
    nothing = Query(np.ones(2, dtype=bool), np.array([True, True, False, False]))
    with pytest.raises(InputError):
        infer(method, Case(pair, Potentials.zeros(pair), nothing), 1.0, 1.0)

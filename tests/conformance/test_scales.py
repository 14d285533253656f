"""Exact methods where numbers get hard: the switch to log space, opposed factors, offsets, long chains."""

from __future__ import annotations

import numpy as np
import pytest

from builders import Case, chain_scopes, random_query
from conformance.methods import METHODS, PAIRS, case_of, infer
from mssvm.core.arrays import Floats
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, Topology
from mssvm.inference.enumerate import Enumerate

STRENGTHS = (50.0, 150.0, 290.0, 299.0, 301.0, 350.0, 740.0, 1e5)


def assert_same(got: Belief, want: Belief, spread: float) -> None:
    # Scores near ``spread`` carry rounding errors of about 1e-16 * spread, and so do differences of them.
    np.testing.assert_allclose(got.value, want.value, rtol=1e-9)
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, rtol=1e-9, atol=max(1e-9, 1e-14 * spread))
    np.testing.assert_allclose(got.mu.tables, want.mu.tables, rtol=1e-9, atol=max(1e-9, 1e-14 * spread))


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("kind", ["chains", "trees", "loops", "higher", "tied", "uniform"])
@pytest.mark.parametrize("method", METHODS)
def test_around_the_switch_to_log_space(method: str, kind: str, strength: float) -> None:
    case = case_of(kind).scaled(strength)
    for eps_y, eps_h in ((1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (1.0, 0.01)):
        got = infer(method, case, eps_y, eps_h)
        want = Enumerate()(case.batch, case.theta, case.query, eps_y, eps_h)
        assert_same(got, want, strength / min(e for e in (eps_y, eps_h) if e))


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("method", METHODS)
def test_opposed_strong_factors(method: str, strength: float) -> None:
    """Each factor's range may suit probabilities while their product underflows for every state at once."""
    star = Topology((2,) * 9, tuple((i, 0) for i in range(1, 9)))
    ring = Topology((2,) * 9, (*star.scopes, (1, 2), (5, 6)))
    batch = Batch.build([star, ring, star, ring])
    theta = Potentials(0.1 * np.cos(np.arange(batch.n_states)), np.sin(np.arange(batch.n_table_entries)))
    for b in range(len(batch)):
        for f in range(8):
            at = batch.table_at[batch.factor_ptr[b] + f]
            theta.tables[at : at + 4].reshape(2, 2)[:, f % 2] -= strength
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[batch.var_ptr[2] + 1]] = False
    for output in (np.ones(batch.n_vars, bool), np.arange(batch.n_vars) % 9 == 0, np.arange(batch.n_vars) % 2 == 0):
        for eps_y, eps_h in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.5)):
            case = Case(batch, theta, Query(output, allowed))
            want = Enumerate()(batch, theta, case.query, eps_y, eps_h)
            assert_same(infer(method, case, eps_y, eps_h), want, 8 * strength)


@pytest.mark.parametrize("method", METHODS)
def test_the_best_states_may_be_forbidden(method: str) -> None:
    """What the mask leaves may lie far below the tops of the tables."""
    chain = Topology((3,) * 5, tuple((i, i + 1) for i in range(4)))
    batch = Batch.build([chain, chain])
    rng = np.random.default_rng(0)
    state = np.arange(batch.n_states) % 3
    theta = Potentials(
        np.where(state == 0, 280.0, 0.0) + rng.normal(size=batch.n_states), np.zeros(batch.n_table_entries)
    )
    for f in range(batch.n_factors):
        table = theta.tables[batch.table_at[f] : batch.table_at[f] + 9].reshape(3, 3)
        table[:] = rng.normal(size=(3, 3))
        table[0, :] += 280.0
        table[:, 0] += 5.0
    query = Query(np.arange(batch.n_vars) % 2 == 0, state != 0)
    for eps_y, eps_h in PAIRS:
        want = Enumerate()(batch, theta, query, eps_y, eps_h)
        assert_same(infer(method, Case(batch, theta, query), eps_y, eps_h), want, 280.0)


@pytest.mark.parametrize("offset", [-1e5, 1e5])
@pytest.mark.parametrize("method", METHODS)
def test_constants_move_the_value_and_nothing_else(method: str, offset: float) -> None:
    case = case_of("loops")
    batch = case.batch
    shift = offset * np.cos(np.arange(batch.n_vars))
    moved = Case(batch, Potentials(case.theta.unary + shift[batch.state_var], case.theta.tables), case.query)
    for eps_y, eps_h in PAIRS:
        here, there = infer(method, case, eps_y, eps_h), infer(method, moved, eps_y, eps_h)
        want = here.value + np.bincount(batch.owner, weights=shift)
        np.testing.assert_allclose(there.value, want, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(there.mu.unary, here.mu.unary, atol=1e-8)


def alternating(length: int, scale: float, seed: int) -> tuple[Case, Floats, Floats, Floats]:
    """A chain y h y h ... y with 3 and 2 states, its unary scores and its two kinds of tables."""
    rng = np.random.default_rng(seed)
    n = 2 * length - 1
    cards = tuple(3 - i % 2 for i in range(n))
    batch = Batch.build([Topology(cards, tuple((i, i + 1) for i in range(n - 1)))])
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    tables = theta.tables.reshape(length - 1, 2, 6)
    return Case(batch, theta, Query.of(batch, np.arange(n) % 2 == 0)), theta.unary, tables[:, 0], tables[:, 1]


def by_transfer(case: Case, yh: Floats, hy: Floats, eps_y: float, eps_h: float) -> float:
    """The alternating chain's value by a transfer matrix a step, in log space: hidden out first, then outputs."""
    unary = [case.theta.unary[a:b] for a, b in zip(case.batch.unary_ptr[:-1], case.batch.unary_ptr[1:], strict=True)]
    alpha = unary[0]
    for t in range(len(yh)):
        through = yh[t].reshape(3, 2)[:, :, None] + unary[2 * t + 1][None, :, None] + hy[t].reshape(2, 3)[None]
        step, _ = power_sum(through, eps_h, axis=1)
        alpha, _ = power_sum(alpha[:, None] + step, eps_y, axis=0)
        alpha = alpha + unary[2 * t + 2]
    return float(power_sum(alpha, eps_y)[0])


@pytest.mark.parametrize("scale", [0.3, 30.0])
@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("method", METHODS)
def test_long_chains_with_hidden_between_outputs(method: str, eps_y: float, eps_h: float, scale: float) -> None:
    case, unary, yh, hy = alternating(120, scale, seed=4)
    got = infer(method, case, eps_y, eps_h)
    assert got.value[0] == pytest.approx(by_transfer(case, yh, hy, eps_y, eps_h), rel=1e-10)
    total = np.bincount(case.batch.state_var, weights=got.mu.unary)
    np.testing.assert_allclose(total, 1.0, rtol=1e-9)
    rng = np.random.default_rng(1)
    du, dt = rng.normal(size=unary.shape), rng.normal(size=case.theta.tables.shape)
    step = 1e-6
    ends = [
        infer(method, Case(case.batch, case.theta + Potentials(s * du, s * dt), case.query), eps_y, eps_h).value[0]
        for s in (step, -step)
    ]
    slope = float(du @ got.mu.unary + dt @ got.mu.tables)
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("tied", [True, False], ids=["one table", "a table each"])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "reference"])
def test_chains_of_many_lengths_side_by_side(method: str, tied: bool, scale: float) -> None:
    """Too long for brute force: the readable engine, which is held to brute force above, is the measure."""
    rng = np.random.default_rng(7)
    graphs = [Topology((4,) * n, tuple(chain_scopes(n))) for n in rng.integers(1, 50, 20)]
    batch = Batch.build(graphs, [[0] * g.n_factors for g in graphs] if tied else None)
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    query = random_query(rng, batch)
    every = Query(np.ones(batch.n_vars, dtype=bool), query.allowed)
    for asked, eps_y, eps_h in ((every, 0.0, 0.0), (every, 1.0, 1.0), (query, 0.5, 0.5)):
        case = Case(batch, theta, asked)
        assert_same(infer(method, case, eps_y, eps_h), infer("reference", case, eps_y, eps_h), 10 * scale)


@pytest.mark.slow
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("kind", ["mixed", "uniform"])
@pytest.mark.parametrize("method", METHODS)
def test_many_instances_on_any_number_of_threads(method: str, kind: str, eps_y: float, eps_h: float) -> None:
    few = case_of(kind)
    many = few.select(np.tile(np.arange(len(few.batch)), 40))
    one, three = (infer(method, many, eps_y, eps_h, threads=k) for k in (1, 3))
    for a, b in ((one.value, three.value), (one.mu.unary, three.mu.unary), (one.mu.tables, three.mu.tables)):
        np.testing.assert_array_equal(a, b)
    want = Enumerate()(few.batch, few.theta, few.query, eps_y, eps_h)
    np.testing.assert_allclose(one.value, np.tile(want.value, 40), rtol=1e-9)
    np.testing.assert_allclose(one.mu.unary, np.tile(want.mu.unary, 40), rtol=1e-9, atol=1e-12)

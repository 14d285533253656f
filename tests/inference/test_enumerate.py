"""The brute-force oracle against a second computation that shares no code with it: plain loops over dictionaries."""

from __future__ import annotations

from itertools import product
from math import exp, inf, log

import numpy as np
import pytest

from mssvm.core.errors import InputError, MemoryLimitError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.enumerate import Enumerate, score

TEMPERATURES = [(y, h) for y in (0.0, 0.5, 1.0) for h in (0.0, 0.5, 1.0)]
CHAIN = Topology((2, 3, 2, 2), ((0, 1), (1, 2), (2, 3)))
TRIPLE = Topology((2, 2, 3), ((2, 0, 1), (1, 2)))
LOOP = Topology((2, 2, 2), ((0, 1), (1, 2), (2, 0)))


def soft(pairs: dict, eps: float) -> tuple[float, dict]:
    """eps log sum exp(. / eps) of a dictionary's values, and the weight of each key."""
    top = max(pairs.values())
    if top == -inf:
        return -inf, dict.fromkeys(pairs, 0.0)
    if eps == 0:
        winner = next(key for key, value in pairs.items() if value == top)
        return top, {key: float(key == winner) for key in pairs}
    terms = {key: exp((value - top) / eps) for key, value in pairs.items()}
    total = sum(terms.values())
    return top + eps * log(total), {key: term / total for key, term in terms.items()}


def by_hand(graph, unary, tables, output, allowed, eps_y, eps_h):
    """Value and marginals of one instance; ``tables`` holds one array per factor, ``unary`` one list per variable."""
    outputs = [i for i in range(graph.n_vars) if output[i]]
    hidden = [i for i in range(graph.n_vars) if not output[i]]
    states = [[s for s in range(graph.cards[i]) if allowed[i][s]] for i in range(graph.n_vars)]
    inner = {}
    for y in product(*(states[i] for i in outputs)):
        scores = {}
        for h in product(*(states[i] for i in hidden)):
            z = {**dict(zip(outputs, y, strict=True)), **dict(zip(hidden, h, strict=True))}
            scores[h] = sum(unary[i][z[i]] for i in z)
            scores[h] += sum(t[tuple(z[v] for v in scope)] for t, scope in zip(tables, graph.scopes, strict=True))
        inner[y] = soft(scores, eps_h)
    value, p_y = soft({y: q for y, (q, _) in inner.items()}, eps_y)
    mu_unary = [[0.0] * card for card in graph.cards]
    mu_tables = [np.zeros_like(t) for t in tables]
    for y, (_, p_h) in inner.items():
        for h, weight in p_h.items():
            z = {**dict(zip(outputs, y, strict=True)), **dict(zip(hidden, h, strict=True))}
            for i, state in z.items():
                mu_unary[i][state] += p_y[y] * weight
            for mu, scope in zip(mu_tables, graph.scopes, strict=True):
                mu[tuple(z[v] for v in scope)] += p_y[y] * weight
    return value, mu_unary, mu_tables


def random_case(seed: int) -> tuple[Batch, Potentials, Query]:
    """Four instances with ties within and across them, random roles, random masks and a few forbidden entries."""
    rng = np.random.default_rng(seed)
    batch = Batch.build([CHAIN, LOOP, TRIPLE, LOOP], [[0, 1, 2], [2, 2, 3], [4, 5], [2, 3, 3]])
    theta = Potentials(rng.normal(size=batch.n_states) * 2, rng.normal(size=batch.n_table_entries) * 2)
    theta.tables[rng.random(batch.n_table_entries) < 0.05] = -np.inf
    allowed = rng.random(batch.n_states) < 0.8
    allowed[batch.unary_ptr[:-1]] = True
    return batch, theta, Query(rng.random(batch.n_vars) < 0.5, allowed)


@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
@pytest.mark.parametrize("seed", range(8))
def test_equals_a_computation_by_hand(seed, eps_y, eps_h):
    batch, theta, query = random_case(seed)
    belief = Enumerate()(batch, theta, query, eps_y, eps_h)
    expected_tables = np.zeros(batch.n_mu_entries)
    for b in range(len(batch)):
        graph = batch.topology(b)
        variables = range(batch.var_ptr[b], batch.var_ptr[b + 1])
        factors = range(batch.factor_ptr[b], batch.factor_ptr[b + 1])
        cut = [slice(batch.unary_ptr[i], batch.unary_ptr[i + 1]) for i in variables]
        tables = [
            theta.tables[batch.table_at[f] :][: batch.table_sizes[f]].reshape(graph.table_shape(k))
            for k, f in enumerate(factors)
        ]
        value, mu_unary, mu_tables = by_hand(
            graph,
            [theta.unary[c] for c in cut],
            tables,
            query.output[variables],
            [query.allowed[c] for c in cut],
            eps_y,
            eps_h,
        )
        np.testing.assert_allclose(belief.value[b], value, rtol=1e-12)
        np.testing.assert_allclose(belief.mu.unary[batch.state_span(b)], np.concatenate(mu_unary), atol=1e-12)
        for f, mu in zip(factors, mu_tables, strict=True):
            expected_tables[batch.mu_at[f] :][: mu.size] += mu.ravel()
    np.testing.assert_allclose(belief.mu.tables, expected_tables, atol=1e-12)
    assert belief.status.exact.all()
    assert np.array_equal(belief.status.lower, belief.value)
    assert np.array_equal(belief.status.upper, belief.value)


@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.5, 1.0), (1.0, 0.5), (0.0, 1.0), (1.0, 1.0)])
def test_mu_is_the_gradient_of_the_value(eps_y, eps_h):
    batch, theta, query = random_case(1)
    theta = Potentials(theta.unary, np.where(np.isfinite(theta.tables), theta.tables, -3.0))
    mu = Enumerate()(batch, theta, query, eps_y, eps_h).mu
    rng = np.random.default_rng(0)
    for _ in range(10):
        d_unary = rng.normal(size=batch.n_states)
        d_tables = rng.normal(size=batch.n_table_entries)
        up = Enumerate()(batch, theta + Potentials(1e-05 * d_unary, 1e-05 * d_tables), query, eps_y, eps_h).value.sum()
        down = Enumerate()(
            batch, theta + Potentials(-1e-05 * d_unary, -1e-05 * d_tables), query, eps_y, eps_h
        ).value.sum()
        slope = d_unary @ mu.unary + d_tables @ batch.fold(mu.tables)
        np.testing.assert_allclose((up - down) / 2e-5, slope, rtol=1e-6)


def test_everything_at_zero_is_the_best_assignment_and_ties_go_to_the_first():
    batch = Batch.build([LOOP])
    flat = Enumerate()(batch, Potentials.zeros(batch), Query.of(batch, np.array([True, False, True])), 0.0, 0.0)
    assert flat.mu.unary.tolist() == [1, 0, 1, 0, 1, 0]
    assert flat.mu.tables.tolist() == [1, 0, 0, 0] * 3
    batch, theta, query = random_case(2)
    belief = Enumerate()(batch, theta, query, 0.0, 0.0)
    np.testing.assert_allclose(score(batch, theta, belief.decode(batch)), belief.value, rtol=1e-12)


def test_roles_matter_only_where_temperatures_differ():
    batch, theta, query = random_case(3)
    swapped = Query(~query.output, query.allowed)
    same = Enumerate()(batch, theta, query, 1.0, 1.0).value
    also = Enumerate()(batch, theta, swapped, 1.0, 1.0).value
    np.testing.assert_allclose(same, also, rtol=1e-12)
    one = Enumerate()(batch, theta, query, 0.0, 1.0).value
    other = Enumerate()(batch, theta, swapped, 0.0, 1.0).value
    assert np.abs(one - other).max() > 1e-3


def test_clamping_everything_gives_the_score():
    batch, theta, query = random_case(4)
    rng = np.random.default_rng(0)
    z = rng.integers(batch.cards)
    free = Query.of(batch, query.output)
    belief = Enumerate()(batch, theta, free.clamp(batch, np.arange(batch.n_vars), z), 0.3, 0.7)
    np.testing.assert_allclose(belief.value, score(batch, theta, z), rtol=1e-12)
    feasible = np.isfinite(belief.value)
    assert feasible.any()
    assert np.array_equal(belief.decode(batch)[feasible[batch.owner]], z[feasible[batch.owner]])


def test_an_infeasible_instance_has_value_minus_infinity_and_no_marginals():
    batch = Batch.build([LOOP, LOOP])
    theta = Potentials.zeros(batch)
    theta.tables[:4] = -np.inf
    for eps_y, eps_h in TEMPERATURES:
        belief = Enumerate()(batch, theta, Query.of(batch, np.arange(6) % 2 == 0), eps_y, eps_h)
        assert belief.value[0] == -np.inf
        assert np.isfinite(belief.value[1])
        assert not belief.mu.unary[:6].any()
        assert belief.mu.unary[6:].sum() == pytest.approx(3)


def test_marginals_of_independent_variables():
    batch = Batch.build([Topology((2, 3), ())])
    theta = Potentials(np.array([0.0, log(3.0), 0.0, 0.0, 0.0]), np.zeros(0))
    belief = Enumerate()(batch, theta, Query.all_outputs(batch), 1.0, 1.0)
    assert belief.value[0] == pytest.approx(log(12))
    np.testing.assert_allclose(belief.mu.unary, [1 / 4, 3 / 4, 1 / 3, 1 / 3, 1 / 3], rtol=1e-12)


def test_refusal_above_the_limit_names_instance_and_size():
    batch = Batch.build([Topology((2, 2), ()), Topology((4, 4, 4), ())])
    theta = Potentials.zeros(batch)
    query = Query.all_outputs(batch)
    assert Enumerate(limit=64)(batch, theta, query, 1.0, 1.0).value[1] == pytest.approx(log(64))
    with pytest.raises(MemoryLimitError, match="instance 1 has 64 assignments, more than the limit of 63"):
        Enumerate(limit=63)(batch, theta, query, 1.0, 1.0)
    masked = query.clamp(batch, batch.var_ptr[1:2], np.array([3]))
    assert Enumerate(limit=63)(batch, theta, masked, 1.0, 1.0).value[1] == pytest.approx(log(16))


def test_bad_input_is_refused_with_its_place():
    batch, theta, query = random_case(5)
    run = Enumerate()
    with pytest.raises(InputError, match="eps_h must be a finite number >= 0"):
        run(batch, theta, query, 0.0, -1.0)
    with pytest.raises(InputError, match=r"potentials.unary has shape \(3,\), the batch needs"):
        run(batch, Potentials(np.zeros(3), theta.tables), query, 0.0, 0.0)
    with pytest.raises(InputError, match=r"potentials\.unary holds NaN or"):
        run(batch, Potentials(np.full(batch.n_states, np.nan), theta.tables), query, 0.0, 0.0)
    mask = np.ones(batch.n_states, dtype=bool)
    mask[batch.state_var == batch.var_ptr[1] + 2] = False
    with pytest.raises(InputError, match="instance 1, variable 2: no state is allowed"):
        run(batch, theta, query.restrict(mask), 0.0, 0.0)


def test_an_instance_without_variables_has_value_zero():
    batch = Batch.build([Topology((), ()), Topology((2,), ())])
    belief = Enumerate()(batch, Potentials.zeros(batch), Query.all_outputs(batch), 1.0, 1.0)
    np.testing.assert_allclose(belief.value, [0.0, np.log(2.0)])

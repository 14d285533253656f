"""The power sum against its definition in high precision, and its limits, bounds and symmetries."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mssvm.core.checks import temperature
from mssvm.core.errors import InputError, MssvmError
from mssvm.core.power import power_sum

scores = arrays(np.float64, st.integers(1, 8), elements=st.floats(-50, 50, width=32))
temperatures = st.floats(1e-2, 1e2)


def by_definition(a: np.ndarray, eps: float) -> tuple[float, np.ndarray]:
    """eps log sum exp(a / eps) and its gradient, in 60 digits without any shift."""
    with localcontext() as context:
        context.prec = 60
        terms = [(Decimal(float(x)) / Decimal(eps)).exp() for x in a]
        total = sum(terms)
        return float(Decimal(eps) * total.ln()), np.array([float(t / total) for t in terms])


@given(scores, temperatures)
def test_value_and_weights_equal_the_definition(a, eps):
    value, weights = power_sum(a, eps)
    expected_value, expected_weights = by_definition(a, eps)
    np.testing.assert_allclose(value, expected_value, rtol=1e-13, atol=1e-12)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-10, atol=1e-300)


@given(scores)
def test_zero_temperature_is_the_maximum_and_its_first_maximiser(a):
    value, weights = power_sum(a, 0.0)
    assert value == max(a)
    first = list(a).index(max(a))
    assert weights.tolist() == [float(i == first) for i in range(len(a))]


def test_ties_at_zero_are_a_vertex_and_above_zero_are_shared():
    a = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    value, weights = power_sum(a, 0.0)
    assert value.tolist() == [3.0, 2.0]
    assert weights.tolist() == [[0, 1, 0], [1, 0, 0]]
    _, warm = power_sum(a, 1e-9)
    np.testing.assert_allclose(warm, [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-15)


@given(scores, st.lists(st.booleans(), min_size=8, max_size=8), st.one_of(st.just(0.0), temperatures))
def test_forbidden_entries_are_as_if_absent(a, forbidden, eps):
    mask = np.array(forbidden[: len(a)])
    masked = np.where(mask, -np.inf, a)
    value, weights = power_sum(masked, eps)
    assert np.all(weights[mask] == 0)
    if mask.all():
        assert value == -np.inf
        return
    expected_value, expected_weights = power_sum(a[~mask], eps)
    np.testing.assert_allclose(value, expected_value, rtol=1e-14, atol=1e-13)
    np.testing.assert_allclose(weights[~mask], expected_weights, rtol=1e-13)


@pytest.mark.parametrize("eps", [0.0, 1e-300, 0.5, 1.0])
def test_an_infeasible_row_leaves_the_others_alone(eps):
    a = np.array([[-np.inf, -np.inf], [0.0, -np.inf], [-np.inf, 7.0]])
    value, weights = power_sum(a, eps)
    assert value.tolist() == [-np.inf, 0.0, 7.0]
    assert weights.tolist() == [[0, 0], [1, 0], [0, 1]]


@given(scores, temperatures, st.integers(-600, 900))
def test_scale_equivariance_is_exact_up_to_1e270(a, eps, power):
    scale = 2.0**power
    value, weights = power_sum(a, eps)
    scaled_value, scaled_weights = power_sum(a * scale, eps * scale)
    assert scaled_value == value * scale
    assert np.array_equal(scaled_weights, weights)


@pytest.mark.parametrize("eps", [5e-324, 1e-300, 1e-12])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e300])
def test_tiny_temperatures_give_the_maximum(eps, scale):
    a = scale * np.array([-1.0, 0.25, 1.0, -1.0])
    value, weights = power_sum(a, eps)
    assert value == scale
    assert weights.tolist() == [0, 0, 1, 0]


def test_extreme_range_does_not_overflow():
    value, weights = power_sum(np.array([-1.7e308, 1.7e308]), 1.0)
    assert value == 1.7e308
    assert weights.tolist() == [0, 1]


@given(scores, st.one_of(st.just(0.0), temperatures))
def test_weights_are_a_distribution(a, eps):
    _, weights = power_sum(a, eps)
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-14)


@given(scores, st.one_of(st.just(0.0), temperatures), temperatures)
def test_monotone_in_temperature_and_within_eps_log_n_of_the_maximum(a, eps, more):
    low, high = power_sum(a, eps)[0], power_sum(a, eps + more)[0]
    slack = 1e-12 * (1 + np.abs(a).max() + eps + more)
    assert low <= high + slack
    assert a.max() - slack <= high <= a.max() + (eps + more) * np.log(len(a)) + slack


@given(scores, st.one_of(st.just(0.0), temperatures), st.floats(-1e3, 1e3))
def test_a_constant_passes_through(a, eps, constant):
    np.testing.assert_allclose(power_sum(a + constant, eps)[0], power_sum(a, eps)[0] + constant, rtol=1e-12, atol=1e-9)


@given(arrays(np.float64, 5, elements=st.floats(-2, 2, width=32)), st.sampled_from([0.5, 1.0, 3.0]))
def test_weights_are_the_gradient(a, eps):
    step = 1e-5 * np.eye(5)
    difference = (power_sum(a + step, eps)[0] - power_sum(a - step, eps)[0]) / 2e-5
    np.testing.assert_allclose(power_sum(a, eps)[1], difference, rtol=1e-6, atol=1e-9)


@given(arrays(np.float64, 5), arrays(np.float64, 5, elements=st.floats(-5, 5, width=16)))
def test_weights_at_zero_are_a_subgradient(a, b):
    a = np.where(np.abs(a) < 5, np.round(a), 1.0)  # small integers: ties are frequent
    value, weights = power_sum(a, 0.0)
    assert power_sum(b, 0.0)[0] >= value + weights @ (b - a) - 1e-12


@pytest.mark.parametrize("eps", [0.0, 0.7])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_axis(axis, eps):
    a = np.random.default_rng(0).normal(size=(2, 3, 4))
    before = a.copy()
    value, weights = power_sum(a, eps, axis=axis)
    expected_value, expected_weights = power_sum(np.moveaxis(a, axis, -1), eps)
    assert value.shape == expected_value.shape
    np.testing.assert_allclose(value, expected_value, rtol=1e-14)
    np.testing.assert_allclose(np.moveaxis(weights, axis, -1), expected_weights, rtol=1e-14)
    assert np.array_equal(a, before)


@pytest.mark.parametrize("eps", [-1e-9, np.nan, np.inf, -np.inf])
def test_bad_temperatures_are_named(eps):
    with pytest.raises(InputError, match=r"eps_h must be a finite number >= 0, got"):
        temperature(eps, "eps_h")
    with pytest.raises(MssvmError, match="eps must be"):
        power_sum(np.zeros(2), eps)

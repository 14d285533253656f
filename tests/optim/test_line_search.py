"""The line search of L-BFGS where values are out of date, as those of messages that still converge are."""

import numpy as np
import pytest

from mssvm.optim.lbfgs import LONGEST_STEP, SearchLimits, line_search
from mssvm.optim.regulariser import Regulariser

PAIRS = ((np.array([1.0, 0.0]), np.array([0.01, 0.0])),)  # claims little curvature: a step of a hundred gradients


def late(w):
    """|w|^2 / 2 + 1, of which the search began with a value that is too low by .0005."""
    return 1.0005 + 0.5 * float(w @ w), w.copy()


def begin():
    w = np.array([1e-3, 0.0])
    return w, 1.0 + 0.5 * float(w @ w), w.copy()


def test_no_step_lowers_a_value_that_was_too_low():
    assert line_search(Regulariser(), late, *begin(), (), SearchLimits(trials=6)) is None


def test_small_rises_of_approximate_values_count_as_none():
    w, value, slope = begin()
    found = line_search(Regulariser(), late, w, value, slope, (), SearchLimits(trials=6, rise=1e-3))
    assert found is not None
    point, new_value, _ = found
    assert value < new_value <= value * (1.0 + 1e-3)
    assert np.linalg.norm(point) < np.linalg.norm(w)


@pytest.mark.parametrize(("pairs", "most"), [((), 0.01), (PAIRS, LONGEST_STEP * 0.02)])
def test_first_trial_is_not_far_from_the_last_steps(pairs, most):
    tried = []

    def evaluate(w):
        tried.append(w.copy())
        return 0.5 * float(w @ w), w.copy()

    w = np.array([1.0, 0.0])
    limits = SearchLimits(trials=1, rise=0.0, lengths=(0.02, 0.01))
    line_search(Regulariser(), evaluate, w, 0.5, w.copy(), pairs, limits)
    assert np.linalg.norm(tried[0] - w) == pytest.approx(most)


def test_without_earlier_steps_the_first_trial_is_free():
    tried = []

    def evaluate(w):
        tried.append(w.copy())
        return 0.5 * float(w @ w), w.copy()

    w = np.array([1.0, 0.0])
    line_search(Regulariser(), evaluate, w, 0.5, w.copy(), PAIRS, SearchLimits(trials=1))
    assert np.linalg.norm(tried[0] - w) == pytest.approx(100.0)

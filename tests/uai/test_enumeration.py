"""Enumeration of all possible outputs: optima against brute force, zeros included, in one go or in slices."""

from __future__ import annotations

from time import monotonic

import numpy as np
import pytest

from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import Enumerate
from mssvm.uai.anytime import Anytime
from mssvm.uai.enumeration import Enumeration
from mssvm.uai.search import AnytimeSearch
from uai.test_anytime import grid
from uai.test_support import constrained


@pytest.mark.parametrize("zeros", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0])
def test_the_best_of_all_outputs_is_the_optimum(zeros: float, eps_h: float) -> None:
    for seed in range(8):
        batch, theta, query = constrained(seed, zeros)
        best = float(Enumerate()(batch, theta, query, 0.0, eps_h).value[0])
        search = AnytimeSearch(Anytime(ibound=4), OneInstance.of(batch, 0, theta, query), eps_h)
        if search.upper == -np.inf:
            assert best == -np.inf
            continue
        enumeration = Enumeration(search)
        enumeration.run(monotonic() + 60.0)
        assert enumeration.done
        assert search.lower == pytest.approx(best)
        assert search.proven or best == -np.inf


def test_an_enumeration_stops_in_the_middle_and_goes_on() -> None:
    batch, theta, query = grid(np.random.default_rng(5), 3, 4)
    best = float(Enumerate()(batch, theta, query, 0.0, 1.0).value[0])
    search = AnytimeSearch(Anytime(ibound=8), OneInstance.of(batch, 0, theta, query), 1.0)
    enumeration = Enumeration(search)
    turns = 0
    while not enumeration.done:
        enumeration.run(monotonic() + 1e-4)
        turns += 1
        assert search.upper >= best - 1e-9
    assert turns > 1 and search.proven and search.lower == pytest.approx(best)


def test_descents_tell_how_long_all_outputs_take() -> None:
    """Without constraints every descent meets the same number: two to the outputs, or far too many."""
    rng = np.random.default_rng(6)
    few = grid(rng, 3, 4)
    many = grid(rng, 12, 12)
    for (batch, theta, query), ends in ((few, True), (many, False)):
        search = AnytimeSearch(Anytime(ibound=8), OneInstance.of(batch, 0, theta, query), 1.0)
        seconds = Enumeration(search).expected_seconds()
        assert np.isfinite(seconds) == ends
        assert (search.lower > -np.inf) == ends

"""Solutions: the best of a series."""

from __future__ import annotations

import numpy as np

from mssvm.optim.outcome import Outcome
from mssvm.optim.solution import Certificate, Solution, best_of


def test_an_interrupted_series_is_interrupted_even_if_an_earlier_start_is_lower():
    def made(objective: float, outcome: Outcome) -> Solution:
        return Solution(np.zeros(1), objective, (), outcome, outcome.value, Certificate(""), {})

    low = made(1.0, Outcome.CONVERGED)
    cut = made(2.0, Outcome.INTERRUPTED)
    best = best_of([low, cut])
    assert best.objective == 1.0 and best.outcome is Outcome.INTERRUPTED
    assert best_of([cut, low]) is low

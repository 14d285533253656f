"""Training by turns over two sets of weights, as ModLat does: each block has its own problem given the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.objectives.problem import Problem
from mssvm.optim.solver import Solution

Minimise = Callable[[Problem, Floats], Solution]
"""A solver with its regulariser and whoever follows it."""


class TwoBlocks(Protocol):
    """A problem in w for every theta, and one in theta for every w."""

    def prediction_problem(self, theta: Floats) -> Problem: ...

    def conditional_problem(self, w: Floats) -> Problem: ...


def alternate(
    blocks: TwoBlocks,
    minimise: Minimise,
    w: Floats,
    theta: Floats,
    *,
    max_iter: int = 10,
    tolerance: float = 1e-3,
) -> tuple[Solution, Floats]:
    """Solve for w, then for theta, until the objective of w changes by less than ``tolerance`` of it.

    Each turn starts from the last one's weights. Returns the w of the lowest objective among the rounds, every one of
    which is a bound on the loss for that round's theta, and this theta.
    """
    found: list[tuple[Solution, Floats]] = []
    before, last = np.inf, None
    for k in range(max_iter):
        last = minimise(blocks.prediction_problem(theta), w)
        found.append((last, theta))
        close = abs(before - last.objective) <= tolerance * max(abs(last.objective), 1e-300)
        if close or last.outcome.cut_short or k == max_iter - 1:
            break
        w, before = last.w, last.objective
        last = minimise(blocks.conditional_problem(w), theta)
        if last.outcome.cut_short:
            break
        theta = last.w
    best, theta = min(found, key=lambda pair: pair[0].objective if np.isfinite(pair[0].objective) else np.inf)
    if last is not None and last.outcome.cut_short:
        best = replace(best, outcome=last.outcome, message=last.message)
    return best, theta

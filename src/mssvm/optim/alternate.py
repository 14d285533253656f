"""Alternating training of two sets of weights, as in ModLat: each set has its own problem while the other is fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.objectives.problem import Problem
from mssvm.optim.solution import Solution

Minimise = Callable[[Problem, Floats], Solution]
"""A solver with its regulariser, callbacks and limits."""


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

    Each round starts from the weights of the last one. Returns the w of the lowest objective among the rounds, and its
    theta; the objective of every round bounds the loss for that round's theta.
    """
    rounds: list[tuple[Solution, Floats]] = []
    previous_objective = np.inf
    for k in range(max_iter):
        last = minimise(blocks.prediction_problem(theta), w)
        rounds.append((last, theta))
        change = abs(previous_objective - last.objective)
        converged = change <= tolerance * max(abs(last.objective), 1e-300)
        if converged or last.outcome.cut_short or k == max_iter - 1:
            break
        w = last.w
        previous_objective = last.objective
        last = minimise(blocks.conditional_problem(w), theta)
        if last.outcome.cut_short:
            break
        theta = last.w
    best, theta = min(rounds, key=_objective)
    if last.outcome.cut_short:
        best = replace(best, outcome=last.outcome, message=last.message)
    return best, theta


def _objective(solved: tuple[Solution, Floats]) -> float:
    """The objective of a round, infinite where it diverged."""
    objective = solved[0].objective
    return objective if np.isfinite(objective) else np.inf

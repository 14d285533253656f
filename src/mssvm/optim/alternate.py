"""Training by turns over two sets of weights, as ModLat does: each block has its own problem given the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Problem
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.solution import Solution
from mssvm.optim.solver import PLAIN, Solver


class TwoBlocks(Protocol):
    """A problem in w for every theta, and one in theta for every w."""

    def prediction_problem(self, theta: Floats) -> Problem: ...

    def conditional_problem(self, w: Floats) -> Problem: ...


@dataclass(frozen=True)
class Alternate:
    """Solve for w, then for theta, until the objective of w changes by less than ``tolerance`` of it.

    Each turn starts from the last one's weights. The returned solution is the w of the lowest objective among the
    rounds, every one of which is a bound on the loss for that round's theta.
    """

    prediction: Solver[Any]
    conditional: Solver[Any]
    max_rounds: int = 10
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.max_rounds < 1 or not self.tolerance > 0:
            raise InputError("Alternate needs max_rounds >= 1 and tolerance > 0.")

    def minimize(
        self, blocks: TwoBlocks, w0: Floats, theta0: Floats, *, regulariser: Regulariser = PLAIN
    ) -> tuple[Solution, Floats]:
        """The solution in w, and the weights of the conditional model it was found with."""
        w, theta = w0, theta0
        best: tuple[Solution, Floats] | None = None
        before = np.inf
        for _ in range(self.max_rounds):
            found = self.prediction.minimize(blocks.prediction_problem(theta), w, regulariser=regulariser)
            if best is None or found.objective < best[0].objective:
                best = found, theta
            w = found.w
            if abs(before - found.objective) <= self.tolerance * max(abs(found.objective), 1e-300):
                break
            before = found.objective
            theta = self.conditional.minimize(blocks.conditional_problem(w), theta, regulariser=regulariser).w
        assert best is not None
        return best

"""The convex form shared by the solvers that work in the dual: min_w R(w) + P(w) - u.w + constant.

P(w) = sum_i c_i plus_i(w) is a maximum of planes a.w + b, and the subtracted part is linear. For any planes of P, with
v = u - a, the minimum over w is attained at w = v / r and bounds the whole problem from below:

    constant + b - 1/2 sum_j v_j^2 / r_j
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import UnsupportedError
from mssvm.objectives.problem import Problem
from mssvm.optim.run import Run
from mssvm.optim.solution import Certificate


@dataclass(frozen=True, eq=False)
class ConvexForm:
    """r, u and the constant."""

    r: Floats
    u: Floats
    constant: float

    @classmethod
    def of(cls, problem: Problem, w: Floats, r: Floats, solver: str) -> ConvexForm:
        """Read the linear part off its value and gradient at any w; refuse a problem that has none."""
        if not problem.convex:
            raise UnsupportedError(
                f"{solver} needs a convex problem, and this one subtracts a convex part (hidden variables or sets of "
                f"labels); use CCCP(inner={solver}())."
            )
        part = problem.minus(w)
        return cls(r, part.gradient, float(part.gradient @ w) - part.total)

    def primal(self, w: Floats, plus: float) -> float:
        return 0.5 * float(self.r @ (w * w)) + plus - float(self.u @ w) + self.constant

    def dual(self, v: Floats, b: float) -> float:
        return self.constant + b - 0.5 * float(v @ (v / self.r))


def duality_certificate(run: Run, objective: float, lower: float, slack: Floats | None = None) -> Certificate:
    """Objective minus lower bound, proven only if every plane came from exact inference."""
    gap = objective - lower
    if not np.isfinite(gap):
        return Certificate("No lower bound is known, so nothing is certified.", negative_gaps=run.negative_gaps)
    share = gap / max(abs(objective), 1e-300)
    if run.tally.exact:
        sentence = f"Certified by duality: within {gap:.4g} ({share:.2%}) of the minimum."
    else:
        sentence = (
            f"An estimate, since inference was not exact: within {gap:.4g} ({share:.2%}) of the minimum; "
            f"{run.negative_gaps} negative gaps were seen."
        )
    return Certificate(sentence, gap, run.tally.exact, run.negative_gaps, slack=slack)

"""The convex form shared by the solvers that work in the dual, min_w R(w) + P(w) - u.w + constant, and their small QPs.

P(w) = sum_i c_i plus_i(w) is a maximum of planes a.w + b, and the subtracted part is linear. For any plane of P, with
v = u - a, the minimum over w is attained at w = v / r and bounds the whole problem from below:

    constant + b - 1/2 sum_j v_j^2 / r_j

Where w_j >= 0 is required, both hold with max(v_j, 0) in place of v_j: the multiplier of that constraint is max(-v_j,
0). The best mixture alpha of known planes is a quadratic program over simplices: min 1/2 alpha'H alpha - q'alpha with
alpha >= 0 and sum 1 in every group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, Function
from mssvm.optim.outcome import ROUNDING, gap_between, impossible
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import SolverRun
from mssvm.optim.solution import Certificate

NEGLIGIBLE = 1e-6
PAIRWISE = Function(
    "mssvm_dual_pairwise",
    hessian=FLOATS,
    gradient=FLOATS,
    alpha=FLOATS,
    group=INTS,
    groups=INT,
    most_rounds=INT,
    share=FLOAT,
)


@dataclass(frozen=True, eq=False)
class ConvexForm:
    """min_w R(w) + P(w) - u.w + constant; ``r`` are the strengths of R."""

    regulariser: Regulariser
    u: Floats
    constant: float

    @classmethod
    def of(cls, run: SolverRun, solver: str, by_instance: bool) -> ConvexForm:
        """Read the linear part off its value and gradient at the start; refuse a problem that has none.

        ``by_instance``: the solver visits single instances. This is checked before convexity, so that on a cluster no
        error message recommends ``CCCP(inner=BCFW())``, which does not run there either.
        """
        run.regulariser.demand_smooth(solver)
        if by_instance and not run.problem.has_atoms:
            raise UnsupportedError(
                f"{solver}, by itself or inside CCCP, visits single instances again and again, which takes too long "
                "on a cluster; use solver='lbfgs', solver='subgradient', solver='adam' or solver=CCCP(inner=LBFGS())."
            )
        run.regulariser.demand_dual(run.problem.n_weights, solver)
        if not run.problem.convex:
            raise UnsupportedError(
                f"{solver} needs a convex problem, and this one subtracts a convex part (hidden variables or sets of "
                f"labels); use solver=CCCP(inner={solver}())."
            )
        part = run.count(run.problem.minus(run.w0))
        return cls(run.regulariser, part.gradient, float(part.gradient @ run.w0) - part.total)

    @cached_property
    def r(self) -> Floats:
        return self.regulariser.strengths(len(self.u))

    def point(self, v: Floats) -> Floats:
        """argmin_w R(w) - v.w."""
        return np.asarray(self.regulariser.project(v) / self.r)

    def primal(self, w: Floats, plus: float) -> float:
        return 0.5 * float(self.r @ (w * w)) + plus - float(self.u @ w) + self.constant

    def dual(self, v: Floats, b: float) -> float:
        return self.constant + b - 0.5 * float(v @ self.point(v))


def duality_certificate(run: SolverRun, objective: float, lower: float, slack: Floats | None = None) -> Certificate:
    """Objective minus lower bound, proven only if every plane came from exact inference."""
    gap = gap_between(objective, lower)
    if not np.isfinite(gap):
        return Certificate("No lower bound is known, so nothing is certified.", negative_gaps=run.negative_gaps)
    if run.negative_gaps or impossible(gap, objective):
        count = max(run.negative_gaps, 1)
        sentence = (
            f"Not certified: inference missed maxima ({count} gaps were negative, which is impossible), so the "
            "objective is higher than reported."
        )
        return Certificate(sentence, gap, negative_gaps=count, slack=slack)
    share = f" ({gap / objective:.2%})" if objective > ROUNDING else ""
    if run.tally.exact:
        sentence = f"Certified by duality: within {gap:.4g}{share} of the minimum."
    else:
        sentence = f"An estimate, since inference was not exact: within {gap:.4g}{share} of the minimum."
    return Certificate(sentence, gap, run.tally.exact, slack=slack)


def solve_simplices(H: Floats, q: Floats, group: Ints, start: Floats) -> tuple[Floats, bool]:
    """Weights of the planes, feasible to the last bit, and whether the interior-point solver succeeded.

    Any feasible weights give a valid lower bound. Where the solver fails, or ends above the start, pairwise steps
    from the start take its place: slower, and safe.
    """
    if len(q) == len(np.unique(group)):
        return np.ones(len(q)), True
    solved = _interior_point(H, q, group)
    before = _value(H, q, start)
    if solved is not None and _value(H, q, solved) <= before + NEGLIGIBLE * abs(before):
        return solved, True
    names, index = np.unique(group, return_inverse=True)
    alpha = start.copy()
    pairwise(H, H @ alpha - q, alpha, index, len(names), 5000, 1e-12)
    return alpha, False


def _value(H: Floats, q: Floats, alpha: Floats) -> float:
    """The objective of the quadratic program."""
    return float(0.5 * alpha @ (H @ alpha) - q @ alpha)


def _interior_point(H: Floats, q: Floats, group: Ints) -> Floats | None:
    """Feasible weights by piqp; None where it fails."""
    import piqp

    k = len(q)
    groups = np.unique(group)
    scale = max(float(np.abs(np.diag(H)).max()), 1e-300)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = 1e-10
    solver.settings.eps_rel = 1e-10
    sums = np.asfortranarray((group[None, :] == groups[:, None]).astype(np.float64))
    P = np.asfortranarray((H + H.T) / (2 * scale))
    solver.setup(P, -q / scale, sums, np.ones(len(groups)), x_l=np.zeros(k), x_u=np.ones(k))
    status = solver.solve()
    alpha = np.asarray(solver.result.x, dtype=np.float64)
    # Interior points give every plane some weight; rounded to zero, it shows which planes are idle.
    alpha = np.where(alpha > NEGLIGIBLE, alpha, 0.0)
    if status != piqp.PIQP_SOLVED or not np.all(np.isfinite(alpha)):
        return None
    index = np.searchsorted(groups, group)
    totals = np.bincount(index, weights=alpha, minlength=len(groups))
    if np.any(totals <= 0):
        return None
    return np.asarray(alpha / totals[index])


def pairwise(
    H: Floats, gradient: Floats, alpha: Floats, group: Ints, n_groups: int, max_rounds: int, share: float
) -> None:
    """Pairwise Frank-Wolfe steps on the quadratic program, in place: weight moves from the worst plane of positive
    weight to the best one of its group, with exact line search.

    ``gradient`` = H alpha - q is updated. Ends when no group's difference of gradients exceeds ``share`` of the largest
    one of the first round.
    """
    PAIRWISE(
        hessian=np.ascontiguousarray(H),
        gradient=gradient,
        alpha=alpha,
        group=group,
        groups=n_groups,
        most_rounds=max_rounds,
        share=share,
    )

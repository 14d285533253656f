"""Cutting planes on the constraint form (the paper's supplement): tangents of the convex part, a QP over mixtures.

    min_w R(w) - u.w + xi    with    xi >= a_k.w + b_k    for every tangent (a_k, b_k) of P(w) = sum_i c_i plus_i(w)

One slack for the sum of all instances, or one an instance (n-slack: more planes a round, fewer rounds). The QP is
solved in its dual, whose value is a lower bound; the solver stops on the gap to the best objective met.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from mssvm.arrays import Floats, Ints
from mssvm.errors import InputError
from mssvm.optim.dual import ConvexForm, duality_certificate
from mssvm.optim.master import solve_simplices
from mssvm.optim.run import Run, Stop
from mssvm.optim.solution import Certificate, Outcome
from mssvm.optim.solver import Solver


@dataclass
class CuttingPlaneState:
    """Planes a_k, b_k with their group, weight and idle rounds; ``H`` = a R^-1 a'. ``slack`` belongs to the best w."""

    u: Floats
    constant: float
    a: Floats
    b: Floats
    group: Ints
    alpha: Floats
    idle: Ints
    H: Floats
    lower: float
    slack: Floats
    n_round: int
    n_failed: int


@dataclass(frozen=True)
class CuttingPlane(Solver[CuttingPlaneState]):
    """Stops when the gap is at most ``tolerance`` times the objective; drops planes idle for ``max_idle`` rounds."""

    max_rounds: int = 500
    tolerance: float = 1e-3
    n_slack: bool = False
    max_idle: int = 50

    state_type: ClassVar[type] = CuttingPlaneState

    def __post_init__(self) -> None:
        if min(self.max_rounds, self.max_idle) < 1:
            raise InputError("CuttingPlane needs max_rounds and max_idle >= 1.")

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=tolerance)

    def warm(self, state: CuttingPlaneState) -> dict[str, Any]:
        return {"a": state.a, "b": state.b, "group": state.group, "alpha": state.alpha}

    def begin(self, run: Run, warm: dict[str, Any]) -> CuttingPlaneState:
        p = run.problem.n_weights
        r = run.regulariser.demand_dual(p, "CuttingPlane")
        form = ConvexForm.of(run.problem, run.w0, r, "CuttingPlane")
        a, b = np.zeros((0, p)), np.zeros(0)
        group = alpha = None
        if warm:
            a, b, group, alpha = warm["a"], warm["b"], warm["group"], warm["alpha"]
        none = np.zeros(0, dtype=np.int64)
        state = CuttingPlaneState(
            form.u,
            form.constant,
            a.copy(),
            b.copy(),
            none if group is None else group.copy(),
            np.zeros(0) if alpha is None else alpha.copy(),
            np.zeros(len(b), dtype=np.int64),
            (a / r) @ a.T,
            -np.inf,
            np.zeros(0),
            0,
            0,
        )
        if not warm:
            plus, (rows, values, groups) = self._tangents(run, run.w0)
            run.record(run.w0, form.primal(run.w0, plus))
            _add(state, r, rows, values, groups)
        return state

    def step(self, run: Run, state: CuttingPlaneState) -> None:
        form = ConvexForm(run.regulariser.strengths(run.problem.n_weights), state.u, state.constant)
        q = state.b + state.a @ (form.u / form.r)
        state.alpha, solved = solve_simplices(state.H, q, state.group, state.alpha)
        state.n_failed += not solved
        v = form.u - state.alpha @ state.a
        w = v / form.r
        state.lower = max(state.lower, form.dual(v, float(state.alpha @ state.b)))
        plus, (rows, values, groups) = self._tangents(run, w)
        objective = form.primal(w, plus)
        if objective < run.best.objective:
            state.slack = _tops(state.a @ w + state.b, state.group)
        lowest = min(objective, run.best.objective)
        gap = lowest - state.lower
        run.record(w, objective, gap=gap, gradient_norm=run.gradient_norm(w, rows.sum(axis=0) - form.u))
        state.n_round += 1
        if gap <= self.tolerance * abs(lowest):
            raise Stop(Outcome.CONVERGED, f"The gap fell to {gap:.4g} after {state.n_round} rounds.")
        if state.n_round >= self.max_rounds:
            raise Stop(Outcome.BUDGET, f"All {self.max_rounds} rounds were run; the gap is {gap:.4g}.")
        self._drop(state)
        _add(state, form.r, rows, values, groups)

    def certificate(self, run: Run, state: CuttingPlaneState, objective: float) -> Certificate:
        slack = None
        if self.n_slack and len(state.slack) == run.problem.n_instances:
            c = run.problem.scale
            raw = np.divide(state.slack, c, out=np.zeros_like(c), where=c > 0)
            slack = raw - run.problem.minus(run.best.w).values
        return duality_certificate(run, objective, state.lower, slack)

    def _tangents(self, run: Run, w: Floats) -> tuple[float, tuple[Floats, Floats, Ints]]:
        """P(w), and its tangent at w: as one plane, or as one an instance."""
        problem = run.problem
        if not self.n_slack:
            part = problem.plus(w)
            offset = part.total - float(part.gradient @ w)
            return part.total, (part.gradient[None], np.array([offset]), np.zeros(1, dtype=np.int64))
        n = problem.n_instances
        rows, values = np.zeros((n, problem.n_weights)), np.zeros(n)
        for i in range(n):
            value, mu = problem.atom(w, i)
            rows[i] = problem.scale[i] * problem.lift(i, mu)
            values[i] = problem.scale[i] * value
        return float(values.sum()), (rows, values - rows @ w, np.arange(n))

    def _drop(self, state: CuttingPlaneState) -> None:
        """Forget planes without weight for too long; at least one in each group has weight, so none empties."""
        state.idle = np.where(state.alpha > 1e-12, 0, state.idle + 1)
        keep = state.idle <= self.max_idle
        if not keep.all():
            state.a, state.b, state.group = state.a[keep], state.b[keep], state.group[keep]
            state.alpha, state.idle, state.H = state.alpha[keep], state.idle[keep], state.H[np.ix_(keep, keep)]


def _add(state: CuttingPlaneState, r: Floats, rows: Floats, values: Floats, groups: Ints) -> None:
    """Append planes with weight 0, or 1 where they are the first of their group."""
    cross, own = (rows / r) @ state.a.T, (rows / r) @ rows.T
    state.H = np.block([[state.H, cross.T], [cross, own]])
    first = ~np.isin(groups, state.group)
    state.a, state.b = np.vstack([state.a, rows]), np.append(state.b, values)
    state.group = np.append(state.group, groups)
    state.alpha = np.append(state.alpha, first.astype(np.float64))
    state.idle = np.append(state.idle, np.zeros(len(values), dtype=np.int64))


def _tops(scores: Floats, group: Ints) -> Floats:
    """The highest score in each group, in order of the groups."""
    tops = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(tops, group, scores)
    return tops

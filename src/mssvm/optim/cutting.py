"""Cutting planes on the constraint form (the paper's supplement): tangents of the convex part, a QP over mixtures.

    min_w R(w) - u.w + xi    with    xi >= a_k.w + b_k    for every tangent (a_k, b_k) of P(w) = sum_i c_i plus_i(w)

One slack for the sum of all instances, or one per instance (n-slack: more planes a round, fewer rounds). The QP is
solved in its dual (``dual``), whose value is a lower bound; the solver stops on the gap to the best objective so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.optim.dual import ConvexForm, duality_certificate, solve_simplices
from mssvm.optim.former_names import former_names
from mssvm.optim.outcome import Outcome, Stop, closed, gap_between
from mssvm.optim.run import SolverRun
from mssvm.optim.solution import Certificate
from mssvm.optim.solver import Solver

# New planes are taken at this share of the way from the best point to the QP's solution, which swings far at first.
STRIDE = 0.3
TURNS = 50  # largest number of alternations between the QP and the constraints w >= 0
# Rounds without weight after which planes are dropped.
MAX_IDLE = 30
MAX_IDLE_N_SLACK = 5


class Planes(NamedTuple):
    """Planes a_k.w + b_k and the group (sum or instance) that each belongs to."""

    a: Floats
    b: Floats
    group: Ints


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


@former_names(max_rounds="max_iter")
@dataclass(frozen=True)
class CuttingPlane(Solver[CuttingPlaneState]):
    """Cutting planes.

    Stops when the gap is at most ``tolerance`` times the objective and not negative, or after ``max_iter`` rounds.
    ``n_slack`` gives every instance a slack of its own; planes idle for ``max_idle`` rounds are dropped (default 30,
    with n slacks 5).

    >>> ms.SSVM(ms.Chain(), solver=ms.solvers.CuttingPlane(tolerance=0.01, n_slack=True)).fit(X, y).score(X, y)
    1.0
    """

    max_iter: int = 500
    tolerance: float = 1e-3
    n_slack: bool = False
    max_idle: int | None = None

    state_type: ClassVar[type] = CuttingPlaneState
    warm: ClassVar[tuple[str, ...]] = ("a", "b", "group", "alpha", "idle")

    def __post_init__(self) -> None:
        if self.max_iter < 1 or (self.max_idle is not None and self.max_idle < 1):
            raise InputError("CuttingPlane needs max_iter and max_idle >= 1.")

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=tolerance)

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> CuttingPlaneState:
        p = run.problem.n_weights
        form = ConvexForm.of(run, "CuttingPlane", by_instance=self.n_slack)
        none = np.zeros(0, dtype=np.int64)
        empty = {"a": np.zeros((0, p)), "b": np.zeros(0), "group": none, "alpha": np.zeros(0), "idle": none}
        planes = {key: np.array(value) for key, value in (warm or empty).items()}
        H = (planes["a"] / form.r) @ planes["a"].T
        state = CuttingPlaneState(
            form.u, form.constant, H=H, lower=-np.inf, slack=np.zeros(0), n_round=0, n_failed=0, **planes
        )
        if not warm:
            w = run.regulariser.project(run.w0)
            plus, tangents = self._tangents(run, w)
            run.record(w, form.primal(w, plus))
            _add(state, form.r, tangents)
        return state

    def step(self, run: SolverRun, state: CuttingPlaneState) -> None:
        form = ConvexForm(run.regulariser, state.u, state.constant)
        v = self._solve(state, form)
        w = form.point(v)
        state.lower = max(state.lower, form.dual(v, float(state.alpha @ state.b)))
        if np.isfinite(run.best.objective):
            w = run.best.w + STRIDE * (w - run.best.w)
        plus, tangents = self._tangents(run, w)
        objective = form.primal(w, plus)
        tops = _tops(state.a @ w + state.b, state.group)
        if objective < run.best.objective:
            state.slack = tops
        lowest = min(objective, run.best.objective)
        gap = gap_between(lowest, state.lower)
        run.record(w, objective, gap=gap, gradient_norm=run.gradient_norm(w, tangents.a.sum(axis=0) - form.u))
        state.n_round += 1
        if closed(gap, lowest, self.tolerance):
            raise Stop(Outcome.CONVERGED, f"The gap fell to {gap:.4g} after {state.n_round} rounds.")
        if state.n_round >= self.max_iter:
            raise Stop(Outcome.BUDGET, f"All {self.max_iter} rounds were run; the gap is {gap:.4g}.")
        self._drop(state)
        # The planes left out promise less than a tenth of the gap together.
        new = tangents.a @ w + tangents.b - tops > 0.1 * max(gap, 0.0) / len(tops)
        _add(state, form.r, Planes(tangents.a[new], tangents.b[new], tangents.group[new]))

    def _solve(self, state: CuttingPlaneState, form: ConvexForm) -> Floats:
        """Solve the QP, alternately with the multipliers of the constraints w >= 0 if there are any; returns v."""
        v = form.u - state.alpha @ state.a
        multipliers = form.regulariser.project(v) - v
        for _ in range(TURNS):
            q = state.b + state.a @ ((form.u + multipliers) / form.r)
            state.alpha, solved = solve_simplices(state.H, q, state.group, state.alpha)
            if not solved:
                state.n_failed += 1
            v = form.u - state.alpha @ state.a
            before = multipliers
            multipliers = form.regulariser.project(v) - v
            if np.allclose(multipliers, before, rtol=1e-6, atol=0.0):
                break
        return v

    def certificate(self, run: SolverRun, state: CuttingPlaneState, objective: float) -> Certificate:
        slack = None
        if self.n_slack and len(state.slack) == run.problem.n_instances:
            c = run.problem.scale
            raw = np.divide(state.slack, c, out=np.zeros_like(c), where=c > 0)
            slack = raw - run.count(run.problem.minus(run.best.w)).values
        return duality_certificate(run, objective, state.lower, slack)

    def _tangents(self, run: SolverRun, w: Floats) -> tuple[float, Planes]:
        """P(w), and its tangent at w: as one plane, or as one per instance."""
        problem = run.problem
        if not self.n_slack:
            part = run.count(problem.plus(w))
            offset = part.total - float(part.gradient @ w)
            return part.total, Planes(part.gradient[None], np.array([offset]), np.zeros(1, dtype=np.int64))
        n = problem.n_instances
        rows = np.zeros((n, problem.n_weights))
        values = np.zeros(n)
        for i in range(n):
            value, mu = run.atom(w, i)
            rows[i] = problem.scale[i] * problem.features_of(i, mu)
            values[i] = problem.scale[i] * value
        return float(values.sum()), Planes(rows, values - rows @ w, np.arange(n))

    def _drop(self, state: CuttingPlaneState) -> None:
        """Drop planes that had no weight for too long; one plane of each group has weight, so no group empties."""
        state.idle = np.where(state.alpha > 0, 0, state.idle + 1)
        max_idle = MAX_IDLE_N_SLACK if self.n_slack else MAX_IDLE
        if self.max_idle is not None:
            max_idle = self.max_idle
        keep = state.idle <= max_idle
        if keep.all():
            return
        state.a = state.a[keep]
        state.b = state.b[keep]
        state.group = state.group[keep]
        state.alpha = state.alpha[keep]
        state.idle = state.idle[keep]
        state.H = state.H[np.ix_(keep, keep)]


def _add(state: CuttingPlaneState, r: Floats, planes: Planes) -> None:
    """Append planes with weight 0, or 1 where they are the first of their group."""
    cross = (planes.a / r) @ state.a.T
    own = (planes.a / r) @ planes.a.T
    state.H = np.block([[state.H, cross.T], [cross, own]])
    first = ~np.isin(planes.group, state.group)
    state.a = np.vstack([state.a, planes.a])
    state.b = np.append(state.b, planes.b)
    state.group = np.append(state.group, planes.group)
    state.alpha = np.append(state.alpha, first.astype(np.float64))
    state.idle = np.append(state.idle, np.zeros(len(planes.b), dtype=np.int64))


def _tops(scores: Floats, group: Ints) -> Floats:
    """The highest score in each group, in order of the groups."""
    tops = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(tops, group, scores)
    return tops

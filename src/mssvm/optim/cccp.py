"""Algorithm 2 of the paper: the concave-convex procedure, with any solver for its convex inner problems.

    u = gradient of sum_i c_i minus_i at w_t,    w_{t+1} = argmin_w R(w) + sum_i c_i plus_i(w) - u.w

The tangent is below the subtracted part, so a lower inner objective is a lower true one. A result that does not lower
the objective is discarded: the objective never rises, whatever the inner solver does. An inner solver that knows its
gap stops as soon as it has made most of the progress that the inner problem allows, or at ``inner_tolerance``; a
quarter of that tolerance is tried once before the outer loop ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, ClassVar, Self, cast

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Evaluation, Problem
from mssvm.optim.bcfw import BCFW
from mssvm.optim.dual import duality_certificate
from mssvm.optim.former_names import former_names
from mssvm.optim.outcome import Outcome, Stop, impossible
from mssvm.optim.run import SolverRun
from mssvm.optim.solution import Certificate, Solution
from mssvm.optim.solver import Solver
from mssvm.optim.subgradient import Stopping, Subgradient
from mssvm.optim.trace import NAN, Row

ENOUGH = 0.5  # an inner solve ends when its gap is below this share of the decrease it has achieved
FINER = 0.25  # this share of ``inner_tolerance`` is tried once when progress ends
STAGE_TOLERANCE = 1e-2  # tolerance of the outer loop at the temperatures before the target


@dataclass
class CCCPState:
    """The point, its objective and the tangent (``minus``, ``u``) there at the temperatures of the stage, and the warm
    start of the inner solver."""

    w: Floats
    objective: float
    minus: float
    u: Floats
    stage: int
    outer: int
    warm: dict[str, Any]
    inner_tolerance: float
    inner_gap: float
    inner_certified: bool


@former_names(max_outer="max_iter")
@dataclass(frozen=True)
class CCCP(Solver[CCCPState]):
    """The concave-convex procedure around the solver ``inner``, which runs to a gap of ``inner_tolerance``.

    Stops when an outer step lowers the objective by less than ``tolerance`` of it, or after ``max_iter`` steps.
    ``literal`` accepts every inner result, also one that is not lower. ``eps_h_schedule`` are values of eps_h that
    fall towards the target.

    >>> ms.LSSVM(ms.Chain(), solver=ms.solvers.CCCP(ms.solvers.LBFGS(), max_iter=20)).fit(X, y).score(X, y)
    1.0
    """

    inner: Solver[Any] = field(default_factory=BCFW)
    max_iter: int = 100
    tolerance: float = 2e-4
    inner_tolerance: float = 1e-3
    literal: bool = False
    eps_h_schedule: Sequence[float] = ()

    state_type: ClassVar[type] = CCCPState

    def __post_init__(self) -> None:
        if self.max_iter < 1 or not self.tolerance > 0:
            raise InputError("CCCP needs max_iter >= 1 and tolerance > 0.")
        if list(self.eps_h_schedule) != sorted(self.eps_h_schedule, reverse=True):
            raise InputError(f"eps_h_schedule must fall, got {self.eps_h_schedule}.")

    @classmethod
    def printed(
        cls, rate: float, n_outer: int, n_inner: int, tolerance: float, stopping: Stopping = Stopping.PRINTED
    ) -> Self:
        """Algorithm 2 as printed: full-batch subgradient steps at a fixed rate, at most ``n_inner`` an outer step,
        until the gradient norm (``stopping``: as printed or as corrected) falls to ``tolerance``."""
        return cls(Subgradient.literal(rate, n_inner, tolerance, stopping), max_iter=n_outer, literal=True)

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=tolerance, inner_tolerance=tolerance)

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> CCCPState:
        run.regulariser.demand_smooth("CCCP")
        w = run.regulariser.project(run.w0)
        state = CCCPState(
            w=w,
            objective=NAN,
            minus=NAN,
            u=np.zeros_like(w),
            stage=0,
            outer=0,
            warm=dict(warm),
            inner_tolerance=self.inner_tolerance,
            inner_gap=NAN,
            inner_certified=False,
        )
        self._enter(run, state)
        return state

    def stages(self, target: tuple[float, float]) -> list[tuple[float, float]]:
        """The temperatures to run through, the target last."""
        return [(target[0], float(e)) for e in self.eps_h_schedule if e > target[1]] + [target]

    def step(self, run: SolverRun, state: CCCPState) -> None:
        stages = self.stages(run.problem.temperatures)
        view = run.problem.at(*stages[state.stage])
        minus = Evaluation(np.zeros(0), state.minus, state.u)
        inner = Linearised(view, state.w, minus)
        before = state.objective
        solution = self._solve(run, state, inner)
        run.tally.add(solution.tally)
        run.negative_gaps += solution.certificate.negative_gaps
        state.warm = solution.warm
        # Gap of the inner problem: the lower of the objectives at the new and the old point, less the lower bound.
        state.inner_gap = min(solution.objective, before) - solution.objective + solution.certificate.gap
        state.inner_certified = solution.certificate.certifies
        if self.literal or solution.objective < state.objective:
            self._accept(run, view, state, inner, solution)
        run.record(state.w, state.objective, gap=self._gap(run, state), temperatures=view.temperatures)
        if solution.outcome is Outcome.INTERRUPTED:
            raise KeyboardInterrupt
        if solution.outcome is Outcome.TIME:
            raise Stop(Outcome.TIME, f"The time limit was reached in outer step {state.outer + 1}.")
        state.outer += 1
        progress = (before - state.objective) / max(abs(before), 1e-300)
        if not self.literal:
            self._settle(run, state, progress, state.stage == len(stages) - 1)
        if state.outer >= self.max_iter:
            raise Stop(Outcome.BUDGET, f"All {self.max_iter} outer steps were taken.")

    def _settle(self, run: SolverRun, state: CCCPState, progress: float, last: bool) -> None:
        """After too little progress: go on to the next stage, or to more exact inner solutions, or end."""
        tolerance = self.tolerance if last else max(STAGE_TOLERANCE, self.tolerance)
        if progress > tolerance:
            return
        if not last:
            state.stage += 1
            self._enter(run, state)
            return
        finer = self.inner_tolerance * FINER
        if finer >= state.inner_tolerance or self.inner.tightened(finer) == self.inner.tightened(state.inner_tolerance):
            raise Stop(Outcome.CONVERGED, f"Outer step {state.outer} changed the objective by {progress:.1e} of it.")
        state.inner_tolerance = finer

    def _solve(self, run: SolverRun, state: CCCPState, inner: Linearised) -> Solution:
        """Solve the inner problem from the present point; end early once its gap is small compared with the
        progress."""
        problem = cast(Problem, inner)
        seconds_left = run.deadline - monotonic()
        if self.literal:
            return self.inner.minimize(problem, state.w, regulariser=run.regulariser, time_limit=seconds_left)
        lowest = state.objective

        def enough(row: Row, w: Floats) -> bool:
            nonlocal lowest
            lowest = min(lowest, row.objective)
            return row.gap <= ENOUGH * (state.objective - lowest) and not impossible(row.gap, row.objective)

        return self.inner.tightened(state.inner_tolerance).minimize(
            problem,
            state.w,
            regulariser=run.regulariser,
            time_limit=seconds_left,
            callback=enough,
            warm=state.warm,
        )

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        return run.chosen(last=self.literal)

    def certificate(self, run: SolverRun, state: CCCPState, objective: float) -> Certificate:
        if run.problem.convex:
            return duality_certificate(run, objective, objective - state.inner_gap)
        if run.negative_gaps:
            sentence = (
                f"Not certified: inference missed maxima ({run.negative_gaps} gaps of inner problems were negative)."
            )
            return Certificate(sentence, negative_gaps=run.negative_gaps)
        kind = "certified" if state.inner_certified and run.tally.exact else "estimated"
        sentence = "A local solution, not certified; the gap of the last inner problem is "
        return Certificate(sentence + f"{state.inner_gap:.4g} ({kind}).", negative_gaps=run.negative_gaps)

    def _gap(self, run: SolverRun, state: CCCPState) -> float:
        return state.inner_gap if run.problem.convex else NAN

    def _enter(self, run: SolverRun, state: CCCPState) -> None:
        """Evaluate the point at the temperatures of a new stage; planes of other temperatures are no longer valid."""
        view = run.problem.at(*self.stages(run.problem.temperatures)[state.stage])
        plus = run.count(view.plus(state.w))
        minus = run.count(view.minus(state.w))
        state.objective = run.regulariser.value(state.w) + plus.total - minus.total
        state.minus = minus.total
        state.u = minus.gradient
        if state.stage:
            state.warm = {}
        run.record(state.w, state.objective, temperatures=view.temperatures)

    def _accept(self, run: SolverRun, view: Problem, state: CCCPState, inner: Linearised, solution: Solution) -> None:
        """Move to the inner solution, unless its true objective is not lower (possible only with inexact inference)."""
        minus = run.count(view.minus(solution.w))
        objective = solution.objective + float(inner.u @ solution.w) - inner.constant - minus.total
        if self.literal or objective < state.objective:
            state.w = solution.w
            state.objective = objective
            state.minus = minus.total
            state.u = minus.gradient


class Linearised:
    """CCCP's convex inner problem: ``problem`` with its subtracted part replaced by the tangent u.w - const at ``w``.

    ``minus`` is the evaluation of that part at ``w``. The tangent is known only as a sum over instances; every instance
    gets a share of it in proportion to c_i. Everything else is inherited from the problem.
    """

    convex = True

    def __init__(self, problem: Problem, w: Floats, minus: Evaluation) -> None:
        self.problem = problem
        self.u = minus.gradient
        self.constant = float(minus.gradient @ w) - minus.total

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def at(self, eps_y: float, eps_h: float) -> Linearised:
        """The same tangent under the first part at other temperatures."""
        tangent = Evaluation(np.zeros(0), -self.constant, self.u)
        return Linearised(self.problem.at(eps_y, eps_h), np.zeros_like(self.u), tangent)

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        """The tangent stays as it is."""
        return self.problem.tempering(eps_y, eps_h)[0], np.zeros(self.problem.n_instances)

    def minus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        """The tangent, or its share."""
        whole = self.problem.scale
        scale = whole if instances is None else whole[instances]
        total = float(whole.sum()) or 1.0
        share = float(scale.sum()) / total
        value = float(self.u @ w) - self.constant
        return Evaluation(np.full(len(scale), value / total), share * value, share * self.u)

    def difference(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        """The first part less the tangent."""
        plus = self.problem.plus(w, instances)
        tangent = self.minus(w, instances)
        return replace(
            plus,
            values=plus.values - tangent.values,
            total=plus.total - tangent.total,
            gradient=plus.gradient - tangent.gradient,
        )

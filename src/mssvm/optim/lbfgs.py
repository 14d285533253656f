"""L-BFGS on the whole objective, difference of convex parts and all; members with a max by temperature homotopy.

A smooth member is minimised as it is. Otherwise the temperatures run through max(eps, t) for t in ``schedule``, each
stage starting where the last one ended. Raising a temperature by t raises a power sum over n assignments by at most
t log n, so the last stage is off by at most sum_i c_i t log |Y_i| (and twice t log |H_i| where hidden variables are
smoothed too).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.optimize import Bounds, OptimizeResult
from scipy.optimize import minimize as scipy_minimize

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Problem
from mssvm.optim.solution import Certificate, Outcome
from mssvm.optim.solver import NAN, Solver, SolverRun, Stop

STAGE_TOLERANCE = 1e-4  # of the stages that only lead to the last one


@dataclass
class LBFGSState:
    """SciPy's inner state cannot be saved, so this is where a stage starts, or starts again."""

    w: Floats
    stage: int
    smoothed: float
    gradient_norm: float
    finished: bool


@dataclass(frozen=True)
class LBFGS(Solver[LBFGSState]):
    """SciPy's L-BFGS-B at falling temperatures.

    ``schedule`` has the temperatures below which no stage goes (members that are smooth already have one stage). A
    stage ends after ``max_iterations``, or when the objective falls by less than ``tolerance`` of it, or when no
    component of the gradient exceeds ``gradient_tolerance``; ``memory`` is the number of corrections kept.
    ``floors`` is the former name of ``schedule``.
    """

    schedule: Sequence[float] = (1, 1 / 4, 1 / 16, 1 / 32)
    max_iterations: int = 200
    tolerance: float = 1e-8
    gradient_tolerance: float = 1e-5
    memory: int = 10
    floors: InitVar[Sequence[float] | None] = None

    state_type: ClassVar[type] = LBFGSState
    long_steps: ClassVar[bool] = True

    def __post_init__(self, floors: Sequence[float] | None) -> None:
        if floors is not None:
            warnings.warn("LBFGS(floors=...) is now LBFGS(schedule=...).", FutureWarning, stacklevel=3)
            object.__setattr__(self, "schedule", floors)
        fall = list(self.schedule)
        if not fall or any(t <= 0 for t in fall) or fall != sorted(fall)[::-1]:
            raise InputError(f"schedule must be falling temperatures > 0, got {self.schedule}.")

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> LBFGSState:
        w = run.regulariser.project(run.w0)
        if self.stages(run.problem.temperatures)[0] != run.problem.temperatures:
            run.record(w, run.objective(w)[0])
        return LBFGSState(w, 0, NAN, NAN, True)

    def stages(self, target: tuple[float, float]) -> list[tuple[float, float]]:
        """The temperatures to run through; the target alone if it is smooth enough already."""
        if min(target) >= self.schedule[-1]:
            return [target]
        return list(dict.fromkeys((max(target[0], float(t)), max(target[1], float(t))) for t in self.schedule))

    def step(self, run: SolverRun, state: LBFGSState) -> None:
        stages = self.stages(run.problem.temperatures)
        at = stages[state.stage]
        target = at == run.problem.temperatures
        last = state.stage == len(stages) - 1
        stage = _Stage(run, run.problem if target else run.problem.at(*at))
        nonnegative = run.regulariser.nonnegative
        options = {
            "maxiter": self.max_iterations,
            "maxfun": 10 * self.max_iterations,
            "maxcor": self.memory,
            "ftol": self.tolerance if last else max(self.tolerance, STAGE_TOLERANCE),
            "gtol": self.gradient_tolerance,
        }
        bounds = None if nonnegative is None else Bounds(np.where(nonnegative, 0.0, -np.inf), np.inf)
        result = scipy_minimize(
            stage, state.w, jac=True, method="L-BFGS-B", bounds=bounds, callback=stage.accept, options=options
        )
        # The point returned need not be the last one evaluated.
        gradient = run.regulariser.stationarity(result.x, np.asarray(result.jac))
        state.w, state.finished = result.x, bool(result.status != 1)
        state.smoothed, state.gradient_norm = float(result.fun), float(np.linalg.norm(gradient))
        if not target:
            run.record(state.w, run.objective(state.w)[0])
        state.stage += 1
        if last and state.finished:
            raise Stop(Outcome.CONVERGED, f"L-BFGS ended at temperatures {at}: {str(result.message).lower()}.")
        if last:
            raise Stop(Outcome.BUDGET, f"L-BFGS used its {self.max_iterations} iterations at {at}.")

    def suspended(self, run: SolverRun, state: LBFGSState) -> LBFGSState | None:
        """A stage goes on from its last point, with a fresh memory of curvature."""
        return replace(state, w=run.last_w) if run.rows else None

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=min(1e-2 * tolerance, 1e-3))

    def certificate(self, run: SolverRun, state: LBFGSState, objective: float) -> Certificate:
        temperatures = self.stages(run.problem.temperatures)[max(state.stage - 1, 0)]
        plus, minus = run.problem.tempering(*temperatures)
        bias = float(run.problem.scale @ (plus + minus))
        smoothing = f"Smoothing at {temperatures} changes the objective by at most {bias:.4g}." if bias else ""
        strengths = run.regulariser.strengths(run.problem.n_weights)
        if not run.problem.convex or strengths.min() <= 0 or run.regulariser.nonnegative is not None or not state.stage:
            return Certificate(f"A local minimum, not certified. {smoothing}".strip(), bias=bias)
        # Strong convexity: f(w) - min f <= |f'(w)|^2 / (2 min r), for the smoothed f; then the bias.
        lower = state.smoothed - state.gradient_norm**2 / (2 * strengths.min()) - bias
        kind = "Certified" if run.tally.exact else "Estimated (inference was not exact)"
        sentence = f"{kind} by strong convexity: within {objective - lower:.4g} of the minimum. {smoothing}".strip()
        return Certificate(sentence, objective - lower, run.tally.exact, run.negative_gaps, bias)


class _Stage:
    """The objective at one pair of temperatures, as SciPy wants it, entering accepted points in the trace."""

    def __init__(self, run: SolverRun, problem: Problem) -> None:
        self.run, self._problem = run, problem
        self._at, self._gradient = np.zeros(0), np.zeros(0)
        self._fresh = not run.rows

    def __call__(self, w: Floats) -> tuple[float, Floats]:
        run = self.run
        known = run.known(w) if self._problem is run.problem else None
        part = run.count(known or self._problem.difference(w))
        value = run.regulariser.value(w) + part.total
        self._at, self._gradient = w.copy(), part.gradient
        if self._fresh:
            self._fresh = False
            self._record(w, value)
        return value, run.regulariser.gradient(w) + part.gradient

    def accept(self, intermediate_result: OptimizeResult) -> None:
        """SciPy's callback, which wants its argument to have this name."""
        self._record(np.asarray(intermediate_result.x), float(intermediate_result.fun))

    def _record(self, w: Floats, value: float) -> None:
        """Without a gradient norm if a line search accepted a point before the last one it tried."""
        norm = self.run.gradient_norm(w, self._gradient) if np.array_equal(w, self._at) else NAN
        self.run.record(w, value, gradient_norm=norm, temperatures=self._problem.temperatures)

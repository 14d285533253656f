"""L-BFGS on the whole objective, difference of convex parts and all; members with a max by temperature homotopy.

A smooth member is minimised as it is. Otherwise the temperatures run through max(eps, t) for t in ``floors``, each
stage starting where the last one ended. Raising a temperature by t raises a power sum over n assignments by at most
t log n, so the last stage is off by at most sum_i c_i t log |Y_i| (and twice t log |H_i| where hidden variables are
smoothed too).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from scipy.optimize import Bounds, OptimizeResult
from scipy.optimize import minimize as scipy_minimize
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.optim.run import NAN, Run, Stop
from mssvm.optim.solution import Certificate, Outcome
from mssvm.optim.solver import Solver
from mssvm.optim.views import Meter

STAGE_TOLERANCE = 1e-4  # of the stages that only lead to the last one


@dataclass
class LBFGSState:
    """SciPy's inner state cannot be saved, so this is the start of a stage; resuming repeats the stage."""

    w: Floats
    stage: int
    smoothed: float
    gradient_norm: float
    finished: bool


@dataclass(frozen=True)
class LBFGS(Solver[LBFGSState]):
    """SciPy's L-BFGS-B. ``tolerance`` is the relative decrease, ``gradient_tolerance`` the largest gradient component,
    below which a stage ends."""

    floors: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03)
    max_iterations: int = 200
    tolerance: float = 1e-8
    gradient_tolerance: float = 1e-5
    memory: int = 10

    state_type: ClassVar[type] = LBFGSState

    def __post_init__(self) -> None:
        object.__setattr__(self, "floors", tuple(float(t) for t in self.floors))
        if not self.floors or any(t <= 0 for t in self.floors) or list(self.floors) != sorted(self.floors)[::-1]:
            raise InputError(f"floors must be falling temperatures > 0, got {self.floors}.")

    def begin(self, run: Run, warm: dict[str, Any]) -> LBFGSState:
        w = run.regulariser.project(run.w0)
        if self.stages(run.problem.temperatures)[0] != run.problem.temperatures:
            run.record(w, run.objective(w)[0])
        return LBFGSState(w, 0, NAN, NAN, True)

    def stages(self, target: tuple[float, float]) -> list[tuple[float, float]]:
        """The temperatures to run through; the target alone if it is smooth enough already."""
        if min(target) >= self.floors[-1]:
            return [target]
        pairs = [(max(target[0], t), max(target[1], t)) for t in self.floors]
        return list(dict.fromkeys(pairs))

    def step(self, run: Run, state: LBFGSState) -> None:
        stages = self.stages(run.problem.temperatures)
        stage = _Stage(run, run.problem.at(*stages[state.stage]))
        last = state.stage == len(stages) - 1
        tolerance = self.tolerance if last else max(self.tolerance, STAGE_TOLERANCE)
        state.w, state.finished = self._solve(stage, state.w, tolerance)
        state.smoothed, state.gradient_norm = stage.value, stage.norm
        if stage.temperatures != run.problem.temperatures:
            run.record(state.w, run.objective(state.w)[0])
        state.stage += 1
        if last and state.finished:
            raise Stop(Outcome.CONVERGED, f"L-BFGS ended at temperatures {stages[-1]}: {stage.message}.")
        if last:
            raise Stop(Outcome.BUDGET, f"L-BFGS used its {self.max_iterations} iterations at {stages[-1]}.")

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=min(1e-2 * tolerance, 1e-3))

    def certificate(self, run: Run, state: LBFGSState, objective: float) -> Certificate:
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

    def _solve(self, stage: _Stage, w: Floats, tolerance: float) -> tuple[Floats, bool]:
        nonnegative = stage.run.regulariser.nonnegative
        bounds = None if nonnegative is None else Bounds(np.where(nonnegative, 0.0, -np.inf), np.inf)
        options = {
            "maxiter": self.max_iterations,
            "maxfun": 10 * self.max_iterations,
            "maxcor": self.memory,
            "ftol": tolerance,
            "gtol": self.gradient_tolerance,
        }
        # Its vectors are too short for BLAS threads to help, and on a busy machine waiting for them costs the most.
        with _blas().limit(limits=1, user_api="blas"):
            result = scipy_minimize(
                stage, w, jac=True, method="L-BFGS-B", bounds=bounds, callback=stage.accept, options=options
            )
        stage.settle(result)
        return result.x, bool(result.status != 1)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Stage:
    """The objective at one pair of temperatures, as SciPy wants it, entering accepted points in the trace."""

    def __init__(self, run: Run, problem: Meter) -> None:
        self.run, self._problem = run, problem
        self.temperatures = problem.temperatures
        self.value, self.norm, self.message = NAN, NAN, ""
        self._at, self._gradient = np.zeros(0), np.zeros(0)
        self._fresh = not run.rows

    def __call__(self, w: Floats) -> tuple[float, Floats]:
        part = self._problem.difference(w)
        value = self.run.regulariser.value(w) + part.total
        self._at, self._gradient = w.copy(), part.gradient
        if self._fresh:
            self._fresh = False
            self.run.record(w, value, gradient_norm=self._norm(w), temperatures=self.temperatures)
        return value, self.run.regulariser.gradient(w) + part.gradient

    def accept(self, intermediate_result: OptimizeResult) -> None:
        w = np.asarray(intermediate_result.x)
        self.run.record(w, float(intermediate_result.fun), gradient_norm=self._norm(w), temperatures=self.temperatures)

    def settle(self, result: OptimizeResult) -> None:
        """Value and gradient norm at the point returned, which need not be the last one evaluated."""
        gradient = self.run.regulariser.stationarity(result.x, np.asarray(result.jac))
        self.value, self.norm = float(result.fun), float(np.linalg.norm(gradient))
        self.message = str(result.message).lower()

    def _norm(self, w: Floats) -> float:
        """NaN if a line search accepted a point before the last one it tried."""
        return self.run.gradient_norm(w, self._gradient) if np.array_equal(w, self._at) else NAN

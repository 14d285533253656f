"""Algorithm 2 of the paper: the concave-convex procedure, with any solver for its convex inner problems.

    u = gradient of sum_i c_i minus_i at w_t,    w_{t+1} = argmin_w R(w) + sum_i c_i plus_i(w) - u.w

The tangent lies below the subtracted part, so a lower inner objective is a lower true one. A result that is not lower
is discarded: the objective never rises, whatever the inner solver does. Inner problems are solved to a share of the
progress that the outer steps make.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from mssvm.arrays import Floats
from mssvm.errors import InputError
from mssvm.objectives.problem import Part
from mssvm.optim.bcfw import BCFW
from mssvm.optim.dual import duality_certificate
from mssvm.optim.run import NAN, Run, Stop
from mssvm.optim.solution import Certificate, Outcome, Solution
from mssvm.optim.solver import Solver
from mssvm.optim.subgradient import Stopping, Subgradient
from mssvm.optim.views import Linearised, Meter

FIRST_TOLERANCE = 0.1
SHARE = 0.1  # of the last outer progress, as the tolerance of the next inner problem
STAGE_TOLERANCE = 1e-2  # of the outer loop at temperatures that only lead to the target


@dataclass
class CCCPState:
    """The point, its objective and the tangent there (at the stage's temperatures), and what the inner solver keeps."""

    w: Floats
    objective: float
    minus: float
    u: Floats
    stage: int
    outer: int
    tolerance: float
    warm: dict[str, Any]
    inner_gap: float
    inner_certified: bool


@dataclass(frozen=True)
class CCCP(Solver[CCCPState]):
    """Stops when an outer step lowers the objective by less than ``tolerance`` of it. ``literal`` takes every inner
    result as it comes. ``eps_h_schedule`` is an optional fall of eps_h towards the target."""

    inner: Solver[Any] = field(default_factory=BCFW)
    max_outer: int = 100
    tolerance: float = 1e-4
    literal: bool = False
    eps_h_schedule: tuple[float, ...] = ()

    state_type: ClassVar[type] = CCCPState

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps_h_schedule", tuple(float(e) for e in self.eps_h_schedule))
        if self.max_outer < 1 or not self.tolerance > 0:
            raise InputError("CCCP needs max_outer >= 1 and tolerance > 0.")
        if list(self.eps_h_schedule) != sorted(self.eps_h_schedule)[::-1]:
            raise InputError(f"eps_h_schedule must fall, got {self.eps_h_schedule}.")

    @classmethod
    def printed(
        cls, rate: float, n_outer: int, n_inner: int, tolerance: float, stopping: Stopping = Stopping.PRINTED
    ) -> Self:
        """Algorithm 2 as printed: full-batch subgradient steps at a fixed rate, at most ``n_inner`` an outer step,
        until the gradient norm (``stopping``: as printed or as corrected) falls to ``tolerance``."""
        return cls(Subgradient.literal(rate, n_inner, tolerance, stopping), max_outer=n_outer, literal=True)

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=tolerance)

    def begin(self, run: Run, warm: dict[str, Any]) -> CCCPState:
        w = run.regulariser.project(run.w0)
        state = CCCPState(w, NAN, NAN, np.zeros_like(w), 0, 0, FIRST_TOLERANCE, dict(warm), NAN, False)
        self._enter(run, state)
        return state

    def stages(self, target: tuple[float, float]) -> list[tuple[float, float]]:
        """The temperatures to run through, the target last."""
        return [(target[0], e) for e in self.eps_h_schedule if e > target[1]] + [target]

    def step(self, run: Run, state: CCCPState) -> None:
        stages = self.stages(run.problem.temperatures)
        view = run.problem.at(*stages[state.stage])
        minus = Part(np.zeros(0), state.minus, state.u)
        inner = Linearised.of(view, state.w, minus)
        solver = self.inner if self.literal else self.inner.tightened(state.tolerance)
        found = solver.minimize(inner, state.w, regulariser=run.regulariser, warm=state.warm)
        before = state.objective
        state.warm = found.warm
        if self.literal or found.objective < state.objective:
            self._accept(view, state, inner, found)
        run.record(state.w, state.objective, gap=self._gap(run, state), temperatures=view.temperatures)
        if found.outcome is Outcome.INTERRUPTED:
            raise KeyboardInterrupt
        state.outer += 1
        progress = (before - state.objective) / max(abs(before), 1e-300)
        last = state.stage == len(stages) - 1
        if not self.literal and self._settled(state, progress, self.tolerance if last else STAGE_TOLERANCE):
            if last:
                raise Stop(
                    Outcome.CONVERGED,
                    f"Outer step {state.outer} lowered the objective by {progress:.1e} of it, "
                    f"the inner problem solved to {state.tolerance:.1e}.",
                )
            state.stage += 1
            self._enter(run, state)
        if state.outer >= self.max_outer:
            raise Stop(Outcome.BUDGET, f"All {self.max_outer} outer steps were taken.")

    def choose(self, run: Run) -> tuple[Floats, float]:
        return (run.last_w, run.rows[-1].objective) if self.literal and run.rows else run.chosen()

    def certificate(self, run: Run, state: CCCPState, objective: float) -> Certificate:
        if run.problem.convex:
            return duality_certificate(run, objective, objective - state.inner_gap)
        kind = "certified" if state.inner_certified and run.tally.exact else "estimated"
        sentence = "A local solution, not certified; the gap of the last inner problem is "
        return Certificate(sentence + f"{state.inner_gap:.4g} ({kind}).", negative_gaps=run.negative_gaps)

    def _gap(self, run: Run, state: CCCPState) -> float:
        return state.inner_gap if run.problem.convex else NAN

    def _enter(self, run: Run, state: CCCPState) -> None:
        """Evaluate the point at the temperatures of a new stage; planes of other temperatures are no longer valid."""
        view = run.problem.at(*self.stages(run.problem.temperatures)[state.stage])
        plus, minus = view.plus(state.w), view.minus(state.w)
        state.objective = run.regulariser.value(state.w) + plus.total - minus.total
        state.minus, state.u = minus.total, minus.gradient
        if state.stage:
            state.warm, state.tolerance = {}, FIRST_TOLERANCE
        run.record(state.w, state.objective, temperatures=view.temperatures)

    def _accept(self, view: Meter, state: CCCPState, inner: Linearised, found: Solution) -> None:
        """Move to the inner solution, unless its true objective is not lower (possible only with inexact inference)."""
        minus = view.minus(found.w)
        objective = found.objective + float(inner.u @ found.w) - inner.constant - minus.total
        if self.literal or objective < state.objective:
            state.w, state.objective = found.w, objective
            state.minus, state.u = minus.total, minus.gradient
            state.inner_gap, state.inner_certified = found.certificate.gap, found.certificate.certifies

    def _settled(self, state: CCCPState, progress: float, tolerance: float) -> bool:
        """Whether outer progress is too small to go on; if only the inner accuracy is at fault, tighten that first."""
        done = progress <= tolerance
        finer = min(state.tolerance, max(SHARE * (state.tolerance if done else progress), tolerance))
        same = self.inner.tightened(finer) == self.inner.tightened(state.tolerance)
        state.tolerance = finer
        return done and same

"""The L-BFGS of the stored trials, kept to repeat them: SciPy's L-BFGS-B with one call per stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import OptimizeResult
from scipy.optimize import minimize as scipy_minimize

from mssvm.core.arrays import Floats
from mssvm.optim.lbfgs import LBFGS, LBFGSState
from mssvm.optim.outcome import Outcome, Stop
from mssvm.optim.run import SolverRun

STAGE_TOLERANCE = 1e-4  # of the stages that only lead to the last one


@dataclass(frozen=True)
class ScipyLBFGS(LBFGS):
    """As ``LBFGS``, but ``tolerance`` is of a single iteration, and a stage cut short is repeated in full."""

    tolerance: float = 1e-8
    max_iter: int = 200
    repeatable: ClassVar[bool] = False

    def step(self, run: SolverRun, state: LBFGSState) -> None:
        stages = self.stages(run.problem.temperatures)
        at = stages[state.stage]
        last = state.stage == len(stages) - 1
        problem = run.problem.at(*at)

        def evaluate(w: Floats) -> tuple[float, Floats]:
            part = run.count(problem.difference(w))
            value = run.regulariser.value(w) + part.total
            if not run.rows:
                run.record(w, value, temperatures=at)
            return value, run.regulariser.gradient(w) + part.gradient

        def accepted(intermediate_result: OptimizeResult) -> None:  # SciPy asks for this name
            run.record(np.asarray(intermediate_result.x), float(intermediate_result.fun), temperatures=at)

        options = {
            "maxiter": self.max_iter,
            "maxfun": 10 * self.max_iter,
            "maxcor": self.memory,
            "ftol": self.tolerance if last else max(self.tolerance, STAGE_TOLERANCE),
            "gtol": self.gradient_tolerance,
        }
        result = scipy_minimize(evaluate, state.w, jac=True, method="L-BFGS-B", callback=accepted, options=options)
        state.w = result.x
        state.value = float(result.fun)
        state.gradient = np.asarray(result.jac)
        state.recent = (state.value,)
        if at != run.problem.temperatures:
            run.record(state.w, run.objective(state.w)[0])
        if last:
            kind = Outcome.CONVERGED if result.status != 1 else Outcome.BUDGET
            raise Stop(kind, f"L-BFGS ended at temperatures {at}: {str(result.message).lower()}.")
        state.stage += 1

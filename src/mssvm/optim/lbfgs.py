"""L-BFGS on the whole objective, difference of convex parts and all; members with a max by temperature homotopy.

A smooth member is minimised as it is. Otherwise the temperatures run through max(eps, t) for t in ``schedule``, each
stage starting where the last one ended. Raising a temperature by t raises a power sum over n assignments by at most
t log n, so the last stage is off by at most sum_i c_i t log |Y_i| (and twice t log |H_i| where hidden variables are
smoothed too).

Directions are those of the two-loop recursion, steps are found by a line search for the weak Wolfe conditions. With an
absolute-value penalty or weights held non-negative the method is orthant-wise: weights at zero that the penalty or the
bound holds there are left out, the others move along a path that is cut off where a weight would change its sign.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import NAN, Outcome, SolverRun, Stop, impossible
from mssvm.optim.solver import Certificate, Solver

STAGE_TOLERANCE = 1e-3  # of the stages that only lead to the last one
PERIOD = 10  # iterations over which progress is measured
STILL, STILL_SHARE = 3, 1e-2  # these few iterations are enough where progress is less than this share of the tolerance
ENOUGH_FALL, ENOUGH_FLATTER = 1e-4, 0.9  # of the Wolfe conditions: shares of the slope at the start of a search
MOST_TRIALS = 20  # of a line search
CURVATURE = 1e-10  # least s.y / y.y of a pair that is kept

Evaluate = Callable[[Floats], tuple[float, Floats]]
Pairs = tuple[tuple[Floats, Floats], ...]


@dataclass
class LBFGSState:
    """Where a stage is: its objective and gradient at ``w`` (NaN before the first evaluation), the last objectives, and
    the pairs (change of weights, change of gradient) that hold the curvature. Values are replaced, never changed."""

    w: Floats
    gradient: Floats
    value: float = NAN
    stage: int = 0
    iteration: int = 0
    recent: tuple[float, ...] = ()
    pairs: Pairs = ()


@dataclass(frozen=True)
class LBFGS(Solver[LBFGSState]):
    """L-BFGS at falling temperatures.

    ``schedule`` has the temperatures below which no stage goes (members that are smooth already have one stage). A
    stage ends after ``max_iterations``, or when ten iterations together lower the objective by less than ``tolerance``
    of it (or three by hardly anything), or when no component of the gradient exceeds ``gradient_tolerance``;
    ``memory`` is the number of pairs kept. ``floors`` is the former name of ``schedule``.

    >>> ms.SSVM(ms.Chain(), solver=ms.solvers.LBFGS(schedule=(1.0, 0.1), max_iterations=100)).fit(X, y).score(X, y)
    1.0
    """

    schedule: Sequence[float] = (1, 1 / 4, 1 / 16, 1 / 32)
    max_iterations: int = 500
    tolerance: float = 1e-4
    gradient_tolerance: float = 1e-5
    memory: int = 10
    floors: InitVar[Sequence[float] | None] = None

    state_type: ClassVar[type] = LBFGSState
    repeatable: ClassVar[bool] = True

    def __post_init__(self, floors: Sequence[float] | None) -> None:
        if floors is not None:
            warnings.warn("LBFGS(floors=...) is now LBFGS(schedule=...).", FutureWarning, stacklevel=3)
            object.__setattr__(self, "schedule", floors)
        fall = list(self.schedule)
        if not fall or not min(fall) > 0 or fall != sorted(fall)[::-1]:
            raise InputError(f"schedule must be falling temperatures > 0, got {self.schedule}.")

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> LBFGSState:
        w = run.regulariser.project(run.w0)
        if self.stages(run.problem.temperatures)[0] != run.problem.temperatures:
            run.record(w, run.objective(w)[0])
        return LBFGSState(w, np.zeros(0))

    def check(self, run: SolverRun, state: LBFGSState) -> None:
        if state.stage not in range(len(self.stages(run.problem.temperatures))):
            raise ValueError(f"stage {state.stage}")

    def stages(self, target: tuple[float, float]) -> list[tuple[float, float]]:
        """The temperatures to run through; the target alone if it is smooth enough already."""
        if min(target) >= self.schedule[-1]:
            return [target]
        stages: dict[tuple[float, float], None] = {}
        for t in self.schedule:
            stages[max(target[0], float(t)), max(target[1], float(t))] = None
        return list(stages)

    def limit(self, temperatures: tuple[float, float]) -> int:
        """Every stage but that at the target itself also records where it ends."""
        stages = self.stages(temperatures)
        return len(stages) * (self.max_iterations + (stages[0] != temperatures))

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        """The last weights where approximate inference was smoothed: how its error changes with the temperature says more
        about objectives at the target than the weights do, and weights of zero have no error."""
        smoothed = self.stages(run.problem.temperatures)[-1] != run.problem.temperatures
        return run.chosen(last=smoothed and not run.tally.exact)

    def near(self) -> Self:
        """The last stage alone."""
        return replace(self, schedule=tuple(self.schedule[-1:]))

    def step(self, run: SolverRun, state: LBFGSState) -> None:
        stages = self.stages(run.problem.temperatures)
        at, last = stages[state.stage], state.stage == len(stages) - 1
        target = at == run.problem.temperatures
        problem = None if target else run.problem.at(*at)

        def evaluate(w: Floats) -> tuple[float, Floats]:
            value, part = run.objective(w, problem)
            return value, run.regulariser.gradient(w) + part.gradient

        if not state.recent:
            self._arrive(run, state, at, state.w, *evaluate(state.w))
        slope = run.regulariser.stationarity(state.w, state.gradient)
        ended = self._ended(state, slope, last)
        if not ended:
            search = partial(line_search, run.regulariser, evaluate, state.w, state.value, slope)
            found = search(state.pairs)
            if found is None and state.pairs:  # without memory where it misleads
                state.pairs = ()
                found = search(())
            if found is not None:
                self._arrive(run, state, at, *found)
                return
            ended = "no step lowers the objective further"
        if not target:
            run.record(state.w, run.objective(state.w)[0])
        if last:
            kind = Outcome.BUDGET if state.iteration >= self.max_iterations else Outcome.CONVERGED
            raise Stop(kind, f"L-BFGS ended at temperatures {at[0]:g} and {at[1]:g}: {ended}.")
        state.stage, state.iteration, state.recent, state.pairs = state.stage + 1, 0, (), ()

    def _ended(self, state: LBFGSState, slope: Floats, last: bool) -> str:
        """Why the stage is over, if it is."""
        if float(np.abs(slope).max(initial=0.0)) <= self.gradient_tolerance:
            return f"no component of the gradient exceeds {self.gradient_tolerance:g}"
        tolerance = self.tolerance if last else max(self.tolerance, STAGE_TOLERANCE)
        for period, most in ((PERIOD, tolerance), (STILL, STILL_SHARE * tolerance)):
            if len(state.recent) > period and state.recent[-1 - period] - state.value <= most * abs(state.value):
                share = (state.recent[-1 - period] - state.value) / max(abs(state.value), 1e-300)
                return f"the last {period} iterations lowered the objective by {share:.1e} of it"
        if state.iteration >= self.max_iterations:
            return f"all {self.max_iterations} iterations were used"
        return ""

    def _arrive(
        self, run: SolverRun, state: LBFGSState, at: tuple[float, float], w: Floats, value: float, gradient: Floats
    ) -> None:
        """A stage begins, or an iteration is over: go to ``w`` and keep the pair that leads there. The start of a later
        stage is in the trace already."""
        if state.recent:
            s, y = w - state.w, gradient - state.gradient
            if s @ y > CURVATURE * (y @ y):
                state.pairs = (*state.pairs, (s, y))[-self.memory :]
            state.iteration += 1
        state.w, state.value, state.gradient = w, value, gradient
        state.recent = (*state.recent, value)[-PERIOD - 1 :]
        if state.iteration or not run.rows:
            slope = run.regulariser.stationarity(w, gradient)
            with np.errstate(over="ignore"):
                run.record(w, value, gradient_norm=float(np.linalg.norm(slope)), temperatures=at)

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=min(1e-2 * tolerance, 1e-3))

    def certificate(self, run: SolverRun, state: LBFGSState, objective: float) -> Certificate:
        temperatures = self.stages(run.problem.temperatures)[state.stage]
        plus, minus = run.problem.tempering(*temperatures)
        bias = float(run.problem.scale @ (plus + minus))
        smoothing = f"Smoothing at {temperatures} changes the objective by at most {bias:.4g}." if bias else ""
        if not run.problem.convex or run.strengths.min() <= 0 or run.regulariser.kinked or not state.recent:
            return Certificate(f"A local minimum, not certified. {smoothing}".strip(), bias=bias)
        # Strong convexity: f(w) - min f <= |f'(w)|^2 / (2 r), for the smoothed f; then the bias.
        lower = state.value - 0.5 * float(np.sum(state.gradient**2 / run.strengths)) - bias
        gap = objective - lower
        if impossible(gap, objective):
            sentence = f"Not certified: inference missed maxima (the gap is {gap:.4g}, which no gap can be)."
            return Certificate(sentence, gap, negative_gaps=run.negative_gaps + 1, bias=bias)
        kind = "Certified" if run.tally.exact else "Estimated (inference was not exact)"
        sentence = f"{kind} by strong convexity: within {gap:.4g} of the minimum. {smoothing}".strip()
        return Certificate(sentence, gap, run.tally.exact, run.negative_gaps, bias)


def line_search(
    regulariser: Regulariser, evaluate: Evaluate, w: Floats, value: float, slope: Floats, pairs: Pairs
) -> tuple[Floats, float, Floats] | None:
    """A point from ``w`` on, on a line that is cut off at kinks, which is lower by enough, with its value and gradient:
    the first that is also flatter by enough, if there are no kinks, else the first. None where there seems to be none.
    ``slope`` is the gradient or, at a kink, the smallest of the subgradients."""
    d = -against(regulariser, w, slope, pairs)
    fall = float(slope @ d)
    if not fall < 0:
        return None
    t = 1.0 if pairs else min(1.0, 1.0 / float(np.linalg.norm(slope)))
    low, high, lowest, steepness = 0.0, np.inf, value, fall
    found: tuple[Floats, float, Floats] | None = None
    for _ in range(MOST_TRIALS):
        point, expected = w + t * d, t * fall
        if regulariser.kinked:
            point = regulariser.within(point, w, slope)
            expected = float(slope @ (point - w))
        new, gradient = evaluate(point)
        if not new <= value + ENOUGH_FALL * expected:
            high = t
            bend = new - lowest - steepness * (t - low)  # of the parabola through both ends
            inner = -steepness * (t - low) / (2 * bend) if np.isfinite(bend) and bend > 0 else 0.5
            t = low + float(np.clip(inner, 0.1, 0.5)) * (high - low)
            continue
        found = point, new, gradient
        slope_there = float(gradient @ d)
        if regulariser.kinked or slope_there >= ENOUGH_FLATTER * fall:
            break
        low, lowest, steepness = t, new, slope_there
        t = 2 * t if np.isinf(high) else 0.5 * (low + high)
    return found


def against(regulariser: Regulariser, w: Floats, slope: Floats, pairs: Pairs) -> Floats:
    """H slope, H the inverse curvature of the pairs among the free weights; uphill in any case."""
    kinks = regulariser.kinks(len(w)) if regulariser.kinked else None
    free = None if kinks is None else (w != 0) | (slope != 0) | ~kinks
    q, known = slope.copy(), []
    for s, y in reversed(pairs):
        if free is not None:
            s, y = s * free, y * free
        if (curvature := float(s @ y)) > 0:
            share = float(s @ q) / curvature
            q -= share * y
            known.append((s, y, curvature, share))
    if known:
        s, y, curvature, _ = known[0]
        q *= curvature / float(y @ y)
    for s, y, curvature, share in reversed(known):
        q += (share - float(y @ q) / curvature) * s
    if kinks is not None:  # a weight leaves zero only downhill
        q[kinks & (w == 0) & (q * slope <= 0)] = 0.0
    return q

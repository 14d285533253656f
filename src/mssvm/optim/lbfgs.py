"""L-BFGS on the whole objective, convex or not; members that maximise are smoothed by temperature homotopy.

A smooth member is minimised as it is. Otherwise the temperatures run through max(eps, t) for t in ``schedule``, each
stage starting where the last one ended. Raising a temperature by t raises a power sum over n assignments by at most
t log n, so the last stage is off by at most sum_i c_i t log |Y_i| (and twice t log |H_i| where hidden variables are
smoothed too).

Directions are those of the two-loop recursion, steps are found by a line search for the weak Wolfe conditions. With an
absolute-value penalty or weights held non-negative the method is orthant-wise (Andrew & Gao 2007): weights at zero that
the penalty or the bound holds there are left out, the others move along a path that is cut off where a weight would
change its sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Minorised, Problem
from mssvm.optim.former_names import former_names
from mssvm.optim.outcome import Outcome, Stop, impossible
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import SolverRun
from mssvm.optim.solution import Certificate
from mssvm.optim.solver import Solver
from mssvm.optim.trace import NAN

# Tolerance of the stages before the last: at least the first number, and the second times that of the last stage.
STAGE_TOLERANCE = 1e-3
STAGE_SHARE = 10.0
PERIOD = 10  # iterations over which progress is measured
# A shorter period is enough where progress is less than this share of the tolerance.
SHORT_PERIOD = 3
SHORT_PERIOD_SHARE = 1e-2
# The weak Wolfe conditions, as shares of the slope at the start of a search.
SUFFICIENT_DECREASE = 1e-4
SUFFICIENT_FLATTENING = 0.9
MAX_TRIALS = 20  # trials of a line search
# The same where inference is approximate. Messages keep converging, so the objective at the same weights changes
# between evaluations, and a value that no short step lowers may be out of date.
APPROXIMATE_TRIALS = 6
APPROXIMATE_PERIOD = 6
APPROXIMATE_RISE = 1e-3  # a point that is higher by at most this share of the objective counts as no higher
# Longest first trial, as a multiple of the longer of the last two steps: after a longer one, messages are so far from
# those of the previous weights that shorter trials start from wrong messages, too.
LONGEST_STEP = 3.0
CERTIFIED_STEP = 1e-3  # the first step of a certified stage, as a share of the weights it starts from
GAP_SHARE = 0.5  # a gap proven by the slope alone is small enough at this share of the tolerance
MIN_CURVATURE = 1e-10  # least s.y / y.y of a stored pair

Evaluate = Callable[[Floats], tuple[float, Floats]]
Pairs = tuple[tuple[Floats, Floats], ...]


@dataclass
class LBFGSState:
    """The objective and its gradient at ``w`` at the temperatures of the stage (NaN before the first evaluation).

    ``recent`` are the last objectives, ``pairs`` the (change of weights, change of gradient) that hold the curvature,
    ``lengths`` those of the last two steps. Values are replaced, never changed in place.
    """

    w: Floats
    gradient: Floats
    value: float = NAN
    stage: int = 0
    iteration: int = 0
    recent: tuple[float, ...] = ()
    pairs: Pairs = ()
    lengths: tuple[float, ...] = ()


@former_names(floors="schedule", max_iterations="max_iter")
@dataclass(frozen=True)
class LBFGS(Solver[LBFGSState]):
    """L-BFGS at falling temperatures.

    ``schedule`` lists the lowest temperature of each stage (members that are smooth already have one stage). A
    stage ends after ``max_iter`` iterations, or when ten (on approximate inference six) together lower the objective by
    less than ``tolerance`` of it (or three by less than a hundredth of that), or when no component of the gradient
    exceeds ``gradient_tolerance``. ``memory`` is the number of curvature pairs.

    >>> ms.SSVM(ms.Chain(), solver=ms.solvers.LBFGS(schedule=(1.0, 0.1), max_iter=100)).fit(X, y).score(X, y)
    1.0
    """

    schedule: Sequence[float] = (1, 1 / 4, 1 / 16, 1 / 32)
    max_iter: int = 500
    tolerance: float = 1e-4
    gradient_tolerance: float = 1e-5
    memory: int = 10

    state_type: ClassVar[type] = LBFGSState
    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fall = list(self.schedule)
        if not fall or not min(fall) > 0 or fall != sorted(fall)[::-1]:
            raise InputError(f"schedule must be falling temperatures > 0, got {self.schedule}.")

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> LBFGSState:
        w = run.regulariser.project(run.w0)
        if self.stages(run.problem.temperatures)[0] != run.problem.temperatures:
            run.record(w, run.objective(w)[0])
        if _certified(run.problem):
            return LBFGSState(w, np.zeros(0), lengths=(CERTIFIED_STEP * float(np.linalg.norm(w)),))
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
        """A stage at temperatures other than the target also records the objective at the target when it ends."""
        stages = self.stages(temperatures)
        rows_of_stage = self.max_iter
        if stages[0] != temperatures:
            rows_of_stage += 1
        return len(stages) * rows_of_stage

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        """The last weights where approximate inference was smoothed. There, objectives at the target differ more by the
        error of inference than by the quality of the weights, and weights of zero have no error. Certified objectives
        are above the true one whatever the error of inference, so the lowest is the best."""
        smoothed = self.stages(run.problem.temperatures)[-1] != run.problem.temperatures
        return run.chosen(last=smoothed and not run.tally.exact and not _certified(run.problem))

    def for_warm_start(self) -> Self:
        """The last stage alone."""
        return replace(self, schedule=tuple(self.schedule[-1:]))

    def step(self, run: SolverRun, state: LBFGSState) -> None:
        stages = self.stages(run.problem.temperatures)
        temperatures = stages[state.stage]
        last = state.stage == len(stages) - 1
        target = temperatures == run.problem.temperatures
        problem = None if target else run.problem.at(*temperatures)

        def evaluate(w: Floats) -> tuple[float, Floats]:
            value, part = run.objective(w, problem)
            return value, run.regulariser.gradient(w) + part.gradient

        if not state.recent:
            self._arrive(run, state, temperatures, state.w, *evaluate(state.w))
        slope = run.regulariser.stationarity(state.w, state.gradient)
        reason = self._end_of_stage(run, state, slope, last)
        if not reason:
            point = self._next_point(run, evaluate, state, slope)
            if point is not None:
                self._arrive(run, state, temperatures, *point)
                return
            reason = "no step lowers the objective further"
        if not target:
            run.record(state.w, run.objective(state.w)[0])
        if last:
            outcome = Outcome.BUDGET if state.iteration >= self.max_iter else Outcome.CONVERGED
            eps_y, eps_h = temperatures
            raise Stop(outcome, f"L-BFGS ended at temperatures {eps_y:g} and {eps_h:g}: {reason}.")
        state.stage += 1
        state.iteration = 0
        state.recent = ()
        # Curvature pairs stay useful at the next temperature; with exact inference evaluations are cheap without them.
        if run.tally.exact:
            state.pairs = ()

    def _next_point(
        self, run: SolverRun, evaluate: Evaluate, state: LBFGSState, slope: Floats
    ) -> tuple[Floats, float, Floats] | None:
        """A lower point with its value and gradient. Where there is none, the curvature pairs may mislead and are
        forgotten, and with approximate inference the value is computed anew."""
        exact = run.tally.exact
        limits = SearchLimits()
        if not exact:
            # Certified values are never too low, so that a higher value is a real rise.
            rise = 0.0 if _certified(run.problem) else min(self.tolerance, APPROXIMATE_RISE)
            limits = SearchLimits(APPROXIMATE_TRIALS, rise, state.lengths)
        point = line_search(run.regulariser, evaluate, state.w, state.value, slope, state.pairs, limits)
        if point is not None or (exact and not state.pairs):
            return point
        if not exact:
            state.value, state.gradient = evaluate(state.w)
            slope = run.regulariser.stationarity(state.w, state.gradient)
        state.pairs = ()
        return line_search(run.regulariser, evaluate, state.w, state.value, slope, (), limits)

    def _end_of_stage(self, run: SolverRun, state: LBFGSState, slope: Floats, last: bool) -> str:
        """Why the stage is over; empty while it is not."""
        if float(np.abs(slope).max(initial=0.0)) <= self.gradient_tolerance:
            return f"no component of the gradient exceeds {self.gradient_tolerance:g}"
        tolerance = self.tolerance if last else max(STAGE_SHARE * self.tolerance, STAGE_TOLERANCE)
        whole_period = PERIOD if run.tally.exact else APPROXIMATE_PERIOD
        for period, share in ((whole_period, tolerance), (SHORT_PERIOD, SHORT_PERIOD_SHARE * tolerance)):
            if len(state.recent) <= period:
                continue
            decrease = state.recent[-1 - period] - state.value
            if decrease <= share * abs(state.value) and not self._leaves_gap(run, state, slope):
                relative = decrease / max(abs(state.value), 1e-300)
                changed = "lowered" if relative >= 0 else "raised"  # inference that still converges may raise it
                return f"the last {period} iterations {changed} the objective by {abs(relative):.1e} of it"
        if state.iteration >= self.max_iter:
            return f"all {self.max_iter} iterations were used"
        return ""

    def _leaves_gap(self, run: SolverRun, state: LBFGSState, slope: Floats) -> bool:
        """Whether the certificate by duality would leave a gap above the tolerance: that of a likelihood on approximate
        inference is about |f'(w)|^2 / (2 r)."""
        problem = run.problem
        if (
            run.tally.exact
            or not problem.convex
            or min(problem.temperatures) <= 0
            or not isinstance(problem, Minorised)
        ):
            return False
        return -run.regulariser.least_with(slope) > GAP_SHARE * self.tolerance * abs(state.value)

    def _arrive(
        self,
        run: SolverRun,
        state: LBFGSState,
        temperatures: tuple[float, float],
        w: Floats,
        value: float,
        gradient: Floats,
    ) -> None:
        """Move to ``w``, at the start of a stage or the end of an iteration, and keep the curvature pair of the step.

        The start of a later stage is in the trace already.
        """
        if state.recent:
            s = w - state.w
            y = gradient - state.gradient
            if s @ y > MIN_CURVATURE * (y @ y):
                state.pairs = (*state.pairs, (s, y))[-self.memory :]
            state.lengths = (*state.lengths, float(np.linalg.norm(s)))[-2:]
            state.iteration += 1
        state.w = w
        state.value = value
        state.gradient = gradient
        state.recent = (*state.recent, value)[-PERIOD - 1 :]
        if state.iteration or not run.rows:
            slope = run.regulariser.stationarity(w, gradient)
            with np.errstate(over="ignore"):
                run.record(w, value, gradient_norm=float(np.linalg.norm(slope)), temperatures=temperatures)

    def _dual_bound(self, run: SolverRun, state: LBFGSState, temperatures: tuple[float, float]) -> float:
        """A lower bound on the objective by duality, where inference is approximate and the problem can prove it."""
        problem = run.problem
        if run.tally.exact or not problem.convex or not isinstance(problem, Minorised) or not state.recent:
            return -np.inf
        plane = problem.minorant(state.w, temperatures)
        if plane is None:
            return -np.inf
        value, slope = plane
        return value - float(slope @ state.w) + run.regulariser.least_with(slope)

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=min(1e-2 * tolerance, 1e-3))

    @staticmethod
    def _smoothing(temperatures: tuple[float, float], bias: float, objective: float) -> str:
        """A sentence on the bound of what the smoothing adds to the objective; a bound above the objective itself says
        nothing."""
        if not bias:
            return ""
        if bias > abs(objective):
            return f"How much smoothing at {temperatures} adds to the objective is not known."
        return f"Smoothing at {temperatures} changes the objective by at most {bias:.4g}."

    def certificate(self, run: SolverRun, state: LBFGSState, objective: float) -> Certificate:
        temperatures = self.stages(run.problem.temperatures)[state.stage]
        plus, minus = run.problem.tempering(*temperatures)
        bias = float(run.problem.scale @ (plus + minus))
        smoothing = self._smoothing(temperatures, bias, objective)
        dual = self._dual_bound(run, state, temperatures)
        if np.isfinite(dual):
            gap = objective - dual
            sentence = f"Certified by duality: within {gap:.4g} of the minimum of the bound that training minimises."
            return Certificate(sentence, gap, True, run.negative_gaps)
        if not run.problem.convex or run.strengths.min() <= 0 or run.regulariser.kinked or not state.recent:
            return Certificate(f"A local minimum, not certified. {smoothing}".strip(), bias=bias)
        # Strong convexity: f(w) - min f <= |f'(w)|^2 / (2 r), for the smoothed f; then the bias.
        lower = state.value - 0.5 * float(np.sum(state.gradient**2 / run.strengths)) - bias
        gap = objective - lower
        if impossible(gap, objective):
            sentence = f"Not certified: inference missed maxima (the gap is {gap:.4g}, which is impossible)."
            return Certificate(sentence, gap, negative_gaps=run.negative_gaps + 1, bias=bias)
        kind = "Certified" if run.tally.exact else "Estimated (inference was not exact)"
        sentence = f"{kind} by strong convexity: within {gap:.4g} of the minimum. {smoothing}".strip()
        return Certificate(sentence, gap, run.tally.exact, run.negative_gaps, bias)


def _certified(problem: Problem) -> bool:
    """Whether every value is an upper bound of the true one, however inference ended."""
    return bool(getattr(problem, "certified", False))


@dataclass(frozen=True)
class SearchLimits:
    """Limits of a line search: the number of trials; the ``rise``, as a share of the value, that counts as none; and
    the ``lengths`` of the last steps, from which the first trial must not be far."""

    trials: int = MAX_TRIALS
    rise: float = 0.0
    lengths: tuple[float, ...] = ()

    def first(self, t: float, length: float, curved: bool) -> float:
        """The first step of at most ``t``, of which a unit has the given length; ``curved``: curvature is known."""
        if not self.lengths or length == 0.0:
            return t
        longest = LONGEST_STEP * max(self.lengths) if curved else self.lengths[-1]
        return min(t, longest / length)


def line_search(
    regulariser: Regulariser,
    evaluate: Evaluate,
    w: Floats,
    value: float,
    slope: Floats,
    pairs: Pairs,
    limits: SearchLimits | None = None,
) -> tuple[Floats, float, Floats] | None:
    """The first point w + t d that meets the weak Wolfe conditions, with its value and gradient; None if none is met.

    ``slope`` is the gradient or, at a kink, the smallest of the subgradients. With kinks points are projected to the
    orthant of the step, and only sufficient decrease is required. If no trial meets the curvature condition, the last
    one with sufficient decrease is returned.
    """
    limits = limits or SearchLimits()
    d = -two_loop_direction(regulariser, w, slope, pairs)
    initial_slope = float(slope @ d)
    if not initial_slope < 0:
        return None
    t = 1.0 if pairs else min(1.0, 1.0 / float(np.linalg.norm(slope)))
    t = limits.first(t, float(np.linalg.norm(d)), bool(pairs))
    # The bracket: its lower end with value and slope, and its upper end.
    low = 0.0
    low_value = value
    low_slope = initial_slope
    high = np.inf
    accepted: tuple[Floats, float, Floats] | None = None
    allowed = value + limits.rise * abs(value)
    for _ in range(limits.trials):
        point = w + t * d
        expected = t * initial_slope
        if regulariser.kinked:
            point = regulariser.within(point, w, slope)
            expected = float(slope @ (point - w))
        new_value, gradient = evaluate(point)
        if not new_value <= allowed + SUFFICIENT_DECREASE * expected:
            high = t
            t = low + _parabola_minimum(low_slope * (t - low), new_value - low_value) * (high - low)
            continue
        accepted = (point, new_value, gradient)
        new_slope = float(gradient @ d)
        if regulariser.kinked or new_slope >= SUFFICIENT_FLATTENING * initial_slope:
            break
        low = t
        low_value = new_value
        low_slope = new_slope
        t = 2 * t if np.isinf(high) else 0.5 * (low + high)
    return accepted


def _parabola_minimum(slope: float, rise: float) -> float:
    """Minimum in [0.1, 0.5] of the parabola on [0, 1] with this slope at 0 and this rise to 1; 0.5 if it has none."""
    bend = rise - slope
    if not (np.isfinite(bend) and bend > 0):
        return 0.5
    return float(np.clip(-slope / (2 * bend), 0.1, 0.5))


def two_loop_direction(regulariser: Regulariser, w: Floats, slope: Floats, pairs: Pairs) -> Floats:
    """H slope by the two-loop recursion, H the inverse curvature of the pairs among the free weights; always uphill."""
    if not regulariser.kinked:
        return _two_loops(slope, pairs)
    kinks = regulariser.kinks(len(w))
    free = (w != 0) | (slope != 0) | ~kinks
    q = _two_loops(slope, tuple((s * free, y * free) for s, y in pairs))
    # A weight leaves zero only downhill.
    q[kinks & (w == 0) & (q * slope <= 0)] = 0.0
    return q


def _two_loops(slope: Floats, pairs: Pairs) -> Floats:
    """H slope (Nocedal & Wright, algorithm 7.4); pairs without positive curvature are passed over.

    ``dot`` takes a quarter of the time of ``@`` on few weights, where this is a fifth of an iteration.
    """
    q = slope.copy()
    used: list[tuple[Floats, Floats, float, float]] = []
    scale = 1.0  # the inverse curvature along the newest pair
    for s, y in reversed(pairs):
        curvature = float(s.dot(y))
        if curvature > 0:
            share = float(s.dot(q)) / curvature
            q -= share * y
            if not used:
                scale = curvature / float(y.dot(y))
            used.append((s, y, curvature, share))
    q *= scale
    for s, y, curvature, share in reversed(used):
        q += (share - float(y.dot(q)) / curvature) * s
    return q

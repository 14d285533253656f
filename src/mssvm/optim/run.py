"""One call of a solver: counts, the trace, the best iterate, callbacks, early stopping, the time limit, and what a
checkpoint keeps of these. All solvers share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Part, Problem
from mssvm.optim.checkpoint import digest
from mssvm.optim.regulariser import Regulariser

NAN = float("nan")
ROUNDING = 1e-9  # of a gap, relative to the objective


class Row(NamedTuple):
    """One line of a trace; NaN where a solver does not know a figure. Calls, and instances floored at U-, count from
    the start.

    >>> ms.solvers.Row._fields[:3], clf.history_.dtype.names == ms.solvers.Row._fields
    (('iteration', 'objective', 'gap'), True)
    """

    iteration: int
    objective: float
    gap: float
    gradient_norm: float
    plus_calls: int
    minus_calls: int
    seconds: float
    converged: float
    floored: int
    eps_y: float
    eps_h: float

    @classmethod
    def of(cls, values: Floats) -> Row:
        """The row whose numbers were stored as floats."""
        row = cls._make(float(v) for v in values)
        return row._replace(**{k: int(getattr(row, k)) for k in ("iteration", "plus_calls", "minus_calls", "floored")})


HISTORY = np.dtype([(name, np.float64) for name in Row._fields])


class Outcome(Enum):
    """Why a solver stopped.

    >>> ms.solvers.Outcome.TIME.cut_short, ms.solvers.Outcome.CONVERGED.unfinished
    (True, False)
    """

    CONVERGED = "converged"
    COMPLETED = "completed"
    BUDGET = "budget"
    UNCERTIFIED = "uncertified"
    STALLED = "stalled"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    EARLY = "early"
    TIME = "time"
    INTERRUPTED = "interrupted"

    @property
    def unfinished(self) -> bool:
        """Whether the solver itself gave up before it was done."""
        return self in (Outcome.BUDGET, Outcome.UNCERTIFIED, Outcome.STALLED, Outcome.DIVERGED)

    @property
    def own(self) -> bool:
        """Whether the solver itself said that it was done, and not somebody who follows it."""
        return self in (Outcome.CONVERGED, Outcome.COMPLETED, Outcome.BUDGET)

    @property
    def cut_short(self) -> bool:
        """Whether the run would have gone on, and a checkpoint of it can be resumed."""
        return self in (Outcome.TIME, Outcome.INTERRUPTED)


def impossible(gap: float, objective: float) -> bool:
    """Whether a gap is below zero by more than rounding: no lower bound lies above the minimum, so either the bound or
    the objective is wrong, and inference missed maxima."""
    return bool(gap < -ROUNDING * max(1.0, abs(objective)))


def closed(gap: float, objective: float, tolerance: float) -> bool:
    """Whether a gap shows convergence: at most ``tolerance`` of the objective, and not impossible."""
    return bool(gap <= tolerance * abs(objective)) and not impossible(gap, objective)


@dataclass
class Tally:
    """Running counts of inference. ``reported`` is the number of calls that said whether they converged."""

    plus_calls: int = 0
    minus_calls: int = 0
    reported: int = 0
    converged: int = 0
    floored: int = 0
    exact: bool = True

    def add(self, other: Part | Tally) -> None:
        """Enter one evaluation, or all those of an inner solver."""
        self.plus_calls += other.plus_calls
        self.minus_calls += other.minus_calls
        self.reported += other.reported if isinstance(other, Tally) else other.plus_calls + other.minus_calls
        self.converged += other.converged
        self.floored += other.floored
        self.exact = self.exact and other.exact


Callback = Callable[[Row, Floats], bool | None]
"""Called with every new trace row and its weights; returning True stops the solver."""


@dataclass(eq=False)
class Stop(Exception):
    """Ends the loop of a solver from wherever it is; carries the reason."""

    outcome: Outcome
    message: str


@dataclass(frozen=True)
class Validation:
    """Early stopping: after ``patience`` scores in a row without a new highest one, taken every ``every`` iterations.

    The weights with the highest ``score`` are returned instead of those with the lowest objective.

    >>> small = ms.solvers.Validation(score=lambda w: -float(np.abs(w).max()), patience=1)      # any score of w
    >>> ms.HCRF(ms.Chain(), random_state=0).fit(X, y, validation=small).n_iter_ > 0
    True
    """

    score: Callable[[Floats], float]
    patience: int = 5
    every: int = 1


@dataclass(frozen=True)
class Watch:
    """Who follows a run and may end it: a callback, a validation score, a limit on its seconds."""

    callback: Callback | None = None
    validation: Validation | None = None
    time_limit: float = float("inf")


@dataclass
class Best:
    """The lowest objective and the highest validation score so far, with their weights."""

    w: Floats
    objective: float = float("inf")
    scored_w: Floats = field(default_factory=partial(np.zeros, 0))
    scored_objective: float = NAN
    score: float = -float("inf")
    waited: int = 0


class SolverRun:
    """One call of ``Solver.minimize``; ``first`` is the difference at ``w0`` where that is known already."""

    def __init__(
        self, problem: Problem, w0: Floats, regulariser: Regulariser, watch: Watch, first: Part | None = None
    ) -> None:
        if not problem.n_instances:
            raise InputError("there is nothing to learn from: no instance has a label; label at least one site.")
        self.tally = Tally()
        self.problem = problem
        self.w0 = np.array(w0, dtype=np.float64)
        if self.w0.shape != (problem.n_weights,) or not np.all(np.isfinite(self.w0)):
            raise InputError(f"w0 needs {problem.n_weights} finite weights, got shape {self.w0.shape}.")
        self.regulariser, self.strengths = regulariser, regulariser.strengths(problem.n_weights)
        self.rows: list[Row] = []
        self.best = Best(self.w0)
        self.last_w = self.w0
        self.negative_gaps = 0
        self._watch, self._first = watch, first
        self._clock, self._earlier = time.monotonic(), 0.0
        self.deadline = self._clock + watch.time_limit
        self._marked = (0, 0)
        self._ended = False

    # ------------------------------------------------------------------------------------- evaluations

    def count(self, part: Part) -> Part:
        """Enter an evaluation in the tally; ends the run where its time is over."""
        self.tally.add(part)
        if self.rows:
            self.check_time()
        return part

    def check_time(self) -> None:
        """End the run where its time is over; for loops over instances, which take longer than a pass over all."""
        if time.monotonic() >= self.deadline and not self._ended:
            raise Stop(Outcome.TIME, f"The time limit was reached after {len(self.rows)} recorded iterations.")

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        """plus_i and its coordinates, counted."""
        self.tally.plus_calls += 1
        self.check_time()
        return self.problem.atom(w, i)

    def objective(self, w: Floats, problem: Problem | None = None) -> tuple[float, Part]:
        """R(w) + loss(w) by one pass over all instances; ``problem`` is this one at other temperatures."""
        part = self._first if problem is None else None  # known at the start
        if part is None or not np.array_equal(w, self.w0):
            part = (problem or self.problem).difference(w)
        self.count(part)
        return self.regulariser.value(w) + part.total, part

    def gradient_norm(self, w: Floats, loss_gradient: Floats) -> float:
        """Norm of the gradient of the whole objective, less what the bounds hold back."""
        total = self.regulariser.gradient(w) + loss_gradient
        with np.errstate(over="ignore"):
            return float(np.linalg.norm(self.regulariser.stationarity(w, total)))

    # ------------------------------------------------------------------------------------- trace

    def record(
        self,
        w: Floats,
        objective: float,
        *,
        gap: float = NAN,
        gradient_norm: float = NAN,
        temperatures: tuple[float, float] | None = None,
    ) -> None:
        """Enter an iterate in the trace; at other than the target temperatures it does not compete for best."""
        target, tally = self.problem.temperatures, self.tally
        measured = temperatures or target
        reported, converged = tally.reported - self._marked[0], tally.converged - self._marked[1]
        self._marked = (tally.reported, tally.converged)
        share = converged / reported if reported else NAN
        calls = (tally.plus_calls, tally.minus_calls, self.seconds, share, tally.floored)
        self.rows.append(Row(len(self.rows), objective, gap, gradient_norm, *calls, *measured))
        self.last_w = w.copy()
        self.negative_gaps += impossible(gap, objective)
        if not np.isfinite(objective):
            raise Stop(Outcome.DIVERGED, f"The objective became {objective} at iteration {len(self.rows) - 1}.")
        if measured == target and objective < self.best.objective:
            self.best.w, self.best.objective = w.copy(), objective
        if self._watch.callback is not None and self._watch.callback(self.rows[-1], w.copy()):
            raise Stop(Outcome.STOPPED, f"The callback asked to stop at iteration {len(self.rows) - 1}.")
        if self._watch.validation is not None and (len(self.rows) - 1) % self._watch.validation.every == 0:
            self._validate(self._watch.validation, w, objective if measured == target else NAN)

    @property
    def seconds(self) -> float:
        """Of this run and those it resumes."""
        return self._earlier + time.monotonic() - self._clock

    def _validate(self, validation: Validation, w: Floats, objective: float) -> None:
        best, score = self.best, float(validation.score(w.copy()))
        if score > best.score:
            best.score, best.scored_w, best.scored_objective, best.waited = score, w.copy(), objective, 0
            return
        best.waited += 1
        if best.waited >= validation.patience:
            raise Stop(Outcome.EARLY, f"The validation score stayed below {best.score:.6g} for {best.waited} checks.")

    # ------------------------------------------------------------------------------------- the end

    def end(self, outcome: Outcome) -> None:
        """No limit holds any more; a run cut short at other temperatures, or by its time before the first row, competes
        for best at the target ones."""
        self._ended = True
        known = self.rows[-1][-2:] == self.problem.temperatures if self.rows else outcome is not Outcome.TIME
        if known:
            return
        try:
            self.record(self.last_w, self.objective(self.last_w)[0])
        except (Stop, KeyboardInterrupt):
            return

    def chosen(self, last: bool = False) -> tuple[Floats, float]:
        """The weights to return and their objective: best by validation, else the last on request, else the lowest."""
        best = self.best
        if self._watch.validation is not None and len(best.scored_w):
            return best.scored_w, best.scored_objective
        if last and self.rows and np.isfinite(self.rows[-1].objective):
            return self.last_w, self.rows[-1].objective
        return best.w, best.objective if np.isfinite(best.objective) else NAN

    # ------------------------------------------------------------------------------------- checkpoints

    def fingerprint(self, solver: object) -> str:
        """Identifies solver, settings, start and problem, so that a checkpoint is not resumed by another run."""
        p = self.problem
        sizes = (p.n_instances, p.n_weights, p.temperatures)
        bounded = self.regulariser.project(np.full(p.n_weights, -1.0))
        absolute = np.asarray(self.regulariser.absolute)
        return digest(solver, sizes, self.w0, self.strengths, absolute, bounded, p.scale, p.log_outputs, p.n_sites)

    @cached_property
    def probe(self) -> Floats:
        """The loss at the start and its slope in a fixed direction: what tells equally large problems apart.

        One pass that is not counted, made only for checkpoints.
        """
        if self._first is None:
            self._first = self.problem.difference(self.w0)
        direction = np.random.default_rng(0).standard_normal(len(self.w0))
        return np.array([self._first.total, float(self._first.gradient @ direction)])

    def mark(self) -> dict[str, Any]:
        """This moment, for ``dump`` to describe later."""
        return {
            "tally": replace(self.tally),
            "best": replace(self.best),
            "last_w": self.last_w,
            "rows": len(self.rows),
            "negative_gaps": self.negative_gaps,
            "seconds": self.seconds,
            "marked": self._marked,
            "memory": self._memory(),
        }

    def _memory(self) -> dict[str, Any]:
        """Messages that evaluations of the problem go on from, if it has any."""
        recalled = getattr(self.problem, "memory", None)
        return {} if recalled is None else dict(recalled())

    def dump(self, mark: dict[str, Any] | None = None) -> dict[str, Any]:
        """Everything that a resumed run needs to go on as if nothing had happened, from now or from a marked moment."""
        at = mark or self.mark()
        rows = np.array(self.rows[: at["rows"]], dtype=np.float64).reshape(-1, len(Row._fields))
        return at | {"probe": self.probe, "tally": asdict(at["tally"]), "best": asdict(at["best"]), "rows": rows}

    def restore(self, tree: dict[str, Any]) -> bool:
        """Go on from what ``dump`` gave; False, and nothing done, if that was a run on other data (up to the rounding
        of another machine)."""
        if not np.allclose(tree["probe"], self.probe, rtol=1e-6, atol=1e-6):
            return False
        self.tally, self.best = Tally(**tree["tally"]), Best(**tree["best"])
        self.last_w = tree["last_w"]
        self.rows = [Row.of(row) for row in tree["rows"]]
        self.negative_gaps = tree["negative_gaps"]
        self._earlier = tree["seconds"]
        self._marked = tuple(tree["marked"])
        if memory := tree.get("memory"):
            self.problem.recall(memory)  # type: ignore[attr-defined]
        return True

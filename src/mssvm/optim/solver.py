"""The frame of every solver: begin, step until done, hand back the best. Solvers differ only in state and step.

A ``SolverRun`` is what all of them share during one call: counts, trace, best iterate, callbacks, early stopping, the
time limit, and what a checkpoint keeps of these.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.registry import SOLVERS
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.objectives.problem import Part, Problem
from mssvm.optim.checkpoint import Checkpoint, Saver, digest
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.solution import Certificate, Outcome, Row, Solution, Tally

S = TypeVar("S")
Callback = Callable[[Row, Floats], bool | None]
"""Called with every new trace row and its weights; returning True stops the solver."""

NAN = float("nan")
PLAIN = Regulariser()


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
        regulariser.check(problem.n_weights)
        self.regulariser = regulariser
        self.rows: list[Row] = []
        self.best = Best(self.w0)
        self.last_w = self.w0
        self.negative_gaps = 0
        self._watch, self._first = watch, first
        self._clock, self._earlier = time.monotonic(), 0.0
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
        if self.time_left <= 0 and not self._ended:
            raise Stop(Outcome.TIME, f"The time limit was reached after {len(self.rows)} recorded iterations.")

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        """plus_i and its coordinates, counted."""
        self.tally.plus_calls += 1
        self.check_time()
        return self.problem.atom(w, i)

    def objective(self, w: Floats, problem: Problem | None = None) -> tuple[float, Part]:
        """R(w) + loss(w) by one pass over all instances; ``problem`` is this one at other temperatures."""
        first = self._first if problem is None and np.array_equal(w, self.w0) else None  # known at the start
        part = self.count(first or (problem or self.problem).difference(w))
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
        self.negative_gaps += bool(gap < -1e-9 * max(1.0, abs(objective)))
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

    @property
    def time_left(self) -> float:
        """Seconds until the limit, which counts from this call on."""
        return self._watch.time_limit - (time.monotonic() - self._clock)

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
        strengths = self.regulariser.strengths(p.n_weights)
        bounded = self.regulariser.project(np.full(p.n_weights, -1.0))
        absolute = np.asarray(self.regulariser.absolute)
        return digest(solver, sizes, self.w0, strengths, absolute, bounded, p.scale, p.log_outputs, p.n_sites)

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
        }

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
        return True


class Solver(Settings, ABC, Generic[S]):
    """Minimises R(w) + sum_i c_i (plus_i(w) - minus_i(w)). Subclasses are frozen dataclasses of their settings.

    A state is a dataclass of arrays, numbers, generators and nests of them: whatever is not in it or in ``SolverRun``
    does not survive a restart, which is what makes resumed runs equal to uninterrupted ones.

    >>> isinstance(ms.solvers.BCFW(), ms.solvers.Solver)                           # docs/extending.md writes one
    True
    """

    state_type: ClassVar[type]
    warm: ClassVar[tuple[str, ...]] = ()  # of a state, what a call on a problem with the same convex parts starts from
    repeatable: ClassVar[bool] = False  # steps replace what they change in a state: one cut short can be repeated

    @abstractmethod
    def begin(self, run: SolverRun, warm: dict[str, Any]) -> S:
        """The state before the first step."""

    @abstractmethod
    def step(self, run: SolverRun, state: S) -> None:
        """One iteration: change ``state``, record what happened, raise ``Stop`` when done."""

    def check(self, run: SolverRun, state: S) -> None:
        """Raise ``ValueError`` where a state from a file cannot be one of this run's."""

    def certificate(self, run: SolverRun, state: S, objective: float) -> Certificate:
        """What is certain about the result; nothing, unless a solver knows better."""
        return Certificate("No lower bound: this solver does not certify.")

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        """The weights to return and their objective."""
        return run.chosen()

    def tightened(self, tolerance: float) -> Self:
        """The same solver asked for this relative accuracy; unchanged where it has no such setting."""
        return self

    def limit(self, temperatures: tuple[float, float]) -> int:
        """The number of the last row that the trace of a run at these temperatures can have; 0 where not known."""
        return next((int(getattr(self, e.iterations)) for e in SOLVERS.values() if hasattr(self, e.iterations)), 0)

    def near(self) -> Self:
        """The same solver for a start close to the minimum."""
        return self

    def minimize(
        self,
        problem: Problem,
        w0: Floats,
        *,
        regulariser: Regulariser = PLAIN,
        callback: Callback | None = None,
        validation: Validation | None = None,
        time_limit: float | None = None,
        checkpoint: Checkpoint | None = None,
        warm: dict[str, Any] | None = None,
        first: Part | None = None,
    ) -> Solution:
        """Minimise from ``w0``. Ctrl-C, and ``time_limit`` seconds, return the best iterate so far; an existing
        checkpoint file is resumed. ``first`` is ``problem.difference(w0)`` for a caller who has it."""
        watch = Watch(callback, validation, float("inf") if time_limit is None else time_limit)
        run = SolverRun(problem, w0, regulariser, watch, first)
        saver = Saver(checkpoint, run.fingerprint(self)) if checkpoint else None
        state: S | None = None
        end: Stop | None = None
        before: tuple[dict[str, Any], S] | None = None
        if saver is not None:
            state, end = self._resume(run, saver)
        try:
            with ONE_BLAS_THREAD:
                if state is None:
                    state = self.begin(run, warm or {})
                while end is None:
                    if saver is not None and saver.due:
                        saver.save(run.dump(), state)
                    before = (run.mark(), copy(state)) if saver is not None else None
                    self.step(run, state)
        except Stop as stop:
            end = stop
        except KeyboardInterrupt:
            end = Stop(Outcome.INTERRUPTED, f"Interrupted after {len(run.rows)} recorded iterations.")
        if saver is not None and state is not None:
            if not end.outcome.cut_short:
                saver.save(run.dump(), state, end.outcome.value, end.message)
            elif self.repeatable and before is not None:
                saver.save(run.dump(before[0]), before[1])
        run.end(end.outcome)
        w, objective = self.choose(run)
        if run.rows and np.isnan(objective):  # chosen by validation while at other temperatures
            objective = run.objective(w)[0]
        certificate, kept = Certificate("Nothing was computed."), dict[str, Any]()
        if state is not None:
            certificate = self.certificate(run, state, objective)
            kept = {name: getattr(state, name) for name in self.warm}
        return Solution(w, objective, tuple(run.rows), end.outcome, end.message, certificate, kept, run.tally)

    def _resume(self, run: SolverRun, saver: Saver) -> tuple[S | None, Stop | None]:
        """State and end of the run that the checkpoint file holds."""
        try:
            saved = saver.load()
            if saved is None:
                return None, None
            if not run.restore(saved["run"]):
                raise InputError(f"{saver.path} was saved with other data; delete it or name another file.")
            end = Stop(Outcome(saved["outcome"]), str(saved["message"])) if saved["outcome"] else None
            state = self.state_type(**saved["state"])
            self.check(run, state)
            return state, end
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{saver.path} does not hold this solver's state; delete it to start anew.") from None

"""State of one call of a solver, shared by all solvers: counts, the trace, the best iterate, callbacks, early stopping,
the time limit, and their part of a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Evaluation, Problem
from mssvm.optim.checkpoint import digest
from mssvm.optim.outcome import Outcome, Stop, impossible
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.trace import NAN, Callback, Row, Tally


@dataclass(frozen=True)
class Validation:
    """Early stopping by a ``score`` of the weights, taken every ``every`` iterations.

    Training ends after ``patience`` scores in a row without a new maximum. The weights with the highest score are
    returned instead of those with the lowest objective.

    >>> small = ms.solvers.Validation(score=lambda w: -float(np.abs(w).max()), patience=1)      # any score of w
    >>> ms.HCRF(ms.Chain(), random_state=0).fit(X, y, validation=small).n_iter_ > 0
    True
    """

    score: Callable[[Floats], float]
    patience: int = 5
    every: int = 1


@dataclass(frozen=True)
class Watch:
    """Conditions outside the solver that may end a run: a callback, a validation score, a limit in seconds."""

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
    """One call of ``Solver.minimize``; ``first`` is the problem's difference at ``w0``, if it is known already."""

    def __init__(
        self, problem: Problem, w0: Floats, regulariser: Regulariser, watch: Watch, first: Evaluation | None = None
    ) -> None:
        if not problem.n_instances:
            raise InputError("there is nothing to learn from: no instance has a label; label at least one site.")
        self.tally = Tally()
        self.problem = problem
        self.w0 = np.array(w0, dtype=np.float64)
        if self.w0.shape != (problem.n_weights,) or not np.all(np.isfinite(self.w0)):
            raise InputError(f"w0 needs {problem.n_weights} finite weights, got shape {self.w0.shape}.")
        self.regulariser = regulariser
        self.strengths = regulariser.strengths(problem.n_weights)
        self.rows: list[Row] = []
        self.best = Best(self.w0)
        self.last_w = self.w0
        self.negative_gaps = 0
        self._watch = watch
        self._first = first
        self._began = time.monotonic()
        self._earlier_seconds = 0.0
        self.deadline = self._began + watch.time_limit
        self._reported_before = (0, 0)  # calls reported and converged, at the last row
        self._ended = False

    # ------------------------------------------------------------------------------------- evaluations

    def count(self, part: Evaluation) -> Evaluation:
        """Enter an evaluation in the tally; ends the run at its deadline."""
        self.tally.add(part)
        if self.rows:
            self.check_time()
        return part

    def check_time(self) -> None:
        """End the run at its deadline; for loops over instances, which take longer than a pass over all."""
        if time.monotonic() >= self.deadline and not self._ended:
            raise Stop(Outcome.TIME, f"The time limit was reached after {len(self.rows)} recorded iterations.")

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        """plus_i and its coordinates, counted."""
        self.tally.plus_calls += 1
        self.check_time()
        return self.problem.atom(w, i)

    def objective(self, w: Floats, problem: Problem | None = None) -> tuple[float, Evaluation]:
        """R(w) + loss(w) by one pass over all instances; ``problem`` is this one at other temperatures."""
        if problem is None and self._first is not None and np.array_equal(w, self.w0):
            part = self._first
        else:
            part = (problem or self.problem).difference(w)
        self.count(part)
        return self.regulariser.value(w) + part.total, part

    def gradient_norm(self, w: Floats, loss_gradient: Floats) -> float:
        """Norm of the gradient of the whole objective, without the components that the constraints w >= 0 hold back."""
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
        """Enter an iterate in the trace; only iterates at the target temperatures can be the best one."""
        iteration = len(self.rows)
        eps_y, eps_h = temperatures or self.problem.temperatures
        at_target = (eps_y, eps_h) == self.problem.temperatures
        row = Row(
            iteration=iteration,
            objective=objective,
            gap=gap,
            gradient_norm=gradient_norm,
            plus_calls=self.tally.plus_calls,
            minus_calls=self.tally.minus_calls,
            seconds=self.seconds,
            converged=self._share_converged(),
            floored=self.tally.floored,
            eps_y=eps_y,
            eps_h=eps_h,
        )
        self.rows.append(row)
        self.last_w = w.copy()
        if impossible(gap, objective):
            self.negative_gaps += 1
        if not np.isfinite(objective):
            raise Stop(Outcome.DIVERGED, f"The objective became {objective} at iteration {iteration}.")
        if at_target and objective < self.best.objective:
            self.best.w = w.copy()
            self.best.objective = objective
        callback = self._watch.callback
        if callback is not None and callback(row, w.copy()):
            raise Stop(Outcome.STOPPED, f"The callback asked to stop at iteration {iteration}.")
        validation = self._watch.validation
        if validation is not None and iteration % validation.every == 0:
            self._validate(validation, w, objective if at_target else NAN)

    def _share_converged(self) -> float:
        """Share of the inference calls since the last row that converged; NaN where none was reported."""
        reported_before, converged_before = self._reported_before
        reported = self.tally.reported - reported_before
        converged = self.tally.converged - converged_before
        self._reported_before = (self.tally.reported, self.tally.converged)
        return converged / reported if reported else NAN

    @property
    def seconds(self) -> float:
        """Seconds of this run and of those it resumes."""
        return self._earlier_seconds + time.monotonic() - self._began

    def _validate(self, validation: Validation, w: Floats, objective: float) -> None:
        """Score the weights; ends the run after ``patience`` scores without a new highest one."""
        best = self.best
        score = float(validation.score(w.copy()))
        if score > best.score:
            best.score = score
            best.scored_w = w.copy()
            best.scored_objective = objective
            best.waited = 0
            return
        best.waited += 1
        if best.waited >= validation.patience:
            raise Stop(Outcome.EARLY, f"The validation score stayed below {best.score:.6g} for {best.waited} checks.")

    # ------------------------------------------------------------------------------------- the end

    def end(self, outcome: Outcome) -> None:
        """Lift the time limit, and evaluate the last weights at the target temperatures if they were not.

        That is the case in a run cut short at other temperatures, or by its time limit before the first row.
        """
        self._ended = True
        if self.rows:
            last = self.rows[-1]
            evaluated = (last.eps_y, last.eps_h) == self.problem.temperatures
        else:
            evaluated = outcome is not Outcome.TIME
        if evaluated:
            return
        try:
            self.record(self.last_w, self.objective(self.last_w)[0])
        except (Stop, KeyboardInterrupt):
            return

    def chosen(self, last: bool = False) -> tuple[Floats, float]:
        """The weights to return and their objective: the best by validation, else the last weights if ``last``, else
        those of the lowest objective."""
        best = self.best
        if self._watch.validation is not None and len(best.scored_w):
            return best.scored_w, best.scored_objective
        if last and self.rows and np.isfinite(self.rows[-1].objective):
            return self.last_w, self.rows[-1].objective
        if np.isfinite(best.objective):
            return best.w, best.objective
        return best.w, NAN

    # ------------------------------------------------------------------------------------- checkpoints

    def fingerprint(self, solver: object) -> str:
        """Identifies solver, settings, start and problem, so that a checkpoint is not resumed by another run."""
        p = self.problem
        sizes = (p.n_instances, p.n_weights, p.temperatures)
        bounded = self.regulariser.project(np.full(p.n_weights, -1.0))
        absolute = np.asarray(self.regulariser.absolute)
        parts = [solver, sizes, self.w0, self.strengths, absolute, bounded, p.scale, p.log_outputs, p.n_sites]
        if self.regulariser.center is not None:
            parts.append(self.regulariser.center)
        return digest(*parts)

    @cached_property
    def probe(self) -> Floats:
        """The loss at the start and its slope in a fixed direction, which distinguish problems of equal size.

        Takes one pass that is not counted, made only for checkpoints.
        """
        if self._first is None:
            self._first = self.problem.difference(self.w0)
        direction = np.random.default_rng(0).standard_normal(len(self.w0))
        return np.array([self._first.total, float(self._first.gradient @ direction)])

    def mark(self) -> dict[str, Any]:
        """A snapshot of the run, which ``dump`` can write later."""
        return {
            "tally": replace(self.tally),
            "best": replace(self.best),
            "last_w": self.last_w,
            "rows": len(self.rows),
            "negative_gaps": self.negative_gaps,
            "seconds": self.seconds,
            "marked": self._reported_before,  # checkpoint files have it under this name
            "memory": self._memory(),
        }

    def _memory(self) -> dict[str, Any]:
        """The messages from which the next evaluation starts, if the problem stores any."""
        memory = getattr(self.problem, "memory", None)
        return {} if memory is None else dict(memory())

    def dump(self, mark: dict[str, Any] | None = None) -> dict[str, Any]:
        """Everything that a resumed run needs to continue with the same bits, from now or from a marked moment."""
        at = mark or self.mark()
        rows = np.array(self.rows[: at["rows"]], dtype=np.float64).reshape(-1, len(Row._fields))
        return at | {"probe": self.probe, "tally": asdict(at["tally"]), "best": asdict(at["best"]), "rows": rows}

    def restore(self, tree: dict[str, Any]) -> bool:
        """Continue from the result of ``dump``; if that was a run on other data, return False and change nothing.
        (Rounding on another machine does not count as other data.)"""
        if not np.allclose(tree["probe"], self.probe, rtol=1e-6, atol=1e-6):
            return False
        self.tally = Tally(**tree["tally"])
        self.best = Best(**tree["best"])
        self.last_w = tree["last_w"]
        self.rows = [Row.of(row) for row in tree["rows"]]
        self.negative_gaps = tree["negative_gaps"]
        self._earlier_seconds = tree["seconds"]
        reported, converged = tree["marked"]
        self._reported_before = (reported, converged)
        if memory := tree.get("memory"):
            self.problem.recall(memory)  # type: ignore[attr-defined]
        return True

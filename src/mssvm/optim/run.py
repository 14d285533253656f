"""What every solver run has in common: counting, trace, best iterate, callbacks, early stopping, resuming."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Part, Problem
from mssvm.optim.checkpoint import digest
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.solution import Outcome, Row
from mssvm.optim.views import Meter, Tally

Callback = Callable[[Row, Floats], bool | None]
"""Called with every new trace row and its weights; returning True stops the solver."""

NAN = float("nan")


class Stop(Exception):
    """Ends the loop of a solver from wherever it is; carries the reason."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome, self.message = outcome, message


@dataclass(frozen=True)
class Validation:
    """Early stopping: after ``patience`` scores in a row without a new highest one, taken every ``every`` iterations.

    The weights with the highest score are returned instead of those with the lowest objective.
    """

    score: Callable[[Floats], float]
    patience: int = 5
    every: int = 1


@dataclass
class Best:
    """The lowest objective and the highest validation score so far, with their weights."""

    w: Floats
    objective: float = float("inf")
    scored_w: Floats = field(default_factory=lambda: np.zeros(0))
    scored_objective: float = NAN
    score: float = -float("inf")
    waited: int = 0


class Run:
    """One call of ``Solver.minimize``."""

    def __init__(
        self,
        problem: Problem,
        w0: Floats,
        regulariser: Regulariser,
        callback: Callback | None,
        validation: Validation | None,
    ) -> None:
        if not problem.n_instances:
            raise InputError("there is nothing to learn from: no instance has a label; label at least one site.")
        self.tally = Tally()
        self.problem = Meter(problem, self.tally)
        self.w0 = _start(w0, problem.n_weights)
        regulariser.check(problem.n_weights)
        self.regulariser = regulariser
        self.rows: list[Row] = []
        self.best = Best(self.w0)
        self.last_w = self.w0
        self.negative_gaps = 0
        self._callback, self._validation = callback, validation
        self._clock, self._earlier = time.monotonic(), 0.0
        self._marked = (0, 0)

    def objective(self, w: Floats) -> tuple[float, Part]:
        """R(w) + loss(w) at the target temperatures, by one pass over all instances."""
        part = self.problem.difference(w)
        return self.regulariser.value(w) + part.total, part

    def gradient_norm(self, w: Floats, loss_gradient: Floats) -> float:
        """Norm of the gradient of the whole objective, less what the bounds hold back."""
        total = self.regulariser.gradient(w) + loss_gradient
        with np.errstate(over="ignore"):
            return float(np.linalg.norm(self.regulariser.stationarity(w, total)))

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
        target = self.problem.temperatures
        measured = temperatures or target
        self.rows.append(
            Row(
                len(self.rows),
                objective,
                gap,
                gradient_norm,
                self.tally.plus_calls,
                self.tally.minus_calls,
                self.seconds,
                self._share_converged(),
                self.tally.rescued,
                *measured,
            )
        )
        self.last_w = w.copy()
        self.negative_gaps += bool(gap < -1e-9 * max(1.0, abs(objective)))
        if not np.isfinite(objective):
            raise Stop(Outcome.DIVERGED, f"The objective became {objective} at iteration {len(self.rows) - 1}.")
        if measured == target and objective < self.best.objective:
            self.best.w, self.best.objective = w.copy(), objective
        self._listen(w, objective if measured == target else NAN)

    @property
    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._clock

    def _share_converged(self) -> float:
        reported = self.tally.reported - self._marked[0]
        converged = self.tally.converged - self._marked[1]
        self._marked = (self.tally.reported, self.tally.converged)
        return converged / reported if reported else NAN

    def _listen(self, w: Floats, objective: float) -> None:
        if self._callback is not None and self._callback(self.rows[-1], w.copy()):
            raise Stop(Outcome.STOPPED, f"The callback asked to stop at iteration {len(self.rows) - 1}.")
        validation, best = self._validation, self.best
        if validation is None or (len(self.rows) - 1) % validation.every:
            return
        score = float(validation.score(w.copy()))
        if score > best.score:
            best.score, best.scored_w, best.scored_objective, best.waited = score, w.copy(), objective, 0
            return
        best.waited += 1
        if best.waited >= validation.patience:
            raise Stop(Outcome.EARLY, f"The validation score stayed below {best.score:.6g} for {best.waited} checks.")

    def chosen(self, last: bool = False) -> tuple[Floats, float]:
        """The weights to return and their objective: best by validation, else the last on request, else the lowest."""
        best = self.best
        if self._validation is not None and len(best.scored_w):
            return best.scored_w, best.scored_objective
        if last and self.rows and np.isfinite(self.rows[-1].objective):
            return self.last_w, self.rows[-1].objective
        return best.w, best.objective if np.isfinite(best.objective) else NAN

    def fingerprint(self, solver: object) -> str:
        """Identifies solver, settings, start and problem, so that a checkpoint is not resumed by another run."""
        p = self.problem
        sizes = (p.n_instances, p.n_weights, p.temperatures)
        strengths = self.regulariser.strengths(p.n_weights)
        bounded = self.regulariser.project(np.full(p.n_weights, -1.0))
        return digest(solver, sizes, self.w0, strengths, bounded, p.scale, p.log_outputs, p.n_sites)

    @cached_property
    def probe(self) -> Floats:
        """The loss at the start and its slope in a fixed direction: what tells equally large problems apart.

        One pass that is not counted, made only for checkpoints.
        """
        part = self.problem.problem.difference(self.w0)
        direction = np.random.default_rng(0).standard_normal(len(self.w0))
        return np.array([part.total, float(part.gradient @ direction)])

    def began(self, tree: dict[str, Any]) -> bool:
        """Whether a saved run is one of this problem, up to the rounding of another machine."""
        return bool(np.allclose(tree["probe"], self.probe, rtol=1e-6, atol=1e-6))

    def dump(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on as if nothing had happened."""
        return {
            "probe": self.probe,
            "tally": asdict(self.tally),
            "best": self.best,
            "last_w": self.last_w,
            "rows": np.array(self.rows, dtype=np.float64).reshape(-1, len(Row._fields)),
            "negative_gaps": self.negative_gaps,
            "seconds": self.seconds,
            "marked": self._marked,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        for name, value in tree["tally"].items():
            setattr(self.tally, name, value)
        self.best = Best(**tree["best"])
        self.last_w = tree["last_w"]
        self.rows = [Row.of(row) for row in tree["rows"]]
        self.negative_gaps = tree["negative_gaps"]
        self._earlier = tree["seconds"]
        self._marked = tuple(tree["marked"])


def _start(w0: Floats, n_weights: int) -> Floats:
    w = np.array(w0, dtype=np.float64)
    if w.shape != (n_weights,) or not np.all(np.isfinite(w)):
        raise InputError(f"w0 needs {n_weights} finite weights, got shape {w.shape}.")
    return w

"""Hooks of one call of ``fit``: callbacks, validation, checkpoints, a time limit, a line of progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core import checks
from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.progress import ProgressLine, remaining_time
from mssvm.estimators.prediction import Predictor
from mssvm.optim import Callback, Checkpoint, Row, Validation

Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Labelled data for early stopping, scored every ``every`` iterations.

    Training ends after ``patience`` scores in a row without a new maximum; the model gets the weights of the highest
    score.

    ``hidden_sites`` is as in ``predict`` (``hidden`` is its old name, for one more release). Errors about the data are
    raised inside the context ``naming()``, which can reword them.

    >>> ms.HCRF(ms.Chain(), random_state=0).fit(X, y, validation=ms.HeldOut(X, y, patience=2)).score(X, y)
    1.0
    """

    X: Any
    y: Any
    hidden_sites: Any = None
    patience: int = 5
    every: int = 1
    naming: Context = nullcontext
    hidden: InitVar[Any] = None

    def __post_init__(self, hidden: Any) -> None:
        if hidden is not None:
            warnings.warn(
                "HeldOut(hidden=) is called hidden_sites= now; the old name will go in the next release.",
                FutureWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "hidden_sites", hidden)


@dataclass(frozen=True, eq=False)
class FitHooks:
    """The hooks of one call of ``fit``; ``predictor`` decides the labels that are scored for early stopping."""

    predictor: Predictor
    callback: Callback | None = None
    validation: HeldOut | Validation | tuple[Any, Any] | None = None
    checkpoint: Checkpoint | str | Path | None = None
    time_limit: float | None = None

    def check(self) -> None:
        """Raise ``InputError`` if a hook is of a type that ``fit`` does not take."""
        if self.time_limit is not None:
            checks.number(self.time_limit, "time_limit", above=0.0, unit=" of seconds")
        if self.callback is not None and not callable(self.callback):
            shown = checks.shown(self.callback)
            raise InputError(f"callback must be a function of a row and the weights, got {shown}.")
        if self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint):
            checks.path(self.checkpoint, "checkpoint")
        held = self.validation
        pair = isinstance(held, (tuple, list)) and len(held) == 2
        if held is not None and not pair and not isinstance(held, (HeldOut, Validation)):
            raise InputError(f"validation must be a pair (X, y), HeldOut or Validation, got {checks.shown(held)}.")


class TrainingLine:
    """A callback that shows progress on one line of the terminal; ``begin`` is called at every start."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self._start = ""
        self._most_iterations = 0
        self._starts_left = 0
        self._whole_budget = False
        self._where: Callable[[], str] | None = None
        self._before = 0  # rows before the first iteration: more than one are trials of step sizes
        self._trials = 0.0  # seconds of these trials

    def begin(
        self,
        most: int,
        start: int,
        n_starts: int,
        where: Callable[[], str] | None = None,
        whole_budget: bool = False,
    ) -> None:
        """A solver begins at start number ``start`` of ``n_starts``.

        It runs for at most ``most`` iterations (0: unknown), with ``whole_budget`` for exactly this number; ``where``
        describes the machines that work for it."""
        self._whole_budget = whole_budget
        self._where = where
        self._before = 0
        self._trials = 0.0
        self._start = f"start {start} of {n_starts}, " if n_starts > 1 else ""
        self._most_iterations = most
        self._starts_left = n_starts - start

    def __call__(self, row: Row, w: Floats) -> None:
        self.line.say(self.text(row))

    def text(self, row: Row) -> str:
        """A row of the trace as a line of text; its seconds count from the start of the first of several runs."""
        if not row.iteration:
            self._before += 1
            self._trials = row.seconds
        seconds = row.seconds - self._trials
        rate = row.iteration / max(seconds, 1e-9)
        text = f"{self._start}iteration {row.iteration}, {rate:.3g}/s, objective {row.objective:.6g}"
        if not row.iteration and self._before > 1:
            text = f"{self._start}choosing the step size, {row.seconds:.0f} s, objective {row.objective:.6g}"
        for name, value in (("gap", row.gap), ("gradient", row.gradient_norm)):
            if np.isfinite(value):
                text += f", {name} {value:.2g}"
        if np.isfinite(row.converged) and row.converged < 1:
            text += f", {row.converged:.0%} of inference converged"
        text += f", temperatures {row.eps_y:g} and {row.eps_h:g}"
        text += self._time_left(row.iteration, seconds)
        if self._where is None:
            return text
        return f"{text}, {self._where()}"

    def _time_left(self, iteration: int, seconds: float) -> str:
        """The time left where it can be estimated.

        A solver that stops at convergence seldom uses all its iterations: the time that they would take is only a
        bound, and is shown only after half of them.
        """
        if not self._most_iterations or not iteration:
            return ""
        done = min(iteration / (self._most_iterations * (1 + self._starts_left)), 1.0)
        if self._whole_budget:
            return f", {remaining_time(seconds, done)} left"
        if done < 0.5:
            return ""
        return f", at most {remaining_time(seconds, done)} left"

"""The frame of every solver: begin, step until done, hand back the best. Solvers differ only in state and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Problem
from mssvm.optim.checkpoint import Checkpoint, Saver
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import Callback, Run, Stop, Validation
from mssvm.optim.solution import Certificate, Outcome, Solution

S = TypeVar("S")

PLAIN = Regulariser()


class Solver(ABC, Generic[S]):
    """Minimises R(w) + sum_i c_i (plus_i(w) - minus_i(w)). Subclasses are frozen dataclasses of their settings.

    A state is a dataclass of arrays, numbers, generators and nests of them: whatever is not in it or in ``Run`` does
    not survive a restart, which is what makes resumed runs equal to uninterrupted ones.
    """

    state_type: ClassVar[type]

    @abstractmethod
    def begin(self, run: Run, warm: dict[str, Any]) -> S:
        """The state before the first step."""

    @abstractmethod
    def step(self, run: Run, state: S) -> None:
        """One iteration: change ``state``, record what happened, raise ``Stop`` when done."""

    def certificate(self, run: Run, state: S, objective: float) -> Certificate:
        """What is certain about the result; nothing, unless a solver knows better."""
        return Certificate("No lower bound: this solver does not certify.")

    def warm(self, state: S) -> dict[str, Any]:
        """What a later call can start from, on a problem with the same convex parts."""
        return {}

    def choose(self, run: Run) -> tuple[Floats, float]:
        """The weights to return and their objective."""
        return run.chosen()

    def tightened(self, tolerance: float) -> Self:
        """The same solver asked for this relative accuracy; unchanged where it has no such setting."""
        return self

    def minimize(
        self,
        problem: Problem,
        w0: Floats,
        *,
        regulariser: Regulariser = PLAIN,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
        validation: Validation | None = None,
        warm: dict[str, Any] | None = None,
    ) -> Solution:
        """Minimise from ``w0``. Ctrl-C returns the best iterate so far; an existing checkpoint file is resumed."""
        run = Run(problem, w0, regulariser, callback, validation)
        saver = Saver(checkpoint, run.fingerprint(self) if checkpoint else "")
        saved = checkpoint.load(saver.fingerprint) if checkpoint else None
        state: S | None = None
        if checkpoint and saved:
            if not run.began(saved["run"]):
                raise InputError(f"{checkpoint.path} was saved with other data; delete it or name another file.")
            run.restore(saved["run"])
            state = self.state_type(**saved["state"])
        end = Stop(Outcome(saved["outcome"]), saved["message"]) if saved and saved["outcome"] else None
        try:
            if state is None:
                state = self.begin(run, warm or {})
            while end is None:
                if saver.due:
                    saver.save(_tree(run, state, None))
                end = self._advance(run, state)
        except KeyboardInterrupt:
            # The file keeps the state before the interrupted step, so that resuming repeats that step in full.
            end = Stop(Outcome.INTERRUPTED, f"Interrupted after {len(run.rows)} recorded iterations.")
        except Stop as stop:
            end = stop
        else:
            if checkpoint:
                saver.save(_tree(run, state, end))
        assert end is not None
        return self._finish(run, state, end)

    def _advance(self, run: Run, state: S) -> Stop | None:
        try:
            self.step(run, state)
        except Stop as stop:
            return stop
        return None

    def _finish(self, run: Run, state: S | None, end: Stop) -> Solution:
        if run.rows and not _at_target(run):
            _compete(run)
        w, objective = self.choose(run)
        if run.rows and np.isnan(objective):  # chosen by validation while at other temperatures
            objective = run.objective(w)[0]
        certificate, kept = Certificate("Nothing was computed."), {}
        if state is not None:
            certificate, kept = self.certificate(run, state, objective), self.warm(state)
        return Solution(w, objective, tuple(run.rows), end.outcome, end.message, certificate, kept)


def _at_target(run: Run) -> bool:
    last = run.rows[-1]
    return (last.eps_y, last.eps_h) == run.problem.temperatures


def _compete(run: Run) -> None:
    """A run cut short at other temperatures: let its last iterate compete for best at the target ones."""
    try:
        objective, _ = run.objective(run.last_w)
        run.record(run.last_w, objective)
    except (Stop, KeyboardInterrupt):
        return


def _tree(run: Run, state: Any, end: Stop | None) -> dict[str, Any]:
    return {
        "run": run.dump(),
        "state": state,
        "outcome": end.outcome.value if end else "",
        "message": end.message if end else "",
    }

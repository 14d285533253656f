"""The loop of every solver: begin, step until done, return the best. Solvers differ only in state and step.

``SolverRun`` (``run``) is the state that all share during a call, a ``Solution`` (``solution``) the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.objectives.problem import Evaluation, Problem
from mssvm.optim.checkpoint import Checkpoint, Saver
from mssvm.optim.former_names import with_new_names
from mssvm.optim.outcome import Outcome, Stop
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import SolverRun, Validation, Watch
from mssvm.optim.solution import Certificate, Solution
from mssvm.optim.trace import Callback

S = TypeVar("S")
PLAIN = Regulariser()


class Solver(Settings, ABC, Generic[S]):
    """Minimises R(w) + sum_i c_i (plus_i(w) - minus_i(w)). Subclasses are frozen dataclasses of their settings.

    A state is a dataclass of arrays, numbers, generators and nests of them. Together with ``SolverRun`` it is all that
    a checkpoint saves, so that a resumed run equals an uninterrupted one.

    >>> isinstance(ms.solvers.BCFW(), ms.solvers.Solver)                           # docs/extending.md writes one
    True
    """

    state_type: ClassVar[type]
    warm: ClassVar[tuple[str, ...]] = ()  # fields of the state that warm-start a problem with the same convex parts
    repeatable: ClassVar[bool] = False  # steps replace values of the state, so an interrupted step can be repeated
    former_names: ClassVar[Mapping[str, str]] = MappingProxyType({})  # former names of settings: present names

    def set_params(self, **params: Any) -> Self:
        """Change settings in place, with the checks of the constructor; former names are accepted with a warning."""
        return super().set_params(**with_new_names(type(self).__name__, self.former_names, params))

    @abstractmethod
    def begin(self, run: SolverRun, warm: dict[str, Any]) -> S:
        """The state before the first step."""

    @abstractmethod
    def step(self, run: SolverRun, state: S) -> None:
        """One iteration: change ``state``, record what happened, raise ``Stop`` when done."""

    def check(self, run: SolverRun, state: S) -> None:
        """Raise ``ValueError`` where a state from a file cannot be one of this run's."""

    def certificate(self, run: SolverRun, state: S, objective: float) -> Certificate:
        """The certificate of the result; by default nothing is certified."""
        return Certificate("No lower bound: this solver does not certify.")

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        """The weights to return and their objective."""
        return run.chosen()

    def tightened(self, tolerance: float) -> Self:
        """This solver with ``tolerance`` as its relative accuracy; unchanged if it has no such setting."""
        return self

    def limit(self, temperatures: tuple[float, float]) -> int:
        """The number of the last row that the trace of a run at these temperatures can have; 0 where not known."""
        return int(getattr(self, "max_iter", 0))

    @property
    def uses_whole_budget(self) -> bool:
        """Whether a run ends after ``limit`` rows and not before, unless something outside the solver ends it."""
        return False

    def for_warm_start(self) -> Self:
        """This solver, set up for a start close to the minimum."""
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
        first: Evaluation | None = None,
    ) -> Solution:
        """Minimise from ``w0``. Ctrl-C, and ``time_limit`` seconds, return the best iterate so far; an existing
        checkpoint file is resumed. ``first`` is ``problem.difference(w0)`` if the caller has evaluated it."""
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
                    if saver is not None:
                        before = (run.mark(), copy(state))
                    self.step(run, state)
        except Stop as stop:
            end = stop.with_traceback(None)  # frames of the traceback would keep the problem
        except KeyboardInterrupt:
            end = Stop(Outcome.INTERRUPTED, f"Interrupted after {len(run.rows)} recorded iterations.")
        if saver is not None and state is not None:
            if not end.outcome.cut_short:
                saver.save(run.dump(), state, end.outcome.value, end.message)
            elif self.repeatable and before is not None:
                # The step that was cut short is repeated when the run resumes.
                saver.save(run.dump(before[0]), before[1])
        return self._solution(run, state, end)

    def _solution(self, run: SolverRun, state: S | None, end: Stop) -> Solution:
        """The chosen weights with their certificate; ``state`` is None if the run ended before it began."""
        run.end(end.outcome)
        w, objective = self.choose(run)
        if run.rows and np.isnan(objective):  # chosen by validation while at other temperatures
            objective = run.objective(w)[0]
        certificate = Certificate("Nothing was computed.")
        warm_start: dict[str, Any] = {}
        if state is not None:
            certificate = self.certificate(run, state, objective)
            warm_start = {name: getattr(state, name) for name in self.warm}
        outcome, message = judged(end, certificate)
        return Solution(w, objective, tuple(run.rows), outcome, message, certificate, warm_start, run.tally)

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


def judged(end: Stop, certificate: Certificate) -> tuple[Outcome, str]:
    """How a run ended, in view of its certificate: a run with impossible gaps has not converged."""
    if not certificate.negative_gaps or not end.outcome.own:
        return end.outcome, end.message
    return Outcome.UNCERTIFIED, f"{end.message} Not certified: inference missed maxima."

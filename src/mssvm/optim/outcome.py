"""Why a solver stopped, and which gaps show convergence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ROUNDING = 1e-9  # rounding error of a gap, relative to the objective


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
        """Whether the solver itself ended the run, and not a callback, a validation score or a limit."""
        return self in (Outcome.CONVERGED, Outcome.COMPLETED, Outcome.BUDGET)

    @property
    def cut_short(self) -> bool:
        """Whether a time limit or an interruption ended the run, so that its checkpoint can be resumed."""
        return self in (Outcome.TIME, Outcome.INTERRUPTED)


@dataclass(eq=False)
class Stop(Exception):
    """Raised to end the loop of a solver from anywhere inside; carries the reason."""

    outcome: Outcome
    message: str


def impossible(gap: float, objective: float) -> bool:
    """Whether a gap is below zero by more than rounding.

    No lower bound is above the minimum, so either the bound or the objective is wrong: inference missed maxima.
    """
    return bool(gap < -ROUNDING * max(1.0, abs(objective)))


def gap_between(objective: float, lower: float) -> float:
    """An objective less its lower bound; 0 where rounding alone puts it below zero."""
    gap = objective - lower
    return gap if impossible(gap, objective) else max(gap, 0.0)


def closed(gap: float, objective: float, tolerance: float) -> bool:
    """Whether a gap shows convergence: at most ``tolerance`` of the objective, and not impossible."""
    return bool(gap <= tolerance * abs(objective)) and not impossible(gap, objective)

"""What a solver hands back: weights, how it got there, why it stopped, and what is certain about the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.objectives.problem import Part


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
    STALLED = "stalled"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    EARLY = "early"
    TIME = "time"
    INTERRUPTED = "interrupted"

    @property
    def unfinished(self) -> bool:
        """Whether the solver itself gave up before it was done."""
        return self in (Outcome.BUDGET, Outcome.STALLED, Outcome.DIVERGED)

    @property
    def cut_short(self) -> bool:
        """Whether the run would have gone on, and a checkpoint of it can be resumed."""
        return self in (Outcome.TIME, Outcome.INTERRUPTED)


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the objective can be above its optimum, and whether that figure is proven: in a ``sentence``, and below.

    ``gap`` is objective minus a lower bound (NaN: none known). It certifies only if every inference call was exact;
    otherwise it is an estimate, and ``negative_gaps`` counts the impossible ones that were seen. ``bias`` bounds what
    smoothing may have added to the objective. ``slack`` holds xi_i of the constraint form, where a solver has them.

    >>> ms.solvers.Certificate("The dual proves it.", gap=0.01, certifies=True).certifies
    True
    """

    sentence: str
    gap: float = float("nan")
    certifies: bool = False
    negative_gaps: int = 0
    bias: float = 0.0
    slack: Floats | None = None


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


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights ``w`` and their objective, the trace, the outcome with a ``message``, and the certificate.

    ``tally`` counts inference. ``warm`` is what the same solver can start from on a problem with the same convex parts.

    >>> nothing = ms.solvers.Certificate("No bound is known.")
    >>> found = ms.solvers.Solution(np.zeros(2), 1.5, (), ms.solvers.Outcome.CONVERGED, "Done.", nothing)
    >>> found.objective, found.plus_calls
    (1.5, 0)
    """

    w: Floats
    objective: float
    trace: tuple[Row, ...]
    outcome: Outcome
    message: str
    certificate: Certificate
    warm: dict[str, Any] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    @property
    def history(self) -> Any:
        """The trace as a record array."""
        columns = np.array(self.trace, dtype=np.float64).reshape(-1, len(Row._fields)).T
        return np.rec.fromarrays(columns, HISTORY)

    @property
    def plus_calls(self) -> int:
        return self.trace[-1].plus_calls if self.trace else 0

    @property
    def minus_calls(self) -> int:
        return self.trace[-1].minus_calls if self.trace else 0


def best_of(solutions: Sequence[Solution]) -> Solution:
    """The lowest objective of a series of solutions; cut short, if the series was."""
    best, last = solutions[0], solutions[-1]
    for found in solutions[1:]:
        if np.isfinite(found.objective) and not best.objective <= found.objective:
            best = found
    return replace(best, outcome=last.outcome, message=last.message) if last.outcome.cut_short else best

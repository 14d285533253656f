"""The result of a solver: the weights, the trace, the reason why it stopped, and the certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.optim.outcome import Outcome
from mssvm.optim.trace import HISTORY, Row, Tally


@dataclass(frozen=True, eq=False)
class Certificate:
    """A bound on the distance of the objective from its optimum, and whether it is proven: a ``sentence``, and its
    figures.

    ``gap`` is objective minus a lower bound (NaN: none known). It certifies only if every inference call was exact, or
    if the gap is to the minimum of a bound that training minimises; otherwise it is an estimate, and ``negative_gaps``
    counts the impossible ones that were seen. ``bias`` bounds what
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


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights ``w`` and their objective, the trace, the outcome with a ``message``, and the certificate.

    ``tally`` counts inference calls. ``warm`` is a warm start of the same solver on a problem with the same convex
    parts. ``bounded``: the objective is an upper bound of the true one, although inference was approximate.

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
    bounded: bool = False

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


def followed_by(first: Solution, second: Solution) -> Solution:
    """The solution of a run that continued an earlier one, with the trace of both."""
    if not first.trace:
        return second
    last = first.trace[-1]
    rows = tuple(
        row._replace(
            iteration=row.iteration + len(first.trace),
            plus_calls=row.plus_calls + last.plus_calls,
            minus_calls=row.minus_calls + last.minus_calls,
            seconds=row.seconds + last.seconds,
            floored=row.floored + last.floored,
        )
        for row in second.trace
    )
    return replace(second, trace=first.trace + rows)


def best_of(solutions: Sequence[Solution]) -> Solution:
    """The solution of lowest objective in a series; its outcome says so if the series was cut short."""
    best = solutions[0]
    for solution in solutions[1:]:
        if np.isfinite(solution.objective) and not best.objective <= solution.objective:
            best = solution
    last = solutions[-1]
    if last.outcome.cut_short:
        return replace(best, outcome=last.outcome, message=last.message)
    return best

"""The trace of a run: its rows, and the counts of inference in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.objectives.problem import Evaluation

NAN = float("nan")


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
        row = cls._make(float(value) for value in values)
        return row._replace(
            iteration=int(row.iteration),
            plus_calls=int(row.plus_calls),
            minus_calls=int(row.minus_calls),
            floored=int(row.floored),
        )


HISTORY = np.dtype([(name, np.float64) for name in Row._fields])

Callback = Callable[[Row, Floats], bool | None]
"""Called with every new trace row and its weights; returning True stops the solver."""


@dataclass
class Tally:
    """Running counts of inference. ``reported`` is the number of calls that said whether they converged."""

    plus_calls: int = 0
    minus_calls: int = 0
    reported: int = 0
    converged: int = 0
    floored: int = 0
    exact: bool = True

    def add(self, other: Evaluation | Tally) -> None:
        """Enter one evaluation, or all those of an inner solver."""
        self.plus_calls += other.plus_calls
        self.minus_calls += other.minus_calls
        self.reported += other.reported if isinstance(other, Tally) else other.plus_calls + other.minus_calls
        self.converged += other.converged
        self.floored += other.floored
        self.exact = self.exact and other.exact

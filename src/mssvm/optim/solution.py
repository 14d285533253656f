"""What a solver hands back: weights, how it got there, why it stopped, and what is certain about the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Floats


class Row(NamedTuple):
    """One line of a trace; NaN where a solver does not know a figure. Calls and rescues count from the start."""

    iteration: int
    objective: float
    gap: float
    gradient_norm: float
    plus_calls: int
    minus_calls: int
    seconds: float
    converged: float
    rescued: int
    eps_y: float
    eps_h: float

    @classmethod
    def of(cls, values: Floats) -> Row:
        """The row whose numbers were stored as floats."""
        row = cls._make(float(v) for v in values)
        return row._replace(**{k: int(getattr(row, k)) for k in ("iteration", "plus_calls", "minus_calls", "rescued")})


class Outcome(Enum):
    """Why a solver stopped."""

    CONVERGED = "converged"
    BUDGET = "budget"
    STALLED = "stalled"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    EARLY = "early"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the objective can be above its optimum, and whether that figure is proven.

    ``gap`` is objective minus a lower bound (NaN: none known). It certifies only if every inference call was exact;
    otherwise it is an estimate, and ``negative_gaps`` counts the impossible ones that were seen. ``bias`` bounds what
    smoothing may have added to the objective. ``slack`` holds xi_i of the constraint form, where a solver has them.
    """

    sentence: str
    gap: float = float("nan")
    certifies: bool = False
    negative_gaps: int = 0
    bias: float = 0.0
    slack: Floats | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights and their objective, the trace, the outcome with a sentence, and the certificate.

    ``warm`` is what the same solver can start from on a problem with the same convex parts.
    """

    w: Floats
    objective: float
    trace: tuple[Row, ...]
    outcome: Outcome
    message: str
    certificate: Certificate
    warm: dict[str, Any] = field(default_factory=dict)

    def column(self, name: str) -> Floats:
        """One column of the trace."""
        return np.array([getattr(row, name) for row in self.trace], dtype=np.float64)

    @property
    def plus_calls(self) -> int:
        return self.trace[-1].plus_calls if self.trace else 0

    @property
    def minus_calls(self) -> int:
        return self.trace[-1].minus_calls if self.trace else 0

"""The best outputs that a search knows, with the bounds on the optimum: all that its threads change together.

Both bounds only ever improve, whichever thread does it, and are reported one change after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from time import monotonic
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Ints

# Two values count as equal within this share of their size.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class SearchProgress:
    """State of a search, reported whenever one of its bounds improves.

    ``states`` are the incumbent's; ``evaluated`` says that ``lower`` is their exact value.
    """

    seconds: float
    lower: float
    upper: float
    phase: str
    states: Ints
    evaluated: bool


class Valued(NamedTuple):
    """Outputs and their value; an upper bound on it where they are not ``evaluated``."""

    states: Ints
    value: float
    evaluated: bool

    @property
    def threshold(self) -> float:
        """A bound of at most this leaves no room for better outputs."""
        if self.value == -np.inf:
            return self.value
        return self.value + TOLERANCE * max(1.0, abs(self.value))


class Incumbent:
    """Outputs that are replaced by better ones, and an upper bound on all outputs of an instance.

    ``output`` masks the variables that progress names, whose seconds count from ``began``.
    """

    def __init__(
        self, states: Ints, output: Bools, began: float, report: Callable[[SearchProgress], None] | None
    ) -> None:
        self.valued = Valued(states, -np.inf, False)
        self.upper = np.inf
        self.report = report
        self.closed = False
        self._output = output
        self._began = began
        self._highest_estimate = -np.inf  # highest estimate for outputs that could not be evaluated exactly
        self._lock = RLock()

    @property
    def proven(self) -> bool:
        valued = self.valued
        return valued.evaluated and self.upper <= valued.threshold

    def offer(self, candidate: Valued, phase: str) -> bool:
        """Take the outputs if they are better than those known, and say whether they are."""
        with self._lock:
            # An estimate, which is an upper bound, never replaces an exact value; nor is it forgotten.
            if not candidate.evaluated:
                self._highest_estimate = max(self._highest_estimate, candidate.value)
            known = self.valued
            better = (candidate.evaluated, candidate.value) > (known.evaluated, known.value)
            if self.closed or not better or candidate.value == -np.inf:
                return False
            self.valued = candidate
            self._report_progress(phase)
            return True

    def improve_upper(self, upper: float, phase: str) -> None:
        """Lower the upper bound to ``upper``, but not below the estimate of outputs that were never evaluated."""
        with self._lock:
            upper = max(upper, self._highest_estimate)
            if upper < self.upper and not self.closed:
                self.upper = upper
                self._report_progress(phase)

    def close(self) -> None:
        """Refuse all that threads still find after the end of the search."""
        with self._lock:
            self.closed = True

    def _report_progress(self, phase: str) -> None:
        if self.report is None:
            return
        valued = self.valued
        states = np.where(self._output, valued.states, -1)
        seconds = monotonic() - self._began
        self.report(SearchProgress(seconds, valued.value, self.upper, phase, states, valued.evaluated))

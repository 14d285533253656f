"""Means with standard errors, paired differences with confidence intervals, and the verdict on a claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student


@dataclass(frozen=True)
class Estimate:
    """A mean over trials, its standard error (nan for one trial) and a confidence interval."""

    mean: float
    se: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: ArrayLike, confidence: float = 0.95) -> Estimate:
        x = np.asarray(values, dtype=np.float64)
        mean = float(x.mean())
        if len(x) < 2:
            return cls(mean, float("nan"), -float("inf"), float("inf"), len(x))
        se = float(x.std(ddof=1)) / sqrt(len(x))
        half = float(student.ppf(0.5 + confidence / 2, len(x) - 1)) * se
        return cls(mean, se, mean - half, mean + half, len(x))

    @classmethod
    def paired(cls, first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Estimate:
        """first - second, trial by trial."""
        return cls.of(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64), confidence)

    def show(self, digits: int = 2, sign: bool = False) -> str:
        """Mean and standard error."""
        text = f"{self.mean:{'+' if sign else ''}.{digits}f}"
        return text if self.n < 2 else f"{text} ± {self.se:.{digits}f}"

    def interval(self, digits: int = 2) -> str:
        if self.n < 2:
            return f"{self.mean:+.{digits}f}"
        return f"{self.mean:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"

    def as_json(self) -> dict[str, float | int | None]:
        numbers = {"mean": self.mean, "se": self.se, "low": self.low, "high": self.high}
        return {k: v if np.isfinite(v) else None for k, v in numbers.items()} | {"n": self.n}


class Verdict(StrEnum):
    HOLDS = "holds"
    NOT_SHOWN = "not shown"
    CONTRADICTED = "contradicted"


def judge(differences: Iterable[Estimate], minimum: int) -> Verdict:
    """Differences are positive where the claim is right: all shown to be so, some shown not to be, or neither.

    An interval of fewer than ``minimum`` trials shows nothing: two trials may agree by chance.
    """
    found = list(differences)
    if any(d.high < 0 and d.n >= minimum for d in found):
        return Verdict.CONTRADICTED
    shown = bool(found) and all(d.low > 0 and d.n >= minimum for d in found)
    return Verdict.HOLDS if shown else Verdict.NOT_SHOWN


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The same rule over verdicts."""
    found = list(verdicts)
    if Verdict.CONTRADICTED in found:
        return Verdict.CONTRADICTED
    return Verdict.HOLDS if found and all(v is Verdict.HOLDS for v in found) else Verdict.NOT_SHOWN

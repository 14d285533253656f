"""Means with standard errors, paired differences with confidence intervals, and the direction and size of a claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
        plus = "+" if sign else ""
        text = f"{self.mean:{plus}.{digits}f}"
        if self.n < 2:
            return text
        return f"{text} ± {self.se:.{digits}f}"

    def interval(self, digits: int = 2) -> str:
        if self.n < 2:
            return f"{self.mean:+.{digits}f}"
        return f"{self.mean:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"

    def as_json(self) -> dict[str, float | int | None]:
        numbers = {"mean": self.mean, "se": self.se, "low": self.low, "high": self.high}
        return {k: v if np.isfinite(v) else None for k, v in numbers.items()} | {"n": self.n}


class Verdict(StrEnum):
    """The direction of a pooled difference."""

    CLAIMED = "as claimed"
    UNDECIDED = "undecided"
    OPPOSITE = "opposite"
    DEPENDS = "by reading"


@dataclass(frozen=True)
class Differences:
    """One comparison of a claim: a difference for every trial, positive if the claim is right."""

    label: str
    values: Mapping[int, float]


def pool(comparisons: Sequence[Differences], confidence: float) -> Estimate:
    """The mean of the comparisons' means, with errors clustered by trial.

    Comparisons share the draws of a trial, so only trials are independent: the standard error adds a trial's deviations
    over all comparisons before squaring.
    """
    deviation: dict[int, float] = defaultdict(float)
    means = [float(np.mean(list(comparison.values.values()))) for comparison in comparisons]
    for comparison, mean in zip(comparisons, means, strict=True):
        for trial, value in comparison.values.items():
            deviation[trial] += (value - mean) / (len(comparison.values) * len(comparisons))
    mean = float(np.mean(means))
    n = len(deviation)
    if n < 2:
        return Estimate(mean, float("nan"), -float("inf"), float("inf"), n)
    se = sqrt(sum(v * v for v in deviation.values()) * n / (n - 1))
    half = float(student.ppf(0.5 + confidence / 2, n - 1)) * se
    return Estimate(mean, se, mean - half, mean + half, n)


def judge(pooled: Estimate, minimum: int) -> Verdict:
    """The verdict on a pooled difference; fewer than ``minimum`` trials decide nothing, as they may agree by chance."""
    if pooled.n < minimum or pooled.low <= 0 <= pooled.high:
        return Verdict.UNDECIDED
    return Verdict.CLAIMED if pooled.mean > 0 else Verdict.OPPOSITE


def judge_each(comparisons: Sequence[Differences], confidence: float, minimum: int) -> list[Verdict]:
    """The verdict on every comparison by itself, with Holm's correction for their number."""
    estimates = [pool([comparison], confidence) for comparison in comparisons]
    p_values = [_p_value(estimate) if estimate.n >= minimum else 1.0 for estimate in estimates]
    verdicts = [Verdict.UNDECIDED] * len(comparisons)
    smallest_first = sorted(range(len(p_values)), key=lambda k: p_values[k])
    for rank, k in enumerate(smallest_first):
        if p_values[k] > (1 - confidence) / (len(p_values) - rank):
            break
        verdicts[k] = Verdict.CLAIMED if estimates[k].mean > 0 else Verdict.OPPOSITE
    return verdicts


def _p_value(estimate: Estimate) -> float:
    """Two-sided p-value of a difference of zero."""
    if estimate.se == 0:
        return float(estimate.mean == 0)
    return float(2 * student.sf(abs(estimate.mean) / estimate.se, estimate.n - 1))

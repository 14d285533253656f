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
    """Which way a pooled difference lies."""

    CLAIMED = "as claimed"
    UNDECIDED = "undecided"
    OPPOSITE = "opposite"


@dataclass(frozen=True)
class Differences:
    """One comparison of a claim: a difference for every trial, positive where the claim is right."""

    label: str
    values: Mapping[int, float]


def pool(found: Sequence[Differences], confidence: float) -> Estimate:
    """The mean of the comparisons' means. Comparisons share the draws of a trial, so trials are what varies: the
    standard error adds a trial's deviations over all comparisons before squaring (errors clustered by trial)."""
    deviation: dict[int, float] = defaultdict(float)
    means = [float(np.mean(list(d.values.values()))) for d in found]
    for d, mean in zip(found, means, strict=True):
        for trial, value in d.values.items():
            deviation[trial] += (value - mean) / (len(d.values) * len(found))
    mean = float(np.mean(means))
    n = len(deviation)
    if n < 2:
        return Estimate(mean, float("nan"), -float("inf"), float("inf"), n)
    se = sqrt(sum(v * v for v in deviation.values()) * n / (n - 1))
    half = float(student.ppf(0.5 + confidence / 2, n - 1)) * se
    return Estimate(mean, se, mean - half, mean + half, n)


def judge(pooled: Estimate, minimum: int) -> Verdict:
    """An interval of fewer than ``minimum`` trials shows nothing: two trials may agree by chance."""
    if pooled.n < minimum or pooled.low <= 0 <= pooled.high:
        return Verdict.UNDECIDED
    return Verdict.CLAIMED if pooled.mean > 0 else Verdict.OPPOSITE


def each(found: Sequence[Differences], confidence: float, minimum: int) -> list[Verdict]:
    """The verdict on every comparison by itself, with Holm's correction for their number."""
    estimates = [pool([d], confidence) for d in found]
    p = [_p_value(e) if e.n >= minimum else 1.0 for e in estimates]
    verdicts = [Verdict.UNDECIDED] * len(found)
    for rank, k in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[k] > (1 - confidence) / (len(p) - rank):
            break
        verdicts[k] = Verdict.CLAIMED if estimates[k].mean > 0 else Verdict.OPPOSITE
    return verdicts


def _p_value(e: Estimate) -> float:
    """Of a difference of zero, two-sided."""
    if e.se == 0:
        return float(e.mean == 0)
    return float(2 * student.sf(abs(e.mean) / e.se, e.n - 1))


def size(pooled: Estimate, paper: float) -> str:
    """How the effect found compares with the paper's."""
    if pooled.low <= paper <= pooled.high:
        return "of the paper's size"
    return "smaller" if pooled.mean < paper else "larger"

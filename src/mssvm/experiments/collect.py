"""Trials by their parameters, and the table cells, curves and claims that several experiments share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.statistics import Differences, Estimate, Verdict, judge, judge_each, pool
from mssvm.experiments.trials import Function, Trial, cross
from mssvm.report import Claim, Section, Series

PAPER_TRIALS = 20  # behind every figure of the paper's simulations
Value = Callable[[Mapping[str, Any]], float]
Comparisons = dict[str, list[Differences]]
"""By reading: differences that are positive if a claim is right."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure: its tasks, its trial function, its section of the report, and a reason to skip it."""

    name: str
    tasks: Callable[[Protocol], list[Params]]
    run: Function
    section: Callable[[Protocol, Trials], Section]
    skip: Callable[[Protocol], str] = lambda protocol: ""


def over(name: str, *axes: str) -> Callable[[Protocol], list[Params]]:
    """The tasks of an experiment: every trial with every value of the named parameters, listed as their plurals."""

    def tasks(protocol: Protocol) -> list[Params]:
        settings = protocol.settings(name)
        return cross(trial=range(protocol.n_trials(name)), **{axis: settings[f"{axis}s"] for axis in axes})

    return tasks


class Trials:
    """Finished trials, found by their parameters and always in the order of the trial numbers."""

    def __init__(self, trials: Iterable[Trial], confidence: float) -> None:
        self._all = sorted(trials, key=lambda t: int(t.params["trial"]))
        self.confidence = confidence

    def where(self, **wanted: Any) -> list[Trial]:
        """The trials with these parameters; None stands for a parameter that a trial does not have."""
        return [t for t in self._all if all(t.params.get(k) == v for k, v in wanted.items())]

    def present(self, name: str, values: Iterable[Any], **wanted: Any) -> list[Any]:
        """The values of a parameter for which there are trials; an interrupted run may lack some."""
        return [v for v in values if self.where(**{name: v}, **wanted)]

    def values(self, value: Value, **wanted: Any) -> Floats:
        """One number a trial."""
        return np.array([value(t.result) for t in self.where(**wanted)], dtype=np.float64)

    def estimate(self, value: Value, **wanted: Any) -> Estimate:
        return Estimate.of(self.values(value, **wanted), self.confidence)

    def difference(self, first: Value, second: Value, **wanted: Any) -> Estimate:
        """first - second, paired by trial."""
        return Estimate.paired(self.values(first, **wanted), self.values(second, **wanted), self.confidence)

    def compare(
        self, label: str, first: Value, second: Value, one: Mapping[str, Any], two: Mapping[str, Any] | None = None
    ) -> list[Differences]:
        """``first`` under the parameters ``one`` minus ``second`` under ``two`` (default: the same), trial by trial.

        Only trials that both have count; without any the list is empty.
        """
        minuend = self._by_trial(first, one)
        subtrahend = self._by_trial(second, one if two is None else two)
        differences = {k: minuend[k] - subtrahend[k] for k in minuend if k in subtrahend}
        return [Differences(label, differences)] if differences else []

    def _by_trial(self, value: Value, wanted: Mapping[str, Any]) -> dict[int, float]:
        return {trial.params["trial"]: value(trial.result) for trial in self.where(**wanted)}

    def gap(self, first: str, second: str, **wanted: Any) -> Estimate:
        """Difference of the accuracies of two members."""
        return self.difference(member_accuracy(first), member_accuracy(second), **wanted)

    def gaps(self, label: str, pairs: Iterable[tuple[str, str]], **wanted: Any) -> list[Differences]:
        """Labelled differences of accuracies of pairs of members; none if no trial has the parameters."""
        differences = []
        for one, other in pairs:
            name = f"{label}{NAMES[one]} - {NAMES[other]}"
            differences += self.compare(name, member_accuracy(one), member_accuracy(other), wanted)
        return differences


def at(*path: Any) -> Value:
    """The number of a result under nested keys."""

    def value(result: Any) -> float:
        for step in path:
            result = result[step]
        return float(result)

    return value


def member_accuracy(member: str) -> Value:
    return at(member, "accuracy")


def lead_over(member: str) -> Value:
    """MSSVM's accuracy minus the member's."""
    return lambda result: float(result["M"]["accuracy"] - result[member]["accuracy"])


def member_cells(trials: Trials, members: Sequence[str], **wanted: Any) -> list[str]:
    """Accuracy of every member, then MSSVM minus every other with its interval."""
    shown = [trials.estimate(member_accuracy(m), **wanted).show() for m in members]
    return shown + [trials.gap("M", m, **wanted).interval() for m in members if m != "M"]


def member_header(members: Sequence[str]) -> list[str]:
    return [NAMES[m] for m in members] + [f"MSSVM - {NAMES[m]}" for m in members if m != "M"]


def paper_cells(values: Sequence[float]) -> list[str]:
    """The paper's accuracies of the members, then MSSVM minus every other."""
    return [f"{v:.2f}" for v in values] + [f"{values[0] - v:+.2f}" for v in values[1:]]


def member_curves(members: Sequence[str], x: Sequence[float], y: Callable[[str], Sequence[Estimate]]) -> list[Series]:
    """The means of every member against ``x``; bars are standard errors, if there are several trials."""
    curves = []
    for style, member in enumerate(members):
        estimates = y(member)
        means = [estimate.mean for estimate in estimates]
        bars = [estimate.se if estimate.n > 1 else 0.0 for estimate in estimates]
        curves.append(Series(NAMES[member], list(x), means, bars, style))
    return curves


def comparisons(cells: Mapping[str, Iterable[Params]], of: Callable[[Params], list[Differences]]) -> Comparisons:
    """The differences that ``of`` computes for every cell, by reading."""
    by_reading: Comparisons = {}
    for reading, own_cells in cells.items():
        by_reading[reading] = [differences for cell in own_cells for differences in of(cell)]
    return by_reading


def claim(
    protocol: Protocol,
    number: str,
    text: str,
    place: str,
    by_reading: Comparisons,
    paper: float | None = None,
    unit: str = "points",
    paper_trials: int = PAPER_TRIALS,
) -> list[Claim]:
    """Judge a claim reading by reading, its differences pooled over solvers and settings, then each by itself with
    Holm's correction. Readings exclude each other, so nothing is pooled over them.

    ``paper`` is the paper's own figure for the difference, a mean of ``paper_trials`` (0: no such noise is known).
    Without any comparison the list is empty.
    """
    named = [(reading, one) for reading, differences in by_reading.items() for one in differences]
    everything = [one for _, one in named]
    if not everything:
        return []
    level = protocol.confidence
    minimum = protocol.minimum_trials
    verdicts = judge_each(everything, level, minimum)
    cells = ", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts)
    by_itself = {reading: pool(d, level) for reading, d in by_reading.items() if d}
    groups = [(f"{reading}, pooled", estimate.interval()) for reading, estimate in by_itself.items()]
    evidence = [
        (f"{reading}: {d.label}", f"{pool([d], level).interval()} {verdict}")
        for (reading, d), verdict in zip(named, verdicts, strict=True)
    ]
    directions = {judge(estimate, minimum) for estimate in by_itself.values()}
    direction = directions.pop() if len(directions) == 1 else Verdict.DEPENDS
    effect = "; ".join(f"{reading} {estimate.interval()}" for reading, estimate in by_itself.items())
    compared = "" if paper is None else f"{paper:+.2f}"
    if paper is not None and paper_trials:
        shown = [f"{z_score(e, paper, paper_trials):+.1f}" for e in by_itself.values() if e.n > 1]
        compared += f"; z\u00a0{', '.join(shown)}" if shown else ""
    return [Claim(number, text, place, direction, effect, compared, cells, groups, evidence, unit)]


def z_score(ours: Estimate, paper: float, paper_trials: int = PAPER_TRIALS) -> float:
    """Our mean less the paper's in standard errors of both; the paper's spread over trials is taken to be ours.

    It is nan where our trials have no spread.
    """
    error = ours.se * sqrt(1 + ours.n / paper_trials)
    return (ours.mean - paper) / error if error > 0 else nan

"""Looking up trials, and tables, curves and claims that several experiments share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.statistics import Differences, Estimate, Verdict, each, judge, pool, size
from mssvm.experiments.trials import Function, Trial, cross
from mssvm.report import Claim, Section, Series

Value = Callable[[Mapping[str, Any]], float]
Comparisons = dict[str, list[Differences]]
"""By reading: differences that are positive where a claim is right."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure: its tasks, one trial of it, what it says in the report, and why it cannot run, if so."""

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
        return [t for t in self._all if all(t.params.get(k) == v for k, v in wanted.items())]

    def present(self, name: str, values: Iterable[Any], **wanted: Any) -> list[Any]:
        """Those of the values that some trial has for a parameter; a run may have been cut short."""
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
        """The first value under ``one`` less the second under ``two`` (or the same), over the trials that both have;
        nothing without any."""
        under = ((first, one), (second, one if two is None else two))
        ours, theirs = ({t.params["trial"]: v(t.result) for t in self.where(**w)} for v, w in under)
        both = {k: ours[k] - theirs[k] for k in ours if k in theirs}
        return [Differences(label, both)] if both else []

    def gap(self, first: str, second: str, **wanted: Any) -> Estimate:
        """Difference of the accuracies of two members."""
        return self.difference(member_accuracy(first), member_accuracy(second), **wanted)

    def gaps(self, label: str, pairs: Iterable[tuple[str, str]], **wanted: Any) -> list[Differences]:
        """Labelled differences of accuracies; none where no trial fits."""
        named = [(f"{label}{NAMES[a]} - {NAMES[b]}", a, b) for a, b in pairs]
        return [d for n, a, b in named for d in self.compare(n, member_accuracy(a), member_accuracy(b), wanted)]


def at(*path: Any) -> Value:
    """The number that lies at the end of the given keys of a result."""

    def value(result: Any) -> float:
        for step in path:
            result = result[step]
        return float(result)

    return value


def member_accuracy(member: str) -> Value:
    return at(member, "accuracy")


def lead_over(member: str) -> Value:
    """MSSVM's accuracy less the member's."""
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
    """The means of every member against ``x``; bars are standard errors where there are any."""
    found = {m: y(m) for m in members}
    bars = {m: [e.se if e.n > 1 else 0.0 for e in estimates] for m, estimates in found.items()}
    return [Series(NAMES[m], list(x), [e.mean for e in found[m]], bars[m], k) for k, m in enumerate(members)]


def comparisons(cells: Mapping[str, Iterable[Params]], of: Callable[[Params], list[Differences]]) -> Comparisons:
    """What ``of`` compares in every cell, by reading."""
    return {reading: [d for cell in found for d in of(cell)] for reading, found in cells.items()}


def claim(
    protocol: Protocol, number: str, text: str, place: str, by_reading: Comparisons, paper: float | None = None
) -> list[Claim]:
    """Judge a claim by its differences pooled over all readings, then by reading, then each by itself with Holm's
    correction; ``paper`` is the paper's own figure for the pooled difference. No claim without any comparison."""
    named = [(reading, d) for reading, differences in by_reading.items() for d in differences]
    found = [d for _, d in named]
    if not found:
        return []
    level = protocol.confidence
    minimum = protocol.minimum_trials
    pooled = pool(found, level)
    verdicts = each(found, level, minimum)
    cells = ", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts)
    groups = [(f"{reading}, pooled", pool(d, level).interval()) for reading, d in by_reading.items() if d]
    evidence = [
        (f"{reading}: {d.label}", f"{pool([d], level).interval()} {verdict}")
        for (reading, d), verdict in zip(named, verdicts, strict=True)
    ]
    direction = judge(pooled, minimum)
    compared = "" if paper is None else f"{paper:+.2f} ({size(pooled, paper)})"
    return [Claim(number, text, place, direction, pooled.interval(), compared, cells, groups, evidence)]

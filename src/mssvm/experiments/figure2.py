"""Figure 2: convergence of Algorithm 1 at several rates, and the inference calls that other solvers need instead."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments.collect import Experiment, Trials, Value, claim
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.optim import Row, Subgradient
from mssvm.report import Claim, Figure, Section, Series, Table, Text, line_chart

NAME = "figure2"
TAIL = 100  # last steps, over which oscillation is measured
NEVER = 2.0  # a solver that misses the target is counted with twice the calls it used


def tasks(protocol: Protocol) -> list[Params]:
    readings = protocol.settings(NAME)["readings"]
    return [{"reading": r, "trial": t} for t in range(protocol.n_trials(NAME)) for r in readings]


def run(protocol: Protocol, params: Params) -> Result:
    """Traces of Algorithm 1 for every member and rate, and the calls of other solvers to its last objective + 1%."""
    settings = protocol.settings(NAME)
    arena = protocol.chain(NAME, params)
    result: Result = {}
    for member in settings["members"]:
        mine: Result = {"rates": {}, "calls": {}}
        for rate in settings["rates"]:
            trace = arena.train(member, Subgradient.literal(rate, settings["steps"])).trace
            objective = np.array([row.objective for row in trace])
            mine["rates"][f"{rate:g}"] = _describe(objective, settings)
            if rate == settings["paper_rate"][member]:
                target = 1.01 * float(objective[-1])
                mine["calls"]["SGD"] = _calls_to(trace, target)
        for name in settings["call_solvers"]:
            trace = arena.train(member, protocol.solver("chain", name, member)).trace
            mine["calls"][name] = _calls_to(trace, target)
        result[member] = mine
    return result


def _describe(objective: Floats, settings: dict[str, Any]) -> Result:
    """The step from which the objective stays within 5% of its last value, the first such step, and oscillation."""
    final = float(objective[-1])
    outside = np.flatnonzero(np.abs(objective - final) > settings["within"] * abs(final))
    inside = np.flatnonzero(objective <= (1 + settings["within"]) * final)
    moves = np.abs(np.diff(objective[-TAIL:])) / final
    return {
        "curve": [float(f"{v:.6g}") for v in objective[:: settings["every"]]],
        "final": final,
        "stays": int(outside[-1]) + 1 if len(outside) else 0,
        "first": int(inside[0]),
        "oscillation": float(moves.mean()),
    }


def _calls_to(trace: Sequence[Row], target: float) -> float:
    """Inference calls when the objective of the member itself, not of a smoothed one, first fell to the target."""
    last = trace[-1]
    for row in trace:
        if row.objective <= target and (row.eps_y, row.eps_h) == (last.eps_y, last.eps_h):
            return float(row.plus_calls + row.minus_calls)
    return NEVER * (last.plus_calls + last.minus_calls)


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    settings |= {"readings": trials.present("reading", settings["readings"])}
    charts = [_chart(settings, trials, r, rate) for r in settings["readings"] for rate in settings["rates"]]
    intro = Text(
        "The objective during Algorithm 1 (full batch, fixed rate) from the same random weights, each curve divided by "
        "the lowest value any rate reached for that member in that trial; means over trials. 'Within 5%' is the median "
        "first step at which the objective is within 5% of its last value; oscillation is the mean absolute change a "
        f"step over the last {TAIL} steps, as a share of the objective."
    )
    items: list[Text | Table | Figure] = [
        intro,
        Figure("Objective against steps", charts),
        _rates(settings, trials),
        _calls(settings, trials),
    ]
    return Section(NAME, "Figure 2: convergence", items, claims(protocol, trials))


def _chart(settings: dict[str, Any], trials: Trials, reading: str, rate: float) -> str:
    steps = [float(k) for k in range(0, settings["steps"] + 1, settings["every"])]
    series = []
    for style, m in enumerate(settings["members"]):
        curves = [
            np.array(t.result[m]["rates"][f"{rate:g}"]["curve"]) / _lowest(t.result[m])
            for t in trials.where(reading=reading)
        ]
        series.append(Series(NAMES[m], steps, list(np.mean(curves, axis=0)), None, style))
    return line_chart(f"Reading {reading}, rate {rate:g}", "steps", "objective / lowest", series, log_y=True)


def _lowest(result: Any) -> float:
    return float(min(min(found["curve"]) for found in result["rates"].values()))


def _relative(member: str, rate: float) -> Value:
    return lambda result: _field(member, rate, "final")(result) / _lowest(result[member])


def _rates(settings: dict[str, Any], trials: Trials) -> Table:
    rows = []
    for reading in settings["readings"]:
        for m in settings["members"]:
            for rate in settings["rates"]:
                first = trials.values(_field(m, rate, "first"), reading=reading)
                wobble = trials.values(_field(m, rate, "oscillation"), reading=reading)
                final = trials.values(_relative(m, rate), reading=reading)
                figures = [f"{np.median(first):g}", f"{100 * wobble.mean():.3f}", f"{final.mean():.3f}"]
                rows.append([reading, NAMES[m], f"{rate:g}", *figures])
    header = ["reading", "member", "rate", "within 5% (steps)", "oscillation (%)", "last / lowest"]
    return Table(
        "Algorithm 1 at several rates",
        header,
        rows,
        "Paper: MSSVM within 50 steps at 0.02, LSSVM usually after 250 at 0.001.",
        2,
    )


def _calls(settings: dict[str, Any], trials: Trials) -> Table:
    solvers = ["SGD", *settings["call_solvers"]]
    rows = [
        [reading, NAMES[m], *[f"{np.median(trials.values(_calls_of(m, s), reading=reading)):.0f}" for s in solvers]]
        for reading in settings["readings"]
        for m in settings["members"]
    ]
    note = "One call is one inference for one instance. A solver that misses the target counts with twice its calls."
    title = "Median inference calls to the last objective of Algorithm 1 at the paper's rate, + 1%"
    return Table(title, ["reading", "member", *solvers], rows, note, 2)


def _field(member: str, rate: float, name: str) -> Value:
    return lambda result: float(result[member]["rates"][f"{rate:g}"][name])


def _calls_of(member: str, solver: str) -> Value:
    return lambda result: float(result[member]["calls"][solver])


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    rate = settings["paper_rate"]
    need: dict[str, list[tuple[str, Estimate]]] = {}
    calls: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in settings["readings"]:
        if not trials.where(reading=reading):
            continue
        slow, fast = _field("L", rate["L"], "first"), _field("M", rate["M"], "first")
        large, small = _field("L", rate["M"], "final"), _field("L", rate["L"], "final")
        need[reading] = [
            (f"steps, LSSVM at {rate['L']:g} - MSSVM at {rate['M']:g}", trials.difference(slow, fast, reading=reading)),
            (
                f"last objective of LSSVM, at {rate['M']:g} - at {rate['L']:g}",
                trials.difference(large, small, reading=reading),
            ),
        ]
        calls[reading] = [
            (
                f"{NAMES[m]}, log10 of calls, SGD - CCCP",
                trials.difference(_log(m, "SGD"), _log(m, "paper CCCP"), reading=reading),
            )
            for m in settings["members"]
        ]
    return [
        claim(protocol, 3, "LSSVM needs the rate 0.001 and more steps than MSSVM needs at 0.02.", need),
        claim(protocol, 4, "CCCP needs fewer inference calls than SGD.", calls),
    ]


def _log(member: str, solver: str) -> Value:
    return lambda result: log10(max(_calls_of(member, solver)(result), 1.0))


EXPERIMENT = Experiment(NAME, tasks, run, section)

"""The cost of belief propagation in accuracy: exact inference and propagation side by side on the grid (claim 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.experiments.collect import Comparisons, Experiment, Trials, Value, at, claim
from mssvm.experiments.members import NAMES, Untrained
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Figure, Section, Table, Text

NAME = "approximation"


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    trials = range(protocol.n_trials(NAME))
    axes = {"reading": settings["readings"], "inference": settings["inferences"]}
    return cross(graph=[settings["graph"]], trial=trials, **axes)


def run(protocol: Protocol, params: Params) -> Result:
    """Every member trained and decoded by one inference; the objective found is evaluated exactly as well."""
    settings = protocol.settings(NAME)
    exact = protocol.arena(NAME, params)
    propagation = params["inference"] == "propagation"
    arena = exact
    if propagation:
        arena = replace(exact, inference=protocol.inference(settings["effort"]))
    result: Result = {}
    for member, fitted in protocol.train(NAME, arena, settings["solver"], settings["graph"]):
        same_weights = exact.fit(member, Untrained(), init=fitted.coef_)
        history = fitted.history_
        objective = history["objective"]
        result[member] = {
            "accuracy": arena.accuracy(fitted),
            "exactly decoded": exact.accuracy(same_weights),
            "objective": float(same_weights.objective_),
            "believed": float(fitted.objective_),
            "last change": float(abs(objective[-1] - objective[-2]) / abs(objective[-1])),
            "rises": int(np.sum(np.diff(objective) > 1e-9 * np.abs(objective[1:]))),
            "converged": float(np.nanmean(history["converged"])),
            "rescued": int(history["floored"][-1]),
        }
    return result


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    axes = {"reading": settings["readings"], "member": settings["members"], "inference": settings["inferences"]}
    rows = [row for cell in cross(**axes) for row in _row(trials, **cell)]
    header = ["reading", "member", "inference", "trials", "accuracy", "the same decoded exactly", "objective"]
    header += ["believed", "last outer change (%)", "rises", "calls converged (%)"]
    intro = Text(
        "The 6x6 grid with the paper's CCCP (fixed steps), once with exact inference and once with belief propagation "
        "in training and decoding. 'Objective' is evaluated exactly at the weights found; 'believed' is what the "
        "inference of the row made of it. 'Rises' counts outer steps that raised the objective."
    )
    table = Table("Exact inference and propagation", header, rows, n_labels=3)
    items: list[Text | Table | Figure] = [intro, table, _times(settings, trials)]
    return Section(NAME, "Approximate inference: what it costs", items, claims(protocol, trials))


def _times(settings: Params, trials: Trials) -> Text:
    present = trials.present("inference", settings["inferences"])
    medians = [f"{name} {np.median([t.seconds for t in trials.where(inference=name)]):.1f} s" for name in present]
    return Text(f"Median time of a trial, all members together: {', '.join(medians)}.")


def _row(trials: Trials, member: str, **where: Any) -> list[list[str]]:
    if not trials.where(**where):
        return []
    names = ("accuracy", "exactly decoded", "objective", "believed")
    shown = [trials.estimate(at(member, name), **where).show() for name in names]
    means = {k: trials.estimate(at(member, k), **where).mean for k in ("last change", "rises", "converged")}
    tail = [f"{100 * means['last change']:.3f}", f"{means['rises']:.1f}", f"{100 * means['converged']:.1f}"]
    n = str(len(trials.where(**where)))
    return [[where["reading"], NAMES[member], where["inference"], n, *shown, *tail]]


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    """Both definitions: 10a was fixed before the trials; 10b, after them, takes exact inference as the baseline, with
    which the objective still changes after a fixed number of steps, too."""
    settings = protocol.settings(NAME)
    limit = float(settings["settled"])
    percent = f"{100 * limit:g}"
    itself: Comparisons = {}
    beside: Comparisons = {}
    for reading in trials.present("reading", settings["readings"]):
        exact, propagation = cross(reading=[reading], inference=["exact", "propagation"])
        itself[reading] = []
        beside[reading] = []
        for m in settings["members"]:
            change = _last_change(m)
            own = f"{NAMES[m]}: {percent} - last outer change in %, propagation"
            itself[reading] += trials.compare(own, lambda _: 100 * limit, change, propagation)
            label = f"{NAMES[m]}: last outer change in %, exact + {percent} - propagation"
            beside[reading] += trials.compare(label, _last_change(m, plus=limit), change, exact, propagation)
    first = f"With propagation CCCP comes to rest: its last outer step changes the objective by less than {percent}%."
    later = f"CCCP with propagation comes as much to rest as with exact inference, to {percent}% (defined later)."
    unit = "% of the objective"
    return [
        *claim(protocol, "10a", first, "Section 7.1", itself, unit=unit),
        *claim(protocol, "10b", later, "Section 7.1", beside, unit=unit),
    ]


def _last_change(member: str, plus: float = 0.0) -> Value:
    """The last relative change of the objective plus a constant, in per cent."""
    last_change = at(member, "last change")
    return lambda result: 100 * (last_change(result) + plus)


EXPERIMENT = Experiment(NAME, tasks, run, section)

"""What belief propagation costs: exact inference and propagation beside each other on the grid (claim 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.experiments.collect import Experiment, Trials, Value, claim
from mssvm.experiments.members import NAMES, UNIFIED, Arena
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.inference.propagation.propagate import Propagate
from mssvm.optim import Regulariser
from mssvm.report import Claim, Figure, Section, Table, Text

NAME = "approximation"


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    return [
        {"graph": settings["graph"], "inference": inference, "reading": reading, "trial": trial}
        for trial in range(protocol.n_trials(NAME))
        for reading in settings["readings"]
        for inference in settings["inferences"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Every member trained and decoded by one inference; the objective found is evaluated exactly as well."""
    settings = protocol.settings(NAME)
    exact = protocol.grid(NAME, params)
    approximate = Propagate(effort=settings["effort"])
    arena = replace(exact, inference=approximate) if params["inference"] == "propagation" else exact
    result: Result = {}
    for member in settings["members"]:
        solution = arena.train(member, protocol.solver("grid", settings["solver"], member))
        objective = solution.column("objective")
        result[member] = {
            "accuracy": arena.accuracy(member, solution.w),
            "exactly decoded": exact.accuracy(member, solution.w),
            "objective": _objective(exact, member, solution.w),
            "believed": solution.objective,
            "last change": float(abs(objective[-1] - objective[-2]) / abs(objective[-1])),
            "rises": int(np.sum(np.diff(objective) > 1e-9 * np.abs(objective[1:]))),
            "converged": float(np.nanmean(solution.column("converged"))),
            "rescued": solution.trace[-1].floored,
        }
    return result


def _objective(arena: Arena, member: str, w: Any) -> float:
    return Regulariser().value(w) + arena.problem(UNIFIED[member]()).difference(w).total


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    rows = []
    for reading in trials.present("reading", settings["readings"]):
        for m in settings["members"]:
            for inference in settings["inferences"]:
                rows += _row(trials, m, reading=reading, inference=inference)
    header = ["reading", "member", "inference", "accuracy", "the same decoded exactly", "objective", "believed"]
    header += ["last outer change (%)", "rises", "calls converged (%)"]
    intro = Text(
        "The 6x6 grid with the paper's CCCP (fixed steps), once with exact inference and once with belief propagation "
        "in training and decoding. 'Objective' is evaluated exactly at the weights found; 'believed' is what the "
        "inference of the row made of it. 'Rises' counts outer steps that raised the objective."
    )
    table = Table("Exact inference and propagation", header, rows, n_labels=3)
    items: list[Text | Table | Figure] = [intro, table, _times(settings, trials)]
    return Section(NAME, "Approximate inference: what it costs", items, claims(protocol, trials))


def _times(settings: dict[str, Any], trials: Trials) -> Text:
    present = trials.present("inference", settings["inferences"])
    medians = [f"{name} {np.median([t.seconds for t in trials.where(inference=name)]):.1f} s" for name in present]
    return Text(f"Median time of a trial, all members together: {', '.join(medians)}.")


def _row(trials: Trials, member: str, **where: Any) -> list[list[str]]:
    if not trials.where(**where):
        return []
    names = ("accuracy", "exactly decoded", "objective", "believed")
    shown = [trials.estimate(_field(member, name), **where).show() for name in names]
    change = 100 * trials.estimate(_field(member, "last change"), **where).mean
    rises = trials.estimate(_field(member, "rises"), **where).mean
    converged = 100 * trials.estimate(_field(member, "converged"), **where).mean
    tail = [f"{change:.3f}", f"{rises:.1f}", f"{converged:.1f}"]
    return [[where["reading"], NAMES[member], where["inference"], *shown, *tail]]


def _field(member: str, name: str) -> Value:
    return lambda result: float(result[member][name])


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    limit = float(settings["settled"])
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in trials.present("reading", settings["readings"]):
        where = {"reading": reading, "inference": "propagation"}
        changes = {m: trials.values(_field(m, "last change"), **where) for m in settings["members"]}
        found[reading] = [
            (
                f"{NAMES[m]}: {100 * limit:g}% - last outer change in %",
                Estimate.of(100 * (limit - c), trials.confidence),
            )
            for m, c in changes.items()
            if len(c)
        ]
    return [claim(protocol, 10, "CCCP converges with belief propagation.", found)]


EXPERIMENT = Experiment(NAME, tasks, run, section)

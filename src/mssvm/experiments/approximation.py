"""What belief propagation costs: exact inference and propagation beside each other on the grid (claim 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.experiments.collect import Experiment, Trials, at, claim
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
    arena = replace(exact, inference=protocol.inference(settings["effort"])) if propagation else exact
    result: Result = {}
    for member, fitted in protocol.train(NAME, arena, settings["solver"], settings["graph"]):
        again = exact.fit(member, Untrained(), init=fitted.coef_)
        history = fitted.history_
        objective = history["objective"]
        result[member] = {
            "accuracy": arena.accuracy(fitted),
            "exactly decoded": exact.accuracy(again),
            "objective": float(again.objective_),
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
    """Fixed steps leave a last change with exact inference too, so propagation is held to that."""
    settings = protocol.settings(NAME)
    limit = float(settings["settled"])
    found = {}
    for reading in trials.present("reading", settings["readings"]):
        exact, propagation = cross(reading=[reading], inference=["exact", "propagation"])
        found[reading] = [
            d
            for m in settings["members"]
            for d in trials.compare(
                f"{NAMES[m]}: last outer change in %, exact + {100 * limit:g} - propagation",
                lambda r, m=m: 100 * (at(m, "last change")(r) + limit),  # type: ignore[misc]
                lambda r, m=m: 100 * at(m, "last change")(r),  # type: ignore[misc]
                exact,
                propagation,
            )
        ]
    text = f"CCCP with propagation comes as much to rest as with exact inference, to {100 * limit:g}%."
    return claim(protocol, "10", text, "Section 7.1", found)


EXPERIMENT = Experiment(NAME, tasks, run, section)

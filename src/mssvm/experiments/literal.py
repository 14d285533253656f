"""The paper to the letter: zero initial weights, propagation, printed rates and stopping test, beside Table 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.experiments.collect import Experiment, Trials, member_cells, member_header
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.trials import Params, Result
from mssvm.inference.propagation.propagate import Propagate
from mssvm.report import Section, Table, Text

NAME = "literal"


def tasks(protocol: Protocol) -> list[Params]:
    """Every variant, reading and trial; a variant's settings are part of its tasks."""
    settings = protocol.settings(NAME)
    return [
        {**variant, "reading": reading, "trial": trial}
        for variant in settings["variants"]
        for trial in range(protocol.n_trials(NAME))
        for reading in settings["readings"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy and objective of every member on the hidden chain."""
    settings = protocol.settings(NAME)
    arena = protocol.chain(NAME, params)
    if params["start"] == "zero":
        arena = replace(arena, w0=np.zeros_like(arena.w0))
    if params["inference"] == "propagation":
        arena = replace(arena, inference=Propagate(effort=settings["effort"]))
    result: Result = {}
    for member in settings["members"]:
        solution = arena.train(member, protocol.solver("chain", params["solver"], member))
        calls = solution.trace[-1].plus_calls + solution.trace[-1].minus_calls
        result[member] = {
            "accuracy": arena.accuracy(member, solution.w), "objective": solution.objective, "calls": calls
        }  # fmt: skip
    return result


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    intro = Text(
        "The hidden chain of Table 2 with what the text leaves open varied one at a time, and at last all of it as "
        "printed. All zeros are a saddle point: hidden states that start equal stay equal under MSSVM and HCRF, "
        "while LSSVM's argmax breaks the tie. 'Paper's steps' stops MSSVM and HCRF after 50 steps, where the paper "
        "calls MSSVM converged, and LSSVM after 250. The printed stopping test looks at the gradient of the loss "
        "alone, which does not vanish at a minimum, so it never ends an inner loop; the corrected one adds w."
    )
    header = ["reading", "variant", "start", "inference", "trials", *member_header(settings["members"])]
    table = Table("Readings of the training procedure", header, _rows(settings, trials), n_labels=4)
    return Section(NAME, "To the letter: initial weights, steps and stopping tests", [intro, table], [])


def _rows(settings: dict[str, Any], trials: Trials) -> list[list[str]]:
    rows = []
    for reading in trials.present("reading", settings["readings"]):
        for variant in settings["variants"]:
            where = {**variant, "reading": reading}
            found = trials.where(**where)
            if found:
                cells = member_cells(trials, settings["members"], **where)
                label = [reading, variant["variant"], variant["start"], variant["inference"]]
                rows.append([*label, str(len(found)), *cells])
    return rows


EXPERIMENT = Experiment(NAME, tasks, run, section)

"""The paper to the letter: zero initial weights, propagation, printed rates and stopping test, as in Table 2."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mssvm.experiments.collect import Experiment, Trials, member_cells, member_header
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Result, cross
from mssvm.report import Section, Table, Text

NAME = "literal"


def tasks(protocol: Protocol) -> list[Params]:
    """Every variant, reading and trial; the settings of a variant are parameters of its tasks."""
    settings = protocol.settings(NAME)
    trials = range(protocol.n_trials(NAME))
    both = cross(trial=trials, reading=settings["readings"])
    return [{**variant, **params} for variant in settings["variants"] for params in both]


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy and objective of every member on the hidden chain."""
    arena = protocol.arena(NAME, params)
    if params["start"] == "zero":
        arena = replace(arena, w0=np.zeros_like(arena.w0))
    if params["inference"] == "propagation":
        arena = replace(arena, inference=protocol.inference(protocol.settings(NAME)["effort"]))
    trained = protocol.train(NAME, arena, params["solver"])
    return {m: arena.report(fitted, "accuracy", "objective", "calls") for m, fitted in trained}


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    rows = []
    intro = Text(
        "The hidden chain of Table 2 with its start, steps or rates changed one at a time, and at last the whole "
        "procedure as printed. Algorithms 1 and 2 print the start w = 0, which is a saddle point: hidden states that "
        "start equal stay equal under MSSVM and HCRF, while LSSVM's argmax breaks the tie. 'Paper's steps' stops "
        "MSSVM and HCRF after 50 steps, where the paper calls MSSVM converged, and LSSVM after 250. The printed "
        "stopping test looks at the gradient of the loss alone, which does not vanish at a minimum, so it never ends "
        "an inner loop; the corrected one adds w."
    )
    for reading in settings["readings"]:
        for variant in settings["variants"]:
            where = {**variant, "reading": reading}
            n = len(trials.where(**where))
            if n:
                label = [reading, variant["variant"], variant["start"], variant["inference"], str(n)]
                rows.append([*label, *member_cells(trials, settings["members"], **where)])
    header = ["reading", "variant", "start", "inference", "trials", *member_header(settings["members"])]
    table = Table("Readings of the training procedure", header, rows, n_labels=4)
    return Section(NAME, "To the letter: initial weights, steps and stopping tests", [intro, table], [])


EXPERIMENT = Experiment(NAME, tasks, run, section)

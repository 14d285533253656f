"""The size of the initial weights: Tables 2 and 3 from starts of several scales.

The paper's Algorithms 1 and 2 print w = 0, from which its table does not follow (``literal``); here the start is
random, of several scales. After ``n`` steps of rate ``r`` the weights of Algorithm 1 still contain (1 - r)^n times the
start: 78% for LSSVM (0.001, 250 steps), 5% for MSSVM (0.02, 150 steps). So LSSVM is also run for 5,000 steps and at
MSSVM's rate, and every member to the end by L-BFGS.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from mssvm.experiments.collect import (
    Comparisons,
    Experiment,
    Trials,
    at,
    claim,
    lead_over,
    member_cells,
    member_header,
)
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.table2 import TITLES
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Section, Table, Text

NAME = "start"


def tasks(protocol: Protocol) -> list[Params]:
    """Trial by trial, so that a run cut short has as many of every cell; a trial's data are the same at all scales."""
    settings = protocol.settings(NAME)
    further = settings["further"]
    common = {"reading": settings["readings"], "scale": settings["scales"]}
    sigmas = {
        "trial": range(protocol.n_trials(NAME, "sigma_h")),
        "graph": ["chain"],
        "sigma_h": settings["sigma_hs"],
    }
    out = [*_table2(protocol, settings["solvers"], common), *cross(**sigmas, **common)]
    if further:
        out += _table2(protocol, further["solvers"], common | {"reading": further["readings"]})
        where = {"reading": further["sigma_readings"], "scale": further["sigma_scales"]}
        out += cross(**sigmas, **where, solver=further["sigma_solvers"])
    return out


def _table2(protocol: Protocol, solvers: dict[str, list[str]], common: dict[str, Any]) -> list[Params]:
    """Table 2 from several starts."""
    return [
        task
        for graph, names in solvers.items()
        for task in cross(trial=range(protocol.n_trials(NAME, graph)), graph=[graph], solver=names, **common)
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy and objective of every member, and the share of the initial weights that is left in the last ones."""
    settings = protocol.settings(NAME)
    members = settings["members"]
    changes = {}
    if "sigma_h" in params:
        members = [*members, *settings["baselines"]]
        changes = {"sigma_h": params["sigma_h"]}
    arena = protocol.arena(NAME, params, **changes)
    result: Result = {"bayes": arena.bayes()}
    for member in members:
        solver = protocol.solver(params["graph"], params.get("solver", settings["solver"]), member)
        fitted = arena.fit(member, solver)
        left = float(fitted.coef_ @ arena.w0 / (arena.w0 @ arena.w0))
        result[member] = arena.report(fitted, "accuracy", "objective") | {"left": left}
    return result


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    intro = Text(
        "Initial weights are scale x N(0, I), the same draws at every scale and for every member of a trial; data, C "
        "and inference are those of Table 2. 'Start left' is the coefficient of the initial weights in the last ones "
        "(their scalar product over the squared length of the start)."
    )
    tables = [*(_solvers(settings, trials, graph) for graph in settings["solvers"]), _sigmas(settings, trials)]
    return Section(NAME, "The size of the initial weights", [intro, *tables], claims(protocol, trials))


def _solvers(settings: Params, trials: Trials, graph: str) -> Table:
    rows = []
    axes = {"reading": settings["readings"], "solver": settings["solvers"][graph], "scale": settings["scales"]}
    for where in cross(graph=[graph], **axes):
        n = len(trials.where(**where))
        if n:
            left = " / ".join(f"{trials.estimate(at(m, 'left'), **where).mean:.2f}" for m in settings["members"])
            label = [where["reading"], where["solver"], f"{where['scale']:g}", str(n)]
            rows.append([*label, *member_cells(trials, settings["members"], **where), left])
    header = ["reading", "solver", "scale", "trials", *member_header(settings["members"]), "start left (M / L / H)"]
    return Table(TITLES[graph], header, rows, "± is the standard error; brackets are 95% intervals.", 3)


def _sigmas(settings: Params, trials: Trials) -> Table:
    members: list[Any] = [*settings["members"], *settings["baselines"]]
    rows = []
    for where in cross(reading=settings["readings"], scale=settings["scales"], sigma_h=settings["sigma_hs"]):
        n = len(trials.where(**where))
        if n:
            label = [where["reading"], f"{where['scale']:g}", f"{where['sigma_h']:g}", str(n)]
            rows.append([*label, *member_cells(trials, members, **where)])
    header = ["reading", "scale", "sigma_h", "trials", *member_header(members)]
    return Table("Table 3 from starts of several scales, L-BFGS", header, rows, n_labels=3)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    """Two hypotheses, written down before the trials: where the paper's gap comes from, and what ends it."""
    settings = protocol.settings(NAME)
    lead = lead_over("L")
    small = min(settings["scales"])
    large = max(settings["scales"])
    grows: Comparisons = {reading: [] for reading in settings["readings"]}
    ends: Comparisons = {reading: [] for reading in settings["readings"]}
    for reading, graph in product(settings["readings"], settings["solvers"]):
        sgd = {"reading": reading, "graph": graph, "solver": "SGD", "scale": large}
        label = f"{graph}, scale {large:g} - {small:g}"
        grows[reading] += trials.compare(label, lead, lead, sgd, sgd | {"scale": small})
        for other in settings["solvers"][graph][2:]:
            ends[reading] += trials.compare(f"{graph}, SGD - {other}", lead, lead, sgd, sgd | {"solver": other})
    text = "Beyond the paper: MSSVM's lead over LSSVM by SGD grows with the initial weights."
    finished = f"Beyond the paper: from a start of scale {large:g} that lead is smaller where training is finished."
    return [*claim(protocol, "12", text, "", grows), *claim(protocol, "13", finished, "", ends)]


EXPERIMENT = Experiment(NAME, tasks, run, section)

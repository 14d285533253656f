"""Table 3: the members, M3E and ModLat as the hidden variables' own weights shrink (sigma_h from 10 to 0.001)."""

from __future__ import annotations

import numpy as np

from mssvm.experiments.collect import Experiment, Trials, claim, lead_over, member_cells, member_header
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.report import Claim, Section, Table, Text

NAME = "table3"
PAPER = {
    10.0: (79.30, 79.46, 78.68, 79.04, 77.16),
    1.0: (70.00, 70.07, 69.88, 68.53, 67.91),
    0.5: (67.24, 65.98, 66.66, 66.05, 65.15),
    0.1: (69.63, 67.91, 69.03, 65.19, 67.96),
    0.01: (73.88, 71.38, 72.58, 67.21, 71.52),
    0.001: (72.08, 69.24, 70.88, 65.48, 66.54),
}


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    return [
        {"reading": reading, "sigma_h": sigma_h, "trial": trial}
        for trial in range(protocol.n_trials(NAME))
        for reading in settings["readings"]
        for sigma_h in settings["sigma_hs"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy of every member; the standard normals behind the weights are the same for every sigma_h of a trial."""
    arena = protocol.chain(NAME, params, sigma_h=params["sigma_h"])
    settings = protocol.settings(NAME)
    result: Result = {"bayes": arena.bayes()}
    for member in settings["members"]:
        solution = arena.train(member, protocol.solver("chain", settings["solver"], member))
        result[member] = {"accuracy": arena.accuracy(member, solution.w), "objective": solution.objective}
    return result


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    members = settings["members"]
    readings = trials.present("reading", settings["readings"])
    tables = [
        t for r in readings for t in _tables(f"Reading {r}", _rows(trials, r, settings["sigma_hs"], members), members)
    ]
    tables += _tables("The paper's figures (20 trials)", _paper(), members)
    intro = Text(
        "As Table 2 on the hidden chain, by L-BFGS with temperature homotopy for every method; M3E with alpha = "
        "2, ModLat with beta = 0.1 and Hamming loss on outputs and hidden variables. A small sigma_h was meant "
        "to make the hidden variables uncertain."
    )
    return Section(NAME, "Table 3: uncertainty of the hidden variables", [intro, *tables], claims(protocol, trials))


def _tables(title: str, rows: list[list[str]], members: list[str]) -> list[Table]:
    """Accuracies, and the differences to MSSVM, which follow them in the rows; the last row is the average."""
    header, last = ["sigma_h", "trials", "Bayes", *member_header(members)], frozenset({len(rows) - 1})
    cut = 3 + len(members)
    gaps = [[row[0], *row[cut:]] for row in rows]
    return [
        Table(f"{title}: accuracy (%)", header[:cut], [row[:cut] for row in rows], strong=last),
        Table(f"{title}: differences, paired", [header[0], *header[cut:]], gaps, strong=last),
    ]


def _rows(trials: Trials, reading: str, sigmas: list[float], members: list[str]) -> list[list[str]]:
    rows = []
    for sigma_h in sigmas:
        where = {"reading": reading, "sigma_h": sigma_h}
        if trials.where(**where):
            bayes = trials.estimate(lambda r: float(r["bayes"]), **where).show()
            n = str(len(trials.where(**where)))
            rows.append([f"{sigma_h:g}", n, bayes, *member_cells(trials, members, **where)])
    return [*rows, ["Avg.", "", "", *_average(trials, reading, members)]]


def _average(trials: Trials, reading: str, members: list[str]) -> list[str]:
    """Means over sigma_h trial by trial, so that their standard errors respect the shared draws."""
    found = trials.where(reading=reading)
    by_trial = {
        m: np.array([
            np.mean([t.result[m]["accuracy"] for t in found if t.params["trial"] == k])
            for k in sorted({t.params["trial"] for t in found})
        ])
        for m in members
    }  # fmt: skip
    shown = [Estimate.of(by_trial[m], trials.confidence).show() for m in members]
    others = [m for m in members if m != "M"]
    return shown + [Estimate.paired(by_trial["M"], by_trial[m], trials.confidence).interval() for m in others]


def _paper() -> list[list[str]]:
    rows = [[f"{sigma:g}", "20", "", *_paper_row(values)] for sigma, values in PAPER.items()]
    return [*rows, ["Avg.", "", "", *_paper_row(tuple(np.mean(list(PAPER.values()), axis=0)))]]


def _paper_row(values: tuple[float, ...]) -> list[str]:
    return [f"{v:.2f}" for v in values] + [f"{values[0] - v:+.2f}" for v in values[1:]]


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    largest, smallest = max(settings["sigma_hs"]), min(settings["sigma_hs"])
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in settings["readings"]:
        low, high = {"reading": reading, "sigma_h": smallest}, {"reading": reading, "sigma_h": largest}
        found[reading] = []
        for m in ("L", "M3E"):
            change = trials.change(lead_over(m), low, high)
            if change is not None:
                found[reading].append((f"gap to {NAMES[m]} at {smallest:g} - at {largest:g}", change))
        if trials.where(**low):
            found[reading] += [
                (f"{NAMES[m]} - M3E at {smallest:g}", trials.gap(m, "M3E", **low)) for m in ("M", "L", "H", "ModLat")
            ]
    text = "MSSVM's advantage over LSSVM and M3E grows as sigma_h falls, and M3E is the worst there."
    return [claim(protocol, 6, text, found)]


EXPERIMENT = Experiment(NAME, tasks, run, section)

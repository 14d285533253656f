"""Table 2: MSSVM, LSSVM and HCRF by several solvers on the hidden chain and the checkerboard grid."""

from __future__ import annotations

from mssvm.experiments.collect import (
    Comparisons,
    Experiment,
    Trials,
    at,
    claim,
    member_accuracy,
    member_cells,
    member_header,
    paper_cells,
)  # fmt: skip
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Section, Table, Text

NAME = "table2"
TITLES = {"chain": "Hidden chain of 20 sites", "grid": "6x6 grid"}
PAPER = {
    "chain": {"SGD": (69.20, 66.87, 68.75), "paper CCCP": (69.63, 67.91, 69.03)},
    "grid": {"SGD": (74.12, 71.96, 73.51), "paper CCCP": (74.08, 73.38, 73.62)},
}


def tasks(protocol: Protocol) -> list[Params]:
    """Every graph, reading, solver and trial; all members are in one task."""
    settings, out = protocol.settings(NAME), []
    for graph, solvers in settings["solvers"].items():
        trials = range(protocol.n_trials(NAME, graph))
        out += cross(graph=[graph], solver=solvers, trial=trials, reading=settings["readings"])
    return out


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy, objective and inference calls of every member."""
    arena = protocol.arena(NAME, params)
    trained = protocol.train(NAME, arena, params["solver"], params["graph"])
    found = {m: arena.report(fitted, "accuracy", "objective", "calls", "outcome") for m, fitted in trained}
    return {"bayes": arena.bayes(), **found}


def section(protocol: Protocol, trials: Trials) -> Section:
    intro = Text(
        "Test accuracy in per cent, mean ± standard error over trials; differences are paired by trial, with "
        "95% intervals. Every trial draws a new model, 20 training and 100 test instances; C = 1, exact "
        "inference. Readings: A every site has an input and pairwise weights have standard deviation 2; A2 the "
        "same with variance 2; B only hidden sites have inputs. Bayes decodes with the generating weights."
    )
    tables = [_table(protocol, trials, graph) for graph in protocol.settings(NAME)["solvers"]]
    return Section(NAME, "Table 2: solvers and members on simulated data", [intro, *tables], claims(protocol, trials))


def _table(protocol: Protocol, trials: Trials, graph: str) -> Table:
    settings = protocol.settings(NAME)
    members, rows = settings["members"], []
    for where in cross(graph=[graph], reading=settings["readings"], solver=settings["solvers"][graph]):
        found = trials.where(**where)
        if found:
            first = [where["reading"], where["solver"], str(len(found)), trials.estimate(at("bayes"), **where).show()]
            rows.append([*first, *member_cells(trials, members, **where)])
    strong = frozenset(range(len(rows), len(rows) + len(PAPER[graph])))
    rows += [["paper", s.removeprefix("paper "), "20", "", *paper_cells(v)] for s, v in PAPER[graph].items()]
    header = ["reading", "solver", "trials", "Bayes", *member_header(members)]
    return Table(TITLES[graph], header, rows, "± is the standard error; brackets are 95% intervals.", 2, strong)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    above: Comparisons = {reading: [] for reading in settings["readings"]}
    cccp: Comparisons = {reading: [] for reading in settings["readings"]}
    for reading in settings["readings"]:
        for graph, solvers in settings["solvers"].items():
            for where in cross(graph=[graph], reading=[reading], solver=solvers):
                above[reading] += trials.gaps(f"{graph}, {where['solver']}, ", [("M", "L"), ("M", "H")], **where)
            both = cross(graph=[graph], reading=[reading], solver=["paper CCCP", "SGD"])
            change = trials.change(member_accuracy("L"), *both)
            if change is not None:
                cccp[reading].append((f"{graph}, LSSVM CCCP - SGD", change))
    return [
        claim(protocol, 1, "MSSVM is more accurate than LSSVM and HCRF, whichever the solver.", above),
        claim(protocol, 2, "LSSVM is more accurate by CCCP than by SGD.", cccp),
    ]


EXPERIMENT = Experiment(NAME, tasks, run, section)

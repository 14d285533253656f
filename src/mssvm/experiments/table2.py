"""Table 2: MSSVM, LSSVM and HCRF by several solvers on the hidden chain and the checkerboard grid."""

from __future__ import annotations

import numpy as np

from mssvm.experiments.collect import (
    Comparisons,
    Experiment,
    Trials,
    at,
    claim,
    comparisons,
    member_accuracy,
    member_cells,
    member_header,
    paper_cells,
)
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.statistics import Differences
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Figure, Section, Table, Text, hidden_chain_graph, hidden_grid_graph

NAME = "table2"
TITLES = {"chain": "Hidden chain of 20 sites", "grid": "6x6 grid"}
CONTRADICTS = {  # what the paper prints against a reading
    "A": "the printed accuracies: 82%, not 69%",
    "A2": "N(0, sigma^2) as printed",
    "B": "the printed x-y terms and the number of nodes",
}
PAPER = {
    "chain": {"SGD": (69.20, 66.87, 68.75), "paper CCCP": (69.63, 67.91, 69.03)},
    "grid": {"SGD": (74.12, 71.96, 73.51), "paper CCCP": (74.08, 73.38, 73.62)},
}


def tasks(protocol: Protocol) -> list[Params]:
    """Every graph, reading, solver and trial; all members are in one task."""
    settings = protocol.settings(NAME)
    out = []
    for graph, solvers in settings["solvers"].items():
        trials = range(protocol.n_trials(NAME, graph))
        out += cross(graph=[graph], solver=solvers, trial=trials, reading=settings["readings"])
    return out


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy, objective and inference calls of every member."""
    arena = protocol.arena(NAME, params)
    trained = protocol.train(NAME, arena, params["solver"], params["graph"])
    reports = {m: arena.report(fitted, "accuracy", "objective", "calls", "outcome") for m, fitted in trained}
    return {"bayes": arena.bayes(), **reports}


def section(protocol: Protocol, trials: Trials) -> Section:
    intro = Text(
        "Test accuracy in per cent, mean ± standard error over trials; differences are paired by trial, with "
        "95% intervals. Every trial draws a new model, 20 training and 100 test instances; C = 1, exact "
        "inference. Readings: A every site has an input and pairwise weights have standard deviation 2; A2 the "
        "same with variance 2; B only hidden sites have inputs. Bayes decodes with the generating weights. Initial "
        f"weights are {protocol.initial_std:g} N(0, I). {_rates(protocol)}"
    )
    specs = protocol.tree["readings"]
    drawn = [_drawn(name, spec) for name, spec in specs.items()]
    grids = {"A, A2": True, "B": False}
    drawn += [hidden_grid_graph(f"{name}: a piece of the 6x6 grid", all_inputs) for name, all_inputs in grids.items()]
    tables = [_table(protocol, trials, graph) for graph in protocol.settings(NAME)["solvers"]]
    graphs = Figure("The readings of the paper's Figure 1", drawn, columns=3)
    items: list[Text | Table | Figure] = [intro, graphs, *tables]
    return Section(NAME, "Table 2: solvers and members on simulated data", items, claims(protocol, trials))


def _drawn(reading: str, spec: Params) -> str:
    """A piece of the hidden chain under a reading."""
    title = f"{reading}: pairwise weights of variance {spec['pair_std'] ** 2:.3g}"
    return hidden_chain_graph(title, spec["inputs"] == "all")


def _rates(protocol: Protocol) -> str:
    """Rates and steps of the solvers that have them, in words."""
    shown = []
    for name in ("SGD", "paper CCCP"):
        spec = protocol.tree["solvers"]["chain"][name]
        rates = ", ".join(f"{NAMES[m]} {rate:g}" for m, rate in spec["rate"].items())
        steps = ", ".join(f"{n}" for n in spec.get("steps", {}).values()) or f"{spec['outer']} x {spec['inner']}"
        shown.append(f"{name}: rates {rates}, steps {steps}")
    return "On the chain, " + "; ".join(shown) + ". LB is L-BFGS with temperature homotopy."


def _table(protocol: Protocol, trials: Trials, graph: str) -> Table:
    settings = protocol.settings(NAME)
    members = settings["members"]
    rows = []
    for where in cross(graph=[graph], reading=settings["readings"], solver=settings["solvers"][graph]):
        n = len(trials.where(**where))
        if n:
            bayes = trials.estimate(at("bayes"), **where).show()
            label = [where["reading"], where["solver"], str(n)]
            rows.append([*label, bayes, *member_cells(trials, members, **where)])
    strong = frozenset(range(len(rows), len(rows) + len(PAPER[graph])))
    rows += [["paper", s.removeprefix("paper "), "20", "", *paper_cells(v)] for s, v in PAPER[graph].items()]
    header = ["reading", "solver", "trials", "Bayes", *member_header(members)]
    return Table(TITLES[graph], header, rows, "± is the standard error; brackets are 95% intervals.", 2, strong)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    place = "Section 7.1, Table 2"
    graphs = settings["solvers"]
    value = member_accuracy("L")
    bases = {r: cross(reading=[r], graph=graphs) for r in settings["readings"]}
    cells: dict[str, list[Params]] = {}
    for reading, base in bases.items():
        cells[reading] = [where | {"solver": solver} for where in base for solver in graphs[where["graph"]]]

    def above(other: str) -> Comparisons:
        return comparisons(cells, lambda w: trials.gaps(f"{w['graph']}, {w['solver']}, ", [("M", other)], **w))

    def by_solver(w: Params) -> list[Differences]:
        both = w | {"solver": "paper CCCP"}, w | {"solver": "SGD"}
        return trials.compare(f"{w['graph']}, LSSVM CCCP - SGD", value, value, *both)

    paper = np.array([v for solvers in PAPER.values() for v in solvers.values()])
    gain = float(np.mean([s["paper CCCP"][1] - s["SGD"][1] for s in PAPER.values()]))
    lead = (paper[:, :1] - paper[:, 1:]).mean(axis=0)
    faster = comparisons(bases, by_solver)
    return [
        *claim(protocol, "1a", "MSSVM is more accurate than LSSVM.", place, above("L"), lead[0]),
        *claim(protocol, "1b", "MSSVM is more accurate than HCRF.", place, above("H"), lead[1]),
        *claim(protocol, "2", "LSSVM is more accurate by CCCP than by SGD.", place, faster, gain),
    ]


EXPERIMENT = Experiment(NAME, tasks, run, section)

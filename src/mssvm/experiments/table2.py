"""Table 2: MSSVM, LSSVM and HCRF by several solvers on the hidden chain and the checkerboard grid."""

from __future__ import annotations

from mssvm.experiments.collect import Experiment, Trials, claim, member_accuracy, member_cells, member_header
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.report import Claim, Section, Table, Text

NAME = "table2"
TITLES = {"chain": "Hidden chain of 20 sites", "grid": "6x6 grid"}
PAPER = {
    "chain": {"SGD": (69.20, 66.87, 68.75), "paper CCCP": (69.63, 67.91, 69.03)},
    "grid": {"SGD": (74.12, 71.96, 73.51), "paper CCCP": (74.08, 73.38, 73.62)},
}


def tasks(protocol: Protocol) -> list[Params]:
    """Every graph, reading, solver and trial; all members are in one task."""
    settings = protocol.settings(NAME)
    return [
        {"graph": graph, "solver": solver, "reading": reading, "trial": trial}
        for graph, solvers in settings["solvers"].items()
        for solver in solvers
        for trial in range(protocol.n_trials(NAME, graph))
        for reading in settings["readings"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy, objective and inference calls of every member."""
    arena = protocol.chain(NAME, params) if params["graph"] == "chain" else protocol.grid(NAME, params)
    result: Result = {"bayes": arena.bayes()}
    for member in protocol.settings(NAME)["members"]:
        solution = arena.train(member, protocol.solver(params["graph"], params["solver"], member))
        last = solution.trace[-1]
        result[member] = {
            "accuracy": arena.accuracy(member, solution.w),
            "objective": solution.objective,
            "calls": last.plus_calls + last.minus_calls,
            "outcome": solution.outcome.value,
        }
    return result


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
    for reading in settings["readings"]:
        for solver in settings["solvers"][graph]:
            where = {"graph": graph, "reading": reading, "solver": solver}
            found = trials.where(**where)
            if found:
                bayes = trials.estimate(lambda r: float(r["bayes"]), **where).show()
                rows.append([reading, solver, str(len(found)), bayes, *member_cells(trials, members, **where)])
    n = len(rows)
    for solver, values in PAPER[graph].items():
        gaps = [f"{values[0] - v:+.2f}" for v in values[1:]]
        rows.append(["paper", solver.removeprefix("paper "), "20", "", *[f"{v:.2f}" for v in values], *gaps])
    header = ["reading", "solver", "trials", "Bayes", *member_header(members)]
    strong = frozenset(range(n, len(rows)))
    return Table(TITLES[graph], header, rows, "± is the standard error; brackets are 95% intervals.", 2, strong)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    above: dict[str, list[tuple[str, Estimate]]] = {}
    cccp: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in settings["readings"]:
        above[reading], cccp[reading] = [], []
        for graph, solvers in settings["solvers"].items():
            for solver in solvers:
                where = {"graph": graph, "reading": reading, "solver": solver}
                if trials.where(**where):
                    above[reading] += [
                        (f"{graph}, {solver}, MSSVM - {NAMES[m]}", trials.gap("M", m, **where)) for m in ("L", "H")
                    ]
            both = ({"graph": graph, "reading": reading, "solver": s} for s in ("paper CCCP", "SGD"))
            change = trials.change(member_accuracy("L"), *both)
            if change is not None:
                cccp[reading].append((f"{graph}, LSSVM CCCP - SGD", change))
    return [
        claim(protocol, 1, "MSSVM is more accurate than LSSVM and HCRF, whichever the solver.", above),
        claim(protocol, 2, "LSSVM is more accurate by CCCP than by SGD.", cccp),
    ]


EXPERIMENT = Experiment(NAME, tasks, run, section)

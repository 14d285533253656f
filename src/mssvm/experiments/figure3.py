"""Figure 3: error against the number of training instances, with C constant and with C falling as 20/n."""

from __future__ import annotations

from dataclasses import replace

from mssvm.experiments.collect import Experiment, Trials, claim, member_accuracy
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.report import Claim, Figure, Section, Series, Table, Text, line_chart

NAME = "figure3"


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    return [
        {"reading": reading, "scaling": scaling, "size": size, "trial": trial}
        for size in settings["sizes"]
        for trial in range(protocol.n_trials(NAME))
        for reading in settings["readings"]
        for scaling in settings["scalings"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy of every member; model and test set of a trial are the same for every size."""
    settings = protocol.settings(NAME)
    n = int(params["size"])
    arena = protocol.chain(NAME, params, settings["sites"], n_train=n, n_test=settings["n_test"])
    if params["scaling"] != "C":
        arena = replace(arena, C=20.0 * arena.C / n)
    result: Result = {"bayes": arena.bayes()}
    for member in settings["members"]:
        solution = arena.train(member, protocol.solver("chain", settings["solver"], member))
        result[member] = {"accuracy": arena.accuracy(member, solution.w), "objective": solution.objective}
    return result


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    charts, tables = [], []
    for reading in trials.present("reading", settings["readings"]):
        for scaling in trials.present("scaling", settings["scalings"]):
            charts.append(_chart(settings, trials, reading, scaling))
            tables.append(_table(settings, trials, reading, scaling))
    intro = Text(
        "Chains of 10 sites, 500 test instances, L-BFGS with homotopy for every member. The paper keeps C at 1 while "
        "the sum over instances grows; C = 20/n keeps the weight of the whole sample instead."
    )
    figure = Figure("Test error (%) against training instances; bars are standard errors", charts)
    return Section(NAME, "Figure 3: training sample size", [intro, figure, *tables], claims(protocol, trials))


def _chart(settings: dict[str, list[str]], trials: Trials, reading: str, scaling: str) -> str:
    series = []
    for style, member in enumerate(settings["members"]):
        sizes = [s for s in settings["sizes"] if trials.where(reading=reading, scaling=scaling, size=s)]
        found = [trials.estimate(member_accuracy(member), reading=reading, scaling=scaling, size=s) for s in sizes]
        errors = [e.se if e.n > 1 else 0.0 for e in found]
        series.append(Series(NAMES[member], [float(s) for s in sizes], [100 - e.mean for e in found], errors, style))
    ticks = [float(s) for s in settings["sizes"]]
    title = f"Reading {reading}, C = {'1' if scaling == 'C' else '20/n'}"
    return line_chart(title, "training instances", "test error (%)", series, log_x=True, x_ticks=ticks)


def _table(settings: dict[str, list[int]], trials: Trials, reading: str, scaling: str) -> Table:
    rows = []
    for size in settings["sizes"]:
        where = {"reading": reading, "scaling": scaling, "size": size}
        if trials.where(**where):
            gaps = [trials.gap("M", m, **where) for m in ("L", "H")]
            rows.append([str(size), str(gaps[0].n), *[g.interval() for g in gaps]])
    title = f"Error above MSSVM's in points, reading {reading}, C = {'1' if scaling == 'C' else '20/n'}"
    return Table(title, ["n", "trials", "LSSVM", "HCRF"], rows)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in settings["readings"]:
        found[reading] = []
        for size in settings["sizes"]:
            where = {"reading": reading, "scaling": "C", "size": size}
            if not trials.where(**where):
                continue
            found[reading] += [(f"n = {size}, MSSVM - {NAMES[m]}", trials.gap("M", m, **where)) for m in ("L", "H")]
            if size <= settings["small"]:
                found[reading].append((f"n = {size}, LSSVM - HCRF", trials.gap("L", "H", **where)))
            if size >= settings["large"]:
                found[reading].append((f"n = {size}, HCRF - LSSVM", trials.gap("H", "L", **where)))
    text = "HCRF is below LSSVM for small samples and above it for large ones; MSSVM is above both."
    return [claim(protocol, 5, text, found)]


EXPERIMENT = Experiment(NAME, tasks, run, section)

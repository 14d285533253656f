"""Figure 3: error against the number of training instances, with C constant and with C falling as 20/n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mssvm.experiments.collect import Comparisons, Experiment, Trials, claim, comparisons, member_curves, over
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Figure, Section, Table, Text, line_chart

NAME = "figure3"


def tasks(protocol: Protocol) -> list[Params]:
    """Every size, reading and scaling of C by the experiment's solver, then the further solvers."""
    settings = protocol.settings(NAME)
    further = settings["further"]
    trials = range(protocol.n_trials(NAME))
    common = {"size": settings["sizes"], "reading": settings["readings"]}
    by_others = {"scaling": further.get("scalings", []), "solver": further.get("solvers", [])}
    return over(NAME, "size", "reading", "scaling")(protocol) + cross(trial=trials, **common, **by_others)


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy of every member; model and test set of a trial are the same for every size."""
    settings = protocol.settings(NAME)
    n = int(params["size"])
    arena = protocol.arena(NAME, params, n_sites=settings["sites"], n_train=n, n_test=settings["n_test"])
    if params["scaling"] != "C":
        arena = replace(arena, C=20.0 * arena.C / n)
    trained = protocol.train(NAME, arena, params.get("solver", settings["solver"]))
    return {"bayes": arena.bayes(), **{m: arena.report(fitted, "accuracy", "objective") for m, fitted in trained}}


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    charts = []
    tables = []
    for reading in trials.present("reading", settings["readings"]):
        for scaling in trials.present("scaling", settings["scalings"], reading=reading):
            where = {"reading": reading, "scaling": scaling}
            C = "1" if scaling == "C" else "20/n"
            for solver in trials.present("solver", _by(settings), **where):
                cell = where | {"solver": solver}
                name = f"reading {reading}, {solver or settings['solver']}, C = {C}"
                charts.append(_chart(name[0].upper() + name[1:], settings, trials, cell))
                tables.append(_table(f"Error above MSSVM's in points, {name}", settings, trials, cell))
    intro = Text(
        "Chains of 10 sites, 500 test instances; L-BFGS with homotopy (LB) for every member, and at the paper's "
        "constant C its own solvers, whose fixed rates are too large for many instances. The paper keeps C at 1 while "
        "the sum over instances grows; C = 20/n keeps the weight of the whole sample instead. It shows curves only."
    )
    figure = Figure("Test error (%) against training instances; bars are standard errors", charts)
    return Section(NAME, "Figure 3: training sample size", [intro, figure, *tables], claims(protocol, trials))


def _by(settings: Params) -> list[str | None]:
    """The solvers; None is the experiment's own."""
    return [None, *settings["further"].get("solvers", [])]


def _chart(title: str, settings: Params, trials: Trials, where: dict[str, Any]) -> str:
    sizes = trials.present("size", settings["sizes"], **where)

    def errors(member: str) -> list[Any]:
        return [trials.estimate(lambda r: 100 - float(r[member]["accuracy"]), size=s, **where) for s in sizes]

    series = member_curves(settings["members"], [float(s) for s in sizes], errors)
    ticks = [float(s) for s in settings["sizes"]]
    return line_chart(title, "training instances", "test error (%)", series, log_x=True, x_ticks=ticks)


def _table(title: str, settings: Params, trials: Trials, where: dict[str, Any]) -> Table:
    rows = []
    for size in trials.present("size", settings["sizes"], **where):
        gaps = [trials.gap("M", m, size=size, **where) for m in ("L", "H")]
        rows.append([str(size), str(gaps[0].n), *[g.interval() for g in gaps]])
    return Table(title, ["n", "trials", "LSSVM", "HCRF"], rows)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    place = "Section 7.1, Figure 3"
    sizes = settings["sizes"]
    others = _by(settings)[1:]
    few = [n for n in sizes if n <= settings["small"]]
    many = [n for n in sizes if n >= settings["large"]]

    def above(better: str, worse: str, chosen: list[int], solvers: Sequence[str | None] = (None,)) -> Comparisons:
        cells = {r: cross(reading=[r], scaling=["C"], solver=solvers, size=chosen) for r in settings["readings"]}
        own = settings["solver"]
        return comparisons(
            cells, lambda w: trials.gaps(f"{w['solver'] or own}, n = {w['size']}, ", [(better, worse)], **w)
        )

    return [
        *claim(protocol, "5a", "MSSVM is more accurate than LSSVM at all sample sizes.", place, above("M", "L", sizes)),
        *claim(protocol, "5b", "MSSVM is more accurate than HCRF on few data.", place, above("M", "H", few)),
        *claim(protocol, "5c", "MSSVM is more accurate than HCRF on many data too.", place, above("M", "H", many)),
        *claim(protocol, "5d", "HCRF is less accurate than LSSVM on few data.", place, above("L", "H", few)),
        *claim(protocol, "5e", "HCRF is more accurate than LSSVM on many data.", place, above("H", "L", many)),
        *claim(protocol, "5f", "As 5a, by the paper's own solvers and rates.", place, above("M", "L", sizes, others)),
    ]


EXPERIMENT = Experiment(NAME, tasks, run, section)

"""Figure 5 (supplement): test log-likelihood and accuracy against the steps of Algorithm 1."""

from __future__ import annotations

from itertools import product

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments.collect import Comparisons, Experiment, Trials, at, claim, over
from mssvm.experiments.members import MEMBERS, NAMES, Arena, Untrained
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Result
from mssvm.inference.base import Planner
from mssvm.optim import Row, Subgradient
from mssvm.report import Claim, Figure, Section, Series, Text, line_chart

NAME = "figure5"


class TestScores:
    """The test instances as HCRF's problem, encoded once and evaluated at many weights."""

    def __init__(self, arena: Arena) -> None:
        untrained = Untrained()
        Arena(arena.test, arena.test, arena.truth, arena.w0, arena.inference).fit("H", untrained)
        self.problem = untrained.problem
        self.sample = self.problem.sample
        engine = self.problem.engine
        self.features = self.problem.model.bind(self.sample.inputs, engine)
        plan = Planner(arena.inference, engine)(self.sample.batch)
        self.best = {eps_h: plan.bind(self.sample.query, 0.0, eps_h) for eps_h in (0.0, 1.0)}

    def log_likelihood(self, w: Floats) -> float:
        """Mean log p(y | x; w), hidden variables summed out."""
        return -float(np.mean(self.problem.difference(w).values))

    def accuracy(self, w: Floats, eps_h: float) -> float:
        """Accuracy in per cent of the y that maximises PS_h[eps_h] theta, which a member's ``predict`` returns."""
        batch = self.sample.batch
        states = self.best[eps_h](self.features.forward(w)).decode(batch)
        return 100 * float(self.sample.truth[batch.unary_ptr[:-1] + states][self.sample.query.output].mean())


def run(protocol: Protocol, params: Params) -> Result:
    """Curves of every member, and their ends."""
    settings = protocol.settings(NAME)
    arena = protocol.arena(NAME, params)
    test = TestScores(arena)
    result = {}
    for member in settings["members"]:
        solver = Subgradient.literal(settings["rate"][member], settings["steps"])
        curves = _Curves(test, MEMBERS[member].eps_h, settings["every"])
        arena.fit(member, solver, curves)
        result[member] = {
            "likelihood": curves.likelihood,
            "curve": curves.accuracy,
            "accuracy": curves.accuracy[-1],
        }
    return result


class _Curves:
    """A callback that records likelihood and accuracy on the test instances at every few iterations."""

    def __init__(self, test: TestScores, eps_h: float, every: int) -> None:
        self.test = test
        self.eps_h = eps_h
        self.every = every
        self.likelihood: list[float] = []
        self.accuracy: list[float] = []

    def __call__(self, row: Row, w: Floats) -> None:
        if row.iteration % self.every == 0:
            self.likelihood.append(round(self.test.log_likelihood(w), 6))
            self.accuracy.append(round(self.test.accuracy(w, self.eps_h), 6))


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    steps = [float(k) for k in range(0, settings["steps"] + 1, settings["every"])]
    charts = []
    first = 2.0 * settings["every"]
    for reading in trials.present("reading", settings["readings"]):
        for field, label in (("likelihood", "test log-likelihood"), ("curve", "test accuracy (%)")):
            series = []
            for k, m in enumerate(settings["members"]):
                means = [trials.estimate(at(m, field, step), reading=reading).mean for step in range(len(steps))]
                series.append(Series(NAMES[m], steps, means, None, k))
            charts.append(line_chart(f"Reading {reading}", "steps of Algorithm 1", label, series, y_from=first))
    intro = Text(
        "Mean over the test instances of log p(y | x; w) with hidden variables summed out, at the paper's rates (0.02; "
        "LSSVM 0.001), beside the accuracy of the same weights; means over trials. Axes begin with what the curves do "
        "after the first steps, from chance on. The paper shows curves only."
    )
    figure = Figure("Likelihood and accuracy during training", charts)
    return Section(NAME, "Figure 5: likelihood against accuracy", [intro, figure], claims(protocol, trials))


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    place = "Supplement, Figure 5"
    cells = {r: {"reading": r} for r in trials.present("reading", protocol.settings(NAME)["readings"])}
    likelihood = {m: at(m, "likelihood", -1) for m in ("M", "L", "H")}
    higher: Comparisons = {r: [] for r in cells}
    for r, m in product(cells, ("M", "L")):
        higher[r] += trials.compare(f"log-likelihood, HCRF - {NAMES[m]}", likelihood["H"], likelihood[m], cells[r])
    lower = {r: trials.gaps("accuracy, ", [("M", "H")], **w) for r, w in cells.items()}
    return [
        *claim(protocol, "9a", "HCRF has the higher test likelihood.", place, higher, unit="log-likelihood"),
        *claim(protocol, "9b", "HCRF is less accurate than MSSVM.", place, lower),
    ]


EXPERIMENT = Experiment(NAME, over(NAME, "reading"), run, section)

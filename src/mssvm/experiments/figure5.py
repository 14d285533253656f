"""Figure 5 (supplement): test log-likelihood and accuracy against the steps of Algorithm 1."""

from __future__ import annotations

from mssvm.core.arrays import Floats
from mssvm.experiments.collect import Experiment, Trials, Value, claim
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.optim import Row, Subgradient
from mssvm.report import Claim, Figure, Section, Series, Text, line_chart

NAME = "figure5"


def tasks(protocol: Protocol) -> list[Params]:
    readings = protocol.settings(NAME)["readings"]
    return [{"reading": r, "trial": t} for t in range(protocol.n_trials(NAME)) for r in readings]


def run(protocol: Protocol, params: Params) -> Result:
    """Curves of every member, and their ends."""
    settings = protocol.settings(NAME)
    arena = protocol.chain(NAME, params)
    result: Result = {}
    for member in settings["members"]:
        likelihood: list[float] = []
        accuracy: list[float] = []

        def watch(row: Row, w: Floats, member: str = member) -> None:
            if row.iteration % settings["every"] == 0:
                likelihood.append(round(arena.test_log_likelihood(w), 6))  # noqa: B023 -- called before the next member
                accuracy.append(round(arena.accuracy(member, w), 6))  # noqa: B023

        arena.train(member, Subgradient.literal(settings["rate"][member], settings["steps"]), watch)
        result[member] = {"likelihood": likelihood, "curve": accuracy, "accuracy": accuracy[-1]}
    return result


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    steps = [float(k) for k in range(0, settings["steps"] + 1, settings["every"])]
    charts = []
    for reading in trials.present("reading", settings["readings"]):
        for field, label in (("likelihood", "test log-likelihood"), ("curve", "test accuracy (%)")):
            series = [
                Series(NAMES[m], steps, _means(trials, reading, m, field, len(steps)), None, k)
                for k, m in enumerate(settings["members"])
            ]
            charts.append(line_chart(f"Reading {reading}", "steps of Algorithm 1", label, series))
    intro = Text(
        "Mean over the test instances of log p(y | x; w) with hidden variables summed out, at the paper's rates (0.02; "
        "LSSVM 0.001), beside the accuracy of the same weights; means over trials."
    )
    figure = Figure("Likelihood and accuracy during training", charts)
    return Section(NAME, "Figure 5: likelihood against accuracy", [intro, figure], claims(protocol, trials))


def _means(trials: Trials, reading: str, member: str, field: str, n: int) -> list[float]:
    return [trials.estimate(_at(member, field, k), reading=reading).mean for k in range(n)]


def _at(member: str, field: str, k: int) -> Value:
    return lambda result: float(result[member][field][k])


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in protocol.settings(NAME)["readings"]:
        found[reading] = []
        if trials.where(reading=reading):
            for m in ("M", "L"):
                gap = trials.difference(_at("H", "likelihood", -1), _at(m, "likelihood", -1), reading=reading)
                found[reading].append((f"log-likelihood, HCRF - {NAMES[m]}", gap))
            found[reading].append(("accuracy, MSSVM - HCRF", trials.gap("M", "H", reading=reading)))
    return [claim(protocol, 9, "HCRF has the higher test likelihood and the lower accuracy.", found)]


EXPERIMENT = Experiment(NAME, tasks, run, section)

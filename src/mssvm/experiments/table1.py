"""Table 1 as a map: accuracy over (eps_y, eps_h) on one kind of data, and members with C by cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.experiments.collect import Experiment, Trials, Value, claim, member_accuracy
from mssvm.experiments.members import Arena
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.simulate import decoded_accuracy
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.objectives.base import Objective
from mssvm.objectives.unified import Unified, hcrf, lssvm, mssvm
from mssvm.report import Claim, Figure, Section, Table, Text, heat_map

NAME = "table1"
TUNED: dict[str, Callable[[], Objective]] = {"M": mssvm, "L": lssvm, "H": hcrf, "E": lambda: Unified(0.5, 1.0)}
TITLES = {"M": "MSSVM (0, 1)", "L": "LSSVM (0, 0)", "H": "HCRF (1, 1), no loss", "E": "(0.5, 1)"}


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    return [
        {"part": part, "reading": reading, "trial": trial}
        for part in settings["parts"]
        for trial in range(protocol.n_trials(NAME, part))
        for reading in settings["readings"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    arena = protocol.chain(NAME, params)
    if params["part"] == "temperatures":
        return _temperatures(protocol, arena)
    return {m: _tuned(protocol, arena, TUNED[m]()) for m in protocol.settings(NAME)["tuned_members"]}


def _temperatures(protocol: Protocol, arena: Arena) -> Result:
    settings = protocol.settings(NAME)
    pairs = [(y, h) for y in settings["eps_y"] for h in settings["eps_h"]]
    result: Result = {_cell(*pair): _score(protocol, arena, Unified(*pair)) for pair in pairs}
    return result | {"HCRF": _score(protocol, arena, hcrf())}


def _score(protocol: Protocol, arena: Arena, objective: Objective) -> float:
    """Test accuracy with the decoder at the objective's own eps_h."""
    solver = protocol.solver("chain", protocol.settings(NAME)["solver"], "M")
    sim = arena.simulation
    w = solver.minimize(arena.problem(objective), arena.w0).w
    return round(100 * decoded_accuracy(sim.model, w, sim.test, arena.inference, objective.eps_h), 6)


def _tuned(protocol: Protocol, arena: Arena, objective: Objective) -> Result:
    """C of the highest accuracy over folds of the training set (the smaller C on ties), and its test accuracy."""
    settings = protocol.settings(NAME)
    sim = arena.simulation
    fold = np.arange(len(sim.train)) % settings["folds"]
    means = []
    for C in settings["tuned_C"]:
        scores = []
        for k in range(settings["folds"]):
            split = replace(
                sim, train=sim.train.select(np.flatnonzero(fold != k)), test=sim.train.select(np.flatnonzero(fold == k))
            )
            scores.append(_score(protocol, replace(arena, simulation=split, C=C), objective))
        means.append(float(np.mean(scores)))
    best = settings["tuned_C"][int(np.argmax(means))]
    plain = _score(protocol, arena, objective)
    chosen = plain if best == arena.C else _score(protocol, replace(arena, C=best), objective)
    return {"C": best, "accuracy": chosen, "plain": plain}


def _cell(eps_y: float, eps_h: float) -> str:
    return f"{eps_y:g},{eps_h:g}"


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    maps = [_map(settings, trials, r) for r in settings["readings"] if trials.where(part="temperatures", reading=r)]
    intro = Text(
        "Every member of the family on the hidden chain by the same solver (L-BFGS with homotopy), C = 1, "
        "Hamming loss. The first number of a cell is the accuracy, the second its paired difference to MSSVM "
        "with standard error. LSSVM is the corner (0, 0), MSSVM is (0, 1), loss-augmented likelihood is (1, 1); "
        "eps_y = eps_h is the eps-extension. The decoder is marginal MAP at the member's own eps_h."
    )
    items: list[Text | Table | Figure] = [
        intro,
        Figure("Test accuracy (%) over the two temperatures", maps),
        _tuned_table(settings, trials),
    ]
    return Section(NAME, "Table 1: the family as a map", items, claims(protocol, trials))


def _map(settings: dict[str, Any], trials: Trials, reading: str) -> str:
    where = {"part": "temperatures", "reading": reading}
    values: list[list[float | None]] = []
    texts = []
    for y in settings["eps_y"]:
        cells = [(_at(_cell(y, h)), h) for h in settings["eps_h"]]
        found = [trials.estimate(value, **where) for value, _ in cells]
        gaps = [trials.difference(value, _at(_cell(0.0, 1.0)), **where) for value, _ in cells]
        values.append([e.mean for e in found])
        texts.append([
            f"{e.mean:.2f}\n" + ("MSSVM" if (y, h) == (0.0, 1.0) else g.show(sign=True).replace(" ± ", "±"))
            for e, g, (_, h) in zip(found, gaps, cells, strict=True)
        ])  # fmt: skip
    rows, columns = ([f"{e:g}" for e in settings[k]] for k in ("eps_y", "eps_h"))
    likelihood = trials.difference(_at("HCRF"), _at(_cell(0.0, 1.0)), **where)
    title = f"Reading {reading} (HCRF: {likelihood.show(sign=True)})"
    return heat_map(title, rows, columns, values, "eps_y", "eps_h", texts)


def _at(name: str) -> Value:
    return lambda result: float(result[name])


def _field(member: str, name: str) -> Value:
    return lambda result: float(result[member][name])


def _tuned_table(settings: dict[str, Any], trials: Trials) -> Table:
    rows = []
    for reading in settings["readings"]:
        where = {"part": "tuned", "reading": reading}
        if not trials.where(**where):
            continue
        for m in settings["tuned_members"]:
            plain, tuned = (trials.estimate(v, **where).show() for v in (_field(m, "plain"), member_accuracy(m)))
            chosen = f"{np.median(trials.values(_field(m, 'C'), **where)):g}"
            gap = "" if m == "M" else trials.gap("M", m, **where).interval()
            mixed = trials.difference(_field("M", "plain"), member_accuracy(m), **where).interval()
            rows.append([reading, TITLES[m], plain, tuned, chosen, gap, mixed])
    header = ["reading", "member", "C = 1", "C by CV", "median C", "MSSVM (CV) - it (CV)", "MSSVM (C = 1) - it (CV)"]
    return Table(f"C chosen by {settings['folds']}-fold cross-validation on the training set", header, rows, n_labels=2)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for reading in protocol.settings(NAME)["readings"]:
        where = {"part": "tuned", "reading": reading}
        if trials.where(**where):
            found[reading] = [(f"MSSVM - {TITLES[m]}, C by CV", trials.gap("M", m, **where)) for m in ("L", "H", "E")]
    return [claim(protocol, 11, "Beyond the paper: MSSVM is the best member when every member's C is tuned.", found)]


EXPERIMENT = Experiment(NAME, tasks, run, section)

"""Table 1 as a map: accuracy over (eps_y, eps_h) on one kind of data, and members with C by cross-validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.estimators import UnifiedSSVM
from mssvm.experiments.collect import Experiment, Trials, at, claim, member_accuracy
from mssvm.experiments.members import MEMBERS, NAMES, Arena
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Figure, Section, Table, Text, heat_map

NAME = "table1"
BETWEEN = {"eps_y": 0.5, "eps_h": 1.0}  # member E of the protocol


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    out = []
    for part in settings["parts"]:
        out += cross(part=[part], trial=range(protocol.n_trials(NAME, part)), reading=settings["readings"])
    return out


def run(protocol: Protocol, params: Params) -> Result:
    arena = protocol.arena(NAME, params)
    settings = protocol.settings(NAME)
    if params["part"] == "tuned":
        return {m: _tuned(protocol, arena, *_member(m)) for m in settings["tuned_members"]}
    if params["part"] == "by C":
        arenas = {f"{C:g}": replace(arena, C=C) for C in settings["tuned_C"]}
        scores: Result = {}
        for letter in settings["tuned_members"]:
            scores[letter] = {C: _score(protocol, one, *_member(letter)) for C, one in arenas.items()}
        return scores
    pairs = cross(eps_y=settings["eps_y"], eps_h=settings["eps_h"])
    result: Result = {_cell(*pair.values()): _score(protocol, arena, UnifiedSSVM, pair) for pair in pairs}
    return result | {"HCRF": _score(protocol, arena, "H", {})}


def _member(letter: str) -> tuple[Any, dict[str, float]]:
    """A member and its temperatures, where these are parameters."""
    if letter == "E":
        return UnifiedSSVM, BETWEEN
    return letter, {}


def _title(letter: str) -> str:
    """A member's name and temperatures."""
    if letter == "E":
        return f"({_cell(**BETWEEN).replace(',', ', ')})"
    member = MEMBERS[letter]
    loss = ", no loss" if member.member.loss == "zero" else ""
    return f"{NAMES[letter]} ({member.eps_y:g}, {member.eps_h:g}){loss}"


def _score(protocol: Protocol, arena: Arena, member: Any, temperatures: dict[str, float]) -> float:
    """Test accuracy with the decoder at the member's own eps_h."""
    solver = protocol.solver("chain", protocol.settings(NAME)["solver"], "M")
    return round(arena.accuracy(arena.fit(member, solver, None, **temperatures)), 6)


def _tuned(protocol: Protocol, arena: Arena, member: Any, temperatures: dict[str, float]) -> Result:
    """C of the highest accuracy over folds of the training set (the smaller C on ties), and its test accuracy."""
    settings = protocol.settings(NAME)
    fold = np.arange(len(arena.train)) % settings["folds"]
    sides = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(settings["folds"])]
    parts = [(arena.train.select(inside), arena.train.select(outside)) for inside, outside in sides]
    means = []
    for C in settings["tuned_C"]:
        split = [replace(arena, train=inside, test=outside, C=C) for inside, outside in parts]
        means.append(float(np.mean([_score(protocol, fold_arena, member, temperatures) for fold_arena in split])))
    best = settings["tuned_C"][int(np.argmax(means))]
    plain = _score(protocol, arena, member, temperatures)
    tuned = plain
    if best != arena.C:
        tuned = _score(protocol, replace(arena, C=best), member, temperatures)
    return {"C": best, "accuracy": tuned, "plain": plain}


def _cell(eps_y: float, eps_h: float) -> str:
    return f"{eps_y:g},{eps_h:g}"


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    readings = trials.present("reading", settings["readings"], part="temperatures")
    maps = [_map(settings, trials, reading) for reading in readings]
    intro = Text(
        "Every member of the family on the hidden chain by the same solver (L-BFGS with homotopy), C = 1, "
        "Hamming loss. The first number of a cell is the accuracy, the second its paired difference to MSSVM "
        "with standard error. LSSVM is the corner (0, 0), MSSVM is (0, 1), loss-augmented likelihood is (1, 1); "
        "eps_y = eps_h is the eps-extension. The decoder is marginal MAP at the member's own eps_h."
    )
    figure = Figure("Test accuracy (%) over the two temperatures", maps)
    items: list[Text | Table | Figure] = [intro, _tuned_table(settings, trials), *_by_C(settings, trials)]
    if maps:
        items.insert(1, figure)
    return Section(NAME, "Table 1: the family as a map", items, claims(protocol, trials))


def _map(settings: Params, trials: Trials, reading: str) -> str:
    where = {"part": "temperatures", "reading": reading}
    values: list[list[float | None]] = []
    texts = []
    mssvm = at(_cell(0.0, 1.0))
    for eps_y in settings["eps_y"]:
        row_values: list[float | None] = []
        row_texts = []
        for eps_h in settings["eps_h"]:
            accuracy = at(_cell(eps_y, eps_h))
            mean = trials.estimate(accuracy, **where).mean
            second_line = trials.difference(accuracy, mssvm, **where).show(sign=True).replace(" ± ", "±")
            if (eps_y, eps_h) == (0.0, 1.0):
                second_line = "MSSVM"
            row_values.append(mean)
            row_texts.append(f"{mean:.2f}\n{second_line}")
        values.append(row_values)
        texts.append(row_texts)
    rows = [f"{eps_y:g}" for eps_y in settings["eps_y"]]
    columns = [f"{eps_h:g}" for eps_h in settings["eps_h"]]
    likelihood = trials.difference(at("HCRF"), mssvm, **where)
    title = f"Reading {reading} (HCRF: {likelihood.show(sign=True)})"
    return heat_map(title, rows, columns, values, "eps_y", "eps_h", texts)


def _tuned_table(settings: Params, trials: Trials) -> Table:
    rows = []
    for reading in trials.present("reading", settings["readings"], part="tuned"):
        where = {"part": "tuned", "reading": reading}
        for m in settings["tuned_members"]:
            plain = trials.estimate(at(m, "plain"), **where).show()
            tuned = trials.estimate(member_accuracy(m), **where).show()
            chosen = f"{np.median(trials.values(at(m, 'C'), **where)):g}"
            gap = "" if m == "M" else trials.gap("M", m, **where).interval()
            mixed = trials.difference(at("M", "plain"), member_accuracy(m), **where).interval()
            rows.append([reading, _title(m), str(len(trials.where(**where))), plain, tuned, chosen, gap, mixed])
    header = ["reading", "member", "trials", "C = 1", "C by CV", "median C"]
    header += ["MSSVM (CV) - it (CV)", "MSSVM (C = 1) - it (CV)"]
    return Table(f"C chosen by {settings['folds']}-fold cross-validation on the training set", header, rows, n_labels=2)


def _by_C(settings: Params, trials: Trials) -> list[Table]:
    """Test accuracy of the tuned members at every C, and the differences where each has the best C of its row."""
    rows = []
    names = [f"{C:g}" for C in settings["tuned_C"]]
    for reading in trials.present("reading", settings["readings"], part="by C"):
        where = {"part": "by C", "reading": reading}
        best = {}
        for m in settings["tuned_members"]:
            found = [trials.estimate(at(m, C), **where) for C in names]
            best[m] = names[int(np.argmax([estimate.mean for estimate in found]))]
            gap = trials.difference(at("M", best["M"]), at(m, best[m]), **where).interval() if m != "M" else ""
            n = str(len(trials.where(**where)))
            rows.append([reading, _title(m), n, *[estimate.show() for estimate in found], best[m], gap])
    if not rows:
        return []
    header = ["reading", "member", "trials", *[f"C = {C}" for C in names], "best C", "MSSVM - it, each at its best C"]
    note = "The best C is that of the highest mean over these same trials, for every member alike."
    return [Table("Test accuracy (%) by C", header, rows, note, 2)]


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    parts = {r: {"part": "tuned", "reading": r} for r in protocol.settings(NAME)["readings"]}
    out: list[Claim] = []
    for letter, m in zip("abc", ("L", "H", "E"), strict=True):
        label = f"MSSVM - {_title(m)}, C by CV"
        by_reading = {
            reading: trials.compare(label, member_accuracy("M"), member_accuracy(m), where)
            for reading, where in parts.items()
        }
        text = f"Beyond the paper: MSSVM is more accurate than {_title(m)} when both choose C by cross-validation."
        out += claim(protocol, f"11{letter}", text, "", by_reading)
    return out


EXPERIMENT = Experiment(NAME, tasks, run, section)

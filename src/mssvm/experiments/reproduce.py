"""The whole reproduction: run the named experiments, write JSON and the report."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mssvm.core.errors import InputError
from mssvm.experiments import start
from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.collect import Trials
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.table2 import CONTRADICTS
from mssvm.experiments.trials import Store, Trial, key, run_trials
from mssvm.report import Figure, Section, Table, Text, page

FIRST = ("12", "13", "1a", "1b", "11a", "7e")  # claims of the summary: where the paper's gap comes from, then its size
QUICK_MINUTES = 5.0  # of processor time, as a quick run took on one core of an AMD EPYC (4.7)
INPUTS = {"all": "every site has its own", "hidden": "hidden sites only"}
PACKAGES = ("mssvm", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Finished:
    """One experiment's trials and its section of the report."""

    name: str
    trials: list[Trial]
    section: Section


def reproduce(
    names: Sequence[str],
    protocol: Protocol,
    out: Path,
    jobs: int = 1,
    resume: bool = False,
    console: Console | None = None,
) -> list[Finished]:
    """Run the experiments (all by default) and write ``results.json`` and ``report.html`` under ``out``.

    The report also shows experiments with trials in ``out`` from an earlier call with the same settings.
    """
    unknown = [n for n in names if n not in EXPERIMENTS]
    if unknown:
        raise InputError(f"experiment {unknown[0]!r} is unknown; choose from {', '.join(EXPERIMENTS)}.")
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}.")
    began = monotonic()
    console = console or Console(stderr=True)
    chosen = list(dict.fromkeys(names)) or list(EXPERIMENTS)
    if protocol.quick and not names and protocol.trials is None:
        minutes = ceil(QUICK_MINUTES / min(jobs, os.cpu_count() or 1))
        console.print(
            f"All experiments with few trials: about {QUICK_MINUTES:g} minutes of processor time, {minutes} "
            f"minutes with {jobs} process{'es' if jobs > 1 else ''}. Ctrl-C writes the report of what is there."
        )
    with _progress(console) as progress:
        for name in chosen:
            reason = EXPERIMENTS[name].skip(protocol)
            if reason:
                progress.console.print(f"{name} is skipped: it {reason}.")
                continue
            _run(name, protocol, out, jobs, resume, progress)
    finished = collect(protocol, out)
    write(finished, protocol, out, monotonic() - began)
    return finished


def collect(protocol: Protocol, out: Path) -> list[Finished]:
    """The trials under ``out`` that belong to the protocol, in the report's order."""
    finished = []
    for name, experiment in EXPERIMENTS.items():
        wanted = {key(params) for params in experiment.tasks(protocol)}
        known = _store(name, protocol, out).read()
        trials = [known[k] for k in sorted(known) if k in wanted]
        if trials:
            section = experiment.section(protocol, Trials(trials, protocol.confidence))
            finished.append(Finished(name, trials, section))
    return finished


def report_so_far(protocol: Protocol, out: Path, seconds: float) -> int:
    """Write the report of an unfinished run; returns the number of its trials, without which nothing is written."""
    finished = collect(protocol, out)
    if finished:
        write(finished, protocol, out, seconds)
    return sum(len(f.trials) for f in finished)


def write(finished: Sequence[Finished], protocol: Protocol, out: Path, seconds: float) -> None:
    """Write ``results.json`` (every table and claim) and ``report.html``; each replaces its predecessor in one step."""
    tree: dict[str, Any] = {
        "settings": _plain(protocol),
        "experiments": {one.name: _as_json(one) for one in finished},
        "times": {"wall": round(seconds, 1)} | {one.name: _seconds(one.trials) for one in finished},
    }
    _replace(out / "results.json", json.dumps(tree, indent=1, sort_keys=True))
    lead = (
        "Marginal structured SVM with hidden variables (Ping, Liu, Ihler, ICML 2014): the simulated and image "
        "experiments, run again. Every trial draws a new model and new data; all methods of a trial share data, "
        "initial weights and kind of solver, each with its own rate and steps where the paper gives them. A claim's "
        "direction is judged for every reading of the text by itself, pooled over solvers and settings, with a 95% "
        "interval clustered by trial; 'cells decided' counts the single comparisons that lie one way or the other "
        "after Holm's correction. Beside the paper's figure, z is about how many standard errors our difference lies "
        "above it, reading by reading; the errors are those of both, as the paper's own 20 trials have noise, too."
    )
    if protocol.quick:
        lead += " This is a quick run with few trials: it shows that everything works, and decides little."
    sections = [*_summary(protocol, finished), *(f.section for f in finished)]
    settings = _settings(protocol, finished)
    title = "Marginal structured SVM: the paper, reproduced"
    _replace(out / "report.html", page(title, lead, _facts(tree), sections, settings))


def _as_json(one: Finished) -> dict[str, Any]:
    """One experiment's tables and claims as JSON values."""
    tables = [item for item in one.section.items if isinstance(item, Table)]
    return {
        "trials": len(one.trials),
        "tables": [asdict(table) | {"strong": sorted(table.strong)} for table in tables],
        "claims": [asdict(claim) for claim in one.section.claims],
        "ran": _ran(one.trials),
    }


def _seconds(trials: Sequence[Trial]) -> float:
    return round(sum(trial.seconds for trial in trials), 1)


def _summary(protocol: Protocol, finished: Sequence[Finished]) -> list[Section]:
    """The claims that matter most in a line each, the main finding first and with its figure."""
    claims = {claim.number: claim for f in finished for claim in f.section.claims}
    lines = [claims[number] for number in FIRST if number in claims]
    items: list[Text | Table | Figure] = []
    for c in lines:
        text = c.text.removeprefix("Beyond the paper: ")
        verdict = f"{c.verdict[:1].upper()}{c.verdict[1:]}"
        items.append(Text(f"{text[:1].upper()}{text[1:]} {verdict}: {c.effect} {c.unit} (claim {c.number})."))
    for f in finished:
        if f.name == start.NAME:
            items.insert(1, start.picture(protocol, Trials(f.trials, protocol.confidence)))
    return [Section("summary", "Summary", items)] if lines else []


def _run(name: str, protocol: Protocol, out: Path, jobs: int, resume: bool, progress: Progress) -> None:
    experiment = EXPERIMENTS[name]
    tasks = experiment.tasks(protocol)
    bar = progress.add_task(name, total=len(tasks), rate="")
    began = monotonic()
    store = _store(name, protocol, out)
    stored = len(store.read()) if resume else 0
    for k, _ in enumerate(run_trials(experiment.run, protocol, tasks, store, jobs, resume)):
        new = max(k + 1 - stored, 0)
        rate = f"{new / max(monotonic() - began, 1e-9):.2f}/s" if new > 0 else ""
        progress.update(bar, advance=1, rate=rate)


def _store(name: str, protocol: Protocol, out: Path) -> Store:
    return Store(out / f"{name}.jsonl", lambda params: protocol.fingerprint(name, params))


def _progress(console: Console) -> Progress:
    shown = TextColumn("{task.description:>8}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
    return Progress(*shown, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)


def _plain(protocol: Protocol) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "versions": {package: version(package) for package in PACKAGES}}
    return {"protocol": protocol.tree, "quick": protocol.quick, "trials": protocol.trials, **versions}


def _facts(tree: dict[str, Any]) -> list[tuple[str, str]]:
    settings = tree["settings"]
    times = tree["times"]
    versions = ", ".join(f"{k} {v}" for k, v in settings["versions"].items())
    protocol = settings["protocol"]
    facts = [
        ("versions", f"Python {settings['python']}, {versions}"),
        ("seed", str(protocol["seed"])),
        ("C, initial weights", f"{protocol['C']:g}, {protocol['initial_std']:g} N(0, I)"),
        (
            "verdicts",
            f"{100 * protocol['verdict']['confidence']:g}% intervals of paired differences, pooled by reading",
        ),
        ("time", f"this command {times['wall']:g} s"),
    ]
    return facts


def _ran(trials: Sequence[Trial]) -> dict[str, Any]:
    """When trials ran and by which versions; trials from before this was recorded are counted."""
    dated = sorted(trial.when for trial in trials if trial.when)
    return {
        "undated": len(trials) - len(dated),
        "first": dated[0] if dated else "",
        "last": dated[-1] if dated else "",
        "versions": sorted({trial.version for trial in trials if trial.version}),
    }


def _settings(protocol: Protocol, finished: Sequence[Finished]) -> list[Table]:
    """Trials, readings, data and solvers as tables."""
    ran = []
    for f in finished:
        own = _ran(f.trials)
        wanted = len(EXPERIMENTS[f.name].tasks(protocol))
        minutes = f"{sum(trial.seconds for trial in f.trials) / 60:.1f}"
        counts = [str(len(f.trials)), str(wanted or len(f.trials)), minutes]
        dates = [_day(own["first"]), _day(own["last"]), str(own["undated"])]
        ran.append([f.name, *counts, *dates, ", ".join(own["versions"])])
    header = ["experiment", "trials", "of", "minutes", "first (UTC)", "last (UTC)", "undated", "version"]
    note = "Minutes are those of all trials, one process each. Undated trials are from before dates were recorded."
    tree = protocol.tree
    readings = [
        [name, INPUTS[spec["inputs"]], f"{spec['pair_std']:.4g}", CONTRADICTS.get(name, "")]
        for name, spec in tree["readings"].items()
    ]
    data = [[name.replace("_", " "), str(value)] for name, value in tree["data"].items()]
    solvers = []
    for graph, named in tree["solvers"].items():
        for name, spec in named.items():
            rate = _by_member(spec.get("rate"))
            steps = _by_member(spec.get("steps"))
            solvers.append([graph, name, rate, steps, _rest(spec)])
    return [
        Table("Trials", header, ran, note),
        Table("Readings", ["reading", "inputs", "std of pairwise weights", "contradicts"], readings),
        Table("Data", ["setting", "value"], data),
        Table("Solvers", ["graph", "solver", "rate (M / L / H)", "steps", "further"], solvers, n_labels=2),
    ]


def _day(when: str) -> str:
    return when.replace("T", " ")[:16]


def _by_member(setting: Any) -> str:
    """A setting for each member, in the order of the members; a single one holds for all."""
    return "" if setting is None else " / ".join(f"{value:,}" for value in setting.values())


def _rest(spec: dict[str, Any]) -> str:
    named = {k: v for k, v in spec.items() if k not in ("kind", "rate", "steps")}
    return ", ".join([spec["kind"], *(f"{k} {v}" for k, v in named.items())])


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_text(text, "utf-8")
    draft.replace(path)

"""The whole reproduction: run the named experiments, write JSON and the report."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mssvm.core.errors import InputError
from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.collect import Trials
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.trials import Store, Trial, key, run_trials
from mssvm.report import Section, Table, Text, page

FIRST = ("12", "13", "1a", "1b", "7e", "11a")  # claims of the summary: where the paper's gap comes from, then its size
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


def write(finished: Sequence[Finished], protocol: Protocol, out: Path, seconds: float) -> None:
    """Write ``results.json`` (every table and claim) and ``report.html``; each replaces its predecessor in one step."""
    tree: dict[str, Any] = {
        "settings": _plain(protocol),
        "experiments": {
            f.name: {
                "trials": len(f.trials),
                "tables": [asdict(i) | {"strong": sorted(i.strong)} for i in f.section.items if isinstance(i, Table)],
                "claims": [asdict(c) for c in f.section.claims],
            }
            for f in finished
        },
        "times": {"wall": round(seconds, 1), **{f.name: round(sum(t.seconds for t in f.trials), 1) for f in finished}},
    }
    _replace(out / "results.json", json.dumps(tree, indent=1, sort_keys=True))
    lead = (
        "Marginal structured SVM with hidden variables (Ping, Liu, Ihler, ICML 2014): the simulated and image "
        "experiments, run again. Every trial draws a new model and new data; all methods of a trial share data, "
        "initial weights and kind of solver, each with its own rate and steps where the paper gives them. A claim's "
        "direction is judged for every reading of the text by itself, pooled over solvers and settings, with a 95% "
        "interval clustered by trial; 'cells decided' counts the single comparisons that lie one way or the other "
        "after Holm's correction."
    )
    if protocol.quick:
        lead += " This is a quick run with few trials: it shows that everything works, and decides little."
    sections = [*_summary(finished), *(f.section for f in finished)]
    _replace(out / "report.html", page("Marginal structured SVM: the paper, reproduced", lead, _facts(tree), sections))


def _summary(finished: Sequence[Finished]) -> list[Section]:
    """The claims that matter most in a line each, the main finding first."""
    claims = {claim.number: claim for f in finished for claim in f.section.claims}
    lines = [claims[number] for number in FIRST if number in claims]
    texts = [Text(f"{c.text} {c.verdict[:1].upper()}{c.verdict[1:]}: {c.effect} (claim {c.number}).") for c in lines]
    return [Section("summary", "Summary", texts)] if texts else []


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
    count = TextColumn("{task.description:>8}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
    return Progress(*count, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)


def _plain(protocol: Protocol) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "versions": {package: version(package) for package in PACKAGES}}
    return {"protocol": protocol.tree, "quick": protocol.quick, "trials": protocol.trials, **versions}


def _facts(tree: dict[str, Any]) -> list[tuple[str, str]]:
    settings = tree["settings"]
    times = tree["times"]
    versions = ", ".join(f"{k} {v}" for k, v in settings["versions"].items())
    spent = ", ".join(f"{k} {v:g} s" for k, v in times.items() if k != "wall")
    protocol = settings["protocol"]
    facts = [
        ("versions", f"Python {settings['python']}, {versions}"),
        ("seed", str(protocol["seed"])),
        ("C, initial weights", f"{protocol['C']:g}, {protocol['initial_std']:g} N(0, I)"),
        (
            "verdicts",
            f"{100 * protocol['verdict']['confidence']:g}% intervals of paired differences, pooled by reading",
        ),
        ("time", f"this command {times['wall']:g} s; trials, one process each: {spent}"),
    ]
    return facts + [(k, json.dumps(protocol[k])) for k in ("data", "readings", "solvers") if k in protocol]


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_text(text, "utf-8")
    draft.replace(path)

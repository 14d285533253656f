"""``mssvm reproduce``: the paper's tables and figures again, with a verdict on every claim."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console

from mssvm.cli.interrupt import on_interruption
from mssvm.cli.tables import of_report
from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.reproduce import QUICK_MINUTES, report_so_far
from mssvm.experiments.reproduce import reproduce as run
from mssvm.report import Section
from mssvm.report import Table as ReportTable


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Some of {', '.join(EXPERIMENTS)}; all by default.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=2, help="Trials of every experiment; else the protocol's.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Few trials: about {QUICK_MINUTES:g} minutes of processor time.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; as many as cores by default.")] = None,
    out: Annotated[Path, typer.Option(help="Where trials, results.json and report.html go.")] = Path("reproduction"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the trials that are there and run the missing ones.")
    ] = False,
    data: Annotated[
        list[Path] | None, typer.Option(help="A folder of MSRC images, for table4; once for every folder.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all trials; else the protocol's.")] = None,
) -> None:
    """Regenerate the paper's experiments: tables beside the paper's numbers, figures, verdicts, one HTML report.

    Ctrl-C writes a report of the trials that have finished; the same command with --resume continues.
    """
    protocol = Protocol.load(quick, trials, seed, data or ())
    began = monotonic()
    with on_interruption(lambda: _so_far(protocol, out, monotonic() - began)):
        finished = run(names or [], protocol, out, jobs or _cores(), resume)
    console = Console()
    for experiment in finished:
        _show(console, experiment.section)
    console.print(f"Report: {out / 'report.html'}   Data: {out / 'results.json'}")


def _so_far(protocol: Protocol, out: Path, seconds: float) -> str:
    n_trials = report_so_far(protocol, out, seconds)
    if n_trials == 0:
        return "no trial was finished"
    return f"{out / 'report.html'} has the {n_trials} trials that were finished; --resume goes on"


def _cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _show(console: Console, section: Section) -> None:
    for item in section.items:
        if isinstance(item, ReportTable):
            console.print(of_report(item, f"{section.title}. "))
    for claim in section.claims:
        verdict = f"{claim.verdict}, {claim.effect}: {claim.text}"
        console.print(f"[bold]Claim {claim.number}[/bold] {verdict}", highlight=False)

"""``mssvm compare``: several methods on the same folds, as a table and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mssvm.cli import options as o
from mssvm.cli.output import check_target, output
from mssvm.cli.tables import of_report, shown
from mssvm.cli.versions import versions
from mssvm.core.errors import InputError
from mssvm.core.progress import ProgressLine
from mssvm.core.registry import MEMBERS
from mssvm.experiments.comparison import Comparison
from mssvm.experiments.comparison import compare as run
from mssvm.experiments.statistics import Estimate
from mssvm.report import Section, page

SHARES = (0.25, 0.5, 1.0)
WITHOUT_HIDDEN = [member.command for member in MEMBERS.values() if not member.hidden]
ON_PAGE_ONLY = ("95 % interval", "instances all right %")  # a terminal has 80 columns


def compare(
    data: o.Data,
    methods: Annotated[str, typer.Option(help="Names apart by commas.")] = "mssvm,lssvm,hcrf",
    cv: Annotated[int, typer.Option(min=2, help="Number of folds.")] = 5,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    structure: o.Structure = None,
    cost: o.Cost = 1.0,
    hidden: o.Hidden = None,
    edges: o.Edges = None,
    solver: o.Solver = "auto",
    inference: o.Inference = "auto",
    decode: o.Decode = "auto",
    classes: o.Classes = None,
    max_iter: o.MaxIter = None,
    curves: Annotated[bool, typer.Option(help="Also train on parts of each fold, for learning curves.")] = True,
    seed: o.Seed = 0,
    jobs: o.Jobs = -1,
    json_output: o.Json = False,
    form: o.Format = None,
    missing_colour: o.MissingColour = "#ffffff",
    limit: o.Limit = 1,
) -> list[Section]:
    """Cross-validate methods on the same folds: accuracies, paired differences, and a page to look at.

    --hidden is for the methods that have hidden variables; crf and ssvm are compared without.

    Example: mssvm compare data.jsonl --methods mssvm,lssvm,hcrf --cv 5 --html report.html
    """
    if html is not None:
        check_target(html)
    names = list(dict.fromkeys(name.strip().lower() for name in methods.split(",") if name.strip()))
    if not names:
        raise InputError("--methods names no method; give some, such as mssvm,hcrf.")
    found_data = o.read_data(data, o.reading(form, structure, colour=missing_colour, limit=limit))
    settings = {"C": cost, "solver": solver, "inference": inference, "max_iter": max_iter, "decode": decode}
    settings["classes"] = o.classes_of(classes, found_data)
    made = o.make_structure(found_data, hidden, edges)
    of = {n: o.make_structure(found_data, 0, edges) if n in WITHOUT_HIDDEN else made for n in names}
    own = settings | {"random_state": seed, "n_jobs": jobs}
    estimators = {o.METHODS.get(n, n): o.make_estimator(n, of[n], **own) for n in names}
    with ProgressLine("Comparing", "trainings", 1.0) as line:
        found = run(estimators, found_data, cv, seed, SHARES if curves else (1.0,), line)
        seconds = line.seconds
    from mssvm.report.comparison import facts, lead, result_table, sections

    parts = sections(found, found_data)
    if html is not None:
        told = {"data": found_data.name, "structure": repr(made), "folds": cv, "seed": seed, **settings}
        at_end = facts(told, versions(), seconds)
        text = page("Comparison", lead(found, found_data), at_end, parts)
        with output(html) as file:
            file.write(text)
    if json_output:
        print(json.dumps(_fields(found)))
        return parts
    console = Console()
    console.print(of_report(result_table(found), without=ON_PAGE_ONLY))
    if html is not None:
        console.print(shown(f"Page: {html}"))
    return parts


def _fields(found: Comparison) -> dict[str, Any]:
    first = found.methods[0]
    return {
        "folds": found.n_folds,
        "methods": {
            name: {
                "accuracy": Estimate.of(found.accuracies(name)).as_json(),
                "difference": Estimate.paired(found.accuracies(name), found.accuracies(first)).as_json(),
                "accuracy_by_fold": found.accuracies(name).tolist(),
                "pooled": found.pooled[name].to_json(),
            }
            for name in found.methods
        },
    }

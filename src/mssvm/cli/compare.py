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
ON_PAGE_ONLY = ("95 % interval", "instances all right %")  # columns that do not fit on a terminal of 80 characters


def compare(
    data: o.Data,
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "mssvm,lssvm,hcrf",
    cv: Annotated[int, typer.Option(min=2, help="Number of folds.")] = 5,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    structure: o.Structure = None,
    cost: o.Cost = 1.0,
    hidden: o.Hidden = None,
    edges: o.Edges = None,
    constraints: o.Constraints = None,
    max_length: o.MaxLength = None,
    solver: o.Solver = "auto",
    inference: o.Inference = "auto",
    decode: o.Decode = "auto",
    classes: o.Classes = None,
    missing_label: o.MissingLabel = None,
    max_iter: o.MaxIter = None,
    curves: Annotated[bool, typer.Option(help="Also train on parts of each fold, for learning curves.")] = True,
    seed: o.Seed = 0,
    jobs: o.Jobs = -1,
    json_output: o.Json = False,
    form: o.Format = None,
    columns: o.Columns = None,
    missing_colour: o.MissingColour = "#ffffff",
    limit: o.Limit = 1,
) -> list[Section]:
    """Cross-validate methods on the same folds: accuracies, paired differences, and a page to look at.

    --hidden is for the methods that have hidden variables; crf and ssvm are compared without.

    Example: mssvm compare data.jsonl --methods mssvm,lssvm,hcrf --cv 5 --html report.html
    """
    if html is not None:
        check_target(html, data)
    names = list(dict.fromkeys(name.strip().lower() for name in methods.split(",") if name.strip()))
    if not names:
        raise InputError("--methods names no method; give some, such as mssvm,hcrf.")
    missing = o.label_of(missing_label)
    reading = o.reading(form, structure, colour=missing_colour, limit=limit, missing_label=missing, columns=columns)
    dataset = o.read_data(data, reading)
    settings = {"C": cost, "solver": solver, "inference": inference, "max_iter": max_iter, "decode": decode}
    settings["classes"] = o.classes_of(classes, dataset)
    made = o.make_structure(dataset, hidden, edges, constraints, structure, max_length)
    estimators = {}
    for name in names:
        own = made
        if name in WITHOUT_HIDDEN:
            own = o.make_structure(dataset, 0, edges, constraints, structure, max_length)
        estimators[o.METHODS.get(name, name)] = o.make_estimator(name, own, **settings, random_state=seed, n_jobs=jobs)
    with ProgressLine("Comparing", "trainings", 1.0) as line:
        comparison = run(estimators, dataset, cv, seed, SHARES if curves else (1.0,), line)
        seconds = line.seconds
    from mssvm.report.comparison import facts, lead, result_table, sections

    parts = sections(comparison, dataset)
    if html is not None:
        shown_settings = {"data": dataset.name, "structure": repr(made), "folds": cv, "seed": seed, **settings}
        footer = facts(shown_settings, versions(), seconds)
        text = page("Comparison", lead(comparison, dataset), footer, parts)
        with output(html) as file:
            file.write(text)
    if json_output:
        print(json.dumps(_fields(comparison)))
        return parts
    console = Console()
    console.print(of_report(result_table(comparison), without=ON_PAGE_ONLY))
    for sentence in comparison.warnings():
        console.print(shown(sentence))
    if html is not None:
        console.print(shown(f"Page: {html}"))
    return parts


def _fields(comparison: Comparison) -> dict[str, Any]:
    first = comparison.methods[0]
    return {
        "folds": comparison.n_folds,
        "warnings": comparison.warnings(),
        "methods": {
            name: {
                "accuracy": Estimate.of(comparison.accuracies(name)).as_json(),
                "difference": Estimate.paired(comparison.accuracies(name), comparison.accuracies(first)).as_json(),
                "accuracy_by_fold": comparison.accuracies(name).tolist(),
                "pooled": comparison.pooled[name].to_json(),
            }
            for name in comparison.methods
        },
    }

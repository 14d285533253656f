"""``mssvm check``: what a data file holds, and everything that is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from mssvm.cli import options as o
from mssvm.cli.tables import columns, pairs
from mssvm.core.text import printable
from mssvm.data.dataset import Dataset
from mssvm.data.metrics import is_bio
from mssvm.data.readers import check as check_file
from mssvm.data.readers.stream import shown_name


def check(
    data: o.Data,
    structure: o.Structure = None,
    most: Annotated[int, typer.Option("--problems", min=1, help="How many problems to list.")] = 20,
    json_output: o.Json = False,
    form: o.Format = None,
    unlabelled: o.Unlabelled = False,
    missing_colour: o.MissingColour = "#ffffff",
    limit: o.Limit = 1,
) -> None:
    """Look through a data set: sizes, features, how much is labelled, and problems with their lines.

    Example: mssvm check train.jsonl

    The exit code is 0 if nothing is wrong and 2 otherwise.
    """
    options = o.reading(form, structure, unlabelled, missing_colour, limit)
    with o.progress(data, "Reading") as line:
        found, problems = check_file(data, replace(options, progress=line), most)
    fields = {} if found is None else describe(found)
    if json_output:
        print(json.dumps({"data": shown_name(data), **fields, "problems": problems}))
    else:
        _show(Console(), fields, shown_name(data))
        told = "".join(f"{printable(line)}\n" for line in problems)
        typer.echo(told or "No problems found.\n", nl=False, err=bool(problems))
    if problems:
        raise typer.Exit(2)


def describe(data: Dataset) -> dict[str, Any]:
    """Figures of a data set, as JSON values."""
    shapes = data.shapes
    sizes = np.array([int(np.prod(s)) if s else 1 for s in shapes])
    lengths = sizes if data.kind != "sequence" else np.array([len(x) for x in data.X])
    flat = [] if data.y is None else list(_flat(data.y, len(shapes[0]) + 1))
    labels = Counter(v for v in flat if v is not None and not isinstance(v, list))
    return {
        "structure": data.kind,
        "instances": len(data),
        "sites": int(sizes.sum()),
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
        "features": _features(data),
        "labelled": sum(labels.values()),
        "candidates": sum(isinstance(v, list) for v in flat),
        "missing": int(sizes.sum()) - sum(v is not None for v in flat),
        "bio_tags": is_bio(labels),
        "classes": {str(k): n for k, n in sorted(labels.items(), key=lambda item: str(item[0]))},
    }


def _features(data: Dataset) -> str:
    x = data.X[0]
    if hasattr(x, "nodes"):
        x = x.nodes
    x = x["x"] if isinstance(x, dict) and data.kind != "multilabel" else x
    return f"{x.shape[-1]} numbers per site" if isinstance(x, np.ndarray) else "named"


def _flat(values: Any, depth: int) -> Any:
    if depth == 0:
        yield values
        return
    for value in values:
        yield from _flat(value, depth - 1)


def _show(console: Console, fields: dict[str, Any], name: str) -> None:
    if not fields:
        return
    console.print(pairs(name, ((k, v) for k, v in fields.items() if k not in ("classes", "bio_tags"))))
    if fields["classes"]:
        console.print(columns("Labels", ("class", "sites"), fields["classes"].items()))

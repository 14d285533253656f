"""``mssvm check``: a summary of a data file, and its problems with their lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from mssvm.cli import options as o
from mssvm.cli.tables import columns, pairs
from mssvm.core.errors import InputError
from mssvm.core.text import printable
from mssvm.data.chunks import is_bio
from mssvm.data.dataset import Dataset
from mssvm.data.features import FeatureSchema
from mssvm.data.labels import MANY_CLASSES, is_negative, labels_of
from mssvm.data.readers import check as check_file
from mssvm.data.readers.stream import shown_name
from mssvm.structures.base import SOURCE_TITLES


def check(
    data: o.Data,
    structure: o.Structure = None,
    most: Annotated[int, typer.Option("--problems", min=1, help="How many problems to list.")] = 20,
    json_output: o.Json = False,
    form: o.Format = None,
    columns: o.Columns = None,
    unlabelled: o.Unlabelled = False,
    missing_colour: o.MissingColour = "#ffffff",
    missing_label: o.MissingLabel = None,
    limit: o.Limit = 1,
) -> None:
    """Check a data set: sizes, features, how much is labelled, and problems with their lines.

    Example: mssvm check train.jsonl

    The exit code is 0 if nothing is wrong and 2 otherwise.
    """
    options = o.reading(
        form, structure, unlabelled, missing_colour, limit, missing_label=o.label_of(missing_label), columns=columns
    )
    with o.progress(data, "Reading") as line:
        dataset, problems = check_file(data, replace(options, progress=line), most)
    fields = {} if dataset is None else describe(dataset)
    if dataset is not None:
        problems += label_problems(dataset)
    if dataset is not None and not problems:
        problems += training_problems(dataset)
    if json_output:
        print(json.dumps({"data": shown_name(data), **fields, "problems": problems}))
    else:
        _show(Console(), fields, shown_name(data))
        for problem in problems:
            typer.echo(printable(problem), err=True)
        if not problems:
            typer.echo("No problems found.")
    if problems:
        raise typer.Exit(2)


def training_problems(data: Dataset) -> list[str]:
    """What training would refuse although every instance can be read: features that differ between instances, labels
    that are no valid text."""
    structure = o.make_structure(data, None)
    try:
        with data.places():
            for name, items in structure.read(structure.instances(data.X)).sources.items():
                FeatureSchema.learn(items, SOURCE_TITLES.get(name, name))
        if data.y is not None:
            labels_of(data.y, structure.depth, None)
    except InputError as error:
        sentence = str(error)
        return [sentence if sentence.startswith(data.name) else f"{data.name}: {sentence}"]
    return []


def label_problems(data: Dataset) -> list[str]:
    """Problems of the labels as a whole, which no single line shows."""
    if data.y is None:
        return []
    out = []
    classes = set(_single_labels(data))
    if len(classes) > MANY_CLASSES:
        out.append(f"{data.name}: there are {len(classes):,} classes; check that these are labels, not measurements.")
    for b, y in enumerate(data.y):
        labels = list(_flat([y], len(data.shapes[0]) + 1))
        members = [label for part in labels for label in (part if isinstance(part, list) else [part])]
        negative = next((label for label in members if is_negative(label)), None)
        if negative is not None:
            out.append(
                f"{data.place(b)}: the label {negative} is below zero; add --missing-label {negative} where it stands "
                f"for a missing label, or --classes with {negative} among them where it is a class (in fit)."
            )
            break
    return out


def _single_labels(data: Dataset) -> Iterator[Any]:
    for label in _flat(data.y, len(data.shapes[0]) + 1):
        if label is not None and not isinstance(label, list):
            yield label


def describe(data: Dataset) -> dict[str, Any]:
    """Figures of a data set, as JSON values."""
    shapes = data.shapes
    sizes = np.array([prod(shape) for shape in shapes])
    lengths = sizes
    if data.kind == "sequence":
        lengths = np.array([len(x) for x in data.X])
    site_labels = [] if data.y is None else list(_flat(data.y, len(shapes[0]) + 1))
    labels = Counter(label for label in site_labels if label is not None and not isinstance(label, list))
    return {
        "structure": data.kind,
        "instances": len(data),
        "sites": int(sizes.sum()),
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
        "features": _features(data),
        "labelled": sum(labels.values()),
        "candidates": sum(isinstance(label, list) for label in site_labels),
        "missing": int(sizes.sum()) - sum(label is not None for label in site_labels),
        "bio_tags": is_bio(labels),
        "classes": {str(k): n for k, n in sorted(labels.items(), key=lambda item: str(item[0]))},
        "annotators": _votes(data, len(shapes[0])),
    }


def _votes(data: Dataset, depth: int) -> dict[str, int]:
    """How many votes each annotator gave."""
    counts: Counter[str] = Counter()
    for given in data.votes or []:
        for name, labels in given.items():
            counts[name] += sum(label is not None for label in _flat(labels, depth))
    return dict(counts.most_common())


def _features(data: Dataset) -> str:
    """The kind of the features, from those of the first instance."""
    x = data.X[0]
    if hasattr(x, "nodes"):
        x = x.nodes
    if isinstance(x, dict) and data.kind != "multilabel":
        x = x["x"]
    if isinstance(x, np.ndarray):
        return f"{x.shape[-1]} numbers per site"
    return "named"


def _flat(values: Any, depth: int) -> Iterator[Any]:
    """The items of lists nested ``depth`` deep."""
    if depth == 0:
        yield values
        return
    for value in values:
        yield from _flat(value, depth - 1)


def _show(console: Console, fields: dict[str, Any], name: str) -> None:
    if not fields:
        return
    tabled = ("classes", "bio_tags", "annotators")
    console.print(pairs(name, ((k, v) for k, v in fields.items() if k not in tabled)))
    if fields["classes"]:
        console.print(columns("Labels", ("class", "sites"), fields["classes"].items()))
    if fields["annotators"]:
        console.print(columns("Votes", ("annotator", "votes"), fields["annotators"].items()))

"""``mssvm evaluate``: how good a model is on labelled data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import prod
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mssvm.cli import options as o
from mssvm.cli.output import columns, pairs
from mssvm.core.progress import ProgressLine
from mssvm.data.dataset import Dataset
from mssvm.data.metrics import Scores
from mssvm.data.metrics import evaluate as score_states
from mssvm.data.readers.stream import shown_name

SITES_AT_ONCE = 1 << 15


def evaluate(
    model: o.Model,
    data: o.Data,
    decode: o.DecodeOf = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="A row for every class.")] = False,
    json_output: o.Json = False,
    jobs: o.Jobs = -1,
    form: o.Format = None,
    missing_colour: o.MissingColour = "#ffffff",
    cluster: o.Cluster = None,
) -> None:
    """Compare a model's predictions with the labels of a data set; missing labels do not count, and labels that the
    model never met are wrong.

    Example: mssvm evaluate model.safetensors test.jsonl --by-class

    Of BIO and BIOES tags (O, B-x, I-x, E-x, S-x) the chunks are compared, too.
    """
    from mssvm.estimators import load

    estimator = load(model)
    estimator.set_params(n_jobs=jobs, decode=decode or estimator.decode)
    reading = o.reading(form, o.kind_of(estimator.structure_), colour=missing_colour)
    with o.shards(cluster, data, reading) as sharded:
        found = scores(estimator, o.read_data(data, reading)) if sharded is None else shard_scores(estimator, sharded)
    name = shown_name(data)
    if json_output:
        print(json.dumps({"model": str(model), "data": name, **found.to_json()}))
        return
    console = Console()
    console.print(_summary(found, name, set(estimator.labels_.classes)))
    if by_class:
        console.print(_classes(found))


def scores(estimator: Any, data: Dataset) -> Scores:
    """Predictions against the labels that are given."""
    shapes = data.shapes
    with data.places():
        labels = estimator.labels_.widened(data.labels, estimator.structure_.depth)
        truth = labels.encode(data.labels, shapes)
        predicted = predictions(estimator, data)
    return score_states(labels, truth, labels.encode(predicted, shapes).states)


def shard_scores(estimator: Any, data: Any) -> Scores:
    """The same of shards, on a cluster."""
    from mssvm.estimators.sharded import Answers

    labels, truth, found = Answers(estimator).compared(data, None)
    return score_states(labels, truth, found.states)


def predictions(estimator: Any, data: Dataset) -> list[Any]:
    """Predicted labels of all instances, some at a time."""
    out: list[Any] = []
    with ProgressLine("Predicting", "instances", 1.0) as line:
        for part in portions(data):
            out.extend(estimator.predict([data.X[b] for b in part], hidden=_hidden(data, part)))
            line(len(out), len(data))
    return out


def portions(data: Dataset) -> Iterable[range]:
    """Ranges of instances of a bounded number of sites."""
    first = sites = 0
    for b, (x, shape) in enumerate(zip(data.X, data.shapes, strict=True)):
        sites += prod(shape) if shape else len(x)
        if sites >= SITES_AT_ONCE:
            yield range(first, b + 1)
            first, sites = b + 1, 0
    if first < len(data):
        yield range(first, len(data))


def _hidden(data: Dataset, part: range) -> Any:
    return None if data.hidden is None else [data.hidden[b] for b in part]


def _summary(found: Scores, name: str, known: set[Any]) -> Table:
    rows = [
        ("accuracy", f"{found.accuracy:.2%}"),
        ("labelled sites", f"{found.n_sites}"),
        ("unlabelled sites", f"{found.n_unlabelled}"),
        ("instances all right", f"{found.whole:.2%} of {found.n_instances}"),
    ]
    unseen = {label: rates.support for label, rates in found.by_class.items() if label not in known}
    if unseen:
        listed = ", ".join(f"{label} ({n})" for label, n in unseen.items())
        rows.insert(3, ("never seen in training", f"{listed}: counted as wrong"))
    if found.spans is not None:
        spans = found.spans
        rows.append(("span F1", f"{spans.f1:.2%} (precision {spans.precision:.2%}, recall {spans.recall:.2%})"))
        rows.append(("spans", f"{spans.support}"))
    return pairs(f"Labels of {name}", rows)


def _classes(found: Scores) -> Table:
    rows = (
        (label, f"{rates.precision:.2%}", f"{rates.recall:.2%}", f"{rates.f1:.2%}", rates.support)
        for label, rates in found.by_class.items()
    )
    return columns("By class", ("class", "precision", "recall", "F1", "sites"), rows)

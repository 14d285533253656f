"""``mssvm evaluate``: a model's predictions against the labels of a data set."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mssvm.cli import options as o
from mssvm.cli.scoring import scores, shard_scores
from mssvm.cli.tables import columns, pairs
from mssvm.data.metrics import Scores
from mssvm.data.readers.stream import shown_name


def evaluate(
    model: o.Model,
    data: o.Data,
    decode: o.DecodeOf = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="A row for every class.")] = False,
    json_output: o.Json = False,
    cluster: o.Cluster = None,
    jobs: o.Jobs = -1,
    form: o.Format = None,
    missing_colour: o.MissingColour = "#ffffff",
    limit: o.Limit = 1,
) -> None:
    """Compare a model's predictions with the labels of a data set; missing labels do not count, and labels that the
    model never met are wrong.

    Example: mssvm evaluate model.safetensors test.jsonl --by-class

    Of BIO and BIOES tags (O, B-x, I-x, E-x, S-x) the chunks are compared, too.
    """
    from mssvm.estimators import load

    estimator = load(model)
    estimator.set_params(n_jobs=jobs, decode=decode or estimator.decode)
    reading = o.reading(form, o.kind_of(estimator.structure_), colour=missing_colour, limit=limit)
    with o.shards(cluster, data, reading) as sharded:
        if sharded is None:
            result = scores(estimator, o.read_data(data, reading))
        else:
            result = shard_scores(estimator, sharded)
    name = shown_name(data)
    if json_output:
        print(json.dumps({"model": str(model), "data": name, **result.to_json()}))
        return
    console = Console()
    console.print(_summary(result, name, set(estimator.labels_.classes)))
    if by_class:
        console.print(_classes(result))


def _summary(result: Scores, name: str, trained: set[Any]) -> Table:
    rows = [
        ("accuracy", f"{result.accuracy:.2%}"),
        ("labelled sites", f"{result.n_sites}"),
        ("unlabelled sites", f"{result.n_unlabelled}"),
        ("instances all right", f"{result.whole:.2%} of {result.n_labelled_instances}"),
    ]
    untrained = {label: rates.support for label, rates in result.by_class.items() if label not in trained}
    # A label that occurs in candidate sets only has no support.
    listed = ", ".join(f"{label} ({n})" for label, n in untrained.items() if n)
    if listed:
        rows.insert(3, ("never seen in training", f"{listed}: counted as wrong"))
    if result.spans is not None:
        spans = result.spans
        rows.append(("span F1", f"{spans.f1:.2%} (precision {spans.precision:.2%}, recall {spans.recall:.2%})"))
        rows.append(("spans", f"{spans.support}"))
    return pairs(f"Labels of {name}", rows)


def _classes(result: Scores) -> Table:
    rows = (
        (label, f"{rates.precision:.2%}", f"{rates.recall:.2%}", f"{rates.f1:.2%}", rates.support)
        for label, rates in result.by_class.items()
    )
    return columns("By class", ("class", "precision", "recall", "F1", "sites"), rows)

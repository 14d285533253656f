"""``mssvm evaluate``: a model's predictions against the labels of a data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mssvm.cli import options as o
from mssvm.cli import tables
from mssvm.cli.scoring import scores, shard_scores
from mssvm.data.metrics import Rates, Scores, averages
from mssvm.data.readers.stream import shown_name


def evaluate(
    model: o.Model,
    data: o.Data,
    decode: o.DecodeOf = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="A row for every class, type of span and label.")
    ] = False,
    json_output: o.Json = False,
    cluster: o.Cluster = None,
    jobs: o.Jobs = -1,
    structure: o.Structure = None,
    form: o.Format = None,
    columns: o.Columns = None,
    missing_colour: o.MissingColour = "#ffffff",
    missing_label: o.MissingLabel = None,
    limit: o.Limit = 1,
) -> None:
    """Compare a model's predictions with the labels of a data set; missing labels do not count, and labels unseen in
    training are wrong.

    Example: mssvm evaluate model.safetensors test.jsonl --by-class

    With BIO and BIOES tags (O, B-x, I-x, E-x, S-x) the chunks are compared, too; --by-class has a row for each of their
    types, and with several labels (multilabel) a row for each label.
    """
    from mssvm.estimators import load

    estimator = load(model)
    estimator.set_params(n_jobs=jobs, decode=decode or estimator.decode)
    kind = o.kind_of(estimator.structure_, structure)
    missing = o.label_of(missing_label)
    if missing is None:
        missing = estimator.missing_label
    reading = o.reading(form, kind, colour=missing_colour, limit=limit, missing_label=missing, columns=columns)
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
    if not by_class:
        return
    if result.by_label is None:
        console.print(_rates("By class", "class", result.by_class, "sites"))
    else:
        console.print(_rates("By label", "label", {**result.by_label, **averages(result.by_label)}, "instances"))
    if result.spans_by_type is not None:
        by_type = {name or "(no name)": rates for name, rates in result.spans_by_type.items()}
        console.print(_rates("By type of span", "type", {**by_type, **averages(by_type)}, "spans"))


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
    spans = result.spans
    if spans is not None and not (spans.support or spans.predicted):
        rows.append(("span F1", "none: the labels determine no span"))
    elif spans is not None:
        rows.append(("span F1", f"{spans.f1:.2%} (precision {spans.precision:.2%}, recall {spans.recall:.2%})"))
        rows.append(("spans", f"{spans.support}"))
    return tables.pairs(f"Labels of {name}", rows)


def _rates(title: str, what: str, rates: Mapping[Any, Rates], counted: str) -> Table:
    rows = (
        (name, f"{part.precision:.2%}", f"{part.recall:.2%}", f"{part.f1:.2%}", part.support)
        for name, part in rates.items()
    )
    return tables.columns(title, (what, "precision", "recall", "F1", counted), rows)

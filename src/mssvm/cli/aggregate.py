"""``mssvm aggregate``: the true labels behind the votes of several annotators, and a page on the annotators."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mssvm.cli import options as o
from mssvm.cli.output import answer_record, check_target, output
from mssvm.cli.versions import versions
from mssvm.core.errors import InputError
from mssvm.data.dataset import Dataset
from mssvm.data.metrics import evaluate as score_states
from mssvm.data.readers.conll import with_column
from mssvm.data.readers.read import writes_columns
from mssvm.data.readers.stream import STDIN


def aggregate(
    model: o.Model,
    data: o.Data,
    out: Annotated[Path, typer.Option("-o", "--output", help="File to write (.gz packs it).")] = Path(STDIN),
    marginals: Annotated[bool, typer.Option("--marginals", help="Add the probability of every class.")] = False,
    html: Annotated[Path | None, typer.Option(help="Page on the annotators to write.")] = None,
    doubts: Annotated[int, typer.Option(min=1, help="How many sites worth a second look the page lists.")] = 30,
    decode: o.DecodeOf = None,
    vote_columns: o.VoteColumns = None,
    jobs: o.Jobs = -1,
    form: o.Format = None,
    limit: o.Limit = 1,
) -> None:
    """Find the true labels of a data set given its features and the votes of annotators.

    Example: mssvm fit votes.jsonl -o model.safetensors --method hcrf --annotators

    Example: mssvm aggregate model.safetensors votes.jsonl -o labels.jsonl --html annotators.html

    The output has the format of mssvm predict. Labels 'y' in the data are not used; if there are any, the share of
    aggregated labels that agree with them is printed.
    """
    from mssvm.annotators import review
    from mssvm.annotators.votes import with_gold
    from mssvm.estimators import load
    from mssvm.report import page
    from mssvm.report.annotation import sections

    if html is not None:
        check_target(html, model, data)
        if str(html) != STDIN and html.resolve() == out.resolve():
            raise InputError(f"{html} cannot hold both the labels and the page; name another file for one of them.")
    if str(out) != STDIN:
        check_target(out, model, data)
    estimator = load(model)
    if not hasattr(estimator, "confusion_"):
        raise InputError(f"{model} was not trained on votes; train it with mssvm fit --annotators.")
    estimator.set_params(n_jobs=jobs, decode=decode or estimator.decode)
    as_columns = writes_columns(data, form, out)
    if as_columns and marginals:
        raise InputError("--marginals needs JSON lines; leave --format conll out, or name a .jsonl file.")
    reading = o.reading(form, o.kind_of(estimator.structure_), limit=limit, vote_columns=vote_columns)
    dataset = o.read_data(data, replace(reading, sources=as_columns))
    votes = with_gold(o.votes_of(dataset), dataset.unlabelled())
    with dataset.places():
        labels, probabilities = estimator.aggregate(dataset.X, votes, marginals=True)
    with output(out) as file:
        for b, y in enumerate(labels):
            if as_columns and dataset.sources is not None:
                file.write(with_column(dataset.sources[b], y))
                continue
            record = answer_record(dataset.ids[b], y, estimator.classes_, probabilities[b] if marginals else None)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    if html is not None:
        found = review(estimator, dataset.X, votes, doubts)
        sentence = f"{len(labels)} instances of {dataset.name}, votes of {len(found.table)} annotators."
        parts = sections(found, dataset.place)
        with output(html) as file:
            file.write(page(f"Annotators of {dataset.name}", sentence, list(versions().items()), parts))
    if str(out) != STDIN:
        _print_summary(estimator, dataset, labels, out, html)


def _print_summary(estimator: Any, dataset: Dataset, labels: Any, out: Path, html: Path | None) -> None:
    if dataset.y is not None:
        with dataset.places():
            vocabulary = estimator.labels_.widened(dataset.y, estimator.structure_.depth)
            truth = vocabulary.encode(dataset.y, dataset.shapes)
        result = score_states(vocabulary, truth, vocabulary.encode(list(labels), dataset.shapes).states)
        spans = "" if result.spans is None else f", span F1 {result.spans.f1:.2%}"
        print(f"Agreement with y: {result.accuracy:.2%} of {result.n_sites} labelled sites{spans}")
    print(estimator.prediction_status_)
    print(f"Wrote {out}" if html is None else f"Wrote {out} and {html}")

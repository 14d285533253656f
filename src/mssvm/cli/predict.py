"""``mssvm predict``: labels for a data file, as JSON lines or a further column; for pictures, as masks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mssvm.cli import options as o
from mssvm.cli.masks import write_masks
from mssvm.cli.output import answer_record, check_target, output, plain_labels
from mssvm.core.errors import InputError
from mssvm.data.dataset import Dataset
from mssvm.data.labels import plain
from mssvm.data.readers import Options, read_parts
from mssvm.data.readers.conll import with_column
from mssvm.data.readers.read import writes_columns
from mssvm.data.readers.stream import STDIN

AT_ONCE = 1000  # instances in memory


def predict(
    model: o.Model,
    data: o.Data,
    out: Annotated[
        Path, typer.Option("-o", "--output", help="File to write (.gz packs it); for pictures also a folder.")
    ] = Path(STDIN),
    marginals: Annotated[bool, typer.Option("--marginals", help="Add the probability of every class.")] = False,
    decode: o.DecodeOf = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Add the K best labellings and their scores.")] = None,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Pictures of how unsure each pixel is, beside the masks.")
    ] = False,
    jobs: o.Jobs = -1,
    structure: o.Structure = None,
    form: o.Format = None,
    columns: o.Columns = None,
    limit: o.Limit = 1,
    unlabelled: o.Unlabelled = False,
    cluster: o.Cluster = None,
) -> None:
    """Predict the labels of a data set: by default one JSON object per instance, in the order of the data.

    Example: mssvm predict model.safetensors new.jsonl --marginals -o predicted.jsonl

    Each object has "y" and, where the input has one, its "id". --marginals adds "classes" and "marginals" (for each
    site one probability per class), --top-k adds "top". Labels in the data are ignored.

    With --format conll, or where the output's name ends as those of CoNLL files do, the columns of the data are written
    with the predicted label as one more column: the form that conlleval reads.

    Example: mssvm predict model.safetensors FOLDER -o PREDICTED --uncertainty

    For an image folder -o may name a folder: masks/NAME.png are indexed PNG pictures in the colours of the training
    masks, uncertainty/NAME.png the entropies of the pixels (white: all classes are equally probable).

    Example: mssvm predict model.safetensors 'new/part-*.jsonl' -o PREDICTED --cluster tcp://scheduler:8786
    """
    from mssvm.estimators import load

    to_images = data.is_dir() and str(out) != STDIN and (out.is_dir() or not out.suffix)
    if to_images and (marginals or top_k is not None):
        raise InputError(f"--marginals and --top-k need JSON lines, and {out} is a folder; name a file.")
    if uncertainty and not to_images:
        raise InputError("--uncertainty draws pictures: it needs an image folder, and a folder for -o.")
    if not to_images and str(out) != STDIN and cluster is None:
        check_target(out, model, data)
    estimator = load(model)
    estimator.set_params(n_jobs=jobs, decode=decode or estimator.decode)
    as_columns = cluster is None and writes_columns(data, form, out)
    if as_columns and (marginals or top_k):
        raise InputError("--marginals and --top-k need JSON lines; leave --format conll out, or name a .jsonl file.")
    kind = o.kind_of(estimator.structure_, structure)
    reading = o.reading(form, kind, unlabelled, limit=limit, missing_label=estimator.missing_label, columns=columns)
    options = replace(reading, sources=as_columns)
    if cluster is not None:
        if marginals or top_k or uncertainty or str(out) == STDIN:
            raise InputError("--cluster writes labels alone, one file a shard, to a folder: name it with -o.")
        with o.shards(cluster, data, options) as sharded:
            print(f"Wrote {len(estimator.predict(sharded, output=out))} files to {out}")
    elif to_images:
        with o.progress(data, "Predicting") as line:
            written = write_masks(estimator, data, out, options, uncertainty, line)
        print(f"Wrote {len(written)} masks to {out / 'masks'}")
    else:
        _write(estimator, data, out, options, marginals, top_k)


def _write(estimator: Any, data: Path, out: Path, options: Options, marginals: bool, top_k: int | None) -> None:
    """Write one JSON object per instance or, if ``options.sources``, the lines of the data with one more column."""
    from mssvm.estimators.prediction_status import PredictionStatus

    statuses: list[PredictionStatus] = []
    with output(out) as file, o.progress(data, "Predicting") as line:
        for part in read_parts(data, AT_ONCE, replace(options, progress=line)):
            records = _records(estimator, part, marginals, top_k)
            statuses.append(estimator.prediction_status_)
            for b, record in enumerate(records):
                if options.sources and part.sources is not None:
                    file.write(with_column(part.sources[b], record["y"]))
                else:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    if statuses and str(out) != STDIN:
        print(PredictionStatus.joined(statuses))


def _records(estimator: Any, data: Dataset, marginals: bool, top_k: int | None) -> list[dict[str, Any]]:
    with data.places():
        probabilities: Any = [None] * len(data)
        labels = estimator.predict(data.X, hidden_sites=data.hidden)
        if marginals:
            probabilities = estimator.predict_marginals(data.X, hidden_sites=data.hidden)
        records = [
            answer_record(name, y, estimator.classes_, p)
            for name, y, p in zip(data.ids, labels, probabilities, strict=True)
        ]
        if hasattr(estimator, "predict_segments"):
            for record, found in zip(records, estimator.predict_segments(data.X), strict=True):
                spans = [[s.start, s.stop, plain(s.label), round(s.probability, 6)] for s in found]
                record["segments"] = spans
        if top_k is not None:
            best, scores = estimator.predict_topk(data.X, top_k, hidden_sites=data.hidden)
            for record, ys, values in zip(records, best, scores, strict=True):
                record["top"] = [
                    {"y": plain_labels(y), "score": round(float(s), 6)} for y, s in zip(ys, values, strict=True)
                ]
    return records

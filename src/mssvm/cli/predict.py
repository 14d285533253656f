"""``mssvm predict``: labels for a data file, as JSON lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mssvm.cli import options as o
from mssvm.cli.output import output
from mssvm.data.dataset import Dataset
from mssvm.data.labels import plain
from mssvm.data.readers import read_parts
from mssvm.data.readers.stream import STDIN

AT_ONCE = 1000  # instances in memory


def predict(
    model: o.Model,
    data: o.Data,
    out: Annotated[Path, typer.Option("-o", "--output", help="JSON lines to write (.gz packs them).")] = Path(STDIN),
    marginals: Annotated[bool, typer.Option("--marginals", help="Add the probability of every class.")] = False,
    top_k: Annotated[int | None, typer.Option(min=1, help="Add the K best labellings and their scores.")] = None,
    jobs: o.Jobs = -1,
    form: o.Format = None,
    unlabelled: o.Unlabelled = False,
) -> None:
    """Predict the labels of a data set: one JSON object per instance, in the order of the data.

    Example: mssvm predict model.safetensors new.jsonl --marginals -o predicted.jsonl

    Each object has "y" and, where the input has one, its "id". --marginals adds "classes" and "marginals" (for each
    site one probability per class), --top-k adds "top". Labels in the data are ignored.
    """
    from mssvm.estimators import load

    estimator = load(model)
    estimator.n_jobs = jobs
    options = o.reading(form, o.kind_of(estimator.structure_), unlabelled)
    with output(out) as file, o.progress(data, "Predicting") as line:
        for part in read_parts(data, AT_ONCE, replace(options, progress=line)):
            for record in _records(estimator, part, marginals, top_k):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _records(estimator: Any, data: Dataset, marginals: bool, top_k: int | None) -> list[dict[str, Any]]:
    with data.places():
        records: list[dict[str, Any]] = []
        for name, y in zip(data.ids, estimator.predict(data.X, hidden=data.hidden), strict=True):
            records.append({"y": _plain(y)} if name is None else {"id": name, "y": _plain(y)})
        if marginals:
            classes = [plain(c) for c in estimator.classes_]
            found = estimator.predict_marginals(data.X, hidden=data.hidden)
            for record, p in zip(records, found, strict=True):
                record |= {"classes": classes, "marginals": p.round(6).tolist()}
        if top_k is not None:
            labels, scores = estimator.predict_topk(data.X, top_k, hidden=data.hidden)
            for record, ys, values in zip(records, labels, scores, strict=True):
                record["top"] = [{"y": _plain(y), "score": round(float(s), 6)} for y, s in zip(ys, values, strict=True)]
    return records


def _plain(y: Any) -> Any:
    return y.tolist() if hasattr(y, "tolist") else plain(y)

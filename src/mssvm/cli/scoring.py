"""A model's predictions against the labels of a data set."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from mssvm.core.progress import ProgressLine
from mssvm.data.dataset import Dataset
from mssvm.data.metrics import Scores
from mssvm.data.metrics import evaluate as score_states

SITES_AT_ONCE = 1 << 15


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
            out.extend(estimator.predict([data.X[b] for b in part], hidden_sites=_hidden(data, part)))
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

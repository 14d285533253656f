"""Predictions of a model, in portions of bounded memory, and their scores against the labels of a data set."""

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
    """Scores of the predictions on the labelled sites."""
    shapes = data.shapes
    with data.places():
        labels = estimator.labels_.widened(data.labels, estimator.structure_.depth)
        truth = labels.encode(data.labels, shapes)
        predicted = predictions(estimator, data)
    return score_states(labels, truth, labels.encode(predicted, shapes).states, label_names(estimator))


def label_names(estimator: Any) -> tuple[str, ...]:
    """The names of the labels of a multi-label model; empty for other models."""
    if type(estimator.structure_).__name__ != "MultiLabel":
        return ()
    names: tuple[str, ...] = estimator.schema_.types_of("node")
    return names


def shard_scores(estimator: Any, data: Any) -> Scores:
    """Scores of the predictions on the labelled sites of shards, computed on a cluster."""
    from mssvm.estimators.sharded import Answers

    labels, truth, predicted = Answers(estimator).compared(data, None)
    return score_states(labels, truth, predicted.states, label_names(estimator))


def predictions(estimator: Any, data: Dataset) -> list[Any]:
    """Predicted labels of all instances, portion by portion."""
    predicted: list[Any] = []
    with ProgressLine("Predicting", "instances", 1.0) as line:
        for part in portions(data):
            predicted.extend(estimator.predict([data.X[b] for b in part], hidden_sites=_hidden(data, part)))
            line(len(predicted), len(data))
    return predicted


def portions(data: Dataset) -> Iterable[range]:
    """Consecutive ranges of instances with about ``SITES_AT_ONCE`` sites each."""
    first = 0
    sites = 0
    for b, (x, shape) in enumerate(zip(data.X, data.shapes, strict=True)):
        sites += prod(shape) if shape else len(x)
        if sites >= SITES_AT_ONCE:
            yield range(first, b + 1)
            first = b + 1
            sites = 0
    if first < len(data):
        yield range(first, len(data))


def _hidden(data: Dataset, part: range) -> Any:
    return None if data.hidden is None else [data.hidden[b] for b in part]

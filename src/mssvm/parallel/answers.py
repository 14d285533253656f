"""Prediction on a cluster, shard by shard: labels returned, written to files, or compared with the truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.data.dataset import Dataset
from mssvm.data.labels import plain
from mssvm.data.shards import Shard, ShardedDataset
from mssvm.parallel.cluster import Cluster
from mssvm.parallel.work import Shelf, memory_errors_name, task_index

Predict = Callable[[Dataset], Any]
"""Predicted labels of the instances of a data set."""


def each_shard(cluster: Cluster, data: ShardedDataset, function: Callable[..., Any], *args: Any) -> list[Any]:
    """``function(shelf, shard, k, *args)`` for every shard, on the workers; results in order."""
    shards = data.shards

    def begin() -> Any:
        sent_args = [cluster.broadcast(arg) for arg in args]
        return [cluster.submit(function, shard, k, *sent_args, name=str(k)) for k, shard in enumerate(shards)]

    results: list[Any] = cluster.result(begin, lambda task: shards[task_index(task)].name)
    return results


def predicted(shelf: Shelf, shard: Shard, k: int, predict: Predict) -> list[Any]:
    """Predicted labels of the instances of a shard."""
    return [y for _, labels in _predict_parts(shard, predict) for y in labels]


def written(shelf: Shelf, shard: Shard, k: int, predict: Predict, folder: Path) -> str:
    """Write the predicted labels of a shard as JSON lines, in its order; returns the file's name."""
    path = folder / target(shard, k)
    with replacing(path) as file:
        for part, labels in _predict_parts(shard, predict):
            for name, y in zip(part.ids, labels, strict=True):
                record = {} if name is None else {"id": name}
                record["y"] = y.tolist() if hasattr(y, "tolist") else plain(y)
                file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    return str(path)


def compared(shelf: Shelf, shard: Shard, k: int, predict: Predict) -> tuple[list[Any], list[Any], list[Any]]:
    """Shapes, labels and predictions of the instances of a shard."""
    shapes: list[Any] = []
    labels: list[Any] = []
    predictions: list[Any] = []
    for part, predicted_labels in _predict_parts(shard, predict):
        shapes += part.shapes
        labels += part.labels
        predictions += list(predicted_labels)
    return shapes, labels, predictions


def _predict_parts(shard: Shard, predict: Predict) -> Iterator[tuple[Dataset, Any]]:
    """The parts of a shard, each with its predicted labels."""
    with memory_errors_name(shard.name):
        for part in shard.parts():
            with part.places():
                labels = predict(part)
            yield part, labels


def target(shard: Shard, k: int) -> str:
    """Name of the file with the predictions for shard k."""
    stem = Path(shard.name).name if isinstance(shard.source, str) else f"shard-{k:05d}"
    return Path(stem.removesuffix(".gz")).stem + ".jsonl"


def to_files(cluster: Cluster, data: ShardedDataset, predict: Predict, folder: str | Path) -> list[str]:
    """Write one file of predictions per shard, in a folder that workers and caller share; returns the names."""
    names = [target(shard, k) for k, shard in enumerate(data.shards)]
    if len(set(names)) < len(names):
        raise InputError("two shards have files of the same name, as their predictions would have; rename one.")
    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"{folder} is a file; predictions of shards need a folder.")
    path.mkdir(parents=True, exist_ok=True)
    return each_shard(cluster, data, written, predict, path)

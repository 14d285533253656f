"""Prediction on a cluster: every worker answers for shards of its own, and writes what it answers."""

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
from mssvm.parallel.work import Shelf, named_memory

Answer = Callable[[Dataset], Any]


def each_shard(cluster: Cluster, data: ShardedDataset, function: Callable[..., Any], *args: Any) -> list[Any]:
    """``function(shelf, shard, k, *args)`` of every shard, in order."""
    shards = data.shards

    def begin() -> Any:
        sent = [cluster.spread(arg) for arg in args]
        return [cluster.submit(function, shard, k, *sent, name=str(k)) for k, shard in enumerate(shards)]

    found: list[Any] = cluster.result(begin, lambda task: shards[int(task.split("-")[2])].name)
    return found


def predicted(shelf: Shelf, shard: Shard, k: int, predict: Answer) -> list[Any]:
    """Labels of the instances of a shard."""
    return [y for _, found in answered(shard, predict) for y in found]


def written(shelf: Shelf, shard: Shard, k: int, predict: Answer, folder: Path) -> str:
    """A file of JSON lines with the labels of a shard, in its order; the file's name."""
    path = folder / target(shard, k)
    with replacing(path) as file:
        for part, found in answered(shard, predict):
            for name, y in zip(part.ids, found, strict=True):
                told = {"y": y.tolist() if hasattr(y, "tolist") else plain(y)}
                told = told if name is None else {"id": name, **told}
                file.write((json.dumps(told, ensure_ascii=False) + "\n").encode())
    return str(path)


def compared(shelf: Shelf, shard: Shard, k: int, predict: Answer) -> tuple[list[Any], list[Any], list[Any]]:
    """Shapes, labels and predictions of the instances of a shard."""
    shapes = list[Any]()
    labels = list[Any]()
    answers = list[Any]()
    for part, found in answered(shard, predict):
        shapes += part.shapes
        labels += part.labels
        answers += list(found)
    return shapes, labels, answers


def answered(shard: Shard, predict: Answer) -> Iterator[tuple[Dataset, Any]]:
    """The shard in parts, each with what is said of it."""
    with named_memory(shard.name):
        for part in shard.parts():
            with part.places():
                found = predict(part)
            yield part, found


def target(shard: Shard, k: int) -> str:
    """What the file with the answers for a shard is called."""
    stem = Path(shard.name).name if isinstance(shard.source, str) else f"shard-{k:05d}"
    return Path(stem.removesuffix(".gz")).stem + ".jsonl"


def to_files(cluster: Cluster, data: ShardedDataset, predict: Answer, folder: str | Path) -> list[str]:
    """One file a shard in a folder that workers and caller share."""
    names = [target(shard, k) for k, shard in enumerate(data.shards)]
    if len(set(names)) < len(names):
        raise InputError("two shards have files of the same name, as their predictions would have; rename one.")
    path = Path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"{folder} is a file; predictions of shards need a folder.")
    path.mkdir(parents=True, exist_ok=True)
    return each_shard(cluster, data, written, predict, path)

"""Data in shards that workers read: files by pattern, or functions that load a shard each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any
from uuid import uuid4

from mssvm.core.checks import count, shown
from mssvm.core.errors import InputError
from mssvm.core.registry import READ_AS, STRUCTURES, WITHOUT_FILES
from mssvm.data.dataset import Dataset
from mssvm.data.readers import Options, read_parts
from mssvm.data.readers.read import DEFAULT

AT_ONCE = 500  # instances of a file in memory while it is read
Loader = Callable[[], Any]


@dataclass(frozen=True)
class Shard:
    """A file, or a function that returns ``(X, y)``. ``version`` distinguishes shards of the same name."""

    name: str
    source: str | Loader
    options: Options = DEFAULT
    version: str = ""

    def parts(self) -> Iterator[Dataset]:
        """The instances: those of a file ``AT_ONCE`` at a time, those of a function together."""
        if isinstance(self.source, str):
            yield from read_parts(self.source, AT_ONCE, self.options)
            return
        try:
            X, y = self.source()
            n = len(X)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.name}: a loader gives two sequences (X, y); this one failed: {error}") from None
        kind = self.options.structure or "chain"
        if not n:
            raise InputError(f"{self.name} holds no instances; give at least one.")
        labels = None if y is None else list(y)
        yield Dataset(self.name, kind, list(X), labels, list(range(n)), [None] * n, unit="instance")


class ShardedDataset:
    """Labelled data in shards, which the workers of a cluster read (``fit``, ``predict`` and ``score`` take it as X).

    Parameters
    ----------
    source : pattern or sequence
        Files, by a pattern such as "corpus/part-*.jsonl" or as a list of paths, in any format of the readers (image
        folders included); a ``dask.bag`` of pairs (x, y); or a list of ``dask.delayed`` or plain functions that each
        give a pair (X, y). Workers open the files under the same names.
    structure : a structure, or "chain", "sequence", "grid", "graph"
        The structure of the files' instances; None detects it from the first of them.
    options : Options
        How the files are read.
    hashed : int
        Number of columns for named features, which are then numbered by a hash of their names: workers share no
        vocabulary, names unseen in training have columns too, and the model has no names to show. With None every name
        has a column of its own.

    >>> data = ms.ShardedDataset([lambda: (X, y), lambda: (X, y)])                # or "corpus/part-*.jsonl"
    >>> len(data), data
    (2, ShardedDataset('shard 0' and 1 more))
    """

    def __init__(
        self, source: Any, structure: Any = None, *, options: Options | None = None, hashed: int | None = None
    ) -> None:
        options = options or DEFAULT
        kind = _kind(structure)
        self.options = options if kind is None else replace(options, structure=kind)
        self.hashed = None if hashed is None else count(hashed, "hashed", 2)
        self.shards = tuple(_shards(source, self.options))

    def __len__(self) -> int:
        return len(self.shards)

    def __repr__(self) -> str:
        return f"ShardedDataset({self.shards[0].name!r} and {len(self) - 1} more)"


def _kind(structure: Any) -> Any:
    """The name of a structure in files, from this name or from a structure object; None for None."""
    if structure is None:
        return None
    kind = structure
    if not isinstance(structure, str):
        kinds = {entry.name: kind for kind, entry in STRUCTURES.items()}
        kind = kinds.get(type(structure).__name__)
    if kind not in STRUCTURES or kind in WITHOUT_FILES:
        raise InputError(f"structure must be a chain, sequence, grid or graph, got {shown(structure)}.")
    return READ_AS.get(kind, kind)


def _shards(source: Any, options: Options) -> Iterator[Shard]:
    if hasattr(source, "to_delayed"):
        source = [Partition(part) for part in source.to_delayed()]
    if isinstance(source, (str, Path)):
        items: list[Any] = sorted(glob(str(source)))
        if not items:
            raise InputError(f"no file matches {str(source)!r}; check the pattern.")
    elif not isinstance(source, Sequence) or not len(source):
        raise InputError(f"shards are a pattern, a list of paths or of loaders, or a dask.bag, got {shown(source)}.")
    else:
        items = list(source)
    unique = uuid4().hex
    for k, item in enumerate(items):
        if isinstance(item, (str, Path)):
            path = Path(item).absolute()  # workers have folders of their own
            yield Shard(str(item), str(path), options, _version(path) or unique)
        elif callable(item):
            yield Shard(f"shard {k}", Lazy(item) if hasattr(item, "dask") else item, options, unique)
        else:
            raise InputError(f"shard {k} is neither a path nor a function that loads it, got {shown(item)}.")


def _version(path: Path) -> str:
    """Size and time of a file; "" if it is none, as image folders are."""
    if not path.is_file():
        return ""
    about = path.stat()
    return f"{about.st_size} {about.st_mtime_ns}"


@dataclass(frozen=True)
class Lazy:
    """A ``dask.delayed`` pair (X, y), computed where it is called."""

    value: Any = field(repr=False)

    def __call__(self) -> Any:
        return self.value.compute(scheduler="synchronous")


class Partition(Lazy):
    """A partition of a bag of pairs (x, y)."""

    def __call__(self) -> Any:
        pairs = list(super().__call__())
        return [x for x, _ in pairs], [y for _, y in pairs]

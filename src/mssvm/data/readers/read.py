"""Labelled data from files: JSON lines, CoNLL columns, .ts series, .npz archives, tables, image folders, also gzipped.

dataset = read("train.jsonl.gz")                    the whole file: X, y, and the line of every instance
for part in read_parts("big.jsonl", 1000): ...      the same in bounded memory
problems = check("train.jsonl")                     everything that is wrong, with line numbers

"-" is standard input. The format follows from the name's ending, the structure from the first instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mssvm.core.errors import InputError
from mssvm.data.dataset import Collector, Dataset
from mssvm.data.readers.conll import open_conll
from mssvm.data.readers.images import open_images
from mssvm.data.readers.json_lines import open_json
from mssvm.data.readers.long_tables import open_csv, open_parquet
from mssvm.data.readers.npz import open_npz
from mssvm.data.readers.stream import STDIN, FormatName, Opened, Options, Stream
from mssvm.data.readers.ts import open_ts


@dataclass(frozen=True)
class Format:
    """Endings of the names of a format's files, and the function that opens one."""

    endings: tuple[str, ...]
    open: Callable[[Stream, Options], Opened]


FORMATS: dict[FormatName, Format] = {
    "jsonl": Format((".jsonl", ".json", ".ndjson"), open_json),
    "conll": Format((".conll", ".tsv", ".txt", ".bio", ".iob"), open_conll),
    "ts": Format((".ts",), open_ts),
    "npz": Format((".npz",), open_npz),
    "csv": Format((".csv",), open_csv),
    "parquet": Format((".parquet", ".pq"), open_parquet),
    "images": Format((), open_images),
}
DEFAULT = Options()


def read(path: str | Path, options: Options = DEFAULT) -> Dataset:
    """The whole file ``path``, read as ``options`` say.

    >>> size = (folder / "two.jsonl").write_text('{"x": [[1], [2]], "y": ["a", null]}\\n{"x": [[3]], "y": ["b"]}\\n')
    >>> ms.data.read(folder / "two.jsonl").labels
    [['a', None], ['b']]
    """
    collector, opened = open_data(path, options)
    for record in opened.records:
        collector.add(record)
    return collector.finish()


def read_parts(path: str | Path, size: int, options: Options = DEFAULT) -> Iterator[Dataset]:
    """The file ``path``, as ``options`` say, in data sets of up to ``size`` instances: memory stays bounded.

    >>> size = (folder / "two.jsonl").write_text('{"x": [[1], [2]], "y": ["a", null]}\\n{"x": [[3]], "y": ["b"]}\\n')
    >>> [len(part) for part in ms.data.read_parts(folder / "two.jsonl", size=1)]
    [1, 1]
    """
    collector, opened = open_data(path, options)
    empty = True
    while part := list(islice(opened.records, size)):
        collector = Collector(collector.name, opened.kind, opened.unit)
        for record in part:
            collector.add(record)
        empty = False
        yield collector.finish()
    if empty:
        collector.finish()  # raises: a file without instances


def check(path: str | Path, options: Options = DEFAULT, limit: int = 20) -> tuple[Dataset | None, list[str]]:
    """The instances of ``path`` that can be read as ``options`` say, and up to ``limit`` sentences about the others.

    >>> size = (folder / "bad.jsonl").write_text('{"x": [[1]], "y": ["a"]}\\n{"x": [[1]], "y": ["a", "b"]}\\n')
    >>> data, problems = ms.data.check(folder / "bad.jsonl")
    >>> len(data), len(problems)
    (1, 1)
    """
    problems: list[str] = []

    def note(sentence: str) -> None:
        if len(problems) < limit:
            problems.append(sentence)

    try:
        collector, opened = open_data(path, replace(options, note=note))
        for record in opened.records:
            try:
                collector.add(record)
            except InputError as error:
                note(str(error))
        if problems and not len(collector):
            return None, problems
        return collector.finish(), problems
    except InputError as error:
        note(str(error))
        return None, problems


def ending_of(path: str | Path) -> str:
    """The ending of the name, without that of a gzipped file."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix


def format_of(path: str | Path) -> FormatName:
    """The format by the ending of the name; standard input is JSON lines."""
    if str(path) == STDIN:
        return "jsonl"
    if Path(path).is_dir():
        return "images"
    ending = ending_of(path)
    for name, form in FORMATS.items():
        if ending in form.endings:
            return name
    if not Path(path).exists():
        raise InputError(f"{path} cannot be read: no such file or directory; check the path.")
    endings = ", ".join(ending for form in FORMATS.values() for ending in form.endings)
    raise InputError(
        f"{path}: the ending does not tell the format; use one of {endings} (or .gz after it), "
        "or name it with --format."
    )


def writes_columns(data: str | Path, form: str | None, out: str | Path) -> bool:
    """Whether predictions are written as a further column: both the data and the output are CoNLL columns."""
    if (form or format_of(data)) != "conll":
        return False
    return form == "conll" or (str(out) != STDIN and ending_of(out) in FORMATS["conll"].endings)


def open_data(path: str | Path, options: Options = DEFAULT) -> tuple[Collector, Opened]:
    """Open a file and find out its structure: the collector of its records, and the records."""
    stream = Stream(path, options.progress, options.limit)
    opened = FORMATS[options.format or format_of(path)].open(stream, options)
    return Collector(stream.name, opened.kind, opened.unit), opened

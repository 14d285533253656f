"""Labelled data from files: JSON lines, CoNLL columns, .ts series, .npz archives and image folders, each also gzipped.

dataset = read("train.jsonl.gz")                    the whole file: X, y, and the line of every instance
for part in read_parts("big.jsonl", 1000): ...      the same in bounded memory
problems = check("train.jsonl")                     everything that is wrong, with line numbers

"-" is standard input. The format follows from the name's ending, the structure from the first instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NoReturn

from mssvm.core.errors import InputError
from mssvm.data.dataset import Collector, Dataset, Instance, Kind
from mssvm.data.readers.conll import conll_instances
from mssvm.data.readers.images import image_instances
from mssvm.data.readers.json_lines import JsonReader, guess_kind, lines_of, parse
from mssvm.data.readers.npz import NpzReader
from mssvm.data.readers.stream import STDIN, Progress, Stream, shown_name
from mssvm.data.readers.ts import ts_instances

Format = Literal["jsonl", "conll", "ts", "npz", "images"]
ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".conll": "conll",
    ".tsv": "conll",
    ".txt": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".ts": "ts",
    ".npz": "npz",
}
PEEKED = 200  # instances looked at to find the structure out


@dataclass(frozen=True)
class Options:
    """How to read: None finds ``format`` and ``structure`` out. ``labelled=False``: CoNLL without a label column."""

    format: Format | None = None
    structure: Kind | None = None
    labelled: bool = True
    missing_colour: str = "#ffffff"
    progress: Progress | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False)
class Opened:
    """A file whose structure is known, ready to be read once."""

    name: str
    kind: Kind
    unit: str
    instances: Iterator[Instance]


DEFAULT = Options()


def read(path: str | Path, options: Options = DEFAULT) -> Dataset:
    """The whole file."""
    opened = open_data(path, options)
    collector = Collector(opened.name, opened.kind, opened.unit)
    for instance in opened.instances:
        collector.add(instance)
    return collector.finish()


def read_parts(path: str | Path, size: int, options: Options = DEFAULT) -> Iterator[Dataset]:
    """The file in data sets of up to ``size`` instances, so that memory stays bounded."""
    opened = open_data(path, options)
    empty = True
    while part := list(islice(opened.instances, size)):
        collector = Collector(opened.name, opened.kind, opened.unit)
        for instance in part:
            collector.add(instance)
        empty = False
        yield collector.finish()
    if empty:
        raise InputError(f"{opened.name} holds no instances; give at least one.")


def check(path: str | Path, options: Options = DEFAULT, limit: int = 20) -> tuple[Dataset | None, list[str]]:
    """The instances that can be read, and up to ``limit`` sentences about those that cannot."""
    problems: list[str] = []

    def note(sentence: str) -> None:
        if len(problems) < limit:
            problems.append(sentence)

    try:
        opened = open_data(path, options, note)
        collector = Collector(opened.name, opened.kind, opened.unit)
        for instance in opened.instances:
            try:
                collector.add(instance)
            except InputError as error:
                note(str(error))
        if not len(collector) and problems:
            return None, problems
        return collector.finish(), problems
    except InputError as error:
        note(str(error))
        return None, problems


def format_of(path: str | Path) -> Format:
    """The format that the name tells; standard input is JSON lines."""
    if str(path) == STDIN:
        return "jsonl"
    if Path(path).is_dir():
        return "images"
    name = Path(path).name.lower().removesuffix(".gz")
    if Path(name).suffix not in ENDINGS:
        if not Path(path).exists():
            raise InputError(f"{path} cannot be read: no such file or directory; check the path.")
        raise InputError(
            f"{path}: the ending does not tell the format; use one of {', '.join(ENDINGS)} (or .gz after it), "
            "or name it with --format."
        )
    return ENDINGS[Path(name).suffix]


def open_data(path: str | Path, options: Options = DEFAULT, note: Callable[[str], None] | None = None) -> Opened:
    """Open a file and find its structure out. With ``note``, lines of JSON that fail are told and passed over."""
    form = options.format or format_of(path)
    name = shown_name(path)
    if form == "images":
        _demand(options.structure, "grid", name, "an image folder")
        return Opened(name, "grid", "image", image_instances(path, options.missing_colour, options.progress))
    stream = Stream(path, options.progress)
    if form == "conll":
        _demand(options.structure, "chain", name, "a file of CoNLL columns")
        return Opened(name, "chain", "line", conll_instances(stream, options.labelled))
    if form == "ts":
        _demand(options.structure, "sequence", name, "a .ts file")
        return Opened(name, "sequence", "line", ts_instances(stream))
    if form == "npz":
        reader = NpzReader(stream, options.structure)
        return Opened(name, reader.kind, "instance", iter(reader))
    lines = lines_of(stream)
    kind = options.structure
    if kind is None:
        kind, lines = _peek(lines, name)
    return Opened(name, kind, "line", _json(JsonReader(stream, kind), lines, note))


def _json(
    reader: JsonReader, lines: Iterable[tuple[int, str]], note: Callable[[str], None] | None
) -> Iterator[Instance]:
    for line, text in lines:
        try:
            instance = reader.instance(line, text)
        except InputError as error:
            if note is None:
                raise
            note(str(error))
            continue
        yield instance


def _peek(lines: Iterator[tuple[int, str]], name: str) -> tuple[Kind, Iterator[tuple[int, str]]]:
    """The structure of the first instance that shows it (a chain where none does), and all lines again."""
    seen = []
    for line, text in islice(lines, PEEKED):
        seen.append((line, text))

        def fail(reason: str, line: int = line) -> NoReturn:
            raise InputError(f"{name}, line {line}: {reason}.")

        try:
            kind = guess_kind(parse(text, fail))
        except InputError:
            break  # reading will say the same, with whatever else there is to say
        if kind is not None:
            return kind, chain(seen, lines)
    return "chain", chain(seen, lines)


def _demand(asked: Kind | None, got: Kind, name: str, what: str) -> None:
    if asked not in (None, got):
        raise InputError(f"{name} is {what}, which holds {got}s; leave --structure out, or use --structure {got}.")

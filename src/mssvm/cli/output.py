"""Results in files, complete or not at all, gzipped where the name says so, "-" for standard output; and as tables."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.table import Table
from rich.text import Text

from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.core.text import printable
from mssvm.data.readers.stream import STDIN
from mssvm.report import Table as ReportTable


def check_target(path: Path) -> None:
    """Raise before long work if the result could not be written."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {folder}; create it first.")
    if path.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder; name a file.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path} cannot be written: the folder {folder} does not allow it; name another file.")


@contextmanager
def output(path: Path) -> Iterator[IO[str]]:
    """A text file that appears, or replaces an older one, only when everything is written."""
    if str(path) == STDIN:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
            yield spool
            spool.seek(0)
            for line in spool:
                sys.stdout.write(line)
        return
    check_target(path)
    with replacing(path) as raw:
        packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb") if path.suffix == ".gz" else None
        text = io.TextIOWrapper(packed or raw, encoding="utf-8", write_through=packed is None)
        yield text
        text.detach()  # flushes, and leaves the files open for the lines below
        if packed is not None:
            packed.close()


def shown(value: Any) -> Text:
    """A value as users gave it, on the terminal."""
    return Text(printable(str(value)))


def pairs(title: str, rows: Iterable[tuple[str, Any]]) -> Table:
    """Names and values under a title."""
    table = Table(title=shown(title), show_header=False, min_width=min(len(title), 78))
    for name, value in rows:
        table.add_row(name, shown(value))
    return table


def columns(title: str, names: Iterable[str], rows: Iterable[Iterable[Any]], n_labels: int = 1) -> Table:
    """Rows under headings; the first ``n_labels`` columns are text, the others numbers."""
    table = Table(title=shown(title))
    for k, name in enumerate(names):
        table.add_column(name, justify="left" if k < n_labels else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(shown, row))
    return table


def of_report(table: ReportTable, prefix: str = "", without: Container[str] = ()) -> Table:
    """A table of a page on the terminal, without some of its columns."""
    kept = [k for k, heading in enumerate(table.header) if heading not in without]
    rows = ([row[k] for k in kept] for row in table.rows)
    made = columns(prefix + table.caption, [table.header[k] for k in kept], rows, table.n_labels)
    made.caption = None if prefix else shown(table.note)
    return made

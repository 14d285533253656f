"""CoNLL columns: a token per line (word, further columns, label), sentences apart by empty lines.

``_`` in the last column is a missing label, ``B-NP|I-NP`` one of these. A file with one column has no labels. Lines
that start with ``# `` at the head of a sentence and ``-DOCSTART-`` are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from mssvm.data.dataset import Record
from mssvm.data.readers.stream import Opened, Options, Stream
from mssvm.data.words import words

MISSING = "_"
EITHER = "|"


def open_conll(stream: Stream, options: Options) -> Opened:
    """Chains; without ``options.labelled`` every column is read as a feature."""
    options.demand("chain", stream.name, "a file of CoNLL columns")
    return Opened("chain", _sentences(stream, options.labelled))


def _sentences(stream: Stream, labelled: bool) -> Iterator[Record]:
    same: dict[str, str] = {}
    rows: list[list[str]] = []
    width = first = 0
    for line, text in stream.lines():
        columns = text.split("\t") if "\t" in text else text.split()
        if not text.strip() or columns[0] == "-DOCSTART-":
            if rows:
                yield _sentence(rows, first, labelled, same)
                rows = []
            continue
        if not rows and text.startswith("# "):
            continue
        columns = [column.strip() for column in columns]
        if not all(columns):
            stream.fail("a column is empty; separate columns by one tab, and write _ for a missing label", line)
        width = width or len(columns)
        if len(columns) != width:
            stream.fail(f"{len(columns)} columns, but the lines before have {width}; give every token the same", line)
        if not rows:
            first = line
        rows.append(columns)
    if rows:
        yield _sentence(rows, first, labelled, same)


def _sentence(rows: list[list[str]], line: int, labelled: bool, same: dict[str, str]) -> Record:
    with_labels = labelled and len(rows[0]) > 1
    tokens = [row[:-1] for row in rows] if with_labels else rows
    x = [[same.setdefault(name, name) for name in names] for names in words([tokens])[0]]
    y = [_label(row[-1], same) for row in rows] if with_labels else None
    return Record(line, x, y)


def _label(text: str, same: dict[str, str]) -> str | list[str] | None:
    if text == MISSING:
        return None
    parts = [same.setdefault(part, part) for part in text.split(EITHER) if part]
    return parts[0] if len(parts) == 1 else parts or None

"""CoNLL columns: a token per line (word, further columns, label), sentences apart by empty lines.

``_`` in the last column is a missing label, ``B-NP|I-NP`` one of these. A file with one column has no labels. Lines
that start with ``# `` at the head of a sentence and ``-DOCSTART-`` are passed over. Predicted labels are written as one
more column, after the one of the true labels where there is one: what conlleval and seqeval's users read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mssvm.core.errors import InputError
from mssvm.data.dataset import Record
from mssvm.data.readers.stream import Opened, Options, Stream
from mssvm.data.words import words

MISSING = "_"
EITHER = "|"
TAB = "\t"


def open_conll(stream: Stream, options: Options) -> Opened:
    """Chains; without ``options.labelled`` every column is read as a feature."""
    options.demand("chain", stream.name, "a file of CoNLL columns")
    return Opened("chain", (_record(*found, options) for found in _sentences(stream)))


def with_column(lines: Sequence[str], labels: Iterable[object]) -> str:
    """A sentence with one more column, and the empty line after it."""
    out = []
    for line, label in zip(lines, map(str, labels), strict=True):
        if not label or label.split() != [label]:
            raise InputError(f"label {label!r} has blanks, which CoNLL columns cannot hold; write JSON lines instead.")
        out.append(f"{line}{TAB if TAB in line else ' '}{label}\n")
    return "".join(out) + "\n"


Sentence = tuple[int, list[list[str]], list[str], dict[str, str]]
"""The first line's number, the columns of every token, the lines themselves, and a place for shared names."""


def _sentences(stream: Stream) -> Iterator[Sentence]:
    same: dict[str, str] = {}
    rows: list[list[str]] = []
    texts: list[str] = []
    width = first = 0
    for line, text in stream.lines():
        columns = text.split(TAB) if TAB in text else text.split()
        if not text.strip() or columns[0] == "-DOCSTART-":
            if rows:
                yield first, rows, texts, same
                rows, texts = [], []
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
        texts.append(text.rstrip())
    if rows:
        yield first, rows, texts, same


def _record(line: int, rows: list[list[str]], texts: list[str], same: dict[str, str], options: Options) -> Record:
    with_labels = options.labelled and len(rows[0]) > 1
    tokens = [row[:-1] for row in rows] if with_labels else rows
    x = [[same.setdefault(name, name) for name in names] for names in words([tokens])[0]]
    y = [_label(row[-1], same) for row in rows] if with_labels else None
    return Record(line, x, y, source=texts if options.sources else None)


def _label(text: str, same: dict[str, str]) -> str | list[str] | None:
    if text == MISSING:
        return None
    parts = [same.setdefault(part, part) for part in text.split(EITHER) if part]
    return parts[0] if len(parts) == 1 else parts or None

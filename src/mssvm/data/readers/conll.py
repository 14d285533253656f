"""CoNLL columns: a token per line (word, further columns, label), sentences separated by empty lines.

``_`` (or ``Options.missing_label``) in the last column is a missing label, ``B-NP|I-NP`` a set of candidates. A file
with one column has no labels. Lines that start with ``# `` at the head of a sentence and ``-DOCSTART-`` are skipped.
Predicted labels are written as one more column, after that of the true labels if there is one: the format that
conlleval and seqeval read.

Where several people tagged a text (``Options.vote_columns``), each of the last columns has the votes of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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
    return Opened("chain", _records(stream, options))


def with_column(lines: Sequence[str], labels: Iterable[object]) -> str:
    """A sentence with one more column, and the empty line after it."""
    out = []
    for line, label in zip(lines, labels, strict=True):
        name = str(label)
        if not name or name.split() != [name]:
            raise InputError(f"label {name!r} has blanks, which CoNLL columns cannot hold; write JSON lines instead.")
        separator = TAB if TAB in line else " "
        out.append(f"{line}{separator}{name}\n")
    return "".join(out) + "\n"


@dataclass(eq=False)
class Sentence:
    """The number of the first line, the columns of every token, and the lines themselves."""

    first_line: int
    rows: list[list[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def _sentences(stream: Stream) -> Iterator[Sentence]:
    sentence = Sentence(0)
    width = 0
    for line, text in stream.lines():
        columns = text.split(TAB) if TAB in text else text.split()
        if not text.strip() or columns[0] == "-DOCSTART-":
            if sentence.rows:
                yield sentence
                sentence = Sentence(0)
            continue
        if not sentence.rows and text.startswith("# "):
            continue
        columns = [column.strip() for column in columns]
        if not all(columns):
            stream.fail("a column is empty; separate columns by one tab, and write _ for a missing label", line)
        width = width or len(columns)
        if len(columns) != width:
            stream.fail(f"{len(columns)} columns, but the lines before have {width}; give every token the same", line)
        if not sentence.rows:
            sentence.first_line = line
        sentence.rows.append(columns)
        sentence.texts.append(text.rstrip())
    if sentence.rows:
        yield sentence


def _records(stream: Stream, options: Options) -> Iterator[Record]:
    interned: dict[str, str] = {}  # one object for equal names of features and labels
    missing = {MISSING, str(options.missing_label)}
    for sentence in _sentences(stream):
        tokens = sentence.rows
        y = None
        votes = None
        if options.vote_columns:
            votes = _votes(sentence, options.vote_columns, missing, interned, stream)
            tokens = [columns[: -len(options.vote_columns)] for columns in tokens]
        elif options.labelled and len(tokens[0]) > 1:
            y = [_label(columns[-1], missing, interned) for columns in tokens]
            tokens = [columns[:-1] for columns in tokens]
        x = [[interned.setdefault(name, name) for name in names] for names in words([tokens])[0]]
        yield Record(sentence.first_line, x, y, source=sentence.texts if options.sources else None, votes=votes)


def _votes(
    sentence: Sentence, annotators: Sequence[str], missing: set[str], interned: dict[str, str], stream: Stream
) -> dict[str, list[str | list[str] | None]]:
    """The last columns of a sentence by annotator."""
    width = len(sentence.rows[0])
    first = width - len(annotators)
    if first < 1:
        reason = f"{width} columns, too few for words and the votes of {len(annotators)} annotators"
        stream.fail(f"{reason}; name as many in --vote-columns as there are", sentence.first_line)
    votes = {}
    for k, name in enumerate(annotators, first):
        votes[name] = [_label(columns[k], missing, interned) for columns in sentence.rows]
    return votes


def _label(text: str, missing: set[str], interned: dict[str, str]) -> str | list[str] | None:
    if text in missing:
        return None
    candidates = [interned.setdefault(part, part) for part in text.split(EITHER) if part]
    if len(candidates) == 1:
        return candidates[0]
    return candidates or None

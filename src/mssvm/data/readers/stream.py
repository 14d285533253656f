"""Bytes and numbered lines of a file or of standard input ("-"), gzipped or not, with reports of progress."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from mssvm.core.errors import InputError
from mssvm.data.dataset import Kind, Record

Progress = Callable[[int, int | None], None]
"""Called with the bytes read so far and the bytes in all (None where unknown, as on standard input); for an image
folder, with numbers of pictures."""

FormatName = Literal["jsonl", "conll", "ts", "npz", "csv", "parquet", "images"]
STDIN = "-"
MAX_LINE = 1 << 26  # bytes of the longest line: a longer one is hardly an instance, and would have to be held in memory
UNPACKED = 1 << 30  # any compressed file may unpack to this many bytes
EXPANSION = 20  # a larger compressed file may unpack to this many times its own size
PIECE = 1 << 24  # bytes read at a time
PROGRESS_EVERY = 1 << 20  # bytes between two calls of progress
RAISE = "or raise --limit (limit in Options) if you trust the file"
UNPACK = f"save it unpacked, {RAISE}"


@dataclass(frozen=True)
class Options:
    """How to read a file.

    Parameters
    ----------
    format, structure : str or None
        The format of the file and the structure of its instances; None: detected.
    labelled : bool
        False for CoNLL files without a column of labels.
    vote_columns : tuple of str
        Names of the annotators whose votes are the last columns of a CoNLL file ("gold": the truth).
    sources : bool
        Whether to store the lines of CoNLL files, so that predictions can be written beside them.
    missing_colour : str
        The colour of unlabelled pixels in masks.
    missing_label : hashable or None
        A further label that stands for a missing one.
    columns : tuple of str
        Names of the columns of groups and of labels in tables; the last is that of labels in JSON lines with tokens.
    limit : int
        Lines, arrays and pictures may be this many times as large as usual.
    progress : function or None
        Called with the bytes (of image folders: the pictures) read so far and in all.
    note : function or None
        Called with the error of a line of JSON, which is then skipped; without it the error is raised.

    >>> lines = (folder / "untagged.txt").write_text("the\\ncat\\n")
    >>> ms.data.read(folder / "untagged.txt", ms.data.Options(format="conll", labelled=False)).y is None
    True
    """

    format: FormatName | None = None
    structure: Kind | None = None
    labelled: bool = True
    vote_columns: tuple[str, ...] = ()
    sources: bool = False
    missing_colour: str = "#ffffff"
    missing_label: Hashable = None
    columns: tuple[str, ...] = ()
    limit: int = 1
    progress: Progress | None = field(default=None, compare=False)
    note: Callable[[str], None] | None = field(default=None, compare=False)

    def demand(self, got: Kind, name: str, what: str) -> None:
        """Raise if the structure ``got``, which ``what`` holds, is not the structure that was asked for."""
        if self.structure not in (None, got):
            hint = f"name other data, or use --structure {got} with mssvm fit."
            raise InputError(f"{name} is {what}, which holds {got}s, not {self.structure}s; {hint}")


@dataclass(frozen=True, eq=False)
class Opened:
    """An opened file: the structure of its instances, and its records, to be read once; ``unit`` is what the numbers
    of the records count."""

    kind: Kind
    records: Iterator[Record]
    unit: str = "line"


def shown_name(path: str | Path) -> str:
    """The name of a file in messages."""
    return "standard input" if str(path) == STDIN else str(path)


class Stream:
    """One pass over a source; every error is an ``InputError`` that names the file and, if there is one, the line."""

    def __init__(self, path: str | Path, progress: Progress | None = None, limit: float = 1) -> None:
        self.path = path
        self.name = shown_name(path)
        self.line = 0
        self.limit = limit
        self._progress = progress
        self._max_line = int(MAX_LINE * limit)

    def unpacked_limit(self, size: int) -> int:
        """Bytes that a compressed file of this size may unpack to."""
        return int(self.limit * max(UNPACKED, EXPANSION * size))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines without their ends, numbered from 1."""
        with self._open() as (file, done, total):
            reported = 0
            while raw := self._read(lambda: file.readline(self._max_line)):
                self.line += 1
                if len(raw) >= self._max_line and not raw.endswith(b"\n"):
                    reason = f"the line is longer than {self._max_line >> 20} MiB; put one instance on each line"
                    self.fail(f"{reason}, {RAISE}")
                if self._progress is not None and done() - reported >= PROGRESS_EVERY:
                    reported = done()
                    self._progress(reported, total)
                yield self.line, self._text(raw)
            if self._progress is not None:
                self._progress(done(), total)

    def content(self) -> bytes:
        """Everything at once, for formats that cannot be read line by line."""
        with self._open() as (file, done, total):
            parts = []
            left = self.unpacked_limit(total or 0)
            while part := self._read(lambda: file.read(PIECE)):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise InputError(
                        f"{self.name} unpacks to more than {self.unpacked_limit(total or 0) >> 20} MiB; {UNPACK}."
                    )
            if self._progress is not None:
                self._progress(done(), total)
            return b"".join(parts)

    def fail(self, reason: str, line: int | None = None) -> NoReturn:
        """Raise for the given line, or the current one; the reason is a clause without a full stop."""
        raise InputError(f"{self.name}, line {line or max(self.line, 1)}: {reason}.")

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8-sig" if self.line == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            self.fail("this is not UTF-8 text; give a data file, or convert it to UTF-8")

    def _read(self, act: Callable[[], bytes]) -> bytes:
        """The result of a read; failures of damaged files become an ``InputError``."""
        try:
            return act()
        except EOFError:
            self.fail("the gzip file ends in the middle; copy or compress it again", self.line + 1)
        except (gzip.BadGzipFile, zlib.error):
            self.fail("the gzip file is damaged; copy or compress it again", self.line + 1)
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or error}.") from None

    @contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], Callable[[], int], int | None]]:
        """The (decompressed) file, a function that gives the position in the raw file, and the size of the raw file."""
        if str(self.path) == STDIN:
            counted = _Counted(sys.stdin.buffer)
            buffered = io.BufferedReader(counted, 1 << 16)
            yield _decompressed(buffered), lambda: counted.count, None
            return
        path = Path(self.path)
        if path.is_dir():
            raise InputError(f"{path} is a directory; give a file, or a folder with images/ and masks/ in it.")
        try:
            raw = path.open("rb")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}; check the path.") from None
        with raw:
            yield _decompressed(raw), raw.tell, path.stat().st_size


class _Counted(io.RawIOBase):
    """A pipe, which has no position, with a count of the bytes read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


def _decompressed(file: Any) -> IO[bytes]:
    """The file, or its unpacked content if its first bytes are those of gzip."""
    if file.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20)
    plain: IO[bytes] = file
    return plain

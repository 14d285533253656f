"""Reading whitespace-separated text of untrusted origin: every error names the file, the line and the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import NoReturn

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, MemoryLimitError

_INTEGER = re.compile(r"\+?[0-9]{1,18}")
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True)
class Limits:
    """The most that a file may make the reader allocate; both limits are checked before allocating."""

    file_bytes: int = 1 << 28
    entries: int = 1 << 26


class Tokens:
    """A cursor over the tokens of a text; ``#`` starts a comment that ends with its line."""

    def __init__(self, text: str, name: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self._text = _COMMENT.sub("", text)
        self._tokens = self._text.split()
        self._underscored = "_" in self._text  # Python, unlike the formats, allows underscores within numbers
        self.at = 0

    @classmethod
    def open(cls, path: str | Path, limits: Limits | None) -> Tokens:
        """Read a whole file, or raise ``InputError`` if it cannot be read or is larger than the limit."""
        path = Path(path)
        limits = limits or Limits()
        try:
            size = path.stat().st_size
            if size > limits.file_bytes:
                raise MemoryLimitError(f"{path.name} has {size} bytes, more than the limit of {limits.file_bytes}.")
            raw = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
        return cls(raw.decode("utf-8", errors="replace"), path.name, limits)

    @property
    def left(self) -> int:
        return len(self._tokens) - self.at

    def peek(self) -> str:
        """The next token, which stays the next one; empty at the end."""
        return self._tokens[self.at] if self.left else ""

    def fail(self, reason: str, back: int = 1) -> NoReturn:
        """Raise an ``InputError`` that points at the token read ``back`` steps ago."""
        raise InputError(f"{self.name}, line {self._line(self.at - back)}: {reason}.")

    def word(self, what: str) -> str:
        if not self.left:
            self.fail(f"the file ends where {what} should be", back=0)
        self.at += 1
        return self._tokens[self.at - 1]

    def integer(self, what: str, low: int = 0, high: int | None = None) -> int:
        """The next token as an integer of [low, high]."""
        token = self.word(what)
        if not _INTEGER.fullmatch(token):
            self.fail(f"{what} should be a whole number, got {_abbreviated(token)}")
        value = int(token)
        if value < low or (high is not None and value > high):
            at_most = "" if high is None else f" and at most {high}"
            self.fail(f"{what} should be {low} or more{at_most}, got {value}")
        return value

    def count(self, what: str, tokens_each: int = 1) -> int:
        """A declared number of items, each at least ``tokens_each`` tokens long, checked against the tokens left."""
        value = self.integer(f"the number of {what}")
        if value * tokens_each > self.left:
            self.fail(f"{value} {what} are declared but only {self.left} numbers follow")
        return value

    def numbers(self, n: int, what: str) -> Floats:
        """The next ``n`` tokens as finite numbers >= 0."""
        if n > self.left:
            self.fail(f"{what} needs {n} values but only {self.left} follow")
        tokens = self._tokens[self.at : self.at + n]
        try:
            values = np.fromiter(map(float, tokens), dtype=np.float64, count=n)
            valid = not self._underscored and bool(((values >= 0.0) & (values < np.inf)).all())
        except ValueError:
            valid = False
        if valid:
            self.at += n
            return values
        for token in tokens:
            self.at += 1
            if not 0.0 <= _number(token) < np.inf:
                self.fail(f"{what} holds {_abbreviated(token)}; values must be finite numbers >= 0")
        return values

    def end(self) -> None:
        """Raise if tokens are left."""
        if self.left:
            self.at += 1
            self.fail(f"nothing should follow here, got {_abbreviated(self._tokens[self.at - 1])} and {self.left} more")

    def _line(self, index: int) -> int:
        """Line of a token; found by scanning again, since only errors ask for it."""
        seen = 0
        number = 1
        for number, line in enumerate(self._text.split("\n"), start=1):
            seen += len(line.split())
            if seen > index:
                return number
        return number


def _number(token: str) -> float:
    """The token as a number, NaN if it is none."""
    if "_" in token:
        return nan
    try:
        return float(token)
    except ValueError:
        return nan


def _abbreviated(token: str) -> str:
    if len(token) > 24:
        token = token[:21] + "..."
    return repr(token)

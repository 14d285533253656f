"""Progress on standard error: how far, how fast, how long still. Nothing is shown of what is over soon."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import IO, Self

QUIET = 2.0  # seconds before the first word
EVERY = 0.2  # seconds between updates of a terminal's line
EVERY_LINE = 10.0  # and between lines where the output is a file


class ProgressLine:
    """One line, rewritten on a terminal and in a notebook, and repeated at times elsewhere (never, with
    ``terminal_only``).

    ``unit`` and ``scale`` say what is counted.
    """

    def __init__(
        self,
        title: str,
        unit: str = "MB",
        scale: float = 1e6,
        file: IO[str] | None = None,
        quiet: float = QUIET,
        terminal_only: bool = False,
    ) -> None:
        self.title, self.unit, self.scale, self.quiet = title, unit, scale, quiet
        self._file = file or sys.stderr
        self._notebook = type(self._file).__module__.startswith("ipykernel")
        self._terminal = self._file.isatty() or self._notebook
        self._mute = terminal_only and not self._terminal
        self._began = monotonic()
        self._last = -1e9
        self._shown = 0  # characters of the line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown and self._terminal:
            print(self._over(""), end="\r" if self._notebook else "", file=self._file, flush=True)

    def __call__(self, done: float, total: float | None = None) -> None:
        """Tell how much of what there is to do is done."""
        if self._due():
            self._show(self.line(done, total, self.seconds))

    def say(self, text: str) -> None:
        """Tell something else, such as the state of a solver."""
        if self._due():
            self._show(f"{self.title}: {text}")

    def line(self, done: float, total: float | None, seconds: float) -> str:
        """What is shown of an amount."""
        rate = done / max(seconds, 1e-9)
        amount = f"{done / self.scale:.4g}" + (f" of {total / self.scale:.4g}" if total else "")
        text = f"{self.title}: {amount} {self.unit}, {rate / self.scale:.3g} {self.unit}/s"
        return text + (f", {left(seconds, done / total)} left" if total and done else "")

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return monotonic() - self._began

    def _due(self) -> bool:
        wait = EVERY if self._terminal else EVERY_LINE
        return not self._mute and self.seconds >= self.quiet and monotonic() - self._last >= wait

    def _show(self, text: str) -> None:
        self._last = monotonic()
        told = self._over(text) if self._terminal else text
        self._shown = len(text)
        print(told, end="" if self._terminal else "\n", file=self._file, flush=True)

    def _over(self, text: str) -> str:
        """``text`` in the place of the last line; a notebook knows carriage returns, but not how to clear a line."""
        return f"\r{text.ljust(self._shown)}" if self._notebook else f"\r{text}\x1b[K"


def left(seconds: float, share: float) -> str:
    """The time that remains if the rest goes as fast as the done share."""
    remaining = seconds * (1 - share) / max(share, 1e-9)
    if remaining < 90:
        return f"{remaining:.0f} s"
    return f"{remaining / 60:.0f} min" if remaining < 5400 else f"{remaining / 3600:.1f} h"

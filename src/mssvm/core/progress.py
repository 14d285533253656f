"""A progress line on standard error: amount done, rate and remaining time. Short work shows nothing."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import IO, Self

QUIET = 2.0  # seconds before anything is shown
EVERY = 0.2  # seconds between updates on a terminal
EVERY_LINE = 10.0  # seconds between lines in a file


class ProgressLine:
    """A line that is rewritten in place on a terminal or in a notebook.

    Elsewhere a new line is printed every ten seconds, or none with ``terminal_only``. Amounts are divided by ``scale``
    and shown in ``unit``.
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
        self.title = title
        self.unit = unit
        self.scale = scale
        self.quiet = quiet
        self._file = file or sys.stderr
        self._notebook = type(self._file).__module__.startswith("ipykernel")
        self._terminal = self._file.isatty() or self._notebook
        self._mute = terminal_only and not self._terminal
        self._began = monotonic()
        self._last = -1e9
        self._shown = 0  # length of the line on display

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown and self._terminal:
            end = "\r" if self._notebook else ""
            print(self._overwriting(""), end=end, file=self._file, flush=True)

    def __call__(self, done: float, total: float | None = None) -> None:
        """Show the amount done, of a total if it is known."""
        if self._due():
            self._show(self.line(done, total, self.seconds))

    def say(self, text: str) -> None:
        """Show other text, such as the state of a solver."""
        if self._due():
            self._show(f"{self.title}: {text}")

    def line(self, done: float, total: float | None, seconds: float) -> str:
        """The text for an amount done after some seconds."""
        rate = done / max(seconds, 1e-9)
        amount = f"{done / self.scale:.4g}"
        if total:
            amount += f" of {total / self.scale:.4g}"
        text = f"{self.title}: {amount} {self.unit}, {rate / self.scale:.3g} {self.unit}/s"
        if total and done:
            text += f", {remaining_time(seconds, done / total)} left"
        return text

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self._began

    def _due(self) -> bool:
        wait = EVERY if self._terminal else EVERY_LINE
        return not self._mute and self.seconds >= self.quiet and monotonic() - self._last >= wait

    def _show(self, text: str) -> None:
        self._last = monotonic()
        if self._terminal:
            print(self._overwriting(text), end="", file=self._file, flush=True)
        else:
            print(text, file=self._file, flush=True)
        self._shown = len(text)

    def _overwriting(self, text: str) -> str:
        """``text`` with the control characters that put it in place of the last line."""
        if self._notebook:  # notebooks know carriage returns, but no escape sequence that clears a line
            return f"\r{text.ljust(self._shown)}"
        return f"\r{text}\x1b[K"


def remaining_time(seconds: float, share: float) -> str:
    """The time that remains if the rest goes as fast as the share done in ``seconds``."""
    remaining = seconds * (1 - share) / max(share, 1e-9)
    if remaining < 90:
        return f"{remaining:.0f} s"
    if remaining < 5400:
        return f"{remaining / 60:.0f} min"
    return f"{remaining / 3600:.1f} h"

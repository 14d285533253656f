"""A live line on the terminal while something long runs; silent where standard error is not a terminal."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

from mssvm.uai import SearchProgress


class LiveLine:
    """Rewrites one line of standard error, at most a few times a second."""

    def __init__(self, title: str, seconds_between: float = 0.1) -> None:
        self.title, self.seconds_between = title, seconds_between
        self.active = sys.stderr.isatty()
        self.last = -1.0

    def __enter__(self) -> LiveLine:
        if self.active:
            print(f"\r{self.title} ...\x1b[K", end="", file=sys.stderr, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def update(self, progress: SearchProgress) -> None:
        """Show where a search stands."""
        now = monotonic()
        if not self.active or now - self.last < self.seconds_between:
            return
        self.last = now
        text = f"{progress.seconds:.1f} s, {progress.phase}: value {progress.lower:.6g}, bound {progress.upper:.6g}"
        print(f"\r{self.title}: {text}\x1b[K", end="", file=sys.stderr, flush=True)

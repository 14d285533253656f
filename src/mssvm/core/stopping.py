"""Ctrl-C and SIGTERM on the command line: one line and an exit code, at once or after work has been saved."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import current_thread, enumerate, main_thread
from types import FrameType
from typing import Any, NoReturn

Handler = Callable[[int, FrameType | None], None]
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
LONGEST_START = 10.0  # seconds; a process older than this has a clock that cannot be compared with ours
_BEGAN: ContextVar[float | None] = ContextVar("began", default=None)


class Interruption:
    """The signal that arrived, the word that names it to the user, and its exit code."""

    def __init__(self) -> None:
        self.signal = signal.SIGINT

    @property
    def word(self) -> str:
        return WORDS[self.signal]

    @property
    def code(self) -> int:
        return 128 + self.signal

    def raise_(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: raise ``KeyboardInterrupt``, at which solvers save their work."""
        self.signal = signal.Signals(number)
        raise KeyboardInterrupt

    def end(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: end the process at once.

        During imports there is no work to save, and an exception could be turned into another one.
        """
        self.signal = signal.Signals(number)
        os.write(2, f"mssvm: {self.word}.\n".encode())
        os._exit(self.code)


def stop_at_once() -> None:
    """Let signals end the process until ``stopping`` takes over; called when the process begins."""
    _BEGAN.set(time.monotonic() - _age())
    _handle(Interruption().end)


def _age() -> float:
    """Seconds since the process began, the interpreter's own start included; 0 where the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return age if 0.0 < age < LONGEST_START else 0.0
    except (OSError, AttributeError):  # other systems
        return 0.0


def began() -> float:
    """When the command began, by the monotonic clock: the start of the process, or now inside a longer process."""
    return _BEGAN.get() or time.monotonic()


def leave(code: int) -> NoReturn:
    """End the process without Python's tear-down.

    The tear-down takes a fifth of the time of a short command. After a signal, or with daemon threads at work, it would
    also wait for threads inside kernels; exit functions run only where neither is the case.
    """
    signalled = code - 128 in list(WORDS)
    has_daemons = any(thread.daemon and thread is not current_thread() for thread in enumerate())
    if not signalled and not has_daemons:
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def stopping() -> Iterator[Interruption]:
    """Signals raise ``KeyboardInterrupt`` inside; the object says which signal it was."""
    interruption = Interruption()
    token = _BEGAN.set(began())
    previous = _handle(interruption.raise_)
    try:
        yield interruption
    finally:
        _BEGAN.reset(token)
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _handle(handler: Handler) -> dict[signal.Signals, Any]:
    """Install ``handler`` for the signals that are not ignored; returns the previous handlers."""
    if current_thread() is not main_thread():  # Python allows handlers in the main thread only
        return {}
    active = [number for number in WORDS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in active}

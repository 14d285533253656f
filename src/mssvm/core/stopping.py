"""Ctrl-C and SIGTERM on the command line: one line and an exit code, at once or after work is put away."""

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
LONG = 10.0  # seconds that no interpreter takes to start: clocks that differ by more do not belong together
_BEGAN: ContextVar[float | None] = ContextVar("began", default=None)


class Interruption:
    """Which signal came; the words and the exit code for it."""

    def __init__(self) -> None:
        self.signal = signal.SIGINT

    @property
    def word(self) -> str:
        return WORDS[self.signal]

    @property
    def code(self) -> int:
        return 128 + self.signal

    def raise_(self, number: int, frame: FrameType | None) -> None:
        """Come to an end in an orderly way: solvers keep what they have when they are interrupted."""
        self.signal = signal.Signals(number)
        raise KeyboardInterrupt

    def end(self, number: int, frame: FrameType | None) -> None:
        """There is nothing to keep, and an exception in the middle of imports may turn into another one."""
        self.signal = signal.Signals(number)
        os.write(2, f"mssvm: {self.word}.\n".encode())
        os._exit(self.code)


def stop_at_once() -> None:
    """The process begins: until ``stopping`` takes over, a signal ends it."""
    _BEGAN.set(time.monotonic() - _age())
    _handle(Interruption().end)


def _age() -> float:
    """Seconds since the process began, as far as the system tells: the interpreter's own start counts too."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return age if 0.0 < age < LONG else 0.0
    except (OSError, AttributeError):  # other systems
        return 0.0


def began() -> float:
    """When the command began, by the monotonic clock: with its process, imports included, or where it was called."""
    return _BEGAN.get() or time.monotonic()


def leave(code: int) -> NoReturn:
    """End the process: Python's own end would take everything apart first, a fifth of the time of a short command, and
    after a signal, or with work left behind, wait for threads in kernels."""
    if code - 128 not in list(WORDS) and not any(t.daemon and t is not current_thread() for t in enumerate()):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def stopping() -> Iterator[Interruption]:
    """Meanwhile signals raise ``KeyboardInterrupt``, and the object knows which it was."""
    found = Interruption()
    token, before = _BEGAN.set(began()), _handle(found.raise_)
    try:
        yield found
    finally:
        _BEGAN.reset(token)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _handle(handler: Handler) -> dict[signal.Signals, Any]:
    """Let ``handler`` have the signals that the process is to heed; returns who had them before."""
    if current_thread() is not main_thread():  # elsewhere signals do not arrive, and cannot be asked for
        return {}
    heeded = [number for number in WORDS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}

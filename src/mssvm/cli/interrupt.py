"""Ctrl-C at any time, within two seconds: commands work in a thread of their own while the main thread waits.

Python hears of a signal between two instructions of its main thread, and a compiled kernel on a large grid takes many
seconds. The thread that works is told to stop at its next instruction, where solvers keep what they have; if that does
not come soon, it is left behind: what matters (checkpoints) is on disk by then.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 0.7  # seconds to stop in good order
NAME = "mssvm-command"
_WORDS: ContextVar[list[Callable[[], str]]] = ContextVar("words")


def interruptible(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises; ``KeyboardInterrupt``, which says what was kept, if it is stopped by Ctrl-C."""
    words: list[Callable[[], str]] = []
    thread, done, outcome = _started(work, words)
    try:
        while not done.wait(0.2):
            pass  # a wait without an end would not hear signals on every system
    except KeyboardInterrupt:
        _tell(thread)
        if not done.wait(GRACE):
            raise KeyboardInterrupt(*(say() for say in words[-1:])) from None
    if len(outcome) < 2:
        result: T = outcome[0]
        return result
    error = outcome[1]
    if isinstance(error, KeyboardInterrupt):
        raise KeyboardInterrupt(*(say() for say in words[-1:])) from None
    raise error


def by(deadline: float, work: Callable[[], T]) -> T | None:
    """What ``work`` returns or raises; None if it has not ended by the deadline of the monotonic clock, or at Ctrl-C.

    It is then left behind rather than told: what it has found was kept elsewhere.
    """
    _, done, outcome = _started(work, _WORDS.get([]))
    try:
        while not done.wait(min(0.1, max(deadline - monotonic(), 0.0))):
            if monotonic() >= deadline:
                return None
    except KeyboardInterrupt:
        return None
    if len(outcome) > 1:
        raise outcome[1]
    result: T = outcome[0]
    return result


def _started(
    work: Callable[[], T], words: list[Callable[[], str]]
) -> tuple[threading.Thread, threading.Event, list[Any]]:
    """A thread that does the work, what tells its end, and what then holds its result, or None and its error."""
    outcome: list[Any] = []
    done = threading.Event()

    def run() -> None:
        _WORDS.set(words)
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.extend([None, error])
        finally:
            done.set()

    thread = threading.Thread(target=copy_context().run, args=(run,), name=NAME, daemon=True)
    thread.start()
    return thread, done, outcome


@contextmanager
def last_words(say: Callable[[], str]) -> Iterator[None]:
    """While it lasts, an interruption says this."""
    words = _WORDS.get([])
    words.append(say)
    yield
    words.remove(say)  # not after an interruption


def _tell(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))

"""Ctrl-C within two seconds, at any time: commands run in a worker thread while the main thread waits for signals.

Python handles a signal between two instructions of its main thread, and a compiled kernel on a large grid takes many
seconds. So the main thread only waits. At Ctrl-C it raises ``KeyboardInterrupt`` in the worker thread, where solvers
save their state; if the worker does not stop soon, the process ends without it: checkpoints are on disk by then.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")
GRACE = 0.7  # seconds for the worker thread to stop by itself
NAME = "mssvm-command"
Message = Callable[[], str]
_MESSAGES: ContextVar[list[Message]] = ContextVar("messages")


def interruptible(work: Callable[[], T]) -> T:
    """Run ``work``; at Ctrl-C raise ``KeyboardInterrupt`` with the message of the innermost ``on_interruption``."""
    messages: list[Message] = []
    worker = _Worker(work, messages)
    try:
        while not worker.done.wait(0.2):
            pass  # on some systems a wait without a time limit does not notice signals
    except KeyboardInterrupt:
        worker.interrupt()
        if not worker.done.wait(GRACE):
            raise _interruption(messages) from None
    if isinstance(worker.error, KeyboardInterrupt):
        raise _interruption(messages) from None
    return worker.outcome()


def _interruption(messages: list[Message]) -> KeyboardInterrupt:
    if not messages:
        return KeyboardInterrupt()
    message = messages[-1]
    return KeyboardInterrupt(message())


def run_until(deadline: float, work: Callable[[], T]) -> T | None:
    """Run ``work``; None if it has not ended by the deadline (monotonic clock), or at Ctrl-C.

    The worker thread is then abandoned, not interrupted: the caller has its best result so far.
    """
    worker = _Worker(work, _MESSAGES.get([]))
    try:
        while not worker.done.wait(min(0.1, max(deadline - monotonic(), 0.0))):
            if monotonic() >= deadline:
                return None
    except KeyboardInterrupt:
        return None
    return worker.outcome()


class _Worker(Generic[T]):
    """A thread that runs ``work`` and holds its result or its error once ``done`` is set."""

    def __init__(self, work: Callable[[], T], messages: list[Message]) -> None:
        self.work = work
        self.messages = messages
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._results: list[T] = []
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name=NAME, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _MESSAGES.set(self.messages)
        try:
            self._results.append(self.work())
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()

    def outcome(self) -> T:
        """The result of the work, or its error."""
        if self.error is not None:
            raise self.error
        return self._results[0]

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt`` in the thread, at its next Python instruction."""
        thread_id = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(KeyboardInterrupt))


@contextmanager
def on_interruption(message: Message) -> Iterator[None]:
    """Within this context an interruption ends with this message, such as where the checkpoint is."""
    messages = _MESSAGES.get([])
    messages.append(message)
    yield
    messages.remove(message)  # only at a regular end: after an interruption the message is still needed

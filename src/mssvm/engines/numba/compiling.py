"""Word of kernels being compiled: that happens once on a machine, takes up to a minute, and would look like a hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from numba.core import event

from mssvm.core.jit import directory

TELLING = ContextVar("telling", default=False)  # whether somebody is told already


class _Listener(event.Listener):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if module.startswith("mssvm."):
            self._tell(f"{module.removeprefix('mssvm.engines.numba.')}.{event.data['dispatcher'].py_func.__name__}")

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


@contextmanager
def compiling(tell: Callable[[str], None]) -> Iterator[None]:
    """Call ``tell`` with the name of every kernel of the package that is compiled (not loaded from disk) meanwhile."""
    token = TELLING.set(True)
    try:
        with event.install_listener("numba:compile", _Listener(tell)):
            yield
    finally:
        TELLING.reset(token)


@contextmanager
def compilation_clock() -> Iterator[Callable[[], float]]:
    """A function that tells the seconds spent on compiling kernels, or loading them, since the context began."""
    with event.install_listener("numba:compiler_lock", event.TimingListener()) as clock:
        yield lambda: clock.duration if clock.done else 0.0


def sentence(kernel: str) -> str:
    """What people are told."""
    when = "only the first time" if directory() else "every time, as no directory for compiled code can be written"
    return f"compiling {kernel} ({when})"

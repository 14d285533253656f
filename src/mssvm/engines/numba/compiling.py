"""Word of kernels being compiled: that happens once on a machine, takes up to minutes, and would look like a hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event


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
    with event.install_listener("numba:compile", _Listener(tell)):
        yield

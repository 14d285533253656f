"""Checks of memory: sizes that follow from the caller's data are compared with the machine before anything is
allocated, so that an impossible size raises an error of one sentence before the system kills the process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mssvm.core.errors import MemoryLimitError

UNKNOWN = 1 << 62  # bytes assumed where the system does not report its memory
LESS = "use fewer instances at a time, fewer features, fewer classes or hidden states, or shorter segments"
CONTAINER = Path("/sys/fs/cgroup/memory.max")


@cache
def machine_memory() -> int:
    """Bytes of memory of this machine, or of the container that the process runs in."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        installed = UNKNOWN
    try:
        return min(installed, int(CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or a container without a limit ("max")
        return installed


def check_memory(n_bytes: float, what: str, remedy: str) -> None:
    """Raise ``MemoryLimitError`` if an array of ``n_bytes`` would not fit into the machine's memory; the message says
    ``what`` needs the memory and suggests a ``remedy``."""
    if n_bytes <= machine_memory():
        return
    needed = n_bytes / 2**30
    available = machine_memory() / 2**30
    raise MemoryLimitError(f"{what} would need {needed:,.3g} GiB, and this machine has {available:,.3g}; {remedy}.")


@contextmanager
def memory_errors_explained() -> Iterator[None]:
    """Context in which a failed allocation raises ``MemoryLimitError`` with a sentence that says what to do."""
    try:
        yield
    except MemoryLimitError:
        raise
    except MemoryError as error:
        reason = str(error).split(" for an array")[0].removesuffix(".") or "memory is used up"
        raise MemoryLimitError(f"there is not enough memory ({reason}); {LESS}.") from None

"""Room in memory: sizes that follow from the caller's data are compared with the machine before anything is allocated,
so that an impossible size is one sentence and neither a traceback nor a process killed by the system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from mssvm.core.errors import MemoryLimitError

UNKNOWN = 1 << 62  # where the system does not say


@cache
def machine_memory() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN


def check_room(n_bytes: float, what: str, remedy: str) -> None:
    """Raise ``MemoryLimitError`` if an array would not fit into the machine: ``what`` needs it, ``remedy`` says what to
    do."""
    if n_bytes <= machine_memory():
        return
    has = machine_memory() / 2**30
    raise MemoryLimitError(f"{what} would need {n_bytes / 2**30:,.0f} GiB, and this machine has {has:,.0f}; {remedy}.")


@contextmanager
def one_sentence_for_memory() -> Iterator[None]:
    """Allocations that fail all the same, with a sentence that says what to do."""
    try:
        yield
    except MemoryLimitError:
        raise
    except MemoryError as error:
        told = str(error).split(" for an array")[0].removesuffix(".") or "memory is used up"
        remedy = "use fewer instances at a time, fewer features or fewer classes"
        raise MemoryLimitError(f"there is not enough memory ({told}); {remedy}.") from None

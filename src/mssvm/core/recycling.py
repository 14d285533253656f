"""Large result arrays whose memory is reused: new pages of memory cost more time than a kernel needs to fill them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats

WORTH_KEEPING = 1 << 14  # numbers; smaller arrays are allocated quickly


class RecycledArray:
    """A pool of at most one buffer: makes arrays of one size, and reuses the memory of an array that was collected.

    The buffer returns to the pool when the array and all its views are collected. Safe to use from several threads.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._spare: deque[Floats] = deque(maxlen=1)

    def empty(self) -> Floats:
        """An array of arbitrary contents, to be written before it is read."""
        if self.size < WORTH_KEEPING:
            return np.empty(self.size)
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = np.empty(self.size)
        return np.asarray(_Lease(memory, self._spare))


class _Lease:
    """The base object of an array (NumPy's array interface): returns the memory to the pool when it is collected."""

    def __init__(self, memory: Floats, spare: deque[Floats]) -> None:
        self._memory = memory
        self._spare = spare

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._spare.append(self._memory)

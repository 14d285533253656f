"""What is kept from call to call: results as long as there is room, and memory that nobody else has any more."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from sys import getrefcount
from threading import Lock, local
from typing import Generic, Self, TypeVar

import numpy as np

from mssvm.core.arrays import Floats

K = TypeVar("K")
V = TypeVar("V")


@dataclass(eq=False)
class LRUCache(Generic[K, V]):
    """The most recently used values, of a total ``size`` up to ``capacity``.

    Threads may share one (two may work out the same thing; one result is kept). Copies start empty.
    """

    capacity: int
    size: Callable[[V], int]
    _items: OrderedDict[K, V] = field(init=False, repr=False, default_factory=OrderedDict)
    _held: int = field(init=False, repr=False, default=0)
    _lock: Lock = field(init=False, repr=False, default_factory=Lock)

    def __reduce__(self) -> tuple[type[Self], tuple[int, Callable[[V], int]]]:
        return type(self), (self.capacity, self.size)

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """The value of a key, made now if it is not known; the one just asked for stays, however large."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        value = make(key)
        with self._lock:
            if key not in self._items:
                self._items[key] = value
                self._held += self.size(value)
            while self._held > self.capacity and len(self._items) > 1:
                self._held -= self.size(self._items.popitem(last=False)[1])
        return value


@dataclass(eq=False)
class Spare(local):
    """Arrays that are handed out again once nobody else has them, or a view of them: the system takes longer to give
    memory anew than some kernels run. Two sets a thread, as many callers hold one result until they have the next, and
    none before the same sizes are asked for twice in a row: work that goes from block to block keeps nothing."""

    _kept: deque[list[Floats]] = field(init=False, default_factory=partial(deque, maxlen=2))
    _sizes: tuple[int, ...] = field(init=False, default=())

    def empty(self, *sizes: int) -> list[Floats]:
        """Arrays of so many numbers, which may be anything."""
        again = sizes == self._sizes
        self._sizes = sizes
        if not again:
            self._kept.clear()
        with suppress(IndexError):
            for _ in range(2):
                arrays = self._kept.popleft()  # nobody else's while this one looks at them
                # Of an array in a list that nobody else has there are two references while it is counted.
                free = all(getrefcount(arrays[k]) == 2 for k in range(len(arrays)))
                self._kept.append(arrays)
                if free and tuple(map(len, arrays)) == sizes:
                    return list(arrays)
        arrays = list(map(np.empty, sizes))
        if again:
            self._kept.append(arrays)
        return list(arrays)

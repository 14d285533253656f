"""What is worked out once and kept as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The most recently used values, of a total ``size`` up to ``capacity``.

    Threads may share one (two may work out the same thing; one result is kept). Copies start empty.
    """

    def __init__(self, capacity: int, size: Callable[[V], int]) -> None:
        self.capacity, self._size = capacity, size
        self._items: OrderedDict[K, V] = OrderedDict()
        self._held = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Self], tuple[int, Callable[[V], int]]]:
        return type(self), (self.capacity, self._size)

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
                self._held += self._size(value)
            while self._held > self.capacity and len(self._items) > 1:
                self._held -= self._size(self._items.popitem(last=False)[1])
        return value

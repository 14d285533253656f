"""What is kept from call to call: results, as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, Self, TypeVar

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

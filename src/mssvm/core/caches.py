"""A cache of results with a limit on its total size."""

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
    """The most recently used values, up to a total ``size`` of ``capacity``.

    Threads may share a cache: two may compute the same value, and one result is stored. Copies start empty.
    """

    capacity: int
    size: Callable[[V], int]
    _items: OrderedDict[K, V] = field(init=False, repr=False, default_factory=OrderedDict)
    _total: int = field(init=False, repr=False, default=0)
    _lock: Lock = field(init=False, repr=False, default_factory=Lock)

    def __reduce__(self) -> tuple[type[Self], tuple[int, Callable[[V], int]]]:
        return type(self), (self.capacity, self.size)

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """The value of a key, computed by ``make`` if it is not cached.

        The value just returned stays in the cache, even if it exceeds the capacity alone.
        """
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        value = make(key)
        with self._lock:
            if key not in self._items:
                self._items[key] = value
                self._total += self.size(value)
            while self._total > self.capacity and len(self._items) > 1:
                _, oldest = self._items.popitem(last=False)
                self._total -= self.size(oldest)
        return value

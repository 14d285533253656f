"""What inference works out once and keeps: as long as a batch lives, or as long as there is room.

Both kinds may be shared between threads (two may work out the same thing; one result is kept), and start empty in
copies and pickles, so that methods of inference can be sent to other processes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

K = TypeVar("K")
V = TypeVar("V")


class WhileAlive(Generic[K, V]):
    """One value per key, forgotten with the key."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[K, V] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made now if it is not known."""
        found = self._known.get(key)
        return self._known.setdefault(key, make()) if found is None else found


def _one(value: Any) -> int:
    return 1


class Recent(Generic[K, V]):
    """The most recently used values, of a total ``size`` (default: their number) up to ``capacity``."""

    def __init__(self, capacity: int, size: Callable[[V], int] = _one) -> None:
        self.capacity, self._size = capacity, size
        self._items: OrderedDict[K, V] = OrderedDict()
        self._held = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Self], tuple[int, Callable[[V], int]]]:
        return type(self), (self.capacity, self._size)

    def __len__(self) -> int:
        return len(self._items)

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

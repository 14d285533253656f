"""Caches of results with a limit on their total size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, NamedTuple, ParamSpec, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")


def one_each(value: object) -> int:
    """The size of every value in a cache whose capacity is a number of values."""
    return 1


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

        The value just returned stays in the cache, even if it alone exceeds the capacity.
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

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._items.clear()
            self._total = 0

    def __len__(self) -> int:
        return len(self._items)


class Sized(NamedTuple, Generic[V]):
    """A cached value and its size."""

    value: V
    size: int


class SizedFunction(Generic[P, V]):
    """A function whose recent results are cached, as by ``functools.lru_cache``, up to a total size of ``capacity``.

    ``size`` computes the size of a result from the arguments, which must be hashable. ``misses`` counts the calls that
    computed a result.
    """

    def __init__(self, function: Callable[P, V], capacity: int, size: Callable[..., int]) -> None:
        self.function = function
        self.size = size
        self.misses = 0
        self.cache: LRUCache[tuple[Hashable, ...], Sized[V]] = LRUCache(capacity, _size)
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        def make(key: tuple[Hashable, ...]) -> Sized[V]:
            self.misses += 1
            return Sized(self.function(*args, **kwargs), self.size(*args, **kwargs))

        return self.cache.get((*args, *kwargs.items()), make).value

    def cache_clear(self) -> None:
        """Remove all results."""
        self.cache.clear()
        self.misses = 0


def cached_by_size(capacity: int, size: Callable[..., int]) -> Callable[[Callable[P, V]], SizedFunction[P, V]]:
    """Decorator: caches the recent results of a function; ``size`` computes the size of a result from the arguments."""

    def decorate(function: Callable[P, V]) -> SizedFunction[P, V]:
        return SizedFunction(function, capacity, size)

    return decorate


def _size(sized: Sized[V]) -> int:
    return sized.size

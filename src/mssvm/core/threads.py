"""One pool of threads for as long as there is work: starting threads anew costs more than small steps do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from itertools import starmap
from threading import local
from typing import Any, Self, TypeVar

from mssvm.core.errors import InputError

T = TypeVar("T")


class Workers:
    """``threads`` threads, the caller's among them; the others start with the first work and end with this object.
    Copies start with none."""

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}.")
        self.threads = threads
        self._inside = local()

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.threads,)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(self.threads - 1, 1), initializer=self._enter)

    def _enter(self) -> None:
        self._inside.here = True

    @property
    def idle(self) -> int:
        """Threads that work handed out here gets: one inside work that was itself handed out."""
        return 1 if getattr(self._inside, "here", False) else self.threads

    def each(self, function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        """``function`` of every row of ``columns``, on any thread; results in order, the first error raised.

        Work that hands out work of its own does that part itself: waiting for its own pool it would wait for ever.
        """
        rows = list(zip(*columns, strict=True))
        if self.idle == 1 or len(rows) < 2:
            return list(starmap(function, rows))
        found: list[Any] = [None] * len(rows)
        failed: dict[int, BaseException] = {}
        left = iter(range(len(rows)))  # whoever is free takes the next row: one task a thread, however many rows

        def work() -> None:
            for k in left:
                try:
                    found[k] = function(*rows[k])
                except BaseException as error:
                    failed[k] = error
                    deque(left, maxlen=0)  # nobody begins another row

        helpers = [self._pool.submit(work) for _ in range(min(self.threads, len(rows)) - 1)]
        self._inside.here = True
        try:
            work()
            wait(helpers)
        finally:
            self._inside.here = False
        if failed:
            raise failed[min(failed)]
        return found

"""One pool of threads for as long as there is work, as starting threads anew costs more than small steps do; and BLAS
kept to one thread beside it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import starmap
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import Any, Self, TypeVar
from weakref import finalize

import numpy as np
from threadpoolctl import ThreadpoolController

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError

T = TypeVar("T")


class _Helpers:
    """Threads that wait for jobs, as many as were ever wanted at once. Those of ``concurrent.futures`` are told of a
    job five times as slowly, which fifteen of them wait for."""

    def __init__(self, inside: local) -> None:
        self.process = os.getpid()
        self._inside, self._jobs, self._lock = inside, SimpleQueue[Callable[[], None] | None](), Lock()
        self._threads: list[Thread] = []
        finalize(self, _dismiss, self._jobs, self._threads)

    def tell(self, job: Callable[[], None], count: int) -> None:
        """Have so many threads do a job, once each."""
        with self._lock:
            while len(self._threads) < count:
                self._threads.append(Thread(target=_serve, args=(self._jobs, self._inside), daemon=True))
                self._threads[-1].start()
        for _ in range(count):
            self._jobs.put(job)


def _serve(jobs: SimpleQueue[Callable[[], None] | None], inside: local) -> None:
    inside.here = True
    while job := jobs.get():
        job()
        del job  # and what it has, while this one waits


def _dismiss(jobs: SimpleQueue[Callable[[], None] | None], threads: list[Thread]) -> None:
    for _ in threads:
        jobs.put(None)


@dataclass(frozen=True)
class Workers:
    """``threads`` threads, the caller's among them; the others start with the first work and end with this object.
    Copies start with none."""

    threads: int = 1
    _inside: local = field(init=False, repr=False, compare=False, default_factory=local)

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)

    @cached_property
    def _helpers(self) -> _Helpers:
        return _Helpers(self._inside)

    @property
    def idle(self) -> int:
        """Threads that work handed out here gets: one inside work that was itself handed out."""
        return 1 if getattr(self._inside, "here", False) else self.threads

    def scratch(self, floats: int, ints: int) -> tuple[Floats, Ints]:
        """At least so many doubles, from a multiple of 64 bytes on, and integers: this thread's until it asks again.

        Kept between calls, as the system takes longer to give memory anew than some kernels run.
        """
        kept: dict[str, AnyArray] = self._inside.__dict__
        if "floats" not in kept or len(kept["floats"]) < floats:
            some = np.empty(floats + 8)
            kept["floats"] = some[-some.ctypes.data // 8 % 8 :]
        if "ints" not in kept or len(kept["ints"]) < ints:
            kept["ints"] = np.empty(ints, dtype=np.int64)
        return kept["floats"], kept["ints"]

    def room(self, floats: int) -> Floats:
        """So many doubles beside ``scratch``, for those who call work that asks for that: this thread's until it asks
        again, one room for all blocks of data."""
        kept: dict[str, AnyArray] = self._inside.__dict__
        if "room" not in kept or len(kept["room"]) < floats:
            kept["room"] = np.empty(floats)
        return kept["room"][:floats]

    def parallel_map(self, function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
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

        count = min(self.threads, len(rows)) - 1
        others, all_done = iter(range(count - 1)), Lock()
        all_done.acquire()

        def help() -> None:
            work()
            if next(others, None) is None:
                all_done.release()

        if self._helpers.process != os.getpid():  # a fork leaves threads behind
            self.__dict__["_helpers"] = _Helpers(self._inside)
        self._helpers.tell(help, count)
        self._inside.here = True
        try:
            work()
            all_done.acquire()
        finally:
            self._inside.here = False
        if failed:
            raise failed[min(failed)]
        return found


class _OneBlasThread:
    """Holds BLAS at one thread from the first user's entry to the last one's exit, as the number is the process's.

    Work is spread over threads of our own, which those of BLAS would only disturb; and its bits depend on their number.
    """

    def __init__(self) -> None:
        self._users, self._lock = 0, Lock()

    @cached_property
    def _libraries(self) -> Any:
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._held = self._libraries.limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._held.restore_original_limits()


ONE_BLAS_THREAD = _OneBlasThread()

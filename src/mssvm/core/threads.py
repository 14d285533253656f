"""A pool of threads that lives as long as its owner, per-thread workspaces, and BLAS limited to one thread.

Starting threads costs more than small steps of work do, so they are started once and wait for jobs.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import Any, Self, TypeVar
from weakref import finalize

import numpy as np
from threadpoolctl import ThreadpoolController

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError

SWITCH_SECONDS = 5e-4  # Python code runs for this long while another thread waits for the interpreter

T = TypeVar("T")
Job = Callable[[], None]


class _PerThread(local):
    """State of one thread: whether it runs work of a pool, and its workspaces by name."""

    def __init__(self) -> None:
        self.is_working = False
        self.workspaces: dict[str, Floats] = {}


class _Helpers:
    """Waiting threads, as many as were ever needed at once.

    ``concurrent.futures`` takes five times as long to wake a thread, which shows with fifteen of them.
    """

    def __init__(self, per_thread: _PerThread) -> None:
        self.process = os.getpid()
        self._per_thread = per_thread
        self._jobs = SimpleQueue[Job | None]()
        self._lock = Lock()
        self._threads: list[Thread] = []
        finalize(self, _dismiss, self._jobs, self._threads)

    def submit(self, job: Job, count: int) -> None:
        """Run ``job`` once on each of ``count`` threads."""
        with self._lock:
            while len(self._threads) < count:
                thread = Thread(target=_serve, args=(self._jobs, self._per_thread), daemon=True)
                thread.start()
                self._threads.append(thread)
        for _ in range(count):
            self._jobs.put(job)


def _serve(jobs: SimpleQueue[Job | None], per_thread: _PerThread) -> None:
    """Run jobs until None comes."""
    per_thread.is_working = True
    while job := jobs.get():
        job()
        del job  # a waiting thread must not keep the data of its last job alive


def _dismiss(jobs: SimpleQueue[Job | None], threads: list[Thread]) -> None:
    for _ in threads:
        jobs.put(None)


@dataclass(frozen=True)
class Workers:
    """A pool of ``threads`` threads, the caller's included.

    The others start with the first work and end with this object. Copies start without threads.
    """

    threads: int = 1
    _per_thread: _PerThread = field(init=False, repr=False, compare=False, default_factory=_PerThread)

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)

    @cached_property
    def _helpers(self) -> _Helpers:
        return _Helpers(self._per_thread)

    @property
    def idle(self) -> int:
        """Number of threads that ``parallel_map`` would use now: 1 for a caller that itself runs inside a pool."""
        return 1 if self._per_thread.is_working else self.threads

    def workspace(self, name: str, size: int) -> Floats:
        """``size`` doubles with arbitrary contents, 64-byte aligned, reserved for this thread until it asks for
        ``name`` again.

        Workspaces are reused, as the system takes longer to provide fresh memory than some kernels run. Callers that
        are active at the same time on one thread use different names.
        """
        workspaces = self._per_thread.workspaces
        if name not in workspaces or len(workspaces[name]) < size:
            buffer = np.empty(size + 8)
            workspaces[name] = buffer[-buffer.ctypes.data // 8 % 8 :]
        return workspaces[name][:size]

    def parallel_map(self, function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        """``function`` of every row of ``columns``, on any thread; results in order, the first error raised.

        Nested calls run on their own thread alone: a thread that waited for its own pool would wait for ever.
        """
        rows = list(zip(*columns, strict=True))
        if self.idle == 1 or len(rows) < 2:
            return [function(*row) for row in rows]
        results: list[Any] = [None] * len(rows)
        errors: dict[int, BaseException] = {}
        pending = iter(range(len(rows)))  # shared: every thread takes the next row when it is free

        def work() -> None:
            for k in pending:
                try:
                    results[k] = function(*rows[k])
                except BaseException as error:
                    errors[k] = error
                    deque(pending, maxlen=0)  # no thread begins another row

        n_helpers = min(self.threads, len(rows)) - 1
        not_last = iter(range(n_helpers - 1))  # every helper that ends takes one entry; the last helper finds none
        all_done = Lock()  # released by the last helper; waiting for an Event takes longer
        all_done.acquire()

        def work_as_helper() -> None:
            work()
            is_last = next(not_last, None) is None
            if is_last:
                all_done.release()

        if self._helpers.process != os.getpid():  # threads do not survive a fork
            self.__dict__["_helpers"] = _Helpers(self._per_thread)
        self._helpers.submit(work_as_helper, n_helpers)
        self._per_thread.is_working = True
        try:
            work()
            all_done.acquire()
        finally:
            self._per_thread.is_working = False
        if errors:
            raise errors[min(errors)]
        return results


class _ProcessWide:
    """A setting of the whole process that holds from the first user's entry to the last user's exit."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._begin()
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class _OneBlasThread(_ProcessWide):
    """Limits BLAS to one thread.

    Our own threads share the work; those of BLAS would compete with them, and its results depend on their number.
    """

    @cached_property
    def _libraries(self) -> Any:
        return ThreadpoolController()

    def _begin(self) -> None:
        self._limit = self._libraries.limit(limits=1, user_api="blas")

    def _end(self) -> None:
        self._limit.restore_original_limits()


class _QuickSwitches(_ProcessWide):
    """Lets a thread that returns from a native call wait less for one that runs Python.

    Beside such a thread, calls of three milliseconds run up to twice as often as with Python's own interval of five.
    """

    def _begin(self) -> None:
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(min(self._before, SWITCH_SECONDS))

    def _end(self) -> None:
        sys.setswitchinterval(self._before)


ONE_BLAS_THREAD = _OneBlasThread()
QUICK_SWITCHES = _QuickSwitches()

"""The Dask client: submits the functions of ``work`` to workers, gathers their results, and repeats lost tasks.

Every worker gets one contiguous range of blocks and keeps it from one iteration to the next. If a worker is lost, Dask
runs its tasks on another, which reads the shards it needs; at the next iteration the blocks are divided anew among the
workers of that moment, new ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import cpu_count
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from mssvm.core.checks import count
from mssvm.core.errors import ClusterError, InputError, MissingExtraError
from mssvm.objectives.sums import FAN
from mssvm.parallel import work
from mssvm.parallel.work import Share

try:
    from dask.utils import format_bytes
    from distributed import (
        CancelledError,
        Client,
        LocalCluster,
        WorkerPlugin,
        default_client,
        futures_of,
        get_worker,
        wait,
    )
    from distributed.scheduler import KilledWorker
    from psutil import Process
except ImportError:
    raise MissingExtraError('clusters need Dask; run pip install "mssvm[dask]".') from None

T = TypeVar("T")
LOST_DATA = (CancelledError, OSError)  # raised by Dask when data or connections are lost; time-outs are OSErrors
FAN_IN = 8  # lists of partial sums that one task of the reduction joins
TRIES = 5  # attempts at one evaluation when data are lost with a worker
WAIT = 30.0  # seconds to wait for a worker when none is left
POLL_EVERY = 5.0  # seconds between two reads of the list of workers
PLUGIN = "mssvm"


class Shelves(WorkerPlugin):
    """Creates the ``Shelf`` of every worker, including workers that join later."""

    name = PLUGIN
    idempotent = True

    def setup(self, worker: Any) -> None:
        limit = worker.memory_manager.memory_limit or 0
        free = max(limit - Process().memory_info().rss, limit // 8)
        self.shelf = work.Shelf(Path(worker.local_directory) / PLUGIN, free, worker.state.nthreads)

    def teardown(self, worker: Any) -> None:
        self.shelf.close()


def on_worker(function: Callable[..., T], *args: Any) -> T:
    """Call a function of ``work`` with the shelf of the worker that this runs on."""
    plugin: Any = get_worker().plugins[PLUGIN]
    return function(plugin.shelf, *args)


class Cluster:
    """A Dask client and its workers."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.client.register_plugin(Shelves())
        self.workers: dict[str, int] = {}
        self.sent = 0  # bytes moved by the last evaluation
        self._prefer_workers = True  # whether tasks prefer the workers that hold their blocks

    @property
    def dashboard(self) -> str:
        """Address of Dask's dashboard."""
        return str(self.client.dashboard_link)

    def __repr__(self) -> str:
        return f"Cluster({len(self.refreshed())} workers, dashboard {self.dashboard})"

    def summary(self) -> str:
        """The cluster's text in the progress line."""
        return f"{len(self.workers)} workers, {format_bytes(self.sent)} an iteration, dashboard {self.dashboard}"

    def refreshed(self) -> dict[str, int]:
        """The workers of this moment and their threads, in the order in which they joined."""
        threads = self.client.nthreads()
        if not threads:
            self.client.wait_for_workers(1, timeout=WAIT)
            threads = self.client.nthreads()
        stayed = {address: threads[address] for address in self.workers if address in threads}
        joined = {address: threads[address] for address in sorted(threads) if address not in stayed}
        self.workers = stayed | joined
        return self.workers

    def divide(self, n: int, unit: int = FAN) -> list[Share]:
        """Divide ``range(n)`` among the workers by their threads, at multiples of ``unit`` if there are enough."""
        threads = self.refreshed()
        if n < 2 * unit * len(threads):
            unit = 1
        total = sum(threads.values())
        threads_before = 0
        first = 0
        shares = []
        for address, n_threads in threads.items():
            threads_before += n_threads
            last = n
            if threads_before < total:
                last = min(round(n * threads_before / total / unit) * unit, n)
            if last > first:
                shares.append(Share(address, first, last))
            first = max(first, last)
        return shares

    def broadcast(self, value: Any) -> Any:
        """Send a value to every worker; returns its future."""
        return self.client.scatter(value, broadcast=True, hash=False)

    def has(self, future: Any) -> bool:
        """Whether a broadcast value still exists."""
        return bool(future.status == "finished")

    def submit(self, function: Callable[..., T], *args: Any, at: str = "", name: str = "") -> Any:
        """Submit a function of ``work``, preferably to the worker ``at``; returns the future of its result."""
        preference: dict[str, Any] = {}
        if at and self._prefer_workers:
            preference = {"workers": [at], "allow_other_workers": True}
        key = f"mssvm-{function.__name__}-{name}-{uuid4().hex}"
        return self.client.submit(on_worker, function, *args, key=key, pure=False, **preference)

    def reduce(self, futures: Sequence[Any], n_blocks: int) -> Any:
        """The future of the sum of these futures, computed on the workers, ``FAN_IN`` neighbours at a time."""
        while len(futures) > 1:
            groups = [futures[k : k + FAN_IN] for k in range(0, len(futures), FAN_IN)]
            futures = [self.client.submit(work.reduce, *group, n_blocks=n_blocks, pure=False) for group in groups]
        return futures[0]

    def result(self, begin: Callable[[], Any], blame: Callable[[str], str]) -> Any:
        """The results of the futures that ``begin()`` submits, which is called again when their data are lost.

        ``blame`` names the data of a task, given the task's name.
        """
        for attempt in range(TRIES):
            self._prefer_workers = attempt == 0
            try:
                return self._gather(begin())
            except KilledWorker as error:
                reason = f"workers were lost, one after the other, on {blame(str(error.task))}"
                hint = "most likely they were out of memory: cut it into smaller shards, or give workers more"
                raise ClusterError(f"{reason}; {hint}.") from None
            except LOST_DATA as error:
                if self.client.status != "running":
                    reason = f"the cluster's scheduler was lost ({type(error).__name__}); checkpoints are kept"
                    raise ClusterError(f"{reason}: start it again and go on from there (--resume).") from None
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _gather(self, futures: Any) -> Any:
        """Wait for futures and return their results.

        If all workers that tasks prefer are lost at once, Dask leaves these tasks waiting; they are cancelled here, to
        be submitted again without preference.
        """
        tasks = futures_of(futures)
        preferred = set(self.workers)
        while True:
            try:
                wait(tasks, timeout=POLL_EVERY)
            except TimeoutError:
                if self._prefer_workers and preferred.isdisjoint(self.client.nthreads()):
                    self.client.cancel(tasks, force=True)
                    raise CancelledError("all workers were lost") from None
            else:
                return self.client.gather(futures)


@contextmanager
def distributed(cluster: Any = None, **settings: Any) -> Iterator[Cluster]:
    """A Dask cluster for ``fit``, ``predict`` and ``score`` of a ``ShardedDataset``, while the context lasts.

    ``cluster`` is the address of a scheduler, a Dask ``Client`` or cluster object such as ``LocalCluster``, or a number
    of workers to start on this machine (None: one per core), with ``settings`` such as ``memory_limit="4GB"``.

    >>> with ms.distributed(1) as cluster:                                        # one worker, on this machine
    ...     ms.CRF(ms.Chain()).fit(ms.ShardedDataset([lambda: (X, y)])).predict(X)[0].tolist()
    ['B', 'I', 'O']
    """
    if isinstance(cluster, Client):
        with cluster.as_current():
            yield Cluster(cluster)
        return
    local = cluster is None or (isinstance(cluster, int) and not isinstance(cluster, bool))
    if settings and not local:
        raise InputError(f"{', '.join(settings)} are for workers started here; the cluster has its own.")
    connection = _start_workers(cluster, settings) if local else _connect(cluster)
    with connection as client:
        yield Cluster(client)


@contextmanager
def _start_workers(n: int | None, settings: dict[str, Any]) -> Iterator[Any]:
    """The client of a new cluster of n workers on this machine (None: one per core)."""
    cores = cpu_count() or 1
    n = cores if n is None else count(n, "cluster", 1, 4096)
    settings = {"threads_per_worker": max(cores // n, 1), "dashboard_address": ":0", **settings}
    with (
        LocalCluster(n_workers=n, processes=True, **settings) as local,
        Client(local, direct_to_workers=True) as client,
    ):
        yield client


@contextmanager
def _connect(cluster: Any) -> Iterator[Any]:
    try:
        client = Client(cluster, timeout=WAIT)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(f"no scheduler answers at {cluster!r} ({error}); check that it runs there.") from None
    with client:
        yield client


def current() -> Cluster:
    """The cluster of the innermost context."""
    try:
        return Cluster(default_client())
    except ValueError:
        raise InputError("a ShardedDataset is read by a cluster; open one: with ms.distributed(...): ...") from None

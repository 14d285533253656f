"""The way to the workers: Dask runs the functions of ``work``, moves their answers, and runs again what was lost.

Blocks are dealt out in stretches, one a worker; a worker keeps its stretch from one iteration to the next. Where a
worker is lost, Dask runs its part on another, which reads what it needs; at the next iteration the blocks are dealt out
anew among those that are there, new ones included.
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
LOSSES = (CancelledError, OSError)  # what Dask raises where data or connections are gone; time-outs are of the latter
REDUCED = 8  # lists of stretches that one task of the reduction joins
TRIES = 5  # times that one evaluation is begun anew where what it stands on is lost
WAIT = 30.0  # seconds for a worker to come back where none is left
LOOK = 5.0  # seconds between looks at who is there
PLUGIN = "mssvm"


class Shelves(WorkerPlugin):
    """Gives every worker, also one that joins later, its shelf."""

    name = PLUGIN
    idempotent = True

    def setup(self, worker: Any) -> None:
        limit = worker.memory_manager.memory_limit or 0
        free = max(limit - Process().memory_info().rss, limit // 8)
        self.shelf = work.Shelf(Path(worker.local_directory) / PLUGIN, free, worker.state.nthreads)

    def teardown(self, worker: Any) -> None:
        self.shelf.close()


def on_worker(function: Callable[..., T], *args: Any) -> T:
    """A function of ``work`` with the shelf of the worker that it runs on."""
    mine: Any = get_worker().plugins[PLUGIN]
    return function(mine.shelf, *args)


class Cluster:
    """A Dask client and who works for it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.client.register_plugin(Shelves())
        self.workers: dict[str, int] = {}
        self.sent = 0  # bytes of the last evaluation
        self._settled = True  # whether tasks go where their data are

    @property
    def dashboard(self) -> str:
        """Where Dask shows what goes on."""
        return str(self.client.dashboard_link)

    def __repr__(self) -> str:
        return f"Cluster({len(self.refreshed())} workers, dashboard {self.dashboard})"

    def told(self) -> str:
        """For a line of progress."""
        return f"{len(self.workers)} workers, {format_bytes(self.sent)} an iteration, dashboard {self.dashboard}"

    def refreshed(self) -> dict[str, int]:
        """The workers and their threads, in the order in which they were first met."""
        now = self.client.nthreads()
        if not now:
            self.client.wait_for_workers(1, timeout=WAIT)
            now = self.client.nthreads()
        kept = {address: now[address] for address in self.workers if address in now}
        self.workers = kept | {address: now[address] for address in sorted(now) if address not in kept}
        return self.workers

    def dealt(self, n: int, unit: int = FAN) -> list[tuple[str, int, int]]:
        """``n`` things in stretches, one a worker, by threads; cut at multiples of ``unit`` where that is fair."""
        threads = self.refreshed()
        unit = unit if n >= 2 * unit * len(threads) else 1
        total = sum(threads.values())
        seen = 0
        first = 0
        out = []
        for address, own in threads.items():
            seen += own
            last = n if seen == total else min(round(n * seen / total / unit) * unit, n)
            if last > first:
                out.append((address, first, last))
            first = max(first, last)
        return out

    def spread(self, value: Any) -> Any:
        """A value on every worker."""
        return self.client.scatter(value, broadcast=True, hash=False)

    def has(self, sent: Any) -> bool:
        """Whether what was spread is still there."""
        return bool(sent.status == "finished")

    def submit(self, function: Callable[..., T], *args: Any, at: str = "", name: str = "") -> Any:
        """The future of a function of ``work``, preferably at a worker."""
        near = {"workers": [at], "allow_other_workers": True} if at and self._settled else {}
        key = f"mssvm-{function.__name__}-{name}-{uuid4().hex}"
        return self.client.submit(on_worker, function, *args, key=key, pure=False, **near)

    def reduced(self, futures: Sequence[Any], n_blocks: int) -> Any:
        """The future of their sum, joined on the workers, ``REDUCED`` neighbours at a time."""
        while len(futures) > 1:
            groups = [futures[k : k + REDUCED] for k in range(0, len(futures), REDUCED)]
            futures = [self.client.submit(work.reduce, *group, n_blocks=n_blocks, pure=False) for group in groups]
        return futures[0]

    def result(self, begin: Callable[[], Any], blame: Callable[[str], str]) -> Any:
        """What the futures of ``begin()`` give; begun anew where data they stand on are lost with a worker. ``blame``
        says by the name of a task what it worked on."""
        for left in range(TRIES - 1, -1, -1):
            self._settled = left == TRIES - 1
            try:
                return self._gathered(begin())
            except KilledWorker as error:
                told = f"workers were lost, one after the other, on {blame(str(error.task))}"
                hint = "most likely they were out of memory: cut it into smaller shards, or give workers more"
                raise ClusterError(f"{told}; {hint}.") from None
            except LOSSES as error:
                if self.client.status != "running":
                    told = f"the cluster's scheduler was lost ({type(error).__name__}); checkpoints are kept"
                    raise ClusterError(f"{told}: start it again and go on from there (--resume).") from None
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _gathered(self, begun: Any) -> Any:
        """Dask leaves tasks that prefer some workers where they are when all of these are lost at once; such are given
        up, to be begun anew without preference."""
        tasks = futures_of(begun)
        used = set(self.workers)
        while True:
            try:
                wait(tasks, timeout=LOOK)
            except TimeoutError:
                if self._settled and used.isdisjoint(self.client.nthreads()):
                    self.client.cancel(tasks, force=True)
                    raise CancelledError("all workers were lost") from None
            else:
                return self.client.gather(begun)


@contextmanager
def distributed(cluster: Any = None, **settings: Any) -> Iterator[Cluster]:
    """A Dask cluster for ``fit``, ``predict`` and ``score`` of a ``ShardedDataset``, while the context lasts.

    ``cluster`` is the address of a scheduler, a Dask ``Client`` or cluster object such as ``LocalCluster``, or a number
    of workers to start on this machine (None: one a core), with ``settings`` such as ``memory_limit="4GB"``.

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
    with _started(cluster, settings) if local else _open(cluster) as client:
        yield Cluster(client)


@contextmanager
def _started(n: int | None, settings: dict[str, Any]) -> Iterator[Any]:
    cores = cpu_count() or 1
    n = cores if n is None else count(n, "cluster", 1, 4096)
    given = {"threads_per_worker": max(cores // n, 1), "dashboard_address": ":0", **settings}
    with LocalCluster(n_workers=n, processes=True, **given) as made, Client(made, direct_to_workers=True) as client:
        yield client


@contextmanager
def _open(cluster: Any) -> Iterator[Any]:
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

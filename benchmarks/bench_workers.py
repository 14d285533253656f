"""Seconds of one evaluation of a training problem on several worker processes.

    python benchmarks/bench_workers.py [--workers 1 2 4 8] [--output FILE]         the worker function in a process pool
    python benchmarks/bench_workers.py --dask [--workers 1 2 4] [--output FILE]    the same on Dask's LocalCluster

Without --dask nothing of Dask is needed: every worker is a process of one thread that is sent weights and sends back
what it sums to, as ``mssvm.parallel.work`` does on a cluster; the calling process joins the sums. With --dask, what an
evaluation costs beside the workers' own time is measured too, at 10^6 weights, and what Dask's parts cost one by one,
which ``simulate_cluster.py`` starts from. Best of ``--repeats`` each; results must have the same bits throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from mssvm.data.labels import LabelVocabulary
from mssvm.data.shards import ShardedDataset
from mssvm.engines import engine_of
from mssvm.inference.exact import Exact
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.sums import Stretch, joined
from mssvm.objectives.unified import hcrf
from mssvm.parallel import work
from mssvm.parallel.problem import ShardedProblem, Surveyed
from mssvm.parallel.store import agreed
from mssvm.structures import Chain

N_CLASSES, HIDDEN, LENGTH = 6, 3, 30
MANY, FEW = 1000, 10  # features, and those of a site that has few of many


@dataclass(frozen=True)
class Drawn:
    """A shard of random chains, drawn where it is read; many features are sparse."""

    seed: int
    n: int
    n_features: int

    def __call__(self) -> tuple[list[Any], list[Any]]:
        rng = np.random.default_rng(self.seed)
        X: list[Any]
        if self.n_features > MANY:
            shape, ptr = (LENGTH, self.n_features), np.arange(0, FEW * LENGTH + 1, FEW)
            columns = rng.integers(0, self.n_features, size=(self.n, FEW * LENGTH))
            X = [csr_array((np.ones(FEW * LENGTH), at, ptr), shape=shape) for at in columns]
        else:
            X = [rng.normal(size=(LENGTH, self.n_features)) for _ in range(self.n)]
        return X, [[f"{k}" for k in rng.integers(0, N_CLASSES, LENGTH)] for _ in range(self.n)]


def unweighed(labels: Any) -> tuple[None, None]:
    return None, None


def posed(cluster: Any, n: int, n_features: int, n_shards: int = 16) -> ShardedProblem:
    """An HCRF on chains, in shards."""
    structure = Chain(hidden=HIDDEN)
    data = ShardedDataset([Drawn(k, n // n_shards, n_features) for k in range(n_shards)], structure)
    found = Surveyed.of(cluster, data, structure, None)
    labels = LabelVocabulary(tuple(f"{k}" for k in range(N_CLASSES)))
    encoder = agreed(found.surveys, found.names, structure, labels, None)
    return found.pose(encoder, hcrf(), Exact(), 1.0, engine_of(), unweighed)


# ----------------------------------------------------------------------------------------- a pool in a cluster's place

SHELF: list[work.Shelf] = []


def begin_worker(folder: str) -> None:
    SHELF.append(work.Shelf(Path(folder) / f"{os.getpid()}"))


def on_shelf(function: Any, *args: Any) -> Any:
    return function(SHELF[0], *args)


class Pool:
    """``mssvm.parallel.cluster.Cluster`` with processes of this machine: stretches go to the same process each time."""

    sent = 0

    def __init__(self, n: int, folder: str) -> None:
        fresh = {"mp_context": get_context("spawn"), "initializer": begin_worker, "initargs": (folder,)}
        self.processes = [ProcessPoolExecutor(1, **fresh) for _ in range(n)]  # type: ignore[arg-type]

    def dealt(self, n: int, unit: int = 4) -> list[tuple[int, int, int]]:
        ends = [n * k // len(self.processes) for k in range(len(self.processes) + 1)]
        return [(k, a, b) for k, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True)) if b > a]

    def spread(self, value: Any) -> Any:
        return value

    def has(self, sent: Any) -> bool:
        return True

    def submit(self, function: Any, *args: Any, at: int = 0, name: str = "") -> Future[Any]:
        return self.processes[at].submit(on_shelf, function, *args)

    def reduced(self, futures: list[Future[Any]], n_blocks: int) -> Any:
        return lambda: work.reduce(*(future.result() for future in futures), n_blocks=n_blocks)

    def result(self, begin: Any, blame: Any) -> Any:
        begun = begin()
        return begun() if callable(begun) else [future.result() for future in begun]

    def close(self) -> None:
        for process in self.processes:
            process.shutdown()


@contextmanager
def pool(n: int) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = Pool(n, folder)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def dask_cluster(n: int) -> Iterator[Any]:
    from mssvm.parallel.cluster import distributed

    with distributed(n, threads_per_worker=1, memory_limit=0, silence_logs=50) as cluster:
        yield cluster


# ----------------------------------------------------------------------------------------- what is measured


def timed(run: Any, repeats: int) -> list[float]:
    out = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        out.append(time.perf_counter() - began)
    return sorted(out)


def evaluation(problem: ShardedProblem, repeats: int) -> tuple[list[float], Any]:
    """Seconds of ``difference``, sorted, and what it gave."""
    w = np.random.default_rng(0).normal(size=problem.n_weights) * 0.1
    part = problem.difference(w)  # loads, binds and compiles
    return timed(lambda: problem.difference(w), repeats), part


def parts_of_dask(cluster: Any, n_weights: int, repeats: int) -> dict[str, float]:
    """Seconds of one task that does nothing, of sending weights to a worker, and of having a gradient back."""
    w, client = np.random.default_rng(0).normal(size=n_weights), cluster.client

    def back() -> Any:
        future = client.submit(np.zeros, n_weights, pure=False)
        return client.gather(future)

    return {
        "task": timed(lambda: client.gather(client.submit(int, pure=False)), repeats)[0],
        "send": timed(lambda: cluster.spread(w), repeats)[0],
        "back": timed(back, repeats)[0],
        "add": timed(lambda: w + w, repeats)[0],
        "bytes": float(w.nbytes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--instances", type=int, default=32000)
    parser.add_argument("--features", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dask", action="store_true", help="on Dask's LocalCluster, with the costs of its parts")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows, first = [], None
    for n in args.workers:
        with (dask_cluster if args.dask else pool)(n) as cluster:
            problem = posed(cluster, args.instances, args.features)
            seconds, part = evaluation(problem, args.repeats)
            first = part if first is None else first
            same = bool(np.array_equal(part.gradient, first.gradient) and part.total == first.total)
            rows.append({"workers": n, "blocks": problem.n_blocks, "seconds": seconds, "same_bits": same})
            rows[-1]["times_one"] = rows[0]["seconds"][0] / seconds[0]
            print(json.dumps(rows[-1]), flush=True)
            if args.dask:
                rows[-1] |= overhead(cluster, args.repeats)
                print(json.dumps(rows[-1]), flush=True)
    about = {"what": "LocalCluster" if args.dask else "process pool", "cores": os.cpu_count()}
    about |= {"machine": platform.machine(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    sizes = {"instances": args.instances, "features": args.features, "weights": problem.n_weights}
    result = {**about, **sizes, "rows": rows}
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


def idle(shelf: Any, posed: Any, what: str, eps: Any, first: int, last: int, w: Any) -> Any:
    """``work.evaluate`` without the work: gradients of the right size, summed and sent like others."""
    every = [Stretch(j, j + 1, Evaluation(np.zeros(0), 0.0, np.ones(len(w)))) for j in range(first, last)]
    return joined(every, len(posed.pieces))


def overhead(cluster: Any, repeats: int) -> dict[str, Any]:
    """What an evaluation costs beside the work, at 10^6 weights: all its journeys; and Dask's parts."""
    wide = posed(cluster, 4000, 1_000_000 // (N_CLASSES + 2 * HIDDEN), n_shards=4)
    w, true = np.zeros(wide.n_weights), work.evaluate
    work.evaluate = idle  # type: ignore[assignment]
    try:
        seconds = timed(lambda: wide.difference(w), 3 * repeats)
    finally:
        work.evaluate = true
    known = {"weights": wide.n_weights, "blocks": wide.n_blocks, "overhead": seconds[0], "median": median(seconds)}
    return {"wide": known, "parts": parts_of_dask(cluster, wide.n_weights, 3 * repeats)}


if __name__ == "__main__":
    main()

"""Scaling over threads through the public API, and whether every number of threads gives the same bits.

    python benchmarks/bench_threads.py [--threads 1 2 4 8 16] [--json PATH]

What the machine gives: sums of numbers in the cache of every core, and reading of memory, by kernels that hold no lock.
Training: an iteration on hidden chains, by the history of a fit. Propagation on batches of grids: a call. Wall time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from c_loops import repeated_sum

import mssvm as ms
from mssvm.core.potentials import Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.native.engine import NativeEngine

CACHED = 2048  # numbers that are in the first cache of a core
GIGABYTES = 2  # read from memory in one call


def in_cache(threads: int) -> tuple[float, Any]:
    """512 portions of about a millisecond: the best speed-up that cores and their clocks allow."""
    workers, numbers = Workers(threads), np.random.default_rng(2).normal(size=(512, CACHED))
    return best_of_three(lambda: workers.each(repeated_sum, numbers, [4000] * len(numbers)))


def from_memory(threads: int) -> tuple[float, Any]:
    """128 portions of one large array, each read once."""
    workers, numbers = Workers(threads), np.empty((128, GIGABYTES * 10**9 // 8 // 128))
    workers.each(lambda row: row.fill(1.0), numbers)
    return best_of_three(lambda: workers.each(repeated_sum, numbers, [1] * len(numbers)))


def chains(n: int, length: int = 40, k: int = 10, d: int = 50, missing: float = 0.3) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    mean = 0.5 * rng.normal(size=(k, d))
    y = rng.integers(k, size=(n, length))
    X = list(mean[y] + rng.normal(size=(n, length, d)))
    gone = rng.random((n, length)) < missing
    return X, [[None if g else int(v) for v, g in zip(row, out, strict=True)] for row, out in zip(y, gone, strict=True)]


def grids(n: int, rows: int, columns: int, k: int) -> tuple[Batch, Potentials, Query]:
    at = np.arange(rows * columns).reshape(rows, columns)
    ends = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    scopes = [(int(a), int(b)) for one, two in ends for a, b in zip(one.ravel(), two.ravel(), strict=True)]
    batch = Batch.build([Topology((k,) * at.size, tuple(scopes))] * n, [[0] * len(scopes)] * n)
    rng = np.random.default_rng(1)
    theta = Potentials(rng.normal(size=batch.n_states), 0.3 * rng.normal(size=k * k))
    return batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5)


def best_of_three(run: Any) -> tuple[float, Any]:
    run()
    times, out = [], None
    for _ in range(3):
        start = time.perf_counter()
        out = run()
        times.append(time.perf_counter() - start)
    return min(times), out


def rows() -> dict[str, Any]:
    X, y = chains(4000)

    def fit(member: Any, threads: int) -> tuple[float, Any]:
        solver = ms.solvers.LBFGS(max_iter=12)
        model = member(ms.Chain(hidden=2), n_jobs=threads, random_state=0, solver=solver).fit(X, y)
        steps = np.diff(model.history_["seconds"])
        return float(np.median(steps[len(steps) // 2 :])), model.coef_

    def propagate(case: tuple[Batch, Potentials, Query], eps: tuple[float, float], threads: int) -> tuple[float, Any]:
        batch, theta, query = case
        settings = ms.inference.Propagate("fast", max_sweeps=20, tolerance=0.0, merging=False)
        bound = settings.plan(batch, NativeEngine(threads)).bind(query, *eps)
        return best_of_three(lambda: bound(theta).mu.unary)

    small, many, large = grids(32, 20, 40, 5), grids(512, 20, 40, 5), grids(16, 100, 100, 21)
    return {
        "the machine: sums in the cache": in_cache,
        "the machine: reading of memory": from_memory,
        "HCRF, 4000 hidden chains, an iteration": lambda t: fit(ms.HCRF, t),
        "MSSVM, 4000 hidden chains, an iteration": lambda t: fit(ms.MSSVM, t),
        "sum-product, 32 grids 20x40": lambda t: propagate(small, (1.0, 1.0), t),
        "sum-product, 512 grids 20x40": lambda t: propagate(many, (1.0, 1.0), t),
        "sum-product, 16 grids 100x100, 21 states": lambda t: propagate(large, (1.0, 1.0), t),
        "mixed-product, 512 grids 20x40": lambda t: propagate(many, (0.0, 1.0), t),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", default="", help="run only the rows whose name holds this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    out: dict[str, Any] = {}
    for name, run in rows().items():
        if args.rows not in name:
            continue
        found = {t: run(t) for t in args.threads}
        first = found[args.threads[0]]
        same = all(np.array_equal(first[1], answer) for _, answer in found.values())
        out[name] = {"seconds": {t: round(s, 4) for t, (s, _) in found.items()}, "same bits": same}
        if "memory" in name:
            out[name]["GB/s"] = {t: round(GIGABYTES / s, 1) for t, (s, _) in found.items()}
            print(f"GB/s: {out[name]['GB/s']}", flush=True)
        speed = ", ".join(f"{t}: {first[0] / s:.2f}" for t, (s, _) in found.items())
        print(f"{name}: {first[0]:.3f} s on {args.threads[0]} thread; speed-up {speed}; same bits: {same}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()

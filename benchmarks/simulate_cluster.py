"""Seconds of one iteration on up to 1,000 workers, from costs measured by ``bench_workers.py --dask``.

    python benchmarks/simulate_cluster.py benchmarks/results/workers_dask.json [--pool FILE] [--bandwidth 1.25e9]
                                          [--output FILE]

One iteration: weights are spread from worker to worker (a tree of branches of two), every worker does its share of the
blocks, the sums are joined ``REDUCED`` at a time, and one gradient comes back. Its parts are

    send        log2(workers) hops of the weights        measured for one hop; with --bandwidth, bytes / bandwidth each
    compute     blocks of one machine / workers in use   the slowest of them: each is slower than the best by a factor
                                                         drawn from those measured (stragglers)
    dispatch    tasks, one after the other               measured for one, less its latency
    reduce      levels * (latency + fan-in * (journey + addition))

The rows measured are simulated with the costs of one worker and compared. Their workers share the cores, caches and
memory of one machine, which those of a cluster do not: --pool names a run of ``bench_workers.py`` without --dask on it,
from which the work's share of one worker's seconds is taken (without it, work / cores in use).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np

REDUCED = 8  # as mssvm.parallel.cluster has it
DRAWS = 400
SCHEDULED = 2e-4  # seconds that Dask's scheduler needs for a task, by its documentation


@dataclass(frozen=True)
class Costs:
    """Measured: seconds of all work on one worker, its spread (factors >= 1), a task, a hop of w, an addition."""

    compute: float
    spread: tuple[float, ...]
    task: float
    hop: float
    add: float

    @classmethod
    def of(cls, measured: dict[str, Any], n_bytes: float, bandwidth: float | None) -> Costs:
        """From the row of one worker, for gradients of ``n_bytes``."""
        row = measured["rows"][0]
        parts = measured["rows"][0]["parts"]
        assert row["workers"] == 1, "the first row must be that of one worker"
        share = n_bytes / parts["bytes"]
        hop = max(parts["back"] - parts["task"], 0.0) * share if bandwidth is None else n_bytes / bandwidth
        seconds = np.array(row["seconds"])
        fixed = parts["task"] + 2 * hop
        factors = tuple((np.maximum(seconds - fixed, 1e-9) / max(seconds[0] - fixed, 1e-9)).tolist())
        return cls(seconds[0] - fixed, factors, parts["task"], hop, parts["add"] * share)


def iteration(costs: Costs, workers: int, share: float | None, rng: np.random.Generator) -> dict[str, float]:
    """The parts of one iteration's seconds. On machines of their own each worker has its part of the work, in the
    middle of draws of the stragglers; on one machine all are done after a known ``share`` of one worker's seconds."""
    slowest = float(np.median(rng.choice(costs.spread, size=(DRAWS, workers)).max(axis=1)))
    levels = ceil(np.log(workers) / np.log(REDUCED) - 1e-9) if workers > 1 else 0
    fan_in = min(workers, REDUCED)
    parts = {
        "send": costs.hop * (1 + ceil(log2(workers))),
        "compute": costs.compute * (slowest / workers if share is None else share),
        "dispatch": costs.task + SCHEDULED * workers,
        "reduce": levels * (costs.task + fan_in * (costs.hop + costs.add)),
        "back": costs.hop,
    }
    return {**parts, "seconds": sum(parts.values())}


def shares(measured: dict[str, Any], pool: Path | None) -> dict[int, float]:
    """For each number of workers measured, the part of one worker's seconds after which their work is done."""
    counts = [row["workers"] for row in measured["rows"]]
    if pool is None:
        return {n: 1.0 / min(n, measured["cores"]) for n in counts}
    run = json.loads(pool.read_text())
    assert run["cores"] == measured["cores"], "both runs must be of one machine"
    seconds = {row["workers"]: row["seconds"][0] for row in run["rows"]}
    return {n: seconds[n] / seconds[1] for n in counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("--pool", type=Path, help="the same workers in a process pool on the same machine")
    parser.add_argument("--bandwidth", type=float, help="bytes a second between machines; else as measured on one")
    parser.add_argument("--weights", type=float, default=1e6)
    parser.add_argument("--hours", type=float, default=1 / 60, help="of one iteration's work on one core")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    measured = json.loads(args.measured.read_text())
    rng = np.random.default_rng(0)
    rows = []
    small = Costs.of(measured, 8.0 * measured.get("weights", 1), None)
    known = shares(measured, args.pool)
    for row in measured["rows"]:
        found = iteration(small, row["workers"], known[row["workers"]], rng)["seconds"]
        rows.append({"workers": row["workers"], "measured": row["seconds"][0], "simulated": found})
        print(f"{row['workers']:5d} workers here: measured {row['seconds'][0]:.3f} s, simulated {found:.3f} s")
    large = Costs.of(measured, 8.0 * args.weights, args.bandwidth)
    large = Costs(3600 * args.hours, large.spread, large.task, large.hop, large.add)
    far = []
    for workers in (1, 2, 4, 8, 16, 32, 64, 128, 250, 500, 1000):
        found = iteration(large, workers, None, rng)
        one = far[0]["seconds"] if far else found["seconds"]
        far.append({"workers": workers, **found, "times_one": one / found["seconds"]})
        told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        print(f"{workers:5d} workers: {told}, {far[-1]['times_one']:.1f} times one")
    if args.output:
        settings = {"weights": args.weights, "work_seconds": 3600 * args.hours, "bandwidth": args.bandwidth}
        args.output.write_text(json.dumps({**settings, "checked": rows, "simulated": far}, indent=1) + "\n")


if __name__ == "__main__":
    main()

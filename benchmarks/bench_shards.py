"""Training on more data than the workers have memory: JSON lines in shards on two local workers.

    python benchmarks/bench_shards.py [--gigabytes 2] [--memory 1GB] [--iterations 5] [--output FILE]

Shards are copies of one that is drawn: what counts here is their size. Tells seconds of reading and of an iteration,
and the peak memory of every worker (resident, mapped pages included).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import mssvm as ms

N_SHARDS = 64
LENGTH = 25
N_FEATURES = 40


def write(folder: Path, size: float) -> int:
    """Shards of about ``size`` bytes in all; how many they are."""
    rng = np.random.default_rng(0)
    first = folder / "part-00.jsonl"
    written = 0
    means = rng.normal(size=(4, N_FEATURES))
    with first.open("w") as file:
        while written < size / N_SHARDS:
            tags = rng.integers(0, 4, LENGTH)
            x = (means[tags] + rng.normal(size=(LENGTH, N_FEATURES))).round(4).tolist()
            y = ["ABCD"[t] if known else None for t, known in zip(tags, rng.random(LENGTH) < 0.8, strict=True)]
            written += file.write(json.dumps({"x": x, "y": y}) + "\n")
    for k in range(1, N_SHARDS):
        shutil.copy(first, folder / f"part-{k:02d}.jsonl")
    return written * N_SHARDS


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        size = write(Path(name), args.gigabytes * 1e9)
        rows = list[Any]()
        with ms.distributed(2, threads_per_worker=1, memory_limit=args.memory, local_directory=name) as cluster:
            began = time.monotonic()
            data = ms.ShardedDataset(f"{name}/part-*.jsonl")
            model = ms.CRF(ms.Chain(), max_iter=args.iterations)
            model.fit(data, callback=lambda row, w: rows.append(time.monotonic() - began))
            peaks = sorted(cluster.client.run(peak).values())
    result = {
        "bytes": size,
        "shards": N_SHARDS,
        "memory_limit": args.memory,
        "peaks": peaks,
        "read_seconds": rows[0],
        "iteration_seconds": (rows[-1] - rows[0]) / max(len(rows) - 1, 1),
        "objective": model.objective_,
        "sites": model.training_["sites"],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(result, indent=1))
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

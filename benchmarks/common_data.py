"""Where the benchmark data lie, and small tools that the benchmarks share."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def data_dir() -> Path:
    """The directory named by MSSVM_DATA, by default ``shared/data`` beside the repository."""
    path = Path(os.environ.get("MSSVM_DATA", HERE.parents[1] / "shared" / "data"))
    if not path.is_dir():
        sys.exit(f"no data directory at {path}; set MSSVM_DATA")
    return path


def write(name: str, result: dict[str, Any]) -> None:
    """Put a result into benchmarks/results, with what it ran on."""
    result = {**result, "machine": {"cores": os.cpu_count(), "python": platform.python_version()}}
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def read_result(name: str) -> dict[str, Any]:
    """What ``write`` left earlier, or nothing."""
    path = HERE / "results" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def paired(a: np.ndarray, b: np.ndarray, weight: np.ndarray, seed: int = 0, draws: int = 2000) -> dict[str, float]:
    """Mean of a - b in points with a 95% bootstrap interval over instances; a and b are right answers an instance."""
    rng = np.random.default_rng(seed)
    difference = a - b
    n = len(difference)
    picks = rng.integers(n, size=(draws, n))
    means = difference[picks].sum(axis=1) / weight[picks].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    points = 100 * float(difference.sum() / weight.sum())
    return {"difference": points, "low": 100 * float(low), "high": 100 * float(high)}


def peer(python: str, script: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Run a script of ``benchmarks/peers`` under another interpreter: JSON in a file in, JSON on stdout out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.json"
        path.write_text(json.dumps(payload))
        done = subprocess.run(
            [python, str(HERE / "peers" / script), str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"{script} failed: {done.stderr[-500:]}")
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


class Clock:
    """Wall and CPU seconds of a with block."""

    def __enter__(self) -> Clock:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu

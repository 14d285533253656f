"""Ctrl-C at random times: how long ``mssvm fit`` takes to end, and whether --resume gives the same model.

The data are the scribbled discs of ``bench_scribbles.py``, or with --side N one picture of N x N, on which a single
call of inference takes long. Every time is a run of its own in a process of its own.

Run: python benchmarks/bench_interrupt.py --times 10
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench_scribbles
import numpy as np
from common_data import write
from rich.console import Console

import mssvm as ms

COMMAND = [sys.executable, "-m", "mssvm"]


def start(data: Path, model: Path, options: list[str]) -> subprocess.Popen[str]:
    line = [*COMMAND, "fit", str(data), "-o", str(model), *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    # Scripts in the background ignore Ctrl-C, and so would what they start.
    return subprocess.Popen(line, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **quiet)


def interrupted(data: Path, model: Path, options: list[str], after: float) -> dict[str, Any]:
    """Press Ctrl-C after some seconds; how long the end took, and what it said."""
    process = start(data, model, options)
    time.sleep(after)
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    return {
        "after": after,
        "seconds": time.monotonic() - pressed,
        "code": process.returncode,
        "said": said.replace(f"{model.parent}/", "").strip().splitlines()[-1:],
        "kept": bool(list(model.parent.glob(f"{model.name}.checkpoint-*"))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--side", type=int, help="one picture of this side instead")
    parser.add_argument("--max-iter", default="10")
    parser.add_argument("--no-resume", action="store_true", help="measure the time to the end only")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    console = Console()
    rows = []
    options = ["--max-iter", args.max_iter]
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        if args.side:
            bench_scribbles.SIDE = args.side
            bench_scribbles.SEEDS = range(1)
        bench_scribbles.write(data)
        began = time.monotonic()
        whole = Path(name) / "whole.safetensors"
        if not args.no_resume:
            start(data, whole, options).wait()
        length = time.monotonic() - began if not args.no_resume else 60.0
        for k, after in enumerate(np.random.default_rng(args.seed).uniform(0.05, 0.95, args.times) * length):
            model = Path(name) / f"{k}.safetensors"
            row = interrupted(data, model, options, float(after))
            if not args.no_resume:
                if not model.exists():
                    start(data, model, [*options, "--resume"]).wait()
                row["same"] = bool(np.array_equal(ms.load(model).coef_, ms.load(whole).coef_))
            rows.append(row)
            console.print(row)
    write("interrupt" if not args.side else f"interrupt_{args.side}", {"whole": length, "rows": rows})


if __name__ == "__main__":
    main()

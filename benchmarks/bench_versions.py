"""Rows of ``make bench`` in two checkouts, in turn: is anything slower now?

    git worktree add ../before f1a2eaf          # the last commit whose kernels were compiled by Numba
    python benchmarks/bench_versions.py ../before . --python ../numba/bin/python [--rows NAME ...] [--runs 7]
                                        [--cores 2] [--budget SECONDS] [--output FILE]

A row that both have is prepared in a process of each checkout, which runs its own script and sources; ``--python`` is
the interpreter of the first checkout, if it needs another one. Both warm up, then run in turn; the medians of wall and
of processor time are compared, and a ratio above 1 is slower now. Only our side of a row runs, without its peers. Rows
have ``--cores`` cores each, and run side by side where the machine has more. A row whose time is spent has fewer runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

# Without a first run that warms up: what they measure is a first run, or they run commands of their own.
COLD = ("first-fit", "memory")


def serve(name: str) -> None:
    """In a process of one checkout: prepare a row, say so, and run once for every line of the input."""
    sys.path.insert(0, str(Path("benchmarks").resolve()))
    import bench

    row = bench.all_rows()[name]
    run = next(iter(row.contestants.values())).prepare(False)
    if not name.startswith(COLD):
        run()
    print(json.dumps({"ready": name}), flush=True)
    for _ in sys.stdin:
        done = run()
        print(json.dumps({"wall": done.wall / done.units, "cpu": done.cpu / done.units}), flush=True)


def rows_of(checkout: Path, python: str) -> list[str]:
    """The names of the rows that a checkout has."""
    said = subprocess.run(
        [python, "benchmarks/bench.py", "--list"],
        cwd=checkout,
        env=environment(checkout),
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in said.stdout.splitlines()]


def environment(checkout: Path) -> dict[str, str]:
    paths = [str(checkout.resolve() / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@dataclass(frozen=True)
class Side:
    """A process that runs a row of one checkout."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, checkout: Path, python: str, name: str, cores: tuple[int, ...]) -> Side:
        command = ["taskset", "-c", ",".join(map(str, cores)), python, str(Path(__file__).resolve()), "--serve", name]
        return cls(subprocess.Popen(command, cwd=checkout, env=environment(checkout), stdin=-1, stdout=-1, text=True))

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a row ended without an answer.")
        answer: dict[str, float] = json.loads(line)
        return answer

    def run(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def compare(name: str, sides: list[Side], runs: int, budget: float) -> dict[str, Any]:
    """Medians of both sides, and how often they ran."""
    for side in sides:
        side.answer()
    found: list[list[dict[str, float]]] = [[], []]
    for done in range(runs):
        if done and sum(run["wall"] for run in (*found[0], *found[1])) > budget:
            break
        for side, times in zip(sides, found, strict=True):
            times.append(side.run())
    out: dict[str, Any] = {"runs": len(found[0])}
    for basis in ("wall", "cpu"):
        before, now = (median(run[basis] for run in times) for times in found)
        out[basis] = {"before": before, "now": now, "ratio": round(now / before, 3)}
    return out


def core_sets(cores: int) -> Iterator[tuple[int, ...]]:
    """The machine's cores, so many at a time; all of them if there are no more."""
    there = sorted(os.sched_getaffinity(0))
    for first in range(0, max(len(there) - cores + 1, 1), cores):
        yield tuple(there[first : first + cores])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("now", type=Path, nargs="?")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the first checkout")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cores", type=int, default=2, help="cores of a row")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of a row, both sides together")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if args.now is None:
        parser.error("name two checkouts")
    here = rows_of(args.now, sys.executable)
    rows = args.rows or [name for name in rows_of(args.before, args.python) if name in here]
    free: SimpleQueue[tuple[int, ...]] = SimpleQueue()
    for cores in core_sets(args.cores):
        free.put(cores)
    found: dict[str, Any] = {}
    saying = threading.Lock()

    def measure(name: str) -> None:
        cores = free.get()
        sides = [Side.start(args.before, args.python, name, cores), Side.start(args.now, sys.executable, name, cores)]
        try:
            outcome = compare(name, sides, args.runs, args.budget)
        except RuntimeError as error:
            outcome = {"failed": str(error)}
        for side in sides:
            side.close()
        free.put(cores)
        with saying:
            found[name] = outcome
            print(name, json.dumps(outcome), flush=True)
            ordered = {row: found[row] for row in rows if row in found}
            machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
            result = {"machine": machine, "cores a row": args.cores, "unit": "s for a unit of work", "rows": ordered}
            if args.output:
                args.output.write_text(json.dumps(result, indent=1) + "\n")

    with ThreadPoolExecutor(free.qsize()) as pool:
        list(pool.map(measure, rows))


if __name__ == "__main__":
    main()

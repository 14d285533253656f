"""Two checkouts side by side: is anything that the older benchmarks measure slower now?

    git worktree add ../before 42273f1          # the last commit before engines were planned, bound and run
    python tools/no_slower.py ../before . [--runs 7] [--scripts chain ...] [--output FILE]

Each of ``bench_training``, ``bench_bp``, ``bench_chain`` and ``bench_checkerboard`` runs once in each checkout to fill
its caches, then ``runs`` times in turn, every checkout with its own script and sources under this interpreter; the
median of each figure is compared. Figures are times (rates are turned over); a ratio above 1 is slower now. On a quiet
machine seven runs take about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

Figures = dict[str, float]


def training(output: str, file: Path) -> Figures:
    """Seconds an iteration: the two sides need not stop after the same number."""
    result = json.loads(output)
    figures = {}
    for threads, row in result["chain CRF"].items():
        if threads.endswith("threads") and row:
            figures[f"CRF, {threads}, an iteration"] = row["seconds"] / row["iterations"]
    for name, milliseconds in result["hidden-chain classifier"].items():
        figures[f"hidden: {name}"] = milliseconds / 1e3
    return figures


def propagation(output: str, file: Path) -> Figures:
    """Seconds for a million messages."""
    result: dict[str, Any] = json.loads(file.read_text())
    figures = {}
    for name, rates in result.items():
        if not isinstance(rates, dict) or "sum" not in rates:
            continue
        for operation in ("sum", "max", "mixed"):
            if operation in rates:
                figures[f"{name}, {operation}"] = 1 / rates[operation]
    return figures


def chains(output: str, file: Path) -> Figures:
    """Seconds a pass, by states, and by number and length of chains."""
    rows = [re.findall(r"[\d.]+(?:e[-+]\d+)?", line) for line in output.splitlines() if re.match(r"\W*\d", line)]
    out = {f"500 chains of 40, {row[0]} states": float(row[1]) / 1e3 for row in rows if len(row) == 5}
    return out | {f"{row[0]} chains of {row[1]}, 8 states": float(row[2]) / 1e3 for row in rows if len(row) == 4}


def boards(output: str, file: Path) -> Figures:
    """Seconds an instance."""
    match = re.search(r"marginals: ([\d.]+) ms an instance", output)
    assert match is not None, output
    return {"a checkerboard": float(match[1]) / 1e3}


# What each script is given ({} is a file for its results), and what is read from it.
SCRIPTS: dict[str, tuple[list[str], Callable[[str, Path], Figures]]] = {
    "training": (["--repeats", "3"], training),
    "bp": (["--repeats", "1", "--output", "{}"], propagation),
    "chain": ([], chains),
    "checkerboard": (["--repeats", "5"], boards),
}


def run(checkout: Path, name: str) -> Figures:
    """One run of a script of a checkout."""
    options, read = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        script = str(checkout / "benchmarks" / f"bench_{name}.py")
        command = [sys.executable, script, *(option.format(file) for option in options)]
        env = {**os.environ, "PYTHONPATH": str(checkout / "src"), "COLUMNS": "120"}
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{script} ended with {done.returncode}: {done.stderr.strip()}")
        return read(done.stdout, file)


def compared(sides: tuple[Path, Path], name: str, runs: int) -> dict[str, dict[str, float]]:
    """Medians of what both checkouts measure."""
    all_runs = [[run(side, name) for side in sides] for _ in range(runs + 1)][1:]
    common = [key for key in all_runs[0][1] if key in all_runs[0][0]]
    out = {}
    for key in common:
        before = median(pair[0][key] for pair in all_runs)
        after = median(pair[1][key] for pair in all_runs)
        out[key] = {"before": before, "after": after, "ratio": after / before}
        print(f"{name}: {key}: {1e3 * before:.4g} -> {1e3 * after:.4g} ms, {after / before:.2f} times", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--output", type=Path, help="JSON file for the medians")
    args = parser.parse_args()
    sides = (args.before.resolve(), args.after.resolve())
    scripts = {name: compared(sides, name, args.runs) for name in args.scripts}
    slower = [f"{name}: {key}" for name, rows in scripts.items() for key, row in rows.items() if row["ratio"] > 1.05]
    print("slower by more than 5%: " + ("; ".join(slower) or "nothing"))
    if args.output:
        args.output.write_text(json.dumps({"runs": args.runs, "scripts": scripts}, indent=1) + "\n")


if __name__ == "__main__":
    main()

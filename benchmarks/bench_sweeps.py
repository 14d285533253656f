"""How the time grows: ``make bench-sweeps``.

    python benchmarks/bench_sweeps.py [--sweeps NAME ...] [--quick] [--repeats N] [--output FILE]

States, grid side, length, instances, threads and the share of missing labels are varied one at a time. Each point is
the best processor time of some runs (threads: wall time); an exponent is the slope of log time against log size over
the upper half of the sizes, where fixed costs count little. Writes a JSON file and a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ours
import workloads as w
from bench import machine

import mssvm as ms
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology

HERE = Path(__file__).resolve().parent
ENOUGH = 10.0  # seconds after which a point is not run again
Call = Callable[[], object]


@dataclass(frozen=True)
class Sweep:
    """A size that is varied: ``make(size)`` prepares a call, ``per_size`` says what of the size is to count."""

    title: str
    sizes: tuple[float, ...]
    make: Callable[[Any], Call]
    expected: str
    low: float = -np.inf
    high: float = np.inf
    per_size: Callable[[Any], float] = float
    clock: Callable[[], float] = time.process_time
    exponent: bool = True


def chains(n: int, length: int, labels: int) -> Call:
    """Value and all marginals of chains with one table, sums."""
    rng = np.random.default_rng(0)
    graph = Topology((labels,) * length, tuple((t, t + 1) for t in range(length - 1)))
    batch = Batch.build([graph] * n, [[0] * (length - 1)] * n)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=labels * labels))
    bound = ms.inference.Exact().plan(batch).bind(Query.all_outputs(batch), 1.0, 1.0)
    return lambda: bound(theta)


def hidden_chains(n: int) -> Call:
    """The same for chains of 40 labels with hidden links."""
    batch, theta, query = ours.hidden_chain_problem("links", w.hidden_chain_scores(n, 40))
    bound = ms.inference.Exact().plan(batch).bind(query, 1.0, 1.0)
    return lambda: bound(theta)


def grids(side: int, states: int, count: int = 1, threads: int = 1) -> Call:
    """20 sweeps of sum-product on grids with one table a direction."""
    rng = np.random.default_rng(0)
    batch = ours.grid_batch(side, side, states, count, tied=True)
    theta = Potentials(rng.normal(size=batch.n_states), 0.5 * rng.normal(size=batch.n_table_entries))
    settings = ms.inference.Propagate("fast", starts=(), max_sweeps=20, tolerance=0.0, threads=threads)
    bound = settings.plan(batch).bind(Query.all_outputs(batch), 1.0, 1.0)
    return lambda: bound(theta)


def training(missing: float, n: int, threads: int | None = None) -> Call:
    """10 iterations of HCRF on dense chains with a share of the labels missing."""
    x, y, seen = w.dense_chains(n, 40, missing=missing)
    X = list(x)
    labels = ours.blanked(y, seen)
    settings = {"max_iter": 10, "tol": 1e-12, "random_state": 0, "n_jobs": threads}
    return lambda: ms.HCRF(ms.Chain(hidden=2), **settings).fit(X, labels)


def all_sweeps(quick: bool) -> dict[str, Sweep]:
    cores = os.cpu_count() or 1
    threads = tuple(t for t in (1, 2, 4, 8, 16, 32) if t <= cores)
    few, n = (2, 48) if quick else (10**9, 1000)

    def cut(*sizes: float) -> tuple[float, ...]:
        return sizes[:few]

    linear = {"expected": "1 within 0.15", "low": 0.85, "high": 1.15}
    return {
        "states, chains": Sweep(
            "states of 200 chains of 40",
            cut(2, 4, 8, 16, 32, 64),
            lambda s: chains(200, 40, s),
            "at most 2.1",
            high=2.1,
        ),
        "states, grid": Sweep(
            "states of a 20x20 grid", cut(2, 4, 8, 16, 32, 64), lambda s: grids(20, s), "at most 2.1", high=2.1
        ),
        "nodes": Sweep(
            "nodes of a grid, 5 states",
            cut(10, 20, 40, 80, 160, 300),
            lambda s: grids(s, 5),
            per_size=lambda s: s * s,
            **linear,
        ),
        "length": Sweep(
            "length of 16 chains, 10 labels",
            cut(10, 32, 100, 316, 1000, 3162, 10000),
            lambda s: chains(16, s, 10),
            **linear,
        ),
        "instances, chains": Sweep(
            "chains of 40, 10 labels", cut(1, 10, 100, 1000, 10000), lambda s: chains(s, 40, 10), **linear
        ),
        "instances, hidden": Sweep(
            "chains of 40 with hidden links", cut(1, 10, 100, 1000, 10000), hidden_chains, **linear
        ),
        "threads, grids": Sweep(
            "threads on 32 grids 20x20",
            threads[:few],
            lambda t: grids(20, 5, 32, t),
            "",
            clock=time.perf_counter,
            exponent=False,
        ),
        "threads, training": Sweep(
            "threads of HCRF on hidden chains",
            threads[:few],
            lambda t: training(0.3, n, t),
            "",
            clock=time.perf_counter,
            exponent=False,
        ),
        "missing": Sweep(
            "share of labels missing, HCRF",
            cut(0.0, 0.1, 0.3, 0.5, 0.7, 0.9),
            lambda s: training(s, n),
            "",
            exponent=False,
        ),
    }


def seconds(call: Call, repeats: int, clock: Callable[[], float]) -> float:
    """The best of some runs after one that warms up."""
    call()
    times: list[float] = []
    while len(times) < repeats and sum(times) < ENOUGH:
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def growth(sizes: list[float], times: list[float]) -> float | None:
    """The slope over the upper half of the sizes, in logarithms."""
    first = (len(sizes) - 1) // 2
    x = np.log(sizes[first:])
    y = np.log(times[first:])
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else None


def measured(sweep: Sweep, repeats: int) -> dict[str, Any]:
    sizes: list[float] = []
    times: list[float] = []
    out: dict[str, Any] = {"title": sweep.title, "given": sizes, "seconds": times}
    for size in sweep.sizes:
        try:
            times.append(seconds(sweep.make(size), repeats, sweep.clock))
        except Exception as error:  # whatever it is belongs into the record
            out["failed"] = f"at {size:g}: {type(error).__name__}: {error}"
            break
        sizes.append(size)
    if sweep.exponent:
        found = growth([sweep.per_size(s) for s in sizes], times) if sizes else None
        met = None if found is None else bool(sweep.low <= found <= sweep.high)
        out |= {"exponent": found, "expected": sweep.expected, "met": met}
    return out


def draw(result: dict[str, Any], path: Path) -> None:
    """One small plot a sweep."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["sweeps"]
    columns = min(3, len(rows))
    shape = (-(-len(rows) // columns), columns)
    figure, axes = pyplot.subplots(*shape, figsize=(4.2 * shape[1], 3.2 * shape[0]), squeeze=False)
    for axis, (name, row) in zip(axes.ravel(), rows.items(), strict=False):
        axis.plot(row["given"], row["seconds"], "o-", color="#1f5fa8")
        if "exponent" in row:
            axis.set_xscale("log")
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, 1.1 * max(row["seconds"]))
        axis.set_xticks(row["given"], [f"{at:g}" for at in row["given"]])
        axis.minorticks_off()
        slope = row.get("exponent")
        axis.set_title(name + (f": exponent {slope:.2f}" if slope is not None else ""), fontsize=10)
        axis.set_xlabel("side of the grid" if name == "nodes" else row["title"], fontsize=8)
        axis.set_ylabel("seconds", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    for axis in axes.ravel()[len(rows) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--quick", action="store_true", help="two sizes each, to see that all runs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    kept = HERE / "results" / "bench_sweeps.json"
    output = args.output or (HERE.parent / "build" / "bench-sweeps-quick.json" if args.quick else kept)
    known = all_sweeps(args.quick)
    unknown = [name for name in args.sweeps or () if name not in known]
    if unknown:
        parser.error(f"no sweep {unknown[0]!r}; there are {', '.join(map(repr, known))}")
    result: dict[str, Any] = {"quick": args.quick, "machine": machine(), "sweeps": {}}
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in args.sweeps or known:
        row = result["sweeps"][name] = measured(known[name], args.repeats)
        slope = f"exponent {row['exponent']:.2f}, {row['expected']}; " if row.get("exponent") is not None else ""
        points = ", ".join(f"{s:g}: {1e3 * t:.3g} ms" for s, t in zip(row["given"], row["seconds"], strict=True))
        print(f"{name}: {slope}{points}" + (f"; FAILED {row['failed']}" if "failed" in row else ""), flush=True)
        output.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, output.with_suffix(".png"))
    print(f"wrote {output} and {output.with_suffix('.png').name}")


if __name__ == "__main__":
    main()

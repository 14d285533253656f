"""Objective against inference calls, for every solver and the three main members, on the paper's 40-node hidden chain.

    python benchmarks/bench_solvers.py [--draws 10] [--seed 0] [--out benchmarks/results]

Exact inference, 20 training instances, C = 1, the same random start for all. A pass is one plus and one minus call for
every instance. Writes solvers.json (all figures) and solvers.png (needs the extra ``plot``). The objective of an
iterate is always that of the member itself, evaluated outside the count where a solver works on another one.
CCCP stops at an outer decrease of 0.1%; its default goes on to 0.02%.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.experiments.members import NAMES, Arena, Untrained
from mssvm.experiments.simulate import hidden_chain
from mssvm.inference.exact import Exact
from mssvm.objectives.problem import Problem
from mssvm.optim import BCFW, CCCP, LBFGS, CuttingPlane, Regulariser, Row, Solver, Subgradient, random_start

MEMBERS = ("M", "L", "H")
RATE = 0.02
FIRST = "Algorithm 1"


def solvers() -> dict[str, Solver[Any]]:
    return {
        FIRST: Subgradient.literal(RATE, 400),
        "Algorithm 2": CCCP.printed(RATE, n_outer=20, n_inner=50, tolerance=1e-2),
        "Subgradient": Subgradient(),
        "CCCP+BCFW": CCCP(BCFW(), tolerance=1e-3),
        "CCCP+CuttingPlane": CCCP(CuttingPlane(), tolerance=1e-3),
        "LBFGS": LBFGS(),
    }


def measure(solver: Solver[Any], problem: Problem, w0: np.ndarray) -> dict[str, Any]:
    """Best objective so far after each recorded iterate, against passes."""
    passes: list[float] = []
    values: list[float] = []

    def watch(row: Row, w: np.ndarray) -> None:
        passes.append((row.plus_calls + row.minus_calls) / (2 * problem.n_instances))
        values.append(Regulariser().value(w) + problem.difference(w).total)

    started = time.perf_counter()
    found = solver.minimize(problem, w0, callback=watch)
    seconds = time.perf_counter() - started
    at_target = [row.objective for row in found.trace if (row.eps_y, row.eps_h) == problem.temperatures]
    best = np.minimum.accumulate(values)
    steps = np.flatnonzero(np.append(True, np.diff(best) < 0) | (np.arange(len(best)) == len(best) - 1))
    return {
        "objective": found.objective,
        "passes": np.round(np.array(passes)[steps], 3).tolist(),
        "best": np.round(best[steps], 6).tolist(),
        "largest_rise": float(np.max(np.diff(at_target), initial=-np.inf)),
        "seconds_with_watching": seconds,
        "outcome": found.outcome.value,
    }


def passes_to(run: dict[str, Any], level: float) -> float:
    """Passes until the objective is at most ``level``; infinite if it never is."""
    reached = np.flatnonzero(np.array(run["best"]) <= level)
    return float(run["passes"][reached[0]]) if len(reached) else float("inf")


def finite(value: float) -> float | None:
    """JSON knows no infinity: None where a solver does not get there in half of the draws."""
    return float(value) if np.isfinite(value) else None


def summarise(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over draws of one member; passes are those to Algorithm 1's best objective plus 1%."""
    out: dict[str, Any] = {}
    levels = [1.01 * draw[FIRST]["best"][-1] for draw in runs]
    first = np.array([passes_to(draw[FIRST], level) for draw, level in zip(runs, levels, strict=True)])
    for name in runs[0]:
        needed = np.array([passes_to(draw[name], level) for draw, level in zip(runs, levels, strict=True)])
        out[name] = {
            "median_objective": float(np.median([draw[name]["objective"] for draw in runs])),
            "median_passes_to_level": finite(np.median(needed)),
            "median_share_of_algorithm_1": finite(np.median(needed / first)),
            "median_passes_in_all": float(np.median([draw[name]["passes"][-1] for draw in runs])),
            "median_seconds_with_watching": float(np.median([draw[name]["seconds_with_watching"] for draw in runs])),
            "largest_rise": max(draw[name]["largest_rise"] for draw in runs),
        }
    return out


def draw_figure(results: dict[str, list[dict[str, dict[str, Any]]]], path: Path) -> None:
    """Median over draws of the excess over the best objective that any solver found, in per cent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    grid = np.geomspace(1, 1000, 120)
    figure, axes = plt.subplots(1, len(results), figsize=(5 * len(results), 4), sharey=True)
    for axis, (member, runs) in zip(axes, results.items(), strict=True):
        for name in runs[0]:
            rows = []
            for run in runs:
                floor = min(other["best"][-1] for other in run.values())
                at = np.searchsorted(run[name]["passes"], grid, side="right") - 1
                best = np.array(run[name]["best"])
                rows.append(np.where(at >= 0, 100 * (best[np.maximum(at, 0)] / floor - 1), np.nan))
            axis.plot(grid, np.maximum(np.median(rows, axis=0), 1e-2), label=name)
        axis.set(xscale="log", yscale="log", title=member, xlabel="passes (one plus and one minus call an instance)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("objective above the best found, %")
    axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    results: dict[str, list[dict[str, dict[str, Any]]]] = {NAMES[member]: [] for member in MEMBERS}
    for draw in range(options.draws):
        rng = np.random.default_rng(options.seed + draw)
        arena = Arena.of(hidden_chain(rng), 0.1, rng, Exact())
        for letter in MEMBERS:
            posing, member = Untrained(), NAMES[letter]
            arena.fit(letter, posing)
            problem = posing.problem
            w0 = random_start(problem.n_weights, seed=options.seed + draw)
            results[member].append({name: measure(s, problem, w0) for name, s in solvers().items()})
            row = {name: round(run["objective"], 2) for name, run in results[member][-1].items()}
            print(f"draw {draw} {member}: {row}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    summary = {member: summarise(runs) for member, runs in results.items()}
    document = {"draws": options.draws, "seed": options.seed, "summary": summary, "runs": results}
    (options.out / "solvers.json").write_text(json.dumps(document))
    draw_figure(results, options.out / "solvers.png")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()

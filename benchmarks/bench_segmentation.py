"""Weakly labelled images: accuracy and training time of the members as the share of missing labels grows.

    python benchmarks/bench_segmentation.py [--shares 0.5 0.9] [--trials 5] [--processes 1]

20x40 pixels, five labels (picture "blocks"), x = label + N(0, variance 5), 10 training, validation and test images. All
members: the subgradient solver of figure 4 (Adam's rates, objective per labelled pixel), the rate chosen by accuracy on
the validation images, HCRF's by max-marginals. The same share of labels is hidden at test and the rest is scored.
Training uses the setting "fast" of propagation on one thread, decoding the setting named by --decode. Every row is
printed beside figures of an independent implementation (cold plain propagation); seconds are those of one training at
one rate, the slower of the two, without compilation.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments import figure4
from mssvm.experiments.members import NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.segmentation import N_WEIGHTS, noisy_images, picture
from mssvm.experiments.simulate import PartlyLabelled
from mssvm.experiments.statistics import Estimate
from mssvm.inference.propagation.propagate import Propagate

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
RATES = (0.1, 0.3)
TOLERANCE = 1e-4
REFERENCE = {
    0.1: {"M": 81.8, "L": 82.0, "H": 82.1},
    0.3: {"M": 81.5, "L": 83.5, "H": 85.4},
    0.5: {"M": 82.4, "L": 85.9, "H": 88.8},
    0.7: {"M": 84.7, "L": 84.6, "H": 88.2},
    0.9: {"M": 76.8, "L": 59.4, "H": 91.3},
    0.95: {"M": 73.3, "L": 53.1, "H": 74.4},
}
RESULTS = Path(__file__).parent / "results" / "segmentation.json"


def train(member: str, images: PartlyLabelled, w0: Floats, rate: float, args: argparse.Namespace) -> tuple[Any, Any]:
    """The fitted member, and how the training went."""
    settings = {"epochs": args.epochs, "tolerance": TOLERANCE, "effort": "fast", "decode": "normal"}
    protocol = Protocol.load()
    figure4.fit(protocol, settings | {"epochs": 1}, member, images.select(np.arange(1)), rate, w0)  # compiles
    wall = time.perf_counter()
    cpu = time.process_time()
    fitted = figure4.fit(protocol, settings, member, images, rate, w0)
    seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    fitted.set_params(inference=Propagate(effort=args.decode, tolerance=TOLERANCE))
    history = fitted.history_
    return fitted, {
        "rate": rate,
        **seconds,
        "objective": fitted.objective_,
        "converged": float(np.nanmean(history["converged"])),
        "rescued": float(history["floored"][-1] / max(history["plus_calls"][-1], 1)),
    }


def trial(job: tuple[float, int, str, argparse.Namespace]) -> dict[str, Any]:
    share, number = job[:2]
    member, args = job[2:]
    rng = np.random.default_rng([number, round(1000 * share)])
    images, held_out, test = (noisy_images(picture("blocks"), 10, 5.0, share, stream) for stream in rng.spawn(3))
    w0 = 0.1 * rng.standard_normal(N_WEIGHTS)
    found = []
    for rate in args.rates:
        fitted, how = train(member, images, w0, rate, args)
        found.append((held_out.accuracy(fitted, "marginal" if member == "H" else "map"), fitted, how))
    _, fitted, how = max(found, key=lambda f: f[0])
    return {
        "share": share,
        "trial": number,
        "member": member,
        **how,
        "wall": max(h["wall"] for _, _, h in found),
        "cpu": max(h["cpu"] for _, _, h in found),
        "mixed": test.accuracy(fitted),
        "marginals": test.accuracy(fitted, "marginal"),
    }


def report(rows: list[dict[str, Any]]) -> None:
    """One line for a share and member."""
    print(
        f"{'missing':>7} {'member':7} {'accuracy':>11} {'marginals':>11} {'reference':>9} {'cpu s':>6} {'wall s':>6}"
        f" {'converged':>9} {'rescued':>8}"
    )
    for share in sorted({r["share"] for r in rows}):
        for member in "MLH":
            mine = [r for r in rows if r["share"] == share and r["member"] == member]
            if not mine:
                continue
            mixed, marginals = (Estimate.of([r[k] for r in mine], 0.95).show() for k in ("mixed", "marginals"))
            worst = {k: max(r[k] for r in mine) for k in ("cpu", "wall")}
            mean = {k: float(np.mean([r[k] for r in mine])) for k in ("converged", "rescued")}
            line = f"{100 * share:7g} {NAMES[member]:7} {mixed:>11} {marginals:>11} {REFERENCE[share][member]:9.1f} "
            line += f"{worst['cpu']:6.1f} {worst['wall']:6.1f} {mean['converged']:9.3f} {mean['rescued']:8.4f}"
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, choices=SHARES)
    parser.add_argument("--members", default="MHL")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--first", type=int, default=100, help="number of the first trial; settings were chosen on 0-2")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--decode", default="careful")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.trials)
    jobs = [(s, t, m, args) for t in numbers for s in args.shares for m in args.members]
    rows = []
    settings = {k: v for k, v in vars(args).items() if k != "output"}
    with ProcessPoolExecutor(args.processes) as pool:
        for row in map(trial, jobs) if args.processes == 1 else pool.map(trial, jobs):
            rows.append(row)
            out = {"settings": settings, "reference": REFERENCE, "rows": rows}
            args.output.write_text(json.dumps(out, indent=1) + "\n")
    report(rows)


if __name__ == "__main__":
    main()

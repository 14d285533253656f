"""LSSVM on weakly labelled images: cutting planes with proven maxima (toulbar2) beside training with propagation.

    python benchmarks/bench_weak_map.py [--seeds 0 1 2] [--percent 50] [--json benchmarks/results/weak_map.json]

Five labels on 20 x 40 pixels (``experiments.segmentation``), a share of them missing. ``defaults`` is training as users
get it, by propagation; from its weights CCCP around cutting planes goes on, with maxima by toulbar2 or by propagation.
Told of each: the objective that training claims and the one that proven maxima give; the certificate, which is of the
last convex problem that CCCP solved, the objective itself not being convex; rounds, calls of inference and seconds;
accuracy on the pixels without labels and on four other images, by proven maxima. Needs the extra ``map``.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from copy import deepcopy
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

import mssvm as ms
from mssvm.experiments.segmentation import noisy_images, picture
from mssvm.inference.toulbar2 import Toulbar2
from mssvm.optim import CCCP, CuttingPlane

TOLERANCE = 2e-2
KEPT = ("objective", "certificate", "outcome", "exact", "negative_gaps", "methods")


def measured(
    model: ms.LSSVM, X: list[Any], hidden: Any, truth: Any, new: list[Any], proven: Toulbar2
) -> dict[str, Any]:
    """What a trained model says of itself, and accuracies by proven maxima."""
    calls = model.history_[-1]
    row = {k: model.training_[k] for k in KEPT} | {"inference_calls": int(calls["plus_calls"] + calls["minus_calls"])}
    if "inner problem" in row["certificate"]:
        row["gap_of_last_inner"] = float(row["certificate"].split()[-2])
    model.set_params(inference=proven)
    guesses = [np.concatenate([z.ravel() for z in model.predict(images)]) for images in (X, new)]
    known = [np.tile(truth, len(images)) for images in (X, new)]
    right = [g == t for g, t in zip(guesses, known, strict=True)]
    return row | {"accuracy_unlabelled": float(right[0][hidden].mean()), "accuracy_new": float(right[1].mean())}


def proven_objective(model: ms.LSSVM, X: list[Any], y: list[Any]) -> float:
    """The objective at the model's weights by its inference: what a solver that begins there meets first."""
    solver = CCCP(inner=CuttingPlane(max_iter=1), max_iter=1)
    again = deepcopy(model).set_params(solver=solver)
    with catch_warnings():
        simplefilter("ignore")
        return float(again.fit(X, y).history_[0]["objective"])


def run(seed: int, percent: int, seconds: float, rounds: int, outer: int) -> list[dict[str, Any]]:
    inner = CuttingPlane(max_iter=rounds)
    solver = CCCP(inner=inner, max_iter=outer, tolerance=TOLERANCE / 4, inner_tolerance=TOLERANCE)
    parts = zip((1, 4), np.random.default_rng([seed, percent]).spawn(2), strict=True)
    train, test = (noisy_images(picture("blocks"), n, 5.0, percent / 100, stream) for n, stream in parts)
    y = [np.where(hidden, -1, z).reshape(20, 40) for z, hidden in zip(train.states, train.hidden, strict=True)]
    X, new = ([np.asarray(g.nodes).reshape(20, 40, 1) for g in part.X] for part in (train, test))
    proven, rows = Toulbar2(seconds), []
    # From zero, where all completions are alike, the procedure does not get away; both begin where users would end.
    first = ms.LSSVM(ms.Grid(), C=0.1, inference="propagate", missing_label=-1, random_state=0, warm_start=True)
    for name in ("defaults", "propagate", "toulbar2"):
        began, model = time.process_time() + children(), deepcopy(first)
        if name != "defaults":
            model.set_params(solver=solver, inference=proven if name == "toulbar2" else "propagate")
        model.fit(X, y)
        used = time.process_time() + children() - began
        first = model if name == "defaults" else first
        row = measured(deepcopy(model), X, train.hidden[0], train.states[0], new, proven)
        model.set_params(inference=proven)
        row["proven_objective"] = row["objective"] if name == "toulbar2" else proven_objective(model, X, y)
        rows.append({"seed": seed, "percent": percent, "trained by": name, **row, "processor_s": round(used, 1)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def children() -> float:
    """Processor time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and toulbar2 less each of the others, paired, with its standard error."""
    figures, by = ("proven_objective", "accuracy_unlabelled", "accuracy_new", "processor_s"), "trained by"
    values = {
        n: np.array([[r[k] for k in figures] for r in rows if r[by] == n]) for n in dict.fromkeys(r[by] for r in rows)
    }
    found: dict[str, Any] = {
        n: dict(zip(figures, v.mean(axis=0).round(4).tolist(), strict=True)) for n, v in values.items()
    }
    for n in ("defaults", "propagate"):
        less = values["toulbar2"] - values[n]
        error = less.std(axis=0, ddof=min(1, len(less) - 1)) / np.sqrt(len(less))
        pairs = zip(less.mean(axis=0).round(4).tolist(), error.round(4).tolist(), strict=True)
        found[f"toulbar2 less {n}"] = dict(zip(figures, pairs, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the images, one a seed")
    parser.add_argument("--percent", type=int, default=50, help="of the labels that are missing")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of toulbar2 on an image")
    parser.add_argument("--rounds", type=int, default=100, help="of cutting planes, for each completion")
    parser.add_argument("--outer", type=int, default=4, help="completions of the labels, one after the other")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in given.seeds:
        rows += run(seed, given.percent, given.seconds, given.rounds, given.outer)
        if given.json:
            given.json.write_text(json.dumps({"summary": summary(rows), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

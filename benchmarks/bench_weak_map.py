"""LSSVM on weakly labelled images: cutting planes with proven maxima (toulbar2) beside training with propagation.

    python benchmarks/bench_weak_map.py [--percent 50] [--images 1] [--json benchmarks/results/weak_map.json]

The same images, weights to start from (training by defaults) and solver (CCCP around cutting planes); what differs is
who maximises. Tells the training's certificate and objective, whether all maxima were proven, and the accuracy on
pixels of other images with the same model, whose maxima are taken by toulbar2. Needs the extra ``map``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import mssvm as ms
from mssvm.experiments.segmentation import noisy_images, picture
from mssvm.inference.toulbar2 import Toulbar2
from mssvm.optim import CCCP, CuttingPlane

TOLERANCE = 1e-2


def run(percent: int, n_images: int, seconds: float, rounds: int, outer: int) -> list[dict[str, Any]]:
    solver = CCCP(inner=CuttingPlane(max_rounds=rounds, tolerance=TOLERANCE), max_outer=outer)
    rng = np.random.default_rng([0, percent])
    parts = zip((n_images, 4), rng.spawn(2), strict=True)
    train, test = (noisy_images(picture("blocks"), n, 5.0, percent / 100, stream) for n, stream in parts)
    y = [np.where(hidden, -1, z).reshape(20, 40) for z, hidden in zip(train.states, train.hidden, strict=True)]
    X, new = ([np.asarray(g.nodes).reshape(20, 40, 1) for g in part.X] for part in (train, test))
    truth = np.concatenate([z.ravel() for z in test.states])
    proven, rows = Toulbar2(seconds), []
    for name, inference in (("toulbar2", proven), ("propagate", ms.inference.Propagate("normal"))):
        began = time.process_time()
        # From zero, where all completions are alike, the procedure does not get away; both start where users would end.
        model = ms.LSSVM(ms.Grid(), C=0.1, inference="propagate", missing_label=-1, random_state=0, warm_start=True)
        model.fit(X, y).set_params(solver=solver, inference=inference).fit(X, y)
        kept = ("objective", "certificate", "gap", "certified", "exact", "negative_gaps", "methods")
        row = {"percent": percent, "images": n_images, "trained by": name, **{k: model.training_[k] for k in kept}}
        model.set_params(inference=proven)
        found = np.concatenate([z.ravel() for z in model.predict(new)])
        row |= {"accuracy": float((found == truth).mean()), "processor_s": time.process_time() - began}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--percent", type=int, nargs="+", default=[50], help="of the labels that are missing")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="processor time of toulbar2 on an image")
    parser.add_argument("--rounds", type=int, default=120, help="of cutting planes, for each completion")
    parser.add_argument("--outer", type=int, default=3, help="completions of the labels, one after the other")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for percent in given.percent:
        rows += run(percent, given.images, given.seconds, given.rounds, given.outer)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

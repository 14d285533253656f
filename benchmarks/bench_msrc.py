"""Categories of MSRC patches (the paper's section 7.3) by the library's defaults, beside the kept trials of Table 4.

    python benchmarks/bench_msrc.py FOLDER...        folders of MSRC images, as `mssvm reproduce --data` takes them

Table 4 trains by belief propagation, as the paper does. Here the same images, patches, features and folds go through
`GraphModel()` with all defaults: the decomposition bound for training and prediction, L-BFGS. C is chosen from 0.1, 1
and 10 on every third training image, as there. Accuracies are of labelled patches, in per cent; seconds are processor
time, of training with the chosen C and of choosing it.

Results: benchmarks/results/msrc.json. Needs OpenCV (pip install 'mssvm[vision]').
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common_data import write
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms
from mssvm.experiments.msrc import CATEGORIES, codebook, features, load_patches, read_msrc
from mssvm.experiments.table4 import Fold

console = Console()

KEPT = Path(__file__).resolve().parents[1] / "results" / "table4.jsonl"
MEMBERS = {"HCRF": "H", "MSSVM": "M", "LSSVM": "L"}
STRENGTHS = (0.1, 1.0, 10.0)
WORDS = 500
INNER = 3  # every third image of the training fold chooses C


def folds(folders: list[Path]) -> list[Fold]:
    """The two folds of Table 4, with its codebook of all patches."""
    patches = load_patches(read_msrc(*folders), Path.home() / ".cache" / "mssvm" / "msrc")
    words = codebook(patches, WORDS, 0)
    rows = [features(p, words.predict(p.sift.astype(np.float64)), WORDS) for p in patches]
    number = np.arange(len(patches)) % 2
    return [Fold(patches, rows, np.flatnonzero(number != k), np.flatnonzero(number == k), INNER) for k in (0, 1)]


def fitted(member: str, data: Any, strength: float) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the status is kept instead
        model = getattr(ms, member)(ms.GraphModel(), C=strength, random_state=0, classes=range(len(CATEGORIES)))
        return model.fit(data.X, data.y)


def one(data: Fold, member: str) -> dict[str, Any]:
    """Accuracy on the test images, with C from the inner split."""
    begin = time.process_time()
    inner = data.images.select(data.inner)
    held_out = data.images.select(data.held_out)
    scores = [held_out.accuracy(fitted(member, inner, strength), "auto") for strength in STRENGTHS]
    strength = STRENGTHS[int(np.argmax(scores))]
    chosen = time.process_time()
    model = fitted(member, data.images.select(data.train), strength)
    end = time.process_time()
    accuracy = data.images.select(data.test).accuracy(model, "auto")
    return {
        "C": strength,
        "accuracy": round(float(accuracy), 2),
        "choosing": round(chosen - begin, 1),
        "training": round(end - chosen, 1),
        "status": model.status_,
    }


def kept() -> dict[str, list[float]]:
    """Accuracies of the kept trials of Table 4 with the same codebook, fold by fold."""
    found: dict[str, list[float]] = {}
    for line in KEPT.read_text().splitlines():
        trial = json.loads(line)
        if trial["params"]["codebook"] != "all":
            continue
        for name, result in trial["result"].items():
            if isinstance(result, dict):
                right = 100.0 * np.sum(result["right"]) / np.sum(result["total"])
                found.setdefault(f"{name}, {trial['params']['solver']}", []).append(round(float(right), 2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for number, data in enumerate(folds(options.folders)):
        for member in MEMBERS:
            row = {"member": member, "fold": number, **one(data, member)}
            console.print(row)
            rows.append(row)
            write("msrc", {"defaults": rows, "kept trials of Table 4": kept()})


if __name__ == "__main__":
    main()

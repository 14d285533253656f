"""Photographs with strokes: HCRF on ``ms.features.image`` beside GrabCut (OpenCV) and the random walker (scikit-image).

The GrabCut data: 25 photographs, each with two sets of human strokes, of which the first is sparse. Everybody gets the
same strokes, and nobody may change a pixel that has one. Figures are the intersection over union of the object with the
truth, means over pictures, and seconds of processor time a picture. Settings of ours, and beta = 1000 of the walker
(beside its default), were chosen on every other picture from the first on; the table is of those between.

    python benchmarks/bench_strokes.py               the half that nothing was chosen on
    python benchmarks/bench_strokes.py --chosen      the half that settings were chosen on
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import common_data
import environments
import numpy as np
from rich.console import Console

import mssvm as ms
from mssvm.data.readers import png

SETS = (1, 2)
OBJECT = 1


def decoded(path: Path) -> np.ndarray:
    """Numbers of a grey or palette PNG."""
    return png.decode(path.read_bytes(), path.name)[..., 0]


def colours(path: Path) -> np.ndarray:
    import cv2

    return np.ascontiguousarray(cv2.imread(str(path))[..., ::-1])


def ours(rgb: np.ndarray, strokes: np.ndarray) -> np.ndarray:
    """Defaults, but for the edges, which image folders have by default."""
    X = [ms.features.image(rgb)]
    given = [np.where(strokes == 0, None, strokes).astype(object)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ms.HCRF(ms.Grid(edges="contrast"), random_state=0).fit(X, given)
        return np.asarray(model.predict(X, given=given)[0] == OBJECT)


def overlap(found: np.ndarray, truth: np.ndarray, strokes: np.ndarray) -> float:
    """Of the object and the truth, with the strokes as they were drawn."""
    found = np.where(strokes > 0, strokes == OBJECT, found)
    return float((found & truth).sum() / (found | truth).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chosen", action="store_true")
    parser.add_argument("--pictures", type=int, help="only the first of them")
    args = parser.parse_args()
    folder = common_data.data_dir() / "grabcut"
    names = sorted(path.stem for path in folder.glob("*.jpg"))[0 if args.chosen else 1 :: 2][: args.pictures]
    asked = [(name, f"{name}.scribbles{k}.png") for name in names for k in SETS]
    overlaps: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as out:
        payload = {"folder": str(folder), "pictures": asked, "out": out}
        seconds = common_data.peer(str(environments.python_of("strokes")), "strokes.py", payload)
        seconds["mssvm"] = []
        for name, strokes_name in asked:
            truth = decoded(folder / f"{name}.truth.png") > 127
            strokes = decoded(folder / strokes_name)
            begin = time.process_time()
            masks = {"mssvm": ours(colours(folder / f"{name}.jpg"), strokes)}
            seconds["mssvm"].append(time.process_time() - begin)
            masks.update(
                {method: decoded(Path(out) / f"{method}-{strokes_name}") > 0 for method in seconds if method != "mssvm"}
            )
            for method, found in masks.items():
                overlaps.setdefault(method, []).append(overlap(found, truth, strokes))
    rows: list[dict[str, Any]] = []
    for method, found in overlaps.items():
        by_set = {f"set {k}": round(float(np.mean(found[i :: len(SETS)])), 4) for i, k in enumerate(SETS)}
        mean = round(float(np.mean(found)), 4)
        rows.append({"method": method, **by_set, "mean": mean, "seconds": round(float(np.mean(seconds[method])), 2)})
        Console().print(rows[-1])
    if not args.chosen and args.pictures is None:
        each = {method: [round(value, 4) for value in found] for method, found in overlaps.items()}
        common_data.write("strokes", {"rows": rows, "pictures": names, "overlaps": each})


if __name__ == "__main__":
    main()

"""Photographs with strokes (``bench_strokes.py``) through the studio: its coarse grid, its iterations, its learner.

The same 12 photographs, of which nothing was chosen, with both sets of human strokes. A stroke's pixels are recorded as
marks, the learner learns once, and its answer is compared with the truth. Results are kept in
results/studio_strokes.json, beside the means of the other methods, which are those of results/strokes.json.

    python benchmarks/bench_studio_strokes.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
from bench_strokes import OBJECT, SETS, decoded, overlap
from common_data import data_dir, read_result, write

from mssvm.studio.learner import Learner
from mssvm.studio.pictures import PictureProject


def marks(strokes: np.ndarray) -> list[dict[str, Any]]:
    """Marks that cover exactly the pixels of the strokes: one for every run of equal pixels in a row."""
    found = []
    for row, line in enumerate(strokes):
        ends = np.flatnonzero(np.diff(line, prepend=-1, append=-1))
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if line[start] == 0:
                continue
            points = [[start + 0.5, row + 0.5], [stop - 0.5, row + 0.5]]
            label = int(line[start] == OBJECT)
            found.append({"kind": "mark", "item": 0, "class": label, "points": points, "radius": 0.5})
    return found


def labelled(picture: Path, strokes: np.ndarray) -> tuple[np.ndarray, float]:
    """The studio's answer for a picture with strokes, and seconds of processor time from the last stroke to it."""
    with tempfile.TemporaryDirectory() as folder:
        copy(picture, folder)
        project = PictureProject(Path(folder))
        for event in marks(strokes):
            project.record(event)
        covered = np.where(strokes == 0, -1, strokes == OBJECT)
        assert np.array_equal(project.raster(0), covered), "marks are the strokes"
        learner = Learner(project, lambda: None)
        began = time.process_time()
        learner.learn_now()
        return np.asarray(learner.answers[0][1].labels) == 1, time.process_time() - began


def main() -> None:
    folder = data_dir() / "grabcut"
    names = sorted(path.stem for path in folder.glob("*.jpg"))[1::2]
    overlaps: dict[str, list[float]] = {f"set {k}": [] for k in SETS}
    seconds = []
    for name in names:
        truth = decoded(folder / f"{name}.truth.png") > 127
        for k in SETS:
            strokes = decoded(folder / f"{name}.scribbles{k}.png").astype(np.int64)
            found, used = labelled(folder / f"{name}.jpg", strokes)
            overlaps[f"set {k}"].append(round(overlap(found, truth, strokes), 4))
            seconds.append(used)
        print(name, [values[-1] for values in overlaps.values()], flush=True)
    means = {key: float(np.mean(values)) for key, values in overlaps.items()}
    row = {
        "method": "studio",
        **means,
        "mean": float(np.mean(list(means.values()))),
        "seconds": float(np.mean(seconds)),
    }
    print(row)
    others = read_result("strokes").get("rows", [])
    write("studio_strokes", {"rows": [row, *others], "pictures": names, "overlaps": overlaps})


if __name__ == "__main__":
    main()

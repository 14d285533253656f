"""The studio's loop: from a stroke to the labelled picture.

    python benchmarks/bench_studio.py [--sizes 256 512] [--strokes 20] [--many 500]

A landscape of four classes (drawn by a program) is painted by a simulated annotator: first one stroke of three classes,
then strokes where the prediction is wrong. Seconds are those from recording a stroke to the new prediction, on the wall
and of the processor; on the wall they mean something on a quiet machine only. Memory is the peak resident size of the
process after the first 50 and after all of ``--many`` strokes at 64 x 64, and after each size. Results are kept in
results/studio.json.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common_data import write

from mssvm.data.embedded import landscape
from mssvm.data.readers import png
from mssvm.studio.learner import Learner
from mssvm.studio.pictures import PictureProject

N_CLASSES = 3


def painted(size: int, n_strokes: int, seed: int = 0) -> tuple[list[float], list[float], list[float], list[float]]:
    """Wall and processor seconds, accuracy and resident megabytes after every stroke."""
    rng = np.random.default_rng(seed)
    picture = landscape(size, size, seed=seed)
    truth = np.minimum(picture.truth, N_CLASSES - 1)
    wall: list[float] = []
    processor: list[float] = []
    accuracy: list[float] = []
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "one.png").write_bytes(png.encode(picture.pixels))
        project = PictureProject(Path(folder))
        project.record({"kind": "class", "name": "third"})
        learner = Learner(project, lambda: None)
        learner.start()
        for number in range(n_strokes):
            wrong = truth >= 0
            if 0 in learner.answers:
                wrong = learner.answers[0][1].labels != truth
            label = number % N_CLASSES if number < N_CLASSES or not wrong.any() else None
            places = np.argwhere(truth == label if label is not None else wrong)
            row, column = places[rng.integers(len(places))].tolist()
            event = {
                "kind": "mark",
                "item": 0,
                "class": int(truth[row, column]),
                "points": [[column + 0.5, row + 0.5]],
                "radius": max(size / 128, 1.0),
            }
            began = time.perf_counter()
            used = time.process_time()
            project.record(event)
            learner.wake()
            if number + 1 >= 2:
                wait_for(learner, project.version)
                wall.append(time.perf_counter() - began)
                processor.append(time.process_time() - used)
                accuracy.append(float((learner.answers[0][1].labels == truth).mean()))
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        learner.stop()
    return wall, processor, accuracy, memory


def wait_for(learner: Learner, version: int) -> None:
    while learner.answers.get(0, (-1, None))[0] != version or learner.progress.doing:
        time.sleep(0.002)


def summary(seconds: list[float]) -> dict[str, float]:
    return {"median": float(np.median(seconds)), "95%": float(np.quantile(seconds, 0.95)), "first": seconds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--strokes", type=int, default=20)
    parser.add_argument("--many", type=int, default=500)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.many:  # first, as peaks do not fall again
        memory = painted(64, options.many)[3]
        result["peak memory at 64 x 64, MB"] = {"after 50 strokes": memory[49], f"after {options.many}": memory[-1]}
        print(result["peak memory at 64 x 64, MB"], flush=True)
    for size in options.sizes:
        wall, processor, accuracy, memory = painted(size, options.strokes)
        result[str(size)] = {
            "seconds": summary(wall),
            "processor seconds": summary(processor),
            "pixels right after 3, 10 and all strokes": [accuracy[1], accuracy[8], accuracy[-1]],
            "peak memory, MB": memory[-1],
        }
        print(size, result[str(size)], flush=True)
    write("studio", result)


if __name__ == "__main__":
    main()

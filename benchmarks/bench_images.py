"""Weakly labelled images through the public API, with defaults: training on a few, prediction on one large one.

Images show two regions (the inside of a wavy closed curve and the rest) or, with more labels, the plane cut into the
cells of random centres; a pixel has two noisy features and its label is known with probability 0.15 in training.
Prints one JSON line per row: processor and wall time, accuracy on all pixels, and peak memory.

    python benchmarks/bench_images.py [fit10] [fit64] [predict200] [predict300] [predict1000]

Every row runs in this process once to warm up (compiled kernels are loaded) and once to be measured; ``predict1000``,
which needs no warm-up to speak of, runs once.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

import mssvm as ms
from mssvm.core.arrays import Floats, Ints

NOISE = 1.0
LABELLED = 0.15


def picture(side: int, n_labels: int, rng: np.random.Generator) -> Ints:
    """The labels of one square image."""
    at = (np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1) + 0.5) / side
    if n_labels == 2:
        y, x = np.moveaxis(at - rng.uniform(0.35, 0.65, 2), -1, 0)
        angle = np.arctan2(y, x)
        radius = rng.uniform(0.2, 0.35)
        waves = sum(rng.normal(0, 0.08) * np.cos(k * angle + rng.uniform(0, 6.3)) for k in (2, 3, 4))
        return (np.hypot(x, y) < radius * (1 + waves)).astype(np.int64)
    centres = rng.random((4 * n_labels, 2))
    label = np.arange(4 * n_labels) % n_labels
    return np.asarray(label[np.argmin(((at[:, :, None] - centres) ** 2).sum(axis=-1), axis=-1)])


def images(n: int, side: int, n_labels: int = 2, seed: int = 0) -> tuple[list[Floats], list[Ints], list[Ints]]:
    """Features, labels, and labels of which most are missing (-1)."""
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n_labels, 2)) if n_labels > 2 else np.array([[-0.6, 0.3], [0.6, -0.3]])
    X = []
    full = []
    part = []
    for _ in range(n):
        y = picture(side, n_labels, rng)
        noisy = signal[y] + rng.normal(0, NOISE, (*y.shape, 2))
        X.append(np.concatenate([noisy, np.ones((*y.shape, 1))], axis=-1))
        full.append(y)
        part.append(np.where(rng.random(y.shape) < LABELLED, y, -1))
    return X, full, part


def accuracy(found: list[Ints], truth: list[Ints]) -> float:
    return float(np.mean([np.mean(a == b) for a, b in zip(found, truth, strict=True)]))


def fit(n: int, side: int) -> Callable[[], dict[str, float | str]]:
    """Training with defaults, then the accuracy of predictions on new images."""
    X, full, part = images(n, side)
    new, truth, _ = images(n, side, seed=1)

    def run() -> dict[str, float | str]:
        timed = clock()
        model = ms.MSSVM(ms.Grid(), missing_label=-1, random_state=0).fit(X, part)
        out = {**timed(), "objective": float(model.objective_)}
        return {**out, "train": accuracy(model.predict(X), full), "new": accuracy(model.predict(new), truth)}

    return run


def predict(side: int, n_labels: int) -> Callable[[], dict[str, float | str]]:
    """Prediction on one image, by a model learned from small ones, with defaults and by messages alone."""
    X, _, part = images(6, 12, n_labels)
    new, truth, _ = images(1, side, n_labels, seed=1 if n_labels == 2 else 0)
    models = {}
    for inference in ("auto", "propagate"):
        models[inference] = ms.MSSVM(ms.Grid(), missing_label=-1, inference=inference, max_iter=20, random_state=0)
        models[inference].fit(X, part)
        models[inference].coef_ = models["auto"].coef_

    def run() -> dict[str, float | str]:
        out: dict[str, float | str] = {}
        for inference in ("auto", "propagate") if side < 1000 else ("auto",):
            timed = clock()
            found = models[inference].predict(new)
            out |= {f"{inference} {name}": value for name, value in timed().items()}
            out[f"{inference} accuracy"] = accuracy(found, truth)
        return out

    return run


def clock() -> Callable[[], dict[str, float]]:
    """Processor and wall seconds since now."""
    cpu = time.process_time()
    wall = time.perf_counter()
    return lambda: {"cpu": round(time.process_time() - cpu, 2), "wall": round(time.perf_counter() - wall, 2)}


ROWS = {
    "fit10": lambda: fit(8, 10),
    "fit64": lambda: fit(6, 64),
    "predict200": lambda: predict(200, 2),
    "predict300": lambda: predict(300, 2),
    "predict1000": lambda: predict(1000, 5),
}


def main() -> None:
    for name in sys.argv[1:] or ROWS:
        run = ROWS[name]()
        if name != "predict1000":
            run()
        result = {"row": name, **run()}
        result["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

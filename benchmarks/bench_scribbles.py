"""Scribbled discs: six pictures of 64 x 64, each a noisy disc of which 5% of the pixels were labelled by thin strokes.

Picture k is made with seed k: a disc of value 1 on ground of value 0, noise of standard deviation 0.5 on every pixel,
in grey (-1.5 is black, 2.5 white). Strokes are random walks one pixel wide that keep their direction for a while and
stay in their class; half of the labels lie in the disc.

Run: python benchmarks/bench_scribbles.py FOLDER    writes images/, masks/ (255 is missing) and truth/
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from mssvm.data.readers import png

SIDE, NOISE, SHARE, SEEDS = 64, 0.5, 0.05, range(6)
MISSING = 255


def picture(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grey values, the labels given (MISSING elsewhere) and all labels, as bytes."""
    rng = np.random.default_rng(seed)
    radius = rng.uniform(0.2, 0.32) * SIDE
    centre = rng.uniform(radius + 3, SIDE - radius - 3, 2)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    truth = ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2).astype(np.uint8)
    values = truth + rng.normal(0, NOISE, truth.shape)
    given = np.full(truth.shape, MISSING, dtype=np.uint8)
    for label in (0, 1):
        while (given == label).mean() < SHARE / 2:
            stroke(given, truth, label, rng)
    return np.clip((values + 1.5) / 4 * 255, 0, 255).astype(np.uint8), given, truth


def stroke(given: np.ndarray, truth: np.ndarray, label: int, rng: np.random.Generator) -> None:
    """One stroke of up to 20 pixels within the class, from a random pixel of it."""
    at = rng.choice(np.argwhere(truth == label)).astype(float)
    angle = rng.uniform(0, 2 * np.pi)
    for _ in range(20):
        i, j = np.round(at).astype(int)
        inside = 0 <= i < SIDE and 0 <= j < SIDE and truth[i, j] == label
        if not inside or (given == label).mean() >= SHARE / 2:
            return
        given[i, j] = label
        angle += rng.normal(0, 0.3)
        at += np.array([np.sin(angle), np.cos(angle)])


def write(folder: Path) -> None:
    """The image folder, with the truth beside it."""
    for seed in SEEDS:
        for name, pixels in zip(("images", "masks", "truth"), picture(seed), strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{seed}.png").write_bytes(png.encode(pixels))


def overlap(found: np.ndarray, truth: np.ndarray, given: np.ndarray) -> float:
    """Intersection over union of the disc, on the pixels without a label."""
    found, truth, rest = found == 1, truth == 1, given == MISSING
    return float((found & truth & rest).sum() / ((found | truth) & rest).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()

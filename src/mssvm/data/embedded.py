"""Data that comes with the package, to try things on: a chunking sample, and weakly labelled pictures made at will."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.data.dataset import Dataset
from mssvm.data.readers import png, read
from mssvm.data.readers.images import MISSING

COLOURS = np.array([[96, 148, 206], [120, 152, 92], [176, 132, 92]])  # sky, meadow, field


@dataclass(frozen=True, eq=False)
class WeakPicture:
    """A picture (H, W, 3), the labels that are given (MISSING elsewhere) and all of them, as bytes."""

    pixels: AnyArray
    given: AnyArray
    truth: AnyArray


def chunking(part: str = "train") -> Dataset:
    """Sentences with chunk tags: "train" has half of the tags missing and some ambiguous, "test" has them all."""
    with as_file(files("mssvm.data").joinpath(f"chunks_{part}.conll")) as path:
        return read(path)


def write_chunking(folder: Path) -> tuple[Path, Path]:
    """The sample as files chunks-train.conll and chunks-test.conll."""
    out = []
    for part in ("train", "test"):
        text = files("mssvm.data").joinpath(f"chunks_{part}.conll").read_text("utf-8")
        out.append(folder / f"chunks-{part}.conll")
        out[-1].write_text(text, "utf-8")
    return out[0], out[1]


def weak_pictures(
    n: int = 6, height: int = 20, width: int = 30, share: float = 0.06, noise: float = 50.0, seed: int = 0
) -> list[WeakPicture]:
    """Landscapes of sky, meadow and a field, in noisy colours, with a few scribbled strokes of labels on each."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    out = []
    for _ in range(n):
        bend, phase = rng.uniform(0.05, 0.12) * height, rng.uniform(0, 2 * np.pi)
        horizon = rng.uniform(0.35, 0.55) * height + bend * np.sin(columns / width * 2 * np.pi + phase)
        truth = np.where(rows < horizon, 0, 1)
        centre = rng.uniform(0.7, 0.8) * height, rng.uniform(0.25, 0.75) * width
        inside = ((rows - centre[0]) / (0.2 * height)) ** 2 + ((columns - centre[1]) / (0.28 * width)) ** 2 < 1
        truth = np.where(inside, 2, truth)
        pixels = COLOURS[truth] + rng.normal(0, noise, (height, width, 3))
        given = np.full(truth.shape, MISSING)
        while (given != MISSING).mean() < share:
            i, j, length = rng.integers(height), rng.integers(width - 4), rng.integers(3, 7)
            given[i, j : j + length] = truth[i, j : j + length]
        out.append(WeakPicture(np.clip(pixels, 0, 255).astype(np.uint8), *(m.astype(np.uint8) for m in (given, truth))))
    return out


def write_pictures(folder: Path, pictures: list[WeakPicture], full: bool = False) -> Path:
    """Pictures and masks as an image folder; ``full`` writes all labels instead of the given ones."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for k, picture in enumerate(pictures):
        (folder / "images" / f"{k:03d}.png").write_bytes(png.encode(picture.pixels))
        (folder / "masks" / f"{k:03d}.png").write_bytes(png.encode(picture.truth if full else picture.given))
    return folder

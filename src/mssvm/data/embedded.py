"""Data that comes with the package: a chunking sample, and generated pictures with few labels."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.checks import count, number
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
    """Sentences with chunk tags: in the ``part`` "train" half of the tags are missing and some are ambiguous; "test"
    has all tags.

    >>> train = ms.data.chunking("train")
    >>> any(tag is None for tags in train.labels for tag in tags)
    True
    """
    with as_file(files("mssvm.data").joinpath(f"chunks_{part}.conll")) as path:
        return read(path)


def write_chunking(folder: Path) -> tuple[Path, Path]:
    """Write the sample to files chunks-train.conll and chunks-test.conll; their paths."""
    return _write_chunks(folder, "train"), _write_chunks(folder, "test")


def _write_chunks(folder: Path, part: str) -> Path:
    path = folder / f"chunks-{part}.conll"
    text = files("mssvm.data").joinpath(f"chunks_{part}.conll").read_text("utf-8")
    path.write_text(text, "utf-8")
    return path


def weak_pictures(
    n: int = 6, height: int = 20, width: int = 30, share: float = 0.06, noise: float = 50.0, seed: int = 0
) -> list[WeakPicture]:
    """``n`` landscapes of sky, meadow and a field, ``height`` by ``width``, in colours with ``noise``, and a few
    scribbled strokes that label a ``share`` of the pixels; ``seed`` is that of the random numbers.

    >>> picture = ms.data.weak_pictures(n=1, height=10, width=12)[0]
    >>> picture.pixels.shape, picture.truth.shape
    ((10, 12, 3), (10, 12))
    """
    count(n, "n", 0)
    count(height, "height", 1)
    count(width, "width", 5)  # strokes begin at least five columns before the edge
    number(share, "share", low=0.0, high=1.0)
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    out = []
    for _ in range(n):
        bend = rng.uniform(0.05, 0.12) * height
        phase = rng.uniform(0, 2 * np.pi)
        horizon = rng.uniform(0.35, 0.55) * height + bend * np.sin(columns / width * 2 * np.pi + phase)
        truth = np.where(rows < horizon, 0, 1)
        centre_row = rng.uniform(0.7, 0.8) * height
        centre_column = rng.uniform(0.25, 0.75) * width
        inside = ((rows - centre_row) / (0.2 * height)) ** 2 + ((columns - centre_column) / (0.28 * width)) ** 2 < 1
        truth = np.where(inside, 2, truth)
        pixels = COLOURS[truth] + rng.normal(0, noise, (height, width, 3))
        given = np.full(truth.shape, MISSING)
        while (given != MISSING).mean() < share:
            i = rng.integers(height)
            j = rng.integers(width - 4)
            length = rng.integers(3, 7)
            given[i, j : j + length] = truth[i, j : j + length]
        out.append(_as_bytes(pixels, given, truth))
    return out


def _as_bytes(pixels: AnyArray, given: AnyArray, truth: AnyArray) -> WeakPicture:
    colours = np.clip(pixels, 0, 255).astype(np.uint8)
    return WeakPicture(colours, given.astype(np.uint8), truth.astype(np.uint8))


def landscape(height: int = 60, width: int = 90, share: float = 0.02, seed: int = 0) -> WeakPicture:
    """A landscape as a camera might see it, with light, clouds, texture and grain: sky (0), hills (1), meadow (2) and a
    lake (3) that mirrors the sky; thin strokes label a share of its pixels."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    ridge = 0.34 + 0.3 * (_clouds(1, width, 3, rng) - 0.5)
    shore = 0.52 + 0.12 * (_clouds(1, width, 2, rng) - 0.5)
    truth = np.where(rows < ridge, 0, np.where(rows < shore, 1, 2))
    lake = ((rows - 0.76) / 0.11) ** 2 + ((columns - rng.uniform(0.35, 0.65)) / 0.3) ** 2
    truth = np.where(lake + 0.5 * (_clouds(height, width, 4, rng) - 0.5) < 1, 3, truth)
    colours = np.array([[120, 165, 225], [88, 104, 112], [104, 138, 62], [96, 134, 178]], dtype=np.float64)
    rough = np.array([55.0, 50.0, 70.0, 22.0])[truth] * (_clouds(height, width, 5, rng) - 0.5)
    rough += np.array([0.0, 9.0, 16.0, 5.0])[truth] * rng.normal(size=truth.shape)
    light = 1.12 - 0.3 * columns + np.where(truth == 0, 0.35 * rows, 0.0)
    pixels = light[..., None] * (colours[truth] + rough[..., None]) + rng.normal(0, 14.0, (height, width, 3))
    given = np.full(truth.shape, MISSING)
    for label in np.unique(truth):
        while (given == label).mean() < share / len(np.unique(truth)):
            _stroke(given, truth, int(label), rng)
    return _as_bytes(pixels, given, truth)


def _clouds(height: int, width: int, octaves: int, rng: np.random.Generator) -> AnyArray:
    """Smooth noise between 0 and 1: random values on finer and finer grids, each half as strong as the one before."""
    out = np.zeros((height, width))
    for k in range(octaves):
        n = 2 << k
        # Bilinear interpolation between the knots of a grid of n x n cells.
        knots = rng.random((n + 1, n + 1))
        i = np.linspace(0, n - 1e-9, height)
        j = np.linspace(0, n - 1e-9, width)
        row = i.astype(int)
        column = j.astype(int)
        u = (i - row)[:, None]
        v = (j - column)[None]
        top = (1 - v) * knots[np.ix_(row, column)] + v * knots[np.ix_(row, column + 1)]
        bottom = (1 - v) * knots[np.ix_(row + 1, column)] + v * knots[np.ix_(row + 1, column + 1)]
        out += ((1 - u) * top + u * bottom) / (1 << k)
    return np.asarray(out / (2 - 2 / (1 << octaves)))


def _stroke(given: AnyArray, truth: AnyArray, label: int, rng: np.random.Generator) -> None:
    """Label pixels of one class along a thin curve, from a random one of them until it leaves the class."""
    at = rng.choice(np.argwhere(truth == label)).astype(float)
    angle = rng.uniform(0, 2 * np.pi)
    for _ in range(14):
        i, j = np.round(at).astype(int)
        if not (0 <= i < truth.shape[0] and 0 <= j < truth.shape[1]) or truth[i, j] != label:
            return
        given[i, j] = label
        angle += rng.normal(0, 0.3)
        at += np.sin(angle), np.cos(angle)


def write_pictures(folder: Path, pictures: list[WeakPicture], full: bool = False) -> Path:
    """Pictures and masks as an image folder; ``full`` writes all labels instead of the given ones."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for k, picture in enumerate(pictures):
        (folder / "images" / f"{k:03d}.png").write_bytes(png.encode(picture.pixels))
        (folder / "masks" / f"{k:03d}.png").write_bytes(png.encode(picture.truth if full else picture.given))
    return folder

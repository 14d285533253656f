"""Microsoft Research Cambridge object images, version 1: as distributed (BMP) or as PNG with label indices.

    DIR/1_1_s.bmp, DIR/1_1_s_GT.bmp            distributed form: ground truth in colours, 24 or 32 bits, any orientation
    DIR/images/1_1_s.png, DIR/labels/1_1_s_GT.png, DIR/classes.txt      indices into the lines of classes.txt

Only the five categories of the paper are labels; every other colour, and black (void), means that no label is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.errors import InputError, UnsupportedError

CATEGORIES = ("building", "grass", "sky", "tree", "car")
COLOURS = {  # red, green, blue in the distributed ground truth
    "building": (128, 0, 0),
    "grass": (0, 128, 0),
    "sky": (128, 128, 128),
    "tree": (128, 128, 0),
    "car": (64, 0, 128),
}
UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class Picture:
    """An image (rows, columns, RGB) and the category of every pixel, ``UNKNOWN`` where there is none."""

    name: str
    image: AnyArray
    labels: Ints


def read_msrc(folder: Path) -> list[Picture]:
    """All images of a folder in either form, in the order of their class and number."""
    if (folder / "images").is_dir():
        found = [_indexed(folder, path) for path in (folder / "images").glob("*.png")]
    else:
        truths = folder.glob("*_GT.bmp")
        found = [_coloured(truth.with_name(truth.name.replace("_GT.bmp", ".bmp")), truth) for truth in truths]
    if not found:
        raise InputError(f"{folder} holds neither *_GT.bmp nor images/*.png; name the folder of the MSRC images.")
    return sorted(found, key=lambda p: [int(part) if part.isdigit() else 0 for part in p.name.split("_")])


def _coloured(path: Path, truth: Path) -> Picture:
    return _checked(path, _read(path)[:, :, :3], _by_colour(_read(truth)))


def _by_colour(pixels: AnyArray) -> Ints:
    labels = np.full(pixels.shape[:2], UNKNOWN, dtype=np.int64)
    for k, category in enumerate(CATEGORIES):
        labels[np.all(pixels[:, :, :3] == COLOURS[category], axis=2)] = k
    return labels


def _indexed(folder: Path, path: Path) -> Picture:
    truth = _read(folder / "labels" / f"{path.stem}_GT.png")
    if truth.ndim == 3:  # OpenCV replaces the indices of a palette by its colours
        return _checked(path, _read(path)[:, :, :3], _by_colour(truth))
    number = np.full(256, UNKNOWN, dtype=np.int64)
    for line in (folder / "classes.txt").read_text("utf-8").splitlines():
        words = line.split()
        if len(words) > 1 and words[1] in CATEGORIES:
            number[int(words[0])] = CATEGORIES.index(words[1])
    return _checked(path, _read(path)[:, :, :3], number[truth])


def _checked(path: Path, image: AnyArray, labels: Ints) -> Picture:
    if image.shape[:2] != labels.shape:
        raise InputError(f"{path} is {image.shape[:2]} pixels, its labels are {labels.shape}.")
    return Picture(path.stem, image, labels)


def _read(path: Path) -> AnyArray:
    """Pixels as they are, colours in the order red, green, blue."""
    cv2 = vision()
    pixels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED) if path.exists() else None
    if pixels is None:
        raise InputError(f"{path} is missing or is no image.")
    return np.asarray(pixels if pixels.ndim == 2 else pixels[:, :, [2, 1, 0]])


def vision() -> Any:
    """OpenCV, or a sentence that says how to get it."""
    try:
        import cv2
    except ImportError:
        raise UnsupportedError("MSRC images need OpenCV; install the extra with pip install 'mssvm[vision]'.") from None
    return cv2

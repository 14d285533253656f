"""Microsoft Research Cambridge object images, version 1: as distributed (BMP) or as PNG with label indices.

    DIR/1_1_s.bmp, DIR/1_1_s_GT.bmp            distributed form: ground truth in colours, 24 or 32 bits, any orientation
    DIR/images/1_1_s.png, DIR/labels/1_1_s_GT.png, DIR/classes.txt      indices into the lines of classes.txt

Only the five categories of the paper are labels; every other colour, and black (void), means that no label is known.
Learners see patches (paper section 7.3), 20x20 pixels at every 10th: a grid of 20x31 sites (31x20 for portraits), each
with a word of a SIFT codebook, colour histograms and the majority label; a patch is hidden if its most frequent
category is none of the five.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.cluster import MiniBatchKMeans

from mssvm.core.arrays import AnyArray, Floats, Ints
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
SIZE = 20
STRIDE = 10
BINS = 16
SIFT_SIZE = SIZE / 6  # OpenCV's descriptor covers six times the size of its key point


@dataclass(frozen=True, eq=False)
class Picture:
    """An image (rows, columns, RGB) and the category of every pixel, ``UNKNOWN`` where there is none."""

    name: str
    image: AnyArray
    labels: Ints


def read_msrc(*folders: Path) -> list[Picture]:
    """All images of folders in either form, in the order of their class and number."""
    pictures = [picture for folder in folders for picture in _pictures(folder)]
    return sorted(pictures, key=_numbers)


def _numbers(picture: Picture) -> list[int]:
    """The numbers in an image's name, which is CLASS_NUMBER_s."""
    return [int(part) if part.isdigit() else 0 for part in picture.name.split("_")]


def _pictures(folder: Path) -> list[Picture]:
    if (folder / "images").is_dir():
        pictures = [_indexed(folder, path) for path in (folder / "images").glob("*.png")]
    else:
        truths = folder.glob("*_GT.bmp")
        pictures = [_coloured(truth.with_name(truth.name.replace("_GT.bmp", ".bmp")), truth) for truth in truths]
    if not pictures:
        raise InputError(f"{folder} holds neither *_GT.bmp nor images/*.png; name the folder of the MSRC images.")
    return pictures


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
        raise InputError(f"{path} is missing or not an image.")
    return np.asarray(pixels if pixels.ndim == 2 else pixels[:, :, [2, 1, 0]])


def vision() -> Any:
    """The module of OpenCV, or an error that says how to install it."""
    try:
        import cv2
    except ImportError:
        raise UnsupportedError("MSRC images need OpenCV; install the extra with pip install 'mssvm[vision]'.") from None
    return cv2


@dataclass(frozen=True, eq=False)
class Patches:
    """The patches of one image, row by row."""

    shape: tuple[int, int]
    sift: AnyArray
    colour: Floats
    labels: Ints

    @classmethod
    def of(cls, picture: Picture) -> Patches:
        height, width = picture.labels.shape
        tops = np.arange(0, height - SIZE + 1, STRIDE)
        lefts = np.arange(0, width - SIZE + 1, STRIDE)
        corners = [(int(t), int(c)) for t in tops for c in lefts]
        blocks = [(slice(t, t + SIZE), slice(c, c + SIZE)) for t, c in corners]
        colour = np.array([_histogram(picture.image[block]) for block in blocks])
        labels = np.array([_majority(picture.labels[block]) for block in blocks], dtype=np.int64)
        return cls((len(tops), len(lefts)), _sift(picture, corners), colour, labels)


def codebook(patches: Sequence[Patches], n_words: int, seed: int) -> MiniBatchKMeans:
    """Words of the descriptors of the given images, by k-means."""
    descriptors = np.concatenate([p.sift for p in patches]).astype(np.float64)
    return MiniBatchKMeans(n_words, random_state=seed, batch_size=4096, n_init=1).fit(descriptors)


def features(patches: Patches, words: Ints, n_words: int) -> sparse.csr_matrix:
    """One row a patch: a one-hot word, three histograms that each sum to one, and a constant."""
    n = len(words)
    onehot = sparse.csr_matrix((np.ones(n), (np.arange(n), words)), shape=(n, n_words))
    return sparse.hstack([onehot, sparse.csr_matrix(patches.colour), np.ones((n, 1))], format="csr")


def load_patches(pictures: Sequence[Picture], cache: Path | None) -> list[Patches]:
    """Patches of all images, from the folder ``cache`` (one file per image) if they are there."""
    if cache is None:
        return [Patches.of(picture) for picture in pictures]
    return [_cached(picture, cache / f"{picture.name}-{_digest(picture)}.npz") for picture in pictures]


def _digest(picture: Picture) -> str:
    """A hash of everything that the features depend on."""
    settings = repr((SIZE, STRIDE, BINS, CATEGORIES)).encode()
    return hashlib.sha256(picture.image.tobytes() + picture.labels.tobytes() + settings).hexdigest()[:16]


def _cached(picture: Picture, path: Path) -> Patches:
    if path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            rows, columns = arrays["shape"].tolist()
            return Patches((rows, columns), arrays["sift"], arrays["colour"], arrays["labels"])
    patches = Patches.of(picture)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, shape=patches.shape, sift=patches.sift, colour=patches.colour, labels=patches.labels)
    return patches


def _sift(picture: Picture, corners: list[tuple[int, int]]) -> AnyArray:
    cv2 = vision()
    grey = cv2.cvtColor(np.ascontiguousarray(picture.image), cv2.COLOR_RGB2GRAY)
    centres = [cv2.KeyPoint(c + SIZE / 2, t + SIZE / 2, SIFT_SIZE, 0.0) for t, c in corners]
    _, descriptors = cv2.SIFT_create().compute(grey, centres)
    return np.asarray(descriptors, dtype=np.uint8)


def _histogram(block: AnyArray) -> Floats:
    """16 bins a channel, each channel summing to one."""
    counts = [np.bincount(block[:, :, k].ravel() // (256 // BINS), minlength=BINS) for k in range(3)]
    return np.concatenate(counts) / (SIZE * SIZE)


def _majority(block: Ints) -> int:
    """The most frequent category of a block, UNKNOWN counted as one of them."""
    counts = np.bincount(block.ravel() - UNKNOWN, minlength=len(CATEGORIES) + 1)
    return int(counts.argmax()) + UNKNOWN

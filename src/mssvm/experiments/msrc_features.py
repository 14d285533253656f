"""Patches of the MSRC images (paper section 7.3): a word of a SIFT codebook, colour histograms, the majority label.

Patches of 20x20 pixels at every 10th pixel make a grid of 20x31 sites (31x20 for portraits). A patch whose most
frequent pixel category is none of the five is hidden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.cluster import MiniBatchKMeans

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.experiments.msrc import CATEGORIES, UNKNOWN, Picture, vision

SIZE, STRIDE, BINS = 20, 10, 16
SIFT_SIZE = SIZE / 6  # OpenCV's descriptor covers six times the size of its key point


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
        tops, lefts = np.arange(0, height - SIZE + 1, STRIDE), np.arange(0, width - SIZE + 1, STRIDE)
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
    """Patches of all images; computed ones are kept in ``cache``, one file an image."""
    return [_cached(p, cache / f"{p.name}-{_digest(p)}.npz" if cache else None) for p in pictures]


def _digest(picture: Picture) -> str:
    """Of everything that the features depend on."""
    given = (picture.image.tobytes(), picture.labels.tobytes(), repr((SIZE, STRIDE, BINS, CATEGORIES)).encode())
    return hashlib.sha256(b"".join(given)).hexdigest()[:16]


def _cached(picture: Picture, path: Path | None) -> Patches:
    if path is not None and path.exists():
        with np.load(path, allow_pickle=False) as kept:
            rows, columns = (int(v) for v in kept["shape"])
            return Patches((rows, columns), kept["sift"], kept["colour"], kept["labels"])
    made = Patches.of(picture)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, shape=made.shape, sift=made.sift, colour=made.colour, labels=made.labels)
    return made


def _sift(picture: Picture, corners: list[tuple[int, int]]) -> AnyArray:
    cv2 = vision()
    grey = cv2.cvtColor(np.ascontiguousarray(picture.image), cv2.COLOR_RGB2GRAY)
    centres = [cv2.KeyPoint(c + SIZE / 2, t + SIZE / 2, SIFT_SIZE, 0.0) for t, c in corners]
    _, found = cv2.SIFT_create().compute(grey, centres)
    return np.asarray(found, dtype=np.uint8)


def _histogram(block: AnyArray) -> Floats:
    """16 bins a channel, each channel summing to one."""
    counts = [np.bincount(block[:, :, k].ravel() // (256 // BINS), minlength=BINS) for k in range(3)]
    return np.concatenate(counts) / (SIZE * SIZE)


def _majority(block: Ints) -> int:
    """The most frequent category of a block, UNKNOWN counted as one of them."""
    counts = np.bincount(block.ravel() - UNKNOWN, minlength=len(CATEGORIES) + 1)
    return int(counts.argmax()) + UNKNOWN

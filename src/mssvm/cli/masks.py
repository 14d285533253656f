"""Predictions of images as PNG files: a mask for each in the colours of the training masks, and its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.core.progress import ProgressLine
from mssvm.data.readers import Options, png, read_parts
from mssvm.data.readers.images import MISSING, pictures_of, stem_of

AT_ONCE = 8  # images in memory
# Colours of classes if the training masks had none: black, then a palette for colour-blind readers.
DEFAULT_PALETTE = (
    (0, 0, 0),
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)


def write_masks(
    estimator: Any, data: Path, out: Path, options: Options, uncertainty: bool, line: ProgressLine
) -> list[Path]:
    """Write masks/NAME.png and, on request, uncertainty/NAME.png for every image; returns the masks' paths."""
    from mssvm.estimators.plots import entropy

    classes = estimator.classes_.tolist()
    indices, palette = colours_of(classes, estimator.training_.get("palette"))
    index_of = dict(zip(classes, indices.tolist(), strict=True))
    total = len(pictures_of(data))
    written = []
    for name in ("masks", "uncertainty"):
        _check_no_input(out / name, data)
    _make_folder(out / "masks")
    if uncertainty:
        _make_folder(out / "uncertainty")
    for part in read_parts(data, AT_ONCE, options):
        with part.places():
            predicted = estimator.predict(part.X)
            marginals = estimator.predict_marginals(part.X) if uncertainty else ()
        names = [f"{stem_of(Path(name))}.png" for name in part.ids]
        for name, y in zip(names, predicted, strict=True):
            mask = np.array([index_of[label] for label in y.ravel().tolist()]).reshape(y.shape)
            written.append(_write(out / "masks" / name, png.encode(mask, palette)))
        for name, p in zip(names, marginals, strict=False):
            _write(out / "uncertainty" / name, png.encode(np.round(255 * entropy(p))))
        line(len(written), total)
    return written


def colours_of(classes: Sequence[Any], palette: Sequence[Sequence[int]] | None) -> tuple[AnyArray, AnyArray]:
    """The palette index of each class, and the palette.

    Classes that are numbers are their own indices, as in the masks they come from; classes that are colours keep their
    colour; others are numbered.
    """
    if all(type(c) is int and 0 <= c < MISSING for c in classes):
        indices = np.array([int(c) for c in classes], dtype=np.uint8)
        colours = np.array(palette if palette is not None else DEFAULT_PALETTE, dtype=np.uint8)
        n_missing = max(int(indices.max()) + 1 - len(colours), 0)
        random_colours = np.random.default_rng(0).integers(64, 256, size=(n_missing, 3), dtype=np.uint8)
        return indices, np.concatenate([colours, random_colours])
    if all(isinstance(c, str) and len(c) == 7 and c.startswith("#") for c in classes):
        return np.arange(len(classes), dtype=np.uint8), np.array([list(bytes.fromhex(c[1:])) for c in classes])
    return colours_of(range(len(classes)), None)


def _check_no_input(target: Path, data: Path) -> None:
    """Raise if a folder of results is one of the data, whose masks would be lost."""
    for source in (data / "images", data / "masks"):
        if target.exists() and source.exists() and target.samefile(source):
            raise InputError(f"{target} cannot be written: it is an input of this command; name another folder.")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error.strerror or error}; name another folder.") from None


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as file:
        file.write(content)
    return path

"""Predictions of pictures as pictures: a mask for each in the colours of the training masks, and how sure it is."""

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

AT_ONCE = 8  # pictures in memory
PLAIN = (
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
    """masks/NAME.png and, on request, uncertainty/NAME.png of every picture; returns the masks."""
    from mssvm.estimators.plots import entropy

    classes = estimator.classes_.tolist()
    indices, palette = shown(classes, estimator.training_.get("palette"))
    index_of = dict(zip(classes, indices.tolist(), strict=True))
    total = len(pictures_of(data))
    written = []
    _make(out, "masks", *(["uncertainty"] if uncertainty else []))
    for part in read_parts(data, AT_ONCE, options):
        with part.places():
            found = estimator.predict(part.X)
            unsure = estimator.predict_marginals(part.X) if uncertainty else ()
        names = [f"{stem_of(Path(name))}.png" for name in part.ids]
        for name, y in zip(names, found, strict=True):
            mask = np.array([index_of[label] for label in y.ravel().tolist()]).reshape(y.shape)
            written.append(_write(out / "masks" / name, png.encode(mask, palette)))
        for name, p in zip(names, unsure, strict=False):
            _write(out / "uncertainty" / name, png.encode(np.round(255 * entropy(p))))
        line(len(written), total)
    return written


def shown(classes: Sequence[Any], palette: Sequence[Sequence[int]] | None) -> tuple[AnyArray, AnyArray]:
    """The index that stands for each class, and the colours of all indices: numbers stand for themselves, as in the
    masks they come from; colours keep their look; anything else is counted."""
    if all(type(c) is int and 0 <= c < MISSING for c in classes):
        indices = np.array([int(c) for c in classes], dtype=np.uint8)
        given = np.array(palette if palette is not None else PLAIN, dtype=np.uint8)
        need = int(indices.max()) + 1 - len(given)
        more = np.random.default_rng(0).integers(64, 256, size=(max(need, 0), 3), dtype=np.uint8)
        return indices, np.concatenate([given, more])
    if all(isinstance(c, str) and len(c) == 7 and c.startswith("#") for c in classes):
        return np.arange(len(classes), dtype=np.uint8), np.array([list(bytes.fromhex(c[1:])) for c in classes])
    return shown(range(len(classes)), None)


def _make(out: Path, *names: str) -> None:
    for name in names:
        try:
            (out / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{out / name} cannot be made: {error.strerror or error}; name another folder.") from None


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as file:
        file.write(content)
    return path

"""A folder with ``images/`` and ``masks/`` of the same names: pictures, and the labels of their pixels.

A mask is grey or has a palette: its numbers are the labels and 255 is missing; or it is in colour: colours ("#ff0000")
are the labels and one colour, white unless said otherwise, is missing. A picture without a mask has no labels.
Features of a pixel are its channels (colours, also of palette pictures) and their means over the 3 x 3 pixels around
it, between 0 and 1. PNG is read with nothing further installed; other formats need OpenCV (``pip install
"mssvm[vision]"``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.data.dataset import Record
from mssvm.data.readers import png
from mssvm.data.readers.stream import Opened, Options, Stream

MISSING = 255
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
LOSSY = (".jpg", ".jpeg")


def open_images(stream: Stream, options: Options) -> Opened:
    """Grids of all pictures in the folder, by name."""
    options.demand("grid", stream.name, "an image folder")
    return Opened("grid", _pictures(Path(stream.path), options), "image")


def pictures_of(folder: Path) -> list[Path]:
    """The pictures of a folder, by name."""
    pictures = folder / "images"
    if not pictures.is_dir():
        raise InputError(f"{folder} has no folder images; put pictures into images and their labels into masks.")
    names = sorted(p for p in pictures.iterdir() if stem_of(p) is not None)
    if not names:
        raise InputError(f"{pictures} holds no pictures ({', '.join(ENDINGS)}, each also with .gz).")
    path_of: dict[str | None, Path] = {}
    for path in names:
        other = path_of.setdefault(stem_of(path), path)
        if other != path:
            raise InputError(
                f"{path} and {other.name} differ in their endings alone, and would share a mask; rename one."
            )
    return names


def _pictures(folder: Path, options: Options) -> Iterator[Record]:
    names = pictures_of(folder)
    mask_of = _masks(folder)
    first_in_colour: bool | None = None
    for number, path in enumerate(names):
        pixels = picture_of(path, options.limit)
        y = None
        mask_path = mask_of.get(stem_of(path))
        if mask_path is not None:
            _check_lossless(mask_path)
            mask = pixels_of(mask_path, options.limit)
            if mask.shape[:2] != pixels.shape[:2]:
                raise InputError(f"{mask_path} has {_size(mask)} pixels, but {path.name} has {_size(pixels)}.")
            in_colour = mask.shape[2] >= 3
            if first_in_colour is None:
                first_in_colour = in_colour
            if in_colour != first_in_colour:
                raise InputError(f"{mask_path} is of another type (grey or colour) than the masks before it; use one.")
            y = _labels(mask, options.missing_colour)
        if options.progress is not None:
            options.progress(number + 1, len(names))
        yield Record(number, features(pixels), y, path.name)


def _masks(folder: Path) -> dict[str | None, Path]:
    """The masks of a folder by the name that they share with their pictures."""
    masks = folder / "masks"
    if not masks.is_dir():
        return {}
    return {stem_of(path): path for path in masks.iterdir() if stem_of(path) is not None}


def _check_lossless(path: Path) -> None:
    """Raise for a mask whose format does not store colours exactly."""
    if path.name.lower().removesuffix(".gz").endswith(LOSSY):
        raise InputError(
            f"{path} is a JPEG picture, which blurs the colours of labels at every edge; save masks as PNG."
        )


def palette_of(folder: Path) -> list[list[int]] | None:
    """The palette of the folder's first mask; None if that is no palette PNG."""
    masks = sorted(p for p in (folder / "masks").glob("*") if stem_of(p) is not None)
    if not masks or not masks[0].name.lower().removesuffix(".gz").endswith(".png"):
        return None
    return png.palette_of(Stream(masks[0]).content(), str(masks[0]))


def features(pixels: AnyArray) -> Floats:
    """Channels (alpha left out) and their 3 x 3 means."""
    scale = 65535.0 if pixels.dtype == np.uint16 else 255.0
    n_channels = pixels.shape[2]
    if n_channels in (2, 4):
        n_channels -= 1
    x = pixels[..., :n_channels] / scale
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)), mode="edge")
    h, w = x.shape[:2]
    mean = sum(padded[i : i + h, j : j + w] for i in range(3) for j in range(3)) / 9.0
    return np.concatenate([x, mean], axis=2)


def _labels(mask: AnyArray, missing_colour: str) -> list[list[Any]]:
    if mask.shape[2] < 3:
        return [[None if v == MISSING else v for v in row] for row in mask[..., 0].tolist()]
    colours = mask[..., :3].astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    label_of: dict[int, str | None] = {}
    for colour in np.unique(colours).tolist():
        name = f"#{colour:06x}"
        label_of[colour] = None if name == missing_colour.lower() else name
    return [[label_of[colour] for colour in row] for row in colours.tolist()]


def stem_of(path: Path) -> str | None:
    """The name that picture and mask share, or None for other files."""
    name = path.name.removesuffix(".gz")
    ending = Path(name).suffix.lower()
    if ending not in ENDINGS or name.startswith("."):
        return None
    return name[: -len(ending)]


def picture_of(path: Path, limit: int = 1) -> AnyArray:
    """The pixels of a picture as it is seen, (H, W, channels), red first."""
    return pixels_of(path, limit, png.decode_picture)


def pixels_of(path: Path, limit: int = 1, decode: Callable[[bytes, str, float], AnyArray] = png.decode) -> AnyArray:
    """The pixels of a picture, (H, W, channels), red first; those of a palette PNG are indices, unless ``decode`` says
    otherwise."""
    try:
        data = Stream(path, limit=limit).content()
    except InputError as error:
        raise InputError(str(error).replace(", line 1:", ":")) from None
    if path.name.removesuffix(".gz").lower().endswith(".png"):
        return decode(data, str(path), limit)
    try:
        cv2: Any = import_module("cv2")
    except ImportError:
        raise UnsupportedError(
            f'{path}: this format needs OpenCV; run pip install "mssvm[vision]", or save the picture as PNG.'
        ) from None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise InputError(f"{path} is damaged or not a picture; save it again.")
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] >= 3:
        pixels = pixels[..., [2, 1, 0]]  # OpenCV has blue first
    return np.ascontiguousarray(pixels)


def _size(pixels: AnyArray) -> str:
    return f"{pixels.shape[0]} x {pixels.shape[1]}"

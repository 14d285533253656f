"""Features of the pixels of photographs: colours at several scales, outlines, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.errors import InputError
from mssvm.core.memory import check_memory

# sRGB to CIE XYZ (IEC 61966-2-1), each row divided by the coordinate of the white point D65.
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
XYZ = TO_XYZ / TO_XYZ.sum(axis=1, keepdims=True)
# Lightness of 0 to 100 becomes -2 to 2; the two opponent colours of photographs mostly lie within 30 of grey.
CENTRE = np.array([50.0, 0.0, 0.0])
UNIT = np.array([25.0, 15.0, 15.0])
# Factor of all columns but positions. Small features are regularised more by the default C, which suits few strokes.
SIZE = 0.3


def image(
    rgb: Any, *, scales: Sequence[float] = (0.0, 2.0), outlines: Sequence[float] = (1.0, 3.0), position: float = 0.1
) -> Floats:
    """Features of a picture's pixels, (H, W, d); lists of them are ``X`` for any estimator on grids.

    Colours are lightness, green to red and blue to yellow (CIELAB), in which equal steps look equally large. At every
    scale there are the three, their squares and their products: a linear model of these can put a label anywhere in
    colour space, also between other labels. Further features are the strengths of outlines and the position of a pixel.
    Columns are about .3 in size. The features of a pixel depend only on its own picture.

    Parameters
    ----------
    rgb : (H, W), (H, W, 1) or (H, W, 3) array; a further channel, alpha, is left out
        Bytes, 16-bit numbers, or floats between 0 and 1.
    scales : standard deviations in pixels of the Gaussians that smooth colours; 0 takes the pixel itself
    outlines : standard deviations of the Gaussian derivatives whose lengths are features, () for none
    position : float
        Size of the coordinates, which run from -position to position along the longer side; 0 for none.

    The default has 22 columns, in a hundredth of the time that training on the picture takes. With few strokes use
    ``Grid(edges="contrast")`` and hand them to ``predict`` as ``given``, too (docs/images.md).

    >>> ms.features.image(np.zeros((4, 6, 3), np.uint8)).shape
    (4, 6, 22)
    """
    _check_widths("scales", scales)
    _check_widths("outlines", outlines)
    n_columns = 9 * len(scales) + len(outlines) + 2
    n_pixels = float(prod(np.shape(rgb)[:2]))
    check_memory(
        8.0 * n_pixels * n_columns, f"{n_columns} features of {n_pixels:,.0f} pixels", "scale the picture down"
    )
    colours = _lab(_channels(rgb))
    columns = []
    for width in scales:
        smooth = _smoothed(colours, float(width))
        columns += [SIZE * smooth, SIZE * smooth**2, SIZE * smooth * np.roll(smooth, 1, axis=2)]
    for width in outlines:
        columns.append(SIZE * _outline(colours, float(width))[..., None])
    if position:
        columns.append(float(position) * _coordinates(*colours.shape[:2]))
    if not columns:
        raise InputError("image has no columns; give it scales, outlines or a position.")
    return np.concatenate(columns, axis=2)


def _check_widths(name: str, widths: Sequence[float]) -> None:
    if not all(np.isfinite(width) and width >= 0 for width in widths):
        raise InputError(f"{name} must be numbers of pixels >= 0, got {tuple(widths)!r}.")


def _channels(rgb: Any) -> Floats:
    """Red, green and blue between 0 and 1."""
    pixels: AnyArray = np.asarray(rgb)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or not 1 <= pixels.shape[2] <= 4 or not pixels.size:
        raise InputError(f"image takes one picture, (H, W, 3) or (H, W); got an array of shape {np.shape(rgb)}.")
    if pixels.dtype.kind not in "fub":
        raise InputError(f"image takes bytes, 16-bit numbers or floats between 0 and 1; got {pixels.dtype}.")
    if pixels.shape[2] in (2, 4):
        pixels = pixels[..., :-1]
    scale = 1.0
    if pixels.dtype.kind == "u":
        scale = float(np.iinfo(pixels.dtype).max)
    channels = pixels.astype(np.float64) / scale
    if not (channels.min() >= 0.0 and channels.max() <= 1.0):
        raise InputError("the picture's floats lie outside 0 to 1; divide them by their largest possible value.")
    return np.broadcast_to(channels, (*channels.shape[:2], 3))


def _lab(rgb: Floats) -> Floats:
    """CIELAB of sRGB, centred and scaled."""
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    xyz = linear @ XYZ.T
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = np.moveaxis(root, 2, 0)
    lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=2)
    return np.asarray((lab - CENTRE) / UNIT)


def _smoothed(colours: Floats, width: float, order: tuple[int, int] = (0, 0)) -> Floats:
    """A Gaussian mean, or its derivatives of an ``order`` by row and column; a width of 0 leaves colours alone."""
    from scipy import ndimage  # takes as long to import as all of mssvm

    if width == 0.0:
        return colours
    return np.asarray(ndimage.gaussian_filter(colours, (width, width, 0.0), order=(*order, 0)))


def _outline(colours: Floats, width: float) -> Floats:
    """Length of the gradient of all colours: their change over a distance of ``width`` (half a pixel at least)."""
    width = max(width, 0.5)
    down = _smoothed(colours, width, (1, 0))
    right = _smoothed(colours, width, (0, 1))
    return np.asarray(width * np.sqrt((down**2 + right**2).sum(axis=2)))


def _coordinates(height: int, width: int) -> Floats:
    """Row and column, from the middle of the picture, in halves of its longer side."""
    half = max(height, width) / 2
    rows = (np.arange(height) - (height - 1) / 2) / half
    columns = (np.arange(width) - (width - 1) / 2) / half
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=2)

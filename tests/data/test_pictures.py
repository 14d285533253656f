"""Features of photographs: colours against published values, smoothing and outlines against sums by hand, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.data.pictures import CENTRE, SIZE, UNIT

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (9, 12, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("rgb", "lab"),
    [
        ((255, 255, 255), (100.0, 0.0, 0.0)),
        ((0, 0, 0), (0.0, 0.0, 0.0)),
        ((255, 0, 0), (53.24, 80.09, 67.20)),
        ((0, 255, 0), (87.73, -86.18, 83.18)),
        ((0, 0, 255), (32.30, 79.19, -107.86)),
        ((128, 128, 128), (53.59, 0.0, 0.0)),
    ],
)
def test_colours_are_those_of_cielab(rgb: tuple[int, ...], lab: tuple[float, ...]) -> None:
    pixel = np.full((1, 1, 3), rgb, dtype=np.uint8)
    found = ms.features.image(pixel, scales=(0,), outlines=(), position=0)[0, 0, :3]
    assert np.allclose(found / SIZE * UNIT + CENTRE, lab, atol=0.03)


def test_every_scale_has_colours_squares_and_products() -> None:
    x = ms.features.image(PHOTO, scales=(0, 1.5), outlines=(), position=0)
    assert x.shape == (9, 12, 18)
    for part in (x[..., :9] / SIZE, x[..., 9:] / SIZE):
        colour = part[..., :3]
        assert np.allclose(part[..., 3:6], colour**2)
        light, red, yellow = np.moveaxis(colour, 2, 0)
        assert np.allclose(part[..., 6:], np.stack([light * yellow, red * light, yellow * red], axis=2))


def test_smoothing_is_a_gaussian_mean() -> None:
    picture = np.zeros((41, 41), dtype=np.uint8)
    picture[20, 20] = 255
    sharp = ms.features.image(picture, scales=(0,), outlines=(), position=0)[..., 0] + 2.0 * SIZE
    smooth = ms.features.image(picture, scales=(2,), outlines=(), position=0)[..., 0] + 2.0 * SIZE
    rows, columns = np.mgrid[-20:21, -20:21]
    kernel = np.exp(-(rows**2 + columns**2) / 8.0)
    assert np.allclose(smooth, sharp.max() * kernel / kernel.sum(), atol=2e-4)


def test_outlines_of_a_ramp_are_its_slope() -> None:
    grey = np.repeat(np.linspace(0.0, 1.0, 60)[None], 50, axis=0)
    x = ms.features.image(grey, scales=(0,), outlines=(1.0, 3.0), position=0)
    slope = np.gradient(x[..., 0], axis=1)
    assert np.allclose(x[15:-15, 15:-15, -2], slope[15:-15, 15:-15], rtol=0.02)
    assert np.allclose(x[15:-15, 15:-15, -1], 3 * slope[15:-15, 15:-15], rtol=0.05)


def test_positions_are_centred_and_keep_the_shape() -> None:
    x = ms.features.image(np.zeros((3, 5), np.uint8), scales=(), outlines=(), position=1.0)
    assert np.allclose(x[:, 0, 0], [-0.4, 0.0, 0.4])
    assert np.allclose(x[0, :, 1], [-0.8, -0.4, 0.0, 0.4, 0.8])
    assert np.array_equal(ms.features.image(np.zeros((3, 5), np.uint8), position=0.5)[..., -2:], 0.5 * x)


def test_forms_of_one_picture_have_the_same_features() -> None:
    expected = ms.features.image(PHOTO)
    opaque = np.concatenate([PHOTO, np.full((9, 12, 1), 255, np.uint8)], axis=2)
    for form in (PHOTO / 255.0, PHOTO.astype(np.uint16) * 257, opaque):
        assert np.allclose(ms.features.image(form), expected, atol=1e-12)
    grey = PHOTO[..., :1]
    assert np.allclose(ms.features.image(grey[..., 0]), ms.features.image(np.repeat(grey, 3, axis=2)))


@pytest.mark.parametrize(
    ("picture", "settings", "reason"),
    [
        (np.zeros(5), {}, "one picture"),
        (np.zeros((2, 3, 5)), {}, "one picture"),
        (np.zeros((0, 3, 3)), {}, "one picture"),
        (np.zeros((2, 3, 3), np.int64), {}, "16-bit"),
        (np.array([[1.5]]), {}, "outside 0 to 1"),
        (np.array([[np.nan]]), {}, "outside 0 to 1"),
        (PHOTO, {"scales": (-1,)}, "scales"),
        (PHOTO, {"outlines": (np.inf,)}, "outlines"),
        (PHOTO, {"scales": (), "outlines": (), "position": 0}, "no columns"),
    ],
)
def test_refusals(picture: Any, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ms.features.image(picture, **settings)


def test_strokes_on_a_coloured_disc_are_completed() -> None:
    rng = np.random.default_rng(1)
    truth = np.hypot(*np.mgrid[-12:12, -12:12]) < 8
    colours = np.where(truth[..., None], [0.75, 0.35, 0.3], [0.35, 0.55, 0.4])
    picture = np.clip(colours + 0.08 * rng.normal(size=colours.shape), 0.0, 1.0)
    strokes = np.full(truth.shape, None, dtype=object)
    strokes[12, 8:16] = "disc"
    strokes[2, 4:20] = "ground"
    X = [ms.features.image(picture)]
    model = ms.HCRF(ms.Grid(edges="contrast"), random_state=0).fit(X, [strokes])
    found = model.predict(X, given=[strokes])[0] == "disc"
    assert (found == truth).mean() > 0.97

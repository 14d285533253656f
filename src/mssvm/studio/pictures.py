"""Strokes on the pictures of a folder.

A stroke is a line of points in pixels and a radius. Training sees every picture with strokes on a coarser grid, of at
most ``COARSE`` pixels a side: weights do not depend on the size of a picture, and a quarter of the pixels is a quarter
of the time. Predictions are at full size, with the strokes given.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import uniform_filter

from mssvm.annotators import GOLD
from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.data.pictures import image as image_features
from mssvm.data.readers import png
from mssvm.data.readers.images import ENDINGS, MISSING, picture_of, stem_of
from mssvm.estimators import HCRF
from mssvm.estimators.plots import entropy
from mssvm.structures import Grid
from mssvm.studio.journal import Event
from mssvm.studio.project import Answer, Project, TrainingSet, named_classes

COARSE = 128  # pixels of the longer side in training
LARGEST = 1 << 20  # pixels of a picture
MOST_POINTS = 5000  # points of a stroke
LARGEST_RADIUS = 200.0
MOST_TRAINED = 6  # pictures that are trained on: those with the latest strokes
REGION = 9  # side, in coarse pixels, of the squares whose uncertainty is compared
CACHED = 12  # pictures whose features are in memory
UNKNOWN = -1


class PictureProject(Project):
    """The pictures of a folder, or one picture."""

    kind = "pictures"

    def __init__(self, folder: Path) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        self.paths = pictures_in(folder)
        self._rasters: OrderedDict[tuple[int, str | None], tuple[list[Event], Ints]] = OrderedDict()
        self.features = lru_cache(CACHED)(self._features)
        self.coarse_features = lru_cache(CACHED)(self._coarse_features)
        self.pixels = lru_cache(CACHED)(self._pixels)
        super().__init__(self.folder / ".mssvm-studio", named_classes(["background", "object"]))

    @property
    def n_items(self) -> int:
        return len(self.paths)

    def describe(self, item: int) -> dict[str, Any]:
        height, width = self.pixels(item).shape[:2]
        return {"name": self.paths[item].name, "width": width, "height": height, "marks": len(self.marks(item))}

    def check_mark(self, event: Event) -> Event:
        points = event.get("points")
        radius = event.get("radius")
        if not isinstance(radius, (int, float)) or not 0 < radius <= LARGEST_RADIUS:
            raise InputError(f"a stroke needs a radius of at most {LARGEST_RADIUS:g} pixels.")
        if not isinstance(points, list) or not 0 < len(points) <= MOST_POINTS:
            raise InputError(f"a stroke needs 1 to {MOST_POINTS} points.")
        height, width = self.pixels(event["item"]).shape[:2]
        for point in points:
            proper = isinstance(point, list) and len(point) == 2 and all(isinstance(c, (int, float)) for c in point)
            if not proper or not (-width <= point[0] <= 2 * width and -height <= point[1] <= 2 * height):
                raise InputError("the points of a stroke are pairs [x, y] of pixels, in or near the picture.")
        return {"points": points, "radius": radius}

    # ------------------------------------------------------------------------------------------------ learning

    def training_set(self) -> TrainingSet | None:
        with self.lock:
            marked = self._latest()
            several = len(self.annotators()) > 1
            rasters = {item: self._rasters_by_name(item) for item in marked}
            n_classes = len(self.classes)
        every = [raster for by_name in rasters.values() for raster in by_name.values()]
        seen = {int(label) for raster in every for label in np.unique(raster) if label >= 0}
        if len(seen) < 2:
            return None
        X = []
        y: list[Any] = []
        for item, by_name in rasters.items():
            X.append(self.coarse_features(item))
            coarse = {name: _as_labels(_coarse_labels(r, _step(r.shape), n_classes)) for name, r in by_name.items()}
            y.append(coarse if several else next(iter(coarse.values())))
        return TrainingSet(X, y, list(range(n_classes)), several)

    def _latest(self) -> list[int]:
        """The pictures with the latest strokes, which are trained on."""
        return list(dict.fromkeys(event["item"] for event in reversed(self.history.done)))[:MOST_TRAINED]

    def _rasters_by_name(self, item: int) -> dict[str, Ints]:
        """The raster of everyone who has painted on a picture."""
        return {name: self._painted(item, name) for name in self.annotators(item)}

    def new_model(self) -> HCRF:
        return HCRF(Grid(edges="contrast"), warm_start=True, random_state=0, n_jobs=-1)

    def predict(self, model: Any, item: int) -> Answer:
        with self.lock:
            raster = self.raster(item)
            by_name = self._rasters_by_name(item)
        X = [self.features(item)]
        if model.annotators is None:
            p = model.predict_marginals(X, given=[_as_labels(raster)])[0]
        else:
            nothing = [[None] * raster.shape[1]] * raster.shape[0]
            votes = {GOLD: nothing, **{name: _as_labels(own) for name, own in by_name.items()}}
            p = model.aggregate(X, [votes], marginals=True)[1][0]
        return Answer(p.argmax(axis=2).astype(np.uint8), entropy(p).astype(np.float16))

    def suggestions(self, model: Any, n: int) -> list[dict[str, Any]]:
        """Places in the least certain regions of the pictures with strokes and of the first one without, on the coarse
        grid. Single pixels at borders are always uncertain and carry little information, so uncertainty is averaged
        over squares of ``REGION`` coarse pixels."""
        with self.lock:
            items = self._latest()
            items += [item for item in range(self.n_items) if item not in items][:1]
            rasters = [self.raster(item) for item in items]
        found: list[dict[str, Any]] = []
        for item, raster in zip(items, rasters, strict=True):
            step = _step(raster.shape)
            labels = _coarse_labels(raster, step, len(self.classes))
            p = model.predict_marginals([self.coarse_features(item)], given=[_as_labels(labels)])[0]
            gain = np.where(labels >= 0, -1.0, uniform_filter(entropy(p), REGION, mode="constant"))
            for row, column in _peaks(gain, n):
                place = {"x": (column + 0.5) * step, "y": (row + 0.5) * step}
                found.append({"item": item, **place, "gain": float(gain[row, column])})
        return sorted(found, key=lambda one: -one["gain"])[:n]

    def agreement(self, event: Event, answer: Answer) -> tuple[int, int] | None:
        if event["class"] is None:
            return None
        covered = covered_pixels(event, answer.labels.shape)
        return int((answer.labels[covered] == event["class"]).sum()), int(covered.sum())

    # ------------------------------------------------------------------------------------------------ files

    def export(self, model: Any, answers: dict[int, Answer]) -> list[Path]:
        """strokes/NAME.png (255: no label) of every picture with strokes, masks/NAME.png of every answer. With several
        people also strokes/people.json, their names, and strokes/NAME.K.png, the strokes of person K (from 0)."""
        palette = np.array([list(bytes.fromhex(info.colour[1:])) for info in self.classes], dtype=np.uint8)
        padded = np.concatenate([palette, np.full((256 - len(palette), 3), 255, dtype=np.uint8)])
        written = []
        names = list(self.annotators())
        if len(names) < 2:
            names = []
        else:
            written.append(self._write_file("strokes/people.json", json.dumps(names, ensure_ascii=False).encode()))
        for item in sorted({event["item"] for event in self.history.done}):
            written.append(self._write("strokes", item, _as_picture(self.raster(item), padded)))
            for k, name in enumerate(names):
                written.append(self._write("strokes", item, _as_picture(self._painted(item, name), padded), f".{k}"))
        for item, answer in sorted(answers.items()):
            written.append(self._write("masks", item, png.encode(answer.labels, palette)))
        return written

    def _write(self, kind: str, item: int, content: bytes, ending: str = "") -> Path:
        return self._write_file(f"{kind}/{stem_of(self.paths[item])}{ending}.png", content)

    def _write_file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as file:
            file.write(content)
        return path

    def recipe(self) -> dict[str, str]:
        return {
            "command": "mssvm studio FOLDER --write",
            "python": "\n".join(
                (
                    "import cv2",
                    "import mssvm as ms",
                    "",
                    f'picture = cv2.imread("{self.paths[0].name}")[..., ::-1]',
                    f'strokes = cv2.imread("strokes/{stem_of(self.paths[0])}.png", cv2.IMREAD_UNCHANGED)',
                    "X = [ms.features.image(picture)]",
                    "y = [[[None if v == 255 else int(v) for v in row] for row in strokes.tolist()]]",
                    'clf = ms.HCRF(ms.Grid(edges="contrast")).fit(X, y)',
                    "mask = clf.predict(X, given=y)[0]",
                    'clf.save("model.safetensors")',
                )
            ),
        }

    # ------------------------------------------------------------------------------------------------ pixels

    def raster(self, item: int) -> Ints:
        """The class of every pixel; -1 where there is no stroke or where people disagree."""
        names = self.annotators(item)
        if len(names) < 2:
            return self._painted(item, None)
        raster = np.full(self.pixels(item).shape[:2], UNKNOWN, dtype=np.int16)
        for name in names:
            own = self._painted(item, name)
            raster = np.where(own >= 0, own, raster)
        return np.where(self._disagree(item), UNKNOWN, raster)

    def disputed(self, item: int) -> Ints:
        """(pixels, 2): rows and columns of the pixels to which people give different classes."""
        return np.argwhere(self._disagree(item))

    def _disagree(self, item: int) -> Bools:
        """Mask of the pixels to which people give different classes."""
        disagree = np.zeros(self.pixels(item).shape[:2], dtype=bool)
        first = np.full(disagree.shape, UNKNOWN, dtype=np.int16)
        for name in self.annotators(item):
            own = self._painted(item, name)
            disagree |= (own >= 0) & (first >= 0) & (own != first)
            first = np.where(first >= 0, first, own)
        return disagree

    def disputed_mask(self, item: int) -> Ints:
        """Picture of the disagreements: 255 where there is one."""
        with self.lock:
            return np.where(self._disagree(item), 255, 0)

    def _painted(self, item: int, by: str | None) -> Ints:
        """The class of every pixel by the strokes of one person (None: of all, later ones over earlier ones).

        The cached raster is extended by the strokes made since, unless some of its own were undone.
        """
        marks = self.marks(item, by)
        painted, raster = self._rasters.pop((item, by), ([], np.zeros((0, 0), dtype=np.int16)))
        if painted and marks[: len(painted)] == painted:
            raster = raster.copy()
            new = marks[len(painted) :]
        else:
            raster = np.full(self.pixels(item).shape[:2], UNKNOWN, dtype=np.int16)
            new = marks
        for event in new:
            raster[covered_pixels(event, raster.shape)] = UNKNOWN if event["class"] is None else event["class"]
        self._rasters[item, by] = (marks, raster)
        if len(self._rasters) > CACHED:
            self._rasters.popitem(last=False)
        return raster

    def _pixels(self, item: int) -> AnyArray:
        pixels = picture_of(self.paths[item])
        if pixels.shape[0] * pixels.shape[1] > LARGEST:
            raise InputError(f"{self.paths[item].name} has more than {LARGEST} pixels; make it smaller.")
        return pixels

    def _features(self, item: int) -> Floats:
        return image_features(self.pixels(item))

    def _coarse_features(self, item: int) -> Floats:
        features = self.features(item)
        step = _step(features.shape)
        return _block_means(features, step)


def pictures_in(place: Path) -> list[Path]:
    """The pictures of a folder (or of its folder ``images``) by name, or the one picture."""
    if place.is_file():
        if stem_of(place) is None:
            raise InputError(f"{place} is no picture ({', '.join(ENDINGS)}).")
        return [place]
    folder = place / "images" if (place / "images").is_dir() else place
    paths = sorted(path for path in folder.iterdir() if path.is_file() and stem_of(path) is not None)
    if not paths:
        raise InputError(f"{folder} holds no pictures ({', '.join(ENDINGS)}).")
    return paths


def covered_pixels(event: Event, shape: tuple[int, ...]) -> Any:
    """Mask of the pixels within the radius of a stroke's line."""
    height, width = shape[:2]
    points = np.asarray(event["points"], dtype=np.float64)
    radius = max(float(event["radius"]), 0.5)
    ends = np.concatenate([points[1:], points[-1:]])
    mask = np.zeros((height, width), dtype=bool)
    for (x0, y0), (x1, y1) in zip(points, ends, strict=True):
        left = max(int(min(x0, x1) - radius), 0)
        right = min(int(max(x0, x1) + radius) + 2, width)
        top = max(int(min(y0, y1) - radius), 0)
        bottom = min(int(max(y0, y1) + radius) + 2, height)
        if left >= right or top >= bottom:
            continue
        # Distances of pixel centres from the segment.
        x = np.arange(left, right) + 0.5 - x0
        y = (np.arange(top, bottom) + 0.5 - y0)[:, None]
        dx = x1 - x0
        dy = y1 - y0
        length = dx * dx + dy * dy
        along = np.clip((x * dx + y * dy) / length, 0.0, 1.0) if length > 0 else np.zeros(1)
        mask[top:bottom, left:right] |= (x - along * dx) ** 2 + (y - along * dy) ** 2 <= radius * radius
    return mask


def _step(shape: tuple[int, ...]) -> int:
    """Pixels of a side of a coarse pixel."""
    return max(-(-max(shape[:2]) // COARSE), 1)


def _blocks(values: AnyArray, step: int) -> AnyArray:
    """(rows, step, columns, step, ...) of an array, whose last rows and columns are repeated to fill up blocks."""
    height, width = values.shape[:2]
    pad = [(0, -height % step), (0, -width % step), *((0, 0) for _ in values.shape[2:])]
    padded = np.pad(values, pad, mode="edge")
    return padded.reshape(padded.shape[0] // step, step, padded.shape[1] // step, step, *values.shape[2:])


def _block_means(values: Floats, step: int) -> Floats:
    if step == 1:
        return values
    return np.asarray(_blocks(values, step).mean(axis=(1, 3)))


def _coarse_labels(raster: Ints, step: int, n_classes: int) -> Ints:
    """The most frequent class of every coarse pixel; -1 where less than a quarter has one."""
    if step == 1:
        return raster
    blocks = _blocks(raster, step)
    counts = np.stack([(blocks == k).sum(axis=(1, 3)) for k in range(n_classes)], axis=-1)
    enough = counts.sum(axis=-1) * 4 >= step * step
    return np.where(enough, counts.argmax(axis=-1), UNKNOWN)


def _peaks(gain: Floats, n: int) -> list[tuple[int, int]]:
    """Up to n pixels of largest gain, each outside of the squares around those before; none below zero."""
    left = gain.copy()
    found: list[tuple[int, int]] = []
    while len(found) < n:
        row, column = (int(k) for k in np.unravel_index(left.argmax(), left.shape))
        if left[row, column] < 0:
            break
        found.append((row, column))
        left[max(row - REGION, 0) : row + REGION + 1, max(column - REGION, 0) : column + REGION + 1] = -1.0
    return found


def _as_picture(raster: Ints, palette: AnyArray) -> bytes:
    """A raster as a palette PNG, 255 where there is no stroke."""
    return png.encode(np.where(raster < 0, MISSING, raster), palette)


def _as_labels(raster: Ints) -> list[list[int | None]]:
    return [[None if label < 0 else label for label in row] for row in raster.tolist()]

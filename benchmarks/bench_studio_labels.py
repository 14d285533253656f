"""How many labels the studio needs: a simulated annotator who goes where ``suggest`` points, beside one who labels
places in random order.

    python benchmarks/bench_studio_labels.py [--parts landscapes photographs sentences]

Both annotators know the truth and label through the studio's own project and learner. Results are kept in
results/studio_labels.json, part by part.

landscapes   drawn pictures of three classes, 96 x 96; dabs of a brush until the classes' mean IoU is .8, .9, .95
photographs  pictures of the GrabCut data at half of their size (80 x 120); the same, of the object
sentences    CoNLL-2000: spans are marked (one mark is one chunk, or one word outside) until the F1 of held-out
             sentences is 90. The model learns again whenever the marks have grown by a fifth.

A dab covers the pixels around its place that have the same class, up to the brush's radius: near borders people take
a smaller brush. Both begin with the same dabs, one of each class, or with the spans of the same five sentences.
``None``: not reached within the limit. A ratio compares the sums over the runs in which both annotators arrived; the
runs in which one of them did not are counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common_data import data_dir, read_result, write
from scipy.ndimage import distance_transform_edt

from mssvm.data.embedded import landscape
from mssvm.data.metrics import span_f1, spans
from mssvm.data.readers import png
from mssvm.data.readers.images import pixels_of
from mssvm.studio.learner import Learner
from mssvm.studio.pictures import PictureProject, covered_pixels
from mssvm.studio.sequences import SequenceProject

LEVELS = (0.8, 0.9, 0.95)  # of IoU
F1 = 90.0
RADIUS = 4.0
MOST_DABS = 80
FIRST_SENTENCES = 5
GROWTH = 1.2
N_TRAIN = 2000
N_TEST = 500
MOST_SHARE = 0.7  # of the words: then a run is given up


def iou(found: np.ndarray, truth: np.ndarray, classes: list[int]) -> float:
    """Mean intersection over union of the classes."""
    return float(np.mean([((found == k) & (truth == k)).sum() / ((found == k) | (truth == k)).sum() for k in classes]))


def dab(truth: np.ndarray, depth: np.ndarray, row: int, column: int) -> dict[str, Any]:
    """A dab of the brush at a pixel, no larger than the distance to the next class."""
    radius = float(np.clip(depth[row, column] - 0.5, 0.5, RADIUS))
    place = [column + 0.5, row + 0.5]
    return {"kind": "mark", "item": 0, "class": int(truth[row, column]), "points": [place], "radius": radius}


def dabs_needed(
    pixels: np.ndarray, truth: np.ndarray, scored: list[int], guided: bool, seed: int
) -> dict[str, int | None]:
    """Dabs until the IoU of the ``scored`` classes reaches every level."""
    rng = np.random.default_rng(seed)
    classes = np.unique(truth).tolist()
    depth = np.zeros(truth.shape)
    for k in classes:
        depth = np.maximum(depth, distance_transform_edt(truth == k))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "one.png").write_bytes(png.encode(pixels))
        project = PictureProject(Path(folder))
        for k in range(len(project.classes), len(classes)):
            project.record({"kind": "class", "name": f"class {k}"})
        learner = Learner(project, lambda: None)
        known = np.zeros(truth.shape, dtype=bool)
        for k in classes:
            row, column = rng.permutation(np.argwhere(truth == k))[0]
            event = dab(truth, depth, int(row), int(column))
            project.record(event)
            known |= covered_pixels(event, truth.shape)
        needed: dict[str, int | None] = {f"IoU {level}": None for level in LEVELS}
        for n_dabs in range(len(classes), MOST_DABS + 1):
            learner.learn_now()
            reached = iou(learner.answers[0][1].labels, truth, scored)
            for level in LEVELS:
                if reached >= level and needed[f"IoU {level}"] is None:
                    needed[f"IoU {level}"] = n_dabs
            if reached >= LEVELS[-1]:
                break
            found = project.suggest(learner.model) if guided else None
            if found is not None:
                row = min(int(found["y"]), truth.shape[0] - 1)
                column = min(int(found["x"]), truth.shape[1] - 1)
            else:
                row, column = rng.permutation(np.argwhere(~known))[0]
            event = dab(truth, depth, int(row), int(column))
            project.record(event)
            known |= covered_pixels(event, truth.shape)
    return needed


def landscapes(seed: int, guided: bool) -> dict[str, int | None]:
    picture = landscape(96, 96, seed=seed)
    return dabs_needed(picture.pixels, np.minimum(picture.truth, 2), [0, 1, 2], guided, seed)


def photographs(seed: int, guided: bool) -> dict[str, int | None]:
    """The pictures between those on which features were chosen (bench_strokes.py)."""
    path = sorted((data_dir() / "grabcut").glob("*.jpg"))[1::2][seed]
    truth = pixels_of(path.with_suffix(".truth.png"))[..., 0]
    pixels = pixels_of(path)[..., :3]
    step = 2
    height = truth.shape[0] // step * step
    width = truth.shape[1] // step * step
    small = pixels[:height, :width].reshape(height // step, step, width // step, step, 3).mean(axis=(1, 3))
    object_ = truth[step // 2 : height : step, step // 2 : width : step] > 127
    return dabs_needed(np.round(small), object_.astype(np.int64), [1], guided, seed)


# ---------------------------------------------------------------------------------------------------- sentences


def conll() -> list[list[tuple[str, str, str]]]:
    """Sentences of (word, part of speech, tag)."""
    out = []
    for block in (data_dir() / "conll2000" / "train.txt").read_text().split("\n\n"):
        rows = [tuple(line.split()) for line in block.splitlines() if line.strip()]
        if rows:
            out.append(rows)
    return out  # type: ignore[return-value]


def span_at(tags: list[str], site: int) -> tuple[int, int, str]:
    """Start, stop and type of what a word belongs to: its chunk, or itself outside of all."""
    for start, stop, name in spans(tags):
        if start <= site < stop:
            return start, stop, name
    return site, site + 1, "O"


class Reader:
    """A project on sentences without tags, and the person who knows them."""

    def __init__(self, folder: Path, sentences: list[list[tuple[str, str, str]]], names: list[str]) -> None:
        lines = ["".join(f"{word}\t{part}\t_\n" for word, part, _ in sentence) for sentence in sentences]
        folder.mkdir(exist_ok=True)
        path = folder / "sentences.conll"
        path.write_text("\n".join(lines))
        self.project = SequenceProject(path)
        self.tags = [[tag for _, _, tag in sentence] for sentence in sentences]
        for name in names:
            self.project.record({"kind": "class", "name": name})
        self.number = {info.name: k for k, info in enumerate(self.project.classes)}
        self.known = [np.zeros(len(tags), dtype=bool) for tags in self.tags]
        self.n_marks = 0

    def mark(self, item: int, site: int) -> None:
        start, stop, name = span_at(self.tags[item], site)
        if self.known[item][start]:
            return
        event = {"kind": "mark", "item": item, "class": self.number[name], "start": start, "stop": stop}
        self.project.record(event)
        self.known[item][start:stop] = True
        self.n_marks += 1

    def unknown(self, rng: np.random.Generator, n: int) -> list[tuple[int, int]]:
        """Words without a label, uniformly drawn."""
        places = [(item, int(site)) for item, known in enumerate(self.known) for site in np.flatnonzero(~known)]
        chosen = rng.choice(len(places), min(n, len(places)), replace=False)
        return [places[k] for k in chosen]

    @property
    def n_words(self) -> int:
        return int(sum(known.sum() for known in self.known))


def marks_needed(seed: int, guided: bool) -> dict[str, int | None]:
    """Marks and words labelled until the F1 on held-out sentences is reached."""
    rng = np.random.default_rng(seed)
    data = conll()
    order = rng.permutation(len(data))
    train = [data[k] for k in order[:N_TRAIN]]
    test = [data[k] for k in order[N_TRAIN : N_TRAIN + N_TEST]]
    names = sorted({tag[2:] for sentence in data for _, _, tag in sentence if tag != "O"})
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder), train, names)
        held_out = Reader(Path(folder) / "test", test, names)
        project = reader.project
        learner = Learner(project, lambda: None)
        for item in range(FIRST_SENTENCES):
            for site in range(len(reader.tags[item])):
                reader.mark(item, site)
        total = sum(map(len, reader.tags))
        while reader.n_words < MOST_SHARE * total:
            learner.learn_now()
            found = learner.model.predict(held_out.project.dataset.X)
            score = 100 * span_f1(held_out.tags, [row.tolist() for row in found])
            print("   ", seed, guided, reader.n_marks, reader.n_words, f"{score:.2f}", flush=True)
            if score >= F1:
                return {"marks": reader.n_marks, "words": reader.n_words}
            wanted = int(np.ceil(GROWTH * reader.n_marks))
            while reader.n_marks < wanted:
                missing = wanted - reader.n_marks
                if guided:
                    places = [(one["item"], one["site"]) for one in project.suggestions(learner.model, missing)]
                else:
                    places = reader.unknown(rng, missing)
                for item, site in places:
                    reader.mark(item, site)
    return {"marks": None, "words": None}


# ---------------------------------------------------------------------------------------------------- the table

PARTS: dict[str, Callable[[int, bool], Any]] = {
    "landscapes": landscapes,
    "photographs": photographs,
    "sentences": marks_needed,
}

RUNS = {"landscapes": 10, "photographs": 3, "sentences": 3}


def compared(guided: list[dict[str, int | None]], random: list[dict[str, int | None]]) -> dict[str, Any]:
    """Labels of both annotators in every run, and the ratio of the sums over the runs in which both arrived."""
    table: dict[str, Any] = {}
    for aim in guided[0]:
        pairs = [(one[aim], other[aim]) for one, other in zip(guided, random, strict=True)]
        both = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
        table[aim] = {
            "guided": [pair[0] for pair in pairs],
            "random": [pair[1] for pair in pairs],
            "both arrived": len(both),
            "only guided": sum(one is not None and other is None for one, other in pairs),
            "only random": sum(one is None and other is not None for one, other in pairs),
            "ratio": float(both[:, 0].sum() / both[:, 1].sum()) if len(both) else None,
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    options = parser.parse_args()
    for part in options.parts:
        guided = []
        random = []
        for seed in range(RUNS[part]):
            guided.append(PARTS[part](seed, True))
            random.append(PARTS[part](seed, False))
            print(part, seed, guided[-1], random[-1], flush=True)
        table = compared(guided, random)
        print(part, json.dumps({aim: row["ratio"] for aim, row in table.items()}), flush=True)
        write("studio_labels", {**read_result("studio_labels"), part: table})


if __name__ == "__main__":
    main()

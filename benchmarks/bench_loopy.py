"""Loopy graphs through the public API: training and prediction by the decomposition bound and by belief propagation.

Noisy discs on ground: one disc of label 1, with three labels a second one of label 2; a pixel's features are its label
(one-hot beyond two) under normal noise, and a constant. Members with hidden labels see 15% of them.

    python benchmarks/bench_loopy.py table [--seeds 30:40]     8 + 8 discs of 32 x 32 and 48 x 48, all members
    python benchmarks/bench_loopy.py noise                     the same at other noise and with fewer labels
    python benchmarks/bench_loopy.py labels                    8 + 8 pictures of 24 x 24 with 7 and with 20 discs
    python benchmarks/bench_loopy.py sampled                   30 x 30 labels drawn from random fields themselves
    python benchmarks/bench_loopy.py many                      64 discs of 64 x 64
    python benchmarks/bench_loopy.py threads --threads 1 2 16  the same and one disc of 400 x 600 on threads: wall time
    python benchmarks/bench_loopy.py picture [--folder DATA]   one disc of 400 x 600 with strokes; or real pictures,
                                                               NAME.jpg with NAME.scribbles1.png and NAME.truth.png
    python benchmarks/bench_loopy.py memory                    bytes a pixel of one picture with three labels
    python benchmarks/bench_loopy.py growth                    seconds against pixels, 100 x 100 to 1000 x 1000
    python benchmarks/bench_loopy.py map [--toulbar2]          maxima on random grids 20 x 20: scores, bounds, time

Settings were chosen on seeds below 30; the tables are of seeds 30 to 39. Every row is printed as one line of JSON, with
means and 95% intervals over seeds (Student's t); seconds are processor time. ``--output FILE`` keeps the rows of every
part that was run.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

import mssvm as ms
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology

MEMBERS = ("MSSVM", "HCRF", "CRF", "SSVM")
ALL_LABELS = ("CRF", "SSVM")
SIZES = ((32, 2), (48, 3))
MANY_LABELS = ((24, 8), (24, 21))
PARTS = ("table", "noise", "labels", "sampled", "many", "threads", "picture", "memory", "growth", "map")
Row = dict[str, Any]


def discs(n: int, side: int, n_labels: int, seed: int, noise: float = 1.2) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, side, side, d) and labels of noisy discs."""
    return discs_of_shape(n, (side, side), n_labels, seed, noise)


def discs_of_shape(
    n: int, shape: tuple[int, int], n_labels: int, seed: int, noise: float = 1.2
) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, height, width, d) and labels of noisy discs."""
    rng = np.random.default_rng(seed)
    size = np.array(shape)
    rows, columns = np.indices(shape)
    X, y = [], []
    for _ in range(n):
        labels = np.zeros(shape, dtype=np.int64)
        for label in range(1, n_labels):
            centre = rng.uniform(0.25 * size, 0.75 * size)
            radius = rng.uniform(0.15, 0.35) * min(shape)
            labels[np.hypot(rows - centre[0], columns - centre[1]) < radius] = label
        shown = np.eye(n_labels)[labels][..., 1:] + noise * rng.normal(size=(*shape, n_labels - 1))
        X.append(np.concatenate([shown, np.ones((*shape, 1))], axis=-1))
        y.append(labels)
    return np.array(X), np.array(y)


def partly(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of a random share of the pixels, -1 elsewhere."""
    return np.where(np.random.default_rng(1000 + seed).random(y.shape) < share, y, -1)


def inferences(name: str) -> tuple[Any, Any]:
    """What trains and what predicts: the bound, or belief propagation with the efforts that "auto" gives it."""
    if name == "bound":
        return "decompose", "decompose"
    auto = ms.inference.Auto
    return auto(operations_limit=1e6, effort="fast", wide="propagate"), auto(wide="propagate")


def fit_and_score(member: str, how: str, train: Any, test: Any, structure: Any = None) -> tuple[float, float, float]:
    """Accuracy in per cent, and processor seconds of fit and of predict."""
    training, prediction = inferences(how)
    model = getattr(ms, member)(structure or ms.Grid(), missing_label=-1, random_state=0, inference=training)
    begin = time.process_time()
    model.fit(list(train[0]), list(train[1]))
    fitted = time.process_time()
    model.set_params(inference=prediction)
    found = np.array(model.predict(list(test[0])))
    end = time.process_time()
    return 100.0 * float((found == test[1]).mean()), fitted - begin, end - fitted


def interval(values: list[float]) -> list[float | None]:
    """Mean and half the width of its 95% interval, which a single number does not have."""
    n = len(values)
    mean = round(float(np.mean(values)), 3)
    if n == 1:
        return [mean, None]
    return [mean, round(float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)), 3)]


def summary(found: list[tuple[float, float, float]], **about: Any) -> Row:
    accuracy, fit, predict = (interval([row[k] for row in found]) for k in range(3))
    return {**about, "seeds": len(found), "accuracy": accuracy, "fit_seconds": fit, "predict_seconds": predict}


def problem(member: str, side: int, n_labels: int, seed: int, noise: float, share: float) -> tuple[Any, Any]:
    X, y = discs(8, side, n_labels, seed, noise)
    given = y if member in ALL_LABELS else partly(y, share, seed)
    return (X, given), discs(8, side, n_labels, 10_000 + seed, noise)


def table(seeds: range, how: tuple[str, ...], sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[Row]:
    noise, share = 1.2, 0.15
    for side, n_labels in sizes:
        for member in MEMBERS:
            for name in how:
                found = []
                for seed in seeds:
                    train, test = problem(member, side, n_labels, seed, noise, share)
                    found.append(fit_and_score(member, name, train, test))
                about = {"side": side, "labels": n_labels, "member": member, "inference": name}
                yield summary(found, **about, noise=noise, share=share)


def noises(seeds: range, how: tuple[str, ...]) -> Iterator[Row]:
    for noise, share in ((0.6, 0.15), (2.0, 0.15), (1.2, 0.02), (1.2, 0.5)):
        for member in ("MSSVM", "HCRF"):
            for name in how:
                found = []
                for seed in seeds:
                    train, test = problem(member, 32, 2, seed, noise, share)
                    found.append(fit_and_score(member, name, train, test))
                yield summary(found, side=32, labels=2, member=member, inference=name, noise=noise, share=share)


def drawn(rng: np.random.Generator, tables: list[np.ndarray], n: int = 16, side: int = 30) -> tuple[Any, Any]:
    """Features and labels of the random field with these tables to the right and down, by Gibbs sampling."""
    X, y = [], []
    colour = np.add.outer(np.arange(side), np.arange(side)) % 2
    right, down = tables
    for _ in range(n):
        x = rng.normal(size=(side, side, len(right)))
        labels = rng.integers(0, len(right), (side, side))
        for step in range(120):
            score = x.copy()
            score[:, 1:] += right[labels[:, :-1]]
            score[:, :-1] += right.T[labels[:, 1:]]
            score[1:] += down[labels[:-1]]
            score[:-1] += down.T[labels[1:]]
            new = (score + rng.gumbel(size=score.shape)).argmax(axis=-1)
            labels = np.where(colour == step % 2, new, labels)
        X.append(np.concatenate([x, np.ones((side, side, 1))], axis=-1))
        y.append(labels)
    return X, y


def sampled(seeds: range, how: tuple[str, ...]) -> Iterator[Row]:
    for n_labels, kind in ((2, "mixed"), (4, "mixed"), (4, "attractive")):
        for member in MEMBERS:
            for name in how:
                found = []
                for seed in seeds:
                    rng = np.random.default_rng(seed)
                    tables = [rng.normal(size=(n_labels, n_labels)) for _ in range(2)]
                    if kind == "attractive":
                        tables = [0.9 * np.eye(n_labels)] * 2
                    X, y = drawn(rng, tables)
                    test = drawn(rng, tables)
                    given = y if member in ALL_LABELS else list(partly(np.array(y), 0.3, seed))
                    found.append(fit_and_score(member, name, (X, given), (test[0], np.array(test[1]))))
                yield summary(found, labels=n_labels, couplings=kind, member=member, inference=name)


def many(how: tuple[str, ...]) -> Iterator[Row]:
    X, y = discs(64, 64, 2, 30)
    test = discs(16, 64, 2, 10_030)
    for member in ("HCRF", "MSSVM"):
        for name in how:
            found = fit_and_score(member, name, (X, partly(y, 0.15, 30)), test)
            yield summary([found], images=64, side=64, labels=2, member=member, inference=name)


def threads(numbers: list[int]) -> Iterator[Row]:
    """Seconds of fits on several numbers of threads, and whether weights have the same bits."""
    X, y = discs(64, 64, 2, 30)
    x, given, _ = disc_picture(30)
    discs_given = list(X), list(partly(y, 0.15, 30))
    problems = (
        ("64 x 64 x 64", "HCRF", ms.Grid(), discs_given),
        ("64 x 64 x 64", "MSSVM", ms.Grid(), discs_given),
        ("400 x 600", "HCRF", ms.Grid(edges="contrast"), ([x], [given])),
    )
    for pictures, member, structure, data in problems:
        first = None
        for n in numbers:
            model = getattr(ms, member)(structure, missing_label=-1, random_state=0, n_jobs=n)
            cpu, wall = time.process_time(), time.perf_counter()
            model.fit(*data)
            row: Row = {"pictures": pictures, "member": member, "threads": n}
            row["wall"] = round(time.perf_counter() - wall, 2)
            row["seconds"] = round(time.process_time() - cpu, 2)
            first = model.coef_ if first is None else first
            row["same_bits"] = bool(np.array_equal(first, model.coef_))
            yield row


def strokes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Ten straight strokes in every label, three pixels wide."""
    rng = np.random.default_rng(seed)
    given = np.full(labels.shape, -1)
    for label in np.unique(labels):
        for at in rng.permutation(np.argwhere(labels == label))[:10]:
            angle = rng.uniform(0, 2 * np.pi)
            for step in range(40):
                i, j = np.round(at + step * np.array([np.sin(angle), np.cos(angle)])).astype(int)
                window = np.s_[max(i - 1, 0) : max(i + 2, 0), max(j - 1, 0) : max(j + 2, 0)]
                inside = labels[window] == label
                if not inside.size or not inside.all():
                    break
                given[window] = label
    return given


def disc_picture(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, strokes and labels of a noisy disc of 400 x 600 pixels."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:400, :600]
    labels = (np.hypot(rows - 210, columns - 320) < 130).astype(np.int64)
    shown = labels[..., None] + rng.normal(size=(400, 600, 3))
    return np.concatenate([shown, np.ones((400, 600, 1))], axis=-1), strokes(labels, seed), labels


def real_pictures(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Colours and their means around every pixel; strokes; truth (255 is left out)."""
    import cv2

    for path in sorted(folder.glob("*.jpg")):
        colours = cv2.imread(str(path)).astype(np.float64) / 255.0
        smooth = [cv2.GaussianBlur(colours, (0, 0), width) for width in (2.0, 6.0)]
        x = np.concatenate([colours, *smooth, np.ones((*colours.shape[:2], 1))], axis=-1)
        given, truth = (
            cv2.imread(str(path.with_suffix(end)), cv2.IMREAD_GRAYSCALE) for end in (".scribbles1.png", ".truth.png")
        )
        yield path.stem, x, given, truth


def picture(how: tuple[str, ...], folder: Path | None) -> Iterator[Row]:
    pictures: list[tuple[str, Any, Any, Any]]
    pictures = [("disc", *disc_picture(30))] if folder is None else list(real_pictures(folder))
    for name in how:
        for stem, x, given, truth in pictures:
            labels = given if folder is None else labels_of_strokes(given)
            known = truth if folder is None else labels_of_truth(truth)
            row: Row = {"picture": stem, "inference": name, "pixels": labels.size}
            training, prediction = inferences(name)
            model = ms.HCRF(ms.Grid(edges="contrast"), missing_label=-1, random_state=0, inference=training)
            begin, wall = time.process_time(), time.perf_counter()
            model.fit([x], [labels])
            model.set_params(inference=prediction)
            found = np.array(model.predict([x])[0])
            row["seconds"] = round(time.process_time() - begin, 2)
            row["wall"] = round(time.perf_counter() - wall, 2)
            judged = known >= 0
            both = ((found == 1) & (known == 1) & judged).sum()
            either = (((found == 1) | (known == 1)) & judged).sum()
            row["IoU"] = round(float(both / max(either, 1)), 4)
            row["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            yield row


def labels_of_strokes(given: np.ndarray) -> np.ndarray:
    """Grey levels of stroke images: two levels are labels, the most frequent one is no label."""
    levels, count = np.unique(given, return_counts=True)
    none = levels[count.argmax()]
    out = np.full(given.shape, -1)
    for label, level in enumerate(sorted(set(levels.tolist()) - {none.item()})[-2:]):
        out[given == level] = label
    return out


def labels_of_truth(truth: np.ndarray) -> np.ndarray:
    """0 is ground, 255 the object, anything between is not judged."""
    return np.where(truth == 255, 1, np.where(truth == 0, 0, -1))


def memory() -> Iterator[Row]:
    """Most memory that NumPy and Python allocate beyond features and labels, in bytes a pixel; 5% are labelled."""
    small = ((150, 150), (300, 300))
    large = ((400, 600), (1000, 1000))
    cases = [("HCRF", "free", small + large), ("HCRF", "contrast", small)]
    cases += [("MSSVM", "free", small), ("MSSVM", "contrast", small)]
    for member, edges, shapes in cases:
        for shape in shapes:
            X, y = discs_of_shape(1, shape, 3, 30)
            given = partly(y, 0.05, 30)
            model = getattr(ms, member)(ms.Grid(edges=edges), missing_label=-1, random_state=0)
            row: Row = {"member": member, "edges": edges, "shape": list(shape)}
            tracemalloc.start()
            model.fit(list(X), list(given))
            row["fit"] = round(tracemalloc.get_traced_memory()[1] / y.size)
            tracemalloc.reset_peak()
            model.predict(list(X))
            row["predict"] = round(tracemalloc.get_traced_memory()[1] / y.size)
            row["kept"] = round(tracemalloc.get_traced_memory()[0] / y.size)
            tracemalloc.stop()
            yield row


def growth() -> Iterator[Row]:
    """Seconds of HCRF on single pictures with three labels, 5% of the pixels labelled: means over as many pictures as
    400 x 400 pixels hold. The last row has the exponents of the number of pixels, by least squares of logarithms."""
    columns: dict[str, list[float]] = {"pixels": [], "fit": [], "evaluation": [], "predict": []}
    for side in (100, 200, 400, 700, 1000):
        found = []
        for seed in range(30, 30 + max(1, 400**2 // side**2)):
            X, y = discs(1, side, 3, seed)
            model = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0)
            begin = time.process_time()
            model.fit(list(X), list(partly(y, 0.05, seed)))
            fitted = time.process_time()
            model.predict(list(X))
            end = time.process_time()
            evaluations = float(model.history_[-1]["plus_calls"])
            found.append((fitted - begin, (fitted - begin) / evaluations, end - fitted))
        means = np.mean(found, axis=0).tolist()
        row: Row = {"side": side, "pictures": len(found)}
        for name, value in zip(columns, (float(side * side), *means), strict=True):
            columns[name].append(value)
            row[name] = round(value, 4)
        yield row
    pixels = np.log(columns.pop("pixels"))
    yield {"exponent": {name: round(float(np.polyfit(pixels, np.log(c), 1)[0]), 3) for name, c in columns.items()}}


def maxima(seeds: range, peer: bool) -> Iterator[Row]:
    at = np.arange(400).reshape(20, 20)
    ends = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    scopes = [pair for one, two in ends for pair in zip(one.ravel().tolist(), two.ravel().tolist(), strict=True)]
    for n_labels in (2, 3, 5):
        batch = Batch.build([Topology((n_labels,) * 400, tuple(scopes))] * len(seeds))
        rng = np.random.default_rng(n_labels)
        for kind in ("attractive", "mixed"):
            tables = 0.7 * rng.normal(size=(batch.n_factors, n_labels, n_labels))
            if kind == "attractive":
                tables = np.eye(n_labels) * np.abs(rng.normal(size=(batch.n_factors, 1, 1)))
            theta = Potentials(rng.normal(size=batch.n_states), tables.ravel())
            row: Row = {"labels": n_labels, "couplings": kind, "grids": len(batch)}
            found = {}
            for name, infer in (("bound", ms.inference.Decompose()), ("propagation", ms.inference.Propagate())):
                begin = time.process_time()
                found[name] = infer(batch, theta, Query.all_outputs(batch), 0.0, 0.0)
                row[f"{name}_seconds"] = round(time.process_time() - begin, 3)
            status = found["bound"].status
            row["proven"] = round(float(status.exact.mean()), 3)
            row["gap"] = round(float((status.upper - status.lower).mean()), 3)
            row["no_lower"] = round(float((status.lower >= found["propagation"].value - 1e-9).mean()), 3)
            if peer:
                begin = time.perf_counter()
                best = ms.inference.Toulbar2(time_limit=1.0)(batch, theta, Query.all_outputs(batch), 0.0, 0.0)
                row["toulbar2_wall"] = round(time.perf_counter() - begin, 3)
                row["toulbar2_proven"] = round(float(best.status.exact.mean()), 3)
                row["no_lower_than_toulbar2"] = int((status.lower >= best.value - 1e-6).sum())
                row["least_difference"] = round(float((status.lower - best.value).min()), 4)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", default="30:40", help="first and end of the seeds")
    parser.add_argument("--inference", nargs="+", default=["bound", "propagation"])
    parser.add_argument("--toulbar2", action="store_true", help="maxima beside toulbar2's of a second a grid")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    seeds, how = range(*map(int, given.seeds.split(":"))), tuple(given.inference)
    warnings.simplefilter("ignore")
    parts = {
        "table": lambda: table(seeds, how),
        "noise": lambda: noises(seeds, how),
        "labels": lambda: table(seeds, how, MANY_LABELS),
        "sampled": lambda: sampled(seeds, how),
        "many": lambda: many(how),
        "threads": lambda: threads(given.threads),
        "picture": lambda: picture(how, given.folder),
        "memory": memory,
        "growth": growth,
        "map": lambda: maxima(seeds, given.toulbar2),
    }
    kept = []
    for row in parts[given.part]():
        print(json.dumps(row), flush=True)
        kept.append(row)
    if given.output is not None:
        known = json.loads(given.output.read_text()) if given.output.exists() else {}
        part = given.part if given.folder is None else f"{given.part} {given.folder.name}"
        known[part] = [row for row in known.get(part, []) if row.get("inference", how[0]) not in how] + kept
        given.output.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()

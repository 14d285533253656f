"""Handwritten words with missing letters: the family against the same model on labelled runs, and a letter classifier.

Folds 0 to 3 train, fold 4 tests. All models have the same features (128 pixels and a bias a letter, one table of
transitions). "CRF-runs" and "SSVM-runs" are trained on words cut at missing letters into their labelled runs;
"letters" is logistic regression on the labelled letters. C is chosen for each method by cross-validation on the
training folds, on the first mask, at 10, 50 and 90% missing (30 and 70% take the choice at 50%): by steps of about 3
until the score on all letters of the folds left out falls. Intervals (95%) are over masks (Student's t) and over test
words (bootstrap of the mean over masks); both are of paired differences in points.

Run: python benchmarks/bench_letters.py [--masks 5] [--peer-python PYTHON_WITH_CRFSUITE] [--resume]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common_data import Clock, data_dir, paired, peer, read_result, write
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import mssvm as ms
from mssvm.optim import LBFGS

LEVELS = (10, 30, 50, 70, 90)
RUNS = {"HCRF": "CRF-runs", "MSSVM": "SSVM-runs", "LSSVM": "SSVM-runs"}
START = {"HCRF": 1.0, "CRF-runs": 1.0, "MSSVM": 0.1, "LSSVM": 0.1, "SSVM-runs": 0.1, "letters": 0.1}
METHODS = tuple(START)


def words() -> tuple[list[Any], list[Any], np.ndarray]:
    data = np.load(data_dir() / "ocr_letters" / "letters.npz")
    pixels = np.unpackbits(data["pixels"].reshape(-1, 16), axis=1).astype(np.float64)
    ends = np.cumsum(data["lengths"])[:-1]
    return np.split(pixels, ends), np.split(data["labels"].astype(np.int64), ends), data["folds"]


def take(items: list[Any], which: np.ndarray) -> list[Any]:
    return [items[i] for i in which]


def masked(y: list[Any], percent: int, seed: int) -> list[Any]:
    """-1 at the given share of letters."""
    rng = np.random.default_rng([percent, seed])
    return [np.where(rng.random(len(item)) * 100 < percent, -1, item) for item in y]


def runs(X: list[Any], y: list[Any]) -> tuple[list[Any], list[Any]]:
    """Words cut at missing letters into their labelled runs."""
    out_x, out_y = [], []
    for x, labels in zip(X, y, strict=True):
        for known, group in itertools.groupby(range(len(labels)), key=lambda t: labels[t] >= 0):
            if known:
                at = list(group)
                out_x.append(x[at])
                out_y.append(labels[at])
    return out_x, out_y


class Letters:
    """A letter classifier without structure."""

    def __init__(self, C: float) -> None:
        self._model = LogisticRegression(C=C, max_iter=200, tol=1e-3)

    def fit(self, X: list[Any], y: list[Any]) -> Letters:
        labels = np.concatenate(y)
        with threadpool_limits(1):
            self._model.fit(np.concatenate(X)[labels >= 0], labels[labels >= 0])
        return self

    def predict(self, X: list[Any]) -> list[Any]:
        return [self._model.predict(x) for x in X]


def fit(method: str, C: float, X: list[Any], y: list[Any], args: argparse.Namespace) -> Any:
    """A trained model; methods ending in "-runs" see labelled runs only."""
    if method == "letters":
        return Letters(C).fit(X, y)
    settings = {"C": C, "classes": range(26), "missing_label": -1, "n_jobs": args.jobs, "random_state": 0}
    smooth = method in ("HCRF", "CRF-runs")
    # Members with a maximum through the temperatures 1 and 0.1 only: cheaper than the default, and as good here.
    solver = LBFGS(schedule=(1.0, 0.1), max_iter=100 if smooth else args.iterations, tolerance=1e-4)
    model = getattr(ms, method.removesuffix("-runs"))(solver=solver, **settings)
    return model.fit(*runs(X, y)) if method.endswith("-runs") else model.fit(X, y)


def right(model: Any, X: list[Any], y: list[Any]) -> np.ndarray:
    """Right letters of every word."""
    return np.array([np.sum(a == b) for a, b in zip(model.predict(X), y, strict=True)], dtype=np.float64)


class Search:
    """The choice of C: scores by cross-validation over the last ``folds`` training folds, kept as they come."""

    def __init__(self, data: Any, args: argparse.Namespace, kept: dict[str, Any], save: Callable[[], None]) -> None:
        self.X, self.y, self.folds = data
        self.args, self.kept, self.save = args, kept, save

    def score(self, method: str, percent: int, C: float) -> float:
        """Share of right letters in the folds left out."""
        key = f"{percent} {method} {C:g}"
        if key not in self.kept:
            labels = masked(self.y, percent, 0)
            hits = total = 0.0
            for fold in range(4 - self.args.folds, 4):
                seen, out = np.flatnonzero((self.folds != fold) & (self.folds < 4)), np.flatnonzero(self.folds == fold)
                model = fit(method, C, take(self.X, seen), take(labels, seen), self.args)
                hits += right(model, take(self.X, out), take(self.y, out)).sum()
                total += sum(len(self.y[i]) for i in out)
            self.kept[key] = 100 * hits / total
            self.save()
        return float(self.kept[key])

    def best(self, method: str, percent: int, start: float) -> float:
        """The C from which a step by 3 either way does worse."""
        here = start
        for factor in (3.0, 1 / 3.0):
            while self.score(method, percent, _round(here * factor)) > self.score(method, percent, here):
                here = _round(here * factor)
            if here != start:
                break
        return here


def _round(C: float) -> float:
    """The nearest number of the ladder 0.01, 0.03, 0.1, ..."""
    power = round(2 * np.log10(C))
    return float(f"{10 ** (power // 2) * (3 if power % 2 else 1):.3g}")


def full(data: Any, search: Search, args: argparse.Namespace) -> dict[str, Any]:
    """All labels: our CRF against python-crfsuite with the same features and C."""
    X, y, folds = data
    train, test = np.flatnonzero(folds < 4), np.flatnonzero(folds == 4)
    C = search.best("HCRF", 0, 0.3)
    n = sum(len(y[i]) for i in test)
    with Clock() as clock:
        model = fit("HCRF", C, take(X, train), take(y, train), args)
    out = {"C": C, "accuracy": 100 * right(model, take(X, test), take(y, test)).sum() / n, "seconds": clock.wall}
    if args.peer_python:
        sites = [[{f"p{j}": 1.0 for j in np.flatnonzero(row)} | {"bias": 1.0} for row in x] for x in X]
        labels = [[str(v) for v in item] for item in y]
        pairs = [[sites[i], labels[i]] for i in train]
        work = {"train": pairs, "test": take(sites, test), "c2": 1 / (2 * C), "iterations": 1000}
        theirs = peer(args.peer_python, "crfsuite.py", work)
        hits = sum(
            a == b for i, item in zip(test, theirs["labels"], strict=True) for a, b in zip(item, labels[i], strict=True)
        )
        out.update(crfsuite_accuracy=100 * hits / n, crfsuite_seconds=theirs["seconds"])
        out.update(objective=model.objective_ / C, crfsuite_objective=theirs["objective"])
    return out


def cells(data: Any, search: Search, kept: dict[str, str], args: argparse.Namespace) -> Iterator[str]:
    """Right letters of every test word, one hexadecimal digit each, for every share, mask and method."""
    X, y, folds = data
    train, test = np.flatnonzero(folds < 4), np.flatnonzero(folds == 4)
    for percent in args.levels:
        near = min(args.searched, key=lambda p: abs(p - percent))
        C = {method: search.best(method, near, START[method]) for method in METHODS}
        for seed, method in itertools.product(range(args.masks), METHODS):
            key = f"{percent} {seed} {method}"
            if key not in kept:
                model = fit(method, C[method], take(X, train), take(masked(y, percent, seed), train), args)
                kept[key] = "".join(f"{int(v):x}" for v in right(model, take(X, test), take(y, test)))
            yield key


def over_masks(differences: np.ndarray) -> dict[str, float]:
    """Mean difference with a 95% interval of Student's t over masks."""
    n = len(differences)
    wide = float(stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / n**0.5) if n > 1 else float("nan")
    mean = float(differences.mean())
    return {"difference": mean, "low": mean - wide, "high": mean + wide}


def summary(kept: dict[str, str], sizes: np.ndarray, percent: int, masks: int) -> dict[str, Any]:
    """One row of the table."""
    hits = {m: np.array([[int(c, 16) for c in kept[f"{percent} {k} {m}"]] for k in range(masks)]) for m in METHODS}
    share = {m: 100 * hits[m].sum(axis=1) / sizes.sum() for m in METHODS}
    row: dict[str, Any] = {"missing": percent, "accuracy": {m: float(share[m].mean()) for m in METHODS}}
    for name, other in (("against_runs", RUNS), ("against_letters", dict.fromkeys(RUNS, "letters"))):
        row[name] = {
            m: {
                "against": b,
                "words": paired(hits[m].mean(axis=0), hits[b].mean(axis=0), sizes),
                "masks": over_masks(share[m] - share[b]),
            }
            for m, b in other.items()
        }
    return row


def show(rows: list[dict[str, Any]], console: Console) -> None:
    accuracy = Table("missing %", *METHODS, title="letters right, %")
    gaps = Table("missing %", "method", "against", "difference", "over masks", "over words", title="paired differences")
    for row in rows:
        accuracy.add_row(str(row["missing"]), *(f"{row['accuracy'][m]:.2f}" for m in METHODS))
        for method, gap in (*row["against_runs"].items(), *row["against_letters"].items()):
            spans = [f"[{gap[k]['low']:+.2f}, {gap[k]['high']:+.2f}]" for k in ("masks", "words")]
            gaps.add_row(str(row["missing"]), method, gap["against"], f"{gap['masks']['difference']:+.2f}", *spans)
    console.print(accuracy, gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masks", type=int, default=5, help="masks a level")
    parser.add_argument("--levels", type=int, nargs="*", default=LEVELS)
    parser.add_argument("--searched", type=int, nargs="*", default=(50, 10, 90), help="levels at which C is chosen")
    parser.add_argument("--folds", type=int, default=2, help="training folds left out in turn to choose C")
    parser.add_argument(
        "--iterations", type=int, default=40, help="of L-BFGS at each of four temperatures, with a margin"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--peer-python", help="an interpreter with python-crfsuite")
    parser.add_argument("--resume", action="store_true", help="keep the cells that are there")
    args = parser.parse_args()
    data = words()
    console = Console()
    kept = read_result("letters_cells") if args.resume else {}
    result = read_result("letters") if args.resume else {}
    scores, found = kept.setdefault("scores", {}), kept.setdefault("right", {})
    search = Search(data, args, scores, lambda: write("letters_cells", kept))
    settings = {k: v for k, v in vars(args).items() if k not in ("peer_python", "resume")}
    result["settings"] = settings
    if "full" not in result:
        result["full"] = full(data, search, args)
        write("letters", result)
        console.print(result["full"])
    for key in cells(data, search, found, args):
        write("letters_cells", kept)
        console.print(key)
    sizes = np.array([len(item) for item in take(data[1], np.flatnonzero(data[2] == 4))], dtype=np.float64)
    result["rows"] = [summary(found, sizes, percent, args.masks) for percent in sorted(args.levels)]
    write("letters", result)
    show(result["rows"], console)


if __name__ == "__main__":
    main()

"""Handwritten words with missing letters: the family against the same model on labelled runs, and a letter classifier.

Folds 0 to 3 train, fold 4 tests; C is chosen on the training folds only. All models have the same features (128 pixels
and a bias a letter, one table of transitions) and the same solver settings. Differences are paired over test words.

Run: python benchmarks/bench_letters.py [--masks 5] [--peer-python PYTHON_WITH_CRFSUITE]
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
from common_data import Clock, data_dir, paired, peer, write
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

import mssvm as ms

GRID = (0.03, 0.1, 0.3)
LEVELS = (10, 30, 50, 70, 90)


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
        self._model.fit(np.concatenate(X)[labels >= 0], labels[labels >= 0])
        return self

    def predict(self, X: list[Any]) -> list[Any]:
        return [self._model.predict(x) for x in X]


def fit(method: str, C: float, X: list[Any], y: list[Any], iterations: int) -> Any:
    """A trained model; methods ending in "-runs" see labelled runs only."""
    if method == "letters":
        return Letters(C).fit(X, y)
    kind = {"HCRF": ms.HCRF, "MSSVM": ms.MSSVM, "LSSVM": ms.LSSVM, "CRF-runs": ms.CRF, "SSVM-runs": ms.SSVM}[method]
    model = kind(C=C, classes=range(26), missing_label=-1, max_iter=iterations, tol=1e-5, random_state=0)
    return model.fit(*runs(X, y)) if method.endswith("-runs") else model.fit(X, y)


def right(model: Any, X: list[Any], y: list[Any]) -> np.ndarray:
    """Right letters of every word."""
    return np.array([np.sum(a == b) for a, b in zip(model.predict(X), y, strict=True)], dtype=np.float64)


def best_C(
    method: str, X: list[Any], y: list[Any], masked_y: list[Any], folds: np.ndarray, k: int, n_iter: int
) -> float:
    """C by cross-validation over (the last k of) the training folds; scored on all letters of the fold left out."""
    scores = dict.fromkeys(GRID, 0.0)
    for C, fold in itertools.product(GRID, range(4 - k, 4)):
        seen, out = np.flatnonzero((folds != fold) & (folds < 4)), np.flatnonzero(folds == fold)
        model = fit(method, C, take(X, seen), take(masked_y, seen), n_iter)
        scores[C] += right(model, take(X, out), take(y, out)).sum()
    return max(scores, key=lambda C: scores[C])


def full(X: list[Any], y: list[Any], folds: np.ndarray, args: argparse.Namespace) -> dict[str, Any]:
    """All labels: our CRF against python-crfsuite."""
    train, test = np.flatnonzero(folds < 4), np.flatnonzero(folds == 4)
    C = best_C("HCRF", X, y, y, folds, args.folds, args.iterations)
    n = sum(len(y[i]) for i in test)
    with Clock() as clock:
        model = fit("HCRF", C, take(X, train), take(y, train), args.iterations)
    out = {"C": C, "accuracy": 100 * right(model, take(X, test), take(y, test)).sum() / n, "seconds": clock.wall}
    if args.peer_python:
        sites = [[{f"p{j}": 1.0 for j in np.flatnonzero(row)} | {"bias": 1.0} for row in x] for x in X]
        labels = [[str(v) for v in item] for item in y]
        work = {
            "train": [[sites[i], labels[i]] for i in train],
            "test": take(sites, test),
            "c2": 1 / (2 * C),
            "iterations": args.iterations,
        }
        theirs = peer(args.peer_python, "crfsuite.py", work)
        hits = sum(
            a == b for i, item in zip(test, theirs["labels"], strict=True) for a, b in zip(item, labels[i], strict=True)
        )
        out.update(crfsuite_accuracy=100 * hits / n, crfsuite_seconds=theirs["seconds"])
    return out


def missing(X: list[Any], y: list[Any], folds: np.ndarray, args: argparse.Namespace) -> list[dict[str, Any]]:
    train, test = np.flatnonzero(folds < 4), np.flatnonzero(folds == 4)
    test_x, test_y = take(X, test), take(y, test)
    sizes = np.array([len(item) for item in test_y], dtype=np.float64)
    methods = ("HCRF", "MSSVM", "LSSVM", "CRF-runs", "SSVM-runs", "letters")
    half = masked(y, 50, 0)
    C = {m: best_C(m, X, y, half, folds, args.folds, args.iterations) for m in methods}
    rows = []
    for percent in args.levels:
        hits = {m: np.zeros(len(test)) for m in methods}
        for seed, m in itertools.product(range(args.masks), methods):
            model = fit(m, C[m], take(X, train), take(masked(y, percent, seed), train), args.iterations)
            hits[m] += right(model, test_x, test_y) / args.masks
        against = {"HCRF": "CRF-runs", "MSSVM": "SSVM-runs", "LSSVM": "SSVM-runs"}
        rows.append(
            {
                "missing": percent,
                "accuracy": {m: 100 * float(hits[m].sum() / sizes.sum()) for m in methods},
                "against_runs": {m: paired(hits[m], hits[b], sizes) for m, b in against.items()},
                "against_letters": {m: paired(hits[m], hits["letters"], sizes) for m in against},
                "C": C,
            }
        )
        write("letters", {"masks": args.masks, "missing": rows})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masks", type=int, default=5, help="masks a level")
    parser.add_argument("--levels", type=int, nargs="*", default=LEVELS)
    parser.add_argument("--folds", type=int, default=4, help="training folds left out in turn to choose C")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--peer-python", help="an interpreter with python-crfsuite")
    args = parser.parse_args()
    X, y, folds = words()
    console = Console()
    observed = full(X, y, folds, args)
    console.print(observed)
    rows = missing(X, y, folds, args)
    write("letters", {"masks": args.masks, "full": observed, "missing": rows})
    table = Table("missing %", *rows[0]["accuracy"], "HCRF - runs", "MSSVM - runs", "LSSVM - runs")
    for row in rows:
        gaps = [f"{g['difference']:+.2f} [{g['low']:+.2f}, {g['high']:+.2f}]" for g in row["against_runs"].values()]
        table.add_row(str(row["missing"]), *(f"{a:.1f}" for a in row["accuracy"].values()), *gaps)
    console.print(table)


if __name__ == "__main__":
    main()

"""One label a sequence: ``SequenceClass`` against logistic regression on channel means and pyhcrf, in the same folds.

Five outer folds; every method chooses its hyper-parameters by inner folds of the training part. Channels are
standardised by the training part.

Run: python benchmarks/bench_timeseries.py [--peer-python PYTHON_WITH_PYHCRF] [--sets NATOPS JapaneseVowels]
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
from common_data import data_dir, peer, write
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mssvm as ms


def read(name: str) -> tuple[list[Any], np.ndarray]:
    """Sequences (T, channels) and their labels as numbers."""
    X, labels = [], []
    body = False
    for line in (data_dir() / "timeseries" / f"{name}_TRAIN.ts").read_text().splitlines():
        if body and line.strip():
            *channels, label = line.split(":")
            rows = [np.array([float(v) for v in c.split(",") if v.strip() not in ("", "?")]) for c in channels]
            X.append(np.stack(rows, axis=1))
            labels.append(label.strip())
        body = body or line.lower().startswith("@data")
    return X, np.unique(labels, return_inverse=True)[1]


def standardised(X: list[Any], train: np.ndarray) -> list[Any]:
    rows = np.concatenate([X[i] for i in train])
    return [(x - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9) for x in X]


def ours(X: list[Any], y: np.ndarray, train: np.ndarray, test: np.ndarray, args: argparse.Namespace) -> float:
    """Accuracy on the test part; the grid is chosen inside the training part."""
    model = ms.HCRF(ms.SequenceClass(), max_iter=args.iterations, tol=1e-5, random_state=0)
    n = int(y.max()) + 1
    free = [ms.SequenceClass(hidden=k, pool="mean") for k in args.hidden]
    ordered = [ms.SequenceClass(hidden=k, fixed={"transition": left_to_right(n, k)}) for k in args.hidden]
    grid = {"structure": [*free, *ordered], "C": args.C}
    inner = list(StratifiedKFold(args.inner).split(np.zeros(len(train)), y[train]))
    search = GridSearchCV(model, grid, cv=inner).fit([X[i] for i in train], y[train])
    return float(search.score([X[i] for i in test], y[test]))


def left_to_right(n_classes: int, k: int) -> np.ndarray:
    """Known scores of transitions: only to stay or to go on to the next state is free, as in pyhcrf's default."""
    table = np.where(np.eye(k) + np.eye(k, k=1) > 0, np.nan, -20.0)
    return np.tile(table, (n_classes, 1, 1))


def means(X: list[Any], y: np.ndarray, train: np.ndarray, test: np.ndarray, inner: int) -> float:
    flat = np.array([x.mean(axis=0) for x in X])
    pipe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(pipe, {"logisticregression__C": [0.1, 1.0, 10.0, 100.0]}, cv=StratifiedKFold(inner))
    return float(search.fit(flat[train], y[train]).score(flat[test], y[test]))


def theirs(X: list[Any], y: np.ndarray, train: np.ndarray, test: np.ndarray, args: argparse.Namespace) -> float:
    """pyhcrf, the same grid and inner folds."""
    folds = [(train[a], train[b]) for a, b in StratifiedKFold(args.inner).split(np.zeros(len(train)), y[train])]

    def run(states: int, C: float, splits: list[Any]) -> float:
        work = {
            "X": [x.tolist() for x in X],
            "y": y.tolist(),
            "splits": [[a.tolist(), b.tolist()] for a, b in splits],
            "states": states,
            "c2": 1 / (2 * C),
            "iterations": args.iterations,
        }
        answers = peer(args.peer_python, "hcrf.py", work)["labels"]
        return float(np.mean([np.mean(np.array(a) == y[b]) for a, (_, b) in zip(answers, splits, strict=True)]))

    best = max(itertools.product(args.hidden, args.C), key=lambda pair: run(*pair, folds))
    return run(*best, [(train, test)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=("NATOPS", "JapaneseVowels"))
    parser.add_argument("--hidden", type=int, nargs="*", default=(2, 4))
    parser.add_argument("--C", type=float, nargs="*", default=(0.1, 1.0))
    parser.add_argument("--inner", type=int, default=3)
    parser.add_argument("--outer", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--peer-python", help="an interpreter with pyhcrf")
    args = parser.parse_args()
    console = Console()
    result: dict[str, Any] = {}
    for name in args.sets:
        X, y = read(name)
        scores: dict[str, list[float]] = {"SequenceClass": [], "means": [], "pyhcrf": []}
        for train, test in StratifiedKFold(args.outer, shuffle=True, random_state=0).split(np.zeros(len(y)), y):
            scaled = standardised(X, train)
            scores["SequenceClass"].append(ours(scaled, y, train, test, args))
            scores["means"].append(means(scaled, y, train, test, args.inner))
            if args.peer_python:
                scores["pyhcrf"].append(theirs(scaled, y, train, test, args))
            console.print(name, {k: round(v[-1], 4) for k, v in scores.items() if v})
            result[name] = {
                k: {"mean": float(np.mean(v)), "se": float(np.std(v, ddof=1) / len(v) ** 0.5) if len(v) > 1 else None}
                for k, v in scores.items()
                if v
            }
            write("timeseries", {**result, "settings": {k: v for k, v in vars(args).items() if k != "peer_python"}})
        console.print(name, result[name])


if __name__ == "__main__":
    main()

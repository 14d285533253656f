"""One label a sequence: ``SequenceLabel`` against logistic regression on channel means and pyhcrf, in the same folds.

Five outer folds; every method chooses its hyper-parameters by inner folds of the training part. Channels are
standardised by the training part.

Run: python benchmarks/bench_timeseries.py [--peer-python PYTHON_WITH_PYHCRF] [--sets NATOPS JapaneseVowels] [--resume]
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np
from common_data import data_dir, peer, read_result, write
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import mssvm as ms
from mssvm.optim import LBFGS


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


def ours(
    kind: Any, X: list[Any], y: np.ndarray, train: np.ndarray, test: np.ndarray, args: argparse.Namespace
) -> tuple[float, str]:
    """Accuracy on the test part, and what was chosen inside the training part."""
    n = int(y.max()) + 1
    ordered = {k: ms.SequenceLabel(hidden=k, fixed={"transition": left_to_right(n, k)}) for k in args.hidden}
    grid = {f"{k} states, C = {C}": (ordered[k], C) for k in args.hidden for C in args.C}

    def accuracy(choice: str, seen: np.ndarray, out: np.ndarray) -> float:
        structure, C = grid[choice]
        solver = LBFGS(schedule=(1.0, 0.1), max_iter=args.iterations, tolerance=1e-4)
        model = kind(structure, C=C, solver=solver, classes=range(n), random_state=0)
        return float(model.fit([X[i] for i in seen], y[seen]).score([X[i] for i in out], y[out]))

    best = max(grid, key=lambda choice: np.mean([accuracy(choice, *part) for part in inner(y, train, args)]))
    return accuracy(best, train, test), best


def inner(y: np.ndarray, train: np.ndarray, args: argparse.Namespace) -> list[tuple[np.ndarray, np.ndarray]]:
    """The training part in turn without one of its folds, and that fold."""
    return [(train[a], train[b]) for a, b in StratifiedKFold(args.inner).split(np.zeros(len(train)), y[train])]


def left_to_right(n_classes: int, k: int) -> np.ndarray:
    """Known scores of transitions: only to stay or to go on to the next state is free, as in pyhcrf's default."""
    table = np.where(np.eye(k) + np.eye(k, k=1) > 0, np.nan, -20.0)
    return np.tile(table, (n_classes, 1, 1))


def means(X: list[Any], y: np.ndarray, train: np.ndarray, test: np.ndarray, folds: int) -> tuple[float, str]:
    flat = np.array([x.mean(axis=0) for x in X])
    pipe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(pipe, {"logisticregression__C": [0.1, 1.0, 10.0, 100.0]}, cv=StratifiedKFold(folds))
    with threadpool_limits(1):
        search.fit(flat[train], y[train])
    return float(search.score(flat[test], y[test])), str(search.best_params_)


def theirs(
    X: list[Any], y: np.ndarray, train: np.ndarray, test: np.ndarray, args: argparse.Namespace
) -> tuple[float, str]:
    """pyhcrf (left to right, as it is by default), hyper-parameters by the same inner folds."""

    def run(pair: tuple[int, float], splits: list[Any]) -> float:
        work = {
            "X": [x.tolist() for x in X],
            "y": y.tolist(),
            "splits": [[a.tolist(), b.tolist()] for a, b in splits],
            "states": pair[0],
            "c2": 1 / (2 * pair[1]),
            "iterations": args.iterations,
        }
        answers = peer(args.peer_python, "hcrf.py", work)["labels"]
        return float(np.mean([np.mean(np.array(a) == y[b]) for a, (_, b) in zip(answers, splits, strict=True)]))

    best = max(itertools.product(args.hidden, args.peer_C), key=lambda pair: run(pair, inner(y, train, args)))
    return run(best, [(train, test)]), f"{best[0]} states, C = {best[1]}"


def summary(cells: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean and standard error over folds, and the paired difference from the better peer."""
    by_method: dict[str, list[float]] = {}
    for key, cell in cells.items():
        by_method.setdefault(key.split()[0], []).append(cell["accuracy"])
    out = {
        m: {"mean": float(np.mean(v)), "se": float(np.std(v, ddof=1) / len(v) ** 0.5) if len(v) > 1 else float("nan")}
        for m, v in by_method.items()
    }
    peers = [m for m in ("means", "pyhcrf") if m in out]
    if peers:
        rival = max(peers, key=lambda m: out[m]["mean"])
        for m in out.keys() - set(peers):
            out[m]["ahead_of_better_peer"] = out[m]["mean"] - out[rival]["mean"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=("NATOPS", "JapaneseVowels"))
    parser.add_argument("--hidden", type=int, nargs="*", default=(3, 6))
    parser.add_argument("--C", type=float, nargs="*", default=(0.01, 0.1, 1.0))
    parser.add_argument("--peer-C", type=float, nargs="*", default=(0.1, 1.0, 10.0))
    parser.add_argument("--inner", type=int, default=3)
    parser.add_argument("--outer", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7, help="of the outer folds")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--peer-python", help="an interpreter with pyhcrf")
    parser.add_argument("--resume", action="store_true", help="keep the cells that are there")
    args = parser.parse_args()
    console = Console()
    result: dict[str, Any] = read_result("timeseries") if args.resume else {}
    result["settings"] = {k: v for k, v in vars(args).items() if k not in ("peer_python", "resume")}
    methods = {
        "means": lambda *data: means(*data, args.inner),
        "HCRF": lambda *data: ours(ms.HCRF, *data, args),
        "MSSVM": lambda *data: ours(ms.MSSVM, *data, args),
    }
    if args.peer_python:
        methods["pyhcrf"] = lambda *data: theirs(*data, args)
    for name in args.sets:
        X, y = read(name)
        part = result.setdefault(name, {"cells": {}})
        outer = StratifiedKFold(args.outer, shuffle=True, random_state=args.seed).split(np.zeros(len(y)), y)
        for fold, (train, test) in enumerate(outer):
            scaled = standardised(X, train)
            for method, run in methods.items():
                if f"{method} {fold}" not in part["cells"]:
                    accuracy, chosen = run(scaled, y, train, test)
                    part["cells"][f"{method} {fold}"] = {"accuracy": accuracy, "chosen": chosen}
                    part["summary"] = summary(part["cells"])
                    write("timeseries", result)
                    console.print(name, fold, method, round(accuracy, 4), chosen)
        console.print(name, part["summary"])


if __name__ == "__main__":
    main()

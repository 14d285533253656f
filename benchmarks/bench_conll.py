"""Chunking of CoNLL-2000 with crfsuite-style window features: our CRF against python-crfsuite, and missing tags.

The first 7,000 sentences of the file train, the other 1,936 test. Span-F1 counts a chunk right if its type and both
ends are right. Both libraries have the same weights: every feature with the tags it was seen with, and all pairs of
tags. Both minimise |w|^2 / 2 + C sum_i -log p(y_i | x_i) by L-BFGS. crfsuite stops when ten iterations have gained less
than 1e-5 of the objective; ours when one has gained less than 3e-7. Seconds count from strings to weights, the reading
of features included; compiled kernels are in the cache before.

With missing tags MSSVM goes through the temperatures 1 and 0.1; "CRF-runs" is the CRF trained on sentences cut at the
missing tags into their labelled runs.

Run: python benchmarks/bench_conll.py --peer-python PYTHON_WITH_CRFSUITE [--resume]
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from common_data import Clock, data_dir, peer, read_result, write
from rich.console import Console

import mssvm as ms
from mssvm.optim import LBFGS

N_TRAIN = 7000


def sentences() -> list[list[list[str]]]:
    text = (data_dir() / "conll2000" / "train.txt").read_text()
    return [[line.split() for line in block.splitlines()] for block in text.strip().split("\n\n") if block.strip()]


def features(sentence: list[list[str]], t: int) -> list[str]:
    """Words and part-of-speech tags in a window of two, with pairs and triples, as in crfsuite's chunking example."""
    out: list[str] = []
    n = len(sentence)

    def at(name: str, column: int, *offsets: int) -> None:
        if all(0 <= t + o < n for o in offsets):
            out.append(f"{name}={'|'.join(sentence[t + o][column] for o in offsets)}")

    for o in (-2, -1, 0, 1, 2):
        at(f"w[{o}]", 0, o)
        at(f"pos[{o}]", 1, o)
    for a in (-1, 0):
        at(f"w[{a},{a + 1}]", 0, a, a + 1)
    for a in (-2, -1, 0, 1):
        at(f"pos[{a},{a + 1}]", 1, a, a + 1)
    for a in (-2, -1, 0):
        at(f"pos[{a},{a + 2}]", 1, a, a + 1, a + 2)
    if t == 0:
        out.append("BOS")
    if t == n - 1:
        out.append("EOS")
    return out


def spans(tags: Any) -> Iterator[tuple[int, int, str]]:
    """(start, end, type) of every chunk."""
    start, kind = 0, ""
    for t, tag in enumerate([*tags, "O"]):
        head, _, name = str(tag).partition("-")
        if kind and (head != "I" or name != kind):
            yield start, t, kind
            kind = ""
        if head != "O" and not kind:
            start, kind = t, name


def f1(predicted: list[Any], truth: list[Any]) -> float:
    found = [set(spans(p)) for p in predicted]
    real = [set(spans(y)) for y in truth]
    both = sum(len(a & b) for a, b in zip(found, real, strict=True))
    return 200 * both / max(sum(map(len, found)) + sum(map(len, real)), 1)


def load() -> list[float]:
    """Load averages: figures in seconds mean little where others use the machine."""
    return [round(v, 1) for v in os.getloadavg()]


def compared(X: list[Any], y: list[Any], args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """All tags known: crfsuite and ours in turn, each ``repeats`` times; the fastest run of each counts."""
    train, test = slice(0, N_TRAIN), slice(N_TRAIN, None)
    biased = [[[*names, "bias"] for names in x] for x in X]  # ours has a bias of its own
    work = {
        "train": [list(pair) for pair in zip(biased[train], y[train], strict=True)],
        "test": biased[test],
        "c2": 1 / (2 * args.C),
        "iterations": args.iterations,
        "possible_states": False,
        "possible_transitions": True,
    }
    settings = {"C": args.C, "tol": 3e-7, "n_jobs": args.jobs, "random_state": 0, "max_iter": args.iterations}
    runs: dict[str, list[dict[str, Any]]] = {"crfsuite": [], "seen": [], "all": []}
    for _, support in itertools.product(range(args.repeats), args.support):
        theirs = peer(args.peer_python, "crfsuite.py", work)
        runs["crfsuite"].append({k: v for k, v in theirs.items() if k != "labels"} | {"load": load()})
        runs["crfsuite"][-1]["f1"] = f1(theirs["labels"], y[test])
        goal = theirs["objective"] * args.C
        ms.CRF(**{**settings, "max_iter": 1}, support=support).fit(X[:50], y[:50])  # compile before the clock starts
        with Clock() as clock:
            model = ms.CRF(**settings, support=support).fit(X[train], y[train])
        history = model.history_
        reached = history["seconds"][history["objective"] <= goal * (1 + 1e-6)]
        encode = clock.wall - history["seconds"][-1]
        run = {
            "f1": f1(model.predict(X[test]), y[test]),
            "seconds": clock.wall,
            "cpu": clock.cpu,
            "encode_seconds": encode,
            "objective": model.objective_ / args.C,
            "iterations": model.n_iter_,
            "weights": int(np.count_nonzero(model.coef_)),
            "seconds_to_their_objective": float(reached[0] + encode) if len(reached) else None,
            "status": model.status_,
            "load": load(),
        }
        runs[support].append(run)
        yield "full", {name: min(tried, key=lambda r: r["seconds"]) for name, tried in runs.items() if tried}


def labelled_runs(X: list[Any], y: list[Any]) -> tuple[list[Any], list[Any]]:
    """Sentences cut at missing tags into their labelled runs."""
    out_x, out_y = [], []
    for x, item in zip(X, y, strict=True):
        for known, group in itertools.groupby(range(len(item)), key=lambda t: item[t] is not ms.MISSING):
            if known:
                at = list(group)
                out_x.append([x[t] for t in at])
                out_y.append([item[t] for t in at])
    return out_x, out_y


def missing(
    X: list[Any], y: list[Any], done: dict[str, Any], args: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """F1 of the family on partly labelled sentences, cell by cell."""
    settings = {"C": args.C, "n_jobs": args.jobs, "random_state": 0, "support": "seen"}
    for percent, method in itertools.product(args.levels, args.methods):
        if f"{percent} {method}" in done:
            continue
        rng = np.random.default_rng([percent, 0])
        thin = [[ms.MISSING if rng.random() * 100 < percent else tag for tag in item] for item in y[:N_TRAIN]]
        data = labelled_runs(X[:N_TRAIN], thin) if method == "CRF-runs" else (X[:N_TRAIN], thin)
        kind = getattr(ms, method.removesuffix("-runs"))
        limit = args.margin_iterations if method == "MSSVM" else args.smooth_iterations
        solver = LBFGS(schedule=(1.0, 0.1), max_iter=limit, tolerance=1e-5)
        with Clock() as clock:
            model = kind(**settings, solver=solver, classes=tags(y)).fit(*data)
        found = f1(model.predict(X[N_TRAIN:]), y[N_TRAIN:])
        cell = {"f1": found, "seconds": clock.wall, "cpu": clock.cpu, "iterations": model.n_iter_}
        yield f"{percent} {method}", {**cell, "objective": model.objective_, "status": model.status_}


def tags(y: list[Any]) -> list[str]:
    """All tags, for masks that hide every token of one."""
    return sorted({tag for item in y for tag in item})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--iterations", type=int, default=1000, help="at most, with all tags known")
    parser.add_argument("--smooth-iterations", type=int, default=100, help="at most, of likelihoods with missing tags")
    parser.add_argument("--margin-iterations", type=int, default=30, help="at most, at each temperature of MSSVM")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--support", nargs="*", default=("seen",), choices=("seen", "all"))
    parser.add_argument("--levels", type=int, nargs="*", default=(30, 50, 70))
    parser.add_argument("--methods", nargs="*", default=("HCRF", "CRF-runs", "MSSVM"))
    parser.add_argument(
        "--peer-python", help="an interpreter with python-crfsuite; without it the comparison is left out"
    )
    parser.add_argument("--resume", action="store_true", help="keep the cells that are there")
    args = parser.parse_args()
    read = sentences()
    X = [[features(s, t) for t in range(len(s))] for s in read]
    y = [[token[2] for token in s] for s in read]
    console = Console()
    result: dict[str, Any] = read_result("conll") if args.resume else {}
    result.setdefault("missing", {})
    result["C"], result["jobs"] = args.C, args.jobs
    if args.peer_python and "full" not in result:
        for name, cell in compared(X, y, args):
            result[name] = cell
            console.print(cell)
            write("conll", result)
    for name, cell in missing(X, y, result["missing"], args):
        result["missing"][name] = cell
        console.print(name, cell)
        write("conll", result)


if __name__ == "__main__":
    main()

"""Chunking of CoNLL-2000 with crfsuite-style window features: our CRF against python-crfsuite, and missing tags.

The first 7,000 sentences of the file train, the other 1,936 test. Span-F1 counts a chunk right if its type and both
ends are right.

Run: python benchmarks/bench_conll.py [--peer-python PYTHON_WITH_CRFSUITE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from common_data import Clock, data_dir, peer, write
from rich.console import Console

import mssvm as ms

N_TRAIN = 7000


def sentences() -> list[list[list[str]]]:
    text = (data_dir() / "conll2000" / "train.txt").read_text()
    return [[line.split() for line in block.splitlines()] for block in text.strip().split("\n\n") if block.strip()]


def features(sentence: list[list[str]], t: int) -> list[str]:
    """Words and part-of-speech tags in a window of two, with pairs and triples, as in crfsuite's chunking example."""
    out = ["bias"]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--levels", type=int, nargs="*", default=(30, 50, 70))
    parser.add_argument("--peer-python", help="an interpreter with python-crfsuite")
    args = parser.parse_args()
    read = sentences()
    X = [[features(s, t) for t in range(len(s))] for s in read]
    y = [[token[2] for token in s] for s in read]
    train, test = slice(0, N_TRAIN), slice(N_TRAIN, None)
    console = Console()
    result: dict[str, Any] = {"C": args.C, "iterations": args.iterations, "jobs": args.jobs}
    if args.peer_python:
        work = {
            "train": [list(pair) for pair in zip(X[train], y[train], strict=True)],
            "test": X[test],
            "c2": 1 / (2 * args.C),
            "iterations": args.iterations,
            "all_features": False,
        }
        theirs = peer(args.peer_python, "crfsuite.py", work)
        result["crfsuite"] = {"f1": f1(theirs["labels"], y[test]), "seconds": theirs["seconds"], "cpu": theirs["cpu"]}
        console.print(result["crfsuite"])
    settings = {"C": args.C, "max_iter": args.iterations, "tol": 1e-5, "n_jobs": args.jobs, "random_state": 0}
    ms.CRF(ms.Chain(), **{**settings, "max_iter": 1}).fit(X[:50], y[:50])  # compile before the clock starts
    with Clock() as clock:
        model = ms.CRF(ms.Chain(), **settings).fit(X[train], y[train])
    result["CRF"] = {"f1": f1(model.predict(X[test]), y[test]), "seconds": clock.wall, "cpu": clock.cpu}
    result["CRF"]["iterations"] = model.n_iter_
    console.print(result["CRF"], model.status_)
    write("conll", result)
    rng = np.random.default_rng(0)
    result["missing"] = []
    for percent in args.levels:
        thin = [[ms.MISSING if rng.random() * 100 < percent else tag for tag in item] for item in y[train]]
        row: dict[str, Any] = {"missing": percent}
        for kind in (ms.HCRF, ms.MSSVM):
            with Clock() as clock:
                model = kind(ms.Chain(), **settings).fit(X[train], thin)
            row[kind.__name__] = {"f1": f1(model.predict(X[test]), y[test]), "seconds": clock.wall}
        result["missing"].append(row)
        console.print(row)
        write("conll", result)


if __name__ == "__main__":
    main()

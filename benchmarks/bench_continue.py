"""Training that goes on after 1% more data: ``warm_start=True`` on all of them, and ``partial_fit`` on the new ones.

Work is counted in passes: inference calls of the first part of the objective by instances of all data. A full fit on
all data from the start is compared with a first fit on the part before and a second one on all data, and with
``partial_fit`` on the new instances alone. All run in turn, ``--repeats`` times, in one process; the least of the
processor seconds counts. "to_objective" are the passes until the objective of all data is within .1% of what the full
fit ended with. In rows called "new label" the first part lacks a label, which is missing there, and the second has it.

Run: python benchmarks/bench_continue.py      (minutes; results are kept in results/continue.json)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench_conll import features, sentences
from bench_letters import words
from common_data import Clock, write
from rich.console import Console

import mssvm as ms

CLOSE = 1e-3  # of the objective: as low as the full fit
SHARE = 0.01  # of new data


@dataclass(frozen=True)
class Row:
    """A model on data of which the last ``SHARE`` come later; ``late`` is a label that the first part lacks."""

    name: str
    model: Callable[..., Any]
    X: Sequence[Any]
    y: Sequence[Any]
    test: tuple[Sequence[Any], Sequence[Any]]
    late: Any = None

    def first(self) -> tuple[list[Any], list[Any]]:
        n = round(len(self.X) / (1 + SHARE))
        y = [list(labels) for labels in self.y[:n]]
        if self.late is not None:
            y = [[ms.MISSING if label == self.late else label for label in labels] for labels in y]
        return list(self.X[:n]), y


def passes(model: Any, n: int) -> np.ndarray:
    """Passes over all data up to every row of the history."""
    return np.asarray(model.history_["plus_calls"] / n)


def measured(row: Row, repeats: int) -> dict[str, Any]:
    X, y = row.first()
    n = len(row.X)
    seconds: dict[str, list[float]] = {"full": [], "warm": [], "partial": []}
    for _ in range(repeats):
        with Clock() as clock:
            full = row.model().fit(row.X, row.y)
        seconds["full"].append(clock.cpu)
        warm = row.model(warm_start=True).fit(X, y)
        with Clock() as clock:
            warm.fit(row.X, row.y)
        seconds["warm"].append(clock.cpu)
        partial = row.model().fit(X, y)
        before = partial.score(*row.test)
        with Clock() as clock:
            partial.partial_fit(row.X[len(X) :], row.y[len(X) :])
        seconds["partial"].append(clock.cpu)
    least = {name: min(values) for name, values in seconds.items()}
    at = passes(warm, n)
    close = warm.history_["objective"] <= (1 + CLOSE) * full.objective_
    return {
        "instances": n,
        "weights": len(full.coef_),
        "full": {"passes": passes(full, n)[-1], "objective": full.objective_, "score": full.score(*row.test)},
        "warm": {
            "passes": at[-1],
            "to_objective": float(at[close][0]) if close.any() else None,
            "objective": warm.objective_,
            "score": warm.score(*row.test),
            "classes": len(warm.classes_),
        },
        "partial": {"passes": passes(partial, n)[-1], "score": partial.score(*row.test), "score_before": before},
        "cpu": least,
        "ratios": {
            "passes": at[-1] / passes(full, n)[-1],
            "to_objective": float(at[close][0] / passes(full, n)[-1]) if close.any() else None,
            "objective": warm.objective_ / full.objective_,
            "cpu": least["warm"] / least["full"],
            "cpu_partial": least["partial"] / least["full"],
        },
    }


def rows(n: int) -> list[Row]:
    read = sentences()
    read = [sentence for sentence in read if sentence][: n + 500]
    X = [[features(sentence, t) for t in range(len(sentence))] for sentence in read]
    y = [[row[-1] for row in sentence] for sentence in read]
    chunks = (X[:n], y[:n], (X[n:], y[n:]))
    letters_X, letters_y, _ = words()
    letters = (letters_X[:n], letters_y[:n], (letters_X[n : n + 500], letters_y[n : n + 500]))

    def crf(**settings: Any) -> Any:
        return ms.CRF(ms.Chain(), **settings)

    def margin(**settings: Any) -> Any:
        return ms.SSVM(ms.Chain(), C=0.1, **settings)

    def hidden(**settings: Any) -> Any:
        return ms.MSSVM(ms.Chain(hidden=2), C=0.1, random_state=0, **settings)

    return [
        Row("CRF, CoNLL-2000", crf, *chunks),
        Row("CRF, CoNLL-2000, new label", crf, *chunks, late="B-PP"),
        Row("CRF, letters", crf, *letters),
        Row("SSVM, letters", margin, *letters),
        Row("MSSVM with hidden states, letters", hidden, *letters),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=2020)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rows", nargs="*", help="parts of names of rows")
    args = parser.parse_args()
    console = Console()
    result: dict[str, Any] = {}
    for row in rows(args.instances):
        if args.rows and not any(part in row.name for part in args.rows):
            continue
        found = measured(row, args.repeats)
        result[row.name] = found
        console.print(row.name, found)
    if not args.rows:
        write("continue", {"instances": args.instances, "repeats": args.repeats, "rows": result})


if __name__ == "__main__":
    main()

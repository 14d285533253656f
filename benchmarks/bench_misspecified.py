"""What a structure that does not fit costs: numbers of hidden states, untied weights, few or many instances.

``misspecified.toml`` is the protocol, with its predictions. Letters with half of the labels missing, and NATOPS with
one label a sequence; accuracy in per cent, paired by trial.

    python benchmarks/bench_misspecified.py [--jobs 2] [--time-limit 600]       run what is missing
    python benchmarks/bench_misspecified.py --table                             the kept figures, in Markdown
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores

import argparse
import json
import time
import tomllib
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bench_letters import masked, right, take, words
from bench_timeseries import left_to_right, read, standardised

import mssvm as ms
from mssvm.experiments.statistics import Estimate
from mssvm.optim import LBFGS

HERE = Path(__file__).resolve().parent
PROTOCOL = tomllib.loads((HERE / "misspecified.toml").read_text("utf-8"))
KEPT = HERE / "results" / "misspecified.json"
Cell = tuple[str, str, int, int]
"""Data set, structure (a number of states for NATOPS), number of training instances, trial."""


@lru_cache(1)
def letters() -> Any:
    return words()


@lru_cache(1)
def gestures() -> Any:
    return read("NATOPS")


def by_place(x: np.ndarray) -> np.ndarray:
    """The features of the first letter in columns of their own."""
    out = np.zeros((len(x), 2 * x.shape[1]))
    out[0, : x.shape[1]] = x[0]
    out[1:, x.shape[1] :] = x[1:]
    return out


def fit(name: str, member: str, structure: Any, X: list[Any], y: Any, **settings: Any) -> Any:
    """A member at the protocol's C and iterations."""
    own = PROTOCOL[name]
    solver = LBFGS(schedule=(1.0, 0.1), max_iter=own["iterations"][member], tolerance=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterations are part of the protocol
        model = getattr(ms, member)(structure, C=own["C"][member], solver=solver, random_state=0, n_jobs=1, **settings)
        return model.fit(X, y)


def letters_trial(structure: str, n: int, trial: int) -> dict[str, float]:
    X, y, folds = letters()
    own = PROTOCOL["letters"]
    if structure == "untied":
        X = [by_place(x) for x in X]
    chain = ms.Chain(hidden=2, direct=True) if structure == "2 hidden" else ms.Chain()
    rng = np.random.default_rng([PROTOCOL["seed"], trial])
    train = rng.permutation(np.flatnonzero(folds < 4))[:n]
    test = np.flatnonzero(folds == 4)
    labels = take(masked(y, own["missing"], trial), train)
    n_letters = sum(len(y[i]) for i in test)
    settings = {"classes": range(26), "missing_label": -1}
    models = {m: fit("letters", m, chain, take(X, train), labels, **settings) for m in own["C"]}
    return {m: 100 * right(model, take(X, test), take(y, test)).sum() / n_letters for m, model in models.items()}


def natops_trial(states: int, n: int, trial: int) -> dict[str, float]:
    X, y = gestures()
    own = PROTOCOL["natops"]
    order = np.random.default_rng([PROTOCOL["seed"], trial]).permutation(len(y))
    test = order[: own["n_test"]]
    train = order[own["n_test"] :][:n]
    scaled = standardised(X, train)
    n_classes = int(y.max()) + 1
    structure = ms.SequenceLabel(hidden=states, fixed={"transition": left_to_right(n_classes, states)})
    models = {m: fit("natops", m, structure, take(scaled, train), y[train], classes=range(n_classes)) for m in own["C"]}
    return {m: 100 * float(model.score(take(scaled, test), y[test])) for m, model in models.items()}


def run(cell: Cell) -> dict[str, Any]:
    name, structure = cell[:2]
    n, trial = cell[2:]
    began = time.process_time()
    if name == "letters":
        found = letters_trial(structure, n, trial)
    else:
        found = natops_trial(int(structure), n, trial)
    accuracy = {m: round(value, 3) for m, value in found.items()}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    seconds = round(time.process_time() - began, 2)
    return {"cell": list(cell), "accuracy": accuracy, "when": when, "seconds": seconds, "version": ms.__version__}


def cells() -> Iterator[Cell]:
    """Trial by trial, so that a run cut short has about as many of every cell."""
    for name, axis in (("natops", "states"), ("letters", "structures")):
        own = PROTOCOL[name]
        for trial, n, structure in product(range(own["trials"]), own["n"], own[axis]):
            yield name, str(structure), n, trial


def write(trials: list[dict[str, Any]]) -> None:
    ordered = sorted(trials, key=lambda t: (t["cell"][0], t["cell"][3], t["cell"][2], t["cell"][1]))
    lines = ",\n".join(json.dumps(t) for t in ordered)
    KEPT.write_text(f'{{"protocol": {json.dumps(PROTOCOL)}, "trials": [\n{lines}\n]}}\n')


def measure(jobs: int, time_limit: float) -> None:
    kept: list[dict[str, Any]] = json.loads(KEPT.read_text())["trials"] if KEPT.is_file() else []
    done = {tuple(t["cell"]) for t in kept}
    began = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, cell) for cell in cells() if cell not in done]
        for future in as_completed(futures):
            if future.cancelled():
                continue
            kept.append(future.result())
            write(kept)
            if time.monotonic() - began > time_limit:
                for waiting in futures:
                    waiting.cancel()
    print(f"{len(kept)} of {len(list(cells()))} trials in {KEPT.name}")


def table() -> None:
    """Accuracy of every member by structure and n, and what a structure costs against the fitting one."""
    kept = json.loads(KEPT.read_text())["trials"]
    found = {tuple(t["cell"]): t["accuracy"] for t in kept}
    print("| data | structure | n | trials | HCRF | MSSVM | LSSVM | MSSVM - HCRF | change of it |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, axis, fitting in (("letters", "structures", "tied"), ("natops", "states", "3")):
        own = PROTOCOL[name]
        for structure, n in product(map(str, own[axis]), own["n"]):
            trials = [
                t for t in range(own["trials"]) if {(name, structure, n, t), (name, fitting, n, t)} <= found.keys()
            ]
            if not trials:
                continue
            here = [found[name, structure, n, t] for t in trials]
            there = [found[name, fitting, n, t] for t in trials]
            shown = []
            for m in own["C"]:
                text = Estimate.of([a[m] for a in here]).show(1)
                cost = Estimate.paired([a[m] for a in here], [a[m] for a in there]).interval(1)
                shown.append(text if structure == fitting else f"{text} ({cost})")
            lead = [a["MSSVM"] - a["HCRF"] for a in here]
            before = [a["MSSVM"] - a["HCRF"] for a in there]
            change = "" if structure == fitting else Estimate.paired(lead, before).interval(1)
            row = [name, structure, str(n), str(len(trials)), *shown, Estimate.of(lead).interval(1), change]
            print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which no trial begins")
    parser.add_argument("--table", action="store_true", help="print the kept figures")
    args = parser.parse_args()
    if args.table:
        table()
    else:
        measure(args.jobs, args.time_limit)


if __name__ == "__main__":
    main()

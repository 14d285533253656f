"""Where margins fail: accuracy of the members over noise, labels, missing labels and hidden states.

``phase.toml`` is the protocol, with the predictions, and was committed before the first trial. Every trial of a cell
draws chains, chooses C by cross-validation for each member and decoder, and keeps the accuracies on complete chains
beside those of the model that made the data.

    python benchmarks/bench_phase.py --jobs 16 --time-limit 500 --output benchmarks/results/phase.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores, so that none of them needs threads

import argparse
import json
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

import mssvm as ms

HERE = Path(__file__).resolve().parent
PROTOCOL = tomllib.loads((HERE / "phase.toml").read_text("utf-8"))
KEPT = HERE / "results" / "phase.json"
DECODERS = ("map", "marginal")
SAVE_EVERY = 30.0  # seconds
Floats = np.ndarray


@dataclass(frozen=True, order=True)
class Cell:
    """One place of the diagram: K labels, noise, share of missing labels, states of the hidden topics (0: none)."""

    labels: int
    noise: float
    missing: float
    hidden: int


def grids() -> list[list[Cell]]:
    """Cells of each grid of the protocol."""
    common = (PROTOCOL["labels"], PROTOCOL["noises"])
    return [[Cell(*place) for place in product(*common, g["missing"], g["hidden"])] for g in PROTOCOL["grids"]]


def pair_scores(cell: Cell) -> tuple[Floats, Floats]:
    """Log weights of neighbouring labels (K, K), and of a hidden topic with one of its labels (S, K)."""
    stay = PROTOCOL["stay"]
    direct = np.log(stay * np.eye(cell.labels) + (1 - stay) / cell.labels)
    topics = PROTOCOL["topic"] * (np.arange(cell.labels) % 2 == np.arange(cell.hidden)[:, None])
    return direct, topics


def chains(rng: np.random.Generator, n: int, cell: Cell) -> tuple[list[Floats], list[Floats]]:
    """Inputs (sites, K + S) and labels (sites,) of ``n`` chains, drawn label by label given messages from the end."""
    sites = PROTOCOL["sites"]
    direct, topics = pair_scores(cell)
    triples = topics[:, :, None] + topics[:, None]
    pairs = direct + (logsumexp(triples, axis=0) if cell.hidden else 0.0)
    backward = [np.zeros(cell.labels)]
    for _ in range(sites - 1):
        backward.append(logsumexp(pairs + backward[-1], axis=1))
    X = []
    y = []
    for _ in range(n):
        label = [_draw(rng, backward[-1])]
        while len(label) < sites:
            label.append(_draw(rng, pairs[label[-1]] + backward[sites - 1 - len(label)]))
        shown = np.eye(cell.labels)[label]
        if cell.hidden:
            topic = [_draw(rng, triples[:, one, two]) for one, two in zip(label, label[1:], strict=False)]
            shown = np.hstack((shown, np.vstack((np.eye(cell.hidden)[topic], np.zeros(cell.hidden)))))
        X.append(shown + cell.noise * rng.normal(size=shown.shape))
        y.append(np.array(label))
    return X, y


def _draw(rng: np.random.Generator, log_weights: Floats) -> int:
    """A state with probability proportional to exp(log_weights)."""
    total = np.cumsum(np.exp(log_weights - log_weights.max()))
    return int(np.searchsorted(total, rng.random() * total[-1], side="right"))


def posterior(x: Floats, cell: Cell) -> Floats:
    """p(y_t | x) under the model that made the data, (sites, K), by forward and backward messages."""
    direct, topics = pair_scores(cell)
    scores = x / cell.noise**2
    labels = scores[:, : cell.labels]
    pairs = np.broadcast_to(direct, (len(x) - 1, *direct.shape))
    if cell.hidden:
        triples = topics[:, :, None] + topics[:, None] + scores[:-1, cell.labels :, None, None]
        pairs = direct + logsumexp(triples, axis=1)
    forward = [labels[0]]
    for pair, score in zip(pairs, labels[1:], strict=True):
        forward.append(score + logsumexp(forward[-1][:, None] + pair, axis=0))
    backward = [np.zeros(cell.labels)]
    for pair, score in zip(pairs[::-1], labels[:0:-1], strict=True):
        backward.append(logsumexp(pair + score + backward[-1], axis=1))
    joint = np.array(forward) + np.array(backward[::-1])
    found: Floats = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    return found


def bayes(X: list[Floats], y: list[Floats], cell: Cell) -> dict[str, float]:
    """Accuracy of the most probable labels, their mean probability, the share of them above one half, and the accuracy
    of the most frequent label."""
    beliefs = np.concatenate([posterior(x, cell) for x in X])
    top = beliefs.max(axis=1)
    truth = np.concatenate(y)
    right = float(np.mean(beliefs.argmax(axis=1) == truth))
    constant = float(np.bincount(truth).max() / len(truth))
    shares = {"top": float(top.mean()), "dominated": float(np.mean(top > 0.5))}
    return {"accuracy": 100 * right, "constant": 100 * constant, **shares}


def fit(member: str, cell: Cell, C: float, X: list[Floats], y: list[Floats]) -> Any:
    structure = ms.Chain(hidden=cell.hidden, direct=cell.hidden > 0)
    common = {"missing_label": -1, "classes": range(cell.labels), "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights at zero, which the trial counts
        return ms.UnifiedSSVM(structure, C=C, **PROTOCOL["members"][member], **common).fit(X, y)


def accuracies(model: Any, X: list[Floats], y: list[Floats]) -> Floats:
    """Right among labelled sites, in per cent, by each decoder."""
    truth = np.concatenate(y)
    known = truth >= 0
    found = [np.concatenate(model.predict(X, decode=how)) for how in DECODERS]
    return np.array([100 * np.mean(labels[known] == truth[known]) for labels in found])


def tuned(member: str, cell: Cell, train: tuple[list[Floats], list[Floats]]) -> list[float]:
    """The C of the best held-out accuracy, for each decoder."""
    X, y = train
    Cs = PROTOCOL["Cs"]
    folds = np.arange(len(X)) % PROTOCOL["folds"]
    scores = np.zeros((len(Cs), len(DECODERS)))
    for (k, C), fold in product(enumerate(Cs), range(PROTOCOL["folds"])):
        inside = [i for i in range(len(X)) if folds[i] != fold]
        outside = [i for i in range(len(X)) if folds[i] == fold]
        model = fit(member, cell, C, [X[i] for i in inside], [y[i] for i in inside])
        scores[k] += accuracies(model, [X[i] for i in outside], [y[i] for i in outside])
    return [Cs[k] for k in scores.argmax(axis=0)]


def run(cell: Cell, trial: int) -> dict[str, Any]:
    """One trial: for every member and decoder the chosen C, the accuracy, and whether the weights ended at zero."""
    started = time.process_time()
    shared = (PROTOCOL["seed"], trial, cell.labels, round(10 * cell.noise), cell.hidden)
    draw, mask = np.random.default_rng(shared).spawn(2)
    X, y = chains(draw, PROTOCOL["n_train"], cell)
    X_new, y_new = chains(draw, PROTOCOL["n_test"], cell)
    thin = [np.where(mask.random(len(labels)) < cell.missing, -1, labels) for labels in y]
    result: dict[str, Any] = {}
    for member in PROTOCOL["members"]:
        if member == "LSSVM" and cell.hidden == 0 and cell.missing == 0:
            result[member] = result["MSSVM"]  # nothing is hidden: one and the same objective
            continue
        Cs = tuned(member, cell, (X, thin))
        models = {C: fit(member, cell, C, X, thin) for C in set(Cs)}
        result[member] = {
            how: {"C": C, "accuracy": round(float(accuracies(models[C], X_new, y_new)[k]), 3), "zero": _zero(models[C])}
            for k, (how, C) in enumerate(zip(DECODERS, Cs, strict=True))
        }
    truth = {name: round(value, 4) for name, value in bayes(X_new, y_new, cell).items()}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    seconds = round(time.process_time() - started, 2)
    return {
        "cell": list(vars(cell).values()),
        "trial": trial,
        "when": when,
        "seconds": seconds,
        "bayes": truth,
    } | result


def _zero(model: Any) -> bool:
    return bool(model.training_["at_zero"])


def tasks(trials: int, done: set[tuple[Any, ...]]) -> Iterator[tuple[Cell, int]]:
    """Grid by grid and trial by trial, so that a run cut short has about as many of every cell of a grid."""
    for grid in grids():
        for trial, cell in product(range(trials), grid):
            if (*vars(cell).values(), trial) not in done:
                yield cell, trial


def write(path: Path, trials: list[dict[str, Any]]) -> None:
    ordered = sorted(trials, key=lambda t: (t["trial"], t["cell"]))
    lines = ",\n".join(json.dumps(t, separators=(",", ":")) for t in ordered)
    head = json.dumps({"protocol": PROTOCOL, "machine": {"cores": os.cpu_count(), "python": sys.version.split()[0]}})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-1]}, "trials": [\n{lines}\n]}}\n')


def measure(args: argparse.Namespace) -> None:
    """Run what is missing in ``args.output`` until the time limit; what has finished is always written."""
    kept: list[dict[str, Any]] = []
    if args.output.is_file():
        kept = json.loads(args.output.read_text())["trials"]
    waiting = tasks(args.trials, {(*t["cell"], t["trial"]) for t in kept})
    wanted = args.trials * sum(map(len, grids()))
    began = time.monotonic()
    saved = began
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[dict[str, Any]]] = set()
        while True:
            elapsed = time.monotonic() - began
            while len(running) < 2 * args.jobs and elapsed < args.time_limit:
                task = next(waiting, None)
                if task is None:
                    break
                running.add(pool.submit(run, *task))
            if elapsed >= args.time_limit:
                running = {future for future in running if not future.cancel()}
            if not running:
                break
            finished, running = wait(running, timeout=5.0, return_when=FIRST_COMPLETED)
            kept += [future.result() for future in finished]
            if time.monotonic() - saved > SAVE_EVERY:
                saved = time.monotonic()
                write(args.output, kept)
                print(f"{elapsed:.0f} s: {len(kept)} of {wanted} trials", flush=True)
    write(args.output, kept)
    print(f"{time.monotonic() - began:.0f} s: {len(kept)} of {wanted} trials in {args.output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which no trial begins")
    parser.add_argument("--trials", type=int, default=PROTOCOL["trials"], help="trials of each cell")
    parser.add_argument("--output", type=Path, default=KEPT)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()

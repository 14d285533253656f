"""Weakly labelled images of the paper's Figure 4 by the library's defaults, beside the kept trials of the figure.

    python benchmarks/bench_figure4.py [--trials 10] [--timed 2] [--processes 1]
                                                                     trains, writes benchmarks/results/figure4.json
    python benchmarks/bench_figure4.py --table                       prints the kept file as the table of docs/images.md

Figure 4 trains by belief propagation and Adam, as the paper does, with a rate chosen on validation images. Here the
same training and test images with the same hidden labels, drawn again from the seeds of the protocol, go through
`GraphModel()` with all defaults: the decomposition bound for training and prediction, L-BFGS, C = 1, no validation
images. Rows have the accuracies of the figure in per cent: on labelled test pixels given the same share of labels, and
of all pixels; by the members' decoder, and by marginals. Seconds are processor time of training; for the first trials
(`--timed`) also of the figure's own training at the one rate that it chose.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common_data import read_result, write
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning

from mssvm.experiments import figure4
from mssvm.experiments.members import MEMBERS, NAMES
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.segmentation import N_LABELS, N_WEIGHTS
from mssvm.experiments.statistics import Estimate
from mssvm.structures import GraphModel

console = Console(width=160)

Row = dict[str, Any]
Results = dict[tuple[str, float, int], dict[str, Any]]
KEPT = Path(__file__).resolve().parents[1] / "results" / "figure4.jsonl"
SCORES = ("accuracy", "marginals", "all", "all marginals")
# What decode="auto" decides by where inference is a bound: likelihoods and MSSVM by marginals.
DECODED = {"M": ("marginals", "all marginals"), "L": ("accuracy", "all"), "H": ("marginals", "all marginals")}


def kept_trials() -> Results:
    """Results of the figure by image, share of hidden labels and trial."""
    trials: Results = {}
    for line in KEPT.read_text().splitlines():
        trial = json.loads(line)
        params = trial["params"]
        trials[params["image"], params["share"], params["trial"]] = trial["result"]
    return trials


def trained(member: str, images: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the outcome is kept instead
        return MEMBERS[member](GraphModel(), classes=range(N_LABELS), random_state=0).fit(images.X, images.y)


def rows_of(protocol: Protocol, kept: Results, cell: tuple[str, float], trial: int, timed: bool) -> list[Row]:
    """All members on the images of one trial."""
    image, share = cell
    settings = protocol.settings(figure4.NAME)
    rng = protocol.generator(figure4.NAME, trial)
    train, _, test = figure4._images(settings, {"image": image, "share": share}, rng)
    w0 = protocol.initial_std * rng.standard_normal(N_WEIGHTS)
    rows = []
    for member in settings["members"]:
        before = kept[image, share, trial][member]
        begin = time.process_time()
        model = trained(member, train)
        seconds = time.process_time() - begin
        row: Row = {"image": image, "share": share, "trial": trial, "member": NAMES[member]}
        row["seconds"] = round(seconds, 2)
        row["outcome"] = model.training_["outcome"]
        row["default"] = rounded(figure4._scores(model, test, protocol.decode))
        row["figure"] = rounded(before)
        if timed:
            begin = time.process_time()
            figure4.fit(protocol, settings, member, train, before["rate"], w0)
            row["figure_seconds"] = round(time.process_time() - begin, 2)
        rows.append(row)
    return rows


def rounded(scores: dict[str, Any]) -> dict[str, float]:
    return {name: round(scores[name], 3) for name in SCORES}


def trial_rows(trial: int, timed: bool) -> list[Row]:
    """All members on all images and shares of one trial."""
    protocol = Protocol.load()
    settings = protocol.settings(figure4.NAME)
    kept = kept_trials()
    rows: list[Row] = []
    for cell in product(settings["images"], settings["shares"]):
        rows += rows_of(protocol, kept, cell, trial, timed)
    return rows


def measure(n_trials: int, n_timed: int, n_processes: int) -> None:
    trials = range(n_trials)
    rows: list[Row] = []
    with ProcessPoolExecutor(n_processes) as pool:
        for found in pool.map(trial_rows, trials, [trial < n_timed for trial in trials]):
            for row in found:
                console.print(row)
            rows += found
            write("figure4", {"rows": rows})


def table(rows: list[Row]) -> None:
    """Accuracy by the decoder that decode="auto" takes, and how much higher it is than the figure's, with intervals."""
    for query in range(2):
        for image, share in dict.fromkeys((row["image"], row["share"]) for row in rows):
            cells = [f"{image}, {100 * share:g}%"]
            for letter, name in NAMES.items():
                mine = [r for r in rows if (r["image"], r["share"], r["member"]) == (image, share, name)]
                if not mine:
                    continue
                score = DECODED[letter][query]
                found = [row["default"][score] for row in mine]
                before = [row["figure"][score] for row in mine]
                cells.append(f"{np.mean(found):.1f} ({Estimate.paired(found, before).interval(1)})")
            console.print("| " + " | ".join(cells) + " |")
        console.print()
    for name in NAMES.values():
        mine = [row for row in rows if row["member"] == name]
        timed = [row for row in mine if "figure_seconds" in row]
        if timed:
            ours, theirs = (np.mean([row[key] for row in timed]) for key in ("seconds", "figure_seconds"))
            console.print(f"{name}: {ours:.2f} s, the figure's training at one rate {theirs:.2f} s ({len(timed)} fits)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--timed", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1, help="trials at the same time")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        measure(options.trials, options.timed, options.processes)
    table(read_result("figure4")["rows"])


if __name__ == "__main__":
    main()

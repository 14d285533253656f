"""Which of the protocol's trials the kept files lack, what they would cost, and a way to run some of them anywhere.

    python tools/missing_trials.py                                        counts and processor time, by kind of trial
    python tools/missing_trials.py --run "table1 part=tuned" "start solver=SGD" --jobs 16 --time-limit 480 --out DIR
    python tools/missing_trials.py --merge DIR                            append the lines of DIR to results/

A kind is an experiment and values of some parameters ("start solver=SGD sigma_h=10.0"; "solver=-" is none). Kinds run
in the order given, trial by trial, and every line is on disk as soon as its trial is finished, so that a run that is
cut short loses no more than what was running. The estimate is the mean time of kept trials of the same kind, or else of
the experiment; older trials were slower.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context
from pathlib import Path
from time import monotonic
from typing import Any

from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.trials import Store, Trial, key, timed

RESULTS = Path(__file__).resolve().parents[1] / "results"
COUNTED = ("trial", "size", "sigma_h", "share", "scale")  # parameters that do not make a kind of their own
PATIENCE = 20.0  # seconds that running trials have after the time limit


def store(protocol: Protocol, name: str, folder: Path) -> Store:
    return Store(folder / f"{name}.jsonl", lambda params: protocol.fingerprint(name, params))


def missing(protocol: Protocol, name: str) -> Iterator[Params]:
    """Tasks of an experiment without a kept trial."""
    kept = store(protocol, name, RESULTS).read()
    for params in EXPERIMENTS[name].tasks(protocol):
        if key(params) not in kept:
            yield params


def kind_of(params: Params) -> str:
    named = {k: v for k, v in params.items() if k not in COUNTED}
    if "sigma_h" in params:
        named["sigma_h"] = "*"
    return " ".join(f"{k}={v}" for k, v in sorted(named.items()))


def estimate(protocol: Protocol) -> None:
    """A line for every kind of trial that is short."""
    total = 0.0
    for name in EXPERIMENTS:
        spent: dict[str, list[float]] = defaultdict(list)
        for trial in store(protocol, name, RESULTS).read().values():
            spent[kind_of(trial.params)].append(trial.seconds)
            spent[""].append(trial.seconds)
        short: dict[str, int] = defaultdict(int)
        for params in missing(protocol, name):
            short[kind_of(params)] += 1
        for kind, n in short.items():
            known = spent.get(kind) or spent[""] or [float("nan")]
            seconds = n * sum(known) / len(known)
            total += seconds
            print(f"{name} {kind}: {n} missing, {len(spent.get(kind, []))} kept, about {seconds:.0f} s")
    print(f"about {total / 3600:.1f} hours of processor time")


def wanted(protocol: Protocol, kinds: list[str]) -> Iterator[tuple[str, Params]]:
    """Missing tasks of the named kinds, trial by trial within a kind."""
    seen: set[str] = set()
    for kind in kinds:
        name, *conditions = _words(kind)
        values = dict(condition.split("=", 1) for condition in conditions)
        chosen = [p for p in missing(protocol, name) if all(_matches(p.get(k), v) for k, v in values.items())]
        if not chosen:
            print(f"nothing is missing of {kind!r}", file=sys.stderr)
        for params in sorted(chosen, key=lambda p: int(p["trial"])):
            if f"{name} {key(params)}" not in seen:
                seen.add(f"{name} {key(params)}")
                yield name, params


def _words(kind: str) -> list[str]:
    """Split at spaces before a name and an equals sign, so that values may have spaces."""
    out: list[str] = []
    for word in kind.split(" "):
        if "=" in word or not out:
            out.append(word)
        else:
            out[-1] += f" {word}"
    return out


def _matches(value: Any, text: str) -> bool:
    if text == "-":
        return value is None
    if text == "*":
        return value is not None
    return str(value) in text.split("|")


def run(name: str, params: Params) -> tuple[str, Trial]:
    return name, timed(EXPERIMENTS[name].run, Protocol.load(), params)


def run_wanted(protocol: Protocol, options: argparse.Namespace) -> None:
    tasks = wanted(protocol, options.run)
    options.out.mkdir(parents=True, exist_ok=True)
    began = monotonic()
    n_done = 0
    spent = 0.0
    pool = ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"))
    running: set[Future[tuple[str, Trial]]] = set()
    while True:
        over = monotonic() - began - options.time_limit
        while over < 0 and len(running) < options.jobs:
            task = next(tasks, None)
            if task is None:
                break
            running.add(pool.submit(run, *task))
        if not running or over > PATIENCE:
            break
        finished, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
        for future in finished:
            name, trial = future.result()
            store(protocol, name, options.out).add(trial)
            n_done += 1
            spent += trial.seconds
    left = sum(1 for _ in tasks) + len(running)
    print(f"{n_done} trials in {monotonic() - began:.0f} s ({spent:.0f} s of trials); {left} not run", flush=True)
    for process in active_children():  # trials that are still running would hold the command beyond its limit
        process.terminate()
    os._exit(0)


def merge(protocol: Protocol, folder: Path) -> None:
    """Append trials that ``results`` lacks; those of other settings are named and left out."""
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem not in EXPERIMENTS:
            continue
        lacking = {key(params) for params in missing(protocol, path.stem)}
        new = store(protocol, path.stem, folder).read()
        lines = path.read_text("utf-8").splitlines()
        chosen = [line for line in lines if key(json.loads(line)["params"]) in lacking & new.keys()]
        with (RESULTS / path.name).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in chosen)
        print(f"{path.stem}: {len(chosen)} of {len(lines)} lines appended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", metavar="KIND", help="kinds of trials to run")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which no trial begins")
    parser.add_argument("--out", type=Path, help="folder of the new lines")
    parser.add_argument("--merge", type=Path, metavar="DIR", help="append the lines of DIR to results/")
    options = parser.parse_args()
    protocol = Protocol.load()
    if options.merge is not None:
        merge(protocol, options.merge)
    elif options.run:
        if options.out is None:
            parser.error("--run needs --out")
        run_wanted(protocol, options)
    else:
        estimate(protocol)


if __name__ == "__main__":
    main()

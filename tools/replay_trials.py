"""Run 40 kept trials again and compare: the answers of an experiment must not change with the code under it.

    python tools/replay_trials.py [--jobs 2] [--only table2 ...] [--list]
    python tools/replay_trials.py --measure                 write results/rounding.json again

Ten trials each of table2, table3, figure5 and literal are chosen from ``results/*.jsonl``: always the same ones, spread
over readings, graphs, solvers and variants, cheap ones first. Uses ``EXPERIMENTS[name].run(protocol, params)`` and
``Protocol`` only. Numbers of calls and outcomes are printed but not judged. What is judged, and how:

- A solver that takes a fixed number of steps (SGD, the paper's CCCP, everything literal) gives the same answer however
  its sums are rounded: accuracies (also those of curves, and Bayes) must be equal to the kept ones, objectives and
  likelihoods within 1e-6 relative.
- A solver that runs to a tolerance (L-BFGS, CCCP with BCFW) stops at a place that depends on the last bits of its sums:
  line searches, stopping tests and argmaxes of hidden states tip over. How far its answer moves is measured, not
  assumed: twins of a trial are the same trial with inputs and initial weights multiplied by 1 + 1e-12 N(0, 1), about
  what another order of summation does. A number that differs among ``TWINS`` twins must come out within their range,
  widened by its own width on both sides (a further draw of the same law leaves the range of 12 two times in 13, the
  widened one hardly ever). The kept number must lie there, too.
- Trials that start at zero are judged by the first rule, whatever their solver: hidden states tie exactly there, which
  rounding leaves alone and twins would break.

``results/rounding.json`` has these ranges; a number that is not in it is judged by the first rule. The ranges are kept
rather than measured anew at every replay: code that has become erratic must not widen its own limits. They are to be
measured again only when a solver or the choice of trials changes, and then looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from mssvm.data.graphs import FactorInput
from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.members import Arena
from mssvm.experiments.protocol import Params, Protocol

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROUNDING = RESULTS / "rounding.json"
NAMES = ("table2", "table3", "figure5", "literal")
PER_EXPERIMENT = 10
TOLERANCE = 1e-6
EXACT = ("accuracy", "curve", "bayes")
CLOSE = ("objective", "likelihood")
NUDGE = 1e-12
TWINS = 12
FIRST_TWINS = 4  # that agree: rounding moves nothing in this trial

Record = dict[str, Any]
Names = tuple[str, ...]
Ranges = dict[str, tuple[float, float]]
"""Lowest and highest among the twins, by the way to a number, of those numbers that rounding moves."""


def choose(records: list[Record], n: int) -> list[Record]:
    """``n`` trials in which every value of every parameter appears about equally often; of equals, cheap ones."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        setting = {k: v for k, v in record["params"].items() if k != "trial"}
        groups.setdefault(json.dumps(setting, sort_keys=True), []).append(record)
    cost = {name: median(r["seconds"] for r in group) for name, group in groups.items()}
    used: Counter[tuple[str, str]] = Counter()
    chosen: list[Record] = []
    for _ in range(n):
        open_groups = [name for name, group in groups.items() if group]

        def order(name: str) -> tuple[int, float, str]:
            values = [(k, json.dumps(v)) for k, v in json.loads(name).items()]
            return sum(used[value] for value in (*values, ("group", name))), cost[name], name

        name = min(open_groups, key=order)
        numbers = {r["params"]["trial"] for r in chosen}
        best = min(groups[name], key=lambda r: (r["params"]["trial"] in numbers, r["seconds"], r["params"]["trial"]))
        groups[name].remove(best)
        chosen.append(best)
        used.update([*((k, json.dumps(v)) for k, v in json.loads(name).items()), ("group", name)])
    return chosen


def chosen_trials(experiment: str) -> list[Record]:
    """The kept trials of an experiment that are replayed."""
    lines = (RESULTS / f"{experiment}.jsonl").read_text("utf-8").splitlines()
    return choose([json.loads(line) for line in lines], PER_EXPERIMENT)


def leaves(tree: Any, path: Names = ()) -> Iterator[tuple[Names, Any]]:
    """Everything in a result that is not a container, with the way to it."""
    if isinstance(tree, dict):
        for k, v in tree.items():
            yield from leaves(v, (*path, str(k)))
    elif isinstance(tree, list):
        for k, v in enumerate(tree):
            yield from leaves(v, (*path, str(k)))
    else:
        yield path, tree


def same(path: Names, one: Any, other: Any) -> bool:
    """Whether two numbers are one but for rounding that nothing has amplified."""
    if one == other:
        return True
    return any(name in path for name in CLOSE) and abs(one - other) <= TOLERANCE * max(abs(one), abs(other))


def is_judged(path: Names) -> bool:
    return any(name in path for name in (*EXACT, *CLOSE))


def within(bounds: tuple[float, float], value: float) -> bool:
    """Whether a number lies in the range of the twins, widened by its width on both sides."""
    lowest, highest = bounds
    width = highest - lowest
    return lowest - width <= value <= highest + width


def differences(kept: Any, new: Any, ranges: Ranges) -> tuple[list[str], list[str]]:
    """What is wrong, and what differs without being judged."""
    wrong: list[str] = []
    noted: list[str] = []
    before, after = dict(leaves(kept)), dict(leaves(new))
    if before.keys() != after.keys():
        wrong.append(f"other fields: {sorted(before.keys() ^ after.keys())[:4]}")
    if lost := ranges.keys() - {".".join(path) for path in before}:
        wrong.append(f"{ROUNDING.name} has fields that the trial has not: {sorted(lost)[:4]}")
    for path in before.keys() & after.keys():
        name, old, found = ".".join(path), before[path], after[path]
        if same(path, old, found):
            continue
        change = f"{name}: {old} -> {found}"
        if not is_judged(path):
            noted.append(change)
        elif name not in ranges:
            wrong.append(change)
        elif not within(ranges[name], old) or not within(ranges[name], found):
            wrong.append(f"{change}, twins {ranges[name][0]} to {ranges[name][1]}")
    return sorted(wrong), sorted(noted)


@dataclass(frozen=True, eq=False)
class Nudged(Protocol):
    """The protocol with inputs and initial weights off by about what rounding does; zeros stay zeros."""

    seed_of_twin: int = 0

    def arena(self, name: str, params: Params, **changes: Any) -> Arena:
        arena = super().arena(name, params, **changes)
        rng = np.random.default_rng(self.seed_of_twin)

        def nudge(values: Any) -> Any:
            return values * (1.0 + NUDGE * rng.standard_normal(np.shape(values)))

        def nudge_input(x: FactorInput) -> FactorInput:
            return x.with_features({name: nudge(rows) for name, rows in x.features.items()})

        train = replace(arena.train, X=[nudge_input(x) for x in arena.train.X])
        return replace(arena, train=train, w0=nudge(arena.w0))


def run_trial(experiment: str, params: Params, protocol: Protocol) -> Any:
    """The result of a trial as it would be kept, on one BLAS thread as in ``mssvm reproduce``."""
    with threadpool_limits(1):
        return json.loads(json.dumps(EXPERIMENTS[experiment].run(protocol, params)))


def measure(experiment: str, record: Record) -> Ranges:
    """The ranges of the numbers of one trial that rounding moves, over its twins."""
    if record["params"].get("start") == "zero":
        return {}
    tree = Protocol.load().tree
    found: list[dict[Names, Any]] = []
    for twin in range(TWINS):
        result = run_trial(experiment, record["params"], Nudged(tree, seed_of_twin=twin))
        found.append({path: value for path, value in leaves(result) if is_judged(path)})
        if len(found) == FIRST_TWINS and all(same(p, v, found[0][p]) for one in found for p, v in one.items()):
            break
    ranges: Ranges = {}
    for path, first in found[0].items():
        values = [one[path] for one in found]
        if not all(same(path, value, first) for value in values):
            ranges[".".join(path)] = min(values), max(values)
    return ranges


def identify(experiment: str, record: Record) -> str:
    """The name of a trial in the file of ranges."""
    return f"{experiment} {json.dumps(record['params'], sort_keys=True)}"


def read_ranges() -> dict[str, Ranges]:
    """What was measured, by trial."""
    found: dict[str, Ranges] = json.loads(ROUNDING.read_text("utf-8")) if ROUNDING.exists() else {}
    return found


class Replayed(NamedTuple):
    """A trial again: what is wrong, what is not judged, its result, and the seconds that it took."""

    wrong: list[str]
    noted: list[str]
    result: Any
    seconds: float


def replay(experiment: str, record: Record, ranges: Ranges) -> Replayed:
    """One trial again."""
    protocol, began = Protocol.load(), monotonic()
    if protocol.fingerprint(experiment, record["params"]) != record["fingerprint"]:
        return Replayed(["the protocol's settings of this trial have changed"], [], {}, 0.0)
    new = run_trial(experiment, record["params"], protocol)
    return Replayed(*differences(record["result"], new, ranges), new, monotonic() - began)


def show(k: int, experiment: str, record: Record, answer: Replayed) -> None:
    """The trial's line, and what is not judged or wrong under it."""
    params = " ".join(f"{name}={value}" for name, value in record["params"].items())
    found = " ".join(f"{m}={v['accuracy']:.4g}" for m, v in answer.result.items() if isinstance(v, dict))
    verdict = "DIFFERS" if answer.wrong else "matches"
    print(f"{k + 1:2d} {verdict} {experiment:7} {params}: {found} ({answer.seconds:.1f} s)", flush=True)
    for line in answer.wrong[:8]:
        print(f"     wrong: {line}")
    for line in answer.noted:
        print(f"     not judged: {line}")


def main() -> int:
    """0 if every trial comes out as kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="some experiments")
    parser.add_argument("--list", action="store_true", help="print which trials would run, and stop")
    parser.add_argument("--measure", action="store_true", help="write the ranges of the twins instead of replaying")
    options = parser.parse_args()
    work = [(name, record) for name in options.only for record in chosen_trials(name)]
    if options.list:
        for name, record in work:
            print(name, record["params"], record["seconds"])
        return 0
    began = monotonic()
    names, records = [name for name, _ in work], [record for _, record in work]
    known = read_ranges()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        if options.measure:
            for name, record, ranges in zip(names, records, pool.map(measure, names, records), strict=True):
                known[identify(name, record)] = ranges
                print(f"{identify(name, record)}: {len(ranges)} numbers move", flush=True)
            ROUNDING.write_text(json.dumps({k: v for k, v in known.items() if v}, indent=1) + "\n", "utf-8")
            return 0
        n_right = 0
        limits = [known.get(identify(name, record), {}) for name, record in work]
        for k, answer in enumerate(pool.map(replay, names, records, limits)):
            show(k, names[k], records[k], answer)
            n_right += not answer[0]
    print(f"{n_right} of {len(work)} trials match ({monotonic() - began:.0f} s)")
    return 0 if n_right == len(work) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run 40 kept trials again and compare: the answers of an experiment must not change with the code under it.

    python tools/replay_trials.py [--jobs 2] [--only table2 ...] [--list]

Ten trials each of table2, table3, figure5 and literal are chosen from ``results/*.jsonl``: always the same ones, spread
over readings, graphs, solvers and variants, cheap ones first. Accuracies (also those of curves, and Bayes) must be
equal, objectives and likelihoods within 1e-6 relative; numbers of calls and outcomes are printed but not judged. Uses
``EXPERIMENTS[name].run(protocol, params)`` and ``Protocol`` only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from threadpoolctl import threadpool_limits

from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.protocol import Protocol

RESULTS = Path(__file__).resolve().parents[1] / "results"
NAMES = ("table2", "table3", "figure5", "literal")
PER_EXPERIMENT = 10
TOLERANCE = 1e-6
EXACT = ("accuracy", "curve", "bayes")
CLOSE = ("objective", "likelihood")

Record = dict[str, Any]


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


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Everything in a result that is not a container, with the way to it."""
    if isinstance(tree, dict):
        for k, v in tree.items():
            yield from leaves(v, (*path, str(k)))
    elif isinstance(tree, list):
        for k, v in enumerate(tree):
            yield from leaves(v, (*path, str(k)))
    else:
        yield path, tree


def differences(kept: Any, new: Any) -> tuple[list[str], list[str]]:
    """What is wrong, and what differs without being judged."""
    wrong: list[str] = []
    noted: list[str] = []
    before, after = dict(leaves(kept)), dict(leaves(new))
    if before.keys() != after.keys():
        wrong.append(f"other fields: {sorted(before.keys() ^ after.keys())[:4]}")
    for path in before.keys() & after.keys():
        a, b = before[path], after[path]
        close = any(name in path for name in CLOSE) and abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
        if a == b or close:
            continue
        judged = any(name in path for name in (*EXACT, *CLOSE))
        (wrong if judged else noted).append(f"{'.'.join(path)}: {a} -> {b}")
    return sorted(wrong), sorted(noted)


def replay(experiment: str, record: Record) -> tuple[list[str], list[str], Any, float]:
    """One trial again, on one BLAS thread as in ``mssvm reproduce``."""
    protocol, began = Protocol.load(), monotonic()
    if protocol.fingerprint(experiment, record["params"]) != record["fingerprint"]:
        return ["the protocol's settings of this trial have changed"], [], {}, 0.0
    with threadpool_limits(1):
        new = json.loads(json.dumps(EXPERIMENTS[experiment].run(protocol, record["params"])))
    return *differences(record["result"], new), new, monotonic() - began


def show(k: int, experiment: str, record: Record, answer: tuple[list[str], list[str], Any, float]) -> None:
    """The trial's line, and what is not judged or wrong under it."""
    wrong, noted, new, seconds = answer
    params = " ".join(f"{name}={value}" for name, value in record["params"].items())
    found = " ".join(f"{m}={v['accuracy']:.4g}" for m, v in new.items() if isinstance(v, dict))
    print(
        f"{k + 1:2d} {'DIFFERS' if wrong else 'equal  '} {experiment:7} {params}: {found} ({seconds:.1f} s)", flush=True
    )
    for line in wrong[:8]:
        print(f"     wrong: {line}")
    for line in noted:
        print(f"     not judged: {line}")


def main() -> int:
    """0 if every trial comes out as kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="some experiments")
    parser.add_argument("--list", action="store_true", help="print which trials would run, and stop")
    options = parser.parse_args()
    work = [
        (name, record)
        for name in options.only
        for record in choose([json.loads(line) for line in (RESULTS / f"{name}.jsonl").open()], PER_EXPERIMENT)
    ]
    if options.list:
        for name, record in work:
            print(name, record["params"], record["seconds"])
        return 0
    began = monotonic()
    names, records = [name for name, _ in work], [record for _, record in work]
    n_right = 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for k, answer in enumerate(pool.map(replay, names, records)):
            show(k, names[k], records[k], answer)
            n_right += not answer[0]
    print(f"{n_right} of {len(work)} trials match ({monotonic() - began:.0f} s)")
    return 0 if n_right == len(work) else 1


if __name__ == "__main__":
    sys.exit(main())

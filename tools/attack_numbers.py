"""Random forests and pairwise graphs through every strategy of exact inference, against long double.

    python tools/attack_numbers.py [--forests N] [--graphs N] [--strategies NAME ...] [--engine NAME] [--seed S]
                                   [--workers N] [--json FILE]

Draws are those of ``tests/conformance/draws.py``, the measure is ``tests/conformance/oracle.py``, which says what may
be asked of double precision. Where an answer is called exact, neither its value nor a marginal may be off by more than
1e-9 beyond that. What fails is shrunk and printed as the arguments of ``draws.rebuilt``.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from attack import options, report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from conformance.draws import BY_NAME, Strategy, as_code, draw_of, run, shrunk

PIECE = 250  # batches that a worker does at a time
SHOWN = 3  # failures of a piece that are shrunk
NAMED = ("auto", "native")  # engines that report strategies by the names of ``Strategy.runs``
Result = dict[str, Any]


def search(name: str, first: int, last: int, engine: str) -> Result:
    """The draws of a strategy from ``first`` to before ``last``: instances, worst error, what ran, what failed."""
    strategy = BY_NAME[name]
    ran = Counter[str]()
    failed = list[str]()
    worst = 0.0
    instances = 0
    wrong = 0
    sharp = 0
    for seed in range(first, last):
        draw = draw_of(strategy, seed)
        outcome = run(draw, strategy, engine)
        ran.update(outcome.ran)
        instances += len(outcome.ran)
        sharp += int((outcome.error.moved < 1e-9).sum())
        worst = max(worst, float(outcome.error.worst[outcome.exact].max(initial=0.0)))
        wrong += int(outcome.failed.sum())
        if outcome.failed.any():
            small = as_code(shrunk(draw, strategy, engine)) if len(failed) < SHOWN else "not shrunk"
            failed.append(f"{name}, draw {seed}: off by {outcome.error.worst.max():.1e}; {small}")
    return {"instances": instances, "worst": worst, "wrong": wrong, "sharp": sharp, "ran": ran, "failed": failed}


def joined(strategy: Strategy, parts: list[Result], engine: str) -> Result:
    """The results of a strategy's pieces as one; a strategy that never ran has failed."""
    ran = Counter[str]()
    failed = list[str]()
    for part in parts:
        ran.update(part["ran"])
        failed += part["failed"]
    if engine in NAMED and strategy.runs and not ran[strategy.runs]:
        failed.append(f"{strategy.name}: no instance ran as {strategy.runs!r}; its draws need another shape")
    out: Result = {key: sum(part[key] for part in parts) for key in ("instances", "wrong", "sharp")}
    return {**out, "worst": max(part["worst"] for part in parts), "ran": dict(ran), "failed": failed}


def batches_of(strategy: Strategy, chosen: list[Strategy], forests: int, graphs: int) -> int:
    """How many batches make up the strategy's share, of nine instances each on average; a few more to be sure."""
    total = sum(other.share for other in chosen if other.graphs == strategy.graphs)
    wanted = (graphs if strategy.graphs else forests) * strategy.share / total
    sizes = [len(draw_of(strategy, seed).case.batch) for seed in range(200)]
    return int(1.05 * wanted / np.mean(sizes)) + 1


def attack(names: list[str], forests: int, graphs: int, engine: str, seed: int, workers: int) -> Result:
    """Every chosen strategy on its share of the forests and graphs."""
    chosen = [BY_NAME[name] for name in names]
    results: dict[str, Result] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {}
        for strategy in chosen:
            last = batches_of(strategy, chosen, forests, graphs)
            starts = range(seed, seed + last, PIECE)
            ends = [min(start + PIECE, seed + last) for start in starts]
            futures[strategy.name] = pool.map(search, repeat(strategy.name), starts, ends, repeat(engine))
        for name, parts in futures.items():
            results[name] = joined(BY_NAME[name], list(parts), engine)
            line = results[name]
            sys.stdout.write(
                f"{name:26s} {line['instances']:7d} instances, worst {line['worst']:.1e}, {line['wrong']} wrong\n"
            )
            sys.stdout.flush()
    failed = [text for line in results.values() for text in line.pop("failed")]
    count = {False: 0, True: 0}
    for name, line in results.items():
        count[BY_NAME[name].graphs] += line["instances"]
    return {"engine": engine, "forests": count[False], "graphs": count[True], "strategies": results, "failed": failed}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--forests", type=int, default=100_000)
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--strategies", nargs="+", choices=BY_NAME, default=list(BY_NAME))
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    began = time.perf_counter()
    result = attack(args.strategies, args.forests, args.graphs, args.engine, args.seed, args.workers)
    return report({**result, "seconds": round(time.perf_counter() - began, 1)}, args.json)


if __name__ == "__main__":
    sys.exit(main())

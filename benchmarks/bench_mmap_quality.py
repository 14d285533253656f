"""How often propagation finds the marginal MAP: random trees and checkerboards with strong couplings, against exact.

    python benchmarks/bench_mmap_quality.py [--effort careful] [--trees 200] [--small 200] [--large 100] [--seed 0]

Unaries are N(0, 0.1^2), pairwise tables N(0, 2^2), eps_y = 0, eps_h = 1. Two ranges of seeds are reported.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate

SIGMA_UNARY, SIGMA_PAIR = 0.1, 2.0


def grid(n: int, card: int) -> Topology:
    index = np.arange(n * n).reshape(n, n)
    right = np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1)
    down = np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1)
    return Topology((card,) * (n * n), tuple(map(tuple, np.concatenate([right, down]).tolist())))


def tree(rng: np.random.Generator, card: int = 3) -> tuple[Topology, np.ndarray]:
    n = int(rng.integers(8, 31))
    graph = Topology((card,) * n, tuple((int(rng.integers(0, i)), i) for i in range(1, n)))
    return graph, rng.random(n) < 0.5


def problems(kind: str, count: int, seed: int) -> tuple[Batch, Potentials, Query]:
    rng = np.random.default_rng(seed)
    if kind == "trees":
        drawn = [tree(rng) for _ in range(count)]
        graphs, output = [g for g, _ in drawn], np.concatenate([o for _, o in drawn])
    else:
        n = int(kind)
        graphs = [grid(n, 4)] * count
        output = np.tile(np.add.outer(np.arange(n), np.arange(n)).ravel() % 2 == 0, count)
    batch = Batch.build(graphs)
    unary = rng.normal(0.0, SIGMA_UNARY, batch.n_states)
    tables = rng.normal(0.0, SIGMA_PAIR, batch.n_table_entries)
    return batch, Potentials(unary, tables), Query.of(batch, output)


def report(name: str, kind: str, count: int, seed: int, propagate: Propagate) -> None:
    batch, theta, query = problems(kind, count, seed)
    exact = Exact()(batch, theta, query, 0.0, 1.0).value
    start = time.perf_counter()
    belief = propagate(batch, theta, query, 0.0, 1.0)
    seconds = time.perf_counter() - start
    gap = exact - belief.value
    optimal = gap <= 1e-6 * (1.0 + np.abs(exact))
    claimed = belief.status.exact
    print(
        f"{name:28s} seed {seed:6d}  optimal {100.0 * optimal.mean():5.1f}% of {count}  mean gap {gap.mean():.4f}  "
        f"worst {gap.max():.3f}  proved {100.0 * claimed.mean():5.1f}%  "
        f"wrongly proved {int((claimed & ~optimal).sum())}  {1e3 * seconds / count:7.2f} ms each",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", default="careful")
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--small", type=int, default=200)
    parser.add_argument("--large", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-merging", action="store_true")
    args = parser.parse_args()
    propagate = Propagate(args.effort, merging=not args.no_merging)
    propagate(*problems("trees", 2, 0), 0.0, 1.0)
    for seed in (args.seed, args.seed + 100_000):
        report("trees, 8-30 nodes, 3 states", "trees", args.trees, seed, propagate)
        report("3x3 checkerboard, 4 states", "3", args.small, seed + 1, propagate)
        report("6x6 checkerboard, 4 states", "6", args.large, seed + 2, propagate)


if __name__ == "__main__":
    main()

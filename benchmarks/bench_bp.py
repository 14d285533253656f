"""Speed of message passing on one core and on two, in directed messages a second, with peers in the same run.

    python benchmarks/bench_bp.py [--repeats 7] [--pgmax PYTHON] [--threads 2]

Everything a call does is timed: checks, exponentiation of the tables, sweeps with their convergence checks. Rates on
one core use processor time, so that other processes count little; threads and peers use wall time. Repeats are
interleaved and the best of each is kept. PYTHON is an interpreter in which PGMax is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable

import numpy as np
from numba import njit

from mssvm.engines import messages
from mssvm.graph import Batch, Graph
from mssvm.inference.propagate import Propagate
from mssvm.inference.propagate_job import prepare
from mssvm.inference.propagate_plan import plan_of
from mssvm.inference.propagate_run import Control, Mode, ScaledRun, ScaledTables, Spans
from mssvm.potentials import Potentials, Query

PGMAX = """
import json, sys, time
import numpy as np
import jax
from pgmax import fgraph, fgroup, infer, vgroup
H, W, K, iters, batch = 20, 40, 5, 50, 10
idx = np.arange(H * W).reshape(H, W)
edges = np.concatenate([np.stack([idx[:, :-1].ravel(), idx[:, 1:].ravel()], 1),
                        np.stack([idx[:-1].ravel(), idx[1:].ravel()], 1)])
variables = vgroup.NDVarArray(num_states=K, shape=(H, W))
graph = fgraph.FactorGraph(variable_groups=[variables])
names = [[variables[int(i) // W, int(i) % W], variables[int(j) // W, int(j) % W]] for i, j in edges]
rng = np.random.default_rng(0)
tables = rng.normal(size=(len(edges), K, K))
graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=names, log_potential_matrix=tables))
bp = infer.build_inferer(graph.bp_state, backend="bp")
evidence = rng.normal(size=(batch, H, W, K))
def one(e):
    arrays = bp.init(evidence_updates={variables: e})
    return bp.run(arrays, num_iters=iters, damping=0.0, temperature=float(sys.argv[1])).ftov_msgs
run = jax.jit(jax.vmap(one))
run(evidence).block_until_ready()
best = 1e9
for _ in range(5):
    start = time.perf_counter(); run(evidence).block_until_ready(); best = min(best, time.perf_counter() - start)
print(json.dumps(2 * len(edges) * iters * batch / best))
"""


def grid_edges(height: int, width: int) -> np.ndarray:
    index = np.arange(height * width).reshape(height, width)
    right = np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1)
    down = np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1)
    return np.concatenate([right, down])


def grid(height: int, width: int, card: int, count: int = 1, shared: bool = False) -> tuple[Batch, Potentials]:
    edges = grid_edges(height, width)
    graph = Graph((card,) * (height * width), tuple(map(tuple, edges.tolist())))
    batch = Batch.build([graph] * count, [[0] * len(edges)] * count if shared else None)
    rng = np.random.default_rng(0)
    return batch, Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))


def sweeps(batch: Batch, theta: Potentials, query: Query, n: int, mode: Mode) -> None:
    """n sweeps of one call: the parts of ``Propagate`` from checks to messages, never stopping early."""
    theta.check(batch)
    query.check(batch)
    model = prepare(plan_of(batch), batch, theta, query, 0)
    spans = Spans.of(model)
    run = ScaledRun(model, ScaledTables.of(model, spans, 1.0))
    which = np.arange(len(batch))
    run.start(which, None)
    run.advance(which, mode, n, Control(tolerance=-1.0))


@njit(cache=True, fastmath=True)
def _read(a: np.ndarray) -> float:
    total = 0.0
    for k in range(len(a)):
        total += a[k]
    return total


def best(actions: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Least seconds of each action; repeats are interleaved."""
    for action in actions.values():
        action()
    out = dict.fromkeys(actions, np.inf)
    for _ in range(repeats):
        for name, action in actions.items():
            start = clock()
            action()
            out[name] = min(out[name], clock() - start)
    return out


def modes(batch: Batch) -> dict[str, Mode]:
    none, every = np.zeros(batch.n_vars, dtype=bool), np.ones(batch.n_vars, dtype=bool)
    half = np.random.default_rng(1).random(batch.n_vars) < 0.5
    return {"sum": Mode(none, 1.0, 1.0), "max": Mode(every, 0.0, 0.0), "mixed": Mode(half, 0.0, 1.0)}


def compare(height: int, width: int, card: int, n: int, shared: bool, repeats: int) -> dict[str, float]:
    """Millions of directed messages a second of the three products."""
    batch, theta = grid(height, width, card, shared=shared)
    query = Query.all_outputs(batch)
    total = 2 * batch.n_factors * n
    runs = {name: (lambda m=mode: sweeps(batch, theta, query, n, m)) for name, mode in modes(batch).items()}
    times = best(runs, repeats, time.process_time)
    rates = {name: total / t / 1e6 for name, t in times.items()}
    label = f"{height}x{width}, {card} states, {'one shared table' if shared else 'one table an edge'}, {n} sweeps"
    print(
        f"{label}: sum {rates['sum']:.1f}, max {rates['max']:.1f}, mixed {rates['mixed']:.1f} M messages/s; "
        f"time against sum: max {times['max'] / times['sum']:.2f}, mixed {times['mixed'] / times['sum']:.2f}",
        flush=True,
    )
    return rates


def bandwidth(repeats: int, n: int) -> None:
    """100x100 with 21 states against what reading every table once a message would allow."""
    values = np.random.default_rng(2).random(32_000_000)
    batch, theta = grid(100, 100, 21)
    tied, tied_theta = grid(100, 100, 21, shared=True)
    mode = modes(batch)["sum"]
    times = best(
        {
            "read": lambda: _read(values),
            "own": lambda: sweeps(batch, theta, Query.all_outputs(batch), n, mode),
            "shared": lambda: sweeps(tied, tied_theta, Query.all_outputs(tied), n, mode),
        },
        repeats,
        time.process_time,
    )
    speed = values.nbytes / times["read"]
    allowed = speed / (21 * 21 * 8)
    own, shared = (2 * batch.n_factors * n / times[k] for k in ("own", "shared"))
    print(
        f"100x100, 21 states, {n} sweeps: reading {speed / 1e9:.1f} GB/s allows {allowed / 1e6:.2f} M messages/s\n"
        f"    one table an edge {own / 1e6:.2f} M = {100 * own / allowed:.0f}% of that\n"
        f"    one shared table {shared / 1e6:.2f} M = {shared / own:.1f} times as many as with one table an edge, "
        f"{shared / (0.6 * allowed):.1f} times 60% of the allowed rate",
        flush=True,
    )


def threads(count: int, repeats: int) -> None:
    batch, theta = grid(20, 40, 5, count=32)
    query = Query.of(batch, np.zeros(batch.n_vars, dtype=bool))
    one, many = (Propagate("normal", threads=t) for t in (1, count))
    times = best(
        {"one": lambda: one(batch, theta, query, 1.0, 1.0), "many": lambda: many(batch, theta, query, 1.0, 1.0)},
        repeats,
        time.perf_counter,
    )
    same = np.array_equal(one(batch, theta, query, 1.0, 1.0).mu.unary, many(batch, theta, query, 1.0, 1.0).mu.unary)
    print(
        f"batch of 32 grids 20x40, 5 states: 1 thread {1e3 * times['one']:.0f} ms, "
        f"{count} threads {1e3 * times['many']:.0f} ms, "
        f"{times['one'] / times['many']:.2f} times as fast, same bits: {same}",
        flush=True,
    )


def peers(python: str, ours: dict[str, float]) -> None:
    for name, temperature in (("sum", "1.0"), ("max", "0.0")):
        answer = subprocess.run([python, "-c", PGMAX, temperature], capture_output=True, text=True, check=True)
        rate = json.loads(answer.stdout.strip().splitlines()[-1]) / 1e6
        print(
            f"PGMax, batch of 10, {name}-product: {rate:.2f} M messages/s; ours {ours[name] / rate:.1f} times as many",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pgmax", help="interpreter with PGMax")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; kernels from {messages.__name__}", flush=True)
    ours = compare(20, 40, 5, 50, False, args.repeats)
    compare(20, 40, 5, 50, True, args.repeats)
    compare(100, 100, 21, 10, False, max(3, args.repeats // 2))
    compare(100, 100, 21, 10, True, max(3, args.repeats // 2))
    bandwidth(args.repeats, 10)
    threads(args.threads, args.repeats)
    if args.pgmax:
        peers(args.pgmax, ours)


if __name__ == "__main__":
    main()

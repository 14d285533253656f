"""Speed of message passing on one core and on several, in directed messages a second, with a peer in the same run.

    python benchmarks/bench_bp.py [--repeats 7] [--pgmax PYTHON] [--threads 2] [--output FILE]
    python benchmarks/bench_bp.py --scaling 1 2 4 8 16 [--output FILE]

Everything a call does is timed: checks, exponentiation of the tables, sweeps with their convergence checks; only the
plan, which depends on graphs and query alone and is kept between calls, is made before. Rates on one core use
processor time, so that other processes count little; threads and the peer use wall time. Repeats are interleaved and
the best of each is kept. PYTHON is an interpreter in which PGMax is installed. FILE is benchmarks/results/bp.json or
bp_scaling.json unless given.

What reading allows: a directed message needs its table once, so at most bandwidth / (8 S^2) messages a second can be
had by code that reads a table for every message. The kernels read it once for both directions, which would allow twice
as many; shares of both are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from c_loops import repeated_sum

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.messages import MessagePlan, Schedule, Temperatures
from mssvm.inference.propagation.propagate import Propagate

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
    graph = Topology((card,) * (height * width), tuple(map(tuple, edges.tolist())))
    batch = Batch.build([graph] * count, [[0] * len(edges)] * count if shared else None)
    rng = np.random.default_rng(0)
    return batch, Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))


def sweeps(batch: Batch, plan: MessagePlan, theta: Potentials, query: Query, n: int, mode: Temperatures) -> None:
    """n sweeps of one call: the parts of ``Propagate`` from checks to messages, never stopping early."""
    theta.check(batch)
    query.check(batch)
    model = plan.load(theta, query, np.full(batch.n_states, 0.5))
    instances = np.arange(len(batch))
    run = model.run(instances, scaled_at=Temperatures(mode.outputs, mode.eps_y, 1.0))
    run.start(instances, None)
    run.advance(instances, mode, n, Schedule(tolerance=-1.0))


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


def modes(batch: Batch) -> dict[str, Temperatures]:
    """The three products; mixed-product with the same roles in every instance, of a batch also with different ones."""
    half = np.random.default_rng(1).random(batch.n_vars) < 0.5
    n = batch.n_vars
    alike = np.tile(half[: n // len(batch)], len(batch))
    out = {"sum": Temperatures.one(n, 1.0), "max": Temperatures.one(n, 0.0), "mixed": Temperatures(alike, 0.0, 1.0)}
    return out if len(batch) == 1 else out | {"mixed_roles_differ": Temperatures(half, 0.0, 1.0)}


def compare(height: int, width: int, card: int, n: int, shared: bool, repeats: int, count: int = 1) -> dict[str, float]:
    """Millions of directed messages a second of the three products, and times against sum-product."""
    batch, theta = grid(height, width, card, count, shared)
    query = Query.all_outputs(batch)
    plan = engine_of().messages(batch)
    total = 2 * batch.n_factors * n
    runs = {name: (lambda m=mode: sweeps(batch, plan, theta, query, n, m)) for name, mode in modes(batch).items()}
    times = best(runs, repeats, time.process_time)
    out = {name: total / t / 1e6 for name, t in times.items()}
    out |= {f"{name}_time": times[name] / times["sum"] for name in list(runs)[1:]}
    table = "one shared table" if shared else "one table an edge"
    label = f"{f'{count} grids ' if count > 1 else ''}{height}x{width}, {card} states, {table}, {n} sweeps"
    print(
        f"{label}: {', '.join(f'{name} {out[name]:.1f}' for name in runs)} M messages/s; time against sum: "
        + ", ".join(f"{name} {out[f'{name}_time']:.2f}" for name in list(runs)[1:]),
        flush=True,
    )
    return out


def bandwidth(repeats: int, n: int) -> dict[str, float]:
    """100x100 with 21 states against what reading every table once a message would allow."""
    values = np.random.default_rng(2).random(32_000_000)
    runs: dict[str, Callable[[], object]] = {"read": lambda: repeated_sum(values, 1)}
    for name in ("own", "shared"):
        batch, theta = grid(100, 100, 21, shared=name == "shared")
        job = (batch, engine_of().messages(batch), theta, Query.all_outputs(batch), n, modes(batch)["sum"])
        runs[name] = lambda job=job: sweeps(*job)  # type: ignore[misc]
    times = best(runs, repeats, time.process_time)
    speed = values.nbytes / times["read"]
    allowed = speed / (21 * 21 * 8)
    own, shared = (2 * batch.n_factors * n / times[k] for k in ("own", "shared"))
    print(
        f"100x100, 21 states, {n} sweeps: reading {speed / 1e9:.1f} GB/s allows {allowed / 1e6:.2f} M messages/s "
        f"of one table read each\n"
        f"    one table an edge {own / 1e6:.2f} M = {100 * own / allowed:.0f}% of that "
        f"({50 * own / allowed:.0f}% of what one read for both directions allows)\n"
        f"    one shared table {shared / 1e6:.2f} M = {shared / (0.6 * allowed):.2f} times 60% of the allowed rate, "
        f"{shared / own:.2f} times as many as with one table an edge",
        flush=True,
    )
    return {
        "sweeps": n,
        "read_GB_s": speed / 1e9,
        "allowed": allowed / 1e6,
        "own": own / 1e6,
        "shared": shared / 1e6,
        "own_share_of_allowed": own / allowed,
        "shared_against_60_percent": shared / (0.6 * allowed),
    }


def scaling(counts: list[int], repeats: int) -> dict[str, Any]:
    """Sum-product to convergence on a batch of 32 grids, with different numbers of threads."""
    batch, theta = grid(20, 40, 5, count=32)
    query = Query.of(batch, np.zeros(batch.n_vars, dtype=bool))
    bounds = {t: Propagate("normal", threads=t).plan(batch).bind(query, 1.0, 1.0) for t in counts}
    times = best({str(t): (lambda b=b: b(theta)) for t, b in bounds.items()}, repeats, time.perf_counter)
    first = bounds[counts[0]](theta).mu.unary
    same = all(np.array_equal(first, bound(theta).mu.unary) for bound in bounds.values())
    ratios = {t: times[str(counts[0])] / seconds for t, seconds in times.items()}
    print(
        f"batch of 32 grids 20x40, 5 states: {counts[0]} thread {1e3 * times[str(counts[0])]:.0f} ms; "
        + "".join(f"{t} threads {1e3 * times[t]:.0f} ms, {ratios[t]:.2f} times as fast; " for t in list(times)[1:])
        + f"same bits: {same}",
        flush=True,
    )
    return {"milliseconds": {t: 1e3 * s for t, s in times.items()}, "times_as_fast": ratios, "same_bits": same}


def peers(python: str, ours: dict[str, float]) -> dict[str, float]:
    out = {}
    for name, temperature in (("sum", "1.0"), ("max", "0.0")):
        answer = subprocess.run([python, "-c", PGMAX, temperature], capture_output=True, text=True, check=True)
        rate = json.loads(answer.stdout.strip().splitlines()[-1]) / 1e6
        out |= {name: rate, f"ours_{name}": ours[name] / rate}
        print(
            f"PGMax, batch of 10, {name}-product: {rate:.2f} M messages/s; ours {ours[name] / rate:.1f} times as many",
            flush=True,
        )
    return out


def everything(args: argparse.Namespace) -> dict[str, Any]:
    few = max(3, args.repeats // 2)
    out: dict[str, Any] = {"unit": "millions of directed messages a second on one core; times against sum-product"}
    out["20x40, 5 states"] = compare(20, 40, 5, 50, False, args.repeats)
    out["20x40, 5 states, shared table"] = compare(20, 40, 5, 50, True, args.repeats)
    for card in (2, 5, 10):
        name = f"32 grids 20x40, {card} states, shared table"
        out[name] = compare(20, 40, card, 50, True, args.repeats, count=32)
    out["100x100, 21 states"] = compare(100, 100, 21, 50, False, few)
    out["100x100, 21 states, shared table"] = compare(100, 100, 21, 50, True, few)
    out["bandwidth"] = [bandwidth(args.repeats, n) for n in (10, 50)]
    out["threads"] = scaling([1, args.threads], 2 * args.repeats)
    if args.pgmax:
        out["PGMax"] = peers(args.pgmax, out["20x40, 5 states"])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pgmax", help="interpreter with PGMax")
    parser.add_argument("--scaling", type=int, nargs="+", help="numbers of threads to compare, and nothing else")
    parser.add_argument("--output", type=Path, help="file for the results")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"load {load:.1f} on {os.cpu_count()} cores", flush=True)
    result = scaling(args.scaling, 2 * args.repeats) if args.scaling else everything(args)
    result["machine"] = {"cores": os.cpu_count(), "load": load, "python": platform.python_version()}
    name = "bp_scaling.json" if args.scaling else "bp.json"
    output = args.output or Path(__file__).resolve().parent / "results" / name
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

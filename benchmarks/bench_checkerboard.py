"""Exact marginal MAP on the 6x6 checkerboard with 4 states: elimination against a plain NumPy elimination.

Outputs and hidden variables alternate like the fields of a chess board; unary scores have standard deviation 0.1,
pairwise ones 2. The baseline sums out the hidden variables one by one and then maximises, table by table, in NumPy.
Prints the time an instance and their ratio, and whether all decodes agree.

    python benchmarks/bench_checkerboard.py [--size 6] [--states 4] [--seeds 10]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.exact import Exact

Factor = tuple[tuple[int, ...], Floats]


def board(n: int, k: int, seed: int) -> tuple[Ints, Floats, Floats, Bools]:
    """Edges, unary scores, pairwise tables, and which fields are outputs."""
    at = np.arange(n * n).reshape(n, n)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    rng = np.random.default_rng(1000 + seed)
    unary = rng.normal(0, 0.1, (n * n, k))
    tables = rng.normal(0, 2.0, (len(edges), k, k))
    return edges, unary, tables, np.add.outer(np.arange(n), np.arange(n)).ravel() % 2 == 0


def merged(factors: list[Factor], k: int) -> Factor:
    """The sum of tables on the union of their scopes."""
    union = tuple(sorted({v for scope, _ in factors for v in scope}))
    total = np.zeros((k,) * len(union))
    for scope, table in factors:
        order = np.argsort(scope)
        kept = [scope[i] for i in order]
        total = total + table.transpose(order).reshape([k if v in kept else 1 for v in union])
    return union, total


def numpy_marginal_map(edges: Ints, unary: Floats, tables: Floats, output: Bools) -> tuple[float, Ints]:
    """Eliminate hidden fields by log-sum-exp, then outputs by maximisation, smallest clique first."""
    k = unary.shape[1]
    factors: list[Factor] = [((i,), unary[i]) for i in range(len(unary))]
    factors += [((int(a), int(b)), tables[e]) for e, (a, b) in enumerate(edges)]
    trace: list[tuple[int, tuple[int, ...], Ints]] = []

    def eliminate(v: int, maximise: bool) -> None:
        nonlocal factors
        touching = [f for f in factors if v in f[0]]
        scope, table = merged(touching, k)
        axis = scope.index(v)
        rest = tuple(u for u in scope if u != v)
        top = table.max(axis)
        if maximise:
            trace.append((v, rest, table.argmax(axis)))
        else:
            top = top + np.log(np.exp(table - np.expand_dims(top, axis)).sum(axis))
        factors = [f for f in factors if v not in f[0]] + [(rest, top)]

    for v in np.flatnonzero(~output):
        eliminate(int(v), False)
    left = set(np.flatnonzero(output).tolist())
    while left:
        sizes = {v: len({u for scope, _ in factors if v in scope for u in scope}) for v in left}
        v = min(sorted(left), key=sizes.__getitem__)
        left.remove(v)
        eliminate(v, True)
    y = np.full(len(unary), -1)
    for v, rest, best in reversed(trace):
        y[v] = best[tuple(y[list(rest)])]
    return float(sum(table for _, table in factors)), y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("size", 6), ("states", 4), ("seeds", 10), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    boards = [board(args.size, args.states, seed) for seed in range(args.seeds)]
    edges = boards[0][0]
    output = boards[0][3]
    graph = Topology((args.states,) * args.size**2, tuple((int(a), int(b)) for a, b in edges))
    batch = Batch.build([graph] * args.seeds)
    theta = Potentials(*(np.concatenate([b[k].ravel() for b in boards]) for k in (1, 2)))
    query = Query.of(batch, np.tile(output, args.seeds))
    bound = Exact().plan(batch).bind(query, 0.0, 1.0)

    def seconds(call: object) -> float:
        times = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            call()  # type: ignore[operator]
            times.append(time.perf_counter() - start)
        return min(times) / args.seeds

    belief = bound(theta)
    reference = [numpy_marginal_map(*b) for b in boards]
    decoded = belief.decode(batch).reshape(args.seeds, -1)
    right = sum(
        abs(value - belief.value[s]) <= 1e-9 * abs(value) and bool(np.all(decoded[s][output] == y[output]))
        for s, (value, y) in enumerate(reference)
    )
    ours = seconds(lambda: bound(theta))
    theirs = seconds(lambda: [numpy_marginal_map(*b) for b in boards])
    print(f"value, decode, marginals: {1e3 * ours:.3f} ms an instance; NumPy value and decode: {1e3 * theirs:.3f} ms")
    print(json.dumps({"ratio": round(theirs / ours, 2), "right": right, "of": args.seeds}))


if __name__ == "__main__":
    main()

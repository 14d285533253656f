"""Chains on one core: log-partition and all marginals against scaled-form NumPy on batched BLAS, and linear scaling.

Run: python benchmarks/bench_chain.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.exact import Exact


def numpy_chains(unary: Floats, table: Floats) -> tuple[Floats, Floats, Floats]:
    """Forward-backward at eps = 1 in scaled form, all chains at once: log Z, node marginals, summed edge marginals."""
    n, length, k = unary.shape
    shift = unary.max(2, keepdims=True)
    psi = np.exp(unary - shift)
    top = table.max()
    e = np.exp(table - top)
    alpha, beta = np.empty_like(psi), np.empty_like(psi)
    scale = np.empty((n, length))
    message = np.ones((n, k))
    for t in range(length):
        a = np.multiply(message, psi[:, t], out=alpha[:, t])
        z = a.sum(1)
        scale[:, t] = z
        a /= z[:, None]
        if t + 1 < length:
            message = a @ e
    beta[:, -1] = 1.0
    right = np.empty((n, length - 1, k))
    for t in range(length - 2, -1, -1):
        np.multiply(psi[:, t + 1], beta[:, t + 1], out=right[:, t])
        right[:, t] /= scale[:, t + 1, None]
        np.matmul(right[:, t], e.T, out=beta[:, t])
    value = np.log(scale).sum(1) + shift.sum((1, 2)) + (length - 1) * top
    edges = np.matmul(alpha[:, :-1].transpose(0, 2, 1), right) * e
    return value, alpha * beta, edges


def best_of(f: Callable[[], object], repeats: int) -> float:
    f()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


class Chains:
    """n chains of one length with one tied table, ready to be timed."""

    def __init__(self, n: int, length: int, k: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        graph = Topology((k,) * length, tuple((t, t + 1) for t in range(length - 1)))
        self.shape = (n, length, k)
        self.batch = Batch.build([graph] * n, [[0] * (length - 1)] * n)
        self.theta = Potentials(rng.normal(size=self.batch.n_states), rng.normal(size=k * k))
        self.bound = Exact().plan(self.batch).bind(Query.all_outputs(self.batch), 1.0, 1.0)

    def ours(self) -> tuple[Floats, Marginals]:
        belief = self.bound(self.theta)
        return belief.value, belief.mu

    def theirs(self) -> tuple[Floats, Floats, Floats]:
        k = self.shape[2]
        return numpy_chains(self.theta.unary.reshape(self.shape), self.theta.tables.reshape(k, k))

    def agree(self) -> float:
        """Largest difference between the two implementations."""
        value, mu = self.ours()
        v, nodes, edges = self.theirs()
        return max(
            float(np.abs(value - v).max()),
            float(np.abs(mu.unary - nodes.ravel()).max()),
            float(np.abs(mu.tables - edges.ravel()).max()),
        )


def main() -> None:
    console = Console()
    versus = Table(
        "states", "this library ms", "NumPy ms", "NumPy / this", "largest difference", title="500 chains of length 40"
    )
    for k in (2, 4, 8, 10, 16, 32, 64):
        chains = Chains(500, 40, k)
        ours, theirs = best_of(chains.ours, 15), best_of(chains.theirs, 15)
        versus.add_row(
            str(k), f"{ours * 1e3:.2f}", f"{theirs * 1e3:.2f}", f"{theirs / ours:.1f}", f"{chains.agree():.1e}"
        )
    console.print(versus)
    linear = Table("chains", "length", "ms", "ns a node", title="Cost, 8 states, one tied table")
    for n, length in (
        (20, 40),
        (63, 40),
        (200, 40),
        (632, 40),
        (2000, 40),
        (200, 10),
        (200, 32),
        (200, 100),
        (200, 316),
        (200, 1000),
    ):
        seconds = best_of(Chains(n, length, 8).ours, 7)
        linear.add_row(str(n), str(length), f"{seconds * 1e3:.2f}", f"{seconds / (n * length) * 1e9:.1f}")
    console.print(linear)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()

"""Components and cycles of batches, against a search one variable at a time."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.core.components import acyclic, hidden_components
from mssvm.core.topology import Batch, Topology


def random_graph(rng: np.random.Generator) -> Topology:
    n = int(rng.integers(1, 9))
    sizes = rng.integers(2, min(3, n) + 1, rng.integers(0, n + 2)) if n > 1 else ()
    return Topology((2,) * n, tuple(tuple(rng.permutation(n)[:size].tolist()) for size in sizes))


def parts(topology: Topology, free: np.ndarray) -> tuple[list[int], bool]:
    """The component of every variable that is free (others: -1), and whether an edge closed a cycle."""
    number, cycle = list(range(topology.n_vars + topology.n_factors)), False
    for f, scope in enumerate(topology.scopes):
        for v in scope:
            if not free[v]:
                continue
            a, b = number[v], number[topology.n_vars + f]
            cycle = cycle or a == b
            number = [a if c == b else c for c in number]
    return [c if free[v] else -1 for v, c in enumerate(number[: topology.n_vars])], cycle


@pytest.mark.parametrize("seed", range(40))
def test_cycles_and_components(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graphs = [random_graph(rng) for _ in range(6)]
    batch = Batch.build(graphs)
    free = rng.random(batch.n_vars) < rng.choice([0.3, 0.7, 1.0])
    want = [parts(g, free[batch.var_ptr[b] : batch.var_ptr[b + 1]]) for b, g in enumerate(graphs)]
    assert acyclic(batch, free).tolist() == [not cycle for _, cycle in want]
    found = hidden_components(batch, ~free)
    first: dict[tuple[int, int], int] = {}
    for b, (labels, _) in enumerate(want):
        for v, label in enumerate(labels):
            number = -1 if label < 0 else first.setdefault((b, label), len(first))
            assert found.component[batch.var_ptr[b] + v] == number
    assert sorted(found.visit.tolist()) == np.flatnonzero(free).tolist()
    place = {v: k for k, v in enumerate(found.visit.tolist())}
    for v in np.flatnonzero(free).tolist():  # parents come first, by a factor that holds both
        if found.parent[v] >= 0:
            scope = batch.scope_vars[batch.scope_ptr[found.up[v]] : batch.scope_ptr[found.up[v] + 1]]
            assert place[int(found.parent[v])] < place[v] and {v, int(found.parent[v])} <= set(scope.tolist())

"""Orders children-before-parents on forests, the order in which the recursions eliminate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.jit import njit
from mssvm.core.topology import Topology


@njit(cache=True, nogil=True, error_model="numpy")
def plan_forest(
    n: int, ends: Ints, order: Ints, parent: Ints, edge: Ints, flip: Bools, degree: Ints, first: Bools
) -> bool:
    """Root every component at its last node, or at a node of ``first`` if it has one; False if there is a cycle."""
    start = np.zeros(n + 1, np.int64)
    for f in range(len(ends)):
        start[ends[f, 0] + 1] += 1
        start[ends[f, 1] + 1] += 1
    for i in range(n):
        degree[i] = start[i + 1]
        start[i + 1] += start[i]
    fill, incident = start[:-1].copy(), np.zeros(2 * len(ends), np.int64)
    for f in range(len(ends)):
        for side in range(2):
            incident[fill[ends[f, side]]] = f
            fill[ends[f, side]] += 1
    seen = np.zeros(n, np.bool_)
    tail = 0
    for pick in range(2 * n):
        root = n - 1 - pick % n
        if seen[root] or (pick < n and not first[root]):
            continue
        seen[root], parent[root], edge[root] = True, -1, -1
        order[tail] = root
        head, tail = tail, tail + 1
        while head < tail:
            i = order[head]
            head += 1
            # Leaves first: a chain with leaves then reads from its root as a longer one does, up to its end.
            for k in range(2 * start[i], 2 * start[i + 1]):
                f = incident[start[i] + (k - 2 * start[i]) % (start[i + 1] - start[i])]
                j = ends[f, 0] + ends[f, 1] - i
                if f == edge[i] or (degree[j] == 1) != (k - start[i] < start[i + 1]):
                    continue
                if seen[j]:
                    return False
                seen[j], parent[j], edge[j], flip[j] = True, i, f, ends[f, 0] == i
                order[tail] = j
                tail += 1
    for k in range(n // 2):
        order[k], order[n - 1 - k] = order[n - 1 - k], order[k]
    return True


@dataclass(frozen=True, eq=False)
class Rooting:
    """A topology with every component rooted at its last node, or at the last of ``first`` if it has one; ``valid``
    only if it is a pairwise forest."""

    valid: bool
    ends: Ints
    order: Ints
    parent: Ints
    edge: Ints
    flip: Bools
    degree: Ints

    @classmethod
    def of(cls, n: int, scopes: tuple[tuple[int, ...], ...], first: bytes = b"") -> Rooting:
        pairwise = all(len(s) == 2 for s in scopes)
        size = n if pairwise else 0
        ends = np.array(scopes if pairwise else (), dtype=np.int64).reshape(-1, 2)
        order, edge, degree = (np.zeros(size, dtype=np.int64) for _ in range(3))
        parent, flip = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=bool)
        roots = np.frombuffer(first or bytes(size), dtype=bool)[:size].copy()
        valid = pairwise and plan_forest(size, ends, order, parent, edge, flip, degree, roots)
        return cls(bool(valid), ends, order, parent, edge, flip, degree)


@lru_cache(4096)
def rooting_of(topology: Topology, first: bytes = b"") -> Rooting:
    """The rooting of a topology, worked out once for all batches that hold it."""
    return Rooting.of(topology.n_vars, topology.scopes, first)

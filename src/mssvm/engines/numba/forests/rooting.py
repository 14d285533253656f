"""Orders children-before-parents on forests, the order in which the recursions eliminate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.jit import njit
from mssvm.core.topology import Topology


@njit(cache=True, unroll=False, nogil=True, error_model="numpy", no_rewrites=True)
def plan_forest(
    n: int, ends: Ints, order: Ints, parent: Ints, edge: Ints, flip: Bools, degree: Ints, first: Bools, work: Ints
) -> bool:
    """Root every component at its last node, or at a node of ``first`` if it has one; False if there is a cycle.

    ``work`` are 3 n + 2 len(ends) + 1 zeros.
    """
    # One name at a time, nothing allocated: what allocates, cuts or assigns pairs takes longest to compile.
    fill, seen, incident = n + 1, 2 * n + 1, 3 * n + 1  # work[: n + 1] says where the edges of a node begin
    for f in range(len(ends)):
        work[ends[f, 0] + 1] += 1
        work[ends[f, 1] + 1] += 1
    for i in range(n):
        degree[i] = work[i + 1]
        work[i + 1] += work[i]
        work[fill + i] = work[i]
    for f in range(len(ends)):
        for side in range(2):
            at = fill + ends[f, side]
            work[incident + work[at]] = f
            work[at] += 1
    tail = 0
    for pick in range(2 * n):
        root = n - 1 - pick % n
        if work[seen + root] or (pick < n and not first[root]):
            continue
        work[seen + root] = 1
        parent[root] = -1
        edge[root] = -1
        order[tail] = root
        head = tail
        tail += 1
        while head < tail:
            i = order[head]
            head += 1
            # Leaves first: a chain with leaves then reads from its root as a longer one does, up to its end.
            for inner in range(2):
                for k in range(work[i], work[i + 1]):
                    f = work[incident + k]
                    j = ends[f, 0] + ends[f, 1] - i
                    if f == edge[i] or (degree[j] > 1) != inner:
                        continue
                    if work[seen + j]:
                        return False
                    work[seen + j] = 1
                    parent[j] = i
                    edge[j] = f
                    flip[j] = ends[f, 0] == i
                    order[tail] = j
                    tail += 1
    for k in range(n // 2):
        j = order[k]
        order[k] = order[n - 1 - k]
        order[n - 1 - k] = j
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
        work = np.zeros(3 * size + 2 * len(ends) + 1, dtype=np.int64)
        valid = pairwise and plan_forest(size, ends, order, parent, edge, flip, degree, roots, work)
        return cls(bool(valid), ends, order, parent, edge, flip, degree)


@lru_cache(4096)
def rooting_of(topology: Topology, first: bytes = b"") -> Rooting:
    """The rooting of a topology, worked out once for all batches that hold it."""
    return Rooting.of(topology.n_vars, topology.scopes, first)

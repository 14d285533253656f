"""Orders children-before-parents on forests, the order in which the recursions eliminate."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.jit import njit


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
            for k in range(start[i], start[i + 1]):
                f = incident[k]
                if f == edge[i]:
                    continue
                j = ends[f, 0] + ends[f, 1] - i
                if seen[j]:
                    return False
                seen[j], parent[j], edge[j], flip[j] = True, i, f, ends[f, 0] == i
                order[tail] = j
                tail += 1
    order[:] = order[::-1].copy()
    return True

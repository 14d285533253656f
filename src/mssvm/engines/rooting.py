"""Rooted forests: children before parents, and the roles for which the recursion over them is exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.library import INTS, MASK, Function
from mssvm.core.topology import Topology

_ROOT = Function("mssvm_forest_root", ends=INTS, first=MASK, order=INTS, parent=INTS, edge=INTS, flip=MASK, degree=INTS)
_TOUCHES = Function("mssvm_forest_touches", order=INTS, parent=INTS, first=INTS, output=MASK, free=MASK, ok=MASK)


@dataclass(frozen=True, eq=False)
class Rooting:
    """A topology with every component rooted at its last variable, or at the last of ``first`` if it has one; ``valid``
    only if it is a pairwise forest.

    ``order`` lists the variables, children before parents; ``parent``, ``edge`` (the factor to the parent; both -1 at a
    root), ``flip`` (the parent is the factor's first variable) and ``degree`` are by variable.
    """

    valid: bool
    order: Ints
    parent: Ints
    edge: Ints
    flip: Bools
    degree: Ints

    @classmethod
    def of(cls, n: int, scopes: tuple[tuple[int, ...], ...], first: bytes = b"") -> Rooting:
        pairwise = all(len(scope) == 2 for scope in scopes)
        size = n if pairwise else 0
        ends = np.array(scopes if pairwise else (), dtype=np.int64).reshape(-1)
        order, parent, edge, degree = (np.zeros(size, dtype=np.int64) for _ in range(4))
        flip = np.zeros(size, dtype=bool)
        roots = np.frombuffer(first or bytes(size), dtype=bool)[:size].copy()
        valid = _ROOT(ends=ends, first=roots, order=order, parent=parent, edge=edge, flip=flip, degree=degree)
        return cls(pairwise and valid == 1, order, parent, edge, flip, degree)

    def postorder(self) -> Ints:
        """The variables, children before parents, every parent directly after one of its children."""
        children: list[list[int]] = [[] for _ in self.parent]
        stack = list[int]()
        for v, parent in enumerate(self.parent.tolist()):
            if parent < 0:
                stack.append(v)
            else:
                children[parent].append(v)
        preorder = list[int]()
        while stack:
            v = stack.pop()
            preorder.append(v)
            stack += children[v]
        return np.array(preorder[::-1], dtype=np.int64)


@lru_cache(4096)
def rooting_of(topology: Topology, first: bytes = b"") -> Rooting:
    """The rooting of a topology, worked out once for all batches that hold it."""
    return Rooting.of(topology.n_vars, topology.scopes, first)


def touch_few_outputs(rooting: Rooting, first: Ints, output: Bools, free: Bools) -> Bools:
    """Whether every hidden component touches at most two free outputs, for instances of one topology whose variables
    begin at ``first``."""
    ok = np.zeros(len(first), dtype=bool)
    _TOUCHES(order=rooting.order, parent=rooting.parent, first=first, output=output, free=free, ok=ok)
    return ok

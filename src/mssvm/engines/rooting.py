"""Rooted forests: children before parents, and the roles for which the recursion over them is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.library import INTS, MASK, Function
from mssvm.core.topology import CACHED_PARTS, Topology, size_in_cache

_ROOT = Function(
    "mssvm_forest_root", ends=INTS, preferred=MASK, order=INTS, parent=INTS, edge=INTS, flip=MASK, degree=INTS
)
_TOUCHES = Function("mssvm_forest_touches", order=INTS, parent=INTS, first=INTS, output=MASK, free=MASK, ok=MASK)


@dataclass(frozen=True, eq=False)
class Rooting:
    """A topology with a root in every component: the last of its ``preferred`` variables, or of all if it has none.

    valid    whether the topology is a pairwise forest; the arrays are empty otherwise
    order    variables, children before parents
    parent   parent of each variable, -1 at a root
    edge     factor between each variable and its parent, -1 at a root
    flip     whether the parent is the first variable of that factor
    degree   number of factors of each variable
    """

    valid: bool
    order: Ints
    parent: Ints
    edge: Ints
    flip: Bools
    degree: Ints

    @classmethod
    def of(cls, topology: Topology, preferred: bytes = b"") -> Rooting:
        """Root a topology; ``preferred`` is a mask of variables, as bytes."""
        n = topology.n_vars
        if np.any(topology.scope_sizes != 2):
            return cls._invalid()
        preferred_roots = np.frombuffer(preferred or bytes(n), dtype=bool).copy()
        order = np.zeros(n, dtype=np.int64)
        parent = np.zeros(n, dtype=np.int64)
        edge = np.zeros(n, dtype=np.int64)
        degree = np.zeros(n, dtype=np.int64)
        flip = np.zeros(n, dtype=bool)
        valid = _ROOT(
            ends=topology.scope_flat,
            preferred=preferred_roots,
            order=order,
            parent=parent,
            edge=edge,
            flip=flip,
            degree=degree,
        )
        return cls(True, order, parent, edge, flip, degree) if valid == 1 else cls._invalid()

    @classmethod
    def _invalid(cls) -> Rooting:
        none = np.zeros(0, dtype=np.int64)
        return cls(False, none, none, none, np.zeros(0, dtype=bool), none)

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


@cached_by_size(CACHED_PARTS, size_in_cache)
def rooting_of(topology: Topology, preferred: bytes = b"") -> Rooting:
    """The rooting of a topology, cached for all batches that hold it."""
    return Rooting.of(topology, preferred)


def touch_few_outputs(rooting: Rooting, first: Ints, output: Bools, free: Bools) -> Bools:
    """Whether every hidden component touches at most two free outputs, per instance of one topology.

    ``first`` is the index of each instance's first variable in ``output`` and ``free``.
    """
    ok = np.zeros(len(first), dtype=bool)
    _TOUCHES(order=rooting.order, parent=rooting.parent, first=first, output=output, free=free, ok=ok)
    return ok

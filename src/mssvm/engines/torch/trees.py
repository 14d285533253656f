"""Forests on a GPU: pairwise factors of any tables without cycles, by one kernel (``kernels/tree.cu``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, depth_first_order

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.torch.arrays import SAFE, Device, Parts
from mssvm.engines.torch.chains import longest_first
from mssvm.engines.torch.nvrtc import available, constants, kernel

MOST_STATES, THREADS = 32, 128


@dataclass(frozen=True, eq=False)
class Turns:
    """The order in which the kernel takes the variables of a topology, children first: ``rows`` as its struct has them
    (states, the parent's states, the parent's turn, numbers), and of each its factor towards the parent."""

    rows: Ints
    factors: Ints

    @classmethod
    def of(cls, g: Topology) -> Turns | None:
        """None where there is a cycle, or a factor of one or three variables."""
        n, most = g.n_vars, int(g.card_array.max(initial=0))
        if most > MOST_STATES or np.any(g.scope_sizes != 2) or np.any(g.scope_flat[::2] == g.scope_flat[1::2]):
            return None
        a, b = g.scope_flat[::2], g.scope_flat[1::2]
        near = csr_array((np.arange(1, len(a) + 1), (a, b)), shape=(n, n)) if len(a) else csr_array((n, n))
        count, component = connected_components(near, directed=False)
        if g.n_factors != n - count:
            return None
        order, parent = [np.zeros(0, dtype=np.int64)], np.full(n, -1)
        for root in np.unique(component, return_index=True)[1].tolist():
            visited, before = depth_first_order(near, root, directed=False)
            order.append(visited)
            parent[visited[1:]] = before[visited[1:]]
        # A preorder backwards: children before parents, and a parent right after the child that was visited first.
        turn_of, visit = np.empty(n, dtype=np.int64), np.concatenate(order)[::-1]
        turn_of[visit] = np.arange(n)
        factor = np.full(n, -1)
        child = np.where(parent[a] == b, a, b)
        factor[child] = np.arange(len(a))
        has, above = parent >= 0, np.maximum(parent, 0)
        leaf = ~np.isin(np.arange(n), parent)
        earliest = np.full(n, n)
        np.minimum.at(earliest, above[has], turn_of[has])
        cards = g.card_array | (g.card_array[above] << 8) | (leaf.astype(np.int64) << 16)
        cards |= (has & (earliest[above] == turn_of)).astype(np.int64) << 17
        cards[b[child == b]] |= 1 << 18
        rows = np.stack([g.unary_ptr[:-1], np.where(has, g.unary_ptr[above], -1), turn_of[above], cards], axis=1)
        return cls(rows[visit], np.maximum(factor[visit], 0))


def all_turns(batch: Batch, at: Device) -> tuple[Turns | None, ...]:
    """Of every topology of a batch, where kernels run at all."""
    if at.plain or not available(at.device):
        return (None,) * len(batch.topologies)
    return tuple(map(Turns.of, batch.topologies))


def able_trees(batch: Batch, turns: Sequence[Turns | None]) -> Bools:
    """Per instance: may the kernel run it?"""
    found: Bools = np.array([t is not None for t in turns], dtype=bool)[batch.topology_of]
    return found


@dataclass(frozen=True, eq=False)
class TreeRoute:
    """Forests at one temperature; ``wide`` lanes have room for the states of each of their variables."""

    instances: Ints
    at: Device
    wide: int
    eps: float
    arguments: tuple[torch.Tensor, ...]
    n_turns: int
    where: torch.Tensor
    method = "tree kernel"

    @classmethod
    def all_of(
        cls, batch: Batch, instances: Ints, eps: float, at: Device, turns: Sequence[Turns | None]
    ) -> list[TreeRoute]:
        kinds = batch.topology_of[instances]
        most = np.array([g.card_array.max(initial=2) for g in batch.topologies])[kinds]
        wide = 2 ** np.ceil(np.log2(np.maximum(most, 2))).astype(np.int64)
        return [cls.of(batch, instances[wide == w], int(w), eps, at, turns) for w in np.unique(wide)]

    @classmethod
    def of(
        cls, batch: Batch, instances: Ints, wide: int, eps: float, at: Device, turns: Sequence[Turns | None]
    ) -> TreeRoute:
        instances, length = longest_first(batch, instances)
        mine = [t or Turns(np.zeros((0, 4), dtype=np.int64), np.zeros(0, dtype=np.int64)) for t in turns]
        begin, work = offsets(np.array([len(t.factors) for t in mine])), offsets(length)
        arguments = (
            at.shorts(np.concatenate([t.rows for t in mine])), at.shorts(np.concatenate([t.factors for t in mine])),
            at.ints(batch.unary_ptr[batch.var_ptr[instances]]), at.shorts(length),
            at.shorts(begin[batch.topology_of[instances]]), at.ints(batch.factor_ptr[instances]), at.ints(work[:-1]),
            at.ints(batch.table_at), at.ints(batch.mu_at),
        )  # fmt: skip
        return cls(instances, at, wide, eps, arguments, int(work[-1]), at.ints(instances))

    def infer_into(self, unary: torch.Tensor, tables: torch.Tensor, mu: Parts) -> torch.Tensor:
        """Values of the instances (NaN where they need log space); their marginals are written."""
        n, sums, dtype = len(self.instances), self.eps > 0.0, unary.dtype
        value = unary.new_empty(n)
        work = unary.new_empty(self.n_turns * 2 * self.wide)
        if sums:
            scaled = tables / self.eps
            outside = (scaled.abs() > SAFE[dtype] / 4) & (scaled > -torch.inf)
            tables = torch.exp(scaled).masked_fill(outside, torch.nan)
        numbers = constants(WIDE=self.wide, THREADS=THREADS)
        run = kernel("tree.cu", "sums" if sums else "maxima", unary.device, dtype, numbers)
        blocks = -(-n * self.wide // THREADS)
        run(blocks, THREADS, unary, tables, *self.arguments, work, value, *mu, float(self.eps), n)
        return value

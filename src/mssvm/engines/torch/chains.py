"""Chains on a GPU: paths 0 - 1 - 2 ... whose factors read one table, by one kernel (``kernels/chain.cu``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.torch.arrays import Device, Parts, cached_for
from mssvm.engines.torch.nvrtc import available, constants, kernel

MOST_STATES = 32


def able_chains(batch: Batch, at: Device) -> Bools:
    """Per instance: may the kernel run it?"""
    if at.plain or not available(at.device):
        return np.zeros(len(batch), dtype=bool)
    paths = np.array([_is_path(g) for g in batch.topologies], dtype=bool)
    if not len(batch) or not paths.any():
        return np.zeros(len(batch), dtype=bool)
    tied = np.ones(len(batch), dtype=bool)
    if batch.n_factors:
        owner = batch.factor_owner
        first = batch.table_at[np.minimum(batch.factor_ptr[:-1], batch.n_factors - 1)]
        tied[owner[batch.table_at != first[owner]]] = False
    found: Bools = paths[batch.topology_of] & tied
    return found


def _is_path(g: Topology) -> bool:
    cards = g.card_array
    n = g.n_vars
    if g.n_factors != n - 1 or n < 2 or not 1 < cards[0] <= MOST_STATES or np.any(cards != cards[0]):
        return False
    return np.array_equal(g.scope_flat, np.repeat(np.arange(n), 2)[1:-1])


def longest_first(batch: Batch, instances: Ints) -> tuple[Ints, Ints]:
    """Instances sorted by descending length, and the lengths: chains that share a warp have similar lengths."""
    length = np.diff(batch.var_ptr)[instances]
    order = np.argsort(-length, kind="stable")
    return instances[order], length[order]


def _places(batch: Batch, instances: Ints, at: Device) -> dict[str, Any]:
    instances, length = longest_first(batch, instances)
    f = batch.factor_ptr[instances]
    work = offsets(length)
    arguments = (
        at.ints(batch.unary_ptr[batch.var_ptr[instances]]),
        at.shorts(length),
        at.ints(batch.table_at[f]),
        at.ints(batch.mu_at[f]),
        at.ints(work[:-1]),
    )
    return {"instances": instances, "arguments": arguments, "n_sites": int(work[-1]), "where": at.ints(instances)}


@dataclass(frozen=True)
class Shape:
    """Launch shape of the chain kernel: states per lane, chains per warp, warps per block, prefetched sites, and blocks
    per multiprocessor."""

    cols: int
    groups: int
    warps: int
    ahead: int
    blocks: int

    @classmethod
    def of(cls, states: int, n: int, dtype: torch.dtype, sums: bool) -> Shape:
        """The fastest shapes measured: many chains share warps; few have a warp each, which prefetches far ahead."""
        if dtype == torch.float64:
            return cls(1, 1, 2, 4 if n <= 1024 else 2, 1)
        if n <= 1024:
            return cls(1, 1, 2, 8, 1)
        if states > 24:
            return cls(1, 1, 4, 2 if sums else 4, 3 if sums else 1)
        if states <= 16:
            return cls(1, min(32 // states, 6), 4, 4, 1)
        return cls(2, 32 // -(-states // 2), 2, 4 if sums else 3, 6)

    def numbers(self, states: int) -> str:
        return constants(S=states, **{name.upper(): number for name, number in vars(self).items()})

    def row(self, states: int) -> int:
        """Numbers stored per site: its states and one scale, rounded up to a multiple of four."""
        return (self.cols * self.lanes(states) + 4) // 4 * 4

    def lanes(self, states: int) -> int:
        return -(-states // self.cols)


@dataclass(frozen=True, eq=False)
class ChainRoute:
    """Chains of one number of states at one temperature."""

    instances: Ints
    at: Device
    states: int
    eps: float
    arguments: tuple[torch.Tensor, ...]
    n_sites: int
    where: torch.Tensor
    method = "chain kernel"

    @classmethod
    def all_of(cls, batch: Batch, instances: Ints, eps: float, at: Device) -> list[ChainRoute]:
        cards = batch.cards[batch.var_ptr[instances]] if len(instances) else instances
        return [cls.of(batch, instances[cards == card], int(card), eps, at) for card in np.unique(cards)]

    @classmethod
    def of(cls, batch: Batch, instances: Ints, states: int, eps: float, at: Device) -> ChainRoute:
        """Index tensors of the chains are cached with the batch."""
        found = cached_for(batch, ("chains", at.device), instances, lambda: _places(batch, instances, at))
        return cls(at=at, states=states, eps=eps, **found)

    def infer_into(self, unary: torch.Tensor, tables: torch.Tensor, mu: Parts) -> torch.Tensor:
        """Values of the instances (NaN where they need log space); their marginals are written."""
        launch, value = self.ready(unary, tables, mu)
        launch()
        return value

    def ready(self, unary: torch.Tensor, tables: torch.Tensor, mu: Parts) -> tuple[Callable[[], None], torch.Tensor]:
        """The launch, and the values that it writes."""
        n = len(self.instances)
        sums = self.eps > 0.0
        dtype = unary.dtype
        value = unary.new_empty(n)
        shape = Shape.of(self.states, n, dtype, sums)
        width = shape.row(self.states) if sums else shape.lanes(self.states)
        work = torch.empty(self.n_sites * width, dtype=dtype if sums else torch.int32, device=unary.device)
        run = kernel("chain.cu", "sums" if sums else "maxima", unary.device, dtype, shape.numbers(self.states))
        blocks = -(-n // (shape.warps * shape.groups))
        threads = 32 * shape.warps
        arguments = (unary, tables, *self.arguments, work, value, *mu, float(self.eps), n)
        return run.ready(blocks, threads, *arguments), value

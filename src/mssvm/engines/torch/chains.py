"""Chains on a GPU: paths 0 - 1 - 2 ... whose factors read one table, by one kernel (``kernels/chain.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.torch.arrays import Device, Parts
from mssvm.engines.torch.nvrtc import available, kernel

MOST_STATES, WARPS, PAD = 32, 8, 32


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
    card = g.cards[0] if g.n_vars else 0
    return 1 < card <= MOST_STATES and g.n_factors == g.n_vars - 1 > 0 and set(g.cards) == {card} and all(
        scope == (t, t + 1) for t, scope in enumerate(g.scopes)
    )  # fmt: skip


def constants(states: int, n: int) -> str:
    """As measured with 20 states: few chains read ahead, many rather share a multiprocessor."""
    ahead, blocks = (4, 1) if n <= 6000 or states > 20 else (1, 4)
    return f"constexpr int S = {states}, AHEAD = {ahead}, BLOCKS = {blocks};"


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

    @classmethod
    def all_of(cls, batch: Batch, instances: Ints, eps: float, at: Device) -> list[ChainRoute]:
        cards = batch.cards[batch.var_ptr[instances]] if len(instances) else instances
        return [cls.of(batch, instances[cards == card], int(card), eps, at) for card in np.unique(cards)]

    @classmethod
    def of(cls, batch: Batch, instances: Ints, states: int, eps: float, at: Device) -> ChainRoute:
        length = np.diff(batch.var_ptr)[instances]
        f = batch.factor_ptr[instances]
        work = offsets(length)
        arguments = (
            at.ints(batch.unary_ptr[batch.var_ptr[instances]]), at.ints(length).to(torch.int32),
            at.ints(batch.table_at[f]), at.ints(batch.mu_at[f]), at.ints(work[:-1]),
        )  # fmt: skip
        return cls(instances, at, states, eps, arguments, int(work[-1]), at.ints(instances))

    def infer_into(self, unary: torch.Tensor, tables: torch.Tensor, mu: Parts) -> torch.Tensor:
        """Values of the instances (NaN where they need log space); their marginals are written."""
        n, sums = len(self.instances), self.eps > 0.0
        value = unary.new_empty(n)
        work = torch.empty(self.n_sites * PAD, dtype=unary.dtype if sums else torch.uint8, device=unary.device)
        device = unary.device.index or 0
        run = kernel("chain.cu", "sums" if sums else "maxima", device, unary.dtype, constants(self.states, n))
        run(-(-n // WARPS), 32 * WARPS, unary, tables, *self.arguments, work, value, mu[0], mu[1], float(self.eps), n)
        return value

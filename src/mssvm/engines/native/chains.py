"""Monotone chains of a topology: what the decomposition bound sums over (``cpp/chains.cpp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.library import FLOATS, INTS, Function
from mssvm.core.topology import CACHED_PARTS, Batch, Topology, size_in_cache

_CHAINS = Function("mssvm_chains", ends=INTS, level=INTS, chain=INTS, weight=FLOATS, left=FLOATS)


@dataclass(frozen=True, eq=False)
class ChainCover:
    """A pairwise topology as ``n_chains`` chains along which variables rise.

    By factor: its ``chain`` and the ``weight`` of this chain. By variable: its ``level`` (variables of a level are not
    neighbours, and neighbours of lower number have lower levels) and ``left``, one minus the weights of the chains
    through it.
    """

    level: AnyArray
    chain: AnyArray
    weight: Floats
    left: Floats
    n_chains: int


@cached_by_size(CACHED_PARTS, size_in_cache)
def chain_cover(topology: Topology) -> ChainCover:
    """The chains of a topology with factors of two variables."""
    level = np.zeros(topology.n_vars, dtype=np.int64)
    left = np.ones(topology.n_vars)
    chain = np.zeros(topology.n_factors, dtype=np.int64)
    weight = np.zeros(topology.n_factors)
    n = _CHAINS(ends=topology.scope_flat, level=level, chain=chain, weight=weight, left=left)
    return ChainCover(level.astype(np.int32), chain.astype(np.int32), weight, left, n)


def factor_weights(batch: Batch, instances: Ints) -> Floats:
    """By factor of a batch, rho of its chain; 0 in instances that are not named."""
    out = np.zeros(batch.n_factors)
    for b in instances.tolist():
        cover = chain_cover(batch.topologies[int(batch.topology_of[b])])
        out[batch.factor_ptr[b] : batch.factor_ptr[b + 1]] = cover.weight
    return out

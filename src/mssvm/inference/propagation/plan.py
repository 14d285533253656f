"""Sweep orders and index arrays for message passing, compiled once per topology and once per batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, offsets
from mssvm.engines.numba.messages.merge import sweep_order
from mssvm.engines.numba.messages.scaled import Wiring


@dataclass(frozen=True, eq=False)
class Plan:
    """Wiring, distinct tables in order of first use, which instances are pairwise, the one cardinality or 0."""

    wiring: Wiring
    table_starts: Ints
    table_sizes: Ints
    table_of: Ints
    pairwise: Bools
    one_card: int

    @property
    def n_messages(self) -> int:
        return int(self.wiring.message_at[-1])


def wire(var_ptr: Ints, factor_ptr: Ints, state_ptr: Ints, scope_ptr: Ints, scope: Ints, table_at: Ints) -> Wiring:
    """Complete the index arrays: where messages lie, which slots each variable has, and the sweep order."""
    cards = np.diff(state_ptr)
    near = np.argsort(scope, kind="stable")
    near_ptr = offsets(np.bincount(scope, minlength=len(cards)).astype(np.int64))
    slot_factor = np.repeat(np.arange(len(scope_ptr) - 1), np.diff(scope_ptr))
    message_at = offsets(cards[scope])
    order = np.arange(len(scope_ptr) - 1)
    wiring = Wiring(
        var_ptr,
        factor_ptr,
        state_ptr,
        scope_ptr,
        scope,
        message_at,
        table_at,
        order,
        near_ptr,
        near,
        slot_factor,
        int(cards.max(initial=1)),
    )
    sweep_order(wiring, np.arange(len(var_ptr) - 1), order)
    return wiring


def plan_of(batch: Batch) -> Plan:
    """Compile a batch."""
    graphs = [batch.topology(b) for b in range(len(batch))]
    wiring = wire(batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.scope_ptr, batch.scope_vars, batch.table_at)
    order = wiring.order
    used = batch.table_at[order]
    starts, first, inverse = np.unique(used, return_index=True, return_inverse=True)
    by_use = np.argsort(first, kind="stable")
    rank = np.empty(len(starts), dtype=np.int64)
    rank[by_use] = np.arange(len(starts))
    table_of = np.empty(batch.n_factors, dtype=np.int64)
    table_of[order] = rank[inverse]
    sizes = batch.table_sizes[order][first][by_use] if len(order) else np.zeros(0, dtype=np.int64)
    pairwise = np.array([bool(np.all(np.diff(g.scope_ptr) == 2)) for g in graphs])
    cards = np.unique(batch.cards)
    return Plan(wiring, starts[by_use], sizes, table_of, pairwise, int(cards[0]) if len(cards) == 1 else 0)

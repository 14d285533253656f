"""Index arrays of message passing on a batch, and the order of sweeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.components import hidden_components
from mssvm.core.topology import Batch, offsets


class MessageWiring(NamedTuple):
    """A ragged batch: factors have slots, a slot is one variable of a factor and holds one message.

    ``order[factor_ptr[b] : factor_ptr[b+1]]`` is the sweep order, ``near[near_ptr[i] : near_ptr[i+1]]`` the slots of i.
    """

    var_ptr: Ints
    factor_ptr: Ints
    state_ptr: Ints
    scope_ptr: Ints
    scope: Ints
    message_at: Ints
    table_at: Ints
    order: Ints
    near_ptr: Ints
    near: Ints
    slot_factor: Ints
    widest: int


def wire(batch: Batch) -> MessageWiring:
    """Where messages lie, which slots each variable has, and the sweep order."""
    scope = batch.scope_vars
    near_ptr = offsets(np.bincount(scope, minlength=batch.n_vars).astype(np.int64))
    return MessageWiring(
        batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.scope_ptr, scope, offsets(batch.cards[scope]),
        batch.table_at, _sweep_order(batch), near_ptr, np.argsort(scope, kind="stable"), batch.slot_factor,
        int(batch.cards.max(initial=1)),
    )  # fmt: skip


def _sweep_order(batch: Batch) -> Ints:
    """Factors by the place of their farthest variable, breadth first: on a forest one sweep each way is enough.

    With cycles the given numbering serves instead where it keeps neighbours about as close.
    """
    n, scope, first = len(batch), batch.scope_vars, batch.scope_ptr[:-1]
    found = hidden_components(batch, np.zeros(batch.n_vars, dtype=bool))
    place, natural = np.empty(batch.n_vars, dtype=np.int64), np.arange(batch.n_vars)
    place[found.visit] = natural
    step = np.flatnonzero(np.diff(batch.slot_factor, prepend=-1) == 0)
    owner = batch.factor_owner[batch.slot_factor[step]]
    reach, numbered = np.zeros((2, n), dtype=np.int64)
    np.maximum.at(reach, owner, np.abs(place[scope[step]] - place[scope[step - 1]]))
    np.maximum.at(numbered, owner, np.abs(scope[step] - scope[step - 1]))
    cycles = np.bincount(owner, minlength=n) > np.diff(batch.var_ptr) - np.diff(found.ptr)
    # Neighbours in memory: on a grid the numbering of its rows is as good a wave and kinder to the cache.
    place = np.where((cycles & (numbered <= 1.5 * reach))[batch.owner], natural, place)[scope]
    if not len(first):
        return first
    return np.lexsort((np.minimum.reduceat(place, first), np.maximum.reduceat(place, first), batch.factor_owner))

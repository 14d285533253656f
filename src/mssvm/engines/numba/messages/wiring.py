"""Index arrays of message passing on a batch, and the order of sweeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.topology import Batch, offsets
from mssvm.engines.messages import sweep_order, sweep_places


class MessageWiring(NamedTuple):
    """A ragged batch: factors have slots, a slot is one variable of a factor and holds one message.

    ``order[factor_ptr[b] : factor_ptr[b+1]]`` is the sweep order, by the ``place`` of variables; ``near[near_ptr[i] :
    near_ptr[i+1]]`` are the slots of i.
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
    place: Ints
    widest: int


def wire(batch: Batch) -> MessageWiring:
    """Where messages lie, which slots each variable has, and the sweep order."""
    scope, place = batch.scope_vars, sweep_places(batch)
    near_ptr = offsets(np.bincount(scope, minlength=batch.n_vars).astype(np.int64))
    return MessageWiring(
        batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.scope_ptr, scope, offsets(batch.cards[scope]),
        batch.table_at, sweep_order(batch, place), near_ptr, np.argsort(scope, kind="stable"), batch.slot_factor,
        place, int(batch.cards.max(initial=1)),
    )  # fmt: skip

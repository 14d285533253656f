"""Index arrays of message passing on a batch, and the order of sweeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.jit import njit
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


@njit(cache=True, nogil=True)
def settling(w, instances, free, out):
    """How many sweeps it takes until no message between free variables rests on one that is not final, or would never
    come to that. A message is final if all others to the variable it comes from are."""
    final, waits = np.zeros(len(w.scope), np.bool_), np.zeros(len(free), np.int64)
    for b in instances:
        first, last, left = w.factor_ptr[b], w.factor_ptr[b + 1], 0
        for f in range(first, last):
            i, j = w.scope[w.scope_ptr[f]], w.scope[w.scope_ptr[f] + 1]
            if free[i] and free[j]:
                waits[i] += 1
                waits[j] += 1
                left += 2
        before = left + 1
        while 0 < left < before:
            before = left
            for e in range(last - first):
                s = w.scope_ptr[w.order[last - 1 - e] if out[b] % 2 == 1 else w.order[first + e]]
                i, j = w.scope[s], w.scope[s + 1]
                if not (free[i] and free[j]):
                    continue
                to_i, to_j = waits[j] == (not final[s + 1]), waits[i] == (not final[s])
                left -= (to_i and not final[s]) + (to_j and not final[s + 1])
                waits[i] -= to_i and not final[s]
                waits[j] -= to_j and not final[s + 1]
                final[s], final[s + 1] = final[s] or to_i, final[s + 1] or to_j
            out[b] += 1

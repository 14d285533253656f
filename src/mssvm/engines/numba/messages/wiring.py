"""Index arrays of message passing on a batch, and the order of sweeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from mssvm.core.arrays import Ints
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
    scope, order = batch.scope_vars, np.arange(batch.n_factors)
    near_ptr = offsets(np.bincount(scope, minlength=batch.n_vars).astype(np.int64))
    wiring = MessageWiring(
        batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.scope_ptr, scope, offsets(batch.cards[scope]),
        batch.table_at, order, near_ptr, np.argsort(scope, kind="stable"), batch.slot_factor,
        int(batch.cards.max(initial=1)),
    )  # fmt: skip
    sweep_order(wiring, order)
    return wiring


@njit(cache=True, nogil=True)
def sweep_order(w, order):  # type: ignore[no-untyped-def]
    """Factors by the place of their farthest variable, breadth first: on a forest one sweep each way is enough.

    With cycles the given numbering serves instead where it keeps neighbours about as close.
    """
    place = np.full(len(w.state_ptr), -1, dtype=np.int64)
    queue = np.empty(len(w.state_ptr), dtype=np.int64)
    for b in range(len(w.var_ptr) - 1):
        lo, hi = w.var_ptr[b], w.var_ptr[b + 1]
        first, last = w.factor_ptr[b], w.factor_ptr[b + 1]
        head, tail, roots = 0, 0, 0
        for root in range(lo, hi):
            if place[root] < 0:
                place[root], queue[tail] = tail, root
                tail, roots = tail + 1, roots + 1
            while head < tail:
                i = queue[head]
                head += 1
                for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
                    f = w.slot_factor[w.near[k]]
                    for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                        j = w.scope[s]
                        if place[j] < 0:
                            place[j], queue[tail] = tail, j
                            tail += 1
        reach, natural, excess = 0, 0, roots - (hi - lo)
        for f in range(first, last):
            for s in range(w.scope_ptr[f] + 1, w.scope_ptr[f + 1]):
                i, j = w.scope[s], w.scope[s - 1]
                reach, natural, excess = max(reach, abs(place[i] - place[j])), max(natural, abs(i - j)), excess + 1
        if excess > 0 and natural <= 1.5 * reach:
            # Neighbours in memory: on a grid the numbering of its rows is as good a wave and kinder to the cache.
            for i in range(lo, hi):
                place[i] = i - lo
        key = np.empty(last - first, dtype=np.int64)
        for f in range(first, last):
            far, close = 0, hi - lo
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                far, close = max(far, place[w.scope[s]]), min(close, place[w.scope[s]])
            key[f - first] = far * (hi - lo + 1) + close
        order[first:last] = first + np.argsort(key, kind="mergesort")

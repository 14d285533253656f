"""Ascent on theta(z) by whole regions: connected variables of equal state move to another state together.

Messages settle region by region, and a region that has settled on the wrong state stays there: no single variable gains
by leaving it. Relabelling a region costs one look at its variables and its border, so all regions and states are tried.
For graphs of pairwise factors; states of the same number are taken to mean the same in neighbouring variables.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit

ROUNDS = 20
LEAST = 1e-9


@njit(cache=True, nogil=True)
def _around(w, s):
    """The other slot of a pairwise factor, and the strides of slot s and of the other in its table."""
    f = w.slot_factor[s]
    first = w.scope_ptr[f]
    wide = w.message_at[first + 2] - w.message_at[first + 1]
    return (first + 1, wide, 1) if s == first else (first, 1, wide)


@njit(cache=True, nogil=True)
def _touch(w, i, lo, mark, settled, busy):
    """i has moved: it, its neighbours, and the regions they were found in are to be looked at again."""
    busy[i - lo] = True
    if mark[i - lo] >= 0:
        settled[mark[i - lo]] = False
    for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
        j = w.scope[_around(w, w.near[k])[0]] - lo
        busy[j] = True
        if mark[j] >= 0:
            settled[mark[j]] = False


@njit(cache=True, nogil=True)
def _move_sites(w, b, free, unary, tables, z, work, mark, settled, busy):
    """One round of moves of single variables; returns whether any moved."""
    moved, lo = False, w.var_ptr[b]
    for i in range(lo, w.var_ptr[b + 1]):
        if not free[i] or not busy[i - lo]:
            continue
        busy[i - lo] = False
        at = w.state_ptr[i]
        card = w.state_ptr[i + 1] - at
        for x in range(card):
            work[x] = unary[at + x]
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            s = w.near[k]
            other, step, other_step = _around(w, s)
            entry = w.table_at[w.slot_factor[s]] + other_step * z[w.scope[other]]
            for x in range(card):
                work[x] += tables[entry + step * x]
        best = z[i]
        for x in range(card):
            if work[x] > work[best] + LEAST:
                best = x
        if best != z[i]:
            moved = True
            z[i] = best
            _touch(w, i, lo, mark, settled, busy)
    return moved


@njit(cache=True, nogil=True)
def _region(w, root, lo, free, z, mark, name, members):
    """Collect the connected free variables that share the state and the number of states of ``root``."""
    card = w.state_ptr[root + 1] - w.state_ptr[root]
    mark[root - lo], members[0] = name, root
    n, at = 1, 0
    while at < n:
        i = members[at]
        at += 1
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            j = w.scope[_around(w, w.near[k])[0]]
            if mark[j - lo] != name and free[j] and z[j] == z[root] and w.state_ptr[j + 1] - w.state_ptr[j] == card:
                mark[j - lo], members[n] = name, j
                n += 1
    return n


@njit(cache=True, nogil=True)
def _gains(w, members, lo, mark, name, unary, tables, z, work):
    """Score of the region and its border in every common state, into ``work``."""
    root = members[0]
    card = w.state_ptr[root + 1] - w.state_ptr[root]
    work[:card] = 0.0
    for i in members:
        for x in range(card):
            work[x] += unary[w.state_ptr[i] + x]
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            s = w.near[k]
            other, step, other_step = _around(w, s)
            j = w.scope[other]
            at = w.table_at[w.slot_factor[s]]
            if mark[j - lo] != name:
                for x in range(card):
                    work[x] += tables[at + step * x + other_step * z[j]]
            elif i < j:
                for x in range(card):
                    work[x] += tables[at + (step + other_step) * x]
    return card


@njit(cache=True, nogil=True)
def _messages_at(w, instances, tables, z, log_messages):
    """The messages that variables held at z would send, each with its largest entry 0."""
    for b in instances:
        for s in range(w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]):
            other, step, other_step = _around(w, s)
            entry = w.table_at[w.slot_factor[s]] + other_step * z[w.scope[other]]
            top = -np.inf
            for x in range(w.message_at[s + 1] - w.message_at[s]):
                log_messages[w.message_at[s] + x] = tables[entry + step * x]
                top = max(top, tables[entry + step * x])
            for x in range(w.message_at[s + 1] - w.message_at[s]):
                log_messages[w.message_at[s] + x] -= top


@njit(cache=True, nogil=True)
def ascend_regions(w, instances, free, unary, tables, z, log_messages, out):
    """Improve z in place by moves of variables and regions until none gains; the instances that changed, whose messages
    are those of ``_messages_at``, come into ``out``, their number is returned.

    What did not gain, and has not moved since nor seen a neighbour move, is not tried again.
    """
    work = np.empty(w.widest)
    count = 0
    most = 0
    for b in instances:
        most = max(most, w.var_ptr[b + 1] - w.var_ptr[b])
    mark, busy = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.bool_)
    members, settled = np.empty(most, dtype=np.int64), np.empty(2 * most, dtype=np.bool_)
    for b in instances:
        lo, hi = w.var_ptr[b], w.var_ptr[b + 1]
        before = z[lo:hi].copy()
        mark[:] = -1  # the name of the region a variable was last found in
        busy[:] = True
        name = 0
        for _ in range(ROUNDS):
            moved = _move_sites(w, b, free, unary, tables, z, work, mark, settled, busy)
            start = name
            if start + hi - lo > len(settled):
                settled = np.append(settled, np.empty(max(len(settled), hi - lo), dtype=np.bool_))
            for root in range(lo, hi):
                known = mark[root - lo]
                if not free[root] or known >= start or (known >= 0 and settled[known]):
                    continue
                n = _region(w, root, lo, free, z, mark, name, members)
                card = _gains(w, members[:n], lo, mark, name, unary, tables, z, work)
                best = z[root]
                for x in range(card):
                    if work[x] > work[best] + LEAST:
                        best = x
                settled[name] = best == z[root]
                if best != z[root]:
                    moved = True
                    for i in members[:n]:
                        z[i] = best
                        _touch(w, i, lo, mark, settled, busy)
                name += 1
            if not moved:
                break
        if np.any(z[lo:hi] != before):
            out[count] = b
            count += 1
    _messages_at(w, out[:count], tables, z, log_messages)
    return count

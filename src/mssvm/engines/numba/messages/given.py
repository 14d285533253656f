"""Q(y) = PS_{eps_h} over h of theta(y, h), exactly, where the hidden variables fall into trees once y is given.

Every connected component of the hidden variables contributes a term of its own, so changing one output changes only the
components it touches: coordinate ascent and annealed Gibbs sampling over y evaluate those alone.
Variables with one allowed state count as given ("outside"), whatever their role.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from mssvm.core.arrays import Bools, Ints
from mssvm.engines.numba.messages.log import power_sum_of


class Given(NamedTuple):
    """Components of the hidden variables of a batch. Arrays over components start at ``var_ptr[b]`` for instance b.

    ``visit[first[c] : last[c]]`` are the members of component c, parents before children; ``up`` and ``parent`` are the
    factor and variable towards the root (-1 at the root); ``inside`` counts the hidden members of a factor.
    """

    outside: Bools
    component: Ints
    visit: Ints
    up: Ints
    parent: Ints
    inside: Ints
    n_components: Ints
    first: Ints
    last: Ints
    tree: Bools
    forest: Bools


@njit(cache=True, nogil=True)
def find_components(w, which, g):  # type: ignore[no-untyped-def]
    """Fill ``g`` for the named instances."""
    for b in which:
        lo, hi = w.var_ptr[b], w.var_ptr[b + 1]
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            g.inside[f] = 0
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                g.inside[f] += not g.outside[w.scope[s]]
        g.component[lo:hi] = -1
        g.forest[b] = True
        count, filled = 0, lo
        for root in range(lo, hi):
            if g.outside[root] or g.component[root] >= 0:
                continue
            c = lo + count
            g.first[c], g.component[root], g.up[root], g.parent[root], g.visit[filled] = filled, count, -1, -1, root
            g.tree[c] = True
            filled += 1
            at = g.first[c]
            while at < filled:
                filled = _extend(w, g, c, count, g.visit[at], filled)
                at += 1
            g.last[c] = filled
            g.forest[b] &= g.tree[c]
            count += 1
        g.n_components[b] = count


@njit(cache=True, nogil=True)
def _extend(w, g, c, name, i, filled):  # type: ignore[no-untyped-def]
    for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
        f = w.slot_factor[w.near[k]]
        if g.inside[f] < 2 or f == g.up[i]:
            continue
        if g.inside[f] > 2:
            g.tree[c] = False
        for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
            j = w.scope[s]
            if j == i or g.outside[j]:
                continue
            if g.component[j] >= 0:
                g.tree[c] = False
                continue
            g.component[j], g.up[j], g.parent[j], g.visit[filled] = name, f, i, j
            filled += 1
    return filled


@njit(cache=True, nogil=True)
def slice_of(w, f, y, i, j):  # type: ignore[no-untyped-def]
    """Entry of factor f's table with i and j at state 0 and all others at y, and the strides of i and j."""
    entry, stride, step_i, step_j = 0, 1, 0, 0
    for s in range(w.scope_ptr[f + 1] - 1, w.scope_ptr[f] - 1, -1):
        v = w.scope[s]
        if v == i:
            step_i = stride
        elif v == j:
            step_j = stride
        else:
            entry += stride * y[v]
        stride *= w.message_at[s + 1] - w.message_at[s]
    return entry, step_i, step_j


@njit(cache=True, nogil=True)
def component_value(w, g, c, unary, tables, y, eps, acc, room):  # type: ignore[no-untyped-def]
    """PS_{eps_h} over component c given y; leaves the upward sums of every member in ``acc``."""
    for k in range(g.first[c], g.last[c]):
        h = g.visit[k]
        at = w.state_ptr[h]
        card = w.state_ptr[h + 1] - at
        for x in range(card):
            acc[at + x] = unary[at + x]
        for n in range(w.near_ptr[h], w.near_ptr[h + 1]):
            f = w.slot_factor[w.near[n]]
            if g.inside[f] == 1:
                entry, step, _ = slice_of(w, f, y, h, -1)
                entry += w.table_at[f]
                for x in range(card):
                    acc[at + x] += tables[entry + x * step]
    for k in range(g.last[c] - 1, g.first[c], -1):
        h = g.visit[k]
        p, f = g.parent[h], g.up[h]
        at, up_at = w.state_ptr[h], w.state_ptr[p]
        card = w.state_ptr[h + 1] - at
        entry, step, up_step = slice_of(w, f, y, h, p)
        entry += w.table_at[f]
        for z in range(w.state_ptr[p + 1] - up_at):
            for x in range(card):
                room[x] = acc[at + x] + tables[entry + x * step + z * up_step]
            acc[up_at + z] += power_sum_of(room[:card], eps)
    root = g.visit[g.first[c]]
    return power_sum_of(acc[w.state_ptr[root] : w.state_ptr[root + 1]], eps)


@njit(cache=True, nogil=True)
def evaluate(w, which, g, unary, tables, y, eps, acc, value):  # type: ignore[no-untyped-def]
    """Q(y) of every named instance whose hidden components are trees; NaN elsewhere."""
    room = np.empty(w.widest)
    for b in which:
        value[b] = np.nan
        if not g.forest[b]:
            continue
        total = 0.0
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            if g.outside[i]:
                total += unary[w.state_ptr[i] + y[i]]
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            if g.inside[f] == 0:
                total += tables[w.table_at[f] + slice_of(w, f, y, -1, -1)[0]]
        for c in range(w.var_ptr[b], w.var_ptr[b] + g.n_components[b]):
            total += component_value(w, g, c, unary, tables, y, eps, acc, room)
        value[b] = total


@njit(cache=True, nogil=True)
def _softmax(values, eps, weight):  # type: ignore[no-untyped-def]
    """Turn scores into ``weight`` times their softmax, in place.

    Scores are compared with the largest, not with their power sum, whose rounding a tiny eps would magnify.
    """
    top, total = -np.inf, 0.0
    for v in values:
        top = v if v > top else top
    for x in range(len(values)):
        values[x] = np.exp((values[x] - top) / eps)
        total += values[x]
    for x in range(len(values)):
        values[x] *= weight / total


@njit(cache=True, nogil=True)
def component_marginals(w, g, c, unary, tables, y, eps, weight, acc, belief, room, mu_at, mu_unary, mu_tables):  # type: ignore[no-untyped-def]
    """Add ``weight`` times the marginals of component c given y."""
    if component_value(w, g, c, unary, tables, y, eps, acc, room) == -np.inf:
        return
    for k in range(g.first[c], g.last[c]):
        h = g.visit[k]
        at, p, up = w.state_ptr[h], g.parent[h], g.up[h]
        card = w.state_ptr[h + 1] - at
        if up < 0:
            for x in range(card):
                belief[at + x] = acc[at + x]
            _softmax(belief[at : at + card], eps, weight)
        else:
            for x in range(card):
                belief[at + x] = 0.0
            entry, step, up_step = slice_of(w, up, y, h, p)
            for z in range(w.state_ptr[p + 1] - w.state_ptr[p]):
                above = belief[w.state_ptr[p] + z]
                if above == 0.0:
                    continue
                for x in range(card):
                    room[x] = acc[at + x] + tables[w.table_at[up] + entry + x * step + z * up_step]
                _softmax(room[:card], eps, above)
                for x in range(card):
                    belief[at + x] += room[x]
                    mu_tables[mu_at[up] + entry + x * step + z * up_step] += room[x]
        for x in range(card):
            mu_unary[at + x] += belief[at + x]
        for n in range(w.near_ptr[h], w.near_ptr[h + 1]):
            f = w.slot_factor[w.near[n]]
            if g.inside[f] == 1:
                entry, step, _ = slice_of(w, f, y, h, -1)
                for x in range(card):
                    mu_tables[mu_at[f] + entry + x * step] += belief[at + x]


@njit(cache=True, nogil=True)
def marginals(w, which, g, unary, tables, y, eps, acc, mu_at, mu_unary, mu_tables):  # type: ignore[no-untyped-def]
    """Add the point mass on y times the marginals of h given y."""
    room = np.empty(w.widest)
    belief = np.empty(len(acc))
    for b in which:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            if g.outside[i]:
                mu_unary[w.state_ptr[i] + y[i]] += 1.0
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            if g.inside[f] == 0:
                mu_tables[mu_at[f] + slice_of(w, f, y, -1, -1)[0]] += 1.0
        for c in range(w.var_ptr[b], w.var_ptr[b] + g.n_components[b]):
            component_marginals(w, g, c, unary, tables, y, eps, 1.0, acc, belief, room, mu_at, mu_unary, mu_tables)


@njit(cache=True, nogil=True)
def options(w, b, g, i, unary, tables, y, eps, acc, room, stamp, out):  # type: ignore[no-untyped-def]
    """Q(y with y_i = x) for every state x, up to a constant; -inf where x is not allowed."""
    kept = y[i]
    at = w.state_ptr[i]
    for x in range(w.state_ptr[i + 1] - at):
        out[x] = unary[at + x]
        if out[x] == -np.inf:
            continue
        y[i] = x
        stamp[0] += 1
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            f = w.slot_factor[w.near[k]]
            if g.inside[f] == 0:
                out[x] += tables[w.table_at[f] + slice_of(w, f, y, -1, -1)[0]]
                continue
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                v = w.scope[s]
                if g.outside[v]:
                    continue
                c = w.var_ptr[b] + g.component[v]
                if stamp[1 + c] != stamp[0]:
                    stamp[1 + c] = stamp[0]
                    out[x] += component_value(w, g, c, unary, tables, y, eps, acc, room)
    y[i] = kept

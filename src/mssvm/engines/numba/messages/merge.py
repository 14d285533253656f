"""Hidden components summed out into factors over the outputs around them, so that no hidden variable is left.

    V_c(y_border) = PS_{eps_h} over component c of (theta of its unaries and factors)

A tree of outputs and hidden variables becomes a tree of outputs, on which the recursion is exact. Also here: the sweep
order and the test for cycles, which the merged wiring needs as much as the original one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from mssvm.engines.numba.messages.given import component_marginals, component_value


@njit(cache=True, nogil=True)
def sweep_order(w, which, order):  # type: ignore[no-untyped-def]
    """Factors by the place of their farthest variable, breadth first: on a forest one sweep each way is enough.

    With cycles the given numbering serves instead where it keeps neighbours about as close.
    """
    place = np.full(len(w.state_ptr), -1, dtype=np.int64)
    queue = np.empty(len(w.state_ptr), dtype=np.int64)
    for b in which:
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


@njit(cache=True, nogil=True)
def find_forests(w, which, free, forest):  # type: ignore[no-untyped-def]
    """Whether factors and the variables that can still vary form a graph without cycles."""
    root = np.arange(len(w.state_ptr))
    for b in which:
        forest[b] = True
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            head = -1
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                i = w.scope[s]
                if not free[i]:
                    continue
                while root[i] != i:
                    root[i] = root[root[i]]
                    i = root[i]
                if i == head:
                    forest[b] = False
                elif head >= 0:
                    root[i] = head
                else:
                    head = i


@njit(cache=True, nogil=True)
def _border(w, g, c, free, seen, name, members):  # type: ignore[no-untyped-def]
    """Outputs that can vary and touch component c; returns how many."""
    n = 0
    for k in range(g.first[c], g.last[c]):
        h = g.visit[k]
        for e in range(w.near_ptr[h], w.near_ptr[h + 1]):
            f = w.slot_factor[w.near[e]]
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                v = w.scope[s]
                if g.outside[v] and free[v] and seen[v] != name:
                    seen[v] = name
                    members[n] = v
                    n += 1
    members[:n].sort()
    return n


@njit(cache=True, nogil=True)
def measure(w, which, g, free, entries, n_factors, n_slots, work):  # type: ignore[no-untyped-def]
    """Per instance: table entries, factors and slots of the merged form, and operations to fill it (or inf)."""
    seen = np.full(len(w.state_ptr), -1, dtype=np.int64)
    members = np.empty(len(w.state_ptr), dtype=np.int64)
    for b in which:
        entries[b], n_factors[b], n_slots[b], work[b] = 0.0, 0, 0, 0.0
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            if g.inside[f] == 0:
                n_factors[b] += 1
                n_slots[b] += w.scope_ptr[f + 1] - w.scope_ptr[f]
        for c in range(w.var_ptr[b], w.var_ptr[b] + g.n_components[b]):
            n = _border(w, g, c, free, seen, c, members)
            size = 1.0
            for k in range(n):
                size *= w.state_ptr[members[k] + 1] - w.state_ptr[members[k]]
            cost = 0.0
            for k in range(g.first[c], g.last[c]):
                h = g.visit[k]
                card = w.state_ptr[h + 1] - w.state_ptr[h]
                cost += card * (w.near_ptr[h + 1] - w.near_ptr[h] + (card if g.last[c] - g.first[c] > 1 else 1))
            work[b] += size * cost if g.tree[c] else np.inf
            if n > 1:
                entries[b] += size
                n_factors[b] += 1
                n_slots[b] += n


@njit(cache=True, nogil=True)
def _next(w, members, n, y):  # type: ignore[no-untyped-def]
    """Advance the states of the border like an odometer, the last one fastest."""
    for k in range(n - 1, -1, -1):
        v = members[k]
        y[v] += 1
        if y[v] < w.state_ptr[v + 1] - w.state_ptr[v]:
            return
        y[v] = 0


@njit(cache=True, nogil=True)
def merge(  # type: ignore[no-untyped-def]
    w,
    which,
    g,
    free,
    unary,
    tables,
    y,
    eps,
    acc,
    scope_ptr,
    scope,
    table_at,
    factor_at,
    new_unary,
    new_tables,
    table_from,
):
    """Fill scopes and tables of the merged factors: those without hidden variables, then one a component.

    Instance b's factors start at ``factor_at[b]``, its new tables at ``table_from[b]``; ``y`` is overwritten.
    """
    seen = np.full(len(w.state_ptr), -1, dtype=np.int64)
    members = np.empty(len(w.state_ptr), dtype=np.int64)
    room = np.empty(w.widest)
    for b in which:
        a, at = factor_at[b], table_from[b]
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            if g.inside[f] == 0:
                scope_ptr[a + 1] = scope_ptr[a]
                for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                    scope[scope_ptr[a + 1]] = w.scope[s]
                    scope_ptr[a + 1] += 1
                table_at[a] = w.table_at[f]
                a += 1
        for c in range(w.var_ptr[b], w.var_ptr[b] + g.n_components[b]):
            n = _border(w, g, c, free, seen, c, members)
            size = 1
            for k in range(n):
                y[members[k]] = 0
                size *= w.state_ptr[members[k] + 1] - w.state_ptr[members[k]]
            into, place = new_tables, at
            if n < 2:
                into = new_unary
                place = w.state_ptr[members[0] if n else g.visit[g.first[c]]]
            for t in range(size):
                allowed = True
                for k in range(n):
                    allowed &= unary[w.state_ptr[members[k]] + y[members[k]]] > -np.inf
                if allowed:
                    into[place + t] += component_value(w, g, c, unary, tables, y, eps, acc, room)
                _next(w, members, n, y)
            if n > 1:
                scope_ptr[a + 1] = scope_ptr[a] + n
                scope[scope_ptr[a] : scope_ptr[a + 1]] = members[:n]
                table_at[a] = len(tables) + at
                a, at = a + 1, at + size


@njit(cache=True, nogil=True)
def unmerge(  # type: ignore[no-untyped-def]
    w, which, g, free, unary, tables, y, eps, acc, reduced, node, factor, factor_at, mu_at, mu_unary, mu_tables
):
    """Marginals of the original model from beliefs of the merged one: E over the border of the marginals given it."""
    seen = np.full(len(w.state_ptr), -1, dtype=np.int64)
    members = np.empty(len(w.state_ptr), dtype=np.int64)
    room, belief = np.empty(w.widest), np.empty(len(acc))
    for b in which:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            if g.outside[i]:
                for e in range(w.state_ptr[i], w.state_ptr[i + 1]):
                    mu_unary[e] += node[e]
        a = reduced.factor_ptr[b]
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            if g.inside[f] == 0:
                size = 1
                for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                    size *= w.message_at[s + 1] - w.message_at[s]
                for t in range(size):
                    mu_tables[mu_at[f] + t] += factor[factor_at[a] + t]
                a += 1
        for c in range(w.var_ptr[b], w.var_ptr[b] + g.n_components[b]):
            n = _border(w, g, c, free, seen, c, members)
            size = 1
            for k in range(n):
                y[members[k]] = 0
                size *= w.state_ptr[members[k] + 1] - w.state_ptr[members[k]]
            for t in range(size):
                weight = 1.0
                if n == 1:
                    weight = node[w.state_ptr[members[0]] + t]
                elif n > 1:
                    weight = factor[factor_at[a] + t]
                if weight > 0.0:
                    component_marginals(
                        w, g, c, unary, tables, y, eps, weight, acc, belief, room, mu_at, mu_unary, mu_tables
                    )
                _next(w, members, n, y)
            a += n > 1

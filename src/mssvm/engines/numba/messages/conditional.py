"""Q(y) = PS_{eps_h} over h of theta(y, h), exactly, where the hidden variables fall into trees once y is given.

Every connected component of the hidden variables contributes a term of its own, so changing one output changes only the
components it touches: coordinate ascent and annealed Gibbs sampling over y evaluate those alone. Tabulated over the
outputs at its border, a component becomes a factor over them:

    V_c(y_border) = PS_{eps_h} over component c of (theta of its unaries and factors)

``g`` are the components (``HiddenComponents``); variables with one allowed state count as given, whatever their role.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit
from mssvm.engines.numba.messages.log import power_sum_of


@njit(cache=True, nogil=True)
def slice_of(w, f, y, i, j):
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
def _component_value(w, g, c, unary, tables, y, eps, acc, work):
    """PS_{eps_h} over component c given y; leaves the upward sums of every member in ``acc``."""
    for k in range(g.member_ptr[c], g.member_ptr[c + 1]):
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
    for k in range(g.member_ptr[c + 1] - 1, g.member_ptr[c], -1):
        h = g.visit[k]
        p, f = g.parent[h], g.up[h]
        at, up_at = w.state_ptr[h], w.state_ptr[p]
        card = w.state_ptr[h + 1] - at
        entry, step, up_step = slice_of(w, f, y, h, p)
        entry += w.table_at[f]
        for z in range(w.state_ptr[p + 1] - up_at):
            for x in range(card):
                work[x] = acc[at + x] + tables[entry + x * step + z * up_step]
            acc[up_at + z] += power_sum_of(work[:card], eps)
    root = g.visit[g.member_ptr[c]]
    return power_sum_of(acc[w.state_ptr[root] : w.state_ptr[root + 1]], eps)


@njit(cache=True, nogil=True)
def evaluate(w, g, instances, unary, tables, y, eps, value):
    """Q(y) of every named instance whose hidden components are trees; NaN elsewhere."""
    work, acc = np.empty(w.widest), np.empty(len(unary))
    for b in instances:
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
        for c in range(g.ptr[b], g.ptr[b + 1]):
            total += _component_value(w, g, c, unary, tables, y, eps, acc, work)
        value[b] = total


@njit(cache=True, nogil=True)
def _softmax(values, eps, weight):
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
def _component_marginals(w, g, c, unary, tables, y, eps, weight, acc, belief, work, mu_at, mu_unary, mu_tables):
    """Add ``weight`` times the marginals of component c given y."""
    if _component_value(w, g, c, unary, tables, y, eps, acc, work) == -np.inf:
        return
    for k in range(g.member_ptr[c], g.member_ptr[c + 1]):
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
                    work[x] = acc[at + x] + tables[w.table_at[up] + entry + x * step + z * up_step]
                _softmax(work[:card], eps, above)
                for x in range(card):
                    belief[at + x] += work[x]
                    mu_tables[mu_at[up] + entry + x * step + z * up_step] += work[x]
        for x in range(card):
            mu_unary[at + x] += belief[at + x]
        for n in range(w.near_ptr[h], w.near_ptr[h + 1]):
            f = w.slot_factor[w.near[n]]
            if g.inside[f] == 1:
                entry, step, _ = slice_of(w, f, y, h, -1)
                for x in range(card):
                    mu_tables[mu_at[f] + entry + x * step] += belief[at + x]


@njit(cache=True, nogil=True)
def marginals(w, g, instances, unary, tables, y, eps, mu_at, mu_unary, mu_tables):
    """Add the point mass on y times the marginals of h given y."""
    work, acc, belief = np.empty(w.widest), np.empty(len(unary)), np.empty(len(unary))
    for b in instances:
        if not g.forest[b]:
            continue
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            if g.outside[i]:
                mu_unary[w.state_ptr[i] + y[i]] += 1.0
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            if g.inside[f] == 0:
                mu_tables[mu_at[f] + slice_of(w, f, y, -1, -1)[0]] += 1.0
        for c in range(g.ptr[b], g.ptr[b + 1]):
            _component_marginals(w, g, c, unary, tables, y, eps, 1.0, acc, belief, work, mu_at, mu_unary, mu_tables)


@njit(cache=True, nogil=True)
def _options(w, g, i, unary, tables, y, eps, acc, work, stamp, out):
    """Q(y with y_i = x) for every state x, up to a constant; -inf where x is not allowed."""
    kept = y[i]
    at = w.state_ptr[i]
    for x in range(w.state_ptr[i + 1] - at):
        out[x] = unary[at + x]
        if out[x] == -np.inf:
            continue
        y[i] = x
        stamp[-1] += 1
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            f = w.slot_factor[w.near[k]]
            if g.inside[f] == 0:
                out[x] += tables[w.table_at[f] + slice_of(w, f, y, -1, -1)[0]]
                continue
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                v = w.scope[s]
                if g.outside[v]:
                    continue
                c = g.component[v]
                if stamp[c] != stamp[-1]:
                    stamp[c] = stamp[-1]
                    out[x] += _component_value(w, g, c, unary, tables, y, eps, acc, work)
    y[i] = kept


# --- local search over outputs ---------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _ascend(w, g, b, free, unary, tables, y, eps, acc, work, stamp, out):
    lo, hi = w.var_ptr[b], w.var_ptr[b + 1]
    quiet, i = 0, lo
    while quiet < hi - lo:
        quiet += 1
        if free[i]:
            _options(w, g, i, unary, tables, y, eps, acc, work, stamp, out)
            best = y[i]
            for x in range(w.state_ptr[i + 1] - w.state_ptr[i]):
                if out[x] > out[best]:
                    best = x
            # A gain within rounding could be undone by the next visit, for ever.
            if out[best] > out[y[i]] + 1e-11 * (1.0 + abs(out[best])):
                y[i] = best
                quiet = 0
        i = i + 1 if i + 1 < hi else lo


@njit(cache=True, nogil=True)
def _flip_cost(w, g, b, free):
    """Operations of one round over all outputs, roughly: states tried times members of the components touched."""
    total = 1.0
    for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
        if not free[i]:
            continue
        card = w.state_ptr[i + 1] - w.state_ptr[i]
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            f = w.slot_factor[w.near[k]]
            total += card
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                v = w.scope[s]
                if not g.outside[v]:
                    c = g.component[v]
                    n, states = g.member_ptr[c + 1] - g.member_ptr[c], w.state_ptr[v + 1] - w.state_ptr[v]
                    total += 8.0 * card * n * (states if n == 1 else states**2)
    return total


@njit(cache=True, nogil=True)
def _draw(out, card, t, draw):
    """A state with probability ~ exp(out / t)."""
    top = -np.inf
    for x in range(card):
        top = out[x] if out[x] > top else top
    total = 0.0
    for x in range(card):
        out[x] = np.exp((out[x] - top) / t)
        total += out[x]
    left = draw * total
    for x in range(card):
        left -= out[x]
        if left <= 0.0 and out[x] > 0.0:
            return x
    return int(np.argmax(out[:card]))


@njit(cache=True, nogil=True)
def anneal(w, g, instances, free, unary, tables, y, eps, hot, cold, rounds, budget, draws):
    """Gibbs rounds at temperatures falling geometrically from ``hot[b]`` to ``cold[b]``, then coordinate ascent."""
    work, out, acc = np.empty(w.widest), np.empty(w.widest), np.empty(len(unary))
    stamp = np.zeros(len(g.tree) + 1, dtype=np.int64)
    for b in instances:
        if not g.forest[b]:
            continue
        n = min(rounds, int(budget / _flip_cost(w, g, b, free))) if rounds > 0 else 0
        drawn = 0
        for k in range(n):
            t = hot[b] * (cold[b] / hot[b]) ** (k / max(n - 1, 1))
            for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
                if free[i]:
                    _options(w, g, i, unary, tables, y, eps, acc, work, stamp, out)
                    y[i] = _draw(out, w.state_ptr[i + 1] - w.state_ptr[i], t, draws[drawn])
                    drawn += 1
        _ascend(w, g, b, free, unary, tables, y, eps, acc, work, stamp, out)


# --- components as factors over their borders ------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _first(borders, c, y):
    """The border of a component, all of it in state 0."""
    members = borders.var[borders.ptr[c] : borders.ptr[c + 1]]
    for v in members:
        y[v] = 0
    return members


@njit(cache=True, nogil=True)
def _next(w, members, y):
    """Advance the states of the border like an odometer, the last one fastest."""
    for k in range(len(members) - 1, -1, -1):
        v = members[k]
        y[v] += 1
        if y[v] < w.state_ptr[v + 1] - w.state_ptr[v]:
            return
        y[v] = 0


@njit(cache=True, nogil=True)
def tabulate(w, g, borders, instances, unary, tables, y, eps, values):
    """V_c of every component of the named instances; ``y`` is overwritten at the border."""
    work, acc = np.empty(w.widest), np.empty(len(unary))
    for b in instances:
        for c in range(g.ptr[b], g.ptr[b + 1]):
            members = _first(borders, c, y)
            for t in range(borders.entry_ptr[c], borders.entry_ptr[c + 1]):
                allowed = True
                for v in members:
                    allowed &= unary[w.state_ptr[v] + y[v]] > -np.inf
                values[t] = _component_value(w, g, c, unary, tables, y, eps, acc, work) if allowed else 0.0
                _next(w, members, y)


@njit(cache=True, nogil=True)
def expect(w, g, borders, instances, unary, tables, y, eps, weights, mu_at, mu_unary, mu_tables):
    """Add the expectation over the border of the marginals given it; ``y`` is overwritten at the border."""
    work, acc, belief = np.empty(w.widest), np.empty(len(unary)), np.empty(len(unary))
    for b in instances:
        for c in range(g.ptr[b], g.ptr[b + 1]):
            members = _first(borders, c, y)
            for t in range(borders.entry_ptr[c], borders.entry_ptr[c + 1]):
                if weights[t] > 0.0:
                    _component_marginals(
                        w, g, c, unary, tables, y, eps, weights[t], acc, belief, work, mu_at, mu_unary, mu_tables
                    )
                _next(w, members, y)

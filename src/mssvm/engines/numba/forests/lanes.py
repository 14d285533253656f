"""Forests side by side: eight instances in a register, at one temperature; sums in scaled probabilities, or maxima.

Instances of a group have the same rooted forest, read from the root, though some may end sooner than others (chains of
different lengths), and read the same tables. Positions run from the leaves to the root; an instance that ends sooner
lacks the first positions, which then send neutral messages.

    up      b_i = e_i * messages of the children / scale,  s_i = b_i E     e_i = exp(theta_i/eps), E = exp(theta_ip/eps)
    down    q_i = b_i t_i,  t_i = E r_i,  r_i = q_p / s_i                (= e_p t_p / scale_p where i is p's only child)

The marginals of tied factors are sums of outer products b_i (x) r_i over the positions of a table, times E, once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.forests.scaled import BatchPtr, Tables
from mssvm.engines.numba.vector import WIDTH, above, load, splat, store, vexp, vlog, vmax, where

L = WIDTH
FAST = {"reassoc", "contract", "nsz", "arcp"}
NONE = -1e300
TINY = 1e-300
# A sum above this is not made of what underflow left over: whatever was lost is 50 orders of magnitude below it.
SMALLEST = 1e-200


class Family(NamedTuple):
    """The longest forest of a group of instances, by position; ``edges[slot_ptr[k] : slot_ptr[k+1]]`` read table k."""

    card: Ints
    at: Ints  # first register of each position
    parent: Ints  # -1 at a root
    only: Bools  # the position is its parent's only child
    flip: Bools  # the first axis of the position's table is the parent's
    message: Ints  # first register of the message to the parent
    table: Ints  # slot of the table to the parent, -1 at a root
    slot_ptr: Ints
    edges: Ints
    size: int
    n_messages: int


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def store_five(y: Floats, o: int, a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
    store(y, o, a)
    store(y, o + L, b)
    store(y, o + 2 * L, c)
    store(y, o + 3 * L, d)
    store(y, o + 4 * L, e)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, inline="always")
def push(x: Floats, at: int, n: int, A: Floats, a: int, m: int, y: Floats, to: int) -> None:
    """y_k = sum_j x_j A[a + j m + k]: m numbers from n."""
    k = 0
    while k + 5 <= m:
        q = load(x, at)
        s0, s1, s2, s3, s4 = q * A[a + k], q * A[a + k + 1], q * A[a + k + 2], q * A[a + k + 3], q * A[a + k + 4]
        for j in range(1, n):
            q = load(x, at + L * j)
            r = a + j * m + k
            s0, s1, s2 = s0 + q * A[r], s1 + q * A[r + 1], s2 + q * A[r + 2]
            s3, s4 = s3 + q * A[r + 3], s4 + q * A[r + 4]
        o = to + L * k
        store_five(y, o, s0, s1, s2, s3, s4)
        k += 5
    while k + 2 <= m:
        q = load(x, at)
        s0, s1 = q * A[a + k], q * A[a + k + 1]
        for j in range(1, n):
            q = load(x, at + L * j)
            s0, s1 = s0 + q * A[a + j * m + k], s1 + q * A[a + j * m + k + 1]
        store(y, to + L * k, s0)
        store(y, to + L * (k + 1), s1)
        k += 2
    while k < m:
        s = load(x, at) * A[a + k]
        for j in range(1, n):
            s = s + load(x, at + L * j) * A[a + j * m + k]
        store(y, to + L * k, s)
        k += 1


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def read(
    f: Family, group: Ints, first: Floats, order: Ints, node_ptr: Ints, layout: BatchPtr, unary: Floats, allowed: Bools,
    place: Ints, e: Floats,
) -> None:  # fmt: skip
    """Scores of a group by position and state, masked ones at ``NONE``; ``place[p, lane]`` is where they lie, or -1."""
    n = len(f.card)
    for lane in range(L):
        b = group[lane]
        g = layout.topology_of[b]
        length = node_ptr[g + 1] - node_ptr[g]
        first[lane] = n - length
        for p in range(n):
            k = f.card[p]
            o = f.at[p] * L + lane
            if p < n - length:
                place[p, lane] = -1
                for x in range(k):
                    e[o + L * x] = 0.0
            else:
                j = layout.unary_ptr[layout.var_ptr[b] + order[node_ptr[g] + p - (n - length)]]
                place[p, lane] = j
                for x in range(k):
                    e[o + L * x] = unary[j + x] if allowed[j + x] else NONE


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def exponentiate(f: Family, eps: float, e: Floats, b: Floats) -> Any:
    """exp((score - max) / eps) of every position in ``e`` and ``b``; the sum of the maxima."""
    total, inv = splat(0.0), 1.0 / eps
    for p in range(len(f.card)):
        o, k = f.at[p] * L, f.card[p]
        hi = load(e, o)
        for x in range(1, k):
            hi = vmax(hi, load(e, o + L * x))
        for x in range(k):
            v = vexp((load(e, o + L * x) - hi) * inv)
            store(e, o + L * x, v)
            store(b, o + L * x, v)
        total = total + hi
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def upward(
    f: Family, start: Ints, A: Floats, At: Floats, ragged: bool, first: Floats, b: Floats, s: Floats, scale: Floats
) -> Any:
    """Messages from the leaves to the roots; the sum of the logarithms of the scales, and the smallest scale."""
    logs, one, least = splat(0.0), splat(1.0), splat(1.0)
    for p in range(len(f.card)):
        o, k, q = f.at[p] * L, f.card[p], f.parent[p]
        z = load(b, o)
        for x in range(1, k):
            z = z + load(b, o + L * x)
        least = where(above(least, z), z, least)
        z = vmax(z, splat(TINY))
        inv = one / z
        logs = logs + vlog(z)
        store(scale, p * L, inv)
        for x in range(k):
            store(b, o + L * x, load(b, o + L * x) * inv)
        if q >= 0:
            m, c, u = f.message[p] * L, f.card[q], f.at[q] * L
            push(b, o, k, At if f.flip[p] else A, start[f.table[p]], c, s, m)
            if ragged and p < first.max():
                absent = above(load(first, 0), splat(p + 0.0))
                for x in range(c):
                    store(s, m + L * x, where(absent, one, load(s, m + L * x)))
            for x in range(c):
                store(b, u + L * x, load(b, u + L * x) * load(s, m + L * x))
    return logs, least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def downward(
    f: Family, start: Ints, A: Floats, At: Floats, ragged: bool, first: Floats, e: Floats, b: Floats, s: Floats,
    scale: Floats, t: Floats,
) -> None:  # fmt: skip
    """Messages back to the leaves: ``t``, and in ``s`` the r of every position."""
    one, zero = splat(1.0), splat(0.0)
    for p in range(len(f.card) - 1, -1, -1):
        o, k, q = f.at[p] * L, f.card[p], f.parent[p]
        if q < 0:
            for x in range(k):
                store(t, o + L * x, one)
            continue
        m, c, u = f.message[p] * L, f.card[q], f.at[q] * L
        inv = load(scale, q * L)
        for x in range(c):
            if f.only[p]:
                r = load(e, u + L * x) * load(t, u + L * x) * inv
            else:
                r = load(b, u + L * x) * load(t, u + L * x) / vmax(load(s, m + L * x), splat(TINY))
            store(s, m + L * x, r)
        if ragged and p < first.max():
            absent = above(load(first, 0), splat(p + 0.0))
            for x in range(c):
                store(s, m + L * x, where(absent, zero, load(s, m + L * x)))
        push(s, m, c, A if f.flip[p] else At, start[f.table[p]], k, t, o)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def outer(f: Family, k: int, rows: int, cols: int, b: Floats, s: Floats, G: Floats) -> None:
    """G[i, j]: the sum over the positions of table k of the outer product of b and r, in the order of its axes."""
    lo, hi = f.slot_ptr[k], f.slot_ptr[k + 1]
    for i in range(rows):
        j = 0
        while j < cols:
            wide = j + 5 <= cols
            c0, c1, c2, c3, c4 = splat(0.0), splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            if wide:
                for n in range(lo, hi):
                    p = f.edges[n]
                    if f.flip[p]:
                        z, w = load(s, (f.message[p] + i) * L), (f.at[p] + j) * L
                        c0, c1, c2 = c0 + z * load(b, w), c1 + z * load(b, w + L), c2 + z * load(b, w + 2 * L)
                        c3, c4 = c3 + z * load(b, w + 3 * L), c4 + z * load(b, w + 4 * L)
                    else:
                        z, w = load(b, (f.at[p] + i) * L), (f.message[p] + j) * L
                        c0, c1, c2 = c0 + z * load(s, w), c1 + z * load(s, w + L), c2 + z * load(s, w + 2 * L)
                        c3, c4 = c3 + z * load(s, w + 3 * L), c4 + z * load(s, w + 4 * L)
                o = (i * cols + j) * L
                store_five(G, o, c0, c1, c2, c3, c4)
                j += 5
            else:
                for n in range(lo, hi):
                    p = f.edges[n]
                    if f.flip[p]:
                        c0 = c0 + load(s, (f.message[p] + i) * L) * load(b, (f.at[p] + j) * L)
                    else:
                        c0 = c0 + load(b, (f.at[p] + i) * L) * load(s, (f.message[p] + j) * L)
                store(G, (i * cols + j) * L, c0)
                j += 1


@njit(cache=True, nogil=True, error_model="numpy")
def write_nodes(f: Family, real: int, place: Ints, b: Floats, t: Floats, mu_unary: Floats) -> None:
    for p in range(len(f.card)):
        o = f.at[p] * L
        for x in range(f.card[p]):
            store(b, o + L * x, load(b, o + L * x) * load(t, o + L * x))
        for lane in range(real):
            j = place[p, lane]
            if j >= 0:
                for x in range(f.card[p]):
                    mu_unary[j + x] = b[o + L * x + lane]


@njit(cache=True, nogil=True, error_model="numpy")
def sum_lanes(
    ptr: Ints, members: Ints, f: Family, order: Ints, edge: Ints, node_ptr: Ints, layout: BatchPtr, start: Ints,
    rows: Ints, cols: Ints, tables: Tables, unary: Floats, allowed: Bools, eps: float, value: Floats, mu_unary: Floats,
    mu_tables: Floats, done: Bools,
) -> None:  # fmt: skip
    """Groups ``members[ptr[g] : ptr[g + 1]]`` of at most eight instances; ``done`` is set where sums were safe."""
    n = len(f.card)
    e, b, t, s = np.empty(f.size * L), np.empty(f.size * L), np.empty(f.size * L), np.empty(f.n_messages * L)
    scale, first, place = np.empty(n * L), np.empty(L), np.empty((n, L), np.int64)
    largest = 0
    for k in range(len(start)):
        largest = max(largest, rows[k] * cols[k])
    G, group, out, lows = np.empty(largest * L), np.empty(L, np.int64), np.empty(L), np.empty(L)
    for index in range(len(ptr) - 1):
        real = ptr[index + 1] - ptr[index]
        for lane in range(L):
            group[lane] = members[ptr[index] + min(lane, real - 1)]
        read(f, group, first, order, node_ptr, layout, unary, allowed, place, e)
        ragged = first.max() > 0.0
        total = exponentiate(f, eps, e, b)
        logs, least = upward(f, start, tables.e, tables.et, ragged, first, b, s, scale)
        store(out, 0, total + logs * eps)
        store(lows, 0, least)
        for lane in range(real):
            v = out[lane]
            for p in range(int(first[lane]), n):
                if f.parent[p] >= 0:
                    v += tables.top[start[f.table[p]]]
            for p in range(int(first[lane])):
                v -= eps * np.log(f.card[p] + 0.0)
            value[group[lane]] = v
            done[group[lane]] = lows[lane] > SMALLEST and v > NONE / 2
        downward(f, start, tables.e, tables.et, ragged, first, e, b, s, scale, t)
        for k in range(len(start)):
            outer(f, k, rows[k], cols[k], b, s, G)
            p = f.edges[f.slot_ptr[k + 1] - 1]
            for lane in range(real):
                if p >= first[lane]:
                    c = group[lane]
                    g = layout.topology_of[c]
                    v = order[node_ptr[g] + p - int(first[lane])]
                    at = layout.mu_at[layout.factor_ptr[c] + edge[node_ptr[g] + v]]
                    for j in range(rows[k] * cols[k]):
                        mu_tables[at + j] = G[j * L + lane] * tables.e[start[k] + j]
        write_nodes(f, real, place, b, t, mu_unary)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, inline="always")
def push_max(x: Floats, at: int, n: int, A: Floats, a: int, m: int, y: Floats, to: int) -> None:
    """y_k = max_j x_j + A[a + j m + k]."""
    k = 0
    while k + 5 <= m:
        q = load(x, at)
        s0, s1, s2, s3, s4 = q + A[a + k], q + A[a + k + 1], q + A[a + k + 2], q + A[a + k + 3], q + A[a + k + 4]
        for j in range(1, n):
            q = load(x, at + L * j)
            r = a + j * m + k
            s0, s1, s2 = vmax(s0, q + A[r]), vmax(s1, q + A[r + 1]), vmax(s2, q + A[r + 2])
            s3, s4 = vmax(s3, q + A[r + 3]), vmax(s4, q + A[r + 4])
        o = to + L * k
        store_five(y, o, s0, s1, s2, s3, s4)
        k += 5
    while k < m:
        s = load(x, at) + A[a + k]
        for j in range(1, n):
            s = vmax(s, load(x, at + L * j) + A[a + j * m + k])
        store(y, to + L * k, s)
        k += 1


@njit(cache=True, nogil=True, error_model="numpy")
def both_ways(start: Ints, rows: Ints, cols: Ints, raw: Floats) -> tuple[Floats, Ints]:
    """Every table as it is and, behind all of them, transposed; where each begins."""
    total, at = 0, np.zeros((2, len(start)), np.int64)
    for k in range(len(start)):
        total += rows[k] * cols[k]
    out, filled = np.empty(2 * total), 0
    for k in range(len(start)):
        at[0, k], at[1, k] = filled, total + filled
        for i in range(rows[k]):
            for j in range(cols[k]):
                out[filled + i * cols[k] + j] = out[total + filled + j * rows[k] + i] = raw[start[k] + i * cols[k] + j]
        filled += rows[k] * cols[k]
    return out, at


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def upward_max(f: Family, A: Floats, table_at: Ints, ragged: bool, first: Floats, b: Floats, s: Floats) -> None:
    """b_i = theta_i + maxima over the children."""
    zero = splat(0.0)
    for p in range(len(f.card)):
        q = f.parent[p]
        if q >= 0:
            m, c, u = f.message[p] * L, f.card[q], f.at[q] * L
            push_max(b, f.at[p] * L, f.card[p], A, table_at[1 if f.flip[p] else 0, f.table[p]], c, s, m)
            if ragged and p < first.max():
                absent = above(load(first, 0), splat(p + 0.0))
                for x in range(c):
                    store(s, m + L * x, where(absent, zero, load(s, m + L * x)))
            for x in range(c):
                store(b, u + L * x, load(b, u + L * x) + load(s, m + L * x))


@njit(cache=True, nogil=True, error_model="numpy")
def max_lanes(
    ptr: Ints, members: Ints, f: Family, order: Ints, edge: Ints, node_ptr: Ints, layout: BatchPtr, start: Ints,
    rows: Ints, cols: Ints, raw: Floats, unary: Floats, allowed: Bools, value: Floats, mu_unary: Floats,
    mu_tables: Floats,
) -> None:  # fmt: skip
    """The same at temperature zero: the maximum, and the first states that attain it, as point masses."""
    n = len(f.card)
    b, s = np.empty(f.size * L), np.empty(f.n_messages * L)
    first, place, state = np.empty(L), np.empty((n, L), np.int64), np.empty(n, np.int64)
    A, table_at = both_ways(start, rows, cols, raw)
    group = np.empty(L, np.int64)
    for index in range(len(ptr) - 1):
        real = ptr[index + 1] - ptr[index]
        for lane in range(L):
            group[lane] = members[ptr[index] + min(lane, real - 1)]
        read(f, group, first, order, node_ptr, layout, unary, allowed, place, b)
        upward_max(f, A, table_at, first.max() > 0.0, first, b, s)
        for lane in range(real):
            c = group[lane]
            g, v = layout.topology_of[c], 0.0
            for p in range(n - 1, int(first[lane]) - 1, -1):
                o, q, best, top = f.at[p] * L + lane, f.parent[p], 0, -np.inf
                a, step = 0, 0
                if q >= 0:
                    k = f.table[p]
                    a = table_at[0, k] + (state[q] * cols[k] if f.flip[p] else state[q])
                    step = 1 if f.flip[p] else cols[k]
                for x in range(f.card[p]):
                    score = b[o + L * x] + (A[a + x * step] if q >= 0 else 0.0)
                    if score > top:
                        best, top = x, score
                state[p] = best
                v += top if q < 0 else 0.0
            value[c] = v if v > NONE / 2 else -np.inf
            for p in range(int(first[lane]), n):
                mu_unary[place[p, lane] : place[p, lane] + f.card[p]] = 0.0
            for k in range(len(start)):
                p = f.edges[f.slot_ptr[k + 1] - 1]
                if p >= first[lane]:
                    var = order[node_ptr[g] + p - int(first[lane])]
                    at = layout.mu_at[layout.factor_ptr[c] + edge[node_ptr[g] + var]]
                    mu_tables[at : at + rows[k] * cols[k]] = 0.0
            if not v > NONE / 2:
                continue
            for p in range(int(first[lane]), n):
                mu_unary[place[p, lane] + state[p]] = 1.0
                q = f.parent[p]
                if q >= 0:
                    var = order[node_ptr[g] + p - int(first[lane])]
                    at = layout.mu_at[layout.factor_ptr[c] + edge[node_ptr[g] + var]]
                    i, j = (state[q], state[p]) if f.flip[p] else (state[p], state[q])
                    mu_tables[at + i * cols[f.table[p]] + j] += 1.0

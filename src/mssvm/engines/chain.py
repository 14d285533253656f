"""Sum-product on many chains at once, in scaled probabilities, with the chains side by side in the vector lanes.

For chains whose nodes all have K states and whose edges all read one table. Buffers are (position, state, lane); chains of
different lengths are aligned at their last node, lane l beginning at position ``begin[l]``. With few states this is
many times faster than a loop over chains, because every operation is a long contiguous multiply-add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from mssvm.arrays import Bools, Floats, Ints
from mssvm.engines.scaled import Layout, Tables, exp_neg

LANES = 32
SAFE = 250.0  # (range of the scores of a node + twice the range of the table) / eps up to which nothing can underflow


class Lanes(NamedTuple):
    """Buffers of one group of chains: beliefs and messages (position state, lane), and one row of this and that."""

    b: Floats
    s: Floats  # messages, then q / s
    psi: Floats
    top: Floats
    low: Floats
    total: Floats
    first: Ints  # where position 0 of the lane would lie among the unary scores
    begin: Ints


@njit(cache=True, nogil=True, error_model="numpy")
def make_lanes(first: Ints, count: Ints, length: int, k: int, copies: int) -> Lanes:
    """Buffers for ``copies`` sweeps over chains of ``count`` nodes whose scores start at ``first``."""
    lanes = len(first)
    size = (copies * length * k, lanes)
    work = Lanes(
        np.empty(size), np.empty(size), np.empty((k, lanes)), np.empty(lanes), np.empty(lanes), np.empty(lanes),
        np.zeros(lanes, np.int64), np.zeros(lanes, np.int64),
    )  # fmt: skip
    for l in range(lanes):
        work.begin[l] = length - count[l]
        work.first[l] = first[l] - work.begin[l] * k
    return work


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def node_factors(
    t: int, k: int, eps: float, unary: Floats, allowed: Bools, extra: Floats, extra_at: Ints, shift: int, work: Lanes
) -> None:
    """psi = exp((scores - max) / eps) at position t; ``top`` sums the maxima, ``low`` is the smallest exponent met.

    ``extra_at[l, t] + shift`` is where further scores of the node lie in ``extra`` (none if it has no rows).
    """
    psi, top, low, hi = work.psi, work.top, work.low, work.total
    lanes = psi.shape[1]
    for l in range(lanes):
        j = work.first[l] + t * k
        if t < work.begin[l]:
            psi[:, l] = 0.0
        elif len(extra_at):
            i = extra_at[l, t] + shift
            for x in range(k):
                psi[x, l] = unary[j + x] + extra[i + x] if allowed[j + x] else -np.inf
        else:
            for x in range(k):
                psi[x, l] = unary[j + x] if allowed[j + x] else -np.inf
    for l in range(lanes):
        hi[l] = psi[0, l]
    for x in range(1, k):
        for l in range(lanes):
            hi[l] = psi[x, l] if psi[x, l] > hi[l] else hi[l]
    for l in range(lanes):
        top[l] += hi[l]
    inverse = 1.0 / eps
    for x in range(k):
        for l in range(lanes):
            v = (psi[x, l] - hi[l]) * inverse
            low[l] = v if (v < low[l] and v > -np.inf) else low[l]
            psi[x, l] = exp_neg(v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def product(e: Floats, e_at: int, sx: int, sz: int, k: int, b: Floats, at: int, s: Floats, out: int) -> None:
    """s(z, lane) = sum_x E(x, z) b(x, lane), with E's strides given."""
    lanes = b.shape[1]
    for z in range(k):
        o, c = out + z, e_at + z * sz
        if k >= 4:
            e0, e1, e2, e3 = e[c], e[c + sx], e[c + 2 * sx], e[c + 3 * sx]
            for l in range(lanes):
                s[o, l] = (e0 * b[at, l] + e1 * b[at + 1, l]) + (e2 * b[at + 2, l] + e3 * b[at + 3, l])
            x = 4
        else:
            e0 = e[c]
            for l in range(lanes):
                s[o, l] = e0 * b[at, l]
            x = 1
        while x + 4 <= k:
            e0, e1, e2, e3 = e[c + x * sx], e[c + (x + 1) * sx], e[c + (x + 2) * sx], e[c + (x + 3) * sx]
            i = at + x
            for l in range(lanes):
                s[o, l] += (e0 * b[i, l] + e1 * b[i + 1, l]) + (e2 * b[i + 2, l] + e3 * b[i + 3, l])
            x += 4
        while x < k:
            e0 = e[c + x * sx]
            i = at + x
            for l in range(lanes):
                s[o, l] += e0 * b[i, l]
            x += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def chains_up(
    base: int, length: int, k: int, eps: float, unary: Floats, allowed: Bools, extra_at: Ints, shift: int,
    tables: Tables, e_at: int, work: Lanes, value: Floats, safe: Bools,
) -> None:  # fmt: skip
    """value = eps * log-partition of every lane; messages stay in ``work`` from row ``base`` on."""
    psi, b, s, total = work.psi, work.b, work.s, work.total
    lanes = psi.shape[1]
    work.top[:], work.low[:], value[:] = 0.0, 0.0, 0.0
    latest = work.begin.max()
    for t in range(length):
        at = base + t * k
        node_factors(t, k, eps, unary, allowed, tables.raw, extra_at, shift, work)
        for x in range(k):
            i = at + x
            for l in range(lanes):
                b[i, l] = psi[x, l] if t == 0 else psi[x, l] * s[i, l]
        for l in range(lanes):
            total[l] = b[at, l]
        for x in range(1, k):
            i = at + x
            for l in range(lanes):
                total[l] += b[i, l]
        extreme = t + 1 == length
        for l in range(lanes):
            extreme |= (total[l] < 1e-60) | (total[l] > 1e60)
        if extreme:
            for l in range(lanes):
                if t >= work.begin[l]:
                    value[l] += eps * np.log(total[l])
                total[l] = 1.0 / total[l]
            for i in range(at, at + k):
                for l in range(lanes):
                    b[i, l] *= total[l]
        if t + 1 < length:
            product(tables.e, e_at, k, 1, k, b, at, s, at + k)
        if t < latest:
            for l in range(lanes):
                if t < work.begin[l]:
                    s[at + k : at + 2 * k, l] = 1.0
    for l in range(lanes):
        value[l] += work.top[l] + (length - 1 - work.begin[l]) * tables.top[e_at]
        safe[l] = 2.0 * tables.span[e_at] / eps - work.low[l] <= SAFE and work.top[l] > -np.inf


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def chains_down(
    base: int, length: int, k: int, e: Floats, e_at: int, work: Lanes, acc: Floats,
    weight: Floats, mu_unary: Floats, extra_at: Ints, shift: int, mu_tables: Floats,
) -> None:  # fmt: skip
    """Add weight * node marginals to the outputs, and set acc(x z, lane) to the summed pair marginals."""
    q, b, s = work.psi, work.b, work.s
    lanes = q.shape[1]
    latest = work.begin.max()
    acc[:] = 0.0
    q[:] = b[base + (length - 1) * k : base + length * k]
    pending = length
    for t in range(length - 1, -1, -1):
        at = base + t * k
        for l in range(lanes):
            if t >= work.begin[l]:
                j = work.first[l] + t * k
                for x in range(k):
                    mu_unary[j + x] += weight[l] * q[x, l]
                if len(extra_at):
                    j = extra_at[l, t] + shift
                    for x in range(k):
                        mu_tables[j + x] += weight[l] * q[x, l]
        if pending - t == 5 or t == 0:
            add_edges(base, t, pending, k, b, s, acc)
            pending = t + 1
        if t == 0:
            break
        for x in range(k):
            i = at + x
            for l in range(lanes):
                s[i, l] = q[x, l] / s[i, l]
        if t <= latest:
            for l in range(lanes):
                if t <= work.begin[l]:
                    s[at : at + k, l] = 0.0
        product(e, e_at, 1, k, k, s, at, q, 0)
        for x in range(k):
            i = at - k + x
            for l in range(lanes):
                q[x, l] *= b[i, l]
    for j in range(k * k):
        v = e[e_at + j]
        for l in range(lanes):
            acc[j, l] *= v * weight[l]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def add_edges(base: int, first: int, last: int, k: int, b: Floats, s: Floats, acc: Floats) -> None:
    """acc += b(t, x) s(t + 1, z) for first <= t < last - 1."""
    lanes = b.shape[1]
    four = last - first == 5
    for t in range(first, first + 1 if four else last - 1):
        for x in range(k):
            i = base + t * k + x
            for z in range(k):
                j, o = base + (t + 1) * k + z, x * k + z
                if four:
                    i1, i2, i3, j1, j2, j3 = i + k, i + 2 * k, i + 3 * k, j + k, j + 2 * k, j + 3 * k
                    for l in range(lanes):
                        acc[o, l] += (b[i, l] * s[j, l] + b[i1, l] * s[j1, l]) + (b[i2, l] * s[j2, l] + b[i3, l] * s[j3, l])
                else:
                    for l in range(lanes):
                        acc[o, l] += b[i, l] * s[j, l]


@njit(cache=True, nogil=True, error_model="numpy")
def run_chains(
    ptr: Ints, members: Ints, layout: Layout, k_of: Ints, unary: Floats, allowed: Bools, eps: float, tables: Tables,
    value: Floats, want: bool, mu_unary: Floats, mu_tables: Floats, done: Bools,
) -> None:  # fmt: skip
    """Groups ``members[ptr[g] : ptr[g+1]]`` of chains; ``done`` is set where the scaled form was safe."""
    none = np.zeros((0, 0), np.int64)
    for g in range(len(ptr) - 1):
        group = members[ptr[g] : ptr[g + 1]]
        lanes, k = len(group), k_of[group[0]]
        e_at = layout.table_at[layout.factor_ptr[group[0]]]
        count = layout.var_ptr[group + 1] - layout.var_ptr[group]
        length = count.max()
        work = make_lanes(layout.unary_ptr[layout.var_ptr[group]], count, length, k, 1)
        result, safe, weight = np.empty(lanes), np.empty(lanes, np.bool_), np.ones(lanes)
        chains_up(0, length, k, eps, unary, allowed, none, 0, tables, e_at, work, result, safe)
        for l in range(lanes):
            done[group[l]], value[group[l]] = safe[l], result[l]
        if not want:
            continue
        for b in group:
            mu_unary[layout.unary_ptr[layout.var_ptr[b]] : layout.unary_ptr[layout.var_ptr[b + 1]]] = 0.0
        acc = np.empty((k * k, lanes))
        chains_down(0, length, k, tables.e, e_at, work, acc, weight, mu_unary, none, 0, mu_tables)
        for l in range(lanes):
            at = layout.mu_at[layout.factor_ptr[group[l]]]
            for j in range(k * k):
                mu_tables[at + j] = acc[j, l]

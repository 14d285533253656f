"""Sum-product on many chains at once, in scaled probabilities, with the chains side by side in the vector lanes.

For chains whose nodes all have K states and whose edges all read one table. Buffers are (position, state, lane); chains
of different lengths are aligned at their last node, a lane beginning at position ``begin[lane]``. With few states this
is faster than a loop over chains, because every operation is a long contiguous multiply-add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.forests.scaled import Tables, exp_neg

LANES = 128
SAFE = 250.0  # (range of a chain's scores + twice the range of the table) / eps up to which nothing can underflow
DRIFT = 125.0  # how far, in logs, the size of a belief may drift before it is rescaled


class Lanes(NamedTuple):
    """Buffers of one group of chains (a multiple of eight of them); the first three are (position state, lane)."""

    psi: Floats  # exp of the scores; on the way down replaced by what multiplies b in the pair marginals
    b: Floats
    q: Floats
    factor: Floats  # (position, lane): what b was multiplied by
    top: Floats
    low: Floats
    total: Floats
    first: Ints  # where position 0 of the lane would lie among the unary scores
    begin: Ints
    period: Ints  # positions from one rescaling to the next


@njit(cache=True, nogil=True, error_model="numpy")
def make_lanes(first: Ints, count: Ints, length: int, k: int, copies: int) -> Lanes:
    """Buffers for ``copies`` sweeps over chains of ``count`` nodes whose scores start at ``first``."""
    lanes = len(first)
    size = (copies * length * k, lanes)
    work = Lanes(
        np.empty(size), np.empty(size), np.empty((length * k, lanes)), np.empty((copies * length, lanes)),
        np.empty(lanes), np.empty(lanes), np.empty(lanes), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64),
        np.ones(copies, np.int64),
    )  # fmt: skip
    for lane in range(lanes):
        work.begin[lane] = length - count[lane]
        work.first[lane] = first[lane] - work.begin[lane] * k
    return work


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def node_factors(
    base: int, length: int, k: int, eps: float, unary: Floats, allowed: Bools, extra: Floats, extra_at: Ints,
    shift: int, work: Lanes,
) -> None:  # fmt: skip
    """psi = exp((scores - top) / eps), ``top`` and ``low`` the largest and smallest score of each chain.

    ``extra_at[lane, t] + shift`` is where further scores of the node lie in ``extra`` (none if it has no rows).
    """
    psi, top, low = work.psi, work.top, work.low
    lanes, n = psi.shape[1], length * k
    # Eight lanes are read contiguously, then transposed: far fewer cache lines are open at a time.
    block = np.empty((8, n))
    for left in range(0, lanes, 8):
        for lane in range(left, left + 8):
            skip, at = work.begin[lane] * k, work.first[lane]
            block[lane - left, :skip] = -np.inf
            row = block[lane - left, skip:]
            score, mask = unary[at + skip : at + n], allowed[at + skip : at + n]
            for j in range(len(row)):
                row[j] = score[j] if mask[j] else -np.inf
            if len(extra_at):
                for t in range(work.begin[lane], length):
                    j, more = t * k, extra_at[lane, t] + shift
                    for x in range(k):
                        block[lane - left, j + x] += extra[more + x]
        for j in range(n):
            i = base + j
            for lane in range(8):
                psi[i, left + lane] = block[lane, j]
    top[:], low[:] = -np.inf, np.inf
    for i in range(base, base + n):
        for lane in range(lanes):
            v = psi[i, lane]
            top[lane] = v if v > top[lane] else top[lane]
            low[lane] = v if (v < low[lane]) & (v > -np.inf) else low[lane]
    inverse = 1.0 / eps
    for i in range(base, base + n):
        for lane in range(lanes):
            psi[i, lane] = exp_neg((psi[i, lane] - top[lane]) * inverse)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def product(
    e: Floats, e_at: int, sx: int, sz: int, k: int, b: Floats, at: int, times: Floats, other: int, s: Floats, out: int
) -> None:
    """s(z, lane) = times(z, lane) * sum_x E(x, z) b(x, lane), with E's strides given."""
    lanes = b.shape[1]
    for z in range(k):
        o, c, m = out + z, e_at + z * sz, other + z
        x = k % 4
        if k < 4:
            e0, e1, e2 = e[c], e[c + min(1, k - 1) * sx], e[c + min(2, k - 1) * sx]
            i1, i2 = at + min(1, k - 1), at + min(2, k - 1)
            e1, e2 = e1 * (k > 1), e2 * (k > 2)
            for lane in range(lanes):
                s[o, lane] = times[m, lane] * (e0 * b[at, lane] + e1 * b[i1, lane] + e2 * b[i2, lane])
            continue
        if k == 4:
            e0, e1, e2, e3 = e[c], e[c + sx], e[c + 2 * sx], e[c + 3 * sx]
            for lane in range(lanes):
                s[o, lane] = times[m, lane] * (
                    (e0 * b[at, lane] + e1 * b[at + 1, lane]) + (e2 * b[at + 2, lane] + e3 * b[at + 3, lane])
                )
            continue
        for lane in range(lanes):
            s[o, lane] = 0.0
        for y in range(x):
            e0 = e[c + y * sx]
            for lane in range(lanes):
                s[o, lane] += e0 * b[at + y, lane]
        while x + 4 < k:
            e0, e1, e2, e3 = e[c + x * sx], e[c + (x + 1) * sx], e[c + (x + 2) * sx], e[c + (x + 3) * sx]
            i = at + x
            for lane in range(lanes):
                s[o, lane] += (e0 * b[i, lane] + e1 * b[i + 1, lane]) + (e2 * b[i + 2, lane] + e3 * b[i + 3, lane])
            x += 4
        e0, e1, e2, e3 = e[c + x * sx], e[c + (x + 1) * sx], e[c + (x + 2) * sx], e[c + (x + 3) * sx]
        i = at + x
        for lane in range(lanes):
            s[o, lane] = times[m, lane] * (
                s[o, lane] + ((e0 * b[i, lane] + e1 * b[i + 1, lane]) + (e2 * b[i + 2, lane] + e3 * b[i + 3, lane]))
            )


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def chains_up(
    copy: int, length: int, k: int, eps: float, unary: Floats, allowed: Bools, extra_at: Ints, shift: int,
    tables: Tables, e_at: int, work: Lanes, value: Floats, safe: Bools,
) -> None:  # fmt: skip
    """value = eps * log-partition of every lane; beliefs stay in the ``copy``-th part of ``work``."""
    psi, b, total = work.psi, work.b, work.total
    lanes, base = psi.shape[1], copy * length * k
    node_factors(base, length, k, eps, unary, allowed, tables.raw, extra_at, shift, work)
    widest = 0.0
    for lane in range(lanes):
        span = (2.0 * tables.span[e_at] + work.top[lane] - work.low[lane]) / eps
        safe[lane] = span <= SAFE and work.top[lane] > -np.inf
        value[lane] = (length - work.begin[lane]) * work.top[lane] + (length - 1 - work.begin[lane]) * tables.top[e_at]
        widest = max(widest, span if safe[lane] else 0.0)
    period = max(1, min(length, int(DRIFT / (widest + np.log(k) + 1.0))))
    work.period[copy] = period
    latest = work.begin.max()
    b[base : base + k] = psi[base : base + k]
    for t in range(length):
        at = base + t * k
        if t > 0:
            product(tables.e, e_at, k, 1, k, b, at - k, psi, at, b, at)
        if t <= latest:
            for lane in range(lanes):
                if t == work.begin[lane]:
                    b[at : at + k, lane] = psi[at : at + k, lane]
                elif t < work.begin[lane]:
                    b[at : at + k, lane] = 1.0
        if t + 1 < length and (t + 1) % period:
            continue
        for lane in range(lanes):
            total[lane] = b[at, lane]
        for x in range(1, k):
            for lane in range(lanes):
                total[lane] += b[at + x, lane]
        row = copy * length + t
        for lane in range(lanes):
            work.factor[row, lane] = 1.0 / total[lane]
            if t >= work.begin[lane]:
                value[lane] += eps * np.log(total[lane])
        for i in range(at, at + k):
            for lane in range(lanes):
                b[i, lane] *= work.factor[row, lane]
    for lane in range(lanes):
        safe[lane] &= np.isfinite(value[lane])  # a node without any possible state is found only on the way


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def chains_down(
    copy: int, length: int, k: int, e: Floats, e_at: int, work: Lanes, acc: Floats,
    weight: Floats, mu_unary: Floats, extra_at: Ints, shift: int, mu_tables: Floats,
) -> None:  # fmt: skip
    """Add weight * node marginals to the outputs, and set acc(x z, lane) to weight * the summed pair marginals."""
    q, b, r = work.q, work.b, work.psi
    lanes, base = q.shape[1], copy * length * k
    latest = work.begin.max()
    acc[:] = 0.0
    beta, ones = np.ones((k, lanes)), np.ones((k, lanes))
    pending = length
    for t in range(length - 1, -1, -1):
        at, row = base + t * k, copy * length + t
        for x in range(k):
            i = at + x
            j = t * k + x
            for lane in range(lanes):
                v = beta[x, lane]
                q[j, lane] = b[i, lane] * v * weight[lane]
                r[i, lane] *= v
        if pending - t == 5 or t == 0:
            add_edges(base, t, pending, k, b, r, acc)
            pending = t + 1
        if t == 0:
            break
        if t + 1 == length or (t + 1) % work.period[copy] == 0:
            for i in range(at, at + k):
                for lane in range(lanes):
                    r[i, lane] *= work.factor[row, lane]
        if t <= latest:
            for lane in range(lanes):
                if t <= work.begin[lane]:
                    r[at : at + k, lane] = 0.0
        product(e, e_at, 1, k, k, r, at, ones, 0, beta, 0)
    for j in range(k * k):
        v = e[e_at + j]
        for lane in range(lanes):
            acc[j, lane] *= v * weight[lane]
    add_nodes(length, k, work, weight, mu_unary, extra_at, shift, mu_tables)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def add_nodes(
    length: int, k: int, work: Lanes, weight: Floats, mu_unary: Floats, extra_at: Ints, shift: int, mu_tables: Floats
) -> None:
    """Add the node marginals in ``work.q`` to where the batch keeps them, for lanes of weight other than zero."""
    q, n = work.q, length * k
    block = np.empty((8, n))
    for left in range(0, q.shape[1], 8):
        for j in range(n):
            for lane in range(8):
                block[lane, j] = q[j, left + lane]
        for lane in range(left, left + 8):
            if weight[lane] == 0.0:
                continue
            skip, at = work.begin[lane] * k, work.first[lane]
            row, out = block[lane - left, skip:], mu_unary[at + skip : at + n]
            for j in range(len(row)):
                out[j] += row[j]
            if len(extra_at):
                for t in range(work.begin[lane], length):
                    i = extra_at[lane, t] + shift
                    for x in range(k):
                        mu_tables[i + x] += block[lane - left, t * k + x]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def add_edges(base: int, first: int, last: int, k: int, b: Floats, r: Floats, acc: Floats) -> None:
    """acc += b(t, x) r(t + 1, z) for first <= t < last - 1."""
    lanes = b.shape[1]
    four = last - first == 5
    for t in range(first, first + 1 if four else last - 1):
        for x in range(k):
            i = base + t * k + x
            for z in range(k):
                j, o = base + (t + 1) * k + z, x * k + z
                if four:
                    i1, i2, i3, j1, j2, j3 = i + k, i + 2 * k, i + 3 * k, j + k, j + 2 * k, j + 3 * k
                    for lane in range(lanes):
                        acc[o, lane] += (b[i, lane] * r[j, lane] + b[i1, lane] * r[j1, lane]) + (
                            b[i2, lane] * r[j2, lane] + b[i3, lane] * r[j3, lane]
                        )
                else:
                    for lane in range(lanes):
                        acc[o, lane] += b[i, lane] * r[j, lane]


@njit(cache=True, nogil=True, error_model="numpy")
def padded(group: Ints) -> Ints:
    """The group with its last chain repeated up to a multiple of eight, so that no vector loop has a remainder."""
    n = len(group)
    out = np.empty((n + 7) // 8 * 8, np.int64)
    for lane in range(len(out)):
        out[lane] = group[min(lane, n - 1)]
    return out

"""Sum-product on forests at one temperature eps > 0, in scaled probabilities: exp once per table, then multiply-adds.

    s_i(x_p) = sum_x b_i(x) E(x, x_p),   b_i = exp(theta_i / eps) * prod_children s_c,   E = exp(theta_ip / eps)

and, going down, q_i(x) = b_i(x) sum_{x_p} E(x, x_p) q_p(x_p) / s_i(x_p). Used only where no intermediate can leave the
range of a double: (range of the scores at a node) + degree * (range of a table) stays below ``SPAN`` * eps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit

SPAN = 600.0
_LOG2E = 1.4426950408889634
_LN2_HI = 0.6931471803691238
_LN2_LO = 1.9082149292705877e-10
_MAGIC = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low mantissa bits


class Forest(NamedTuple):
    """Rooted orders of the distinct topologies of a batch, concatenated; node arrays start at ``node_ptr[g]``."""

    node_ptr: Ints
    edge_ptr: Ints
    card: Ints
    at: Ints  # first state of each node, relative to the instance
    order: Ints  # children before parents
    parent: Ints  # -1 at a root
    edge: Ints  # factor (relative to the instance) to the parent
    flip: Bools  # the table's first axis is the parent's
    degree: Ints
    ends: Ints  # (factor, 2) scopes


class BatchPtr(NamedTuple):
    """Where the instances of a batch lie (see ``Batch``)."""

    topology_of: Ints
    var_ptr: Ints
    factor_ptr: Ints
    unary_ptr: Ints
    table_at: Ints
    mu_at: Ints


class Tables(NamedTuple):
    """Tables at one temperature: E = exp((theta - top) / eps), or theta at eps = 0, its transpose, and at a table's
    start top, range, and the range of what it allows."""

    raw: Floats
    e: Floats
    et: Floats
    top: Floats
    span: Floats
    within: Floats


@intrinsic
def _bits(typingctx: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _float(typingctx: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@njit(cache=True, error_model="numpy", inline="always", no_rewrites=True)
def exp_neg(x: float) -> float:
    """exp(x) for x <= 0 (0 below -700) in plain arithmetic, so that loops over it vectorise."""
    z = x if x > -700.0 else -700.0
    t = z * _LOG2E + _MAGIC
    k = t - _MAGIC
    r = (z - k * _LN2_HI) - k * _LN2_LO
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    scale: float = _float((_bits(t) << 52) + (1023 << 52))  # type: ignore[call-arg]
    return p * scale if x > -700.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, no_rewrites=True)
def exp_table(raw, a, n, m, eps, e, et, top, span, within):
    """Fill ``Tables`` for the table at ``a``; ``span`` is infinite where an entry is forbidden."""
    hi, lo, least = -np.inf, np.inf, np.inf
    for j in range(a, a + n * m):
        hi = raw[j] if raw[j] > hi else hi
        lo = raw[j] if raw[j] < lo else lo
        least = raw[j] if -np.inf < raw[j] < least else least
    top[a] = hi
    span[a] = hi - lo if lo > -np.inf else np.inf
    within[a] = max(hi - least, 0.0)
    shift = hi if hi > -np.inf else 0.0
    for j in range(a, a + n * m):
        e[j] = exp_neg((raw[j] - shift) / eps) if eps > 0.0 else raw[j]
    for x in range(n):
        for z in range(m):
            et[a + z * n + x] = e[a + x * m + z]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def exp_tables(
    raw: Floats, starts: Ints, rows: Ints, cols: Ints, eps: float,
    e: Floats, et: Floats, top: Floats, span: Floats, within: Floats,
) -> None:  # fmt: skip
    """``exp_table`` for the tables at ``starts``."""
    for k in range(len(starts)):
        exp_table(raw, starts[k], rows[k], cols[k], eps, e, et, top, span, within)


@dataclass(frozen=True, eq=False)
class TableSet:
    """Tables that a bound reads, by start, rows and columns."""

    starts: Ints
    rows: Ints
    cols: Ints

    def at_both(self, raw: Floats, eps_y: float, eps_h: float) -> tuple[Tables, Tables]:
        """The tables at the temperatures of outputs and of hidden variables, one for both if these are equal."""
        size, made, about = len(raw), list[Tables](), np.empty((3, len(raw)))
        for eps in (eps_y,) if eps_h == eps_y else (eps_y, eps_h):
            made.append(Tables(raw, np.empty(size), np.empty(size), *about))
            exp_tables(raw, self.starts, self.rows, self.cols, eps, *made[-1][1:])
        return made[0], made[-1]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def vec_mat(b: Floats, e: Floats, a: int, n: int, m: int, s: Floats) -> None:
    """s = b @ E for the n x m block of ``e`` at ``a``; rows of weight zero cost nothing."""
    for z in range(m):
        s[z] = 0.0
    x = 0
    while x + 4 <= n:
        b0, b1, b2, b3 = b[x], b[x + 1], b[x + 2], b[x + 3]
        if b0 + b1 + b2 + b3 > 0.0:
            e0 = e[a + x * m : a + x * m + m]
            e1 = e[a + x * m + m : a + x * m + 2 * m]
            e2 = e[a + x * m + 2 * m : a + x * m + 3 * m]
            e3 = e[a + x * m + 3 * m : a + x * m + 4 * m]
            for z in range(m):
                s[z] += b0 * e0[z] + b1 * e1[z] + b2 * e2[z] + b3 * e3[z]
        x += 4
    while x < n:
        b0 = b[x]
        if b0 > 0.0:
            e0 = e[a + x * m : a + x * m + m]
            for z in range(m):
                s[z] += b0 * e0[z]
        x += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def exp_nodes(u: Floats, at: Ints, card: Ints, degree: Ints, n: int, eps: float, wide: float, b: Floats) -> float:
    """b = exp((u - max) / eps) node by node; the sum of the maxima, or NaN when the scaled form is not safe."""
    total = 0.0
    for i in range(n):
        first, k = at[i], card[i]
        hi, lo = -np.inf, np.inf
        for x in range(first, first + k):
            v = u[x]
            hi = max(hi, v)
            lo = min(lo, v if v > -np.inf else np.inf)
        if hi == -np.inf or (hi - lo) + degree[i] * wide > SPAN * eps:
            return np.nan
        total += hi
        for x in range(first, first + k):
            b[x] = exp_neg((u[x] - hi) / eps)
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def scaled_up(
    order: Ints, parent: Ints, edge: Ints, flip: Bools, at: Ints, card: Ints,
    table_at: Ints, tables: Tables, eps: float, b: Floats, s: Floats, scale: Floats,
) -> float:  # fmt: skip
    """Messages towards the roots (node i's at ``s[i * widest]``); returns the log-partition times eps."""
    n = len(order)
    widest = len(s) // max(n, 1)
    value, product = 0.0, 1.0
    for step in range(n):
        i = order[step]
        p, k = parent[i], card[i]
        bi = b[at[i] : at[i] + k]
        if p < 0:
            total = 0.0
            for x in range(k):
                total += bi[x]
            scale[i] = total
        else:
            a, m = table_at[edge[i]], card[p]
            si = s[i * widest : i * widest + m]
            vec_mat(bi, tables.et if flip[i] else tables.e, a, k, m, si)
            total = 0.0
            for z in range(m):
                total = max(total, si[z])
            inverse = 1.0 / total
            bp = b[at[p] : at[p] + m]
            for z in range(m):
                si[z] *= inverse
                bp[z] *= si[z]
            scale[i] = inverse
            value += tables.top[a]
        if product * total < 1e-280 or product * total > 1e280:
            value += eps * np.log(product)
            product = total
        else:
            product *= total
    return float(value + eps * np.log(product))


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def scaled_down(
    order: Ints, parent: Ints, edge: Ints, flip: Bools, at: Ints, card: Ints,
    table_at: Ints, tables: Tables, b: Floats, s: Floats, scale: Floats, q: Floats,
) -> None:  # fmt: skip
    """Node marginals ``q`` from the roots down; ``s`` becomes r = q_parent / s, ready for the edge marginals."""
    n = len(order)
    widest = len(s) // max(n, 1)
    for step in range(n - 1, -1, -1):
        i = order[step]
        p, k = parent[i], card[i]
        bi, qi = b[at[i] : at[i] + k], q[at[i] : at[i] + k]
        if p < 0:
            for x in range(k):
                qi[x] = bi[x] / scale[i]
            continue
        m = card[p]
        r, qp = s[i * widest : i * widest + m], q[at[p] : at[p] + m]
        inverse = scale[i]
        for z in range(m):
            r[z] = qp[z] / r[z] * inverse
        vec_mat(r, tables.e if flip[i] else tables.et, table_at[edge[i]], m, k, qi)
        for x in range(k):
            qi[x] *= bi[x]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def scaled_edges(
    order: Ints, parent: Ints, edge: Ints, flip: Bools, at: Ints, card: Ints,
    table_at: Ints, mu_at: Ints, tables: Tables, b: Floats, s: Floats, mu: Floats, acc: Floats,
) -> None:  # fmt: skip
    """mu += b_i(x) E(x, x_p) r_i(x_p); runs of tied edges share one multiplication by E."""
    n = len(order)
    widest = len(s) // max(n, 1)
    step = 0
    while step < n:
        i = order[step]
        if parent[i] < 0:
            step += 1
            continue
        k, m, f = card[i], card[parent[i]], edge[i]
        n_rows, n_cols = (m, k) if flip[i] else (k, m)
        size = k * m
        for j in range(size):
            acc[j] = 0.0
        last = step
        while last < n:
            j = order[last]
            p = parent[j]
            if p < 0 or mu_at[edge[j]] != mu_at[f] or table_at[edge[j]] != table_at[f]:
                break
            if (flip[j] != flip[i]) or card[j] != k or card[p] != m:
                break
            last += 1
        while step < last:
            i = order[step]
            if step + 4 <= last:
                _outer4(b, s, at, widest, order[step : step + 4], flip[i], n_rows, n_cols, acc)
                step += 4
            else:
                bi, ri = b[at[i] : at[i] + k], s[i * widest : i * widest + m]
                left, right = (ri, bi) if flip[i] else (bi, ri)
                for x in range(n_rows):
                    for z in range(n_cols):
                        acc[x * n_cols + z] += left[x] * right[z]
                step += 1
        out, e = mu[mu_at[f] : mu_at[f] + size], tables.e[table_at[f] : table_at[f] + size]
        for j in range(size):
            out[j] += acc[j] * e[j]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _outer4(b: Floats, s: Floats, at: Ints, widest: int, nodes: Ints, flip: bool, n: int, m: int, acc: Floats) -> None:
    i0, i1, i2, i3 = nodes[0], nodes[1], nodes[2], nodes[3]
    if flip:
        l0, l1, l2, l3 = s[i0 * widest :], s[i1 * widest :], s[i2 * widest :], s[i3 * widest :]
        r0, r1, r2, r3 = b[at[i0] :], b[at[i1] :], b[at[i2] :], b[at[i3] :]
    else:
        l0, l1, l2, l3 = b[at[i0] :], b[at[i1] :], b[at[i2] :], b[at[i3] :]
        r0, r1, r2, r3 = s[i0 * widest :], s[i1 * widest :], s[i2 * widest :], s[i3 * widest :]
    for x in range(n):
        a0, a1, a2, a3 = l0[x], l1[x], l2[x], l3[x]
        row = acc[x * m : x * m + m]
        for z in range(m):
            row[z] += a0 * r0[z] + a1 * r1[z] + a2 * r2[z] + a3 * r3[z]

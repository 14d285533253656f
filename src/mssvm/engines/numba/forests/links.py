"""Chains of labels joined by hidden links, y - h - y - h - y, at two temperatures, eight instances side by side.

Some labels may be missing, each instance's own; they are hidden too. In units of eps_h, with p = eps_h / eps_y, the
recursion carries W(r, h), r a state of the last output met and h of the link behind it:

    at an output y    Z(r, y) = sum_h W(r, h) B(h, y), X(y) = (sum_r Z(r, y)^p)^(1/p) e(y), W'(y, h) = X(y) A(y, h) g(h)
    at a missing y    W'(r, h') = sum_h W(r, h) sum_y B(h, y) e(y) A(y, h') g(h')

e and g are the exponentials of the scores of labels and links, A and B of the tables y - h and h - y. Before the first
output there is one row. Outputs at eps_y = 0 are the limit of large p: a maximum over r, and a walk back.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit
from mssvm.engines.numba.forests.lanes import NONE, SMALLEST, TINY
from mssvm.engines.numba.vector import WIDTH, above, load, splat, store, vexp, vlog, vmax, where

L = WIDTH
FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, inline="always")
def power(x, p, squarings):
    """x^(p - 1) of a number in [0, 1]; p is 2^squarings unless that is negative."""
    if squarings >= 0:
        y, square = splat(1.0), x
        for _ in range(squarings):
            y = y * square
            square = square * square
        return y
    return vexp(vlog(vmax(x, splat(TINY))) * (p - 1.0))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def exponentiate(at, n, k, inv, e, peak):
    """exp((score - peak) / eps) of n positions of k states from register ``at`` on; the largest scores are added up."""
    total = load(peak, 0)
    for t in range(n):
        o = (at + t * k) * L
        hi = load(e, o)
        for x in range(1, k):
            hi = vmax(hi, load(e, o + L * x))
        for x in range(k):
            store(e, o + L * x, vexp((load(e, o + L * x) - hi) * inv))
        total = total + hi
    store(peak, 0, total)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def forward(T, K, H, p, squarings, A, B, e, g_at, role, W, col, X, R):
    """W of every link, and the weights of the rows of the last label in ``X``; the logs of the scales, the smallest.

    ``col`` keeps, for outputs, 1 / max_r Z and 1 / sum_r (Z / max)^p of every label.
    """
    one, zero = splat(1.0), splat(0.0)
    logs, least = zero, one
    inv_p = 1.0 / p
    for t in range(T):
        out = load(role, t * L)
        some_out, some_missing = False, False
        for lane in range(L):
            some_out |= role[t * L + lane] > 0.0
            some_missing |= role[t * L + lane] <= 0.0
        eo = t * K * L
        w0 = (t - 1) * K * H * L
        if t == 0:
            for y in range(K):
                store(X, y * L, load(e, eo + y * L))
        elif some_out:
            for y in range(K):
                m = zero
                for r in range(K):
                    z = load(W, w0 + r * H * L) * B[y]
                    for h in range(1, H):
                        z = z + load(W, w0 + (r * H + h) * L) * B[h * K + y]
                    store(R, r * L, z)
                    m = vmax(m, z)
                inv = where(m, one / vmax(m, splat(TINY)), zero)
                s = zero
                for r in range(K):
                    z = load(R, r * L) * inv
                    s = s + z * power(z, p, squarings)
                s = vmax(s, splat(TINY))
                c = (t * K + y) * 2 * L
                store(col, c, inv)
                store(col, c + L, one / s)
                store(X, y * L, m * vexp(vlog(s) * inv_p) * load(e, eo + y * L))
        if t == T - 1:
            if some_missing:
                for r in range(K):
                    store(R, r * L, zero)
                for h in range(H):
                    b = load(e, eo) * B[h * K]
                    for y in range(1, K):
                        b = b + load(e, eo + y * L) * B[h * K + y]
                    for r in range(K):
                        store(R, r * L, load(R, r * L) + load(W, w0 + (r * H + h) * L) * b)
                for r in range(K):
                    store(X, r * L, where(out, load(X, r * L), load(R, r * L)))
            return logs, least
        w1, total = t * K * H * L, zero
        for h in range(H):
            gh = load(e, g_at + (t * H + h) * L)
            if some_missing:
                if t == 0:
                    v = load(e, eo) * A[h]
                    for y in range(1, K):
                        v = v + load(e, eo + y * L) * A[y * H + h]
                    for r in range(K):
                        store(R, r * L, v if r == 0 else zero)
                else:
                    for r in range(K):
                        store(R, r * L, zero)
                    for j in range(H):
                        v = load(e, eo) * (B[j * K] * A[h])
                        for y in range(1, K):
                            v = v + load(e, eo + y * L) * (B[j * K + y] * A[y * H + h])
                        for r in range(K):
                            store(R, r * L, load(R, r * L) + load(W, w0 + (r * H + j) * L) * v)
            for r in range(K):
                v = load(X, r * L) * A[r * H + h]
                if some_missing:
                    v = where(out, v, load(R, r * L))
                v = v * gh
                total = total + v
                store(W, w1 + (r * H + h) * L, v)
        least = where(above(least, total), total, least)
        total = vmax(total, splat(TINY))
        inv = one / total
        logs = logs + vlog(total)
        for i in range(K * H):
            store(W, w1 + i * L, load(W, w1 + i * L) * inv)
        store(col, (T * K * 2 + t) * L, inv)
    return logs, least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def backward(T, K, H, p, squarings, A, B, e, g_at, role, W, col, X, R, D, D0, Q, mu, left, right):
    """Marginals of labels and links in ``mu`` (laid out as ``e``) and of both kinds of pairs, from the rows' in X."""
    one, zero = splat(1.0), splat(0.0)
    for t in range(T - 1, -1, -1):
        out = load(role, t * L)
        some_out, some_missing = False, False
        for lane in range(L):
            some_out |= role[t * L + lane] > 0.0
            some_missing |= role[t * L + lane] <= 0.0
        eo, w0, w1 = t * K * L, (t - 1) * K * H * L, t * K * H * L
        scale = load(col, (T * K * 2 + t) * L) if t < T - 1 else one
        # D holds the derivatives with respect to W_t; at the end X holds the probabilities of the rows.
        if t < T - 1:
            for r in range(K):
                m = zero
                for h in range(H):
                    v = load(W, w1 + (r * H + h) * L) * load(D, (r * H + h) * L)
                    m = m + v
                    o = g_at + (t * H + h) * L
                    store(mu, o, (load(mu, o) if r else zero) + v)
                    o = (r * H + h) * L
                    store(left, o, load(left, o) + (where(out, v, zero) if some_missing else v))
                store(X, r * L, m)
        if some_out or not some_missing:
            for y in range(K):
                store(mu, eo + y * L, load(X, y * L))
        if some_missing:
            missing(t, T, K, H, A, B, e, g_at, out, scale, W, X, D, D0, Q, mu, left, right)
        if t == 0:
            break
        if some_out:
            if not some_missing:
                for i in range(K * H):
                    store(D0, i * L, zero)
            else:
                for i in range(K * H):
                    store(D0, i * L, where(out, zero, load(D0, i * L)))
            for y in range(K):
                c = (t * K + y) * 2 * L
                inv = load(col, c)
                q = load(X, y * L) * inv * load(col, c + L)
                if some_missing:
                    q = where(out, q, zero)
                for h in range(H):
                    store(R, (K + h) * L, zero)
                for r in range(K):
                    z = load(W, w0 + r * H * L) * B[y]
                    for h in range(1, H):
                        z = z + load(W, w0 + (r * H + h) * L) * B[h * K + y]
                    d = q * power(z * inv, p, squarings)
                    for h in range(H):
                        o = (r * H + h) * L
                        store(D0, o, load(D0, o) + d * B[h * K + y])
                        store(R, (K + h) * L, load(R, (K + h) * L) + d * load(W, w0 + o))
                for h in range(H):
                    o = (h * K + y) * L
                    store(right, o, load(right, o) + load(R, (K + h) * L) * B[h * K + y])
        for i in range(K * H):
            store(D, i * L, load(D0, i * L))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def missing(t, T, K, H, A, B, e, g_at, out, scale, W, X, D, D0, Q, mu, left, right):
    """The same at position t in the lanes where the label is missing; writes D0 in all lanes."""
    zero = splat(0.0)
    eo, w0, c0 = t * K * L, (t - 1) * K * H * L, H * H
    if t == 0:
        for y in range(K):
            m = zero
            for h in range(H):
                v = load(e, eo + y * L) * A[y * H + h] * load(e, g_at + h * L) * scale * load(D, h * L)
                v = where(out, zero, v)
                m = m + v
                store(left, (y * H + h) * L, load(left, (y * H + h) * L) + v)
            store(mu, eo + y * L, where(out, load(mu, eo + y * L), m))
        return
    if t == T - 1:
        for j in range(H):
            s = load(e, eo) * B[j * K]
            for y in range(1, K):
                s = s + load(e, eo + y * L) * B[j * K + y]
            store(Q, j * L, s)
            store(Q, (c0 + j) * L, zero)
        for r in range(K):
            b = zero
            for j in range(H):
                b = b + load(W, w0 + (r * H + j) * L) * load(Q, j * L)
            q = load(X, r * L) / vmax(b, splat(TINY))
            for j in range(H):
                store(D0, (r * H + j) * L, q * load(Q, j * L))
                store(Q, (c0 + j) * L, load(Q, (c0 + j) * L) + q * load(W, w0 + (r * H + j) * L))
        for y in range(K):
            m = zero
            for j in range(H):
                v = where(out, zero, load(Q, (c0 + j) * L) * load(e, eo + y * L) * B[j * K + y])
                m = m + v
                store(right, (j * K + y) * L, load(right, (j * K + y) * L) + v)
            store(mu, eo + y * L, where(out, load(mu, eo + y * L), m))
        return
    for j in range(H):
        for h in range(H):
            gh = load(e, g_at + (t * H + h) * L) * scale
            s = load(e, eo) * (B[j * K] * A[h])
            for y in range(1, K):
                s = s + load(e, eo + y * L) * (B[j * K + y] * A[y * H + h])
            c = zero
            for r in range(K):
                c = c + load(W, w0 + (r * H + j) * L) * load(D, (r * H + h) * L)
            store(Q, (j * H + h) * L, s * gh)
            store(Q, (c0 + j * H + h) * L, where(out, zero, c * gh))
    for r in range(K):
        for j in range(H):
            d = load(Q, j * H * L) * load(D, r * H * L)
            for h in range(1, H):
                d = d + load(Q, (j * H + h) * L) * load(D, (r * H + h) * L)
            store(D0, (r * H + j) * L, d)
    for y in range(K):
        m, ey = zero, load(e, eo + y * L)
        for j in range(H):
            v = zero
            for h in range(H):
                c = load(Q, (c0 + j * H + h) * L) * ey * (B[j * K + y] * A[y * H + h])
                v = v + c
                store(left, (y * H + h) * L, load(left, (y * H + h) * L) + c)
            m = m + v
            store(right, (j * K + y) * L, load(right, (j * K + y) * L) + v)
        store(mu, eo + y * L, where(out, load(mu, eo + y * L), m))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def finish(K, p, squarings, X):
    """The power sum of the rows' weights, and in X their probabilities."""
    one, m = splat(1.0), load(X, 0)
    for r in range(1, K):
        m = vmax(m, load(X, r * L))
    inv, s = one / vmax(m, splat(TINY)), splat(0.0)
    for r in range(K):
        z = load(X, r * L) * inv
        z = z * power(z, p, squarings)
        s = s + z
        store(X, r * L, z)
    inv = one / s
    for r in range(K):
        store(X, r * L, load(X, r * L) * inv)
    return vlog(vmax(m, splat(TINY))) + vlog(s) * (1.0 / p), m


@njit(cache=True, nogil=True, error_model="numpy")
def read(group, T, K, H, labels, links, layout, unary, allowed, output, e, g_at, role):
    """Scores and roles of a group; a label with one allowed state counts as an output."""
    for lane in range(L):
        b = group[lane]
        v = layout.var_ptr[b]
        for t in range(T):
            j, count = layout.unary_ptr[v + labels[t]], 0
            for x in range(K):
                count += allowed[j + x]
                e[(t * K + x) * L + lane] = unary[j + x] if allowed[j + x] else NONE
            role[t * L + lane] = 1.0 if output[v + labels[t]] or count < 2 else 0.0
        for t in range(T - 1):
            j = layout.unary_ptr[v + links[t]]
            for x in range(H):
                e[g_at + (t * H + x) * L + lane] = unary[j + x] if allowed[j + x] else NONE


@njit(cache=True, nogil=True, error_model="numpy")
def oriented(raw, start, n, m, flip, top, eps):
    """A table over (first, second) as exponentials, its axes exchanged if ``flip``."""
    out = np.empty(n * m)
    for i in range(n):
        for j in range(m):
            out[i * m + j] = np.exp((raw[start + (j * n + i if flip else i * m + j)] - top) / eps)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def write(
    group, real, T, K, H, labels, links, first_left, first_right, flips, layout, mu, g_at, left, right, good, mu_unary,
    mu_tables,
):  # fmt: skip
    """Marginals of the first ``real`` lanes, where they are good, to where they belong."""
    for lane in range(real):
        b = group[lane]
        if not good[lane]:
            continue
        v = layout.var_ptr[b]
        for t in range(T):
            j = layout.unary_ptr[v + labels[t]]
            for x in range(K):
                mu_unary[j + x] = mu[(t * K + x) * L + lane]
        for t in range(T - 1):
            j = layout.unary_ptr[v + links[t]]
            for x in range(H):
                mu_unary[j + x] = mu[g_at + (t * H + x) * L + lane]
        a = layout.mu_at[layout.factor_ptr[b] + first_left]
        c = layout.mu_at[layout.factor_ptr[b] + first_right]
        for y in range(K):
            for h in range(H):
                mu_tables[a + (h * K + y if flips[0] else y * H + h)] = left[(y * H + h) * L + lane]
                mu_tables[c + (y * H + h if flips[1] else h * K + y)] = right[(h * K + y) * L + lane]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def forward_max(T, K, H, A, B, e, g_at, role, W, col, X, R):
    """The recursion with a maximum over rows; ``col`` keeps the best row of every label. The log of the maximum, and
    the smallest scale."""
    one, zero = splat(1.0), splat(0.0)
    logs, least = zero, one
    for t in range(T):
        out = load(role, t * L)
        eo, w0 = t * K * L, (t - 1) * K * H * L
        if t == 0:
            for y in range(K):
                store(X, y * L, load(e, eo + y * L))
        else:
            for y in range(K):
                m, best = splat(-1.0), zero
                for r in range(K):
                    z = load(W, w0 + r * H * L) * B[y]
                    for h in range(1, H):
                        z = z + load(W, w0 + (r * H + h) * L) * B[h * K + y]
                    higher = above(z, m)
                    best = where(higher, splat(r + 0.0), best)
                    m = vmax(z, m)
                store(col, (t * K + y) * L, best)
                store(X, y * L, m * load(e, eo + y * L))
        total = zero
        for h in range(H):
            last = t == T - 1
            if last and h > 0:
                break
            for r in range(K):
                store(R, r * L, zero)
            if t == 0:
                v = load(e, eo) * A[h]
                for y in range(1, K):
                    v = v + load(e, eo + y * L) * A[y * H + h]
                store(R, 0, v)
            else:
                for j in range(H):
                    v = load(e, eo) * (B[j * K] * (1.0 if last else A[h]))
                    for y in range(1, K):
                        v = v + load(e, eo + y * L) * (B[j * K + y] * (1.0 if last else A[y * H + h]))
                    for r in range(K):
                        store(R, r * L, load(R, r * L) + load(W, w0 + (r * H + j) * L) * v)
            if last:
                for r in range(K):
                    store(X, r * L, where(out, load(X, r * L), load(R, r * L)))
                break
            gh = load(e, g_at + (t * H + h) * L)
            for r in range(K):
                v = where(out, load(X, r * L) * A[r * H + h], load(R, r * L)) * gh
                total = total + v
                store(W, t * K * H * L + (r * H + h) * L, v)
        if t < T - 1:
            least = where(above(least, total), total, least)
            total = vmax(total, splat(TINY))
            inv = one / total
            logs = logs + vlog(total)
            for i in range(K * H):
                o = (t * K * H + i) * L
                store(W, o, load(W, o) * inv)
            store(col, (T * K * 2 + t) * L, inv)
    m = load(X, 0)
    for r in range(1, K):
        m = vmax(m, load(X, r * L))
    return logs + vlog(vmax(m, splat(TINY))), where(above(least, m), m, least)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def walk_back(lane, T, K, H, A, B, e, g_at, role, W, col, X, mu, left, right):
    """The best outputs of one lane as point masses, and links and missing labels given them."""
    r, top = 0, -1.0
    for k in range(K):
        if X[k * L + lane] > top:
            r, top = k, X[k * L + lane]
    d, d0 = np.zeros(H), np.zeros(H)
    for t in range(T - 1, -1, -1):
        eo, w0, w1 = t * K * L + lane, (t - 1) * K * H * L + lane, t * K * H * L + lane
        out, last = role[t * L + lane] > 0.0, t == T - 1
        scale = 1.0 if last else col[(T * K * 2 + t) * L + lane]
        for y in range(K):
            mu[eo + y * L] = 0.0
        if not last:
            for h in range(H):
                mu[g_at + (t * H + h) * L + lane] = W[w1 + (r * H + h) * L] * d[h]
                if out:
                    left[(r * H + h) * L + lane] += W[w1 + (r * H + h) * L] * d[h]
        if out:
            mu[eo + r * L] = 1.0
            if t > 0:
                y, r = r, int(col[(t * K + r) * L + lane])
                z = 0.0
                for h in range(H):
                    z += W[w0 + (r * H + h) * L] * B[h * K + y]
                for h in range(H):
                    d[h] = B[h * K + y] / z
                    right[(h * K + y) * L + lane] += W[w0 + (r * H + h) * L] * d[h]
            continue
        if t == 0:
            for y in range(K):
                for h in range(H):
                    v = e[eo + y * L] * A[y * H + h] * e[g_at + h * L + lane] * scale * d[h]
                    mu[eo + y * L] += v
                    left[(y * H + h) * L + lane] += v
            continue
        if last:
            z = 0.0
            for j in range(H):
                d0[j] = 0.0
                for y in range(K):
                    d0[j] += e[eo + y * L] * B[j * K + y]
                z += W[w0 + (r * H + j) * L] * d0[j]
            for j in range(H):
                for y in range(K):
                    v = W[w0 + (r * H + j) * L] / z * e[eo + y * L] * B[j * K + y]
                    mu[eo + y * L] += v
                    right[(j * K + y) * L + lane] += v
                d0[j] /= z
        else:
            for j in range(H):
                d0[j] = 0.0
                for h in range(H):
                    c = e[g_at + (t * H + h) * L + lane] * scale * d[h]
                    for y in range(K):
                        v = e[eo + y * L] * B[j * K + y] * A[y * H + h] * c
                        d0[j] += v
                        v *= W[w0 + (r * H + j) * L]
                        mu[eo + y * L] += v
                        right[(j * K + y) * L + lane] += v
                        left[(y * H + h) * L + lane] += v
        for j in range(H):
            d[j] = d0[j]


@njit(cache=True, nogil=True, error_model="numpy")
def run_links(
    ptr, members, labels, links, first_left, first_right, flips, K, H, layout, tables, unary, allowed, output, eps_y,
    eps_h, squarings, value, mu_unary, mu_tables, done,
):  # fmt: skip
    """Groups ``members[ptr[g] : ptr[g + 1]]`` of at most eight chains of a topology; ``done`` where they were safe."""
    T = len(labels)
    p = eps_h / eps_y if eps_y > 0.0 else 0.0
    b0 = members[ptr[0]]
    a_at = layout.table_at[layout.factor_ptr[b0] + first_left]
    b_at = layout.table_at[layout.factor_ptr[b0] + first_right]
    A = oriented(tables.raw, a_at, K, H, flips[0], tables.top[a_at], eps_h)
    B = oriented(tables.raw, b_at, H, K, flips[1], tables.top[b_at], eps_h)
    g_at = T * K * L
    n = T * K + (T - 1) * H
    e, mu = np.empty(n * L), np.empty(n * L)
    W, col = np.empty((T - 1) * K * H * L), np.empty((T * K * 2 + T) * L)
    X, R, D, D0 = np.empty(K * L), np.empty((K + H) * L), np.empty(K * H * L), np.empty(K * H * L)
    Q, left, right = np.empty(2 * H * H * L), np.empty(K * H * L), np.empty(K * H * L)
    role, peak, lows, out = np.empty(T * L), np.empty(L), np.empty(L), np.empty(L)
    group, good = np.empty(L, np.int64), np.empty(L, np.bool_)
    for index in range(len(ptr) - 1):
        real = ptr[index + 1] - ptr[index]
        for lane in range(L):
            group[lane] = members[ptr[index] + min(lane, real - 1)]
        read(group, T, K, H, labels, links, layout, unary, allowed, output, e, g_at, role)
        peak[:] = 0.0
        exponentiate(0, T, K, 1.0 / eps_h, e, peak)
        exponentiate(T * K, T - 1, H, 1.0 / eps_h, e, peak)
        if p > 0.0:
            logs, least = forward(T, K, H, p, squarings, A, B, e, g_at, role, W, col, X, R)
            rest, m = finish(K, p, squarings, X)
            store(out, 0, logs + rest)
            store(lows, 0, where(above(least, m), m, least))
        else:
            logs, least = forward_max(T, K, H, A, B, e, g_at, role, W, col, X, R)
            store(out, 0, logs)
            store(lows, 0, least)
        for lane in range(real):
            good[lane] = lows[lane] > SMALLEST and peak[lane] > NONE / 2
            done[group[lane]] = good[lane]
            value[group[lane]] = peak[lane] + eps_h * out[lane] + (T - 1) * (tables.top[a_at] + tables.top[b_at])
        left[:], right[:] = 0.0, 0.0
        if p > 0.0:
            backward(T, K, H, p, squarings, A, B, e, g_at, role, W, col, X, R, D, D0, Q, mu, left, right)
        else:
            for lane in range(real):
                walk_back(lane, T, K, H, A, B, e, g_at, role, W, col, X, mu, left, right)
        write(
            group, real, T, K, H, labels, links, first_left, first_right, flips, layout, mu, g_at, left, right, good,
            mu_unary, mu_tables,
        )  # fmt: skip

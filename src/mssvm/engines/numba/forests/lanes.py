"""Forests side by side: eight instances in a register, in scaled probabilities where something is summed.

Instances of a group have the same rooted forest, read from the root, though some may end sooner than others (chains of
different lengths), and read the same tables; roles and masks are each instance's own. Positions run from the leaves to
the root; an instance that ends sooner lacks the first positions, which then send neutral messages.

Every position has log scores u(x), and a belief b(r, x) = e(x) * messages / scale, e = exp((u - max) / unit), with a
row r for every state of the last output below a hidden position. What child i tells parent p, E = exp(theta_ip / unit):

    hidden to hidden    s(r, z) = sum_x b(r, x) E(x, z)         multiplies p's belief                  (unit eps_h)
    output to hidden    s(r, z) = b(r) E(r, z)                  multiplies it too: rows begin          (unit eps_h)
    hidden to output    s as above, and rows end:               u_p(z) += eps_y log sum_r s(r, z)^(eps_h / eps_y)
    output to output    s(z) = sum_x b(x) E(x, z)               multiplies it, or u_p += eps_y log s   (unit eps_y)
                        at eps_y = 0                            u_p(z) += max_x u(x) + theta(x, z)

The way back is the chain rule: d(r, z), the derivative by s(r, z), is p's marginal over s, and i's marginals are
q(r, x) = b(r, x) t(r, x), t = E d. Those of tied factors are sums of outer products b (x) d over positions, times E.
At eps_y = 0 one walks back from the roots instead. A variable with one allowed state ends rows and begins none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from mssvm.core.arrays import Bools, Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.forests.scaled import exp_tables
from mssvm.engines.numba.vector import (
    WIDTH,
    above,
    bools_at,
    exponent,
    gather,
    ints_at,
    load,
    mask_of,
    pointer_to,
    scatter,
    splat,
    store,
    two_to_minus,
    vexp,
    vlog,
    vmax,
    where,
)

L = WIDTH
FAST = {"reassoc", "contract", "nsz", "arcp"}
NONE = -1e300
TINY = 1e-300
# A sum above this is not made of what underflow left over: whatever was lost is 50 orders of magnitude below it.
SMALLEST = 1e-200
NARROW = 512.0  # (1/2) to this power is still far from underflow
FULL = -1  # a word of eight lanes, a byte each, all set
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

# A group as one row of numbers, so that any number of them is one call; from ALLOWED on they are places in memory.
SIDE, FIRST, LAST, NUMBER, BASE, SQUARINGS, POSITIONS, SLOTS, SIZES = 0, 1, 2, 3, 4, 8, 9, 10, 11
ALLOWED, BEGIN, FAMILY, MEMBERS, ROW = 16, 17, 20, 24, 36
# Tables as they are made, one part after the other: scores, exponentials at eps_y, transposed, at eps_h, transposed,
# the largest score and the range of each.
TABLE_PARTS, TOPS = 7, 5

# Columns of a family's positions; a position is known by the place of its row in the table. Places of what it owns are
# entries of the buffer, a register being eight.
CARD, PARENT, FLIP, SLOT, START, PUT, CARRIER, KIDS, KIDS_END = range(9)
U, E, B, T, S, W, SCALE = range(9, 16)  # scores, exponentials, belief, t, message, what belongs to it, scale
# Columns of a group's positions: words of lanes, then numbers.
COLUMNS = 16
SENT, HERE, OPENED, PLAIN, ENDED, TIMES, IN_Y, ROWS, MANY, FACTORS, SIMPLE, ONE, TWO, READY, CLOSED = range(15)


class Family(NamedTuple):
    """The longest forest of a group of instances, by position."""

    places: Ints  # (position, column)
    kids: Ints
    pair_ptr: Ints
    by_table: Ints  # positions by slot and flip
    n_pairs: int  # room for the places of pairs (belief, derivative)
    size: int  # registers of scores
    total: int  # entries of the buffer
    scratch: int
    marginals: int  # where the tables' marginals begin


class Members(NamedTuple):
    """Instances in groups of at most eight, what tells them apart, and where their scores and tables lie.

    ``words[g, p]``: lanes of group g in which position p is a free output, ends rows, is present. Instances of a kind
    have the same topology.
    """

    ptr: Ints
    instance: Ints
    kind: Ints
    words: Ints
    fresh: Bools  # whether the roles of a group differ from those of the one before
    segment_ptr: Ints  # by kind
    segment: Ints  # (from, to, length): scores of the instance to scores of the family
    factor: Ints  # (kind, slot): a factor of the table, -1 if none
    start: Ints  # of the tables
    rows: Ints
    cols: Ints
    put: Ints


class Begin(NamedTuple):
    """Where the states and the factors of instances begin, and the marginals of factors."""

    state: Ints
    factor: Ints
    mu: Ints


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def mask(word):
    return mask_of(np.uint64(word))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def lower(a, b):
    return where(above(a, b), b, a)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def store_four(x, o, a, b, c, d):
    store(x, o, a)
    store(x, o + L, b)
    store(x, o + 2 * L, c)
    store(x, o + 3 * L, d)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def store_five(x, o, a, b, c, d, e):
    store_four(x, o, a, b, c, d)
    store(x, o + 4 * L, e)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def push(x, at, R, n, A, a, m, to, scale):
    """y(r, k) = scale sum_j x(r, j) A[a + j m + k]: R rows of m numbers from rows of n."""
    for _ in range(R):
        k = 0
        while k + 5 <= m and n == 2:
            q, v, h = load(x, at) * scale, load(x, at + L) * scale, a + m + k
            s0, s1, s2 = q * A[a + k] + v * A[h], q * A[a + k + 1] + v * A[h + 1], q * A[a + k + 2] + v * A[h + 2]
            s3, s4 = q * A[a + k + 3] + v * A[h + 3], q * A[a + k + 4] + v * A[h + 4]
            store_five(x, to + L * k, s0, s1, s2, s3, s4)
            k += 5
        while k + 5 <= m:
            q = load(x, at)
            s0, s1, s2, s3, s4 = q * A[a + k], q * A[a + k + 1], q * A[a + k + 2], q * A[a + k + 3], q * A[a + k + 4]
            for j in range(1, n):
                q = load(x, at + L * j)
                r = a + j * m + k
                s0, s1, s2 = s0 + q * A[r], s1 + q * A[r + 1], s2 + q * A[r + 2]
                s3, s4 = s3 + q * A[r + 3], s4 + q * A[r + 4]
            store_five(x, to + L * k, s0 * scale, s1 * scale, s2 * scale, s3 * scale, s4 * scale)
            k += 5
        while k < m:
            h = min(k + 1, m - 1)
            q = load(x, at)
            s0, s1 = q * A[a + k], q * A[a + h]
            for j in range(1, n):
                q = load(x, at + L * j)
                s0, s1 = s0 + q * A[a + j * m + k], s1 + q * A[a + j * m + h]
            store(x, to + L * k, s0 * scale)
            store(x, to + L * h, s1 * scale)
            k += 2
        at += n * L
        to += m * L


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def larger(v, top, j, best):
    """The larger of two, and whose it is; of equal ones the first."""
    more = above(v, top)
    return where(more, v, top), where(more, j, best)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def push_max(x, at, n, A, a, m, to):
    """y_k = max_j x_j + A[a + j m + k], and behind them the first such j."""
    k, zero, one, best = 0, splat(0.0), splat(1.0), to + m * L
    while k + 4 <= m:
        q, index, r = load(x, at), zero, a + k
        s0, s1, s2, s3, i0, i1, i2, i3 = q + A[r], q + A[r + 1], q + A[r + 2], q + A[r + 3], zero, zero, zero, zero
        for j in range(1, n):
            q, r, index = load(x, at + L * j), r + m, index + one
            s0, i0 = larger(q + A[r], s0, index, i0)
            s1, i1 = larger(q + A[r + 1], s1, index, i1)
            s2, i2 = larger(q + A[r + 2], s2, index, i2)
            s3, i3 = larger(q + A[r + 3], s3, index, i3)
        store_four(x, to + L * k, s0, s1, s2, s3)
        store_four(x, best + L * k, i0, i1, i2, i3)
        k += 4
    while k < m:
        s, i, index = load(x, at) + A[a + k], zero, zero
        for j in range(1, n):
            index = index + one
            s, i = larger(load(x, at + L * j) + A[a + j * m + k], s, index, i)
        store(x, to + L * k, s)
        store(x, best + L * k, i)
        k += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def power(x, p, squarings):
    """x^(p - 1) of a number in [0, 1]; p is 2^squarings unless that is negative."""
    if squarings > 0:
        y = x
        for _ in range(squarings - 1):
            y = y * y * x
        return y
    return vexp(vlog(vmax(x, splat(TINY))) * (p - 1.0))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def add_where(word, x, to, v):
    """x += v in the lanes of ``word``."""
    old = load(x, to)
    store(x, to, old + v if word == FULL else where(mask(word), old + v, old))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def multiply(x, to, R, k, m, carried, word):
    """The belief (r, .) at ``to`` times the message (r or 0, .) at m in the lanes of ``word``; elsewhere a message with
    rows has but the first."""
    one, zero = splat(1.0), splat(0.0)
    for r in range(R):
        for j in range(k):
            v = load(x, m + ((r * k if carried else 0) + j) * L)
            if word != FULL:
                v = where(mask(word), v, zero if carried and r > 0 else one)
            o = to + (r * k + j) * L
            store(x, o, load(x, o) * v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def raise_rows(word, R, step, x, o, inv, ratio, squarings):
    """s(r) = (s(r) inv)^(ratio - 1) in the lanes of ``word``, and the sum of (s(r) inv)^ratio."""
    total, r = splat(0.0), 0
    while r + 4 <= R and squarings > 0:
        o0, o1, o2, o3 = o + r * step, o + (r + 1) * step, o + (r + 2) * step, o + (r + 3) * step
        v0, v1, v2, v3 = load(x, o0), load(x, o1), load(x, o2), load(x, o3)
        z0, z1, z2, z3 = v0 * inv, v1 * inv, v2 * inv, v3 * inv
        y0, y1, y2, y3 = z0, z1, z2, z3
        for _ in range(squarings - 1):
            y0, y1, y2, y3 = y0 * y0 * z0, y1 * y1 * z1, y2 * y2 * z2, y3 * y3 * z3
        total = total + ((z0 * y0 + z1 * y1) + (z2 * y2 + z3 * y3))
        if word != FULL:
            y0, y1 = where(mask(word), y0, v0), where(mask(word), y1, v1)
            y2, y3 = where(mask(word), y2, v2), where(mask(word), y3, v3)
        store(x, o0, y0)
        store(x, o1, y1)
        store(x, o2, y2)
        store(x, o3, y3)
        r += 4
    while r < R:
        v = load(x, o + r * step)
        z = v * inv
        y = power(z, ratio, squarings)
        total = total + z * y
        store(x, o + r * step, y if word == FULL else where(mask(word), y, v))
        r += 1
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def close_best(word, R, k, x, b, A, a, c, w, scale, eps_h, to, scratch, least):
    """Rows end at eps_y = 0: u(z) += eps_h log max_r sum_x b(r, x) E(x, z); the first such row is left in w."""
    one = splat(1.0)
    for z in range(c):
        top, best, r, o = splat(-1.0), splat(0.0), splat(0.0), b
        for _ in range(R):
            if k == 2:
                v = load(x, o) * A[a + z] + load(x, o + L) * A[a + c + z]
            else:
                v = load(x, o) * A[a + z]
                for j in range(1, k):
                    v = v + load(x, o + j * L) * A[a + j * c + z]
            best = where(above(v, top), r, best)
            top = vmax(v, top)
            r = r + one
            o += k * L
        store(x, w + z * L, best)
        store(x, scratch + z * L, top * scale)
    for z in range(c):  # by itself: many logarithms are in flight at a time
        top = load(x, scratch + z * L)
        least = where(mask(word), lower(least, top), least)
        add_where(word, x, to + z * L, vlog(vmax(top, splat(TINY))) * eps_h)
    return least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def close(word, R, c, x, m, w, squarings, eps_y, eps_h, to, scratch, least):
    """Rows end: u(z) += eps_y log sum_r s(r, z)^ratio. Left in s and w: what makes d(r, z) = q(z) w(z) s(r, z)."""
    ratio = eps_h / eps_y
    for z in range(c):
        top = load(x, m + z * L)
        for r in range(1, R):
            top = vmax(load(x, m + (r * c + z) * L), top)
        least = where(mask(word), lower(least, top), least)
        store(x, w + z * L, vmax(top, splat(TINY)))
    if R == 1:
        for z in range(c):
            top = load(x, w + z * L)
            store(x, w + z * L, splat(1.0) / top)
            add_where(word, x, to + z * L, vlog(top) * eps_h)
        return least
    for z in range(c):
        top = load(x, w + z * L)
        # A power of two brings the largest row to [1/2, 1) and costs neither a division nor a logarithm.
        inv = two_to_minus(exponent(top)) if ratio <= NARROW else splat(1.0) / top
        store(x, scratch + z * L, raise_rows(word, R, c * L, x, m + z * L, inv, ratio, squarings))
    for z in range(c):
        top, total = load(x, w + z * L), load(x, scratch + z * L)
        e = exponent(top)
        inv, score = two_to_minus(e), e * (0.6931471805599453 * eps_h)
        if ratio > NARROW:
            inv, score = splat(1.0) / top, vlog(top) * eps_h
        store(x, w + z * L, inv / total)
        add_where(word, x, to + z * L, score + vlog(total) * eps_y)
    return least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def factor_place(F, code):
    return -1 if code < 0 else F[code // 2 + (W if code % 2 else S)]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def multiply_all(F, G, kids, p, x):
    """The belief of p from factors of any kind: with rows, or of some lanes."""
    e, k, to, R, c = F[p + E], F[p + CARD], F[p + B], G[p + ROWS], F[p + CARRIER]
    for r in range(R):
        for j in range(k):
            store(x, to + (r * k + j) * L, load(x, e + j * L))
    for n in range(F[p + KIDS], F[p + KIDS_END]):
        i = kids[n]
        if G[i + TIMES] != 0:
            multiply(x, to, R, k, F[i + S], i == c, G[i + TIMES])
        if G[p + IN_Y] and G[i + PLAIN] != 0:
            multiply(x, to, R, k, F[i + W], False, G[i + PLAIN])
    total = load(x, to)
    for j in range(1, R * k):
        total = total + load(x, to + L * j)
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def exponentiate(F, G, p, x, eps_y, eps_h):
    """e = exp((u - max) / unit) of position p; the largest score."""
    o, e, plain, inverse = F[p + U], F[p + E], G[p + PLAIN], splat(1.0 / eps_h)
    if plain != 0:
        inverse = where(mask(plain), splat(1.0 / eps_y if eps_y > 0.0 else 1.0), inverse)
    hi = load(x, o)
    for j in range(1, F[p + CARD]):
        hi = vmax(hi, load(x, o + L * j))
    for j in range(F[p + CARD]):
        store(x, e + L * j, vexp((load(x, o + L * j) - hi) * inverse))
    return hi


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def believe(F, G, kids, p, x):
    """The belief of position p, and its sum."""
    e, k, to, total = F[p + E], F[p + CARD], F[p + B], splat(0.0)
    one, two = factor_place(F, G[p + ONE]), factor_place(F, G[p + TWO])
    if not G[p + SIMPLE]:
        total = multiply_all(F, G, kids, p, x)
    else:
        for j in range(k):
            v = load(x, e + L * j)
            if one >= 0:
                v = v * load(x, one + L * j)
            if two >= 0:
                v = v * load(x, two + L * j)
            store(x, to + L * j, v)
            total = total + v
    inv = splat(1.0) / vmax(total, splat(TINY))
    # A belief of one row stays as it is: what it sends and gets back is scaled instead.
    store(x, F[p + SCALE], inv if G[p + ROWS] == 1 else splat(1.0))
    store(x, F[p + SCALE] + L, splat(1.0) if G[p + ROWS] == 1 else inv)
    if G[p + ROWS] > 1:
        for j in range(G[p + ROWS] * k):
            store(x, to + L * j, load(x, to + L * j) * inv)
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def open_rows(F, G, p, c, A, a, x):
    """s(r, z) = b(r) E(r, z) where rows begin; elsewhere there are other rows already."""
    k, R, to, m, word, zero = F[p + CARD], G[p + ROWS], F[p + B], F[p + S], G[p + OPENED], splat(0.0)
    others, scale = G[p + SENT] != FULL, load(x, F[p + SCALE])
    for r in range(G[p + MANY]):
        b = load(x, to + min(r, k - 1) * L) * scale
        for z in range(c):
            v = b * A[a + min(r, k - 1) * c + z] if r < k else zero
            if others:
                v = where(mask(word), v, load(x, m + (r * c + z) * L) if r < R else zero)
            store(x, m + (r * c + z) * L, v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def send(F, G, p, tables, base, squarings, eps_y, eps_h, x, scratch, least):
    """The message of position p to its parent, once its belief is known; the smallest sum that was met."""
    q = F[p + PARENT]
    k, c, to, m, w, R, up = F[p + CARD], F[q + CARD], F[p + B], F[p + S], F[p + W], G[p + ROWS], F[q + U]
    a, plain, ended = base[2 + F[p + FLIP]] + F[p + START], G[p + PLAIN], G[p + ENDED]
    scale = load(x, F[p + SCALE])
    if G[p + SENT] != FULL and (eps_y > 0.0 or G[p + TIMES] != 0):
        push(x, to, R, k, tables, a, c, m, scale)
    if G[p + OPENED] != 0:
        open_rows(F, G, p, c, tables, a, x)
    if ended != 0 and eps_y == 0.0:
        least = close_best(ended, R, k, x, to, tables, a, c, w, scale, eps_h, up, scratch, least)
    elif ended != 0:
        least = close(ended, R, c, x, m, w, squarings, eps_y, eps_h, up, scratch, least)
    if plain == 0:
        return least
    a = base[F[p + FLIP]] + F[p + START]
    if eps_y == 0.0:
        push_max(x, F[p + U], k, tables, a, c, scratch)
        for z in range(c):
            add_where(plain, x, up + z * L, load(x, scratch + z * L))
            best = load(x, scratch + (c + z) * L)
            store(x, w + z * L, best if ended == 0 else where(mask(plain), best, load(x, w + z * L)))
        return least
    push(x, to, 1, k, tables, a, c, scratch, scale)
    for z in range(c):
        v = load(x, scratch + z * L)
        if not G[q + IN_Y]:
            least = where(mask(plain), lower(least, v), least)
            v = vmax(v, splat(TINY))
            add_where(plain, x, up + z * L, vlog(v) * eps_y)
            v = splat(1.0) / v
        store(x, w + z * L, v if ended == 0 else where(mask(plain), v, load(x, w + z * L)))
    return least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def find_factors(F, G, kids, p):
    """The messages that multiply the belief of p: how many; the first two, twice the child plus whether it is what it
    sends as an output; and whether they have one row and are of all lanes."""
    factors, simple, G[p + ONE], G[p + TWO] = 0, True, -1, -1
    for n in range(F[p + KIDS], F[p + KIDS_END]):
        i = kids[n]
        if G[i + TIMES] != 0:
            G[p + TWO], G[p + ONE] = G[p + ONE], 2 * i
            simple &= G[i + TIMES] == FULL and G[i + MANY] == 1
            factors += 1
        if G[p + IN_Y] and G[i + PLAIN] != 0:
            G[p + TWO], G[p + ONE] = G[p + ONE], 2 * i + 1
            simple &= G[i + PLAIN] == FULL
            factors += 1
    c = F[p + CARRIER]
    G[p + ROWS] = G[c + MANY] if c >= 0 and G[c + TIMES] != 0 else 1
    G[p + FACTORS], G[p + SIMPLE] = factors, simple and factors < 3


@njit(cache=True, nogil=True, error_model="numpy")
def read_roles(n, F, kids, words, g, eps_y, G):
    """What every position of a group does, by lanes, and the rows that follow from it."""
    for p in range(0, n, COLUMNS):
        q, sent, here = F[p + PARENT], words[g, p // COLUMNS, 0], words[g, p // COLUMNS, 2]
        closed = words[g, q // COLUMNS, 1] if q >= 0 else FULL
        G[p + SENT], G[p + HERE], G[p + CLOSED] = sent, here, words[g, p // COLUMNS, 1]
        G[p + OPENED], G[p + PLAIN], G[p + ENDED] = sent & ~closed & here, sent & closed & here, ~sent & closed & here
        G[p + TIMES] = ~closed & here
        # In units of eps_y in all lanes: what outputs send multiplies the belief, and need not be taken to logs.
        G[p + IN_Y] = eps_y > 0.0 and sent == FULL and closed == FULL
        find_factors(F, G, kids, p)
        R, k, others = G[p + ROWS], F[p + CARD], sent != FULL
        G[p + MANY] = R if G[p + OPENED] == 0 else max(k, R) if others else k
        # Nothing is added to the scores on the way, and they are wanted as exponentials.
        G[p + READY] = not (sent == FULL and G[p + PLAIN] == here and eps_y == 0.0)
        for i in range(F[p + KIDS], F[p + KIDS_END]):
            G[p + READY] &= G[kids[i] + ENDED] == 0 and (G[kids[i] + PLAIN] == 0 or G[p + IN_Y])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def upward(n, F, G, kids, tables, base, tops, squarings, eps_y, eps_h, x, scratch):
    """From the leaves to the roots: the values of the lanes, and the smallest sum that was met."""
    zero, one = splat(0.0), splat(1.0)
    value, least = zero, one
    # Sums at eps_h and at eps_y as a product in [1/2, 1) and an exponent: one logarithm each, at the end.
    hot, cold, hot_e, cold_e = one, one, zero, zero
    for p in range(0, n, COLUMNS):  # by itself: many exponentials are in flight at a time
        if G[p + READY]:
            hi = exponentiate(F, G, p, x, eps_y, eps_h)
            if F[p + PARENT] >= 0 and eps_y == 0.0:
                hi = where(mask(G[p + PLAIN]), zero, hi)
            value = value + (hi if G[p + HERE] == FULL else where(mask(G[p + HERE]), hi, zero))
    for p in range(0, n, COLUMNS):
        q, here, plain = F[p + PARENT], G[p + HERE], G[p + PLAIN]
        if plain == here and G[p + SENT] == FULL and eps_y == 0.0:
            if q < 0:
                top = load(x, F[p + U])
                for j in range(1, F[p + CARD]):
                    top = vmax(top, load(x, F[p + U] + L * j))
                value = value + where(mask(here), top, zero)
            else:
                least = send(F, G, p, tables, base, squarings, eps_y, eps_h, x, scratch, least)
            continue
        gain = zero if G[p + READY] else exponentiate(F, G, p, x, eps_y, eps_h)
        total = believe(F, G, kids, p, x)
        if here != FULL:
            total = where(mask(here), total, one)
        least = lower(least, total)
        total = vmax(total, splat(TINY))
        if plain != FULL:
            hot = hot * (total if plain == 0 else where(mask(plain), one, total))
            e = exponent(hot)
            hot, hot_e = hot * two_to_minus(e), hot_e + e
        if plain != 0 and eps_y > 0.0:
            cold = cold * (total if plain == FULL else where(mask(plain), total, one))
            e = exponent(cold)
            cold, cold_e = cold * two_to_minus(e), cold_e + e
        if q >= 0:
            gain = gain + tops[F[p + START]]
            least = send(F, G, p, tables, base, squarings, eps_y, eps_h, x, scratch, least)
            if eps_y == 0.0:
                gain = where(mask(plain), zero, gain)
        elif G[p + ROWS] > 1:
            k, to, m = F[p + CARD], F[p + B], F[p + S]
            for r in range(G[p + ROWS]):
                v = load(x, to + r * k * L)
                for j in range(1, k):
                    v = v + load(x, to + (r * k + j) * L)
                store(x, m + r * L, v)
            store(x, scratch, zero)
            if eps_y == 0.0:
                # Its rows are the states of one that is summed with a table of ones.
                store(x, scratch + L, splat(1.0))
                least = close_best(
                    G[p + ENDED], G[p + ROWS], 1, x, m, x, scratch + L, 1, F[p + W], splat(1.0), eps_h, scratch,
                    scratch + 2 * L, least,
                )  # fmt: skip
            else:
                least = close(
                    G[p + ENDED], G[p + ROWS], 1, x, m, F[p + W], squarings, eps_y, eps_h, scratch, scratch + L, least
                )
            gain = gain + load(x, scratch)
        value = value + (gain if here == FULL else where(mask(here), gain, zero))
    value = value + (vlog(hot) + hot_e * 0.6931471805599453) * eps_h
    return value + (vlog(cold) + cold_e * 0.6931471805599453) * eps_y, least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def derive_times(F, G, p, x, scale):
    """The derivatives d(r, z) by a message that multiplies the parent's belief; zero in other lanes."""
    q, m, times, zero = F[p + PARENT], F[p + S], G[p + TIMES], splat(0.0)
    c, carried, inv = F[q + CARD], F[q + CARRIER] == p, load(x, F[q + SCALE] + L) * scale
    for r in range(G[p + MANY]):
        for z in range(c):
            o, at, d = m + (r * c + z) * L, ((r * c if carried else 0) + z) * L, zero
            if (carried or G[q + ROWS] == 1) and G[q + FACTORS] == 1:
                d = load(x, F[q + E] + z * L) * load(x, F[q + T] + at) * inv
            elif carried or G[q + ROWS] == 1:
                d = load(x, F[q + B] + at) * load(x, F[q + T] + at) / vmax(load(x, o), splat(TINY)) * scale
            elif r == 0:
                d = load(x, F[q + U] + z * L) / vmax(load(x, o), splat(TINY)) * scale
            store(x, o, d if times == FULL else where(mask(times), d, zero))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def derive(F, G, p, x, scratch):
    """The derivatives d(r, z) by the message of p to its parent, in its place, times p's scale."""
    q, R, m, ended, scale = F[p + PARENT], G[p + ROWS], F[p + S], G[p + ENDED], load(x, F[p + SCALE])
    c = F[q + CARD]
    if ended == 0:
        derive_times(F, G, p, x, scale)
        return
    for z in range(c):
        store(x, scratch + z * L, load(x, F[q + U] + z * L) * load(x, F[p + W] + z * L) * scale)
    if ended == FULL:
        for r in range(R):
            for z in range(c):
                v = load(x, scratch + z * L)
                store(x, m + (r * c + z) * L, v * load(x, m + (r * c + z) * L) if R > 1 else v)
        return
    weights = scratch + c * L
    for j in range(R * c):
        store(x, weights + j * L, load(x, m + j * L) if R > 1 else splat(1.0))
    derive_times(F, G, p, x, scale)
    for r in range(R):
        for z in range(c):
            o = (r * c + z) * L
            v = load(x, scratch + z * L) * load(x, weights + o)
            store(x, m + o, where(mask(ended), v, load(x, m + o)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def derive_factors(F, G, p, x):
    """The same for the factors of p, if they are at most two, with one row and of all lanes: without a division."""
    k, e, t = F[p + CARD], F[p + E], F[p + T]
    one, two = factor_place(F, G[p + ONE]), factor_place(F, G[p + TWO])
    first = load(x, F[G[p + ONE] // 2 + SCALE])
    if two >= 0:
        second = load(x, F[G[p + TWO] // 2 + SCALE])
        for z in range(k):
            d, v = load(x, e + z * L) * load(x, t + z * L), load(x, one + z * L)
            store(x, one + z * L, d * load(x, two + z * L) * first)
            store(x, two + z * L, d * v * second)
        return
    for z in range(k):
        store(x, one + z * L, load(x, e + z * L) * load(x, t + z * L) * first)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def begin_rows(F, G, p, c, A, a, marginals, x):
    """The way back where rows begin: t(x) = sum_z E(x, z) d(x, z), and the pairs' marginals at once."""
    k, to, m, opened, zero = F[p + CARD], F[p + B], F[p + S], G[p + OPENED], splat(0.0)
    sx, sz = (1, k) if F[p + FLIP] else (c, 1)
    others, put = G[p + SENT] != FULL, marginals + F[p + PUT]
    for i in range(k):
        b, t = load(x, to + i * L), zero
        for z in range(c):
            o = m + (i * c + z) * L
            d = load(x, o)
            v = d * A[a + z * k + i]  # the table with the parent's axis first
            t = t + v
            add_where(opened, x, put + (i * sx + z * sz) * L, b * v)
            if others:
                store(x, o, where(mask(opened), zero, d))
        at = F[p + T] + i * L
        store(x, at, where(mask(opened), t, load(x, at)) if others else t)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def share(F, G, p, x):
    """The derivatives by what one output sends another, times its scale."""
    q, w, plain, scale = F[p + PARENT], F[p + W], G[p + PLAIN], load(x, F[p + SCALE])
    for z in range(F[q + CARD]):
        d, s = load(x, F[q + U] + z * L) * scale, load(x, w + z * L)
        d = d / vmax(s, splat(TINY)) if G[q + IN_Y] else d * s
        store(x, w + z * L, d if plain == FULL else where(mask(plain), d, splat(0.0)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def downward(n, F, G, tables, base, x, scratch, marginals):
    """From the roots to the leaves: marginals of the nodes in place of the scores."""
    one = splat(1.0)
    for p in range(n - COLUMNS, -1, -COLUMNS):
        q, k, R, to, t, m = F[p + PARENT], F[p + CARD], G[p + ROWS], F[p + B], F[p + T], F[p + S]
        others, plain = G[p + SENT] != FULL, G[p + PLAIN]
        if q < 0:
            for r in range(R):
                v = load(x, F[p + SCALE])
                if R > 1:
                    v = where(mask(G[p + ENDED]), load(x, m + r * L) * load(x, F[p + W]), v)
                for j in range(k):
                    store(x, t + (r * k + j) * L, v)
        else:
            a, c, w = base[3 - F[p + FLIP]] + F[p + START], F[q + CARD], F[p + W]
            if (others or G[p + OPENED] != 0) and not (G[p + TIMES] != 0 and G[q + SIMPLE]):
                derive(F, G, p, x, scratch)
            if others:
                push(x, m, R, c, tables, a, k, t, one)
            if G[p + OPENED] != 0:
                begin_rows(F, G, p, c, tables, a, marginals, x)
            if plain != 0:
                if not (G[q + IN_Y] and G[q + SIMPLE]):
                    share(F, G, p, x)
                push(x, w, 1, c, tables, base[1 - F[p + FLIP]] + F[p + START], k, t if plain == FULL else scratch, one)
                for j in range(0 if plain == FULL else k):
                    v = load(x, scratch + j * L)
                    store(x, t + j * L, where(mask(plain), v, load(x, t + j * L)))
        for j in range(k):
            v = load(x, to + j * L) * load(x, t + j * L)
            for r in range(1, R):
                v = v + load(x, to + (r * k + j) * L) * load(x, t + (r * k + j) * L)
            store(x, F[p + U] + j * L, v)
        if G[p + SIMPLE] and G[p + FACTORS] > 0:
            derive_factors(F, G, p, x)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def load_five(x, o):
    return load(x, o), load(x, o + L), load(x, o + 2 * L), load(x, o + 3 * L), load(x, o + 4 * L)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def add_one(x, at, o, A, a, c):
    store(x, at + o * L, load(x, at + o * L) + c * A[a + o])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def add_five(x, at, o, step, A, a, c0, c1, c2, c3, c4):
    add_one(x, at, o, A, a, c0)
    add_one(x, at, o + step, A, a, c1)
    add_one(x, at, o + 2 * step, A, a, c2)
    add_one(x, at, o + 3 * step, A, a, c3)
    add_one(x, at, o + 4 * step, A, a, c4)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def outer(n, m, count, x, pairs, one, two, A, a, at, si, sj):
    """out[i si + j sj] += A[i si + j sj] sum_e x[pairs[one + 2 e] + i] x[pairs[two + 2 e] + j]."""
    for i in range(0, n, 2):
        h, j = min(i + 1, n - 1), 0
        while j + 5 <= m:
            c0, c1, c2, c3, c4 = splat(0.0), splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            d0, d1, d2, d3, d4 = splat(0.0), splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            for e in range(count):
                z, v = load(x, pairs[one + 2 * e] + i * L), load(x, pairs[one + 2 * e] + h * L)
                o = pairs[two + 2 * e] + j * L
                y0, y1, y2, y3, y4 = load_five(x, o)
                c0, c1, c2, c3, c4 = c0 + z * y0, c1 + z * y1, c2 + z * y2, c3 + z * y3, c4 + z * y4
                d0, d1, d2, d3, d4 = d0 + v * y0, d1 + v * y1, d2 + v * y2, d3 + v * y3, d4 + v * y4
            o = i * si + j * sj
            add_five(x, at, o, sj, A, a, c0, c1, c2, c3, c4)
            if h > i:
                add_five(x, at, o + si, sj, A, a, d0, d1, d2, d3, d4)
            j += 5
        while j < m:
            k = min(j + 1, m - 1)
            c0, c1, d0, d1 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            for e in range(count):
                z, v, o = load(x, pairs[one + 2 * e] + i * L), load(x, pairs[one + 2 * e] + h * L), pairs[two + 2 * e]
                y0, y1 = load(x, o + j * L), load(x, o + k * L)
                c0, c1, d0, d1 = c0 + z * y0, c1 + z * y1, d0 + v * y0, d1 + v * y1
            add_one(x, at, i * si + j * sj, A, a, c0)
            if k > j:
                add_one(x, at, i * si + k * sj, A, a, c1)
            if h > i:
                add_one(x, at, h * si + j * sj, A, a, d0)
            if h > i and k > j:
                add_one(x, at, h * si + k * sj, A, a, d1)
            j += 2


@njit(cache=True, nogil=True, error_model="numpy")
def list_pairs(F, G, members, by_table, pair_ptr, pairs):
    """Places of beliefs and derivatives whose outer products are wanted, by table, flip and kind; the counts first."""
    lists = 2 * (len(pair_ptr) - 1)
    at = lists
    for index in range(lists):
        slot, flip, kind, first = index // 4, index // 2 % 2, index % 2, at
        k, c = members.rows[slot], members.cols[slot]
        k, c = (c, k) if flip else (k, c)
        for n in range(pair_ptr[index // 2], pair_ptr[index // 2 + 1]):
            p = by_table[n]
            count = G[p + PLAIN] != 0 if kind else G[p + ROWS] * (G[p + SENT] != FULL)
            for r in range(count):
                pairs[at], pairs[at + 1] = F[p + B] + r * k * L, F[p + (W if kind else S)] + r * c * L
                at += 2
        pairs[index] = (at - first) // 2


@njit(cache=True, nogil=True, error_model="numpy")
def add_pairs(members, tables, base, x, marginals, pairs):
    """Marginals of the tables: sums of outer products of beliefs and derivatives, times the table."""
    lists = 4 * len(members.start)
    at = lists
    for index in range(lists):
        slot, count = index // 4, pairs[index]
        k, c, sx, sz = members.rows[slot], members.cols[slot], members.cols[slot], 1
        if index // 2 % 2:
            k, c, sx, sz = c, k, 1, c
        a, put = base[0 if index % 2 else 2] + members.start[slot], marginals + members.put[slot]
        if count and (c >= 5 or k < 5):
            outer(k, c, count, x, pairs, at, at + 1, tables, a, put, sx, sz)
        elif count:
            outer(c, k, count, x, pairs, at + 1, at, tables, a, put, sz, sx)
        at += 2 * count


@njit(cache=True, nogil=True, error_model="numpy")
def has(word, lane):
    return (word >> (8 * lane)) & 1 != 0


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def best_state(x, o, k):
    """The first of the k scores at o that is the largest."""
    best = 0
    for j in range(1, k):
        if x[o + j * L] > x[o + best * L]:
            best = j
    return best


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def walk_hidden(real, F, G, p, tables, a, sx, sz, x, put, state, rows):
    """A hidden variable given the best state of its parent, an output, in all lanes: its distribution, its row."""
    k, o, at, up, w = F[p + CARD], F[p + U], p // COLUMNS * L, F[p + PARENT] // COLUMNS * L, F[p + W]
    for lane in range(real):
        z = state[up + lane]
        r = int(x[w + z * L + lane]) if G[p + ROWS] > 1 else 0
        state[rows + at + lane], b, e = r, F[p + B] + r * k * L + lane, a + z * sz
        for j in range(k):
            x[o + j * L + lane] = x[b + j * L] * tables[e + j * sx]
    total = load(x, o)
    for j in range(1, k):
        total = total + load(x, o + j * L)
    inv = splat(1.0) / total
    for j in range(k):
        store(x, o + j * L, load(x, o + j * L) * inv)
    for lane in range(real):
        to = put + state[up + lane] * sz * L + lane
        for j in range(k):
            x[to + j * sx * L] += x[o + j * L + lane]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def given_parent(x, b, o, k, tables, a, step, put, part):
    """Adds ``part`` of the distribution of a hidden variable in one state of its parent to its marginals, and to the
    pair's at ``put`` (none if ``step`` is 0)."""
    total = 0.0
    for j in range(k):
        total += x[b + j * L] * (tables[a + j * step] if step else 1.0)
    part /= total
    for j in range(k):
        v = x[b + j * L] * (tables[a + j * step] if step else 1.0) * part
        x[o + j * L] += v
        if step:
            x[put + j * step * L] += v


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def walk(n, real, F, G, tables, base, x, marginals, state):
    """The best outputs of the lanes as point masses, and hidden variables given them.

    ``state`` holds the states of outputs and, behind them, the rows of hidden variables.
    """
    rows, zero = n // COLUMNS * L, splat(0.0)
    for p in range(n - COLUMNS, -1, -COLUMNS):
        q, k, root, sent, times = F[p + PARENT], F[p + CARD], F[p + PARENT] < 0, G[p + SENT], G[p + TIMES]
        parent = max(q, 0)
        c, sx, sz = F[parent + CARD], (1 if F[p + FLIP] else F[parent + CARD]), (k if F[p + FLIP] else 1)
        at, up, o, uq, put = p // COLUMNS * L, parent // COLUMNS * L, F[p + U], F[parent + U], marginals + F[p + PUT]
        if sent == 0 and times == 0 and G[p + HERE] == FULL and G[p + CLOSED] == 0 and not root:
            walk_hidden(real, F, G, p, tables, base[2] + F[p + START], sx, sz, x, put, state, rows)
            continue
        for lane in range(real):
            if has(G[p + PLAIN], lane):
                best = best_state(x, o + lane, k) if root else int(x[F[p + W] + state[up + lane] * L + lane])
                state[at + lane] = best
            elif has(sent, lane):
                state[at + lane] = state[rows + up + lane]
        for j in range(k):
            store(x, o + j * L, zero)
        for lane in range(real):
            if not has(G[p + HERE], lane):
                continue
            ended, z, best = not has(times, lane), 0 if root else state[up + lane], state[at + lane]
            if has(sent, lane):
                x[o + best * L + lane] = 1.0
                if ended and not root:
                    x[put + (best * sx + z * sz) * L + lane] += 1.0
                elif not root:
                    for j in range(c):
                        x[put + (best * sx + j * sz) * L + lane] += x[uq + j * L + lane]
                continue
            r = 0
            if G[p + ROWS] > 1 and ended:
                r = int(x[F[p + W] + z * L + lane])
            elif G[p + ROWS] > 1 and F[q + CARRIER] == p:
                r = state[rows + up + lane]
            state[rows + at + lane], b, a = r, F[p + B] + r * k * L + lane, base[2] + F[p + START]
            for j in range(z if ended else 0, z + 1 if ended else c):
                part = 1.0 if ended else x[uq + j * L + lane]
                to = put + j * sz * L + lane
                if part > 0.0:  # a state that its parent never has may leave it none
                    given_parent(x, b, o + lane, k, tables, a + j * sz, 0 if root else sx, to, part)
            if has(G[p + CLOSED], lane):
                state[at + lane] = best_state(x, o + lane, k)


@njit(cache=True, nogil=True, error_model="numpy")
def read(size, members, group, begin, unary, cost, allowed, stage, starts, x):
    """Scores of a group by variable, with a cost if there is one, masked ones at ``NONE``, at the beginning of the
    buffer."""
    for lane in range(L):
        b, kind, to = group[0, lane], group[1, lane], lane * size
        if kind > 0:
            for j in range(size):
                stage[to + j] = 0.0
        for n in range(members.segment_ptr[kind], members.segment_ptr[kind + 1]):
            at, row, length = begin.state[b] + members.segment[n, 0], to + members.segment[n, 1], members.segment[n, 2]
            score, ok, out = unary[at : at + length], allowed[at : at + length], stage[row : row + length]
            if len(cost):
                extra = cost[at : at + length]
                for j in range(len(out)):
                    out[j] = score[j] + extra[j] if ok[j] else NONE
            else:
                for j in range(len(out)):
                    out[j] = score[j] if ok[j] else NONE
    for j in range(0, size, L):
        gather(stage, starts, j, x, j * L, ALL)


@njit(cache=True, nogil=True, error_model="numpy")
def write(size, members, group, real, begin, stage, starts, x, marginals, narrower, mu_unary, mu_tables):
    """Marginals of the first ``real`` lanes to where they belong; those of a ``narrower`` query are subtracted."""
    for j in range(0, size, L):
        scatter(x, j * L, stage, starts, j, ALL)
    for lane in range(real):
        b, kind = group[0, lane], group[1, lane]
        for n in range(members.segment_ptr[kind], members.segment_ptr[kind + 1]):
            to, at = begin.state[b] + members.segment[n, 0], lane * size + members.segment[n, 1]
            row, out = stage[at : at + members.segment[n, 2]], mu_unary[to : to + members.segment[n, 2]]
            for j in range(len(row)):
                out[j] = out[j] - row[j] if narrower else row[j]
        for slot in range(len(members.start)):
            if members.factor[kind, slot] >= 0:
                at = begin.mu[begin.factor[b] + members.factor[kind, slot]]
                for j in range(members.rows[slot] * members.cols[slot]):
                    v = x[marginals + members.put[slot] + j * L + lane]
                    mu_tables[at + j] = mu_tables[at + j] - v if narrower else v


@njit(cache=True, nogil=True, error_model="numpy")
def run_group(
    f, members, g, fresh, group, tables, base, tops, eps_y, eps_h, squarings, buffer, roles, listed, states, value, done
):
    """One group, its scores being in the buffer; ``done`` is set where nothing was too small to be safe."""
    # Kernels within get pointers: arrays would be counted, atomically, at every call.
    x, F, G, A = pointer_to(buffer), pointer_to(f.places), pointer_to(roles), pointer_to(tables)
    kids, base_at, tops_at, pairs = pointer_to(f.kids), pointer_to(base), pointer_to(tops), pointer_to(listed)
    n, real = f.places.size, members.ptr[g + 1] - members.ptr[g]
    if fresh:
        read_roles(n, F, kids, members.words, g, eps_y, G)
        list_pairs(F, G, members, f.by_table, f.pair_ptr, pairs)
    v, least = upward(n, F, G, kids, A, base_at, tops_at, squarings, eps_y, eps_h, x, f.scratch)
    store(x, f.scratch, v)
    for lane in range(real):
        value[group[lane]] = x[f.scratch + lane]
    store(x, f.scratch, least)
    for lane in range(real):
        b = group[lane]
        done[b] = x[f.scratch + lane] > SMALLEST and NONE / 2 < value[b] < np.inf
    for j in range(f.marginals, f.total):
        x[j] = 0.0
    if eps_y > 0.0:
        downward(n, F, G, A, base_at, x, f.scratch, f.marginals)
        add_pairs(members, A, base_at, x, f.marginals, pairs)
    else:
        walk(n, real, F, G, A, base_at, x, f.marginals, pointer_to(states))


@njit(cache=True, nogil=True, error_model="numpy")
def family_of(r):
    n, slots, kids = r[POSITIONS], r[SLOTS], carray(ints_at(r[FAMILY + 1]), r[POSITIONS])
    places, by_table = carray(ints_at(r[FAMILY]), (n, COLUMNS)), carray(ints_at(r[FAMILY + 3]), n)
    pair_ptr = carray(ints_at(r[FAMILY + 2]), 2 * slots + 1)
    return Family(places, kids, pair_ptr, by_table, r[SIZES], r[SIZES + 1], r[SIZES + 2], r[SIZES + 3], r[SIZES + 4])


@njit(cache=True, nogil=True, error_model="numpy")
def members_of(r):
    n, slots, m = r[POSITIONS], r[SLOTS], MEMBERS
    ptr, instance, kind = carray(ints_at(r[m]), 1), carray(ints_at(r[m + 1]), 1), carray(ints_at(r[m + 2]), 1)
    words, fresh = carray(ints_at(r[m + 3]), (1, n, 3)), carray(bools_at(r[m + 4]), 1)
    segment_ptr, segment = carray(ints_at(r[m + 5]), 1), carray(ints_at(r[m + 6]), (1, 3))
    factor, start = carray(ints_at(r[m + 7]), (1, slots)), carray(ints_at(r[m + 8]), slots)
    rows, cols, put = carray(ints_at(r[m + 9]), 1), carray(ints_at(r[m + 10]), 1), carray(ints_at(r[m + 11]), 1)
    return Members(ptr, instance, kind, words, fresh, segment_ptr, segment, factor, start, rows, cols, put)


@njit(cache=True, nogil=True, error_model="numpy")
def run_lanes(rows, numbers, sets, made, raw, raw_cost, unary, cost, value, mu_unary, mu_tables, done, space, counts):
    """The groups of ``rows`` in this order, U+ (side 0) with the costs, and U- (side 1); how many instances were done.

    ``sets`` names the tables that are to be made for either side; none if they are made already.
    """
    size, count = len(raw), 0
    for side in range(len(sets)):
        given = raw_cost if side == 0 else raw_cost[:0]
        make_tables(sets[side], numbers[side], made[TABLE_PARTS * size * side :], raw, given)
    for k in range(len(rows)):
        r, eps_y, eps_h = rows[k], numbers[rows[k, NUMBER], 0], numbers[rows[k, NUMBER], 1]
        f, members, side = family_of(r), members_of(r), r[SIDE]
        begin = Begin(carray(ints_at(r[BEGIN]), 1), carray(ints_at(r[BEGIN + 1]), 1), carray(ints_at(r[BEGIN + 2]), 1))
        allowed, base = carray(bools_at(r[ALLOWED]), len(unary)), r[BASE : BASE + 4]
        tops, extra = made[TABLE_PARTS * size * side + TOPS * size :], cost if side == 0 else cost[:0]
        buffer, stage = space[: f.total], space[f.total : f.total + L * f.size]
        n = f.places.size
        roles, listed, states = counts[:n], counts[n : n + f.n_pairs], counts[n + f.n_pairs + 3 * L :]
        starts, group = counts[n + f.n_pairs : n + f.n_pairs + L], np.empty((2, L), np.int64)
        for lane in range(L):
            starts[lane] = lane * f.size
        for j in range(2 * L * len(f.places)):
            states[j] = 0
        for g in range(r[FIRST], r[LAST]):
            real = members.ptr[g + 1] - members.ptr[g]
            for lane in range(L):
                i = members.ptr[g] + min(lane, real - 1)
                group[0, lane], group[1, lane] = members.instance[i], members.kind[i]
            read(f.size, members, group, begin, unary, extra, allowed, stage, starts, buffer)
            run_group(
                f, members, g, g == r[FIRST] or members.fresh[g], group[0], made, base, tops, eps_y, eps_h,
                r[SQUARINGS], buffer, roles, listed, states, value[side], done[side],
            )  # fmt: skip
            write(
                f.size, members, group, real, begin, stage, starts, buffer, f.marginals, side == 1, mu_unary, mu_tables
            )
            for lane in range(real):
                count += done[side, group[0, lane]]
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def make_tables(tables, eps, made, raw, cost):
    """What ``TableSet.at_both`` makes, of scores with a cost if there is one."""
    size, n = len(raw), tables[3]
    starts, rows, cols = carray(ints_at(tables[0]), n), carray(ints_at(tables[1]), n), carray(ints_at(tables[2]), n)
    scores, top, span = made[:size], made[TOPS * size : (TOPS + 1) * size], made[(TOPS + 1) * size : TABLE_PARTS * size]
    for j in range(size):
        scores[j] = raw[j] + cost[j] if len(cost) else raw[j]
    for h in range(1 if eps[0] == eps[1] else 2):
        e, et = made[(1 + 2 * h) * size : (2 + 2 * h) * size], made[(2 + 2 * h) * size : (3 + 2 * h) * size]
        exp_tables(scores, starts, rows, cols, eps[h], e, et, top, span)

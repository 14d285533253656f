"""Eight instances of one forest in a register: where a group lies in memory, and what every pass over it shares.

Instances of a group have the same rooted forest, read from the root, though some may end sooner than others (chains of
different lengths), and read the same tables; roles and masks are each instance's own. Positions run from the leaves to
the root; an instance that ends sooner lacks the first positions, which then send neutral messages.

A group is one row of numbers, so that any number of them is one call, and kernels get addresses: arrays would be
counted, atomically, at every call, and take long to compile. ``sums`` runs groups of one temperature, ``replicas`` some
of those of two, ``lanes`` others.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit
from mssvm.engines.numba.forests.scaled import exp_table
from mssvm.engines.numba.vector import (
    WIDTH,
    above,
    bytes_at,
    gather_allowed,
    ints_at,
    load,
    lower,
    onward,
    pointer_to,
    scatter,
    scatter_off,
    splat,
    store,
    vexp,
    vmax,
    where,
)

L = WIDTH
FAST = {"reassoc", "contract", "nsz", "arcp"}
NONE = -1e300
TINY = 1e-300
# A sum above this is not made of what underflow left over, and the inverses of two of them, which derivatives are
# multiplied by, do not overflow.
SMALLEST = 1e-150
# Of tables whose entries differ by more than this, over eps, underflow might take what a later message asks for. Where
# entries are forbidden it might even so, and scores are looked at.
RANGE = 300.0
LOG_2 = 0.6931471805599453
NEAR = 1 << 12  # registers that stay in a near cache
FULL = -1  # a word of eight lanes, a byte each, all set

# Columns of a row; PAIRS to SPAN are sizes and places of a family, from ALLOWED on they are addresses.
SIDE, FIRST, LAST, NUMBER, BASE, SQUARINGS, POSITIONS, SLOTS = 0, 1, 2, 3, 4, 8, 9, 10
PAIRS, SIZE, TOTAL, SCRATCH, MARGINALS, SPAN = range(11, 17)
ALLOWED, STATE_AT, FACTOR_AT, MU_AT, PLACES, KID_LIST, PAIR_PTR, BY_TABLE = range(17, 25)
PTR, INSTANCE, KIND, WORDS, FRESH, SEGMENT_PTR, SEGMENT, FACTOR, TABLE, TABLE_ROWS, TABLE_COLS, PUT_AT = range(25, 37)
MORE, ROW = 37, 38
# Tables as they are made, one part after the other: scores, exponentials at eps_y, transposed, at eps_h, transposed,
# the largest score of each, its range, and that of what it allows.
TABLE_PARTS, TOPS = 8, 5

# Columns of a family's positions; a position is known by the place of its row in the table. Places of what it owns are
# entries of the buffer, a register being eight.
COLUMNS = 16
CARD, PARENT, FLIP, SLOT, START, PUT, CARRIER, KIDS, KIDS_END = range(9)
U, E, B, T, S, W, SCALE = range(9, 16)  # scores, exponentials, belief, t, message, what belongs to it, scale


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def store_four(x, o, a, b, c, d):
    store(x, o, a)
    store(x, o + L, b)
    store(x, o + 2 * L, c)
    store(x, o + 3 * L, d)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def store_five(x, o, a, b, c, d, e):
    store_four(x, o, a, b, c, d)
    store(x, o + 4 * L, e)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
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
        while k + 2 <= m:
            q = load(x, at)
            s0, s1 = q * A[a + k], q * A[a + k + 1]
            for j in range(1, n):
                q, r = load(x, at + L * j), a + j * m + k
                s0, s1 = s0 + q * A[r], s1 + q * A[r + 1]
            store(x, to + L * k, s0 * scale)
            store(x, to + L * (k + 1), s1 * scale)
            k += 2
        if k < m:
            s0 = load(x, at) * A[a + k]
            for j in range(1, n):
                s0 = s0 + load(x, at + L * j) * A[a + j * m + k]
            store(x, to + L * k, s0 * scale)
        at += n * L
        to += m * L


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def push_sparse(x, at, R, n, A, a, m, to, scale, width):
    """``push`` by a table of which only blocks are not zero: ``width`` numbers of one side go with one of the other."""
    if n < m:
        for r in range(R):
            for j in range(n):
                v, o = load(x, at + (r * n + j) * L) * scale, j * width
                for i in range(o, o + width):
                    store(x, to + (r * m + i) * L, v * A[a + j * m + i])
    else:
        for r in range(R):
            for k in range(m):
                s, o = splat(0.0), k * width
                for j in range(o, o + width):
                    s = s + load(x, at + (r * n + j) * L) * A[a + j * m + k]
                store(x, to + (r * m + k) * L, s * scale)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def load_five(x, o):
    return load(x, o), load(x, o + L), load(x, o + 2 * L), load(x, o + 3 * L), load(x, o + 4 * L)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def sum_at(x, at, o, begun):
    return load(x, at + o * L) if begun else splat(0.0)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def five_sums_at(x, at, o, step, begun):
    return (
        sum_at(x, at, o, begun), sum_at(x, at, o + step, begun), sum_at(x, at, o + 2 * step, begun),
        sum_at(x, at, o + 3 * step, begun), sum_at(x, at, o + 4 * step, begun),
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_one(x, at, sums, o, A, a, c):
    """A sum times its entry of the table to the marginals ``at``, or to ``sums`` if that is a place."""
    store(x, (at if sums < 0 else sums) + o * L, load(x, at + o * L) + c * A[a + o] if sums < 0 else c)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_five(x, at, sums, o, step, A, a, c0, c1, c2, c3, c4):
    add_one(x, at, sums, o, A, a, c0)
    add_one(x, at, sums, o + step, A, a, c1)
    add_one(x, at, sums, o + 2 * step, A, a, c2)
    add_one(x, at, sums, o + 3 * step, A, a, c3)
    add_one(x, at, sums, o + 4 * step, A, a, c4)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def outer(n, m, first, last, x, pairs, one, two, A, a, at, begun, sums, si, sj):
    """out[i si + j sj] += A[i si + j sj] sum_e x[pairs[one + 2 e] + i] x[pairs[two + 2 e] + j] over e from ``first`` to
    before ``last``. Sums have ``begun`` at that place (-1: they have not), or go on and stay at ``sums``."""
    for i in range(0, n, 2):
        h, j = min(i + 1, n - 1), 0
        while j + 5 <= m:
            o, q = i * si + j * sj, h * si + j * sj
            c0, c1, c2, c3, c4 = five_sums_at(x, begun, o, sj, begun >= 0)
            d0, d1, d2, d3, d4 = five_sums_at(x, begun, q, sj, begun >= 0)
            for e in range(first, last):
                z, v = load(x, pairs[one + 2 * e] + i * L), load(x, pairs[one + 2 * e] + h * L)
                y0, y1, y2, y3, y4 = load_five(x, pairs[two + 2 * e] + j * L)
                c0, c1, c2, c3, c4 = c0 + z * y0, c1 + z * y1, c2 + z * y2, c3 + z * y3, c4 + z * y4
                d0, d1, d2, d3, d4 = d0 + v * y0, d1 + v * y1, d2 + v * y2, d3 + v * y3, d4 + v * y4
            add_five(x, at, sums, o, sj, A, a, c0, c1, c2, c3, c4)
            if h > i:
                add_five(x, at, sums, q, sj, A, a, d0, d1, d2, d3, d4)
            j += 5
        while j < m:
            k = min(j + 1, m - 1)
            o, p, q, r = i * si + j * sj, i * si + k * sj, h * si + j * sj, h * si + k * sj
            c0, c1 = sum_at(x, begun, o, begun >= 0), sum_at(x, begun, p, begun >= 0)
            d0, d1 = sum_at(x, begun, q, begun >= 0), sum_at(x, begun, r, begun >= 0)
            for e in range(first, last):
                z, v, y = load(x, pairs[one + 2 * e] + i * L), load(x, pairs[one + 2 * e] + h * L), pairs[two + 2 * e]
                y0, y1 = load(x, y + j * L), load(x, y + k * L)
                c0, c1, d0, d1 = c0 + z * y0, c1 + z * y1, d0 + v * y0, d1 + v * y1
            add_one(x, at, sums, o, A, a, c0)
            if k > j:
                add_one(x, at, sums, p, A, a, c1)
            if h > i:
                add_one(x, at, sums, q, A, a, d0)
            if h > i and k > j:
                add_one(x, at, sums, r, A, a, d1)
            j += 2


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def highest(x, u, k):
    """The highest of k scores."""
    hi = load(x, u)
    for j in range(1, k):
        hi = vmax(hi, load(x, u + L * j))
    return hi


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def exponentials(x, u, e, k, inverse):
    """e = exp((u - max) * inverse) of k scores; the largest."""
    hi = highest(x, u, k)
    for j in range(k):
        store(x, e + L * j, vexp((load(x, u + L * j) - hi) * inverse))
    return hi


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def outer_blocks(n, width, count, x, pairs, one, two, A, a, at, si, sj):
    """``outer`` of n numbers and n blocks of ``width``, each with its block only."""
    for i in range(n):
        for j in range(i * width, (i + 1) * width, 2):
            h = min(j + 1, (i + 1) * width - 1)
            c, d = splat(0.0), splat(0.0)
            for e in range(count):
                z, y = load(x, pairs[one + 2 * e] + i * L), pairs[two + 2 * e]
                c, d = c + z * load(x, y + j * L), d + z * load(x, y + h * L)
            add_one(x, at, -1, i * si + j * sj, A, a, c)
            if h > j:
                add_one(x, at, -1, i * si + h * sj, A, a, d)


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def add_sparse(R, r, slot, flip, count, h, tables, x, pairs, at):
    """``add_products`` for a table of which only blocks are not zero."""
    rows, cols = ints_at(R[r + TABLE_ROWS])[slot], ints_at(R[r + TABLE_COLS])[slot]
    a, put = R[r + BASE + 2 * h] + ints_at(R[r + TABLE])[slot], R[r + MARGINALS] + ints_at(R[r + PUT_AT])[slot]
    one, two = at + flip, at + 1 - flip  # of rows, of columns
    if rows < cols:
        outer_blocks(rows, cols // rows, count, x, pairs, one, two, tables, a, put, cols, 1)
    else:
        outer_blocks(cols, rows // cols, count, x, pairs, two, one, tables, a, put, 1, cols)


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def add_products(R, r, slot, flip, count, h, tables, x, pairs, at):
    """Marginals of a table: the sum of ``count`` outer products of beliefs and derivatives, times the table at the
    temperature of hidden variables if ``h``."""
    k, c = ints_at(R[r + TABLE_ROWS])[slot], ints_at(R[r + TABLE_COLS])[slot]
    a, put = R[r + BASE + 2 * h] + ints_at(R[r + TABLE])[slot], R[r + MARGINALS] + ints_at(R[r + PUT_AT])[slot]
    sx, sz = c, 1
    if flip:
        k, c, sx, sz = c, k, 1, c
    one, two, begun = at, at + 1, -1
    if c < 5 <= k:
        one, two, k, c, sx, sz = two, one, c, k, sz, sx
    step = max(NEAR // (k + c), 1)  # every pair is read once for some entries of the table, then for the next ones
    for first in range(0, count, step):
        last, kept = min(first + step, count), R[r + MARGINALS] - k * c * L
        sums = kept if last < count else -1
        outer(k, c, first, last, x, pairs, one, two, tables, a, put, begun, sums, sx, sz)
        begun = sums


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def alike(lanes):
    """Whether all lanes have instances of one kind."""
    others = 0
    for lane in range(1, L):
        others += lanes[2 * L + lane] != lanes[2 * L]
    return others == 0


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def read(R, r, g, unary, cost, costly, x, lanes):
    """Scores of group g by variable, with a cost if there is one, masked ones at ``NONE``, at the beginning of the
    buffer, and no marginals of tables yet; how many lanes are instances of their own, and zero if none of the scores is
    NaN or +inf.

    ``lanes`` gets where the scores of every lane begin, the instance and its kind.
    """
    ptr, instance, kinds = ints_at(R[r + PTR]), ints_at(R[r + INSTANCE]), ints_at(R[r + KIND])
    state_at, segment_ptr, segment = ints_at(R[r + STATE_AT]), ints_at(R[r + SEGMENT_PTR]), ints_at(R[r + SEGMENT])
    ok, real, shorter, wrong = bytes_at(R[r + ALLOWED]), ptr[g + 1] - ptr[g], 0, 0
    for lane in range(L):
        i = ptr[g] + (lane if lane < real else real - 1)
        lanes[lane], lanes[L + lane], lanes[2 * L + lane] = state_at[instance[i]], instance[i], kinds[i]
        shorter += kinds[i]
    for j in range(R[r + SIZE] * L if shorter else 0):
        x[j] = 0.0
    together = alike(lanes)
    for lane in range(L):
        kind = lanes[2 * L + lane]
        for n in range(segment_ptr[kind], segment_ptr[kind + 1]):
            first, to, length = segment[3 * n], segment[3 * n + 1] * L, segment[3 * n + 2]
            whole = length - length % L if together else 0
            for j in range(0, whole if lane == 0 else 0, L):
                if costly:
                    wrong |= gather_allowed(unary, cost, ok, lanes, first + j, x, to + j * L)
                else:
                    wrong |= gather_allowed(unary, None, ok, lanes, first + j, x, to + j * L)
            for j in range(whole, length):
                at = lanes[lane] + first + j
                v = unary[at] + (cost[at] if costly else 0.0)
                wrong |= not v < np.inf
                x[to + j * L + lane] = v if ok[at] else NONE
    for j in range(R[r + MARGINALS], R[r + TOTAL]):
        x[j] = 0.0
    return real, wrong


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def table_range(R, r, made, size):
    """The widest range of what a row's tables allow, and whether they forbid anything."""
    span, widest, holes = onward(made, (TABLE_PARTS * R[r + SIDE] + TOPS + 1) * size), 0.0, False
    for slot in range(R[r + SLOTS]):
        start = ints_at(R[r + TABLE])[slot]
        widest, holes = max(widest, span[size + start]), holes or span[start] == np.inf
    return widest, holes


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def spread(x, u, k, inverse):
    """exp of the lowest of k scores that are allowed, less the highest: zero where that underflows."""
    hi = highest(x, u, k)
    lo = hi
    for j in range(k):
        v = load(x, u + L * j)
        lo = lower(lo, where(above(v, splat(NONE / 2)), v, hi))
    return vexp((lo - hi) * inverse)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def forget(x, t, b, n):
    """n derivatives at t become zero where b is: by what is impossible they may be of any size."""
    for j in range(n):
        store(x, t + L * j, where(load(x, b + L * j), load(x, t + L * j), splat(0.0)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def smallest(x, at, n):
    """The smallest of n numbers that is not zero."""
    out = splat(1.0)
    for j in range(n):
        v = load(x, at + L * j)
        out = where(v, lower(out, v), out)
    return out


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def put(x, at, n, whole, out, starts, to, word, less):
    """n registers to entries ``starts[l] + to`` on of ``out``, or off them, in the lanes of ``word``; the first
    ``whole`` of them eight at a time."""
    for j in range(0, whole, L):
        if less:
            scatter_off(x, at + j * L, out, starts, to + j, np.uint64(word))
        else:
            scatter(x, at + j * L, out, starts, to + j, np.uint64(word))
    for lane in range(L):
        for j in range(whole, n if (word >> (8 * lane)) & 1 else whole):
            o, v = starts[lane] + to + j, x[at + j * L + lane]
            out[o] = out[o] - v if less else v


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def write(R, r, real, wrong, v, least, x, lanes, value, done, mu_unary, mu_tables):
    """Values and marginals of the first lanes to where they belong, those of side 1 subtracted; how many instances are
    ``done``: nothing was too small to be safe, or ``wrong`` from the start."""
    side, count, slots, together = R[r + SIDE], 0, R[r + SLOTS], alike(lanes)
    segment_ptr, segment, factors = ints_at(R[r + SEGMENT_PTR]), ints_at(R[r + SEGMENT]), ints_at(R[r + FACTOR])
    every = FULL if real == L else (1 << (8 * real)) - 1
    for lane in range(1 if together else real):
        kind = lanes[2 * L + lane]
        for n in range(segment_ptr[kind], segment_ptr[kind + 1]):
            length = segment[3 * n + 2]
            whole = length - length % L if together else 0
            word = every if together else 255 << (8 * lane)
            put(x, segment[3 * n + 1] * L, length, whole, mu_unary, lanes, segment[3 * n], word, side)
    for slot in range(slots):
        size, word = ints_at(R[r + TABLE_ROWS])[slot] * ints_at(R[r + TABLE_COLS])[slot], 0
        for lane in range(real):
            factor = factors[lanes[2 * L + lane] * slots + slot]
            if factor >= 0:
                lanes[lane] = ints_at(R[r + MU_AT])[ints_at(R[r + FACTOR_AT])[lanes[L + lane]] + factor]
                word |= 255 << (8 * lane)
        at = R[r + MARGINALS] + ints_at(R[r + PUT_AT])[slot]
        put(x, at, size, size - size % L, mu_tables, lanes, 0, word, side)
    every_one = splat(0.0)  # not finite where a derivative by what has no probability overflowed
    for j in range(R[r + MARGINALS], R[r + TOTAL], L):
        every_one = every_one + load(x, j)
    store(x, 0, v)
    store(x, L, where(above(splat(1e300), every_one), least, splat(0.0)))
    for lane in range(real):
        b = lanes[L + lane]
        value[side, b] = x[lane]
        done[side, b] = x[L + lane] > SMALLEST and NONE / 2 < x[lane] < np.inf and wrong == 0
        count += done[side, b]
    return count


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def make_tables(sets, numbers, made, raw, cost):
    """What ``TableSet.at_both`` makes, of scores with a cost if there is one at side 0, for the sides of ``sets``."""
    size, scores, extra = len(raw), pointer_to(raw), pointer_to(cost)
    for side in range(len(sets)):
        part, eps_y, eps_h = onward(made, TABLE_PARTS * size * side), numbers[side, 0], numbers[side, 1]
        starts, rows, cols = ints_at(sets[side, 0]), ints_at(sets[side, 1]), ints_at(sets[side, 2])
        for j in range(size):
            part[j] = scores[j] + extra[j] if side == 0 and len(cost) else scores[j]
        for h in range(1 if eps_y == eps_h else 2):
            e, et = onward(part, (1 + 2 * h) * size), onward(part, (2 + 2 * h) * size)
            top, span = onward(part, TOPS * size), onward(part, (TOPS + 1) * size)
            within = onward(span, size)
            for k in range(sets[side, 3]):
                exp_table(part, starts[k], rows[k], cols[k], eps_h if h else eps_y, e, et, top, span, within)

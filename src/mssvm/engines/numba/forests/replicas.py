"""Paths of labels and hidden variables in turn side by side (``registers``), at eps_y = eps_h / n for a whole n.

A hidden variable between two labels is summed at eps_h, and what remains is raised to the power n. That is a sum over n
copies of it, of which it only matters how many are in every state:

    (sum_h a(h) f(h))^n = sum_k c(k) prod_h a(h)^k(h) prod_h f(h)^k(h),   k(1) + .. + k(H) = n,   c multinomial.

So the counts k stand for the hidden variable, K of them, and labels and counts are a chain of one temperature:

    label to counts     g(k) = sum_y b(y) c(k) E(y, .)^k,   b(y) = exp((u(y) - max) / eps_y) * message
    counts to label     s(y) = sum_k m(k) E(., y)^k,        m(k) = g(k) exp((v - max) / eps_h)^k * scale

A label that is missing, in some lanes, is summed with its neighbours, T(h, h') = sum_y E(h, y) e(y) E(y, h') with e at
eps_h, and g(k') are the coefficients of the polynomial sum_k m(k) f^k at f = T f', multiplied out a copy at a time. The
way back is the chain rule. A state of k copies out of n has the share k / n of their marginal.
"""

from __future__ import annotations

from mssvm.core.jit import njit
from mssvm.engines.numba.forests.registers import (
    BASE,
    CARD,
    CARRIER,
    COLUMNS,
    FAST,
    FIRST,
    FULL,
    KIDS,
    KIDS_END,
    LAST,
    LOG_2,
    MARGINALS,
    MORE,
    NUMBER,
    PARENT,
    PLACES,
    POSITIONS,
    PUT_AT,
    RANGE,
    ROW,
    SCALE,
    SCRATCH,
    SIDE,
    SLOT,
    SLOTS,
    START,
    TABLE,
    TABLE_PARTS,
    TINY,
    TOPS,
    WORDS,
    B,
    E,
    L,
    S,
    T,
    U,
    W,
    exponentials,
    forget,
    highest,
    make_tables,
    outer,
    push,
    read,
    smallest,
    spread,
    store_four,
    table_range,
    write,
)
from mssvm.engines.numba.vector import (
    above,
    exponent,
    ints_at,
    load,
    lower,
    onward,
    pointer_to,
    splat,
    store,
    two_to_minus,
    two_to_minus_exponent,
    vexp,
    vlog,
    vmax,
    where,
)
from mssvm.engines.numba.vector import mask_of as mask

# Columns of a position: who is below it; of a label, the pair of tables on its two sides, and the pair that it has in
# lanes that begin there. T has the powers of a hidden variable, W its derivatives; of a label W has T twice.
BELOW, JOINT, OPENING = CARRIER, KIDS, KIDS_END
# What MORE points to: sizes, then where its parts begin.
COPIES, COUNTS, STATES, JOINTS, TERMS, COUNT_AT, MANY_AT, SLOT_AT, JOINT_AT, UP_AT, BACK_AT, TABLE_AT = range(12)
HEAD = 12
# Parts of a slot: whether labels are the table's first axis, how many there are, powers (label, counts) as numbers,
# four times: as they are, transposed, times c(k), transposed; marginals of counts; the pairs (belief, derivative).
LABEL_FIRST, LABELS, POWERS, EXPANDED, SENDING, SENDING_END, TAKING, TAKING_END, SLOT_PARTS = range(9)
# Parts of a joint: slots below and above, -1 if none, labels, products of tables (label, h h') and transposed, their
# marginals, and the pairs (e, derivatives by T).
UNDER, OVER, WIDTH_OF, PRODUCTS, JOINED, PAIRS_AT, PAIRS_END, JOINT_PARTS = range(8)


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def entry(R, r, A, D, slot, y, h):
    """E(y, h) of a table at eps_h; where there is none its neighbour has one state."""
    if slot < 0:
        return 1.0 if h == 0 else 0.0
    s = D[SLOT_AT] + slot * SLOT_PARTS
    a = R[r + BASE + 2] + ints_at(R[r + TABLE])[slot]
    return A[a + (y * D[STATES] + h if D[s + LABEL_FIRST] else h * D[s + LABELS] + y)]


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def make_powers(R, r, A, D, x):
    """Powers of the tables, and products of those on two sides of a label, as numbers in the buffer."""
    H, K = D[STATES], D[COUNTS]
    for slot in range(-1, R[r + SLOTS]):
        s = D[SLOT_AT] + slot * SLOT_PARTS
        c, at = D[s + LABELS], D[s + POWERS]
        for y in range(c):
            for k in range(K):
                v = 1.0
                for h in range(H):
                    base = entry(R, r, A, D, slot, y, h)
                    for _ in range(D[D[COUNT_AT] + k * H + h]):
                        v *= base
                many = v * D[D[MANY_AT] + k]
                x[at + y * K + k], x[at + c * K + k * c + y] = v, v
                x[at + 2 * c * K + y * K + k], x[at + 3 * c * K + k * c + y] = many, many
    for joint in range(D[JOINTS]):
        o = D[JOINT_AT] + joint * JOINT_PARTS
        c, at = D[o + WIDTH_OF], D[o + PRODUCTS]
        for y in range(c):
            for t in range(H * H):
                v = entry(R, r, A, D, D[o + UNDER], y, t // H) * entry(R, r, A, D, D[o + OVER], y, t % H)
                x[at + y * H * H + t], x[at + c * H * H + t * c + y] = v, v


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def raise_all(D, x, e, to, scratch):
    """prod_h e(h)^k(h) of all counts k."""
    n, H = D[COPIES], D[STATES]
    for h in range(H):
        v, at = splat(1.0), scratch + h * (n + 1) * L
        for i in range(n + 1):
            store(x, at + i * L, v)
            v = v * load(x, e + h * L)
    for k in range(D[COUNTS]):
        at = D[COUNT_AT] + k * H
        v = load(x, scratch + D[at] * L)
        for h in range(1, H):
            v = v * load(x, scratch + (h * (n + 1) + D[at + h]) * L)
        store(x, to + k * L, v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def multiply_out(D, x, t, poly):
    """The polynomial whose coefficients are the first of ``poly``, at f = T f': its coefficients are the last."""
    if D[STATES] == 2:
        multiply_two(D[COPIES], x, t, poly)
        return
    at = D[UP_AT]
    for to in range(D[COUNTS], D[TERMS]):
        end, v = at + 1 + 2 * D[at], splat(0.0)
        for i in range(at + 1, end, 2):
            v = v + load(x, poly + D[i]) * load(x, t + D[i + 1])
        store(x, poly + to * L, v)
        at = end


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def multiply_two(n, x, t, poly):
    """The same for two states: r <- (T00 a + T01 b) r + m(d) (T10 a + T11 b)^d, the powers and all r being kept."""
    a0, a1, b0, b1 = load(x, t), load(x, t + L), load(x, t + 2 * L), load(x, t + 3 * L)
    rest, power = poly + (n + 1) * L, poly + (n + 1) * (n + 4) // 2 * L
    store(x, rest, load(x, poly))
    store(x, power, splat(1.0))
    for d in range(1, n + 1):
        m, r, v, to = load(x, poly + d * L), splat(0.0), splat(0.0), d * L
        for i in range(d):
            r_next, v_next = load(x, rest + i * L), load(x, power + i * L)
            w = v_next * b0 + v * b1
            store(x, power + to + i * L, w)
            store(x, rest + to + i * L, r_next * a0 + r * a1 + m * w)
            r, v = r_next, v_next
        store(x, power + to + to, v * b1)
        store(x, rest + to + to, r * a1 + m * (v * b1))
        rest, power = rest + to, power + to


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def multiply_back(D, x, t, poly, slope, factor):
    """From the last derivatives of ``slope`` to the first; those by T, times ``factor``, in its place."""
    if D[STATES] == 2:
        back_two(D[COPIES], x, t, poly, slope, slope + (D[TERMS] - D[COUNTS]) * L, factor)
        return
    at = D[BACK_AT]
    for of in range(D[TERMS] - D[COUNTS] - 1, -1, -1):
        end, v = at + 1 + 2 * D[at], splat(0.0)
        for i in range(at + 1, end, 2):
            v = v + load(x, slope + D[i]) * load(x, t + D[i + 1])
        store(x, slope + of * L, v)
        at = end
    at = D[TABLE_AT]
    for j in range(D[STATES] * D[STATES]):
        end, v = at + 1 + 2 * D[at], splat(0.0)
        for i in range(at + 1, end, 2):
            v = v + load(x, poly + D[i]) * load(x, slope + D[i + 1])
        store(x, t + j * L, v * factor)
        at = end


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def back_two(n, x, t, poly, slope, last, factor):
    """The same for two states."""
    a0, a1, b0, b1, zero = load(x, t), load(x, t + L), load(x, t + 2 * L), load(x, t + 3 * L), splat(0.0)
    da0, da1, db0, db1, by_power = zero, zero, zero, zero, slope + (n + 1) * L
    for i in range(n + 1):
        store(x, by_power + i * L, zero)
    rest, power = poly + (n + 1) * (n + 2) // 2 * L, poly + (n + 1) * (n + 2) * L
    for d in range(n, 0, -1):
        m, e = load(x, poly + d * L), load(x, last)
        f, by_m = load(x, by_power) + m * e, e * load(x, power)
        below_rest, below_power = rest - d * L, power - d * L
        for i in range(d):
            at = (i + 1) * L
            e_next = load(x, last + at)
            f_next, by_m = load(x, by_power + at) + m * e_next, by_m + e_next * load(x, power + at)
            r, v = load(x, below_rest + i * L), load(x, below_power + i * L)
            da0, da1, db0, db1 = da0 + e * r, da1 + e_next * r, db0 + f * v, db1 + f_next * v
            store(x, last + i * L, e * a0 + e_next * a1)
            store(x, by_power + i * L, f * b0 + f_next * b1)
            e, f = e_next, f_next
        store(x, slope + d * L, by_m)
        rest, power = below_rest, below_power
    store(x, slope, load(x, last))
    store_four(x, t, da0 * factor, da1 * factor, db0 * factor, db1 * factor)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def begin_polynomial(F, D, p, opening, x, poly):
    """The coefficients of what comes from below a missing label; where nothing does, a variable of one state."""
    below, some = F[p + BELOW], mask(opening)
    for k in range(D[COUNTS]):
        unit = splat(1.0 if k == 0 else 0.0)
        if below < 0:
            store(x, poly + k * L, unit)
        else:
            v = load(x, F[below + B] + k * L)
            store(x, poly + k * L, where(some, unit, v) if opening != 0 else v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def sum_label(F, D, p, opening, x, scratch):
    """T of a missing label, less than one by a power of two, which is returned, and its largest entry before."""
    t, size, joint = F[p + W], D[STATES] * D[STATES], D[JOINT_AT] + F[p + JOINT] * JOINT_PARTS
    push(x, F[p + E], 1, F[p + CARD], x, D[joint + PRODUCTS], size, t, splat(1.0))
    if opening != 0:
        joint = D[JOINT_AT] + F[p + OPENING] * JOINT_PARTS
        push(x, F[p + E], 1, F[p + CARD], x, D[joint + PRODUCTS], size, scratch, splat(1.0))
        for j in range(size):
            store(x, t + j * L, where(mask(opening), load(x, scratch + j * L), load(x, t + j * L)))
    top = highest(x, t, size)
    e = exponent(vmax(top, splat(TINY)))
    scale = two_to_minus(e)
    for j in range(size):
        store(x, t + j * L, load(x, t + j * L) * scale)
    store(x, F[p + SCALE] + L, scale)
    return e, top


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def tell_counts(F, D, p, given, missing, opening, x, scratch, least, halvings):
    """g(k) of a label, in lanes where it is an output and where it is missing; the smallest sum that was met, and how
    often sums were halved."""
    below, c, b, g, K, one = F[p + BELOW], F[p + CARD], F[p + B], F[p + S], D[COUNTS], splat(1.0)
    total = splat(0.0)
    for y in range(c):
        v = load(x, F[p + E] + y * L)
        if below >= 0:
            v = v * load(x, F[below + S] + y * L)
        store(x, b + y * L, v)
        total = total + v
    if given != 0:
        least = lower(least, total if given == FULL else where(mask(given), total, one))
        push(x, b, 1, c, x, D[D[SLOT_AT] + F[p + SLOT] * SLOT_PARTS + POWERS] + 2 * c * K, K, g, one)
    if missing != 0:
        e, top = sum_label(F, D, p, opening, x, scratch)
        some, poly = mask(missing), scratch + D[STATES] * D[STATES] * L
        begin_polynomial(F, D, p, opening, x, poly)
        multiply_out(D, x, F[p + W], poly)
        last, total = poly + (D[TERMS] - K) * L, splat(0.0)
        for k in range(K):
            v = load(x, last + k * L)
            total = total + v
            store(x, g + k * L, v if given == 0 else where(some, v, load(x, g + k * L)))
        least = lower(least, where(some, lower(top, total), one))
        halvings = halvings + where(some, e * float(D[COPIES]), splat(0.0))
    return least, halvings


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def tell_label(F, D, p, here, x, least, halvings):
    """m(k) of a hidden variable, and s(y); the smallest sum that was met, and how often sums were halved."""
    K, m, g, q, total, one = D[COUNTS], F[p + B], F[F[p + BELOW] + S], F[p + PARENT], splat(0.0), splat(1.0)
    for k in range(K):
        v = load(x, g + k * L) * load(x, F[p + T] + k * L)
        store(x, m + k * L, v)
        total = total + v
    if here != FULL:
        total = where(mask(here), total, one)
    scale = two_to_minus_exponent(vmax(total, splat(TINY)))
    for k in range(K):
        store(x, m + k * L, load(x, m + k * L) * scale)
    store(x, F[p + SCALE], scale)
    c, s = F[q + CARD], F[p + S]
    push(x, m, 1, K, x, D[D[SLOT_AT] + F[p + SLOT] * SLOT_PARTS + POWERS] + c * K, c, s, one)
    e = exponent(vmax(total, splat(TINY)))
    if here != FULL:
        e = where(mask(here), e, splat(0.0))
        for y in range(c):
            store(x, s + y * L, where(mask(here), load(x, s + y * L), one))
    return lower(least, total), halvings + e


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def faintest(F, D, p, given, x, least, inverse, widest):
    """The smallest number that a state or count of p has, zero being none, or zero if underflow may have taken one; the
    ``least`` so far is the least of what is below."""
    v, entry = spread(x, F[p + U], F[p + CARD], inverse), vexp(inverse * -widest)
    one = where(mask(given), v * entry, splat(1.0))  # of a message to a label that is an output
    power = v if F[p + JOINT] < 0 else where(mask(given), splat(1.0), v * entry * entry)
    for _ in range(D[COPIES]):
        one = one * power
    size, to = (D[COUNTS], F[p + S]) if F[p + JOINT] >= 0 else (0, 0)
    out = lower(smallest(x, F[p + B], F[p + CARD] if size else D[COUNTS]), smallest(x, to, size))
    return where(above(one * least, splat(TINY)), out, splat(0.0))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def inverse_unit(F, p, given, eps_y, eps_h):
    hot = splat(1.0 / eps_h)
    return where(mask(given), splat(1.0 / eps_y), hot) if F[p + JOINT] >= 0 else hot


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def upward(N, F, D, words, tops, eps_y, eps_h, x, scratch, holes, widest):
    """From one end to the other: the values of the lanes, and the smallest sum that was met; where tables have
    ``holes`` the smallest number of a state or count as well."""
    zero, one = splat(0.0), splat(1.0)
    value, least, halvings = zero, one, zero
    for p in range(0, N, COLUMNS):  # by itself: many exponentials are in flight at a time
        at = 3 * (p // COLUMNS)
        here, inverse = words[at + 2], inverse_unit(F, p, words[at + 1], eps_y, eps_h)
        hi = exponentials(x, F[p + U], F[p + E], F[p + CARD], inverse)
        if F[p + JOINT] < 0:
            raise_all(D, x, F[p + E], F[p + T], scratch)
        if F[p + PARENT] >= 0:
            hi = hi + tops[F[p + START]]
        value = value + (hi if here == FULL else where(mask(here), hi, zero))
    for p in range(0, N, COLUMNS):
        at, below = 3 * (p // COLUMNS), F[p + BELOW]
        closed, here = words[at + 1], words[at + 2]
        if F[p + JOINT] < 0:
            least, halvings = tell_label(F, D, p, here, x, least, halvings)
        else:
            opening, given = here & ~closed & ~words[at - 1] if below >= 0 else 0, closed & here
            least, halvings = tell_counts(F, D, p, given, here & ~closed, opening, x, scratch, least, halvings)
        if holes:
            v = faintest(F, D, p, closed, x, least, inverse_unit(F, p, closed, eps_y, eps_h), widest)
            least = lower(least, where(mask(here), v, one))
    total = vmax(load(x, F[N - COLUMNS + S]), splat(TINY))  # at the end of all only the first count is possible
    store(x, F[N - COLUMNS + SCALE], splat(1.0) / total)
    return value + (vlog(total) + halvings * LOG_2) * eps_y, lower(least, total)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def derive_given(F, D, p, given, below_here, x, scratch, holes):
    """Marginals of a label where it is an output, zero elsewhere, and the derivatives by s(y) and m(k) below it."""
    below, c, K, g, zero, one = F[p + BELOW], F[p + CARD], D[COUNTS], F[p + S], splat(0.0), splat(1.0)
    for k in range(0 if given == FULL else K):
        store(x, g + k * L, where(mask(given), load(x, g + k * L), zero))
    push(x, g, 1, K, x, D[D[SLOT_AT] + F[p + SLOT] * SLOT_PARTS + POWERS] + 3 * c * K, c, scratch, one)
    if holes:
        forget(x, scratch, F[p + B], c)
    for y in range(c):
        t = load(x, scratch + y * L)
        store(x, F[p + U] + y * L, t * load(x, F[p + B] + y * L))
        if below >= 0:
            t = t * load(x, F[p + E] + y * L)
            store(x, F[below + S] + y * L, t if below_here == FULL else where(mask(below_here), t, zero))
    if below >= 0:
        a = D[D[SLOT_AT] + F[below + SLOT] * SLOT_PARTS + POWERS]
        push(x, F[below + S], 1, c, x, a, K, F[below + W], one)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def derive_missing(F, D, p, opening, below_here, x, scratch, slope):
    """What a label adds to all of that where it is missing; ``slope`` has the derivatives by g(k)."""
    below, c, t, size, zero = F[p + BELOW], F[p + CARD], F[p + W], D[STATES] * D[STATES], splat(0.0)
    poly = scratch + max(size, c) * L
    begin_polynomial(F, D, p, opening, x, poly)
    multiply_out(D, x, t, poly)
    multiply_back(D, x, t, poly, slope, load(x, F[p + SCALE] + L) * (1.0 / D[COPIES]))
    for k in range(D[COUNTS] if below >= 0 else 0):
        at = F[below + W] + k * L
        v = load(x, slope + k * L)
        store(x, at, load(x, at) + (v if below_here == FULL else where(mask(below_here), v, zero)))
    for j in range(size):
        v = load(x, t + j * L)
        if opening != 0:
            store(x, t + j * L, where(mask(opening), zero, v))
        store(x, t + (size + j) * L, where(mask(opening), v, zero))
    for way in range(1 if opening == 0 else 2):
        joint = D[JOINT_AT] + F[p + (OPENING if way else JOINT)] * JOINT_PARTS
        push(x, t + way * size * L, 1, size, x, D[joint + PRODUCTS] + c * size, c, scratch, splat(1.0))
        for y in range(c):
            at = F[p + U] + y * L
            store(x, at, load(x, at) + load(x, F[p + E] + y * L) * load(x, scratch + y * L))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def derive_hidden(F, D, p, x, holes):
    """Marginals of a hidden variable, and the derivatives by g(k) below it."""
    H, u, d, m, zero, share = D[STATES], F[p + U], F[p + W], F[p + B], splat(0.0), 1.0 / D[COPIES]
    for h in range(H):
        store(x, u + h * L, zero)
    g, scale = F[F[p + BELOW] + S], load(x, F[p + SCALE])
    if holes:
        forget(x, d, m, D[COUNTS])
    for k in range(D[COUNTS]):
        v = load(x, d + k * L)
        store(x, g + k * L, v * load(x, F[p + T] + k * L) * scale)
        v = v * load(x, m + k * L)
        for h in range(H):
            count = D[D[COUNT_AT] + k * H + h]
            if count:
                store(x, u + h * L, load(x, u + h * L) + v * (count * share))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def downward(N, F, D, words, x, scratch, holes):
    """Back again: marginals of the nodes in place of the scores."""
    K, size, zero = D[COUNTS], D[STATES] * D[STATES], splat(0.0)
    g = F[N - COLUMNS + S]
    for k in range(K):
        store(x, g + k * L, load(x, F[N - COLUMNS + SCALE]) if k == 0 else zero)
    for p in range(N - COLUMNS, -1, -COLUMNS):
        at, below = 3 * (p // COLUMNS), F[p + BELOW]
        closed, here = words[at + 1], words[at + 2]
        if F[p + JOINT] < 0:
            derive_hidden(F, D, p, x, holes)
            continue
        below_here = words[at - 1] if below >= 0 else FULL
        missing, slope = here & ~closed, scratch
        last = slope + (D[TERMS] - K) * L
        for k in range(K if missing != 0 else 0):
            v = load(x, F[p + S] + k * L)
            store(x, last + k * L, v if missing == FULL else where(mask(missing), v, zero))
        rest = scratch + D[TERMS] * L
        derive_given(F, D, p, closed & here, below_here, x, rest, holes)
        if missing != 0:
            derive_missing(F, D, p, missing & ~below_here, below_here, x, rest, slope)
        for j in range(2 * size if missing == 0 else 0):
            store(x, F[p + W] + j * L, zero)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_slot(R, r, D, slot, x):
    """Marginals of a table from those of labels and counts."""
    s, K, H, share = D[SLOT_AT] + slot * SLOT_PARTS, D[COUNTS], D[STATES], 1.0 / D[COPIES]
    c, at, a = D[s + LABELS], D[s + EXPANDED], D[s + POWERS]
    one, two = D[s + SENDING], D[s + TAKING]
    outer(c, K, 0, (D[s + SENDING_END] - one) // 2, x, D, one, one + 1, x, a + 2 * c * K, at, -1, -1, K, 1)
    outer(c, K, 0, (D[s + TAKING_END] - two) // 2, x, D, two + 1, two, x, a, at, -1, -1, K, 1)
    for y in range(c):
        for h in range(H):
            v = splat(0.0)
            for k in range(K):
                v = v + load(x, at + (y * K + k) * L) * (D[D[COUNT_AT] + k * H + h] * share)
            add_entry(R, r, D, slot, y, h, x, v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_entry(R, r, D, slot, y, h, x, v):
    """Adds to the marginal of a label and a hidden state."""
    s = D[SLOT_AT] + slot * SLOT_PARTS
    o = y * D[STATES] + h if D[s + LABEL_FIRST] else h * D[s + LABELS] + y
    to = R[r + MARGINALS] + ints_at(R[r + PUT_AT])[slot] + o * L
    store(x, to, load(x, to) + v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_joint(R, r, D, joint, x):
    """Marginals of the tables on two sides of labels, where those are missing."""
    o, H = D[JOINT_AT] + joint * JOINT_PARTS, D[STATES]
    c, at, one, size = D[o + WIDTH_OF], D[o + JOINED], D[o + PAIRS_AT], H * H
    outer(size, c, 0, (D[o + PAIRS_END] - one) // 2, x, D, one + 1, one, x, D[o + PRODUCTS], at, -1, -1, 1, size)
    for y in range(c):
        for t in range(size):
            v = load(x, at + (y * size + t) * L)
            if D[o + UNDER] >= 0:
                add_entry(R, r, D, D[o + UNDER], y, t // H, x, v)
            if D[o + OVER] >= 0:
                add_entry(R, r, D, D[o + OVER], y, t % H, x, v)


@njit(cache=True, unroll=False, nogil=True, error_model="numpy", no_rewrites=True)
def run_copies(rows, numbers, sets, made, raw, raw_cost, unary, cost, value, mu_unary, mu_tables, done, space, counts):
    """As ``sums.run_sums``, at eps_y = eps_h / n."""
    R, A, x, lanes, count, size = pointer_to(rows), pointer_to(made), pointer_to(space), pointer_to(counts), 0, len(raw)
    scores, costs, mu, mu_t = pointer_to(unary), pointer_to(cost), pointer_to(mu_unary), pointer_to(mu_tables)
    make_tables(sets, numbers, A, raw, raw_cost)
    for k in range(len(rows)):
        r, eps_y, eps_h = k * ROW, numbers[rows[k, NUMBER], 0], numbers[rows[k, NUMBER], 1]
        F, D, N = ints_at(R[r + PLACES]), ints_at(R[r + MORE]), COLUMNS * R[r + POSITIONS]
        tops = onward(A, (TABLE_PARTS * R[r + SIDE] + TOPS) * size)
        make_powers(R, r, A, D, x)
        widest, holes = table_range(R, r, A, size)
        wide = widest > RANGE * min(eps_y, eps_h)
        for g in range(R[r + FIRST], R[r + LAST]):
            words = onward(ints_at(R[r + WORDS]), 3 * g * R[r + POSITIONS])
            real, wrong = read(R, r, g, scores, costs, R[r + SIDE] == 0 and len(cost) > 0, x, lanes)
            v, least = upward(N, F, D, words, tops, eps_y, eps_h, x, R[r + SCRATCH], holes, widest)
            downward(N, F, D, words, x, R[r + SCRATCH], holes)
            for slot in range(R[r + SLOTS]):
                add_slot(R, r, D, slot, x)
            for joint in range(D[JOINTS]):
                add_joint(R, r, D, joint, x)
            count += write(R, r, real, wrong | wide, v, least, x, lanes, value, done, mu, mu_t)
    return count

"""Forests of one temperature eps > 0 side by side (``registers``), in scaled probabilities.

Every position has scores u(x), a belief b(x) = exp((u - max) / eps) * messages, and tells its parent

    s(z) = 2^-n sum_x b(x) E(x, z),   E = exp(theta / eps),   n such that the belief times 2^-n sums to 1/2 to 1.

The way back is the chain rule: d(z), the derivative of log Z by s(z) times 2^-n, is the parent's marginal over s, and
the marginals are q(x) = b(x) t(x), t = E d. Those of tied factors are sums of outer products b (x) d, times E.
"""

from __future__ import annotations

from mssvm.core.jit import njit
from mssvm.engines.numba.forests.registers import (
    BASE,
    BY_TABLE,
    CARD,
    COLUMNS,
    FAST,
    FIRST,
    FLIP,
    FULL,
    KID_LIST,
    KIDS,
    KIDS_END,
    LAST,
    LOG_2,
    MORE,
    NUMBER,
    PAIR_PTR,
    PARENT,
    PLACES,
    POSITIONS,
    RANGE,
    ROW,
    SCALE,
    SIDE,
    SLOT,
    SLOTS,
    SPAN,
    START,
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
    add_products,
    add_sparse,
    exponentials,
    forget,
    make_tables,
    push,
    push_sparse,
    read,
    spread,
    table_range,
    write,
)
from mssvm.engines.numba.vector import (
    exponent,
    ints_at,
    load,
    lower,
    onward,
    pointer_to,
    splat,
    store,
    two_to_minus_exponent,
    vlog,
    vmax,
    where,
)
from mssvm.engines.numba.vector import mask_of as mask


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def believe(F, kids, p, x):
    """The belief of position p, and its sum."""
    e, k, to, total = F[p + E], F[p + CARD], F[p + B], splat(0.0)
    first, last = F[p + KIDS], F[p + KIDS_END]
    if first == last:
        for j in range(k):
            v = load(x, e + L * j)
            store(x, to + L * j, v)
            total = total + v
        return total
    for n in range(first, last):
        m, total = F[kids[n] + S], splat(0.0)
        for j in range(k):
            v = load(x, e + L * j) * load(x, m + L * j)
            store(x, to + L * j, v)
            total = total + v
        e = to
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def tell_two(x, e, got, b, A, a, m):
    """The belief of a position of two states with one child, its sum, and its message to a parent of two: as
    ``believe`` and ``push``, but nothing waits for memory."""
    v, w = load(x, e) * load(x, got), load(x, e + L) * load(x, got + L)
    store(x, b, v)
    store(x, b + L, w)
    scale = two_to_minus_exponent(vmax(v + w, splat(TINY)))
    store(x, m, (v * A[a] + w * A[a + 2]) * scale)
    store(x, m + L, (v * A[a + 1] + w * A[a + 3]) * scale)
    return v + w


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def faintest(F, kids, p, x):
    """The smallest belief in a state of p that is possible."""
    out, zero = splat(1.0), splat(0.0)
    for j in range(F[p + CARD]):
        v = load(x, F[p + E] + L * j)
        for n in range(F[p + KIDS], F[p + KIDS_END]):
            v = where(load(x, F[kids[n] + S] + L * j), v, zero)
        out = where(v, lower(out, load(x, F[p + B] + L * j)), out)
    return out


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def upward(n, F, kids, words, widths, tables, base, tops, eps, x, holes):
    """From the leaves to the roots: the values of the lanes, and the smallest sum that was met; where tables have
    ``holes`` the smallest belief in a state as well, as one that underflow takes may be asked for later."""
    zero, one, inverse = splat(0.0), splat(1.0), splat(1.0 / eps)
    value, least, halvings, sparse = zero, one, zero, widths[0] > 0
    for p in range(0, n, COLUMNS):  # by itself: many exponentials are in flight at a time
        if holes:
            least = lower(least, spread(x, F[p + U], F[p + CARD], inverse))
        hi = exponentials(x, F[p + U], F[p + E], F[p + CARD], inverse)
        if F[p + PARENT] >= 0:
            hi = hi + tops[F[p + START]]
        here = words[3 * (p // COLUMNS) + 2]
        value = value + (hi if here == FULL else where(mask(here), hi, zero))
    for p in range(0, n, COLUMNS):
        q, here, k, m = F[p + PARENT], words[3 * (p // COLUMNS) + 2], F[p + CARD], F[p + S]
        c, a = F[(q if q >= 0 else p) + CARD], base[F[p + FLIP]] + F[p + START]
        two = q >= 0 and k == 2 and c == 2 and F[p + KIDS_END] - F[p + KIDS] == 1
        if two:
            total = tell_two(x, F[p + E], F[kids[F[p + KIDS]] + S], F[p + B], tables, a, m)
        else:
            total = believe(F, kids, p, x)
        if here != FULL:
            total = where(mask(here), total, one)
        least = lower(least, total)
        total = vmax(total, splat(TINY))
        if holes and q >= 0:
            least = lower(least, faintest(F, kids, p, x))
        if q < 0:
            store(x, F[p + SCALE], one / total)
            value = value + vlog(total) * eps
            continue
        scale, e = two_to_minus_exponent(total), exponent(total)
        store(x, F[p + SCALE], scale)
        if sparse and widths[1 + F[p + SLOT]] > 0:
            push_sparse(x, F[p + B], 1, k, tables, a, c, m, scale, widths[1 + F[p + SLOT]])
        elif not two:
            push(x, F[p + B], 1, k, tables, a, c, m, scale)
        if here != FULL:
            e = where(mask(here), e, zero)
            for z in range(c):
                store(x, m + z * L, where(mask(here), load(x, m + z * L), one))
        halvings = halvings + e
    return value + halvings * (LOG_2 * eps), least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def derive(F, kids, p, words, x):
    """The derivatives by the messages that p got, in their place, times the scale of who sent them."""
    k, e, t, first, last = F[p + CARD], F[p + E], F[p + T], F[p + KIDS], F[p + KIDS_END]
    one = kids[first]
    two = kids[last - 1]
    s, other, scale = F[one + S], F[two + S], load(x, F[one + SCALE])
    if last - first == 1:
        for z in range(k):
            store(x, s + z * L, load(x, e + z * L) * load(x, t + z * L) * scale)
    elif last - first == 2:
        scale_two = load(x, F[two + SCALE])
        for z in range(k):
            d, v = load(x, e + z * L) * load(x, t + z * L), load(x, s + z * L)
            store(x, s + z * L, d * load(x, other + z * L) * scale)
            store(x, other + z * L, d * v * scale_two)
    else:
        for n in range(first, last):
            s, scale = F[kids[n] + S], load(x, F[kids[n] + SCALE])
            for z in range(k):
                q = load(x, F[p + B] + z * L) * load(x, t + z * L)
                store(x, s + z * L, q / vmax(load(x, s + z * L), splat(TINY)) * scale)
    for n in range(first, last):
        here = words[3 * (kids[n] // COLUMNS) + 2]
        for z in range(0 if here == FULL else k):
            at = F[kids[n] + S] + z * L
            store(x, at, where(mask(here), load(x, at), splat(0.0)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def downward(first, last, again, F, kids, words, widths, tables, base, x, holes):
    """From the roots to the leaves: marginals of the nodes in place of the scores' exponentials, of positions ``first``
    to before ``last``, whose beliefs are made ``again`` if their places were taken since."""
    sparse = widths[0] > 0
    for p in range(last - COLUMNS, first - COLUMNS, -COLUMNS):
        q, k, b, t, u = F[p + PARENT], F[p + CARD], F[p + B], F[p + T], F[p + U]
        if again:
            believe(F, kids, p, x)
        if q < 0:
            for j in range(k):
                store(x, t + j * L, load(x, F[p + SCALE]))
        else:
            a = base[1 - F[p + FLIP]] + F[p + START]
            if sparse and widths[1 + F[p + SLOT]] > 0:
                push_sparse(x, F[p + S], 1, F[q + CARD], tables, a, k, t, splat(1.0), widths[1 + F[p + SLOT]])
            else:
                push(x, F[p + S], 1, F[q + CARD], tables, a, k, t, splat(1.0))
        if holes:
            forget(x, t, b, k)
        if F[p + KIDS] < F[p + KIDS_END]:
            derive(F, kids, p, words, x)
        for j in range(k):
            store(x, u + j * L, load(x, b + j * L) * load(x, t + j * L))


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def place_of(p, positions, low, high):
    """The first place from ``low`` on whose position is not before p."""
    while low < high:
        middle = (low + high) // 2
        if positions[middle] < p:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def add_pairs(R, r, first, last, F, tables, x, pairs):
    """Marginals of the tables from positions ``first`` to before ``last``; ``pairs`` gets the places of beliefs and
    derivatives."""
    ptr, by_table, widths = ints_at(R[r + PAIR_PTR]), ints_at(R[r + BY_TABLE]), ints_at(R[r + MORE])
    for index in range(2 * R[r + SLOTS]):
        low = place_of(first, by_table, ptr[index], ptr[index + 1])
        count = place_of(last, by_table, low, ptr[index + 1]) - low
        for n in range(count):
            p = by_table[low + n]
            pairs[2 * n], pairs[2 * n + 1] = F[p + B], F[p + S]
        if widths[0] > 0 and widths[1 + index // 2] > 0:
            add_sparse(R, r, index // 2, index % 2, count, 0, tables, x, pairs, 0)
        else:
            add_products(R, r, index // 2, index % 2, count, 0, tables, x, pairs, 0)


@njit(cache=True, unroll=False, nogil=True, error_model="numpy", no_rewrites=True)
def run_sums(rows, numbers, sets, made, raw, raw_cost, unary, cost, value, mu_unary, mu_tables, done, space, counts):
    """The groups of ``rows`` in this order, U+ (side 0) with the costs, and U- (side 1); how many instances were done.

    ``sets`` names the tables that are to be made for either side; none if they are made already.
    """
    R, A, x, lanes, count, size = pointer_to(rows), pointer_to(made), pointer_to(space), pointer_to(counts), 0, len(raw)
    scores, costs, mu, mu_t = pointer_to(unary), pointer_to(cost), pointer_to(mu_unary), pointer_to(mu_tables)
    make_tables(sets, numbers, A, raw, raw_cost)
    for k in range(len(rows)):
        r, eps = k * ROW, numbers[rows[k, NUMBER], 0]
        F, kids, n = ints_at(R[r + PLACES]), ints_at(R[r + KID_LIST]), COLUMNS * R[r + POSITIONS]
        base, tops = onward(R, r + BASE), onward(A, (TABLE_PARTS * R[r + SIDE] + TOPS) * size)
        span, (widest, holes), widths = COLUMNS * R[r + SPAN], table_range(R, r, A, size), ints_at(R[r + MORE])
        wide = widest > RANGE * eps
        for g in range(R[r + FIRST], R[r + LAST]):
            words = onward(ints_at(R[r + WORDS]), 3 * g * R[r + POSITIONS])
            real, wrong = read(R, r, g, scores, costs, R[r + SIDE] == 0 and len(cost) > 0, x, lanes)
            v, least = upward(n, F, kids, words, widths, A, base, tops, eps, x, holes)
            for p in range((n - 1) // span * span, -1, -span):
                downward(p, min(p + span, n), span < n, F, kids, words, widths, A, base, x, holes)
                add_pairs(R, r, p, min(p + span, n), F, A, x, onward(lanes, 3 * L))
            count += write(R, r, real, wrong | wide, v, least, x, lanes, value, done, mu, mu_t)
    return count

"""Forests of outputs and hidden variables side by side (``registers``), in scaled probabilities where something is
summed.

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

A hidden variable may know the output below it, its states being blocks, one for every state of that (MORE has the
largest number of states of a block, then that of every table, 0 if it has no blocks). Where that is so in all lanes no
rows begin, and what it tells the output above has a row for every block.
"""

from __future__ import annotations

from mssvm.core.jit import njit
from mssvm.engines.numba.forests.registers import (
    BASE,
    BY_TABLE,
    CARD,
    CARRIER,
    COLUMNS,
    FAST,
    FIRST,
    FLIP,
    FRESH,
    FULL,
    KID_LIST,
    KIDS,
    KIDS_END,
    LAST,
    MARGINALS,
    MORE,
    NONE,
    NUMBER,
    PAIR_PTR,
    PARENT,
    PLACES,
    POSITIONS,
    PUT,
    PUT_AT,
    RANGE,
    ROW,
    SCALE,
    SCRATCH,
    SIDE,
    SLOT,
    SLOTS,
    SQUARINGS,
    START,
    TABLE,
    TABLE_COLS,
    TABLE_PARTS,
    TABLE_ROWS,
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
    add_products,
    add_sparse,
    exponentials,
    forget,
    highest,
    make_tables,
    outer,
    push,
    push_sparse,
    read,
    smallest,
    spread,
    store_five,
    store_four,
    table_range,
    write,
)
from mssvm.engines.numba.vector import (
    above,
    bytes_at,
    exponent,
    ints_at,
    load,
    lower,
    onward,
    pointer_to,
    same,
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

NARROW = 512.0  # (1/2) to this power is still far from underflow
WIDE = 900.0  # so is (1/2) to this one, and (1/2R)^ratio is above it if ratio (1 + R/2) is below
# Columns of a group's positions: words of lanes, then numbers.
SENT, HERE, OPENED, PLAIN, ENDED, TIMES, DIRECT, ROWS, MANY, FACTORS, SIMPLE, ONE, TWO, READY, CLOSED, BLOCK = range(16)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def larger(v, top, j, best):
    """The larger of two, and whose it is; of equal ones the first."""
    more = above(v, top)
    return where(more, v, top), where(more, j, best)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def push_max(x, at, n, A, a, m, to, best):
    """y_k = max_j x_j + A[a + j m + k] at ``to``, and the first such j at ``best``."""
    k, zero, one = 0, splat(0.0), splat(1.0)
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def set_where(word, x, to, v):
    """x = v in the lanes of ``word``."""
    store(x, to, v if word == FULL else where(mask(word), v, load(x, to)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_where(word, x, to, v):
    """x += v in the lanes of ``word``."""
    old = load(x, to)
    store(x, to, old + v if word == FULL else where(mask(word), old + v, old))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def multiply(x, at, step, to, R, k, m, carried, word):
    """The belief (r, .) at ``to`` is what is at ``at`` (rows ``step`` apart) times the message (r or 0, .) at m in the
    lanes of ``word``; elsewhere a message with rows has but the first. Returns the belief's sum."""
    total, chosen = splat(0.0), mask(word)
    for r in range(R):
        other, row = splat(0.0 if carried and r > 0 else 1.0), splat(0.0)
        for j in range(k):
            v = load(x, m + j * L)
            v = load(x, at + j * L) * (v if word == FULL else where(chosen, v, other))
            store(x, to + j * L, v)
            row = row + v
        at, to, m, total = at + step, to + k * L, m + (k * L if carried else 0), total + row
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def raise_rows(word, R, k, row, c, x, b, A, a, s, inv, ratio, squarings):
    """s(r) = z(r)^(ratio - 1) in the lanes of ``word``, z(r) = inv sum_j b(r, j) A[a + j c] in [0, 1], and the sum of
    z(r)^ratio; rows of b are ``row`` entries apart, s has one every c. ``ratio`` is 2^squarings unless that is < 0."""
    total, r, step, last = splat(0.0), 0, c * L, R - 1
    while r < R and squarings > 0:  # five at a time; where there are none left, the last one again, and not counted
        r1, r2, r3, r4 = min(r + 1, last), min(r + 2, last), min(r + 3, last), min(r + 4, last)
        o0, o1, o2, o3, o4 = b + r * row, b + r1 * row, b + r2 * row, b + r3 * row, b + r4 * row
        p = inv * A[a]
        z0, z1, z2, z3, z4 = load(x, o0) * p, load(x, o1) * p, load(x, o2) * p, load(x, o3) * p, load(x, o4) * p
        for j in range(1, k):
            p, o = inv * A[a + j * c], j * L
            z0, z1, z2 = z0 + load(x, o0 + o) * p, z1 + load(x, o1 + o) * p, z2 + load(x, o2 + o) * p
            z3, z4 = z3 + load(x, o3 + o) * p, z4 + load(x, o4 + o) * p
        y0, y1, y2, y3, y4 = z0, z1, z2, z3, z4
        for _ in range(squarings - 1):
            y0, y1, y2, y3, y4 = y0 * y0 * z0, y1 * y1 * z1, y2 * y2 * z2, y3 * y3 * z3, y4 * y4 * z4
        c1, c2 = 1.0 if r1 > r else 0.0, 1.0 if r2 > r1 else 0.0
        c3, c4 = 1.0 if r3 > r2 else 0.0, 1.0 if r4 > r3 else 0.0
        total = total + (z0 * y0 + ((z1 * y1 * c1 + z2 * y2 * c2) + (z3 * y3 * c3 + z4 * y4 * c4)))
        set_where(word, x, s + r * step, y0)
        set_where(word, x, s + r1 * step, y1)
        set_where(word, x, s + r2 * step, y2)
        set_where(word, x, s + r3 * step, y3)
        set_where(word, x, s + r4 * step, y4)
        r += 5
    while r < R:
        z = load(x, b + r * row) * A[a]
        for j in range(1, k):
            z = z + load(x, b + r * row + j * L) * A[a + j * c]
        z = z * inv
        y = where(z, vexp(vlog(vmax(z, splat(TINY))) * (ratio - 1.0)), splat(0.0))
        total = total + z * y
        set_where(word, x, s + r * step, y)
        r += 1
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def push_rows(x, at, R, n, A, a, m, to, scale, step):
    """y(k) = scale max_r sum_j x(r, j) A[a + r step + j m + k]: the best of R rows."""
    k = 0
    while k + 5 <= m:
        t0, t1, t2, t3, t4, o = splat(-1.0), splat(-1.0), splat(-1.0), splat(-1.0), splat(-1.0), at
        for row in range(R):
            q, r = load(x, o), a + row * step + k
            s0, s1, s2, s3, s4 = q * A[r], q * A[r + 1], q * A[r + 2], q * A[r + 3], q * A[r + 4]
            for j in range(1, n):
                q, r = load(x, o + j * L), r + m
                s0, s1, s2 = s0 + q * A[r], s1 + q * A[r + 1], s2 + q * A[r + 2]
                s3, s4 = s3 + q * A[r + 3], s4 + q * A[r + 4]
            t0, t1, t2, t3, t4 = vmax(s0, t0), vmax(s1, t1), vmax(s2, t2), vmax(s3, t3), vmax(s4, t4)
            o += n * L
        store_five(x, to + k * L, t0 * scale, t1 * scale, t2 * scale, t3 * scale, t4 * scale)
        k += 5
    while k < m:
        top, o = splat(-1.0), at
        for row in range(R):
            v = load(x, o) * A[a + row * step + k]
            for j in range(1, n):
                v = v + load(x, o + j * L) * A[a + row * step + j * m + k]
            top = vmax(v, top)
            o += n * L
        store(x, to + k * L, top * scale)
        k += 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def or_one(s):
    """s, or one where it is zero."""
    return where(s, s, splat(1.0))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_log(word, x, to, s, eps):
    """x += eps log s in the lanes of ``word``; where s is zero nothing is possible."""
    add_where(word, x, to, where(s, vlog(or_one(s)) * eps, splat(NONE)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def least_of(word, s, least):
    """The smaller of two in the lanes of ``word``, zero being none."""
    return where(mask(word), lower(least, where(s, s, least)), least)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def close_best(word, direct, c, x, s, eps_h, to, least):
    """Rows end at eps_y = 0: u(z) += eps_h log s(z), or s is to multiply the belief: one where no rows end."""
    for z in range(c):
        top = load(x, s + z * L)
        least = least_of(word, top, least)
        if not direct:
            add_log(word, x, to + z * L, top, eps_h)
        elif word != FULL:
            store(x, s + z * L, where(mask(word), top, splat(1.0)))
    return least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def close(word, pushed, R, k, c, x, b, A, a, step, m, w, scale, squarings, eps_y, eps_h, to, scratch, least):
    """Rows end: u(z) += eps_y log sum_r s(r, z)^ratio, s(r, z) = scale sum_x b(r, x) A[a + r step + x c + z]. Left in
    s, at m, and in w: what makes d(r, z) = q(z) w(z) s(r, z). ``pushed``: s is at m already."""
    ratio, ones = eps_h / eps_y, scratch + max(k, c) * L
    store(x, ones, splat(1.0))
    if R == 1:
        push(x, b, 1, k, A, a, c, w, scale)
    elif step > 0 and ratio * (1.0 + 0.5 * R) < WIDE:
        push(x, b, 1, R * k, A, a, c, w, scale)
    elif ratio * (1.0 + 0.5 * R) < WIDE:  # the sum is near enough to the largest, and sooner told
        for j in range(k):
            total = load(x, b + j * L)
            for r in range(1, R):
                total = total + load(x, b + (r * k + j) * L)
            store(x, scratch + j * L, total)
        push(x, scratch, 1, k, A, a, c, w, scale)
    else:
        push_rows(x, b, R, k, A, a, c, w, scale, step)
    for z in range(c):
        top = load(x, w + z * L)
        least = least_of(word, top, least)
        if R == 1:
            add_log(word, x, to + z * L, top, eps_h)
        store(x, w + z * L, splat(1.0) / or_one(top) if R == 1 else or_one(top))
    if R == 1:
        return least
    for z in range(c):
        top = load(x, w + z * L)
        # A power of two brings the largest row below one and costs neither a division nor a logarithm.
        inv = two_to_minus(exponent(top)) if ratio <= NARROW else splat(1.0) / top
        if pushed:  # s is there already: rows of one number, times one
            v = raise_rows(word, R, 1, c * L, c, x, m + z * L, x, ones, m + z * L, inv, ratio, squarings)
        else:
            v = raise_rows(word, R, k, k * L, c, x, b, A, a + z, m + z * L, inv * scale, ratio, squarings)
        store(x, scratch + z * L, v)
    for z in range(c):
        top, total = load(x, w + z * L), load(x, scratch + z * L)
        e = exponent(top)
        inv, score = two_to_minus(e), e * (0.6931471805599453 * eps_h)
        if ratio > NARROW:
            inv, score = splat(1.0) / top, vlog(top) * eps_h
        store(x, w + z * L, where(total, inv / total, splat(0.0)))
        score = where(total, score + vlog(or_one(total)) * eps_y, splat(NONE))
        add_where(word, x, to + z * L, score)
    return least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def factor_place(F, code):
    return -1 if code < 0 else F[code // 2 + (W if code % 2 else S)]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def multiply_all(F, G, kids, p, x):
    """The belief of p from factors of any kind: with rows, or of some lanes; its sum."""
    k, to, R, at, step, total = F[p + CARD], F[p + B], G[p + ROWS], F[p + E], 0, splat(0.0)
    for n in range(F[p + KIDS], F[p + KIDS_END]):
        i = kids[n]
        if G[i + TIMES] != 0:
            total = multiply(x, at, step, to, R, k, F[i + S], i == F[p + CARRIER], G[i + TIMES])
            at, step = to, k * L
        if G[p + DIRECT] and G[i + PLAIN] != 0:
            total = multiply(x, at, step, to, R, k, F[i + W], False, G[i + PLAIN])
            at, step = to, k * L
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def inverse_unit(G, p, eps_y, eps_h):
    plain, inverse = G[p + PLAIN], splat(1.0 / eps_h)
    if plain != 0:
        inverse = where(mask(plain), splat(1.0 / eps_y if eps_y > 0.0 else 1.0), inverse)
    return inverse


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def exponentiate(F, G, p, x, eps_y, eps_h):
    """e = exp((u - max) / unit) of position p; the largest score."""
    return exponentials(x, F[p + U], F[p + E], F[p + CARD], inverse_unit(G, p, eps_y, eps_h))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def faintest(F, G, p, x, least, widest, eps_y, eps_h):
    """The smallest belief in a state of p that is possible, or zero if underflow may have taken one: none is less than
    the least exponential times what children say, and they say no less than the ``least`` so far times the least entry
    of a table."""
    v = spread(x, F[p + U], F[p + CARD], inverse_unit(G, p, eps_y, eps_h))
    said = vexp(splat(-widest / (eps_y if G[p + DIRECT] and eps_y > 0.0 else eps_h))) * least
    for _ in range(G[p + FACTORS]):
        v = v * said
    return where(above(v, splat(TINY)), smallest(x, F[p + B], G[p + ROWS] * F[p + CARD]), splat(0.0))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def begins(F, G, p):
    """Whether rows begin at the only factor of position p, in all lanes."""
    return G[p + ROWS] > 1 and G[p + FACTORS] == 1 and G[F[p + CARRIER] + OPENED] == FULL


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def believe_rows(F, p, A, base, x):
    """The belief of such a position, b(r, z) = e(z) E(r, z) times the belief of who sent r; its sum."""
    c, e, k, to, total = F[p + CARRIER], F[p + E], F[p + CARD], F[p + B], splat(0.0)
    a, scale = base[2 + F[c + FLIP]] + F[c + START], load(x, F[c + SCALE])
    for r in range(F[c + CARD]):
        b = load(x, F[c + B] + r * L) * scale
        for z in range(k):
            v = b * A[a + z] * load(x, e + z * L)
            store(x, to + z * L, v)
            total = total + v
        a, to = a + k, to + k * L
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def believe(F, G, kids, p, tables, base, x):
    """The belief of position p, and its sum."""
    e, k, to, total = F[p + E], F[p + CARD], F[p + B], splat(0.0)
    first, second = factor_place(F, G[p + ONE]), factor_place(F, G[p + TWO])
    if begins(F, G, p):
        total = believe_rows(F, p, tables, base, x)
    elif not G[p + SIMPLE]:
        total = multiply_all(F, G, kids, p, x)
    else:
        for j in range(k):
            v = load(x, e + L * j)
            if first >= 0:
                v = v * load(x, first + L * j)
            if second >= 0:
                v = v * load(x, second + L * j)
            store(x, to + L * j, v)
            total = total + v
    inv, one = vmax(total, splat(TINY)), splat(1.0)
    if F[p + PARENT] >= 0:
        # A power of two costs no division; the belief stays as it is: what it sends and gets back is scaled instead.
        store(x, F[p + SCALE], two_to_minus_exponent(inv))
        store(x, F[p + SCALE] + L, one)
        return total
    inv = one / inv  # at a root what a power of two leaves would be missing in the marginals
    store(x, F[p + SCALE], inv if G[p + ROWS] == 1 else one)
    store(x, F[p + SCALE] + L, one if G[p + ROWS] == 1 else inv)
    if G[p + ROWS] > 1:
        for j in range(G[p + ROWS] * k):
            store(x, to + L * j, load(x, to + L * j) * inv)
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def push_blocks(x, at, R, n, A, a, m, to, scale):
    """y(r, k) = scale sum_j x(r, j) A[a + (r n + j) m + k]: a row of m numbers from every block of n."""
    for r in range(R):
        push(x, at + r * n * L, 1, n, A, a + r * n * m, m, to + r * m * L, scale)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def pull_blocks(x, at, R, n, A, a, m, to):
    """y(r, j) = sum_k x(r, k) A[a + (r n + j) m + k]: the way back, two rows and two numbers of each at a time."""
    for r in range(0, R, 2):
        one, two = r, min(r + 1, R - 1)
        for j in range(0, n, 2):
            h = min(j + 1, n - 1)
            s0, s1, s2, s3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
            a0, a1, a2, a3 = (one * n + j) * m, (one * n + h) * m, (two * n + j) * m, (two * n + h) * m
            for k in range(m):
                v, w, o = load(x, at + (one * m + k) * L), load(x, at + (two * m + k) * L), a + k
                s0, s1, s2, s3 = s0 + v * A[o + a0], s1 + v * A[o + a1], s2 + w * A[o + a2], s3 + w * A[o + a3]
            store(x, to + (one * n + j) * L, s0)
            store(x, to + (one * n + h) * L, s1)
            store(x, to + (two * n + j) * L, s2)
            store(x, to + (two * n + h) * L, s3)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def send(F, G, p, widths, tables, base, squarings, eps_y, eps_h, x, scratch, least):
    """The message of position p to its parent, once its belief is known; the smallest sum that was met."""
    q = F[p + PARENT]
    k, c, to, m, w, R, up = F[p + CARD], F[q + CARD], F[p + B], F[p + S], F[p + W], G[p + ROWS], F[q + U]
    a, plain, ended = base[2 + F[p + FLIP]] + F[p + START], G[p + PLAIN], G[p + ENDED]
    scale, step, block = load(x, F[p + SCALE]), 0, G[p + BLOCK]
    if G[p + SENT] != FULL and G[p + TIMES] != 0:
        if widths[0] > 0 and widths[1 + F[p + SLOT]] > 0:
            push_sparse(x, to, R, k, tables, a, c, m, scale, widths[1 + F[p + SLOT]])
        else:
            push(x, to, R, k, tables, a, c, m, scale)
    if block > 0:
        R, k, step = G[p + MANY], block, block * c
        if eps_y > 0.0:
            push_blocks(x, to, R, k, tables, a, c, m, scale)
    if G[p + OPENED] != 0 and not begins(F, G, q):
        open_rows(F, G, p, c, tables, a, x)
    if ended != 0 and eps_y == 0.0:
        s = m if G[q + DIRECT] else scratch
        if R > 1:
            push_rows(x, to, R, k, tables, a, c, s, scale, step)
        else:
            push(x, to, 1, k, tables, a, c, s, scale)
        least = close_best(ended, G[q + DIRECT], c, x, s, eps_h, up, least)
    elif ended != 0:
        pushed = G[p + TIMES] != 0 or block > 0
        least = close(
            ended, pushed, R, k, c, x, to, tables, a, step, m, w, scale, squarings, eps_y, eps_h, up, scratch, least
        )
    if plain == 0:
        return least
    a = base[F[p + FLIP]] + F[p + START]
    if eps_y == 0.0:
        push_max(x, F[p + U], k, tables, a, c, scratch, w)
        for z in range(c):
            add_where(plain, x, up + z * L, load(x, scratch + z * L))
        return least
    push(x, to, 1, k, tables, a, c, scratch, scale)
    for z in range(c):
        v = load(x, scratch + z * L)
        if not G[q + DIRECT]:
            least = least_of(plain, v, least)
            add_log(plain, x, up + z * L, v, eps_y)
            v = splat(1.0) / or_one(v)
        store(x, w + z * L, v if ended == 0 else where(mask(plain), v, load(x, w + z * L)))
    return least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def find_factors(F, G, kids, p, eps_y):
    """The messages that multiply the belief of p: how many; the first two, twice the child plus whether it is what it
    sends as an output; and whether they have one row and are of all lanes."""
    factors, simple, G[p + ONE], G[p + TWO] = 0, True, -1, -1
    for n in range(F[p + KIDS], F[p + KIDS_END]):
        i = kids[n]
        if G[i + TIMES] != 0:
            G[p + TWO], G[p + ONE] = G[p + ONE], 2 * i
            simple &= G[i + TIMES] == FULL and G[i + MANY] == 1
            factors += 1
        if G[p + DIRECT] and eps_y == 0.0 and G[i + ENDED] != 0:
            G[p + TWO], G[p + ONE] = G[p + ONE], 2 * i
            factors += 1
        if G[p + DIRECT] and G[i + PLAIN] != 0:
            G[p + TWO], G[p + ONE] = G[p + ONE], 2 * i + 1
            simple &= G[i + PLAIN] == FULL
            factors += 1
    c = F[p + CARRIER]
    G[p + ROWS] = G[c + MANY] if c >= 0 and G[c + TIMES] != 0 else 1
    G[p + FACTORS], G[p + SIMPLE] = factors, simple and factors < 3


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def find_blocks(n, F, kids, widths, eps_y, G):
    """Hidden positions that know the output below them, in all lanes: it is as a hidden one, and begins no rows."""
    for p in range(0, n, COLUMNS):
        q, only = F[p + PARENT], G[p + OPENED] == FULL and G[p + SENT] == FULL and G[p + ROWS] == 1
        width = widths[1 + F[p + SLOT]] if q >= 0 and only else 0
        ends = width > 0 and F[q + PARENT] >= 0 and G[q + ENDED] == FULL and F[q + KIDS_END] - F[q + KIDS] == 1
        if ends and F[q + CARD] == width * F[p + CARD]:
            G[p + SENT], G[p + OPENED], G[p + MANY] = 0, 0, 1
            find_factors(F, G, kids, q, eps_y)
            G[q + BLOCK], G[q + MANY] = width, F[p + CARD]


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def read_roles(n, F, kids, words, widths, eps_y, G):
    """What every position of a group does, by lanes, and the rows that follow from it."""
    for p in range(0, n, COLUMNS):
        q, sent, here = F[p + PARENT], words[3 * (p // COLUMNS)], words[3 * (p // COLUMNS) + 2]
        closed = words[3 * (q // COLUMNS) + 1] if q >= 0 else FULL
        G[p + SENT], G[p + HERE], G[p + CLOSED] = sent, here, words[3 * (p // COLUMNS) + 1]
        G[p + OPENED], G[p + PLAIN], G[p + ENDED] = sent & ~closed & here, sent & closed & here, ~sent & closed & here
        G[p + TIMES] = ~closed & here
        # In one unit in all lanes: what outputs send, or at eps_y = 0 one or two hidden variables, multiplies the
        # belief and need not be taken to logs.
        G[p + DIRECT] = sent == FULL and (closed == FULL if eps_y > 0.0 else G[p + PLAIN] == 0)
        if eps_y == 0.0:
            G[p + DIRECT] &= F[p + KIDS_END] - F[p + KIDS] < 3
            for i in range(F[p + KIDS], F[p + KIDS_END]):
                G[p + DIRECT] &= G[kids[i] + SENT] == 0 and G[kids[i] + TIMES] == 0
        find_factors(F, G, kids, p, eps_y)
        R, k, others = G[p + ROWS], F[p + CARD], sent != FULL
        G[p + MANY] = R if G[p + OPENED] == 0 else max(k, R) if others else k
        # Nothing is added to the scores on the way, and they are wanted as exponentials.
        G[p + READY] = not (sent == FULL and G[p + PLAIN] == here and eps_y == 0.0)
        for i in range(F[p + KIDS], F[p + KIDS_END]):
            G[p + READY] &= G[kids[i] + ENDED] == 0 or (G[p + DIRECT] and eps_y == 0.0)
            G[p + READY] &= G[kids[i] + PLAIN] == 0 or G[p + DIRECT]
        G[p + BLOCK] = 0
    find_blocks(n, F, kids, widths, eps_y, G)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def upward(n, F, G, kids, widths, tables, base, tops, squarings, eps_y, eps_h, x, scratch, holes, widest):
    """From the leaves to the roots: the values of the lanes, and the smallest sum that was met; where tables have
    ``holes`` the smallest belief in a state as well."""
    zero, one = splat(0.0), splat(1.0)
    value, least = zero, one
    # Sums at eps_h and at eps_y as exponents, at roots also as a product in [1/2, 1) with one logarithm at the end.
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
                value = value + where(mask(here), highest(x, F[p + U], F[p + CARD]), zero)
            else:
                least = send(F, G, p, widths, tables, base, squarings, eps_y, eps_h, x, scratch, least)
            continue
        gain = zero if G[p + READY] else exponentiate(F, G, p, x, eps_y, eps_h)
        total = believe(F, G, kids, p, tables, base, x)
        if here != FULL:
            total = where(mask(here), total, one)
        least = lower(least, total)
        total = vmax(total, splat(TINY))
        # Rows end at a root, too: what is lost at eps_h may be the only state that goes with a row, and count at eps_y.
        if holes and (q >= 0 or G[p + ROWS] > 1):
            faint = faintest(F, G, p, x, least, widest, eps_y, eps_h)
            least = lower(least, where(mask(here), faint, one))
        if q < 0 and plain != FULL:
            hot = hot * (total if plain == 0 else where(mask(plain), one, total))
            e = exponent(hot)
            hot, hot_e = hot * two_to_minus(e), hot_e + e
        if q < 0 and plain != 0 and eps_y > 0.0:
            cold = cold * (total if plain == FULL else where(mask(plain), total, one))
            e = exponent(cold)
            cold, cold_e = cold * two_to_minus(e), cold_e + e
        if q >= 0:
            e = exponent(total) if here == FULL else where(mask(here), exponent(total), zero)
            hot_e = hot_e + (e if plain == 0 else where(mask(plain), zero, e))
            cold_e = cold_e + (e if plain == FULL else where(mask(plain), e, zero))
        if q >= 0:
            gain = gain + tops[F[p + START]]
            least = send(F, G, p, widths, tables, base, squarings, eps_y, eps_h, x, scratch, least)
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
                store(x, scratch + L, highest(x, m, G[p + ROWS]))
                least = close_best(G[p + ENDED], False, 1, x, scratch + L, eps_h, scratch, least)
            else:
                # The table has a one, where the sums of its states are the rows.
                least = close(
                    G[p + ENDED], True, G[p + ROWS], 1, 1, x, m, x, scratch + 2 * L, 0, m, F[p + W], one, squarings,
                    eps_y, eps_h, scratch, scratch + L, least,
                )  # fmt: skip
            gain = gain + load(x, scratch)
        value = value + (gain if here == FULL else where(mask(here), gain, zero))
    value = value + (vlog(hot) + hot_e * 0.6931471805599453) * eps_h
    return value + (vlog(cold) + cold_e * 0.6931471805599453) * eps_y, least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def derive_some(F, G, p, x, scale, ended):
    """The derivatives d(r, z) by a message that multiplies the parent's belief, and where rows end from what is at
    ``ended``; zero in other lanes."""
    q, R, m, times, zero = F[p + PARENT], G[p + ROWS], F[p + S], G[p + TIMES], splat(0.0)
    c, carried, inv = F[q + CARD], F[q + CARRIER] == p, load(x, F[q + SCALE] + L) * scale
    for r in range(G[p + MANY]):
        for z in range(c):
            o, at, d = m + (r * c + z) * L, ((r * c if carried else 0) + z) * L, zero
            s = load(x, o)
            if (carried or G[q + ROWS] == 1) and G[q + FACTORS] == 1:
                d = load(x, F[q + E] + z * L) * load(x, F[q + T] + at) * inv
            elif carried or G[q + ROWS] == 1:
                d = load(x, F[q + B] + at) * load(x, F[q + T] + at) / vmax(s, splat(TINY)) * scale
            elif r == 0:
                d = load(x, F[q + U] + z * L) / vmax(s, splat(TINY)) * scale
            if times != FULL:
                other = zero
                if G[p + ENDED] != 0 and r < R:
                    other = load(x, ended + z * L)
                    other = where(mask(G[p + ENDED]), other * s if R > 1 else other, zero)
                d = where(mask(times), d, other)
            store(x, o, d)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def derive(F, G, p, x, scratch):
    """The derivatives d(r, z) by the message of p to its parent, in its place, times p's scale."""
    q, R, m, ended, scale = F[p + PARENT], G[p + ROWS], F[p + S], G[p + ENDED], load(x, F[p + SCALE])
    c, R = F[q + CARD], G[p + MANY] if G[p + BLOCK] > 0 else R
    for z in range(c if ended != 0 else 0):
        store(x, scratch + z * L, load(x, F[q + U] + z * L) * load(x, F[p + W] + z * L) * scale)
    if ended != FULL:
        derive_some(F, G, p, x, scale, scratch)
        return
    for r in range(R):
        for z in range(c):
            v = load(x, scratch + z * L)
            store(x, m + (r * c + z) * L, v * load(x, m + (r * c + z) * L) if R > 1 else v)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def share(F, G, p, x):
    """The derivatives by what one output sends another, times its scale."""
    q, w, plain, scale = F[p + PARENT], F[p + W], G[p + PLAIN], load(x, F[p + SCALE])
    for z in range(F[q + CARD]):
        d, s = load(x, F[q + U] + z * L) * scale, load(x, w + z * L)
        d = d / vmax(s, splat(TINY)) if G[q + DIRECT] else d * s
        store(x, w + z * L, d if plain == FULL else where(mask(plain), d, splat(0.0)))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def downward(n, F, G, widths, tables, base, x, scratch, marginals, holes):
    """From the roots to the leaves: marginals of the nodes in place of the scores."""
    one, sparse = splat(1.0), widths[0] > 0
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
            if G[p + BLOCK] > 0:
                pull_blocks(x, m, G[p + MANY], G[p + BLOCK], tables, base[2 + F[p + FLIP]] + F[p + START], c, t)
            elif others and sparse and widths[1 + F[p + SLOT]] > 0:
                push_sparse(x, m, R, c, tables, a, k, t, one, widths[1 + F[p + SLOT]])
            elif others:
                push(x, m, R, c, tables, a, k, t, one)
            if G[p + OPENED] != 0:
                begin_rows(F, G, p, c, tables, a, marginals, x)
            if plain != 0:
                if not (G[q + DIRECT] and G[q + SIMPLE]):
                    share(F, G, p, x)
                push(x, w, 1, c, tables, base[1 - F[p + FLIP]] + F[p + START], k, t if plain == FULL else scratch, one)
                for j in range(0 if plain == FULL else k):
                    v = load(x, scratch + j * L)
                    store(x, t + j * L, where(mask(plain), v, load(x, t + j * L)))
        if holes:
            forget(x, t, to, R * k)
        for j in range(k):
            v = load(x, to + j * L) * load(x, t + j * L)
            for r in range(1, R):
                v = v + load(x, to + (r * k + j) * L) * load(x, t + (r * k + j) * L)
            store(x, F[p + U] + j * L, v)
        if G[p + SIMPLE] and G[p + FACTORS] > 0:
            derive_factors(F, G, p, x)


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def list_pairs(R, r, F, G, pairs):
    """Places of beliefs and derivatives whose outer products are wanted, by table, flip and kind: of all states, then
    of every block; the counts first, and how many blocks there are."""
    ptr, by_table = ints_at(R[r + PAIR_PTR]), ints_at(R[r + BY_TABLE])
    lists = 4 * R[r + SLOTS]
    at = 3 * lists
    for index in range(lists):
        kind, first, blocks, p = index % 2, at, 0, 0
        for n in range(ptr[index // 2], ptr[index // 2 + 1]):
            p = by_table[n]
            blocks = max(blocks, 0 if kind else G[p + MANY] * (G[p + BLOCK] > 0))
            count = G[p + PLAIN] != 0 if kind else G[p + ROWS] * (G[p + SENT] != FULL and G[p + BLOCK] == 0)
            for i in range(count):
                pairs[at] = F[p + B] + i * F[p + CARD] * L
                pairs[at + 1] = F[p + (W if kind else S)] + i * F[F[p + PARENT] + CARD] * L
                at += 2
        pairs[index], first = (at - first) // 2, at
        for i in range(blocks):
            for n in range(ptr[index // 2], ptr[index // 2 + 1]):
                p = by_table[n]
                if G[p + BLOCK] > 0:
                    pairs[at] = F[p + B] + i * G[p + BLOCK] * L
                    pairs[at + 1] = F[p + S] + i * F[F[p + PARENT] + CARD] * L
                    at += 2
        pairs[lists + index], pairs[2 * lists + index] = (at - first) // 2, blocks


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def add_blocks(R, r, slot, flip, count, blocks, tables, x, pairs, at):
    """Marginals of a table from ``count`` outer products of blocks and rows, those of one block after another."""
    k, c = ints_at(R[r + TABLE_ROWS])[slot], ints_at(R[r + TABLE_COLS])[slot]
    a, put = R[r + BASE + 2] + ints_at(R[r + TABLE])[slot], R[r + MARGINALS] + ints_at(R[r + PUT_AT])[slot]
    width, others, si, sj = (c // blocks, k, 1, c) if flip else (k // blocks, c, c, 1)
    each = count // blocks
    for first in range(0, count, each):
        outer(width, others, first, first + each, x, pairs, at, at + 1, tables, a, put, -1, -1, si, sj)
        a, put = a + width * si, put + width * si * L


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def add_pairs(R, r, tables, x, pairs):
    """Marginals of the tables from those lists."""
    lists, widths = 4 * R[r + SLOTS], ints_at(R[r + MORE])
    at = 3 * lists
    for index in range(lists):
        if widths[0] > 0 and widths[1 + index // 4] > 0:
            add_sparse(R, r, index // 4, index // 2 % 2, pairs[index], 1 - index % 2, tables, x, pairs, at)
        else:
            add_products(R, r, index // 4, index // 2 % 2, pairs[index], 1 - index % 2, tables, x, pairs, at)
        at += 2 * pairs[index]
        if pairs[lists + index] > 0:
            count, blocks = pairs[lists + index], pairs[2 * lists + index]
            add_blocks(R, r, index // 4, index // 2 % 2, count, blocks, tables, x, pairs, at)
            at += 2 * count


@njit(cache=True, nogil=True, error_model="numpy", no_rewrites=True)
def has(word, lane):
    return (word >> (8 * lane)) & 1 != 0


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def first_largest(x, o, k):
    """The first of the k scores at o that is the largest, by lanes."""
    best, top = splat(0.0), load(x, o)
    for j in range(1, k):
        top, best = larger(load(x, o + j * L), top, splat(float(j)), best)
    return best


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def add_state(F, G, p, lane, plain, x, put, sx, sz):
    """Adds the distribution of the parent, a point mass if it is an output, to an output's pair at ``put``."""
    q = F[p + PARENT]
    to = put + int(x[F[p + SCALE] + lane]) * sx * L + lane
    if plain:
        x[to + int(x[F[q + SCALE] + lane]) * sz * L] += 1.0
        return
    for z in range(F[q + CARD]):
        x[to + z * sz * L] += x[F[q + U] + z * L + lane]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def walk_output(real, F, G, p, known, x, put, sx, sz):
    """The best state of an output in all lanes, given that of its parent, or its parent's row or block if it is
    ``known`` from that; a point mass."""
    q, k, o, at = F[p + PARENT], F[p + CARD], F[p + U], F[p + SCALE]
    best = splat(0.0)
    if q < 0:
        best = first_largest(x, o, k)
    elif G[p + OPENED] != 0 or known:
        best = load(x, F[q + SCALE] + L)
    else:
        for z in range(F[q + CARD]):
            best = where(load(x, F[q + U] + z * L) - 0.5, load(x, F[p + W] + z * L), best)
    store(x, at, best)
    for j in range(k):
        store(x, o + j * L, same(best, splat(float(j))))
    for lane in range(real if q >= 0 else 0):
        add_state(F, G, p, lane, G[p + OPENED] == 0 and not known, x, put, sx, sz)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def walk_hidden(real, F, G, p, tables, a, x, put, sx, sz):
    """A hidden variable given the best state of its parent, an output, in all lanes: its row, its distribution."""
    q, k, R, b, o, t, row = F[p + PARENT], F[p + CARD], G[p + ROWS], F[p + B], F[p + U], F[p + T], splat(0.0)
    push(x, F[q + U], 1, F[q + CARD], tables, a, k, t, splat(1.0))  # E at the parent's state, a point mass
    top, total, width = splat(-1.0), splat(0.0), G[p + BLOCK]
    for r in range(k // width if width > 0 else 0):
        v = load(x, b + r * width * L) * load(x, t + r * width * L)
        for j in range(r * width + 1, (r + 1) * width):
            v = v + load(x, b + j * L) * load(x, t + j * L)
        top, row = larger(v, top, splat(float(r)), row)
    for r in range(R if R > 1 else 0):
        v = load(x, b + r * k * L) * load(x, t)
        for j in range(1, k):
            v = v + load(x, b + (r * k + j) * L) * load(x, t + j * L)
        top, row = larger(v, top, splat(float(r)), row)
    store(x, F[p + SCALE] + L, row)
    for j in range(k):
        v = load(x, b + j * L)
        for r in range(1, R):
            v = where(same(row, splat(float(r))), load(x, b + (r * k + j) * L), v)
        v = v * load(x, t + j * L)
        if width > 0:
            v = where(same(row, splat(float(j // width))), v, splat(0.0))
        store(x, o + j * L, v)
        total = total + v
    inv = splat(1.0) / total
    for j in range(k):
        store(x, o + j * L, load(x, o + j * L) * inv)
    for lane in range(real):
        to = put + int(x[F[q + SCALE] + lane]) * sz * L + lane
        for j in range(k):
            x[to + j * sx * L] += x[o + j * L + lane]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def choose_row(F, G, p, ended, x, to):
    """The row of a variable that is hidden in some lanes: the best at t, which has the table at its parent's state, if
    rows have ``ended`` in some, or that of its parent if this is hidden too; ``to`` gets the belief in it."""
    q, k, R, b, t, row, top = F[p + PARENT], F[p + CARD], G[p + ROWS], F[p + B], F[p + T], splat(0.0), splat(-1.0)
    for r in range(R if ended and R > 1 else 0):
        v = load(x, b + r * k * L) * load(x, t)
        for j in range(1, k):
            v = v + load(x, b + (r * k + j) * L) * load(x, t + j * L)
        top, row = larger(v, top, splat(float(r)), row)
    if q >= 0 and G[p + TIMES] != 0:
        above_row = load(x, F[q + SCALE] + L) if R > 1 and F[q + CARRIER] == p else splat(0.0)
        row = where(mask(G[p + TIMES]), above_row, row)
    for j in range(k):
        store(x, to + j * L, load(x, b + j * L))
    for r in range(1, R):
        here = same(row, splat(float(r)))
        for j in range(k):
            store(x, to + j * L, where(here, load(x, b + (r * k + j) * L), load(x, to + j * L)))
    return row


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def walk_hidden_lanes(F, G, p, hidden, tables, base, x, put, sx, sz, scratch):
    """A variable in the lanes where it is hidden, given the distribution of its parent: q(x) = b(x) sum_z E(x, z) d(z),
    d = that of z over what b sends it, as is the pair's at ``put``; zero in other lanes. Returns its row."""
    q, k, o, t, zero, one = F[p + PARENT], F[p + CARD], F[p + U], F[p + T], splat(0.0), splat(1.0)
    d, b = scratch, scratch + (F[q + CARD] if q >= 0 else 1) * L
    c, a, back = (b - d) // L, base[2 + F[p + FLIP]] + F[p + START], base[3 - F[p + FLIP]] + F[p + START]
    ended = q < 0 or hidden & ~G[p + TIMES] != 0
    if q >= 0 and ended:
        push(x, F[q + U], 1, c, tables, back, k, t, one)
    for j in range(0 if q >= 0 else k):
        store(x, t + j * L, one)
    row = choose_row(F, G, p, ended, x, b)
    if q < 0:
        s = load(x, b)
        for j in range(1, k):
            s = s + load(x, b + j * L)
        for j in range(k):
            store(x, o + j * L, where(mask(hidden), load(x, b + j * L) / s, zero))
        return row
    push(x, b, 1, k, tables, a, c, d, one)
    for z in range(c):
        v = load(x, F[q + U] + z * L)
        some = v if hidden == FULL else where(mask(hidden), v, zero)  # a state that its parent never has may leave none
        store(x, d + z * L, where(some, v / load(x, d + z * L), zero))
    push(x, d, 1, c, tables, back, k, t, one)
    for j in range(k):
        v = load(x, b + j * L)
        store(x, o + j * L, v * load(x, t + j * L))
        for z in range(c):
            to = put + (j * sx + z * sz) * L
            store(x, to, load(x, to) + v * load(x, d + z * L) * tables[a + j * c + z])
    return row


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def walk_mixed(real, F, G, p, tables, base, x, put, sx, sz, scratch):
    """A variable of any role in any lane: its state where it is an output, its row and distribution where not."""
    q, k, o, sent, row, best = F[p + PARENT], F[p + CARD], F[p + U], G[p + SENT] & G[p + HERE], splat(0.0), splat(0.0)
    hidden = G[p + HERE] & ~G[p + SENT]
    if G[p + PLAIN] != 0 and q < 0:
        best = first_largest(x, o, k)
    elif G[p + PLAIN] != 0:
        for z in range(F[q + CARD]):
            best = where(load(x, F[q + U] + z * L) - 0.5, load(x, F[p + W] + z * L), best)
    if G[p + OPENED] != 0:
        best = where(mask(G[p + OPENED]), load(x, F[q + SCALE] + L), best)
    if hidden != 0:
        row = walk_hidden_lanes(F, G, p, hidden, tables, base, x, put, sx, sz, scratch)
    if hidden & G[p + CLOSED] != 0:
        best = where(mask(hidden), first_largest(x, o, k), best)
    store(x, F[p + SCALE], best)
    store(x, F[p + SCALE] + L, row)
    for j in range(k if sent != 0 or hidden == 0 else 0):
        v = load(x, o + j * L) if hidden != 0 else splat(0.0)
        store(x, o + j * L, where(mask(sent), same(best, splat(float(j))), v))
    for lane in range(real if q >= 0 else 0):
        if has(sent, lane):
            add_state(F, G, p, lane, has(G[p + PLAIN], lane), x, put, sx, sz)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST, no_rewrites=True)
def walk(n, real, F, G, sparse, tables, base, x, marginals, scratch):
    """The best outputs of the lanes as point masses, and hidden variables given them.

    The states of outputs and the rows of hidden variables take the places of the scales.
    """
    for p in range(n - COLUMNS, -1, -COLUMNS):
        k, root, c = F[p + CARD], F[p + PARENT] < 0, F[max(F[p + PARENT], 0) + CARD]
        sx, sz, put = (1 if F[p + FLIP] else c), (k if F[p + FLIP] else 1), marginals + F[p + PUT]
        known = sparse and not root and G[max(F[p + PARENT], 0) + BLOCK] > 0
        sent = G[p + SENT] == FULL and G[p + HERE] == FULL and (G[p + PLAIN] == FULL or G[p + OPENED] == FULL)
        if sent or known:
            walk_output(real, F, G, p, known, x, put, sx, sz)
        elif G[p + SENT] == 0 and G[p + TIMES] == 0 and G[p + HERE] == FULL and G[p + CLOSED] == 0 and not root:
            walk_hidden(real, F, G, p, tables, base[3 - F[p + FLIP]] + F[p + START], x, put, sx, sz)
        else:
            walk_mixed(real, F, G, p, tables, base, x, put, sx, sz, scratch)


@njit(cache=True, unroll=False, nogil=True, error_model="numpy", no_rewrites=True)
def run_lanes(rows, numbers, sets, made, raw, raw_cost, unary, cost, value, mu_unary, mu_tables, done, space, counts):
    """As ``sums.run_sums``, at any temperatures."""
    R, A, x, lanes, count, size = pointer_to(rows), pointer_to(made), pointer_to(space), pointer_to(counts), 0, len(raw)
    scores, costs, mu, mu_t = pointer_to(unary), pointer_to(cost), pointer_to(mu_unary), pointer_to(mu_tables)
    make_tables(sets, numbers, A, raw, raw_cost)
    for k in range(len(rows)):
        r, eps_y, eps_h = k * ROW, numbers[rows[k, NUMBER], 0], numbers[rows[k, NUMBER], 1]
        F, kids, n = ints_at(R[r + PLACES]), ints_at(R[r + KID_LIST]), COLUMNS * R[r + POSITIONS]
        base, tops = onward(R, r + BASE), onward(A, (TABLE_PARTS * R[r + SIDE] + TOPS) * size)
        scratch, marginals = R[r + SCRATCH], R[r + MARGINALS]
        G, pairs, widths = onward(lanes, 3 * L), onward(lanes, 3 * L + n), ints_at(R[r + MORE])
        widest, holes = table_range(R, r, A, size)
        holes |= eps_y > eps_h  # what is small counts more once it is raised to the power eps_h / eps_y
        wide = 0.0 < RANGE * (min(eps_y, eps_h) if eps_y > 0.0 < eps_h else max(eps_y, eps_h)) < widest
        for g in range(R[r + FIRST], R[r + LAST]):
            words = onward(ints_at(R[r + WORDS]), 3 * g * R[r + POSITIONS])
            real, wrong = read(R, r, g, scores, costs, R[r + SIDE] == 0 and len(cost) > 0, x, lanes)
            if g == R[r + FIRST] or bytes_at(R[r + FRESH])[g]:
                read_roles(n, F, kids, words, widths, eps_y, G)
                list_pairs(R, r, F, G, pairs)
            v, least = upward(
                n, F, G, kids, widths, A, base, tops, R[r + SQUARINGS], eps_y, eps_h, x, scratch, holes, widest
            )  # fmt: skip
            if eps_y > 0.0:
                downward(n, F, G, widths, A, base, x, scratch, marginals, holes)
                add_pairs(R, r, A, x, pairs)
            else:
                walk(n, real, F, G, widths[0] > 0, A, base, x, marginals, scratch)
            count += write(R, r, real, wrong | wide, v, least, x, lanes, value, done, mu, mu_t)
    return count

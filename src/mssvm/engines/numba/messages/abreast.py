"""The messages of ``scaled`` for instances of one graph and one set of tables, eight abreast in registers.

Lanes never meet: an instance has the same messages in any lane and next to any others. One that converges leaves its
lane to the next. Roles and held variables may differ from lane to lane; bytes of a 64-bit word say where.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uint64

from mssvm.core.arrays import Ints
from mssvm.core.jit import njit
from mssvm.core.topology import Batch
from mssvm.engines.numba.messages.products import SQUARES, both_product, max_product, sum_product, update
from mssvm.engines.numba.messages.scaled import TINY
from mssvm.engines.numba.messages.wiring import MessageWiring
from mssvm.engines.numba.vector import (
    WIDTH,
    above,
    gather,
    load,
    mask_of,
    minus,
    onward,
    over,
    plus,
    pointer_to,
    same,
    scatter,
    splat,
    store,
    times,
    vabs,
    vexp,
    vlog,
    vmax,
    vsqrt,
    where,
)
from mssvm.engines.numba.vector import total as over_lanes

L = WIDTH
EVERY = np.uint64(0x0101010101010101)
NONE = np.uint64(0)
# Instances that are worth a register of eight: with at most SQUARES states, and with more.
FEWEST, FEWEST_WIDE = 3, 6
# With more states one instance at a time is as fast.
WIDEST = 12
STEP, PATH = 9, 10  # columns of a family's steps and paths


class MessageFamily(NamedTuple):
    """Factors in the order of a sweep, a row each. ``steps``: variables i and j, where their states and messages and
    the table begin, and how many states they have; all counted within an instance except the place of the table.
    ``swept``: the same, as sweeps go through them, see ``_in_memory``.

    ``paths``, where no variable has more than two factors to variables before it or more than two to those behind it
    (none elsewhere): the cavities of ``swept`` as a product of two vectors each, see ``_paths``. ``mu_at``: where
    marginals begin.
    """

    steps: Ints
    swept: Ints
    paths: Ints
    mu_at: Ints
    n_vars: int
    n_states: int
    n_messages: int
    n_mu: int
    widest: int

    def space(self) -> int:
        """Doubles that ``run`` and ``beliefs`` need to work in."""
        return L * (2 * self.n_messages + 4 * self.n_states + self.n_mu + 10 * self.widest)


def families(batch: Batch, w: MessageWiring, table_at: Ints) -> tuple[list[MessageFamily], Ints]:
    """The families of a batch, and which one every instance belongs to (-1: none)."""
    members: dict[tuple[int, bytes], list[int]] = {}
    widest = np.zeros(len(batch), dtype=np.int64)
    np.maximum.at(widest, batch.owner, batch.cards)
    for b in np.flatnonzero(batch.pairwise & (np.diff(batch.factor_ptr) > 0) & (widest <= WIDEST)):
        row = table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]]
        members.setdefault((int(batch.topology_of[b]), row.tobytes()), []).append(int(b))
    fewest = np.where(widest <= SQUARES, FEWEST, FEWEST_WIDE)
    chosen = [instances for instances in members.values() if len(instances) >= fewest[instances[0]]]
    family_of = np.full(len(batch), -1, dtype=np.int64)
    for k, instances in enumerate(chosen):
        family_of[instances] = k
    return [_family(batch, w, table_at, instances[0]) for instances in chosen], family_of


def _family(batch: Batch, w: MessageWiring, table_at: Ints, b: int) -> MessageFamily:
    f = w.order[w.factor_ptr[b] : w.factor_ptr[b + 1]]
    slots = w.scope_ptr[f]
    i, j, first = w.scope[slots], w.scope[slots + 1], w.var_ptr[b]
    states, messages = w.state_ptr[first], w.message_at[w.scope_ptr[w.factor_ptr[b]]]
    columns = (
        i - first, j - first, w.state_ptr[i] - states, w.state_ptr[j] - states, w.message_at[slots] - messages,
        w.message_at[slots + 1] - messages, table_at[f], w.state_ptr[i + 1] - w.state_ptr[i],
        w.state_ptr[j + 1] - w.state_ptr[j],
    )  # fmt: skip
    last = w.var_ptr[b + 1]
    n_vars, n_states = int(last - first), int(w.state_ptr[last] - states)
    n_messages = int(w.message_at[w.scope_ptr[w.factor_ptr[b + 1]]] - messages)
    steps, behind = np.stack(columns, axis=1), (w.place[i] < w.place[j]).astype(np.int64)
    order = _in_memory(steps, behind)
    swept = np.ascontiguousarray(steps[order])
    paths = _paths(swept, behind[order], n_vars, n_states, n_messages)
    # The marginals of an instance lie in the order of the first factors with each table.
    mu_at = batch.mu_at[f] - batch.mu_at[w.factor_ptr[b]]
    n_mu = int((mu_at + batch.table_sizes[f]).max())
    widest = int(steps[:, 7:].max())
    return MessageFamily(steps, swept, paths, mu_at, n_vars, n_states, n_messages, n_mu, widest)


def _in_memory(steps: Ints, behind: Ints) -> Ints:
    """The order of factors by the numbers of their later variables, which is that of memory, if it sends the messages
    of the order given: if factors of the same variable follow each other as before. Else the order given."""
    row = np.arange(len(steps))
    later = steps[row, behind]
    at, number = steps[:, :2].ravel(), np.repeat(later, 2)
    by_variable = np.argsort(at, kind="stable")
    at, number = at[by_variable], number[by_variable]
    same = np.all((number[1:] >= number[:-1]) | (at[1:] != at[:-1]))
    return np.argsort(later, kind="stable") if same else row


def _paths(steps: Ints, behind: Ints, n_vars: int, n_states: int, n_messages: int) -> Ints:
    """A sweep meets the factors of a variable v to those before it one behind the other, and those to the variables
    behind it all later or all earlier. So every cavity is one message times a product that many share:

        of v, for a factor to a variable before it     the other message from before, psi_v and all from behind
        of u, for a factor to a variable v behind it   the other message from behind, psi_u and all from before

    Columns: product and message of i, of j (entry ``n_states``: the first product, of the v at hand; ``n_messages``:
    ones); states of v, how many, its two messages from behind, its two from before. ``behind``: which of i and j is v.
    """
    row = np.arange(len(steps))
    u, v = steps[row, 1 - behind], steps[row, behind]
    to_u, to_v = steps[row, 5 - behind], steps[row, 4 + behind]
    ends = []
    for variable, message in ((u, to_u), (v, to_v)):
        count = np.bincount(variable, minlength=n_vars)
        if count.max() > 2:
            return np.zeros((0, 10), dtype=np.int64)
        low, high = np.full(n_vars, n_messages), np.zeros(n_vars, dtype=np.int64)
        np.minimum.at(low, variable, message)
        np.maximum.at(high, variable, message)
        ends.append((low, np.where(count == 2, high, n_messages)))
    (low_u, high_u), (low_v, high_v) = ends
    out = np.empty((len(steps), 10), dtype=np.int64)
    out[row, 2 - 2 * behind], out[row, 3 - 2 * behind] = steps[row, 3 - behind], low_u[u] + high_u[u] - to_u
    out[row, 2 * behind], out[row, 1 + 2 * behind] = n_states, low_v[v] + high_v[v] - to_v
    out[:, 4], out[:, 5] = steps[row, 2 + behind], steps[row, 7 + behind]
    out[:, 6], out[:, 7], out[:, 8], out[:, 9] = low_u[v], high_u[v], low_v[v], high_v[v]
    return out


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _cavity(whole, g, gi, m, mi, n, room, out):
    for x in range(n):
        a, b = load(g, gi + L * x), load(m, mi + L * x)
        store(room, out + L * x, over(a, b) if whole else times(a, b))


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _point(chosen, room, cavity, message, n, out):
    """1 at the first largest cavity times message and 0 elsewhere in the ``chosen`` lanes, the cavity in the others."""
    top = times(load(room, cavity), load(room, message))
    for x in range(1, n):
        top = vmax(top, times(load(room, cavity + L * x), load(room, message + L * x)))
    left = splat(1.0)
    for x in range(n):
        v = load(room, cavity + L * x)
        hit = left * same(times(v, load(room, message + L * x)), top)
        left = left - hit
        store(room, out + L * x, where(chosen, hit, v))


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _store(room, new, total, n, m, m_out, mi, cavity, whole, g, gi, damping, fixed, some_fixed, peak):
    """Normalise, damp geometrically, write message and (if ``whole``) product, except in the ``fixed`` lanes; returns
    the largest change so far."""
    scale = over(splat(1.0), total)
    if damping > 0.0:
        total = splat(0.0)
        for x in range(n):
            v, old = times(load(room, new + L * x), scale), load(m, mi + L * x)
            if damping == 0.5:
                v = vsqrt(times(v, old))
            else:
                # vlog knows no NaN.
                v = plus(vexp(vlog(v) * (1.0 - damping) + vlog(old) * damping), minus(v, v))
            store(room, new + L * x, v)
            total = plus(total, v)
        scale = over(splat(1.0), total)
    for x in range(n):
        old = load(m, mi + L * x)
        v = times(load(room, new + L * x), scale)
        if whole:
            product = times(load(room, cavity + L * x), v)
            store(g, gi + L * x, where(fixed, load(g, gi + L * x), product) if some_fixed else product)
        if some_fixed:
            v = where(fixed, old, v)
        peak = vmax(peak, vabs(minus(v, old)))
        store(m_out, mi + L * x, v)
    return peak


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _either(both, room, x, n, table, at, down, across, y, m):
    """A product with maxima in the lanes of ``both``, if any."""
    if both == NONE:
        return sum_product(splat(0.0), room, x, n, table, at, down, across, y, m)
    return both_product(mask_of(both), room, x, n, table, at, down, across, y, m)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _combine(tables, at, ki, kj, ri, rj, room, size):
    """Messages of one factor, not normalised, from the cavities; returns their sums."""
    n_i, n_j, to_i, to_j, w, again = 0, size, 2 * size, 3 * size, 4 * size, 5 * size
    none = splat(0.0)
    if (ri | rj) == NONE:
        s_i = sum_product(none, room, n_j, kj, tables, at, 1, kj, to_i, ki)
        s_j = sum_product(none, room, n_i, ki, tables, at, kj, 1, to_j, kj)
    elif (ri & rj) == EVERY:
        s_i = max_product(none, room, n_j, kj, tables, at, 1, kj, to_i, ki)
        s_j = max_product(none, room, n_i, ki, tables, at, kj, 1, to_j, kj)
    else:
        both, source = ri & rj, n_j
        s_j = _either(both, room, n_i, ki, tables, at, kj, 1, to_j, kj)
        if (rj & ~ri) != NONE:
            # A maximal j tells a summed i its best state, with what i has told it.
            _point(mask_of(rj & ~ri), room, n_j, to_j, kj, w)
            source = w
        s_i = _either(both, room, source, kj, tables, at, 1, kj, to_i, ki)
        if (ri & ~rj) != NONE:
            best = mask_of(ri & ~rj)
            _point(best, room, n_i, to_i, ki, w)
            s_j = where(best, sum_product(none, room, w, ki, tables, at, kj, 1, again, kj), s_j)
            for x in range(kj):
                store(room, to_j + L * x, where(best, load(room, again + L * x), load(room, to_j + L * x)))
    return s_i, s_j


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(psi, at, n, m, first, second, g, to):
    """A product of ``_paths``."""
    for x in range(0, n * L, L):
        store(g, to + x, times(times(load(psi, at + x), load(m, first + x)), load(m, second + x)))


@njit(cache=True, nogil=True, error_model="numpy")
def _before(path, psi, m, g):
    """The product of the messages from before it to the variable of a step, whose row of paths is ``path``."""
    at = path[4] * L
    _multiply(psi, at, path[5], m, path[8] * L, path[9] * L, g, at)


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(
    steps, paths, reverse, flooding, tables, psi, g, g_out, m, m_out, roles, held, skip, idle, damping, room, size,
    peaks,
):  # fmt: skip
    """Update every factor; not in the lanes where a variable is held, or with ``skip`` at ``EVERY``, only there.

    Messages of ``m`` become those of ``m_out`` (the same array unless all change at once, ``flooding``).
    """
    n, peak, whole, behind = len(steps), splat(0.0), len(paths) == 0, len(psi)
    first_step, first_path, last = pointer_to(steps), pointer_to(paths), -1
    for k in range(n):
        e = n - 1 - k if reverse else k
        step = onward(first_step, e * STEP)
        i, j = step[0], step[1]
        fixed = NONE
        if len(held) > 0:
            fixed = (held[i] | held[j]) ^ skip
            if (fixed | idle) == EVERY:
                continue
            fixed &= ~idle
        gi, gj, mi, mj = step[2] * L, step[3] * L, step[4] * L, step[5] * L
        ki, kj, ci, cj = step[7], step[8], mi, mj
        if not whole:
            path = onward(first_path, e * PATH)
            if last < 0 or path[4] != first_path[last + 4]:
                if last >= 0:
                    _before(onward(first_path, last), psi, m_out, g_out)
                _multiply(psi, path[4] * L, path[5], m, path[6] * L, path[7] * L, g, behind)
                last = e * PATH
            gi, ci, gj, cj = path[0] * L, path[1] * L, path[2] * L, path[3] * L
        if 2 <= ki <= SQUARES and ki == kj and (damping == 0.0 or damping == 0.5):
            peak = update(
                ki, whole, tables, step[6], g, g_out, gi, gj, m, m_out, ci, cj, mi, mj, roles[i], roles[j],
                fixed, damping > 0.0, L, peak,
            )  # fmt: skip
            continue
        _cavity(whole, g, gi, m, ci, ki, room, 0)
        _cavity(whole, g, gj, m, cj, kj, room, size)
        s_i, s_j = _combine(tables, step[6], ki, kj, roles[i], roles[j], room, size)
        still, some = mask_of(fixed), fixed != NONE
        peak = _store(room, 2 * size, s_i, ki, m, m_out, mi, 0, whole, g_out, gi, damping, still, some, peak)
        peak = _store(room, 3 * size, s_j, kj, m, m_out, mj, size, whole, g_out, gj, damping, still, some, peak)
    if last >= 0:
        _before(onward(first_path, last), psi, m_out, g_out)
    store(peaks, 0, peak)


@njit(cache=True, nogil=True, error_model="numpy")
def _collect(steps, psi, m, g):
    """g_i = psi_i times all messages to i."""
    for e in range(0, len(psi), L):
        store(g, e, load(psi, e))
    for e in range(len(steps)):
        for side in range(2):
            at, mt = steps[e, 2 + side] * L, steps[e, 4 + side] * L
            for x in range(steps[e, 7 + side]):
                store(g, at + L * x, times(load(g, at + L * x), load(m, mt + L * x)))


@njit(cache=True, nogil=True, error_model="numpy")
def _collect_before(paths, psi, m, g):
    """g_i = psi_i times the messages to i from before."""
    for e in range(0, len(psi), L):
        store(g, e, load(psi, e))
    for e in range(len(paths)):
        if e == 0 or paths[e, 4] != paths[e - 1, 4]:
            _before(onward(pointer_to(paths), e * PATH), psi, m, g)


@njit(cache=True, nogil=True, error_model="numpy")
def _read(rows, starts, n, lanes, word):
    """n numbers of every instance into its lane."""
    whole = n - n % L
    for e in range(0, whole, L):
        gather(rows, starts, e, lanes, e * L, word)
    for lane in range(L):
        if (word >> uint64(8 * lane)) & uint64(1):
            for e in range(whole, n):
                lanes[e * L + lane] = rows[starts[lane] + e]


@njit(cache=True, nogil=True, error_model="numpy")
def _write(lanes, n, rows, starts, word):
    whole = n - n % L
    for e in range(0, whole, L):
        scatter(lanes, e * L, rows, starts, e, word)
    for lane in range(L):
        if (word >> uint64(8 * lane)) & uint64(1):
            for e in range(whole, n):
                rows[starts[lane] + e] = lanes[e * L + lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _mark(flags, first, n, lane, words):
    """Byte ``lane`` of every variable's word."""
    shift = uint64(8 * lane)
    for i in range(n if len(words) else 0):
        words[i] = words[i] & ~(uint64(255) << shift) | uint64(flags[first + i]) << shift


@njit(cache=True, nogil=True, error_model="numpy")
def _next(queue, at, live, reverse, border, n_sweeps, tolerance, sweeps, residual):
    """The place of the next instance that can join, or the length of the queue, or -1 if one has to wait for a sweep
    in its direction."""
    while at < len(queue) and not border and (n_sweeps == 0 or residual[queue[at]] <= tolerance):
        at += 1
    if at < len(queue) and live and not border and (sweeps[queue[at]] % 2 == 1) != reverse:
        return -1
    return at


@njit(cache=True, nogil=True, error_model="numpy")
def run(
    family, w, queue, tables, psi, g, m, maximal, held, border, damping, flooding, n_sweeps, tolerance, sweeps,
    residual, space,
):  # fmt: skip
    """As ``scaled.run`` for instances of one family; or, with ``border``, as ``scaled.refresh``."""
    n_vars, size, n_messages, widest = family.n_vars, family.n_states, family.n_messages, family.widest
    paths = family.paths
    whole, apart = len(paths) == 0 and not flooding, len(paths) > 0 and flooding
    at_psi, at_room = (n_messages + size + 2 * widest) * L, (n_messages + 3 * size + 3 * widest) * L
    lanes_m, lanes_g = space[: (n_messages + widest) * L], space[(n_messages + widest) * L : at_psi]
    lanes_psi, spare = space[at_psi : at_psi + size * L], space[at_psi + size * L : at_room]
    room, peaks = space[at_room : at_room + 6 * widest * L], np.empty(L)
    at_next = at_room + 6 * widest * L
    lanes_next = space[at_next:][: len(lanes_m)] if apart else lanes_m
    whole_g = space[at_next + len(lanes_m) :][: size * L]
    for e in range(n_messages * L, len(lanes_m)):
        lanes_m[e] = 1.0
    roles, fixed = np.zeros(n_vars, np.uint64), np.zeros(n_vars if len(held) else 0, np.uint64)
    who, left = np.full(L, -1), np.zeros(L, np.int64)
    states, messages = np.zeros(L, np.int64), np.zeros(L, np.int64)
    at, live, idle, reverse, first = 0, 0, EVERY, border, True
    while True:
        joined = NONE
        for lane in range(L):
            if who[lane] >= 0:
                continue
            found = _next(queue, at, live > 0, reverse, border, n_sweeps, tolerance, sweeps, residual)
            if found < 0:
                break
            at = found
            if at == len(queue):
                break
            b = queue[at]
            at += 1
            if live == 0:
                reverse = not border and sweeps[b] % 2 == 1
            who[lane], left[lane] = b, n_sweeps
            live += 1
            joined |= uint64(1) << uint64(8 * lane)
        if live == 0:
            return
        if joined != NONE:
            idle &= ~joined
            template = -1
            for lane in range(L):
                if (joined >> uint64(8 * lane)) & uint64(1):
                    template = who[lane]
            # Lanes without an instance of their own repeat another one at first, and just go on later.
            everyone = EVERY if first else joined
            for lane in range(L):
                b = who[lane] if who[lane] >= 0 else template
                states[lane] = w.state_ptr[w.var_ptr[b]]
                messages[lane] = w.message_at[w.scope_ptr[w.factor_ptr[b]]]
                if (everyone >> uint64(8 * lane)) & uint64(1):
                    if not border:
                        _mark(maximal, w.var_ptr[b], n_vars, lane, roles)
                    _mark(held, w.var_ptr[b], n_vars, lane, fixed)
            first = False
            _read(m, messages, n_messages, lanes_m, everyone)
            if not whole:
                _read(psi, states, size, lanes_psi, everyone)
            if len(paths):
                _collect_before(paths, lanes_psi, lanes_m, lanes_g)
            else:
                _read(g, states, size, lanes_g, everyone)
            if apart:
                for e in range(0, len(lanes_m), L):
                    store(lanes_next, e, load(lanes_m, e))
                for e in range(0, size * L, L):
                    store(spare, e, load(lanes_g, e))
        _sweep(
            family.swept, paths, reverse, flooding, tables, lanes_psi, lanes_g, spare if flooding else lanes_g, lanes_m,
            lanes_next, roles, fixed, EVERY if border else NONE, idle, damping, room, widest * L, peaks,
        )  # fmt: skip
        if apart:
            lanes_m, lanes_next, lanes_g, spare = lanes_next, lanes_m, spare, lanes_g
        elif flooding:
            _collect(family.steps, lanes_psi, lanes_m, lanes_g)
        gone = NONE
        for lane in range(L):
            b = who[lane]
            if b >= 0:
                left[lane] -= 1
                if not border:
                    sweeps[b] += 1
                    residual[b] = peaks[lane]
                if border or left[lane] == 0 or residual[b] <= tolerance:
                    gone |= uint64(1) << uint64(8 * lane)
        if gone != NONE:
            _write(lanes_m, n_messages, m, messages, gone)
            if len(paths):
                _collect(family.steps, lanes_psi, lanes_m, whole_g)
            _write(whole_g if len(paths) else lanes_g, size, g, states, gone)
            for lane in range(L):
                if (gone >> uint64(8 * lane)) & uint64(1):
                    who[lane] = -1
                    live -= 1
            idle |= gone
        reverse = not reverse


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _log(z):
    """log z, -inf at 0; ``vlog`` knows no NaN."""
    return where(z, vlog(z), plus(splat(-np.inf), minus(z, z)))


@njit(cache=True, nogil=True, error_model="numpy")
def _variable_beliefs(w, first, n_vars, g, unit, mu):
    """Marginals of the variables are added to ``mu``, unless it is empty; returns their part of the values."""
    total, at = splat(0.0), 0
    for i in range(first, first + n_vars):
        end = at + (w.state_ptr[i + 1] - w.state_ptr[i]) * L
        z = load(g, at)
        for e in range(at + L, end, L):
            z = plus(z, load(g, e))
        total = plus(total, times(splat(unit * (1.0 - (w.near_ptr[i + 1] - w.near_ptr[i]))), _log(z)))
        for e in range(at, end if len(mu) else at, L):
            store(mu, e, plus(load(mu, e), over(load(g, e), z)))
        at = end
    return total


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _joint(tables, at, ki, kj, room):
    """The sum of a table's entries times the cavities of both variables."""
    z = splat(0.0)
    for r in range(ki):
        row = splat(0.0)
        for c in range(kj):
            row = plus(row, times(splat(tables[at + r * kj + c]), load(room, (ki + c) * L)))
        z = plus(z, times(row, load(room, r * L)))
    return z


@njit(cache=True, nogil=True, error_model="numpy")
def _factor_beliefs(steps, mu_at, tables, unit, g, m, room, mu):
    """As ``_variable_beliefs``, for factors."""
    total = splat(0.0)
    for e in range(len(steps)):
        ki, kj, at, to = steps[e, 7], steps[e, 8], steps[e, 6], mu_at[e] * L
        _cavity(True, g, steps[e, 2] * L, m, steps[e, 4] * L, ki, room, 0)
        _cavity(True, g, steps[e, 3] * L, m, steps[e, 5] * L, kj, room, ki * L)
        z = _joint(tables, at, ki, kj, room)
        low = above(splat(TINY), z)
        if over_lanes(low) > 0.0:
            lift = splat(0.0)
            for c in range(kj):
                lift = vmax(lift, load(room, (ki + c) * L))
            lift = where(low, lift, splat(1.0))
            for c in range(kj):
                store(room, (ki + c) * L, over(load(room, (ki + c) * L), lift))
            total = plus(total, times(splat(unit), where(low, _log(lift), splat(0.0))))
            z = _joint(tables, at, ki, kj, room)
        total = plus(total, times(splat(unit), _log(z)))
        for r in range(ki if len(mu) else 0):
            # The order of operations is that of z: a point mass comes out as exactly one.
            for c in range(kj):
                joint = times(times(splat(tables[at + r * kj + c]), load(room, (ki + c) * L)), load(room, r * L))
                store(mu, to, plus(load(mu, to), over(joint, z)))
                to += L
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def beliefs(
    family, w, queue, tables, table_of, tops, unit, g, m, unary_top, mu_at, mu_unary, mu_tables, value, space
):
    """As ``scaled.beliefs`` for instances of one family."""
    size, n_messages, n_mu = family.n_states, family.n_messages, family.n_mu
    want_mu = len(mu_unary) > 0
    at_mu, at_room = (n_messages + size) * L, (n_messages + 2 * size + n_mu) * L
    lanes_m, lanes_g, room = space[: n_messages * L], space[n_messages * L : at_mu], space[at_room:]
    of_states = space[at_mu : at_mu + size * L if want_mu else at_mu]
    of_tables = space[at_mu + size * L : at_room if want_mu else at_mu + size * L]
    states, messages, marginals = np.zeros(L, np.int64), np.zeros(L, np.int64), np.zeros(L, np.int64)
    values = np.empty(L)
    for start in range(0, len(queue), L):
        count = min(L, len(queue) - start)
        for lane in range(L):
            b = queue[start + min(lane, count - 1)]
            states[lane] = w.state_ptr[w.var_ptr[b]]
            messages[lane] = w.message_at[w.scope_ptr[w.factor_ptr[b]]]
            marginals[lane] = mu_at[w.factor_ptr[b]]
        _read(m, messages, n_messages, lanes_m, EVERY)
        _read(g, states, size, lanes_g, EVERY)
        if want_mu:
            _read(mu_unary, states, size, of_states, EVERY)
            _read(mu_tables, marginals, n_mu, of_tables, EVERY)
        first = w.var_ptr[queue[start]]
        of_variables = _variable_beliefs(w, first, family.n_vars, lanes_g, unit, of_states)
        of_factors = _factor_beliefs(family.steps, family.mu_at, tables, unit, lanes_g, lanes_m, room, of_tables)
        store(values, 0, plus(of_variables, of_factors))
        if want_mu:
            taken = EVERY >> uint64(8 * (L - count))
            _write(of_states, size, mu_unary, states, taken)
            _write(of_tables, n_mu, mu_tables, marginals, taken)
        for lane in range(count):
            b = queue[start + lane]
            total = values[lane]
            for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
                total += unary_top[i]
            for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
                total += tops[table_of[f]]
            value[b] = total

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
from mssvm.engines.numba.messages.wiring import MessageWiring
from mssvm.engines.numba.vector import (
    WIDTH,
    gather,
    load,
    mask_of,
    minus,
    over,
    plus,
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

L = WIDTH
EVERY = np.uint64(0x0101010101010101)
NONE = np.uint64(0)
# Instances that are worth a register of eight: with at most SQUARES states, and with more.
FEWEST, FEWEST_WIDE = 3, 6
# With more states one instance at a time is as fast.
WIDEST = 12


class MessageFamily(NamedTuple):
    """Factors in the order of a sweep, a row each: variables i and j, where their states and messages and the table
    begin, and how many states they have; all counted within an instance except the place of the table."""

    steps: Ints
    n_vars: int
    n_states: int
    n_messages: int


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
    return [_family(w, table_at, instances[0]) for instances in chosen], family_of


def _family(w: MessageWiring, table_at: Ints, b: int) -> MessageFamily:
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
    n_messages = w.message_at[w.scope_ptr[w.factor_ptr[b + 1]]] - messages
    return MessageFamily(np.stack(columns, axis=1), int(last - first), int(w.state_ptr[last] - states), int(n_messages))


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _divide(g, gi, m, mi, n, room, out):
    for x in range(n):
        store(room, out + L * x, over(load(g, gi + L * x), load(m, mi + L * x)))


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
def _store(room, new, total, n, m, mi, cavity, g, gi, damping, fixed, some_fixed, peak):
    """Normalise, damp geometrically, write message and product, except in the ``fixed`` lanes; returns the largest
    change so far."""
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
        product = times(load(room, cavity + L * x), v)
        if some_fixed:
            v, product = where(fixed, old, v), where(fixed, load(g, gi + L * x), product)
        peak = vmax(peak, vabs(minus(v, old)))
        store(m, mi + L * x, v)
        store(g, gi + L * x, product)
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
def _sweep(
    steps, reverse, tables, g, g_out, m, roles, held, skip, idle, damping, room, size, peaks
):
    """Update every factor; not in the lanes where a variable is held, or with ``skip`` at ``EVERY``, only there."""
    n, peak = len(steps), splat(0.0)
    for k in range(n):
        e = n - 1 - k if reverse else k
        i, j = steps[e, 0], steps[e, 1]
        fixed = NONE
        if len(held) > 0:
            fixed = (held[i] | held[j]) ^ skip
            if (fixed | idle) == EVERY:
                continue
            fixed &= ~idle
        gi, gj, mi, mj = steps[e, 2] * L, steps[e, 3] * L, steps[e, 4] * L, steps[e, 5] * L
        ki, kj = steps[e, 7], steps[e, 8]
        if 2 <= ki <= SQUARES and ki == kj and (damping == 0.0 or damping == 0.5):
            peak = update(
                ki, tables, steps[e, 6], g, g_out, gi, gj, m, mi, mj, roles[i], roles[j], fixed, damping > 0.0, peak
            )
            continue
        _divide(g, gi, m, mi, ki, room, 0)
        _divide(g, gj, m, mj, kj, room, size)
        s_i, s_j = _combine(tables, steps[e, 6], ki, kj, roles[i], roles[j], room, size)
        still, some = mask_of(fixed), fixed != NONE
        peak = _store(room, 2 * size, s_i, ki, m, mi, 0, g_out, gi, damping, still, some, peak)
        peak = _store(room, 3 * size, s_j, kj, m, mj, size, g_out, gj, damping, still, some, peak)
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


@njit(cache=True, nogil=True)
def _room(n):
    """n registers, none of which lies across two lines of the cache."""
    numbers = np.empty((n + 1) * L)
    skip = -(numbers.ctypes.data // 8) % L
    return numbers[skip : skip + n * L]


@njit(cache=True, nogil=True, error_model="numpy")
def run(
    family, w, queue, tables, psi, g, m, maximal, held, border, damping, flooding, n_sweeps, tolerance, sweeps, residual
):
    """As ``scaled.run`` for instances of one family; or, with ``border``, as ``scaled.refresh``."""
    n_vars, size, n_messages = family.n_vars, family.n_states, family.n_messages
    widest = max(family.steps[:, 7].max(), family.steps[:, 8].max())
    room, peaks, lanes_m, lanes_g = _room(6 * widest), np.empty(L), _room(n_messages), _room(size)
    lanes_psi, unused = _room(size if flooding else 0), _room(size if flooding else 0)
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
            _read(g, states, size, lanes_g, everyone)
            if flooding:
                _read(psi, states, size, lanes_psi, everyone)
        _sweep(
            family.steps, reverse, tables, lanes_g, unused if flooding else lanes_g, lanes_m, roles, fixed,
            EVERY if border else NONE, idle, damping, room, widest * L, peaks,
        )  # fmt: skip
        if flooding:
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
            _write(lanes_g, size, g, states, gone)
            for lane in range(L):
                if (gone >> uint64(8 * lane)) & uint64(1):
                    who[lane] = -1
                    live -= 1
            idle |= gone
        reverse = not reverse

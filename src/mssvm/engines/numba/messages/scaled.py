"""Scaled-probability messages for pairwise factors at one temperature: sum-, max- and mixed-product (Liu and Ihler).

    sum i to any j       m_j(x_j) ~ sum_{x_i} E(x_i, x_j) n_i(x_i)                    n_i = g_i / m_i
    max i to max j       m_j(x_j) ~ max_{x_i} E(x_i, x_j) n_i(x_i)
    max i to sum j       m_j(x_j) ~ E(x_i*, x_j),   x_i* = argmax g_i with the new m_i included

E = exp((theta - max theta) / unit). Messages sum to one, so every g_i is at least exp(-range / unit) / k^degree, where
range adds up the unary and the tables at i: the caller keeps that, and products of two such (``strain``), from
underflowing and no update needs a guard.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.messages import NOISE, PRODUCT_RANGE
from mssvm.engines.numba.messages.exponential import exp_neg
from mssvm.engines.numba.messages.lanes import REGISTER
from mssvm.engines.numba.messages.vector import update
from mssvm.engines.numba.messages.wiring import MessageWiring

# Products of two variables' messages below this are made again, larger.
TINY = 1e-250
FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def exponentiate(tables: Floats, starts: Ints, sizes: Ints, tops: Floats, unit: float, out: Floats) -> None:
    """exp((theta - top) / unit) of the named tables, one behind the other."""
    at = 0
    scale = 1.0 / unit
    for k in range(len(starts)):
        # Slices, because an index that might be negative keeps a loop from being vectorised.
        top, table, part = tops[k], tables[starts[k] : starts[k] + sizes[k]], out[at : at + sizes[k]]
        for e in range(len(part)):
            part[e] = (table[e] - top) * scale
        at += len(part)
    # By themselves, as tables may be too short for vectors.
    for e in range(at):
        out[e] = exp_neg(out[e])


@njit(cache=True, nogil=True, error_model="numpy")
def _break_ties(scores, noise, out):
    """``engines.messages.with_noise``."""
    for e in range(len(out)):
        v = scores[e]
        out[e] = v + NOISE * noise[e] * (1.0 + abs(0.0 if v == -np.inf else v))


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "nnan"})
def extremes(values: Floats, starts: Ints, sizes: Ints, top: Floats, low: Floats) -> None:
    """Largest and smallest entry of every block."""
    for k in range(len(starts)):
        hi = -np.inf
        lo = np.inf
        for v in values[starts[k] : starts[k] + sizes[k]]:
            hi = v if v > hi else hi
            lo = v if v < lo else lo
        top[k] = hi
        low[k] = lo


@njit(cache=True, nogil=True, error_model="numpy")
def mask(scores, allowed, noise, ptr, first, last, unary, top, least):
    """Scores of the variables from ``first`` to ``last``, -inf at forbidden states, with the largest (with tie-breaking
    noise: at temperatures below it, it is all there is to the range) and the smallest that is allowed."""
    for i in range(first, last):
        hi, lo, at, n = -np.inf, np.inf, ptr[i], ptr[i + 1] - ptr[i]
        given, kind, draw, out = scores[at : at + n], allowed[at : at + n], noise[at : at + n], unary[at : at + n]
        for e in range(n):
            # Choices rather than branches: which state is the best is hard to foresee.
            v = given[e]
            kept = kind[e] & (v != -np.inf)
            out[e] = v if kept else -np.inf
            hi = max(hi, v + NOISE * draw[e] * (1.0 + abs(v)) if kept else -np.inf)
            lo = min(lo, v if kept else np.inf)
        top[i], least[i] = hi, lo if hi > -np.inf else hi


@njit(cache=True, nogil=True, error_model="numpy")
def ranges(w, first, last, near_table, spread, top, least, out):
    """Of every instance from ``first`` to ``last``, the largest range of the scores that meet at a variable; ``spread``
    is that of tables, ``near_table`` names those at variables, ``top`` and ``least`` are the ends of their scores."""
    for b in range(first, last):
        most = 0.0
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            around = 0.0
            for k in near_table[w.near_ptr[i] : w.near_ptr[i + 1]]:
                around += spread[k]
            around += top[i] - least[i]
            # A NaN is a difference of infinities.
            most = most if around <= most else (around if around == around else np.inf)
        out[b] = most


@njit(cache=True, nogil=True, error_model="numpy")
def strain(w, instances, table_of, spread, unary, top, least, dilution, unit, mixed, out):
    """Of every named instance, -log of the smallest numbers that must not underflow, at most: products of all messages
    to a variable; two messages, in damping; and if ``mixed`` the largest product of a table's entry with the cavities
    of both variables, by which a maximal one chooses."""
    total, first, second = np.empty(len(top)), np.empty(len(top)), np.empty(len(top))
    for n in range(len(instances)):
        b, worst = instances[n], 0.0
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            total[i] = first[i] = top[i] - least[i]
            second[i] = 0.0
            masked = False
            for e in range(w.state_ptr[i], w.state_ptr[i + 1]):
                masked |= unary[e] == -np.inf
            for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
                v = spread[table_of[w.slot_factor[w.near[k]]]]
                total[i] += v
                # Of all that meet in a cavity one has its way, unless a mask forbids its best state.
                second[i] = second[i] if masked else max(second[i], min(first[i], v))
                first[i] = first[i] if masked else max(first[i], v)
            worst = max(worst, total[i] / unit + dilution[i])
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            here = spread[table_of[f]]
            joint, thin = here / unit, 0.0
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                i = w.scope[s]
                rest = total[i] - here - (second[i] if first[i] == here else first[i])
                joint += rest / unit + dilution[i]
                thin = max(thin, np.log(float(w.message_at[s + 1] - w.message_at[s])))
            worst = max(worst, 2.0 * (here / unit + thin), joint if mixed else 0.0)
        out[n] = worst


@njit(cache=True, nogil=True)
def collect(w: MessageWiring, instances: Ints, psi: Floats, m: Floats, g: Floats) -> None:
    """g_i = psi_i times all messages to i."""
    for b in instances:
        for e in range(w.state_ptr[w.var_ptr[b]], w.state_ptr[w.var_ptr[b + 1]]):
            g[e] = psi[e]
        for s in range(w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]):
            at = w.state_ptr[w.scope[s]]
            message = m[w.message_at[s] : w.message_at[s + 1]]
            product = g[at : at + len(message)]
            for x in range(len(message)):
                product[x] *= message[x]


@njit(cache=True, nogil=True)
def convert(w: MessageWiring, instances: Ints, source: Floats, scale: float, out: Floats) -> None:
    """Messages out of log space, exp(scale * message), or into it at scale < 0, -scale * log(message); 0 copies."""
    for b in instances:
        first, last = w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]
        given = source[w.message_at[first] : w.message_at[last]]
        part = out[w.message_at[first] : w.message_at[last]]
        top = -np.inf
        for v in given:
            top = v if v > top else top
        if scale > 0.0 >= top:
            for e in range(len(part)):
                part[e] = exp_neg(scale * given[e])
            continue
        for e in range(len(part)):
            if scale > 0.0:
                part[e] = np.exp(scale * given[e])
            elif scale < 0.0:
                part[e] = -scale * np.log(given[e]) if given[e] > 0.0 else -np.inf
            else:
                part[e] = given[e]


@njit(cache=True, nogil=True, error_model="numpy")
def moves(w, instances, before, after, out):
    """Of every named instance, the largest change of a message's entry, relative to the smaller one: as long as it is
    small, that of its logarithm."""
    for n in range(len(instances)):
        b, most = instances[n], 0.0
        first, last = w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]
        old = before[w.message_at[first] : w.message_at[last]]
        new = after[w.message_at[first] : w.message_at[last]]
        for e in range(len(old)):
            change = abs(new[e] - old[e]) / min(new[e], old[e]) if new[e] != old[e] else 0.0
            # Written so that a NaN counts as a change.
            most = most if change <= most else change
        out[n] = most


@njit(cache=True, nogil=True)
def uniform(w: MessageWiring, instances: Ints, m: Floats) -> None:
    """Constant messages."""
    for b in instances:
        s, last = w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]
        while s < last:  # messages of one length in one go
            first, size = w.message_at[s], w.message_at[s + 1] - w.message_at[s]
            while s < last and w.message_at[s + 1] - w.message_at[s] == size:
                s += 1
            m[first : w.message_at[s]] = 1.0 / size


@njit(cache=True, nogil=True, error_model="numpy")
def _bound(w, instances, table_of, spread, around, dilution, unit, m):
    """Raise what is so small in messages of any origin that products with it might underflow: messages of a sweep stay
    within the ``spread`` of their table, and what the range ``around`` a variable leaves is shared out among its."""
    for b in instances:
        room = max(0.0, 0.5 * PRODUCT_RANGE - around[b] / unit - dilution[b])
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                i, part = w.scope[s], m[w.message_at[s] : w.message_at[s + 1]]
                share = room / (w.near_ptr[i + 1] - w.near_ptr[i])
                top = np.max(part)
                if 2.0 * len(part) * top < 1.0:
                    part[:] = part / top if top > 0.0 else np.ones(len(part))
                    top = 1.0
                least = top * np.exp(-spread[table_of[f]] / unit - share)
                for x in range(len(part)):
                    part[x] = least if part[x] < least else part[x]


@njit(cache=True, nogil=True, error_model="numpy")
def begin(
    w, instances, known, scores, noise, noisy, tops, unit, psi, messages, m, table_of, spread, around, dilution
):  # fmt: skip
    """exp((score - top) / unit) of the states of the named instances, with tie-breaking noise if ``noisy``, unless that
    is ``known``; and ``messages``, uniform ones if there are none, out of log space into m, unless it has no room.

    All in one kernel: threads that leave Python and come back wait for each other.
    """
    for b in instances:
        first, last = w.var_ptr[b], w.var_ptr[b + 1]
        ptr = w.state_ptr[first : last + 1]
        part = psi[ptr[0] : ptr[-1]]
        if known[b]:
            continue
        if noisy:
            _break_ties(scores[ptr[0] : ptr[-1]], noise[ptr[0] : ptr[-1]], part)
        else:
            part[:] = scores[ptr[0] : ptr[-1]]
        exponentiate(part, ptr[:-1] - ptr[0], np.diff(ptr), tops[first:last], unit, part)
        known[b] = True
    if len(m) and len(messages):
        convert(w, instances, messages, 1.0 / unit, m)
        _bound(w, instances, table_of, spread, around, dilution, unit, m)
    elif len(m):
        uniform(w, instances, m)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def _store(new, old_at, m, cavity, g, g_at, damping):
    """Normalise, damp geometrically, write message and product; returns the largest change."""
    n = len(new)
    for _ in range(2 if damping > 0.0 else 1):
        total = 0.0
        for x in range(n):
            total += new[x]
        total = 1.0 / total
        for x in range(n):
            new[x] *= total
        if damping > 0.0 and _ == 0:
            if damping == 0.5:
                for x in range(n):
                    new[x] = np.sqrt(new[x] * m[old_at + x])
            else:
                for x in range(n):
                    new[x] = np.exp((1.0 - damping) * np.log(new[x]) + damping * np.log(m[old_at + x]))
    change = 0.0
    for x in range(n):
        d = abs(new[x] - m[old_at + x])
        change = d if d > change else change
        m[old_at + x] = new[x]
        g[g_at + x] = cavity[x] * new[x]
    return change


@njit(cache=True, nogil=True, fastmath=FAST)
def _combine(table, cavity, other, to_first, maximum):
    """Sum or maximum of table times cavity over the variable the message comes from, into ``other``."""
    if to_first:
        for r in range(len(other)):
            total = 0.0
            for c in range(len(cavity)):
                v = table[r, c] * cavity[c]
                if maximum:
                    total = v if v > total else total
                else:
                    total += v
            other[r] = total
        return
    other[:] = 0.0
    for r in range(len(cavity)):
        for c in range(len(other)):
            v = table[r, c] * cavity[r]
            if maximum:
                other[c] = v if v > other[c] else other[c]
            else:
                other[c] += v


@njit(cache=True, nogil=True, error_model="numpy")
def update_plain(tables, at, g, g_out, gi, gj, m, mi, mj, ki, kj, max_i, max_j, damping, work):
    """Both messages of one factor for any cardinalities, kinds and damping; returns the largest change."""
    table = tables[at : at + ki * kj].reshape((ki, kj))
    n_i, n_j, new_i, new_j = work[0, :ki], work[1, :kj], work[2, :ki], work[3, :kj]
    for x in range(ki):
        n_i[x] = g[gi + x] / m[mi + x]
    for x in range(kj):
        n_j[x] = g[gj + x] / m[mj + x]
    change = 0.0
    if max_i == max_j or max_i:
        _combine(table, n_j, new_i, True, max_j)
    if max_i == max_j or max_j:
        _combine(table, n_i, new_j, False, max_i)
    if max_i and not max_j:
        best = np.argmax(n_i * new_i)
        new_j[:] = table[best]
    elif max_j and not max_i:
        best = np.argmax(n_j * new_j)
        new_i[:] = table[:, best]
    change = _store(new_i, mi, m, n_i, g_out, gi, damping)
    return max(change, _store(new_j, mj, m, n_j, g_out, gj, damping))


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(
    kk, w, b, reverse, tables, table_at, g, g_out, m, maximal, held, border, damping, work, peak
):
    """Update every factor of instance b; with ``held`` variables, only those at the ``border`` (with a held variable)
    or only those away from it."""
    first, last = w.factor_ptr[b], w.factor_ptr[b + 1]
    peak[:] = 0.0
    for e in range(last - first):
        f = w.order[last - 1 - e] if reverse else w.order[first + e]
        s = w.scope_ptr[f]
        i, j = w.scope[s], w.scope[s + 1]
        if len(held) > 0 and (held[i] or held[j]) != border:
            continue
        gi, gj, mi, mj = w.state_ptr[i], w.state_ptr[j], w.message_at[s], w.message_at[s + 1]
        if len(kk) > 0 and (damping == 0.0 or damping == 0.5):
            update(  # type: ignore[call-arg]
                kk, reverse, damping > 0.0, maximal[i], maximal[j], tables, table_at[f], g, g_out, gi, gj, m, mi, mj,
                peak,
            )  # fmt: skip
            continue
        ki, kj = mj - mi, w.message_at[s + 2] - mj
        change = update_plain(
            tables, table_at[f], g, g_out, gi, gj, m, mi, mj, ki, kj, maximal[i], maximal[j], damping, work
        )
        # Written so that a NaN counts as not converged.
        peak[0] = peak[0] if change <= peak[0] else change
    residual = 0.0
    for change in peak:
        residual = residual if change <= residual else change
    return residual


@njit(cache=True, nogil=True, error_model="numpy")
def run(
    kk, w, instances, tables, table_at, psi, g, m, maximal, held, damping, flooding, n_sweeps, tolerance, sweeps,
    residual,
):  # fmt: skip
    """Up to ``n_sweeps`` more sweeps of every named instance that has not converged; alternates directions.

    Factors with a held variable are left alone: what that variable says never changes, see ``refresh``.
    """
    work, peak = np.empty((4, w.widest)), np.empty(REGISTER)
    unused = np.empty(len(g) if flooding else 0)
    one = np.empty(1, dtype=np.int64)
    for b in instances:
        one[0] = b
        for _ in range(n_sweeps):
            if residual[b] <= tolerance:
                break
            out = unused if flooding else g
            reverse = sweeps[b] % 2 == 1
            residual[b] = _sweep(
                kk, w, b, reverse, tables, table_at, g, out, m, maximal, held, False, damping, work, peak
            )
            if flooding:
                collect(w, one, psi, m, g)
            sweeps[b] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def refresh(kk, w, instances, tables, table_at, g, m, held):
    """Sum-product messages of the factors with a held variable, to and from it: once before a run, as the constants
    that the others rest on, and once behind it, for beliefs."""
    work, peak = np.empty((4, w.widest)), np.empty(REGISTER)
    maximal = np.zeros(len(held), dtype=np.bool_)
    for b in instances:
        _sweep(kk, w, b, False, tables, table_at, g, g, m, maximal, held, True, 0.0, work, peak)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _joint(tables, at, g, gi, m, mi, n, cavity):
    """The sum of a table's entries times the cavities of both variables."""
    z = 0.0
    for r in range(n):
        row = 0.0
        for c in range(len(cavity)):
            row += tables[at + r * len(cavity) + c] * cavity[c]
        z += row * (g[gi + r] / m[mi + r])
    return z


@njit(cache=True, nogil=True, error_model="numpy")
def beliefs(w, instances, tables, table_at, table_of, tops, unit, g, m, unary_top, mu_at, mu_unary, mu_tables, value):
    """Sum-product beliefs and Bethe value sum_a PS(S_a) + sum_i (1 - degree_i) PS(g_i); marginals are added to mu."""
    want_mu = len(mu_unary) > 0
    cavity = np.empty(w.widest)
    for b in instances:
        total = 0.0
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            lo, hi = w.state_ptr[i], w.state_ptr[i + 1]
            z = 0.0
            for e in range(lo, hi):
                z += g[e]
            total += unit * (1.0 - (w.near_ptr[i + 1] - w.near_ptr[i])) * np.log(z) + unary_top[i]
            if want_mu:
                for e in range(lo, hi):
                    mu_unary[e] += g[e] / z
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            s = w.scope_ptr[f]
            gi, gj, mi, mj = w.state_ptr[w.scope[s]], w.state_ptr[w.scope[s + 1]], w.message_at[s], w.message_at[s + 1]
            ki, kj, at = mj - mi, w.message_at[s + 2] - mj, table_at[f]
            for c in range(kj):
                cavity[c] = g[gj + c] / m[mj + c]
            z = _joint(tables, at, g, gi, m, mi, ki, cavity[:kj])
            if z < TINY:
                # Both variables may have only states that all their messages are against.
                top = np.max(cavity[:kj])
                cavity[:kj] /= top
                total += unit * np.log(top)
                z = _joint(tables, at, g, gi, m, mi, ki, cavity[:kj])
            total += unit * np.log(z) + tops[table_of[f]]
            if want_mu:
                for r in range(ki):
                    n_i = g[gi + r] / m[mi + r]
                    # The order of operations is that of z: a point mass comes out as exactly one.
                    for c in range(kj):
                        mu_tables[mu_at[f] + r * kj + c] += tables[at + r * kj + c] * cavity[c] * n_i / z
        value[b] = total

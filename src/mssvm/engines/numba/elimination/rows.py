"""Kernels of elimination that know scores: loading, storing, domains, power sums of rows and their gradients.

The work vector holds ``lanes`` instances interleaved: entry k of instance ``lane`` is ``work[k * lanes + lane]``.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit


@njit(cache=True, nogil=True)
def load(program, layout, scores, b, lane, lanes, work):
    """Copy the instance's scores into their slots; forbidden states become -inf."""
    var_ptr, factor_ptr, unary_ptr, table_at, _ = layout
    unary, tables, allowed, first = scores
    for k in range(program.n_slots):
        work[k * lanes + lane] = 0.0
    v0, f0 = var_ptr[b], factor_ptr[b]
    for v in range(len(program.clamped)):
        p = unary_ptr[v0 + v]
        slot = program.unary_slot[v]
        if program.clamped[v]:
            work[slot * lanes + lane] += unary[p + first[v0 + v]]
        else:
            for k in range(unary_ptr[v0 + v + 1] - p):
                work[(slot + k) * lanes + lane] += unary[p + k] if allowed[p + k] else -np.inf
    for f in range(len(program.factor_slot)):
        source = table_at[f0 + f] + _clamp_offset(program, f, first, v0)
        slot, index = program.factor_slot[f], program.entry_at[f]
        for k in range(program.factor_size[f]):
            work[(slot + k) * lanes + lane] += tables[source + program.entry[index + k]]


@njit(cache=True, nogil=True)
def _clamp_offset(program, f, first, v0):
    offset = 0
    for c in range(program.clamp_ptr[f], program.clamp_ptr[f + 1]):
        offset += first[v0 + program.clamp_var[c]] * program.clamp_stride[c]
    return offset


@njit(cache=True, nogil=True)
def store(program, layout, scores, b, lane, lanes, grad, mu_unary, mu_tables):
    """Write the gradients of the slots to the marginals they belong to: the adjoint of ``load``."""
    var_ptr, factor_ptr, unary_ptr, _, mu_at = layout
    _, _, _, first = scores
    v0, f0 = var_ptr[b], factor_ptr[b]
    for v in range(len(program.clamped)):
        p = unary_ptr[v0 + v]
        slot = program.unary_slot[v]
        if program.clamped[v]:
            mu_unary[p : unary_ptr[v0 + v + 1]] = 0.0
            mu_unary[p + first[v0 + v]] = grad[slot * lanes + lane]
        else:
            for k in range(unary_ptr[v0 + v + 1] - p):
                mu_unary[p + k] = grad[(slot + k) * lanes + lane]
    for f in range(len(program.factor_slot)):
        size = program.factor_size[f]
        for c in range(program.clamp_ptr[f], program.clamp_ptr[f + 1]):
            v = v0 + program.clamp_var[c]
            size *= unary_ptr[v + 1] - unary_ptr[v]
        mu_tables[mu_at[f0 + f] : mu_at[f0 + f] + size] = 0.0
    for f in range(len(program.factor_slot)):  # factors that share a table are summed, so all are cleared before
        target = mu_at[f0 + f] + _clamp_offset(program, f, first, v0)
        slot, index = program.factor_slot[f], program.entry_at[f]
        for k in range(program.factor_size[f]):
            mu_tables[target + program.entry[index + k]] += grad[(slot + k) * lanes + lane]


@njit(cache=True, nogil=True)
def prepare(place, size, lanes, eps, max_spread, work, domain, shift):
    """Bring a step's inputs to one domain; returns whether that is scaled probabilities.

    An input of domain 0 holds scores; one of domain t > 0 holds x with score t * log x + shift. With ``max_spread`` of
    zero or less everything stays scores.
    """
    if max_spread <= 0.0:
        return False
    high = np.zeros((len(place), lanes))
    spread = np.zeros(lanes)
    for i in range(len(place)):
        x = work[place[i] * lanes : (place[i] + size[i]) * lanes]
        floor = 0.0 if domain[i] > 0.0 else -np.inf
        low = np.full(lanes, np.inf)
        high[i] = floor
        for k in range(size[i]):
            for lane in range(lanes):
                a = x[k * lanes + lane]
                high[i, lane] = max(high[i, lane], a)
                low[lane] = min(low[lane], a if a > floor else np.inf)
        for lane in range(lanes):
            if eps > 0.0 and high[i, lane] > floor:
                top, bottom = high[i, lane], low[lane]
                spread[lane] += domain[i] / eps * np.log(top / bottom) if floor == 0.0 else (top - bottom) / eps
    scaled = eps > 0.0 and spread.max() < max_spread
    for i in range(len(place)):
        if scaled or domain[i] > 0.0:
            x = work[place[i] * lanes : (place[i] + size[i]) * lanes]
            _convert(x, lanes, domain[i], eps if scaled else 0.0, high[i], shift[i])
    return scaled


@njit(cache=True, nogil=True)
def _convert(x, lanes, domain, target, high, shift):
    """Rewrite an input of one domain in another; in a domain t > 0 its greatest entry becomes 1.

    Lanes without a feasible entry (greatest entry 0 or -inf) stay as they are.
    """
    if domain > 0.0 and domain == target:
        for lane in range(lanes):
            top = high[lane] if high[lane] > 0.0 else 1.0
            shift[lane] += domain * np.log(top)
            high[lane] = 1.0 / top
        for k in range(len(x) // lanes):
            for lane in range(lanes):
                x[k * lanes + lane] *= high[lane]
        return
    for lane in range(lanes):
        top = high[lane]
        if domain > 0.0:
            for k in range(lane, len(x), lanes):
                x[k] = domain * np.log(x[k]) + shift[lane] if x[k] > 0.0 else -np.inf
            top = domain * np.log(top) + shift[lane] if top > 0.0 else -np.inf
            shift[lane] = 0.0
        if target > 0.0:
            shift[lane] = top if top > -np.inf else 0.0
            for k in range(lane, len(x), lanes):
                x[k] = np.exp((x[k] - shift[lane]) / target)


@njit(cache=True, nogil=True)
def reduce_rows(x, n, card, lanes, eps, scaled, out, at):
    """Write each lane's power sum of each of n rows, or its plain sum if the rows hold scaled probabilities."""
    # Unsigned indices spare the test for negative ones; counting on spares the division of a stepped range.
    one, step = np.uint64(1), np.uint64(lanes)
    row, target = np.uint64(0), np.uint64(at)
    for _ in range(n):
        for lane in range(lanes):
            first = row + np.uint64(lane)
            k, y = first, x[first]
            if scaled:
                for _ in range(card - 1):
                    k += step
                    y += x[k]
            else:
                for _ in range(card - 1):
                    k += step
                    y = max(y, x[k])
                if eps > 0.0 and y > -np.inf:
                    k, total = first, 0.0
                    for _ in range(card):
                        total += np.exp((x[k] - y) / eps)
                        k += step
                    y += eps * np.log(total)
            out[target] = y
            target += one
        row += step * np.uint64(card)


@njit(cache=True, nogil=True)
def weigh_rows(x, n, card, lanes, eps, scaled, grad, at):
    """Replace each lane's rows by their power sums' gradients times ``grad`` (at eps = 0: at the first maximiser)."""
    one, step = np.uint64(1), np.uint64(lanes)
    row, source = np.uint64(0), np.uint64(at)
    for _ in range(n):
        for lane in range(lanes):
            first = row + np.uint64(lane)
            g = grad[source]
            source += one
            if not scaled and g != 0.0:
                _exponentiate(x, first, card, step, eps)
            k, total = first, 0.0
            for _ in range(card):
                total += x[k]
                k += step
            factor = g / total if g != 0.0 else 0.0
            k = first
            for _ in range(card):
                x[k] = factor * x[k] if factor != 0.0 else 0.0
                k += step
        row += step * np.uint64(card)


@njit(cache=True, nogil=True)
def _exponentiate(x, first, card, step, eps):
    """Scores of one lane's row to unnormalised weights."""
    k, best = first, first
    for _ in range(card):
        if x[k] > x[best]:
            best = k
        k += step
    top = x[best]
    k = first
    for _ in range(card):
        x[k] = np.exp((x[k] - top) / eps) if eps > 0.0 else 0.0
        k += step
    x[best] = 1.0


@njit(cache=True, nogil=True)
def add_moments(x, n, card, eps, moments):
    """Take n rows of scores into every state's running PS_eps: its greatest score and the sum of exponentials."""
    top, total = moments
    for r in range(n):
        for j in range(card):
            a = x[r * card + j]
            if a > top[j]:
                total[j] = total[j] * np.exp((top[j] - a) / eps) + 1.0 if eps > 0.0 else 1.0
                top[j] = a
            elif eps > 0.0 and a > -np.inf:
                total[j] += np.exp((a - top[j]) / eps)

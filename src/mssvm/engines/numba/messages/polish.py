"""Local search over outputs by evaluated Q: coordinate ascent, and Gibbs sampling of exp(Q(y) / t) while t falls."""

from __future__ import annotations

import numpy as np
from numba import njit

from mssvm.engines.numba.messages.given import options


@njit(cache=True, nogil=True)
def mix(x):  # type: ignore[no-untyped-def]
    """SplitMix64: the next state of a counter and a well-mixed word made from it."""
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    z = x
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x, z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def uniform(word):  # type: ignore[no-untyped-def]
    """A number in (0, 1) from the upper 53 bits."""
    return (np.float64(word >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True, nogil=True)
def seeded(seed, stream):  # type: ignore[no-untyped-def]
    """State of the generator of one start; the same for an instance wherever it stands in a batch."""
    _, word = mix(np.uint64(seed))
    _, word = mix(word ^ np.uint64(stream))
    return word


@njit(cache=True, nogil=True)
def _ascend(w, b, g, free, unary, tables, y, eps, acc, room, stamp, out):  # type: ignore[no-untyped-def]
    lo, hi = w.var_ptr[b], w.var_ptr[b + 1]
    quiet, i = 0, lo
    while quiet < hi - lo:
        quiet += 1
        if free[i]:
            options(w, b, g, i, unary, tables, y, eps, acc, room, stamp, out)
            best = y[i]
            for x in range(w.state_ptr[i + 1] - w.state_ptr[i]):
                if out[x] > out[best]:
                    best = x
            # A gain within rounding could be undone by the next visit, for ever.
            if out[best] > out[y[i]] + 1e-11 * (1.0 + abs(out[best])):
                y[i] = best
                quiet = 0
        i = i + 1 if i + 1 < hi else lo


@njit(cache=True, nogil=True)
def ascend(w, which, g, free, unary, tables, y, eps, acc):  # type: ignore[no-untyped-def]
    """Change single outputs of y while that raises Q."""
    room, out = np.empty(w.widest), np.empty(w.widest)
    stamp = np.zeros(len(w.state_ptr), dtype=np.int64)
    for b in which:
        if g.forest[b]:
            _ascend(w, b, g, free, unary, tables, y, eps, acc, room, stamp, out)


@njit(cache=True, nogil=True)
def flip_cost(w, b, g, free):  # type: ignore[no-untyped-def]
    """Operations of one round over all outputs, roughly: states tried times members of the components touched."""
    total = 1.0
    for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
        if not free[i]:
            continue
        card = w.state_ptr[i + 1] - w.state_ptr[i]
        for k in range(w.near_ptr[i], w.near_ptr[i + 1]):
            f = w.slot_factor[w.near[k]]
            total += card
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                v = w.scope[s]
                if not g.outside[v]:
                    c = w.var_ptr[b] + g.component[v]
                    states = w.state_ptr[v + 1] - w.state_ptr[v]
                    total += (
                        8.0 * card * (g.last[c] - g.first[c]) * (states if g.last[c] - g.first[c] == 1 else states**2)
                    )
    return total


@njit(cache=True, nogil=True)
def _draw(out, card, t, word):  # type: ignore[no-untyped-def]
    top = -np.inf
    for x in range(card):
        top = out[x] if out[x] > top else top
    total = 0.0
    for x in range(card):
        out[x] = np.exp((out[x] - top) / t)
        total += out[x]
    left = uniform(word) * total
    for x in range(card):
        left -= out[x]
        if left <= 0.0 and out[x] > 0.0:
            return x
    return int(np.argmax(out[:card]))


@njit(cache=True, nogil=True)
def anneal(w, which, g, free, unary, tables, y, eps, hot, cold, rounds, budget, seed, stream, acc):  # type: ignore[no-untyped-def]
    """Gibbs rounds at temperatures falling geometrically from ``hot[b]`` to ``cold[b]``, then coordinate ascent."""
    room, out = np.empty(w.widest), np.empty(w.widest)
    stamp = np.zeros(len(w.state_ptr), dtype=np.int64)
    for b in which:
        if not g.forest[b]:
            continue
        n = min(rounds, int(budget / flip_cost(w, b, g, free)))
        state = seeded(seed, stream)
        for k in range(n):
            t = hot[b] * (cold[b] / hot[b]) ** (k / max(n - 1, 1))
            for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
                if free[i]:
                    options(w, b, g, i, unary, tables, y, eps, acc, room, stamp, out)
                    state, word = mix(state)
                    y[i] = _draw(out, w.state_ptr[i + 1] - w.state_ptr[i], t, word)
        _ascend(w, b, g, free, unary, tables, y, eps, acc, room, stamp, out)


@njit(cache=True, nogil=True)
def decode(w, which, score, dead, allowed, y):  # type: ignore[no-untyped-def]
    """First allowed state of the highest score, for every variable of the named instances."""
    for b in which:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            at = w.state_ptr[i]
            best, top = -1, -np.inf
            for x in range(w.state_ptr[i + 1] - at):
                if allowed[at + x]:
                    v = -np.inf if dead[at + x] > 0 else score[at + x]
                    if best < 0 or v > top:
                        best, top = x, v
            y[i] = best


@njit(cache=True, nogil=True)
def keep_better(w, which, value, y, best_value, best_y):  # type: ignore[no-untyped-def]
    """Remember y where its value beats the best so far (never where it is NaN)."""
    for b in which:
        if value[b] > best_value[b] or (best_value[b] == -np.inf and best_y[w.var_ptr[b]] < 0):
            best_value[b] = value[b] if value[b] == value[b] else -np.inf
            for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
                best_y[i] = y[i]


@njit(cache=True, nogil=True)
def changed(w, which, outside, y, last):  # type: ignore[no-untyped-def]
    """The named instances whose given variables differ from ``last``, which is brought up to date."""
    out = np.empty(len(which), dtype=np.int64)
    n = 0
    for b in which:
        same = True
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            same &= last[i] == y[i] or (last[i] >= 0 and not outside[i])
            last[i] = y[i]
        if not same:
            out[n] = b
            n += 1
    return out[:n]


@njit(cache=True, nogil=True)
def clamp(w, which, outside, y, source, nothing, out):  # type: ignore[no-untyped-def]
    """Copy ``source``, with ``nothing`` at every state of a given variable except y."""
    for b in which:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            for x in range(w.state_ptr[i + 1] - w.state_ptr[i]):
                e = w.state_ptr[i] + x
                out[e] = nothing if outside[i] and x != y[i] else source[e]


@njit(cache=True, nogil=True)
def propose(w, which, free, score, share, y, n_changed):  # type: ignore[no-untyped-def]
    """Move outputs to the state of highest score: of those that gain, the best ``share[b]``, no two in one factor."""
    for b in which:
        lo, hi = w.var_ptr[b], w.var_ptr[b + 1]
        gain, target = np.zeros(hi - lo), np.zeros(hi - lo, dtype=np.int64)
        n = 0
        for i in range(lo, hi):
            target[i - lo] = y[i]
            if not free[i]:
                continue
            at = w.state_ptr[i]
            for x in range(w.state_ptr[i + 1] - at):
                if score[at + x] > score[at + target[i - lo]]:
                    target[i - lo] = x
            gain[i - lo] = score[at + target[i - lo]] - score[at + y[i]]
            n += gain[i - lo] > 1e-9
        blocked = np.zeros(hi - lo, dtype=np.bool_)
        left = max(1, int(np.ceil(share[b] * n))) if n else 0
        n_changed[b] = 0
        ranked = np.argsort(-gain, kind="mergesort")
        for k in ranked:
            if left == 0 or not gain[k] > 1e-9:
                break
            if blocked[k]:
                continue
            y[lo + k] = target[k]
            n_changed[b] += 1
            left -= 1
            for e in range(w.near_ptr[lo + k], w.near_ptr[lo + k + 1]):
                f = w.slot_factor[w.near[e]]
                for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                    blocked[w.scope[s] - lo] = True


@njit(cache=True, nogil=True)
def noise(w, which, spread, seed, stream, m):  # type: ignore[no-untyped-def]
    """Random messages in log space, uniform on (-spread, 0), the same for an instance wherever it stands."""
    for b in which:
        state = seeded(seed, stream)
        first, last = w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]
        for e in range(w.message_at[first], w.message_at[last]):
            state, word = mix(state)
            m[e] = -spread * uniform(word)


@njit(cache=True, nogil=True)
def restore(w, which, source, y):  # type: ignore[no-untyped-def]
    """Copy the states of the named instances."""
    for b in which:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            y[i] = source[i]


@njit(cache=True, nogil=True)
def hairs(w, which, seed, out):  # type: ignore[no-untyped-def]
    """Seeded numbers in (0, 1), the same for an instance wherever it stands in a batch."""
    for b in which:
        state = seeded(seed, 1 << 20)
        for e in range(w.state_ptr[w.var_ptr[b]], w.state_ptr[w.var_ptr[b + 1]]):
            state, word = mix(state)
            out[e] = uniform(word)

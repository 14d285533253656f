"""Local search over regions of outputs, exact inside each: max_y PS_h[eps_h] theta (paper eq. 5), all of it compiled.

A region is a few outputs near each other; all others are held at their states. Arc consistency removes what that rules
out, and what is left of the region, with the hidden variables it reaches, is eliminated in small tables: hidden ones
summed, then the outputs maximised. Only what the region touches is evaluated again, thousands of regions a second; the
difference that new outputs make is that of the functions which are left when the hidden variables are gone.

Noise on the outputs' scores (Gumbel's, times a temperature) turns the best outputs of a region into random good ones:
cooled down again and again, the walk leaves local optima without ever leaving what is possible.

Functions are scaled probabilities. What is found is a suggestion: callers evaluate it in log space.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
from numpy.typing import NDArray

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.uai.support import Support, Wiring, arc_consistent

# Variables, functions and axes of a function in one region, and entries of all its functions together.
MOST_VARIABLES, MOST_FUNCTIONS, MOST_AXES, ARENA = 512, 4096, 20, 1 << 19
SMALLEST = 1e-300
# Regions have up to so many outputs, at least this power of them, in tables of so many entries.
LARGEST, LEAST_POWER, ENTRIES = 400.0, 0.4, 1 << 12
# Temperatures from which a cycle cools down, one of them at random; regions of the first, and how cycles grow.
HEATS, FIRST, GROWTH = (0.15, 0.3, 0.6), 300, 1.3
MOST_REGIONS = 20_000
# What ``workspace`` makes.
Space = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Bools, Floats, NDArray[np.int8]]
SKIPPED = 0.15  # of the outputs on the way are not part of a region, so that regions differ


class Walk:
    """A walk from region to region, in cycles of cooling; ``states`` are possible outputs, whose value is ``value``."""

    def __init__(self, support: Support, eps_h: float, seed: int) -> None:
        i = support.instance
        self.support, self.eps_h, self.rng = support, eps_h, np.random.default_rng(seed)
        # Unary scores and tables in one vector, where the factors' tables then begin later.
        at = support.wiring[5] + len(i.unary)
        self.wiring = (*support.wiring[:5], at, *support.wiring[6:])
        self.scores = np.concatenate([i.unary, i.tables])
        self.prob = np.exp(self.scores / (eps_h or 1.0))
        self.free = i.output & ~i.clamped
        self.length, self.done, self.heat, self.rate = FIRST, 0, 0.0, 0.0

    def restart(self, states: Ints, value: float) -> None:
        """Go on from these outputs, whose value is known."""
        self.states, self.value = states.copy(), value

    def run(self, seconds: float, lower: float) -> tuple[bool, Ints | None]:
        """Walk for about so long, or to the end of a cycle: whether that is reached, and outputs better than ``lower``
        if there were some."""
        if self.done == 0:
            self.heat = float(self.rng.choice(HEATS))
        began, n = monotonic(), min(max(20, int(self.rate * seconds)), self.length - self.done)
        heat = self.heat * (1.0 - np.array([self.done, self.done + n]) / self.length)
        limits = np.array([ENTRIES, min(LARGEST, float(self.free.sum())), LEAST_POWER])
        progress, best = np.array([self.value, lower]), self.states.copy()
        walk(
            self.wiring, self.support.hard, self.scores, self.prob, self.support.instance.unary > -np.inf, self.free,
            self.states, self.rng.random((n, 64)), heat, limits, self.eps_h, progress, best,
        )  # fmt: skip
        self.rate, self.value = n / max(monotonic() - began, 1e-6), float(progress[0])
        self.done += n
        ended = self.done >= self.length
        if ended:
            self.length, self.done = min(int(GROWTH * self.length), MOST_REGIONS), 0
        return ended, best if progress[1] > lower else None


@njit(cache=True, nogil=True)
def workspace() -> Space:
    """Local variables (names, states left), functions (scopes, lengths, places), adjacency, entries, choices."""
    ints = np.int64
    return (
        np.zeros(MOST_VARIABLES, dtype=ints), np.zeros((MOST_VARIABLES, 32), dtype=ints),
        np.zeros(MOST_VARIABLES, dtype=ints), np.zeros((MOST_FUNCTIONS, MOST_AXES), dtype=ints),
        np.zeros(MOST_FUNCTIONS, dtype=ints), np.zeros(MOST_FUNCTIONS, dtype=ints),
        np.zeros((MOST_VARIABLES, MOST_VARIABLES), dtype=np.bool_), np.zeros(ARENA), np.zeros(ARENA, dtype=np.int8),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _around(centre: int, most: int, wiring: Wiring, free: Bools, draws: Floats, seen: Bools, queue: Ints) -> int:
    """Up to ``most`` free outputs near ``centre``, itself first; returns how many, in ``queue``."""
    near_ptr, near, ptr, scope = wiring[0], wiring[1], wiring[2], wiring[3]
    seen[:] = False
    seen[centre] = True
    queue[0] = centre
    head, tail, found, at = 0, 1, 0, 0
    while head < tail and found < most:
        v = queue[head]
        head += 1
        at += 1
        if free[v] and (v == centre or draws[at % len(draws)] > SKIPPED):
            # What was read from the queue is not needed any more, so what is found takes its place.
            queue[found] = v
            found += 1
        for e in range(near_ptr[v], near_ptr[v + 1]):
            for a in range(ptr[near[e]], ptr[near[e] + 1]):
                if not seen[scope[a]]:
                    seen[scope[a]] = True
                    queue[tail] = scope[a]
                    tail += 1
    return found


@njit(cache=True, nogil=True)
def _collect(
    n_region: int, queue: Ints, wiring: Wiring, left: Bools, open_: Bools, local: Ints, space: Space
) -> tuple[int, int]:
    """Name the open outputs of the region and the open hidden variables they reach; returns how many of both."""
    near_ptr, near, ptr, scope, unary_ptr = wiring[0], wiring[1], wiring[2], wiring[3], wiring[8]
    name, states, size = space[0], space[1], space[2]
    local[:] = -1
    n = 0
    for k in range(n_region):
        if open_[queue[k]]:
            local[queue[k]], name[n] = n, queue[k]
            n += 1
    n_outputs, head = n, 0
    while head < n:
        v = name[head]
        size[head] = 0
        for j in range(unary_ptr[v], unary_ptr[v + 1]):
            if left[j]:
                states[head, size[head]] = j - unary_ptr[v]
                size[head] += 1
        head += 1
        for e in range(near_ptr[v], near_ptr[v + 1]):
            for a in range(ptr[near[e]], ptr[near[e] + 1]):
                u = scope[a]
                if open_[u] and local[u] < 0:
                    if n == MOST_VARIABLES:
                        return n_outputs, -1
                    local[u], name[n] = n, u
                    n += 1
    return n_outputs, n


@njit(cache=True, nogil=True)
def _order(
    n: int, n_outputs: int, most: int, wiring: Wiring, local: Ints, old: Ints, draws: Floats, space: Space,
    position: Ints,
) -> bool:  # fmt: skip
    """Greedily, the smallest clique first, hidden variables before outputs; outputs of a clique with over ``most``
    entries are held, at random, until it fits. Returns whether that does."""
    near_ptr, near, ptr, scope = wiring[0], wiring[1], wiring[2], wiring[3]
    name, states, size, adjacent = space[0], space[1], space[2], space[6]
    adjacent[:n, :n] = False
    for v in range(n):
        for e in range(near_ptr[name[v]], near_ptr[name[v] + 1]):
            for a in range(ptr[near[e]], ptr[near[e] + 1]):
                if local[scope[a]] >= 0:
                    adjacent[v, local[scope[a]]] = True
    clique, position[:n] = np.ones(n), -1
    for v in range(n):
        adjacent[v, v] = True
        for u in range(n):
            if adjacent[v, u]:
                clique[v] *= size[u]
    members = np.zeros(n, dtype=np.int64)
    for p in range(n):
        best, first, last = -1, n_outputs if p < n - n_outputs else 0, n if p < n - n_outputs else n_outputs
        for v in range(first, last):
            if position[v] < 0 and (best < 0 or clique[v] < clique[best]):
                best = v
        m = 0
        for u in range(n):
            if adjacent[best, u]:
                members[m] = u
                m += 1
        start = int(draws[p % len(draws)] * m)
        for k in range(m):
            u = members[(start + k) % m]
            if clique[best] > most and u < n_outputs and size[u] > 1:
                for v in range(n):
                    if adjacent[u, v]:
                        clique[v] /= size[u]
                size[u], states[u, 0], old[u] = 1, states[u, old[u]], 0
        if clique[best] > most:
            return False
        position[best] = p
        for k in range(m):
            v = members[k]
            if v == best:
                continue
            adjacent[v, best] = False
            clique[v] /= size[best]
            for i in range(m):
                u = members[i]
                if u != best and not adjacent[v, u]:
                    adjacent[v, u] = True
                    clique[v] *= size[u]
    return True


@njit(cache=True, nogil=True)
def _functions(
    n: int, n_outputs: int, wiring: Wiring, prob: Floats, local: Ints, chosen: Ints, noise: Floats, seen_factor: Ints,
    stamp: int, space: Space,
) -> tuple[int, int]:  # fmt: skip
    """Tables around the local variables, cut down to what is left and open; returns how many and their entries."""
    near_ptr, near, ptr, scope, stride, table_at, _, _, unary_ptr = wiring
    name, states, size, scopes, axes, at, _, arena, _ = space
    count, used = 0, 0
    for k in range(n):
        v = name[k]
        if count == MOST_FUNCTIONS or used + size[k] > len(arena):
            return -1, 0
        scopes[count, 0], axes[count], at[count] = k, 1, used
        for j in range(size[k]):
            arena[used + j] = prob[unary_ptr[v] + states[k, j]] * (noise[k, j] if k < n_outputs else 1.0)
        used += size[k]
        count += 1
    for k in range(n):
        for e in range(near_ptr[name[k]], near_ptr[name[k] + 1]):
            f = near[e]
            if seen_factor[f] == stamp:
                continue
            seen_factor[f] = stamp
            base, m, entries = table_at[f], 0, 1
            if count == MOST_FUNCTIONS:
                return -1, 0
            for a in range(ptr[f], ptr[f + 1]):
                u = local[scope[a]]
                if u < 0:
                    base += stride[a] * chosen[scope[a]]
                else:
                    scopes[count, m] = u
                    m, entries = m + 1, entries * size[u]
            if used + entries > len(arena) or m > MOST_AXES:
                return -1, 0
            axes[count], at[count] = m, used
            for place in range(entries):
                rest, source = place, base
                for a in range(ptr[f + 1] - 1, ptr[f] - 1, -1):
                    u = local[scope[a]]
                    if u >= 0:
                        source += stride[a] * states[u, rest % size[u]]
                        rest //= size[u]
                arena[used + place] = prob[source]
            used += entries
            count += 1
    return count, used


@njit(cache=True, nogil=True)
def _strides(f: int, clique: Ints, m: int, size: Ints, space: Space, out: Ints) -> None:
    """How far a step along each axis of a clique moves in function f."""
    scopes, axes = space[3], space[4]
    for a in range(m):
        out[a] = 0
    step = 1
    for b in range(axes[f] - 1, -1, -1):
        for a in range(m):
            if clique[a] == scopes[f, b]:
                out[a] = step
        step *= size[scopes[f, b]]


@njit(cache=True, nogil=True)
def _eliminate(
    v: int, members: Ints, n_members: int, maximise: bool, clique: Ints, m: int, count: int, used: int, space: Space,
    strides: Ints, digit: Ints, place: Ints,
) -> int:  # fmt: skip
    """A new function without v, which is the last of the clique; notes the best states of v where it maximises."""
    size, scopes, axes, at, arena, choice = space[2], space[3], space[4], space[5], space[7], space[8]
    entries = 1
    for a in range(m - 1):
        scopes[count, a] = clique[a]
        entries *= size[clique[a]]
        digit[a] = 0
    axes[count], at[count] = m - 1, used
    if used + entries > len(arena):
        return -1
    for i in range(n_members):
        _strides(members[i], clique, m, size, space, strides[i])
        place[i] = at[members[i]]
    top = SMALLEST
    for k in range(entries):
        total, best = 0.0, 0
        for j in range(size[v]):
            x = 1.0
            for i in range(n_members):
                x *= arena[place[i] + j * strides[i, m - 1]]
            if not maximise:
                total += x
            elif x > total:
                total, best = x, j
        arena[used + k] = total
        if maximise:
            choice[used + k] = best
        top = max(top, total)
        for a in range(m - 2, -1, -1):
            digit[a] += 1
            if digit[a] < size[clique[a]]:
                for i in range(n_members):
                    place[i] += strides[i, a]
                break
            for i in range(n_members):
                place[i] -= (size[clique[a]] - 1) * strides[i, a]
            digit[a] = 0
    for k in range(entries):
        arena[used + k] /= top
    return entries


@njit(cache=True, nogil=True)
def _score(f: int, assigned: Ints, space: Space) -> float:
    """Logarithm of a function's entry."""
    size, scopes, axes, at, arena = space[2], space[3], space[4], space[5], space[7]
    place = 0
    for a in range(axes[f]):
        place = place * size[scopes[f, a]] + assigned[scopes[f, a]]
    return float(np.log(max(arena[at[f] + place], SMALLEST)))


@njit(cache=True, nogil=True)
def _solve(
    n: int, n_outputs: int, count: int, used: int, position: Ints, old: Ints, maximise_hidden: bool, noise: Floats,
    new: Ints, space: Space,
) -> float:  # fmt: skip
    """Eliminate everything; writes the best outputs to ``new`` and returns by how much they are better than ``old``,
    noise aside; NaN if the functions do not fit."""
    size, scopes, axes, at, choice = space[2], space[3], space[4], space[5], space[8]
    inverse, head, following = np.zeros(n, dtype=np.int64), np.full(n, -1), np.full(MOST_FUNCTIONS, -1)
    for v in range(n):
        inverse[position[v]] = v
    for f in range(count):
        if axes[f]:
            p = n
            for a in range(axes[f]):
                p = min(p, position[scopes[f, a]])
            following[f], head[p] = head[p], f
    message = np.zeros(n, dtype=np.int64)
    clique, inside = np.zeros(MOST_AXES + 1, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    members, digit = np.zeros(MOST_FUNCTIONS, dtype=np.int64), np.zeros(MOST_AXES + 1, dtype=np.int64)
    strides, place = np.zeros((256, MOST_AXES + 1), dtype=np.int64), np.zeros(256, dtype=np.int64)
    left_count = 0
    remaining = np.zeros(MOST_FUNCTIONS, dtype=np.int64)
    for p in range(n):
        v = inverse[p]
        if p == n - n_outputs:
            for q in range(p, n):
                f = head[q]
                while f >= 0:
                    remaining[left_count] = f
                    left_count += 1
                    f = following[f]
        n_members, m = 0, 0
        inside[:] = False
        f = head[p]
        while f >= 0:
            members[n_members] = f
            n_members += 1
            for a in range(axes[f]):
                inside[scopes[f, a]] = True
            f = following[f]
        # Last eliminated first, v itself last.
        for q in range(n - 1, p - 1, -1):
            if inside[inverse[q]]:
                if m > MOST_AXES:
                    return np.nan
                clique[m] = inverse[q]
                m += 1
        if m > MOST_AXES or n_members > len(place) or count == MOST_FUNCTIONS:
            return np.nan
        maximise = v < n_outputs or maximise_hidden
        entries = _eliminate(v, members, n_members, maximise, clique, m, count, used, space, strides, digit, place)
        if entries < 0:
            return np.nan
        message[p] = count
        if m > 1:
            q = position[clique[m - 2]]
            following[count], head[q] = head[q], count
        used += entries
        count += 1
    for p in range(n - 1, n - n_outputs - 1, -1):
        f, index = message[p], 0
        for a in range(axes[f]):
            index = index * size[scopes[f, a]] + new[scopes[f, a]]
        new[inverse[p]] = choice[at[f] + index]
    delta = 0.0
    for k in range(left_count):
        delta += _score(remaining[k], new, space) - _score(remaining[k], old, space)
    for v in range(n_outputs):
        delta -= np.log(noise[v, new[v]]) - np.log(noise[v, old[v]])
    return delta


@njit(cache=True, nogil=True)
def walk(
    wiring: Wiring, hard: Bools, tables: Floats, prob: Floats, base: Bools, free: Bools, states: Ints, draws: Floats,
    heat: Floats, limits: Floats, eps: float, progress: Floats, best_states: Ints,
) -> None:  # fmt: skip
    """One region per row of ``draws``, the temperature falling from ``heat[0]`` to ``heat[1]``.

    ``states`` are possible outputs, and changed; ``progress`` is their value and the best one seen. ``limits``: entries
    of a table, outputs of a region at most and, as a power of that, at least.
    """
    unary_ptr, n_vars = wiring[8], len(free)
    space = workspace()
    seen, queue = np.zeros(n_vars, dtype=np.bool_), np.zeros(n_vars, dtype=np.int64)
    local, position = np.zeros(n_vars, dtype=np.int64), np.zeros(MOST_VARIABLES, dtype=np.int64)
    open_, seen_factor = np.zeros(n_vars, dtype=np.bool_), np.full(len(hard), -1)
    held, left = np.zeros(n_vars, dtype=np.bool_), np.zeros(len(base), dtype=np.bool_)
    old, new = np.zeros(MOST_VARIABLES, dtype=np.int64), np.zeros(MOST_VARIABLES, dtype=np.int64)
    noise, chosen = np.ones((MOST_VARIABLES, 32)), np.zeros(n_vars, dtype=np.int64)
    centres = np.flatnonzero(free)
    power = 1.0 / eps if eps > 0.0 else 1.0
    for k in range(len(draws)):
        t = heat[0] + (heat[1] - heat[0]) * k / len(draws)
        most = int(limits[1] ** (limits[2] + (1.0 - limits[2]) * draws[k, 1]))
        n_region = _around(centres[int(draws[k, 0] * len(centres))], most, wiring, free, draws[k], seen, queue)
        held[:] = free
        for i in range(n_region):
            held[queue[i]] = False
        for v in range(n_vars):
            for j in range(unary_ptr[v], unary_ptr[v + 1]):
                left[j] = base[j] if not held[v] else j - unary_ptr[v] == states[v]
        arc_consistent(wiring, hard, tables, left)
        for v in range(n_vars):
            n_left = 0
            for j in range(unary_ptr[v], unary_ptr[v + 1]):
                if left[j]:
                    chosen[v] = j - unary_ptr[v]
                    n_left += 1
            open_[v] = n_left > 1
        n_outputs, n = _collect(n_region, queue, wiring, left, open_, local, space)
        if n_outputs == 0 or n < 0:
            continue
        name, size = space[0], space[2]
        for v in range(n_outputs):
            for j in range(size[v]):
                if space[1][v, j] == states[name[v]]:
                    old[v] = j
        if not _order(n, n_outputs, limits[0], wiring, local, old, draws[k], space, position):
            continue
        for v in range(n_outputs):
            for j in range(size[v]):
                u = draws[k, 2 + (7 * v + 3 * j) % (draws.shape[1] - 2)]
                noise[v, j] = np.exp(-power * t * np.log(-np.log(u * 0.999998 + 1e-6)))
            if size[v] == 1:
                local[name[v]], chosen[name[v]] = -1, states[name[v]]
        count, used = _functions(n, n_outputs, wiring, prob, local, chosen, noise, seen_factor, k, space)
        if count < 0:
            continue
        delta = _solve(n, n_outputs, count, used, position, old, eps == 0.0, noise, new, space)
        if np.isnan(delta):
            continue
        for v in range(n_outputs):
            states[name[v]] = space[1][v, new[v]]
        progress[0] += delta / power
        if progress[0] > progress[1] + 1e-9:
            progress[1] = progress[0]
            best_states[:] = states

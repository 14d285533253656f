"""The messages of ``abreast`` for few instances of one grid: registers hold several rows of it.

A sweep meets the variables row by row. What it does at (r, c) needs the variable to the left and the one above that to
the right, so all variables with the same c + 2 r, a wave, may be done side by side: every message is the one of the
sweep, bit by bit. The rows of a wave lie one behind the other, those of the instances of a row as well, so that the
neighbours of eight variables are eight numbers in memory too, wherever they begin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types, uint64
from numba.extending import intrinsic

from mssvm.core.arrays import Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.messages.abreast import EVERY, NONE, MessageFamily
from mssvm.engines.numba.messages.products import SQUARES, update
from mssvm.engines.numba.vector import WIDTH, data, load, onward, pointer_to, splat, store, times

L = WIDTH
# The most instances at a time: with more, registers of ``abreast`` are as full.
MOST = 4
# Fewer threads seldom have so few instances each that this is worth compiling.
THREADS = 4
# Messages of a variable: from the left, to the left, from above, to above.
FROM_LEFT, TO_LEFT, FROM_ABOVE, TO_ABOVE = range(4)
PARTS = 11  # of ``run``'s space: messages, twice, scores and two kinds of products
_intrinsic: Any = intrinsic


class Lattice(NamedTuple):
    """A family whose graph is a grid numbered row by row, with one table across and one down.

    ``scores`` and ``messages``: where those of every variable begin, -1 where it has no message of the four kinds. For
    0, across, and 1, down: ``tables``, where they begin; ``behind``, whether the first (0) or second (1) variable of a
    factor is the later one. ``first``: which of the two comes first in products, of messages from before and from
    behind. ``strides``: numbers from one state of a variable to the next, by how many instances there are.
    """

    rows: int
    columns: int
    states: int
    scores: Ints
    messages: Ints
    tables: Ints
    behind: Ints
    first: Ints
    strides: Ints

    def space(self) -> int:
        """Doubles that ``run`` needs to work in."""
        return PARTS * self.states * int(self.strides[MOST])


_NONE = np.zeros(0, dtype=np.int64)
NO_LATTICE = Lattice(0, 0, 0, _NONE, np.zeros((4, 0), np.int64), _NONE, _NONE, _NONE, np.zeros(MOST + 1, np.int64))


def lattice(family: MessageFamily) -> Lattice | None:
    """The grid a family consists of, if that is what it is."""
    steps, n, k = family.swept, family.n_vars, family.widest
    u, v = steps[:, :2].min(axis=1), steps[:, :2].max(axis=1)
    columns = int((v - u).max())
    if not 2 <= columns < n or n % columns or not 2 <= k <= SQUARES or (steps[:, 7:] != k).any():
        return None
    if not _in_waves(u, v, n, columns) or not np.array_equal(family.paths[:, 4], v * k):
        return None
    row, down = np.arange(len(steps)), (v - u == columns).astype(np.int64)
    behind = (steps[:, 1] > steps[:, 0]).astype(np.int64)
    messages = np.full((4, n), -1)
    messages[2 * down, v] = steps[row, 4 + behind]
    messages[2 * down + 1, v] = steps[row, 5 - behind]
    tables = [np.unique(steps[down == d, 6]) for d in range(2)]
    sides = [np.unique(behind[down == d]) for d in range(2)]
    first = [np.unique(order) for order in _orders(messages, columns)]
    if any(len(found) != 1 for found in (*tables, *sides, *first)):
        return None
    table, side, turn = (np.concatenate(found).astype(np.int64) for found in (tables, sides, first))
    rows = n // columns
    strides = [(rows * (columns + 1) * width // L + columns + 2 * rows + 4) * L | L for width in range(MOST + 1)]
    return Lattice(rows, columns, k, k * np.arange(n), messages, table, side, turn, np.array(strides))


def _in_waves(u: Ints, v: Ints, n: int, columns: int) -> bool:
    """Whether factors from u to v are those of a grid, and met in an order that waves agree with: a variable after
    those to the left, above, and above to the right, and its factor up before that to the left."""
    node = np.arange(n)
    ends = np.stack([node - columns, np.where(node % columns, node - 1, -1)], axis=1)
    order = np.lexsort((u, v))
    there = ends >= 0
    if not np.array_equal(u[order], ends[there]) or not np.array_equal(v[order], np.nonzero(there)[0]):
        return False
    turn = np.full((n, 2), -1)
    turn[there] = order
    above, left = turn.T
    last = turn.max(axis=1).reshape(-1, columns)
    return bool(
        np.all((above < left)[there.all(axis=1)])
        and np.all(np.abs(above - left)[there.all(axis=1)] == 1)
        and np.all(last[:, 1:] > last[:, :-1])
        and np.all(last[1:] > last[:-1])
        and np.all(last[1:, :-1] > last[:-1, 1:])
    )


def _orders(messages: Ints, columns: int) -> tuple[Ints, Ints]:
    """Whether the message of a factor down lies first: of the two from before, of the two from behind."""
    both = (messages[FROM_LEFT] >= 0) & (messages[FROM_ABOVE] >= 0)
    left, above = messages[FROM_LEFT, both], messages[FROM_ABOVE, both]
    right = messages[TO_LEFT].reshape(-1, columns)[:-1, 1:]
    below = messages[TO_ABOVE].reshape(-1, columns)[1:, :-1]
    return above < left, below < right


@_intrinsic
def _word(typing: Any, array: Any, at: Any) -> Any:
    """Eight bytes of an array from entry ``at`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.gep(data(context, builder, signature.args[0], args[0]), [args[1]])
        out = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        out.align = 1
        return out

    return types.uint64(array, types.intp), code


@njit(cache=True, nogil=True, error_model="numpy")
def _places(rows, columns, width):
    """Of every wave, and the two behind the last: its first row, how many it has, and where that one lies, with room
    for a register behind the last row, and before all for a wave."""
    n = columns + 2 * rows
    top, count, at = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    place = rows * width + L
    for t in range(n):
        top[t] = max(0, (t - columns + 2) // 2)
        count[t] = max(0, min(rows - 1, t // 2) + 1 - top[t])
        at[t] = place
        place += count[t] * width + L
    return top, count, at


@njit(cache=True, nogil=True, error_model="numpy")
def _product(psi, at, n, stride, count, m, one, two, g, to):
    """psi times two messages, for ``count`` numbers from each place on."""
    for x in range(0, n * stride, stride):
        for e in range(x, x + count, L):
            store(g, to + e, times(times(load(psi, at + e), load(m, one + e)), load(m, two + e)))


@njit(cache=True, nogil=True, error_model="numpy")
def _factors(
    n, stride, tables, at, last, g, m, m_out, of_u, of_v, u, v, other_u, other_v, to_u, to_v, count, roles, held,
    damped, peak,
):  # fmt: skip
    """Update the factors of ``count`` pairs of variables that lie from u and v on, v in the second place if ``last``.

    ``of_u`` and ``of_v``: where the products are; ``other_u`` and ``other_v``: the messages they lack.
    """
    for e in range(0, count, L):
        fixed = NONE if count - e >= L else EVERY << uint64(8 * (count - e))
        if len(held):
            fixed |= _word(held, u + e) | _word(held, v + e)
            if fixed == EVERY:
                continue
        if last:
            i, j, ci, cj, mi, mj = of_u + e, of_v + e, other_u + e, other_v + e, to_u + e, to_v + e
            ri, rj = _word(roles, u + e), _word(roles, v + e)
        else:
            i, j, ci, cj, mi, mj = of_v + e, of_u + e, other_v + e, other_u + e, to_v + e, to_u + e
            ri, rj = _word(roles, v + e), _word(roles, u + e)
        peak = update(n, False, tables, at, g, g, i, j, m, m_out, ci, cj, mi, mj, ri, rj, fixed, damped, stride, peak)
    return peak


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(grid, width, stride, places, reverse, flooding, tables, psi, g, m, m_out, roles, held, damped):
    """As that of ``abreast``; returns the largest changes."""
    top, rows, at = places
    k, peak, n = grid.states, splat(0.0), len(top) - 2
    part = k * stride
    for step in range(n):
        t = n - 1 - step if reverse else step
        r, count, v = top[t], rows[t] * width, at[t]
        right = at[t + 1] + (r - top[t + 1]) * width + TO_LEFT * part
        below = at[t + 2] + (r + 1 - top[t + 2]) * width + TO_ABOVE * part
        one, two = (below, right) if grid.first[1] else (right, below)
        _product(psi, v, k, stride, count, m, one, two, g, 0)
        for turn in range(2):
            # Above first, then to the left; the other way round in reverse.
            down = (turn == 0) != reverse
            skip = 1 if down and r == 0 else 0
            pairs = rows[t] - skip
            if down:
                u = at[t - 2] + (r + skip - 1 - top[t - 2]) * width if pairs > 0 else 0
                other_u = at[t - 1] + (r + skip - 1 - top[t - 1]) * width + TO_LEFT * part if pairs > 0 else 0
                other_v, to_u, to_v = FROM_LEFT, TO_ABOVE, FROM_ABOVE
            else:
                pairs = min(pairs, (t + 1) // 2 - r)
                u = at[t - 1] + (r - top[t - 1]) * width if pairs > 0 else 0
                other_u = at[t + 1] + (r + 1 - top[t + 1]) * width + TO_ABOVE * part
                other_v, to_u, to_v = FROM_ABOVE, TO_LEFT, FROM_LEFT
            here, kind = v + skip * width, 1 if down else 0
            peak = _factors(
                k, stride, tables, grid.tables[kind], grid.behind[kind] == 1, g, m, m_out, u, skip * width, u, here,
                other_u, here + other_v * part, here + to_u * part, here + to_v * part, pairs * width, roles, held,
                damped, peak,
            )  # fmt: skip
        if not flooding:
            _before(grid, stride, v, count, psi, m, g)
    return peak


@njit(cache=True, nogil=True, error_model="numpy")
def _before(grid, stride, at, count, psi, m, g):
    """The products of the messages from before."""
    part = grid.states * stride
    left, above = at + FROM_LEFT * part, at + FROM_ABOVE * part
    one, two = (above, left) if grid.first[0] else (left, above)
    _product(psi, at, grid.states, stride, count, m, one, two, g, at)


@njit(cache=True, nogil=True, error_model="numpy")
def _whole(grid, width, stride, places, psi, m, g):
    """The products of all messages, in the order of a sweep: from above, the left, the right, below."""
    top, rows, at = places
    part = grid.states * stride
    for t in range(len(top) - 2):
        v = at[t]
        right = at[t + 1] + (top[t] - top[t + 1]) * width + TO_LEFT * part
        below = at[t + 2] + (top[t] + 1 - top[t + 2]) * width + TO_ABOVE * part
        for x in range(0, part, stride):
            for e in range(x, x + rows[t] * width, L):
                near = times(times(load(psi, v + e), load(m, v + FROM_ABOVE * part + e)), load(m, v + e))
                store(g, v + e, times(times(near, load(m, right + e)), load(m, below + e)))


@njit(cache=True, nogil=True, error_model="numpy")
def _cells(grid, width, places):
    """Where every variable lies."""
    top, _, at = places
    out = np.empty(grid.rows * grid.columns, np.int64)
    for r in range(grid.rows):
        for c in range(grid.columns):
            t = c + 2 * r
            out[r * grid.columns + c] = at[t] + (r - top[t]) * width
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _read(row, first, starts, cells, to, k, stride, lanes):
    """Vectors of one instance, which begin at ``starts`` from ``first`` on, into its lane, which begins at ``to``."""
    source, target = pointer_to(row), pointer_to(lanes)
    for i in range(len(cells)):
        if starts[i] >= 0:
            a, b = onward(source, first + starts[i]), onward(target, to + cells[i])
            for x in range(k):
                b[x * stride] = a[x]


@njit(cache=True, nogil=True, error_model="numpy")
def _write(lanes, to, cells, k, stride, row, first, starts):
    """As ``_read``, the other way."""
    source, target = pointer_to(lanes), pointer_to(row)
    for i in range(len(cells)):
        if starts[i] >= 0:
            a, b = onward(source, to + cells[i]), onward(target, first + starts[i])
            for x in range(k):
                b[x] = a[x * stride]


@njit(cache=True, nogil=True, error_model="numpy")
def _group(
    grid, w, group, width, tables, psi, g, m, maximal, held, damping, flooding, n_sweeps, tolerance, sweeps, residual,
    space,
):  # fmt: skip
    """Sweeps of a few instances, all in the same direction."""
    stride, places = grid.strides[width], _places(grid.rows, grid.columns, width)
    part = grid.states * stride
    lanes_m, lanes_psi, lanes_g = space[: 4 * part], space[4 * part : 5 * part], space[5 * part : 6 * part]
    spare, lanes_next = space[6 * part : 7 * part], space[7 * part : 11 * part]
    space[: 6 * part] = 1.0
    roles, fixed = np.zeros(stride, np.uint8), np.zeros(stride if len(held) else 0, np.uint8)
    left, peaks, running, k = np.full(width, n_sweeps), np.empty(L), len(group), grid.states
    cells = _cells(grid, width, places)
    for lane in range(width):
        b = group[min(lane, len(group) - 1)]
        first, messages = w.var_ptr[b], w.message_at[w.scope_ptr[w.factor_ptr[b]]]
        _read(psi, w.state_ptr[first], grid.scores, cells, lane, k, stride, lanes_psi)
        for side in range(4):
            _read(m, messages, grid.messages[side], cells, side * part + lane, k, stride, lanes_m)
        for i in range(len(cells)):
            roles[cells[i] + lane] = maximal[first + i]
            if len(held):
                fixed[cells[i] + lane] = held[first + i]
    if flooding:
        lanes_next[:] = lanes_m
    top, rows, at = places
    for t in range(len(top) - 2):
        _before(grid, stride, at[t], rows[t] * width, lanes_psi, lanes_m, lanes_g)
    reverse = sweeps[group[0]] % 2 == 1
    while running:
        into = lanes_next if flooding else lanes_m
        peak = _sweep(
            grid, width, stride, places, reverse, flooding, tables, lanes_psi, lanes_g, lanes_m, into, roles, fixed,
            damping > 0.0,
        )  # fmt: skip
        store(peaks, 0, peak)
        if flooding:
            lanes_m, lanes_next = lanes_next, lanes_m
            for t in range(len(top) - 2):
                _before(grid, stride, at[t], rows[t] * width, lanes_psi, lanes_m, lanes_g)
        collected = False
        for lane in range(len(group)):
            if left[lane] == 0:
                continue
            b = group[lane]
            left[lane] -= 1
            sweeps[b] += 1
            residual[b] = peaks[lane::width].max()
            if left[lane] == 0 or residual[b] <= tolerance:
                if not collected:
                    _whole(grid, width, stride, places, lanes_psi, lanes_m, spare)
                    collected = True
                messages = w.message_at[w.scope_ptr[w.factor_ptr[b]]]
                for side in range(4):
                    _write(lanes_m, side * part + lane, cells, k, stride, m, messages, grid.messages[side])
                _write(spare, lane, cells, k, stride, g, w.state_ptr[w.var_ptr[b]], grid.scores)
                left[lane] = 0
                running -= 1
        reverse = not reverse


@njit(cache=True, nogil=True, error_model="numpy")
def run(
    grid, w, queue, tables, psi, g, m, maximal, held, damping, flooding, n_sweeps, tolerance, sweeps, residual, space
):
    """As ``scaled.run`` for instances of one grid; damping 0 or 1/2."""
    group, n, before = np.empty(MOST, np.int64), 0, sweeps[queue]
    for odd in range(2):
        for at in range(len(queue) + 1):
            if at < len(queue) and before[at] % 2 == odd and n_sweeps > 0 and not residual[queue[at]] <= tolerance:
                group[n] = queue[at]
                n += 1
            if n == MOST or (n and at == len(queue)):
                _group(
                    grid, w, group[:n], 1 if n == 1 else 2 if n == 2 else 4, tables, psi, g, m, maximal, held, damping,
                    flooding, n_sweeps, tolerance, sweeps, residual, space,
                )  # fmt: skip
                n = 0

"""Numba engine of bucket elimination: forward power sums (paper eq. 5), and their reverse sweep for the marginals.

No clique table is stored. A step walks over its merged separator axes with an odometer; scores of inputs that do not
change along inner axes are combined once per outer position (``rows``), the innermost axis is done in contiguous
blocks. A step runs on scaled probabilities (multiply-adds) when the spread of its inputs permits, else in log space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from mssvm.arrays import Floats, Ints
from mssvm.engines.buckets import clear, load, prepare, store
from mssvm.engines.program import Call, Program
from mssvm.potentials import Marginals

# Products of probabilities stay normal numbers while the logarithms of their ranges sum to less than this.
MAX_SPREAD = 300.0
BLOCK = 512


@dataclass(frozen=True)
class NumbaEngine:
    """Compiled elimination; ``max_spread`` is where a step switches from scaled probabilities to log space."""

    max_spread: float = MAX_SPREAD

    def run(self, program: Program, call: Call, which: Ints, value: Floats, mu: Marginals | None) -> None:
        """Write value and marginals of the instances ``which``."""
        nothing = np.zeros(0)
        grad = np.zeros(program.n_work if mu is not None else 0)
        mu_unary, mu_tables = (mu.unary, mu.tables) if mu is not None else (nothing, nothing)
        self._call(program, call, which, value, grad, mu_unary, mu_tables, np.zeros(0, dtype=np.int64))

    def decode(self, program: Program, call: Call, which: Ints, value: Floats, states: Ints) -> None:
        """Write value and maximising states of the instances ``which`` by back-substitution."""
        nothing = np.zeros(0)
        self._call(program, call, which, value, nothing, nothing, nothing, states)

    def _call(
        self,
        program: Program,
        call: Call,
        which: Ints,
        value: Floats,
        grad: Floats,
        mu_unary: Floats,
        mu_tables: Floats,
        states: Ints,
    ) -> None:
        batch, theta = call.batch, call.theta
        _run(
            program,
            (batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.table_at, batch.mu_at),
            (theta.unary, theta.tables, call.allowed, call.first),
            np.array([call.eps_h, call.eps_y]),
            self.max_spread,
            which,
            value,
            np.empty(program.n_work),
            grad,
            mu_unary,
            mu_tables,
            states,
        )


@njit(cache=True, nogil=True)
def _run(program, layout, scores, eps_of, max_spread, which, value, work, grad, mu_unary, mu_tables, states):  # type: ignore[no-untyped-def]
    n_steps, n_inputs = len(program.var), len(program.level)
    domain, shift = np.zeros(n_inputs), np.zeros(n_inputs)
    scaled = np.zeros(n_steps, dtype=np.bool_)
    rows = np.zeros((program.max_axes + 2, program.max_card))
    sums = np.zeros((program.max_axes + 2, program.max_card))
    block = np.zeros(max(BLOCK, program.max_card))
    digit = np.zeros(program.max_axes + 1, dtype=np.int64)
    at = np.zeros(n_inputs, dtype=np.int64)
    for b in which:
        load(program, layout, scores, b, work)
        domain[:], shift[:] = 0.0, 0.0
        total = work[0]
        for s in range(n_steps):
            if total == -np.inf:
                break
            eps = eps_of[program.output[s]]
            scaled[s], feasible = prepare(program, s, eps, max_spread, work, domain, shift)
            if not feasible:
                total = -np.inf
                break
            _forward(program, s, eps, scaled[s], work, rows, block, digit, at)
            start = program.input_ptr[s]
            level = shift[start : program.input_ptr[s + 1]].sum()
            target = program.message_input[s]
            if target >= 0:
                shift[target] = level
                domain[target] = eps if scaled[s] else 0.0
            else:
                root = work[program.message_at[s]]
                total += level + (eps * np.log(root) if scaled[s] else root)
        value[b] = total
        if len(states):
            _decode(program, layout, scores, eps_of, b, total, work, states)
        if len(grad):
            clear(program, layout, b, mu_unary, mu_tables)
            if total > -np.inf:
                grad[:] = 0.0
                for s in range(n_steps - 1, -1, -1):
                    if program.message_input[s] < 0:
                        grad[program.message_at[s]] = 1.0
                    eps = eps_of[program.output[s]]
                    _reverse(program, s, eps, scaled[s], work, grad, rows, sums, block, digit, at)
                grad[0] = 1.0
                store(program, layout, scores, b, grad, mu_unary, mu_tables)


@njit(cache=True, nogil=True)
def _next_axis(program, s, digit):  # type: ignore[no-untyped-def]
    """The separator axis (of all but the last) that the odometer moves next, or -1 at the end."""
    a0 = program.axis_ptr[s]
    for d in range(program.axis_ptr[s + 1] - a0 - 2, -1, -1):
        if digit[d] + 1 < program.axis_size[a0 + d]:
            return d
    return -1


@njit(cache=True, nogil=True)
def _advance(program, s, axis, digit, at):  # type: ignore[no-untyped-def]
    """Move the odometer one step along ``axis``; the axes inside it, now at their ends, return to zero."""
    last = program.axis_ptr[s + 1] - program.axis_ptr[s] - 1
    for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
        stride = program.stride_ptr[i]
        at[i] += program.stride[stride + axis]
        for d in range(axis + 1, last):
            at[i] -= digit[d] * program.stride[stride + d]
    digit[axis] += 1
    digit[axis + 1 : last] = 0


@njit(cache=True, nogil=True)
def _start(program, s, scaled, rows, digit, at):  # type: ignore[no-untyped-def]
    digit[:] = 0
    rows[0] = 1.0 if scaled else 0.0
    for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
        at[i] = program.input_at[i]


@njit(cache=True, nogil=True)
def _combine_rows(program, s, scaled, first, work, rows, at):  # type: ignore[no-untyped-def]
    """rows[d + 1] = rows[d] combined with the inputs of level d, for every level but the innermost."""
    n_axes = program.axis_ptr[s + 1] - program.axis_ptr[s]
    card = program.card[s]
    end = program.input_ptr[s + 1]
    i = program.input_ptr[s]
    for d in range(first, n_axes):
        rows[d + 1, :card] = rows[d, :card]
        while i < end and program.level[i] <= d:
            if program.level[i] == d:
                for j in range(card):
                    if scaled:
                        rows[d + 1, j] *= work[at[i] + j]
                    else:
                        rows[d + 1, j] += work[at[i] + j]
            i += 1
    while i < end and program.level[i] < n_axes:
        i += 1
    return i


@njit(cache=True, nogil=True)
def _fill_block(program, scaled, inner, end, begin, n, card, row, work, block, at):  # type: ignore[no-untyped-def]
    """Combine ``row`` with the innermost inputs at separator positions ``begin .. begin + n``."""
    for r in range(n):
        for j in range(card):
            block[r * card + j] = row[j]
    for i in range(inner, end):
        start = at[i] + begin * card
        if scaled:
            for k in range(n * card):
                block[k] *= work[start + k]
        else:
            for k in range(n * card):
                block[k] += work[start + k]


@njit(cache=True, nogil=True)
def _forward(program, s, eps, scaled, work, rows, block, digit, at):  # type: ignore[no-untyped-def]
    """The message of step s: the power sum of its bucket over the eliminated variable."""
    a1 = program.axis_ptr[s + 1]
    n_axes = a1 - program.axis_ptr[s]
    card, end = program.card[s], program.input_ptr[s + 1]
    inside = program.axis_size[a1 - 1] if n_axes else 1
    height = max(1, BLOCK // card)
    _start(program, s, scaled, rows, digit, at)
    message = program.message_at[s]
    moved = -1
    while True:
        inner = _combine_rows(program, s, scaled, moved + 1, work, rows, at)
        for begin in range(0, inside, height):
            n = min(height, inside - begin)
            _fill_block(program, scaled, inner, end, begin, n, card, rows[n_axes], work, block, at)
            for r in range(n):
                work[message + begin + r] = _reduce(block[r * card : (r + 1) * card], eps, scaled)
        message += inside
        moved = _next_axis(program, s, digit)
        if moved < 0:
            break
        _advance(program, s, moved, digit, at)


@njit(cache=True, nogil=True)
def _reduce(x, eps, scaled):  # type: ignore[no-untyped-def]
    """The power sum of one row, or the plain sum of a row of scaled probabilities."""
    if scaled:
        total = 0.0
        for a in x:
            total += a
        return total
    top = -np.inf
    for a in x:
        top = max(top, a)
    if eps == 0.0 or top == -np.inf:
        return top
    total = 0.0
    for a in x:
        total += np.exp((a - top) / eps)
    return top + eps * np.log(total)


@njit(cache=True, nogil=True)
def _weigh(x, eps, scaled, g):  # type: ignore[no-untyped-def]
    """Replace a row by g times the gradient of its power sum (at eps = 0: the first maximiser's indicator)."""
    if g == 0.0:
        x[:] = 0.0
        return
    if eps == 0.0:
        best = np.argmax(x)
        x[:] = 0.0
        x[best] = g
        return
    if not scaled:
        top = x.max()
        for j in range(len(x)):
            x[j] = np.exp((x[j] - top) / eps)
    factor = g / x.sum()
    for j in range(len(x)):
        x[j] *= factor


@njit(cache=True, nogil=True)
def _flush(program, s, first, grad, sums, at):  # type: ignore[no-untyped-def]
    """Adjoint of ``_combine_rows``: hand the gradients of finished rows to their inputs and to the row above."""
    n_axes = program.axis_ptr[s + 1] - program.axis_ptr[s]
    card = program.card[s]
    for d in range(n_axes - 1, first - 1, -1):
        for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
            if program.level[i] == d:
                for j in range(card):
                    grad[at[i] + j] += sums[d + 1, j]
        for j in range(card):
            sums[d, j] += sums[d + 1, j]
            sums[d + 1, j] = 0.0


@njit(cache=True, nogil=True)
def _reverse(program, s, eps, scaled, work, grad, rows, sums, block, digit, at):  # type: ignore[no-untyped-def]
    """Pass the gradient of step s's message on to its inputs, recomputing the local weights."""
    a1 = program.axis_ptr[s + 1]
    n_axes = a1 - program.axis_ptr[s]
    card, end = program.card[s], program.input_ptr[s + 1]
    inside = program.axis_size[a1 - 1] if n_axes else 1
    height = max(1, BLOCK // card)
    _start(program, s, scaled, rows, digit, at)
    sums[: n_axes + 1] = 0.0
    message = program.message_at[s]
    stale, inner, touched = 0, 0, False
    while True:
        for begin in range(0, inside, height):
            n = min(height, inside - begin)
            g = grad[message + begin : message + begin + n]
            if not g.any():
                continue
            touched = True
            if stale <= n_axes:
                inner = _combine_rows(program, s, scaled, stale, work, rows, at)
                stale = n_axes + 1
            _fill_block(program, scaled, inner, end, begin, n, card, rows[n_axes], work, block, at)
            for r in range(n):
                _weigh(block[r * card : (r + 1) * card], eps, scaled, g[r])
            for i in range(inner, end):
                start = at[i] + begin * card
                for k in range(n * card):
                    grad[start + k] += block[k]
            for r in range(n):
                for j in range(card):
                    sums[n_axes, j] += block[r * card + j]
        message += inside
        moved = _next_axis(program, s, digit)
        if touched or moved < n_axes - 2:
            _flush(program, s, moved + 1, grad, sums, at)
            touched = False
        if moved < 0:
            break
        stale = min(stale, moved + 1)
        _advance(program, s, moved, digit, at)


@njit(cache=True, nogil=True)
def _decode(program, layout, scores, eps_of, b, total, work, states):  # type: ignore[no-untyped-def]
    """Back-substitution: the first maximiser of every step at temperature zero, last eliminated variable first."""
    var_ptr = layout[0]
    first = scores[3]
    v0 = var_ptr[b]
    for v in range(len(program.clamped)):
        states[v0 + v] = first[v0 + v] if program.clamped[v] else -1
    if total == -np.inf:
        return
    for s in range(len(program.var) - 1, -1, -1):
        if eps_of[program.output[s]] > 0.0:
            continue
        position = 0
        for k in range(program.separator_ptr[s], program.separator_ptr[s + 1]):
            v = v0 + program.separator[k]
            position = position * (layout[2][v + 1] - layout[2][v]) + states[v]
        x = np.zeros(program.card[s])
        for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
            rest, at = position, program.input_at[i]
            for d in range(program.axis_ptr[s + 1] - program.axis_ptr[s] - 1, -1, -1):
                size = program.axis_size[program.axis_ptr[s] + d]
                at += rest % size * program.stride[program.stride_ptr[i] + d]
                rest //= size
            x += work[at : at + program.card[s]]
        states[v0 + program.var[s]] = np.argmax(x)

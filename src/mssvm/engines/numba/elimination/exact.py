"""Numba engine of bucket elimination: forward power sums (paper eq. 5), and their reverse sweep for the marginals.

No clique table is stored. A step walks over its merged separator axes with an odometer; scores of inputs that do not
change along inner axes are combined once per outer position (``rows``), the innermost axis is done in contiguous
blocks. Several instances run side by side as interleaved lanes of the work vector, so that the loops over states
are long enough for vector instructions. A step runs on scaled probabilities (multiply-adds) when the spread of its
inputs permits, else in log space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals
from mssvm.engines.numba.elimination.buckets import clear, decode, load, prepare, reduce_rows, store, weigh_rows
from mssvm.engines.program import Call, Program

# Products of probabilities stay normal numbers while the logarithms of their ranges sum to less than this.
MAX_SPREAD = 300.0
BLOCK = 512
# Instances interleaved in one work vector: a few vector registers wide, unless the vector outgrows the cache.
LANES = 8
CACHED_ENTRIES = 1 << 19


@dataclass(frozen=True)
class EliminationKernels:
    """Compiled elimination; ``max_spread`` is where a step switches from scaled probabilities to log space."""

    max_spread: float = MAX_SPREAD

    def run(self, program: Program, call: Call, which: Ints, value: Floats, mu: Marginals | None) -> None:
        """Write value and marginals of the instances ``which``."""
        nothing = np.zeros(0)
        mu_unary, mu_tables = (mu.unary, mu.tables) if mu is not None else (nothing, nothing)
        self._call(program, call, which, value, mu is not None, mu_unary, mu_tables, np.zeros(0, dtype=np.int64))

    def decode(self, program: Program, call: Call, which: Ints, value: Floats, states: Ints) -> None:
        """Write value and maximising states of the instances ``which`` by back-substitution."""
        nothing = np.zeros(0)
        self._call(program, call, which, value, False, nothing, nothing, states)

    def _call(
        self,
        program: Program,
        call: Call,
        which: Ints,
        value: Floats,
        marginals: bool,
        mu_unary: Floats,
        mu_tables: Floats,
        states: Ints,
    ) -> None:
        batch, theta = call.batch, call.theta
        most = max(1, min(LANES, CACHED_ENTRIES // program.n_work))
        lanes = -(-len(which) // -(-len(which) // most))  # groups of equal size rather than one small remainder
        _run(
            program,
            (batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.table_at, batch.mu_at),
            (theta.unary, theta.tables, call.allowed, call.first),
            np.array([call.eps_h, call.eps_y]),
            self.max_spread,
            which,
            lanes,
            value,
            np.empty(program.n_work * lanes),
            np.empty(program.n_work * lanes if marginals else 0),
            mu_unary,
            mu_tables,
            states,
        )


@njit(cache=True, nogil=True)
def _run(program, layout, scores, eps_of, max_spread, which, lanes, value, work, grad, mu_unary, mu_tables, states):  # type: ignore[no-untyped-def]
    scaled = np.zeros(len(program.var), dtype=np.bool_)
    total = np.zeros(lanes)
    for k in range(0, len(which), lanes):
        group = which[k : k + lanes]
        n = len(group)
        room = _scratch(program, n)
        for lane in range(n):
            load(program, layout, scores, group[lane], lane, n, work)
        _forward_sweep(program, eps_of, max_spread, n, work, room, scaled, total)
        for lane in range(n):
            value[group[lane]] = total[lane]
            if len(states):
                decode(program, layout, scores, eps_of, group[lane], lane, n, total[lane], work, states)
        if len(grad):
            grad[: program.n_work * n] = 0.0
            _seed(program, n, total, grad)
            for s in range(len(program.var) - 1, -1, -1):
                eps = eps_of[program.output[s]]
                _reverse(_bucket(program, s, n), program.message_at[s] * n, eps, scaled[s], work, grad, room)
            for lane in range(n):
                clear(program, layout, group[lane], mu_unary, mu_tables)
                store(program, layout, scores, group[lane], lane, n, grad, mu_unary, mu_tables)


@njit(cache=True, nogil=True)
def _forward_sweep(program, eps_of, max_spread, lanes, work, room, scaled, total):  # type: ignore[no-untyped-def]
    """All steps in elimination order; leaves each lane's value in ``total``."""
    domain = np.zeros(len(program.level))
    shift = np.zeros((len(program.level), lanes))
    for lane in range(lanes):
        total[lane] = work[lane]
    for s in range(len(program.var)):
        eps = eps_of[program.output[s]]
        i0, i1 = program.input_ptr[s], program.input_ptr[s + 1]
        place, size = program.input_at[i0:i1], program.input_size[i0:i1]
        scaled[s] = prepare(place, size, lanes, eps, max_spread, work, domain[i0:i1], shift[i0:i1])
        at = program.message_at[s] * lanes
        _forward(_bucket(program, s, lanes), at, eps, scaled[s], work, room)
        target = program.message_input[s]
        if target >= 0:
            domain[target] = eps if scaled[s] else 0.0
        for lane in range(lanes):
            level = 0.0
            for i in range(i0, i1):
                level += shift[i, lane]
            if target >= 0:
                shift[target, lane] = level
            elif scaled[s]:
                total[lane] += level + eps * np.log(work[at + lane]) if work[at + lane] > 0.0 else -np.inf
            else:
                total[lane] += level + work[at + lane]


@njit(cache=True, nogil=True)
def _seed(program, lanes, total, grad):  # type: ignore[no-untyped-def]
    """The value is the constant plus the roots' messages; an infeasible lane keeps a zero gradient."""
    for lane in range(lanes):
        if total[lane] > -np.inf:
            grad[lane] = 1.0
            for s in range(len(program.var)):
                if program.message_input[s] < 0:
                    grad[program.message_at[s] * lanes + lane] = 1.0


@njit(cache=True, nogil=True)
def _scratch(program, lanes):  # type: ignore[no-untyped-def]
    """Partial scores per level, their gradients, one block of clique entries, odometer digits, input positions."""
    rows = np.zeros((program.max_axes + 2, program.max_card * lanes))
    block = np.zeros(max(BLOCK, program.max_card * lanes))
    digit = np.zeros(program.max_axes + 1, dtype=np.int64)
    return rows, np.zeros_like(rows), block, digit, np.zeros(len(program.level), dtype=np.uint64)


@njit(cache=True, nogil=True)
def _bucket(program, s, lanes):  # type: ignore[no-untyped-def]
    """What a sweep over step s needs, in units of the interleaved work vector.

    Lanes, number of states, sizes of the axes, and per input its place, level and strides; the inputs
    from ``inner`` on have the innermost axis.
    """
    i0, i1 = program.input_ptr[s], program.input_ptr[s + 1]
    a0, a1 = program.axis_ptr[s], program.axis_ptr[s + 1]
    stride = program.stride[program.stride_ptr[i0] : program.stride_ptr[i1]].reshape((i1 - i0, a1 - a0)) * lanes
    level = program.level[i0:i1]
    inner = 0
    while inner < i1 - i0 and level[inner] < a1 - a0:
        inner += 1
    return (
        lanes,
        program.card[s],
        program.axis_size[a0:a1],
        program.input_at[i0:i1] * lanes,
        level,
        stride,
        inner,
    )


@njit(cache=True, nogil=True)
def _next_axis(size, digit):  # type: ignore[no-untyped-def]
    """The separator axis (of all but the last) that the odometer moves next, or -1 at the end."""
    for d in range(len(size) - 2, -1, -1):
        if digit[d] + 1 < size[d]:
            return d
    return -1


@njit(cache=True, nogil=True)
def _advance(axis, stride, digit, at):  # type: ignore[no-untyped-def]
    """Move the odometer one step along ``axis``; the axes inside it, now at their ends, return to zero."""
    n_inputs, n_axes = stride.shape
    for i in range(n_inputs):
        step = stride[i, axis]
        for d in range(axis + 1, n_axes - 1):
            step -= digit[d] * stride[i, d]
        at[i] = np.uint64(np.int64(at[i]) + step)
    digit[axis] += 1
    for d in range(axis + 1, n_axes - 1):
        digit[d] = 0


@njit(cache=True, nogil=True)
def _start(place, length, scaled, rows, digit, at):  # type: ignore[no-untyped-def]
    digit[:] = 0
    for j in range(length):
        rows[0, j] = 1.0 if scaled else 0.0
    for i in range(len(place)):
        at[i] = np.uint64(place[i])


@njit(cache=True, nogil=True)
def _combine_rows(first, n_axes, length, level, inner, scaled, work, rows, at):  # type: ignore[no-untyped-def]
    """rows[d + 1] = rows[d] combined with the inputs of level d, for the levels from ``first`` to the last but one."""
    for d in range(first, n_axes):
        for j in range(length):
            rows[d + 1, j] = rows[d, j]
        for i in range(inner):
            if level[i] == d:
                for j in range(np.uint64(length)):
                    if scaled:
                        rows[d + 1, j] *= work[at[i] + j]
                    else:
                        rows[d + 1, j] += work[at[i] + j]


@njit(cache=True, nogil=True)
def _fill_block(begin, n, length, n_inputs, inner, scaled, row, work, block, at):  # type: ignore[no-untyped-def]
    """Combine ``row`` with the innermost inputs at separator positions ``begin .. begin + n``."""
    k = np.uint64(0)
    start = at[inner] + np.uint64(begin * length)
    for _ in range(n):
        if scaled:
            for j in range(np.uint64(length)):
                block[k + j] = row[j] * work[start + k + j]
        else:
            for j in range(np.uint64(length)):
                block[k + j] = row[j] + work[start + k + j]
        k += np.uint64(length)
    for i in range(inner + 1, n_inputs):
        start = at[i] + np.uint64(begin * length)
        if scaled:
            for j in range(np.uint64(n * length)):
                block[j] *= work[start + j]
        else:
            for j in range(np.uint64(n * length)):
                block[j] += work[start + j]


@njit(cache=True, nogil=True)
def _forward(bucket, message, eps, scaled, work, room):  # type: ignore[no-untyped-def]
    """The message of a step: the power sum of its bucket over the eliminated variable."""
    lanes, card, size, place, level, stride, inner = bucket
    length = card * lanes
    rows, _, block, digit, at = room
    n_axes = len(size)
    inside = size[n_axes - 1] if n_axes else 1
    height = max(1, BLOCK // length)
    _start(place, length, scaled, rows, digit, at)
    moved = -1
    while True:
        _combine_rows(moved + 1, n_axes, length, level, inner, scaled, work, rows, at)
        begin = 0
        while begin < inside:
            n = min(height, inside - begin)
            _fill_block(begin, n, length, len(place), inner, scaled, rows[n_axes], work, block, at)
            reduce_rows(block, n, card, lanes, eps, scaled, work, message)
            message += n * lanes
            begin += n
        moved = _next_axis(size, digit)
        if moved < 0:
            break
        _advance(moved, stride, digit, at)


@njit(cache=True, nogil=True)
def _flush(first, n_axes, length, level, inner, grad, sums, at):  # type: ignore[no-untyped-def]
    """Adjoint of ``_combine_rows``: hand the gradients of finished rows to their inputs and to the row above."""
    for d in range(n_axes - 1, first - 1, -1):
        for i in range(inner):
            if level[i] == d:
                for j in range(np.uint64(length)):
                    grad[at[i] + j] += sums[d + 1, j]
        for j in range(length):
            sums[d, j] += sums[d + 1, j]
            sums[d + 1, j] = 0.0


@njit(cache=True, nogil=True)
def _reverse(bucket, message, eps, scaled, work, grad, room):  # type: ignore[no-untyped-def]
    """Pass the gradient of a step's message on to its inputs, recomputing the local weights."""
    lanes, card, size, place, level, stride, inner = bucket
    length = card * lanes
    rows, sums, block, digit, at = room
    n_axes = len(size)
    inside = size[n_axes - 1] if n_axes else 1
    height = max(1, BLOCK // length)
    _start(place, length, scaled, rows, digit, at)
    sums[: n_axes + 1] = 0.0
    stale, touched = 0, False
    while True:
        begin = 0
        while begin < inside:
            n = min(height, inside - begin)
            g = message + begin * lanes
            if not _any(grad, g, n * lanes):
                begin += n
                continue
            if stale <= n_axes:
                _combine_rows(stale, n_axes, length, level, inner, scaled, work, rows, at)
                stale = n_axes + 1
            touched = True
            _fill_block(begin, n, length, len(place), inner, scaled, rows[n_axes], work, block, at)
            weigh_rows(block, n, card, lanes, eps, scaled, grad, g)
            _spread(begin, n, length, len(place), inner, block, grad, sums[n_axes], at)
            begin += n
        message += inside * lanes
        moved = _next_axis(size, digit)
        if touched or moved < n_axes - 2:
            _flush(moved + 1, n_axes, length, level, inner, grad, sums, at)
            touched = False
        if moved < 0:
            break
        stale = min(stale, moved + 1)
        _advance(moved, stride, digit, at)


@njit(cache=True, nogil=True)
def _any(x, start, n):  # type: ignore[no-untyped-def]
    found = False
    for k in range(start, start + n):
        found |= x[k] != 0.0
    return found


@njit(cache=True, nogil=True)
def _spread(begin, n, length, n_inputs, inner, block, grad, row, at):  # type: ignore[no-untyped-def]
    """Adjoint of ``_fill_block``."""
    for i in range(inner, n_inputs):
        start = at[i] + np.uint64(begin * length)
        for k in range(np.uint64(n * length)):
            grad[start + k] += block[k]
    for r in range(n):
        for j in range(length):
            row[j] += block[r * length + j]

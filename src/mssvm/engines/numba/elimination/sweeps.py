"""The two sweeps of bucket elimination: forward power sums (paper eq. 5), and the reverse sweep for the marginals.

No clique table is stored. A step walks over its merged separator axes with an odometer; scores of inputs that do not
change along inner axes are combined once per outer position (``rows``), the innermost axis is done in contiguous
blocks. Several instances run side by side as interleaved lanes of the work vector, so that the loops over states
are long enough for vector instructions. A step runs on scaled probabilities (multiply-adds) when the spread of its
inputs permits, else in log space, where the work vector keeps all scores and messages as they are.

``temperature`` is that of every step: eps_y or eps_h of its variable, shared out where the variable's bucket is split.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit
from mssvm.engines.numba.elimination.rows import add_moments, prepare, reduce_rows, weigh_rows

BLOCK = 512


@njit(cache=True, nogil=True)
def forward_sweep(program, temperature, max_spread, match, lanes, work, scratch, scaled, total):
    """All steps in elimination order; leaves each lane's value in ``total``.

    With ``match`` (one lane, log space) the shifts of every split bucket are improved before it is eliminated.
    """
    domain = np.zeros(len(program.level))
    shift = np.zeros((len(program.level), lanes))
    for lane in range(lanes):
        total[lane] = work[lane]
    for p in range(len(program.position_ptr) - 1):
        first, last = program.position_ptr[p], program.position_ptr[p + 1]
        if match and last - first > 1:
            _match(program, first, last, temperature, work, scratch)
        for s in range(first, last):
            eps = temperature[s]
            i0, i1 = program.input_ptr[s], program.input_ptr[s + 1]
            place, size = program.input_at[i0:i1], program.input_size[i0:i1]
            scaled[s] = prepare(place, size, lanes, eps, max_spread, work, domain[i0:i1], shift[i0:i1])
            at = program.message_at[s] * lanes
            _forward(_bucket(program, s, lanes), at, eps, scaled[s], work, scratch, None)
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
def _match(program, first, last, temperature, work, scratch):
    """Shift scores between the mini-buckets of one variable until their moments agree; the shifts sum to zero.

    The moment of a state is the power sum over everything else at the step's temperature. A state that one mini-bucket
    forbids is impossible, so it is forbidden in all.
    """
    n, card = last - first, program.card[first]
    moments = np.zeros((n, card))
    tau = temperature[first:last].sum()
    for r in range(n):
        eps = temperature[first + r]
        sums = np.zeros((2, card))
        sums[0] = -np.inf
        _forward(_bucket(program, first + r, 1), 0, eps, False, work, scratch, sums)
        for j in range(card):
            moments[r, j] = sums[0, j]
            if eps > 0.0 and sums[0, j] > -np.inf:
                moments[r, j] += eps * np.log(sums[1, j])
    for j in range(card):
        total = moments[:, j].sum()
        for r in range(n):
            share = temperature[first + r] / tau if tau > 0.0 else 1.0 / n
            at = program.shift_at[first + r] + j
            work[at] = -np.inf if total == -np.inf else work[at] + share * total - moments[r, j]


@njit(cache=True, nogil=True)
def reverse_sweep(program, temperature, lanes, scaled, total, work, grad, scratch):
    """Gradient of the value, the constant plus the roots' messages, in every entry; zero in an infeasible lane."""
    grad[: program.n_work * lanes] = 0.0
    for lane in range(lanes):
        if total[lane] > -np.inf:
            grad[lane] = 1.0
            for s in range(len(program.var)):
                if program.message_input[s] < 0:
                    grad[program.message_at[s] * lanes + lane] = 1.0
    for s in range(len(program.var) - 1, -1, -1):
        at = program.message_at[s] * lanes
        _reverse(_bucket(program, s, lanes), at, temperature[s], scaled[s], work, grad, scratch)


@njit(cache=True, nogil=True)
def scratch_of(program, lanes):
    """Partial scores per level, their gradients, one block of clique entries, odometer digits, input positions."""
    rows = np.zeros((program.max_axes + 2, program.max_card * lanes))
    block = np.zeros(max(BLOCK, program.max_card * lanes))
    digit = np.zeros(program.max_axes + 1, dtype=np.int64)
    return rows, np.zeros_like(rows), block, digit, np.zeros(program.max_inputs, dtype=np.uint64)


@njit(cache=True, nogil=True)
def _bucket(program, s, lanes):
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
    return lanes, program.card[s], program.axis_size[a0:a1], program.input_at[i0:i1] * lanes, level, stride, inner


@njit(cache=True, nogil=True)
def _next_axis(size, digit):
    """The separator axis (of all but the last) that the odometer moves next, or -1 at the end."""
    for d in range(len(size) - 2, -1, -1):
        if digit[d] + 1 < size[d]:
            return d
    return -1


@njit(cache=True, nogil=True)
def _advance(axis, stride, digit, at):
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
def _start(place, length, scaled, rows, digit, at):
    digit[:] = 0
    for j in range(length):
        rows[0, j] = 1.0 if scaled else 0.0
    for i in range(len(place)):
        at[i] = np.uint64(place[i])


@njit(cache=True, nogil=True)
def _combine_rows(first, n_axes, length, level, inner, scaled, work, rows, at):
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
def _combine_block(begin, n, length, n_inputs, inner, scaled, row, work, block, at):
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
def _forward(bucket, message, eps, scaled, work, scratch, moments):
    """The message of a step: the power sum of its bucket over the eliminated variable.

    With ``moments`` nothing is written but the power sums over everything else (``add_moments``); None compiles to a
    walk that knows nothing of them.
    """
    lanes, card, size, place, level, stride, inner = bucket
    length = card * lanes
    rows, _, block, digit, at = scratch
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
            _combine_block(begin, n, length, len(place), inner, scaled, rows[n_axes], work, block, at)
            if moments is None:
                reduce_rows(block, n, card, lanes, eps, scaled, work, message)
            else:
                add_moments(block, n, card, eps, moments)
            message += n * lanes
            begin += n
        moved = _next_axis(size, digit)
        if moved < 0:
            break
        _advance(moved, stride, digit, at)


@njit(cache=True, nogil=True)
def _flush(first, n_axes, length, level, inner, grad, sums, at):
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
def _reverse(bucket, message, eps, scaled, work, grad, scratch):
    """Pass the gradient of a step's message on to its inputs, recomputing the local weights."""
    lanes, card, size, place, level, stride, inner = bucket
    length = card * lanes
    rows, sums, block, digit, at = scratch
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
            _combine_block(begin, n, length, len(place), inner, scaled, rows[n_axes], work, block, at)
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
def _any(x, start, n):
    found = False
    for k in range(start, start + n):
        found |= x[k] != 0.0
    return found


@njit(cache=True, nogil=True)
def _spread(begin, n, length, n_inputs, inner, block, grad, row, at):
    """Adjoint of ``_combine_block``."""
    for i in range(inner, n_inputs):
        start = at[i] + np.uint64(begin * length)
        for k in range(np.uint64(n * length)):
            grad[start + k] += block[k]
    for r in range(n):
        for j in range(length):
            row[j] += block[r * length + j]

"""Kernels that follow assignments back through the messages: decoding, and bounds of partial assignments.

A position's variable is judged by the rows of its steps at the states of the variables eliminated later; the messages
must still hold scores (log space) where bounds are compared.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit


@njit(cache=True, nogil=True)
def _add_row(program, s, states, v0, lane, lanes, work, at, x):
    """Add to x the scores of step s's states, its separator being as in ``states``; returns the message's entry."""
    place = 0
    for k in range(program.separator_ptr[s], program.separator_ptr[s + 1]):
        place += states[v0 + program.separator[k]] * program.separator_stride[k]
    i0, n_inputs = program.input_ptr[s], program.input_ptr[s + 1] - program.input_ptr[s]
    a0, n_axes = program.axis_ptr[s], program.axis_ptr[s + 1] - program.axis_ptr[s]
    for i in range(n_inputs):
        at[i] = program.input_at[i0 + i]
    rest = place
    for d in range(n_axes - 1, -1, -1):
        size = program.axis_size[a0 + d]
        digit = rest % size
        rest //= size
        for i in range(n_inputs):
            at[i] += digit * program.stride[program.stride_ptr[i0 + i] + d]
    for i in range(n_inputs):
        for j in range(program.card[s]):
            x[j] += work[(at[i] + j) * lanes + lane]
    return (program.message_at[s] + place) * lanes + lane


@njit(cache=True, nogil=True)
def decode(program, temperature, v0, lane, lanes, work, states):
    """Back-substitution: the first maximiser of every variable at temperature zero, last eliminated first."""
    at, x = np.zeros(program.max_inputs, dtype=np.int64), np.zeros(program.max_card)
    for p in range(len(program.position_ptr) - 2, -1, -1):
        first = program.position_ptr[p]
        if temperature[first] > 0.0:
            continue
        x[:] = 0.0
        for s in range(first, program.position_ptr[p + 1]):
            _add_row(program, s, states, v0, lane, lanes, work, at, x)
        states[v0 + program.var[first]] = np.argmax(x[: program.card[first]])


@njit(cache=True, nogil=True)
def extend(program, p, bound, work, states, at, out):
    """Bounds of a partial assignment of all later positions, extended by each state of position p's variable."""
    first, last = program.position_ptr[p], program.position_ptr[p + 1]
    out[:] = -np.inf
    out[: program.card[first]] = bound
    for s in range(first, last):
        message = _add_row(program, s, states, 0, 0, 1, work, at, out)
        for j in range(program.card[first]):
            out[j] -= work[message]

"""Kernels of weighted mini-bucket elimination: one power sum per mini-bucket, its gradient, moment matching.

A step eliminates one copy of a variable at its own temperature w (its Hoelder weight). All tables lie in one work
vector ``[constant | slots of scores | messages]``; their axes are ordered by elimination position, the first to
go being last, so the inputs of a step all end in the eliminated variable. Everything is in log space, where -inf is a
legal score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from mssvm.core.arrays import Bools, Ints


class Buckets(NamedTuple):
    """Index arrays; s runs over steps, i over inputs of steps, a over message axes of steps, l over loaded scores.

    Position p (place in the elimination order) owns steps ``pos_ptr[p] : pos_ptr[p + 1]``, one per mini-bucket. Load l
    adds a table (``factor[l]`` >= 0) or the unary of variable ``-1 - factor[l]`` to the slot at ``slot[l]``: axis by
    axis along ``load_size``/``load_stride``, starting where the states of its clamped variables say.
    """

    var: Ints
    card: Ints
    output: Bools
    pos_ptr: Ints
    delta_at: Ints
    axis_ptr: Ints
    axis_size: Ints
    axis_var: Ints
    message_at: Ints
    message_size: Ints
    input_ptr: Ints
    input_at: Ints
    stride_ptr: Ints
    stride: Ints
    slot: Ints
    factor: Ints
    load_ptr: Ints
    load_size: Ints
    load_stride: Ints
    clamp_ptr: Ints
    clamp_var: Ints
    clamp_stride: Ints
    n_slots: int
    n_work: int
    n_delta: int
    n_hidden: int
    max_axes: int
    max_inputs: int
    max_card: int


@njit(cache=True, nogil=True)
def load(plan, unary, unary_ptr, tables, table_at, states, work):  # type: ignore[no-untyped-def]
    """Sum scores into their slots; ``states`` gives the clamped variables' states."""
    work[: plan.n_slots] = 0.0
    digit = np.zeros(plan.max_axes + 2, dtype=np.int64)
    for item in range(len(plan.slot)):
        f = plan.factor[item]
        source = table_at[f] if f >= 0 else unary_ptr[-1 - f]
        for c in range(plan.clamp_ptr[item], plan.clamp_ptr[item + 1]):
            source += states[plan.clamp_var[c]] * plan.clamp_stride[c]
        first, last = plan.load_ptr[item], plan.load_ptr[item + 1]
        digit[: last - first] = 0
        target = plan.slot[item]
        while True:
            work[target] += tables[source] if f >= 0 else unary[source]
            target += 1
            a = last - 1
            while a >= first:
                digit[a - first] += 1
                source += plan.load_stride[a]
                if digit[a - first] < plan.load_size[a]:
                    break
                source -= plan.load_size[a] * plan.load_stride[a]
                digit[a - first] = 0
                a -= 1
            if a < first:
                break


@njit(cache=True, nogil=True, inline="always")
def _advance(plan, s, digit, at):  # type: ignore[no-untyped-def]
    """Move the odometer over the message axes of step s to the next entry."""
    n_inputs = plan.input_ptr[s + 1] - plan.input_ptr[s]
    first = plan.axis_ptr[s]
    n_axes = plan.axis_ptr[s + 1] - first
    base = plan.stride_ptr[s]
    for a in range(n_axes - 1, -1, -1):
        digit[a] += 1
        row = base + a * n_inputs
        if digit[a] < plan.axis_size[first + a]:
            for i in range(n_inputs):
                at[i] += plan.stride[row + i]
            return
        digit[a] = 0
        back = plan.axis_size[first + a] - 1
        for i in range(n_inputs):
            at[i] -= back * plan.stride[row + i]


@njit(cache=True, nogil=True, inline="always")
def _fill(plan, s, delta, work, at, x):  # type: ignore[no-untyped-def]
    card = plan.card[s]
    shift = plan.delta_at[s]
    for j in range(card):
        x[j] = delta[shift + j]
    for i in range(plan.input_ptr[s + 1] - plan.input_ptr[s]):
        for j in range(card):
            x[j] += work[at[i] + j]


@njit(cache=True, nogil=True, inline="always")
def _start(plan, s, digit, at):  # type: ignore[no-untyped-def]
    digit[:] = 0
    for i in range(plan.input_ptr[s + 1] - plan.input_ptr[s]):
        at[i] = plan.input_at[plan.input_ptr[s] + i]


@njit(cache=True, nogil=True, inline="always")
def _power_sum(x, n, w):  # type: ignore[no-untyped-def]
    top = x[0]
    for j in range(1, n):
        top = max(top, x[j])
    if w == 0.0 or top == -np.inf:
        return top
    total = 0.0
    for j in range(n):
        total += np.exp((x[j] - top) / w)
    return top + w * np.log(total)


@njit(cache=True, nogil=True)
def _eliminate(plan, s, w, delta, work, x, digit, at):  # type: ignore[no-untyped-def]
    _start(plan, s, digit, at)
    message = plan.message_at[s]
    card = plan.card[s]
    for k in range(plan.message_size[s]):
        _fill(plan, s, delta, work, at, x)
        work[message + k] = _power_sum(x, card, w)
        _advance(plan, s, digit, at)


@njit(cache=True, nogil=True)
def _moments(plan, s, w, delta, work, x, digit, at, out):  # type: ignore[no-untyped-def]
    """out[j] = PS_w over everything but the eliminated variable, of the mini-bucket's function at state j."""
    card = plan.card[s]
    top = np.full(card, -np.inf)
    total = np.zeros(card)
    _start(plan, s, digit, at)
    for _ in range(plan.message_size[s]):
        _fill(plan, s, delta, work, at, x)
        for j in range(card):
            if x[j] > top[j]:
                total[j] = total[j] * np.exp((top[j] - x[j]) / w) + 1.0 if w > 0.0 else 1.0
                top[j] = x[j]
            elif w > 0.0 and x[j] > -np.inf:
                total[j] += np.exp((x[j] - top[j]) / w)
        _advance(plan, s, digit, at)
    for j in range(card):
        out[j] = top[j] + w * np.log(total[j]) if w > 0.0 and top[j] > -np.inf else top[j]


@njit(cache=True, nogil=True)
def _match(plan, p, weight, delta, work, x, digit, at):  # type: ignore[no-untyped-def]
    """Shift scores between the mini-buckets of position p until their moments agree; the shifts sum to zero.

    A state that one mini-bucket forbids is impossible, so it is forbidden in all.
    """
    first, last = plan.pos_ptr[p], plan.pos_ptr[p + 1]
    n = last - first
    card = plan.card[first]
    moments = np.zeros((n, card))
    tau = weight[first:last].sum()
    for r in range(n):
        _moments(plan, first + r, weight[first + r], delta, work, x, digit, at, moments[r])
    for j in range(card):
        total = moments[:, j].sum()
        for r in range(n):
            share = weight[first + r] / tau if tau > 0.0 else 1.0 / n
            if total == -np.inf:
                delta[plan.delta_at[first + r] + j] = -np.inf
            else:
                delta[plan.delta_at[first + r] + j] += share * total - moments[r, j]


@njit(cache=True, nogil=True)
def forward(plan, weight, delta, work, match):  # type: ignore[no-untyped-def]
    """All messages, and the value; with ``match`` the shifts ``delta`` are improved on the way."""
    x = np.zeros(plan.max_card)
    digit = np.zeros(plan.max_axes + 1, dtype=np.int64)
    at = np.zeros(plan.max_inputs, dtype=np.int64)
    total = work[0]
    for p in range(len(plan.pos_ptr) - 1):
        first, last = plan.pos_ptr[p], plan.pos_ptr[p + 1]
        if match and last - first > 1:
            _match(plan, p, weight, delta, work, x, digit, at)
        for s in range(first, last):
            _eliminate(plan, s, weight[s], delta, work, x, digit, at)
            if plan.axis_ptr[s] == plan.axis_ptr[s + 1]:
                total += work[plan.message_at[s]]
    return total


@njit(cache=True, nogil=True)
def backward(plan, weight, delta, work, grad, d_delta, d_weight):  # type: ignore[no-untyped-def]
    """Gradient of the value in scores and messages (``grad``), shifts, and weights (conditional entropies)."""
    x = np.zeros(plan.max_card)
    digit = np.zeros(plan.max_axes + 1, dtype=np.int64)
    at = np.zeros(plan.max_inputs, dtype=np.int64)
    grad[:] = 0.0
    d_delta[:] = 0.0
    d_weight[:] = 0.0
    grad[0] = 1.0
    for s in range(len(plan.var) - 1, -1, -1):
        message = plan.message_at[s]
        if plan.axis_ptr[s] == plan.axis_ptr[s + 1]:
            grad[message] = 1.0
        card, w, n_inputs = plan.card[s], weight[s], plan.input_ptr[s + 1] - plan.input_ptr[s]
        _start(plan, s, digit, at)
        for k in range(plan.message_size[s]):
            g = grad[message + k]
            if g > 0.0:
                _fill(plan, s, delta, work, at, x)
                if w == 0.0:
                    best = np.argmax(x[:card])
                    x[:card] = 0.0
                    x[best] = g
                else:
                    value = work[message + k]
                    for j in range(card):
                        log_p = (x[j] - value) / w
                        x[j] = g * np.exp(log_p)
                        if x[j] > 0.0:
                            d_weight[s] -= x[j] * log_p
                for j in range(card):
                    d_delta[plan.delta_at[s] + j] += x[j]
                for i in range(n_inputs):
                    for j in range(card):
                        grad[at[i] + j] += x[j]
            _advance(plan, s, digit, at)


@njit(cache=True, nogil=True)
def extend(plan, p, bound, delta, work, states, out):  # type: ignore[no-untyped-def]
    """Bounds of a partial assignment of all later positions, extended by each state of position p's variable."""
    first = plan.pos_ptr[p]
    card = plan.card[first]
    for j in range(card):
        out[j] = bound
    for s in range(first, plan.pos_ptr[p + 1]):
        n_inputs = plan.input_ptr[s + 1] - plan.input_ptr[s]
        n_axes = plan.axis_ptr[s + 1] - plan.axis_ptr[s]
        place = 0
        for a in range(n_axes):
            axis = plan.axis_ptr[s] + a
            place = place * plan.axis_size[axis] + states[plan.axis_var[axis]]
        message = work[plan.message_at[s] + place]
        for j in range(card):
            out[j] += delta[plan.delta_at[s] + j] - message
        for i in range(n_inputs):
            at = plan.input_at[plan.input_ptr[s] + i]
            for a in range(n_axes):
                at += states[plan.axis_var[plan.axis_ptr[s] + a]] * plan.stride[plan.stride_ptr[s] + a * n_inputs + i]
            for j in range(card):
                out[j] += work[at + j]
    return card


@njit(cache=True, nogil=True)
def descend(plan, delta, work, states, depth, bound, open_bounds, lower, budget):  # type: ignore[no-untyped-def]
    """Depth-first branch and bound over the outputs, last eliminated first, best state first.

    ``open_bounds[d]`` holds the bounds of the untried states at depth d, ``bound[d]`` that of the assignment down to
    it. Call with ``depth = -1`` to begin and with the depth returned to go on. Returns ``(depth, leaf)``: at a leaf
    all outputs are assigned in ``states``; ``depth = -1`` without a leaf means that the tree is exhausted.
    """
    last = len(plan.pos_ptr) - 2
    n_levels = last + 1 - plan.n_hidden
    if depth < 0:
        depth = 0
        open_bounds[0, :] = -np.inf
        if n_levels:
            extend(plan, last, bound[0], delta, work, states, open_bounds[0])
    elif depth == n_levels:
        depth -= 1
    if n_levels == 0:
        return 0, True
    for _ in range(budget):
        best = np.argmax(open_bounds[depth])
        f = open_bounds[depth, best]
        if not f > lower:
            depth -= 1
            if depth < 0:
                return -1, False
            continue
        open_bounds[depth, best] = -np.inf
        states[plan.var[plan.pos_ptr[last - depth]]] = best
        depth += 1
        bound[depth] = f
        if depth == n_levels:
            return depth, True
        open_bounds[depth, :] = -np.inf
        extend(plan, last - depth, f, delta, work, states, open_bounds[depth])
    return depth, False


@njit(cache=True, nogil=True)
def decode(plan, delta, work, states):  # type: ignore[no-untyped-def]
    """Back-substitution: for every output, last eliminated first, the first state with the best bound."""
    out = np.zeros(plan.max_card)
    for p in range(len(plan.pos_ptr) - 2, plan.n_hidden - 1, -1):
        card = extend(plan, p, 0.0, delta, work, states, out)
        states[plan.var[plan.pos_ptr[p]]] = np.argmax(out[:card])

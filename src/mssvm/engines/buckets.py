"""Moving scores and gradients between the batch's arrays and the work vector of one instance."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def load(program, layout, scores, b, work):  # type: ignore[no-untyped-def]
    """Copy the instance's scores into their slots; forbidden states become -inf."""
    var_ptr, factor_ptr, unary_ptr, table_at, _ = layout
    unary, tables, allowed, first = scores
    work[: program.n_slots] = 0.0
    v0, f0 = var_ptr[b], factor_ptr[b]
    for v in range(len(program.clamped)):
        p = unary_ptr[v0 + v]
        slot = program.unary_slot[v]
        if program.clamped[v]:
            work[slot] += unary[p + first[v0 + v]]
        else:
            for k in range(unary_ptr[v0 + v + 1] - p):
                work[slot + k] += unary[p + k] if allowed[p + k] else -np.inf
    for f in range(len(program.factor_slot)):
        source = table_at[f0 + f] + _clamp_offset(program, f, first, v0)
        slot, index = program.factor_slot[f], program.index_at[f]
        for k in range(program.factor_size[f]):
            work[slot + k] += tables[source + program.index[index + k]]


@njit(cache=True, nogil=True)
def _clamp_offset(program, f, first, v0):  # type: ignore[no-untyped-def]
    offset = 0
    for c in range(program.clamp_ptr[f], program.clamp_ptr[f + 1]):
        offset += first[v0 + program.clamp_var[c]] * program.clamp_stride[c]
    return offset


@njit(cache=True, nogil=True)
def clear(program, layout, b, mu_unary, mu_tables):  # type: ignore[no-untyped-def]
    var_ptr, factor_ptr, unary_ptr, _, mu_at = layout
    mu_unary[unary_ptr[var_ptr[b]] : unary_ptr[var_ptr[b + 1]]] = 0.0
    for f in range(len(program.factor_slot)):
        size = program.factor_size[f]
        for c in range(program.clamp_ptr[f], program.clamp_ptr[f + 1]):
            v = var_ptr[b] + program.clamp_var[c]
            size *= unary_ptr[v + 1] - unary_ptr[v]
        start = mu_at[factor_ptr[b] + f]
        mu_tables[start : start + size] = 0.0


@njit(cache=True, nogil=True)
def store(program, layout, scores, b, grad, mu_unary, mu_tables):  # type: ignore[no-untyped-def]
    """Add the gradients of the slots to the marginals they belong to: the adjoint of ``load``."""
    var_ptr, factor_ptr, unary_ptr, _, mu_at = layout
    _, _, _, first = scores
    v0, f0 = var_ptr[b], factor_ptr[b]
    for v in range(len(program.clamped)):
        p = unary_ptr[v0 + v]
        slot = program.unary_slot[v]
        if program.clamped[v]:
            mu_unary[p + first[v0 + v]] = grad[slot]
        else:
            for k in range(unary_ptr[v0 + v + 1] - p):
                mu_unary[p + k] = grad[slot + k]
    for f in range(len(program.factor_slot)):
        target = mu_at[f0 + f] + _clamp_offset(program, f, first, v0)
        slot, index = program.factor_slot[f], program.index_at[f]
        for k in range(program.factor_size[f]):
            mu_tables[target + program.index[index + k]] += grad[slot + k]


@njit(cache=True, nogil=True)
def prepare(program, s, eps, max_spread, work, domain, shift):  # type: ignore[no-untyped-def]
    """Bring a step's inputs to one domain; returns (scaled, feasible).

    An input of domain 0 holds scores; one of domain t > 0 holds x with score t * log x + shift.
    """
    spread = 0.0
    for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
        x = work[program.input_at[i] : program.input_at[i] + program.input_size[i]]
        floor = 0.0 if domain[i] > 0.0 else -np.inf
        low, high = np.inf, floor
        for a in x:
            high = max(high, a)
            if a > floor:
                low = min(low, a)
        if high == floor:
            return False, False
        if eps > 0.0:
            spread += domain[i] / eps * np.log(high / low) if domain[i] > 0.0 else (high - low) / eps
    scaled = eps > 0.0 and spread < max_spread
    for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
        x = work[program.input_at[i] : program.input_at[i] + program.input_size[i]]
        high = x.max()
        if scaled and domain[i] == eps:
            for k in range(len(x)):
                x[k] /= high
            shift[i] += eps * np.log(high)
            continue
        if domain[i] > 0.0:
            for k in range(len(x)):
                x[k] = domain[i] * np.log(x[k]) + shift[i] if x[k] > 0.0 else -np.inf
            high = domain[i] * np.log(high) + shift[i]
            shift[i] = 0.0
        if scaled:
            for k in range(len(x)):
                x[k] = np.exp((x[k] - high) / eps)
            shift[i] = high
    return scaled, True

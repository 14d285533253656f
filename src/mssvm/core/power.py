"""The operator everything is made of: the power sum (paper eq. 5).

    PS_eps(a) = eps * log sum exp(a / eps),        PS_0(a) = max(a)

``power_sum`` is exact at eps = 0, never overflows, and accepts -inf entries (forbidden states).
"""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.checks import temperature


def power_sum(a: Floats, eps: float, axis: int = -1) -> tuple[Floats, Floats]:
    """Return ``(value, weights)`` of PS_eps along ``axis``; ``weights`` = d value / d a.

    ``value`` drops ``axis``; ``weights`` has the shape of ``a`` and sums to one along ``axis``.
    At eps = 0 the weights are the indicator of the first maximiser, a subgradient that is a vertex,
    so chained calls give the marginals of one assignment. Where all entries are -inf the value is
    -inf and the weights are zero.
    """
    eps = temperature(eps, "eps")
    a = np.asarray(a, dtype=np.float64)
    top = a.max(axis=axis, keepdims=True)
    feasible = top > -np.inf
    shift = np.where(feasible, top, 0.0)
    if eps == 0.0:
        weights = np.zeros_like(a)
        np.put_along_axis(weights, np.expand_dims(a.argmax(axis=axis), axis), 1.0, axis=axis)
        return np.squeeze(top, axis=axis), np.where(feasible, weights, 0.0)
    # Subtract before dividing: a / eps alone overflows for tiny eps.
    with np.errstate(over="ignore"):
        weights = np.exp((a - shift) / eps)
    total = weights.sum(axis=axis, keepdims=True)
    safe = np.where(feasible, total, 1.0)
    value = np.where(feasible, shift + eps * np.log(safe), -np.inf)
    return np.squeeze(value, axis=axis), weights / safe

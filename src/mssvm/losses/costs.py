"""Cost matrices: checks, and the cost of a prediction where labels admit a set of states."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError


def checked_matrix(cost: Floats) -> Floats:
    """A checked cost matrix, from a matrix or from one weight per true class."""
    if cost.ndim == 1:
        cost = np.where(np.eye(len(cost), dtype=bool), 0.0, cost[:, None])
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise InputError(f"a cost must be a square matrix or one weight per class, got shape {cost.shape}.")
    if not np.all(np.isfinite(cost)) or np.any(cost < 0):
        raise InputError("a cost must hold finite numbers >= 0.")
    if np.any(np.diagonal(cost) != 0):
        raise InputError("a cost must be 0 on the diagonal: predicting the truth costs nothing.")
    return cost


def cost_against_set(admitted: Bools, cost: Floats) -> Floats:
    """Rows of 0 where ``admitted`` and min over the admitted s of cost[s, y] elsewhere."""
    single = admitted.sum(axis=1) == 1
    rows: Floats = cost[admitted.argmax(axis=1)]
    if single.all():
        return rows
    several = admitted[~single]
    lowest = np.full(several.shape, np.inf)
    for s in range(cost.shape[0]):
        np.minimum(lowest, cost[s], out=lowest, where=several[:, s, None])
    rows[~single] = np.where(several, 0.0, lowest)
    return rows

"""Starting weights. w = 0 is a trap: all states of a hidden variable receive the same gradient."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError


def random_start(n_weights: int, *, seed: int = 0, scale: float = 0.1, hidden: Bools | None = None) -> Floats:
    """N(0, scale^2) on those of ``n_weights`` weights that touch hidden states (mask ``hidden``; default all), zero
    elsewhere; ``seed`` is that of the numbers.

    >>> ms.solvers.random_start(3, seed=0, hidden=np.array([False, True, False])).round(3).tolist()
    [0.0, -0.013, 0.0]
    """
    w = scale * np.random.default_rng(seed).standard_normal(n_weights)
    if hidden is None:
        return w
    if np.shape(hidden) != (n_weights,):
        raise InputError(f"the mask of hidden weights has shape {np.shape(hidden)} for {n_weights} weights.")
    return np.where(hidden, w, 0.0)

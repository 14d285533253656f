"""Where training starts: the parameter ``init`` in terms of ``optim``'s starts (w = 0 is a trap for hidden states)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError
from mssvm.objectives.problem import Problem
from mssvm.optim import Regulariser
from mssvm.optim.start import hcrf_start, random_start, zero_start

NAMES = ("auto", "zeros", "random", "hcrf")
LARGEST_SEED = np.iinfo(np.int32).max


def starts(
    init: Any, problem: Problem, hidden: Bools, n_init: int, rng: np.random.RandomState, regulariser: Regulariser
) -> Iterator[Floats]:
    """Starting weights of every restart; one where all would be the same or the problem has one minimum.

    ``hidden`` marks the weights that touch hidden variables.
    """
    n = problem.n_weights
    if not isinstance(init, str):
        given = np.asarray(init, dtype=np.float64)
        if given.shape != (n,) or not np.all(np.isfinite(given)):
            raise InputError(f"init as an array needs {n} finite numbers, one per weight; it has shape {given.shape}.")
        yield given.copy()
        return
    if init not in NAMES:
        raise InputError(f"init must be one of {', '.join(map(repr, NAMES))} or an array of weights, got {init!r}.")
    if init == "zeros":
        yield zero_start(problem, hidden)
        return
    random = np.ones(n, dtype=bool) if init == "random" else hidden
    for _ in range(1 if problem.convex or not random.any() else n_init):
        w = random_start(n, seed=int(rng.randint(LARGEST_SEED)), hidden=random)
        yield hcrf_start(problem, w, regulariser=regulariser) if init == "hcrf" else w

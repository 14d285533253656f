"""Where training starts. At w = 0 hidden states of one variable are exchangeable and, for eps_h > 0, stay so for ever
(every state gets the same gradient), so weights that touch hidden variables start at small random values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mssvm.arrays import Bools, Floats
from mssvm.errors import InputError, MssvmWarning
from mssvm.objectives.problem import Problem

SPREAD = 0.1  # standard deviation of random starting weights
NAMES = ("auto", "zeros", "random", "tempered")


def starts(
    init: Any, problem: Problem, hidden: Bools, n_init: int, rng: np.random.RandomState
) -> Iterator[tuple[Floats, bool]]:
    """Starting weights of every restart, and whether to train at temperatures (1, 1) first.

    ``hidden`` marks the weights that touch hidden variables. A convex problem has one minimum: one start is enough.
    """
    n = problem.n_weights
    if not isinstance(init, str):
        given = np.asarray(init, dtype=np.float64)
        if given.shape != (n,) or not np.all(np.isfinite(given)):
            raise InputError(f"init as an array needs {n} finite numbers, one per weight; it has shape {given.shape}.")
        yield given.copy(), False
        return
    if init not in NAMES:
        raise InputError(f"init must be one of {', '.join(map(repr, NAMES))} or an array of weights, got {init!r}.")
    if init == "zeros" and hidden.any() and problem.temperatures[1] > 0:
        warnings.warn(
            "init='zeros' leaves the states of hidden variables exchangeable for ever, so that they learn nothing; "
            "use init='auto'.",
            MssvmWarning,
            stacklevel=2,
        )
    random = np.ones(n, dtype=bool) if init == "random" else hidden & (init != "zeros")
    if problem.convex or not random.any():
        n_init = 1
    for _ in range(n_init):
        w = np.zeros(n)
        w[random] = rng.normal(0.0, SPREAD, int(random.sum()))
        yield w, init == "tempered"

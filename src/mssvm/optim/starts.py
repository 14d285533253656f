"""Where to start: with hidden variables at eps_h > 0, w = 0 is a trap.

At w = 0 all states of a hidden variable receive the same gradient, so their weights stay equal for ever. Small random
weights on the features that touch hidden states break the tie; a short likelihood fit is a better start when most
labels are missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.checks import numbers
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.objectives.problem import Problem
from mssvm.optim.lbfgs import LBFGS
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.solver import PLAIN

STARTS = ("auto", "zeros", "random", "hcrf")
LARGEST_SEED = np.iinfo(np.int32).max


def starts(
    init: Any, problem: Problem, hidden: Bools, n_init: int, rng: np.random.RandomState, regulariser: Regulariser
) -> Iterator[Floats]:
    """Starting weights of every restart; one where all would be the same or the problem has one minimum.

    ``init`` is a name of ``STARTS`` or an array; ``hidden`` marks the weights that touch hidden variables.
    """
    n = problem.n_weights
    if not isinstance(init, str):
        needs = f"{n} finite numbers, one per weight; it has shape {np.shape(init)}."
        given = numbers(init, "init as an array", needs)
        if given.shape != (n,):
            raise InputError(f"init as an array needs {needs}")
        yield given.copy()
    elif init not in STARTS:
        raise InputError(f"init must be one of {', '.join(map(repr, STARTS))} or an array of weights, got {init!r}.")
    elif init == "zeros":
        yield zero_start(problem, hidden)
    else:
        random = np.ones(n, dtype=bool) if init == "random" else hidden
        for _ in range(n_starts(init, problem, hidden, n_init)):
            w = random_start(n, seed=int(rng.randint(LARGEST_SEED)), hidden=random)
            yield hcrf_start(problem, w, regulariser=regulariser) if init == "hcrf" else w


def n_starts(init: Any, problem: Problem, hidden: Bools, n_init: int) -> int:
    """How many different starts there are."""
    several = isinstance(init, str) and init != "zeros" and (init == "random" or bool(hidden.any()))
    return n_init if several and not problem.convex else 1


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


def zero_start(problem: Problem, hidden: Bools) -> Floats:
    """All zeros, with a warning if that freezes the hidden states."""
    if problem.temperatures[1] > 0 and np.any(hidden):
        warnings.warn(
            "w = 0 with eps_h > 0: all states of a hidden variable get the same gradient and stay identical for ever; "
            "use random_start unless hidden and labelled variables share their features.",
            MssvmWarning,
            stacklevel=2,
        )
    return np.zeros(problem.n_weights)


@runtime_checkable
class HasLikelihood(Protocol):
    """A problem that knows the likelihood of the same model and sample: temperatures 1 and no loss."""

    def likelihood(self) -> Problem: ...


def hcrf_start(problem: Problem, w0: Floats, *, regulariser: Regulariser = PLAIN, max_iterations: int = 30) -> Floats:
    """Weights of a short likelihood fit from ``w0``; without a known likelihood, of the problem at temperatures 1."""
    smooth = problem.likelihood() if isinstance(problem, HasLikelihood) else problem.at(1.0, 1.0)
    return LBFGS(max_iterations=max_iterations).minimize(smooth, w0, regulariser=regulariser).w

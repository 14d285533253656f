"""Where to start: with hidden variables at eps_h > 0, w = 0 is a trap.

At w = 0 all states of a hidden variable receive the same gradient, so their weights stay equal for ever. Small random
weights on the features that touch hidden states break the tie; a short likelihood fit is a better start when most
labels are missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.objectives.problem import Problem
from mssvm.optim.lbfgs import LBFGS
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.solution import Outcome, Solution
from mssvm.optim.solver import PLAIN, Solver


def random_start(n_weights: int, *, seed: int = 0, scale: float = 0.1, hidden: Bools | None = None) -> Floats:
    """N(0, scale^2) on the weights that touch hidden states (mask ``hidden``; default all weights), zero elsewhere."""
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


@dataclass(frozen=True, eq=False)
class Restarts:
    """The best of several solutions, and the objectives of all of them."""

    best: Solution
    objectives: Floats

    @property
    def spread(self) -> float:
        """Highest minus lowest objective."""
        return float(np.nanmax(self.objectives) - np.nanmin(self.objectives))


def restarts(solver: Solver[Any], problem: Problem, starts: Sequence[Floats], **options: Any) -> Restarts:
    """Solve from every start and keep the lowest objective; an interruption ends the series. ``options`` go to
    ``solver.minimize``, except that a checkpoint would belong to one start only."""
    if not starts:
        raise InputError("restarts needs at least one start.")
    if options.get("checkpoint") is not None and len(starts) > 1:
        raise InputError("a checkpoint belongs to one start; give each its own call of minimize.")
    solutions: list[Solution] = []
    for w0 in starts:
        solutions.append(solver.minimize(problem, w0, **options))
        if solutions[-1].outcome is Outcome.INTERRUPTED:
            break
    return Restarts(best_of(solutions), np.array([s.objective for s in solutions]))


def best_of(solutions: Sequence[Solution]) -> Solution:
    """The lowest objective of a series of starts; interrupted, if the series was."""
    best = min(solutions, key=lambda s: s.objective if np.isfinite(s.objective) else np.inf)
    last = solutions[-1]
    return replace(best, outcome=last.outcome, message=last.message) if last.outcome is Outcome.INTERRUPTED else best


def random_starts(n_init: int, n_weights: int, *, seed: int = 0, hidden: Bools | None = None) -> list[Floats]:
    """``n_init`` different random starts; the first is ``random_start`` with the same seed."""
    return [random_start(n_weights, seed=seed + k, hidden=hidden) for k in range(n_init)]

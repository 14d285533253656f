"""What a search may cost, and what it has found so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.inference.propagation.merge import MergeLimit


@dataclass(frozen=True)
class Effort:
    """How much is tried: which starts, how often, and what merging and local search may cost. The first decoded y of a
    run is judged after ``first_check`` sweeps, later ones each time their number has doubled; relabelled regions are
    judged before any sweep if ``judge_moves``. Cold starts on cycles begin with ``opening`` damped updates of all
    messages at once; sums that do not settle are tried again with damping if ``retry``."""

    starts: tuple[str, ...]
    sweeps: int
    merge: MergeLimit
    first_check: int = 2
    judge_moves: bool = True
    opening: int = 10
    retry: bool = True
    restarts: int = 0
    flips: int = 0
    gibbs: int = 0
    rounds: int = 0
    budget: float = 0.0


@dataclass(eq=False)
class Found:
    """Best outputs so far and how the runs behind them went; arrays over the whole batch, blocks fill their part."""

    value: Floats
    y: Ints
    converged: Bools
    sweeps: Ints
    residual: Floats
    upper: Floats
    method: AnyArray

    @classmethod
    def nothing(cls, n: int, n_vars: int) -> Found:
        none, zero = np.full(n_vars, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
        method = np.full(n, "mixed-product", dtype=object)
        return cls(np.full(n, -np.inf), none, zero > 0, zero, np.full(n, np.inf), np.full(n, np.nan), method)

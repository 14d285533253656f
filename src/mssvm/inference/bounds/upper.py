"""Upper bounds on the nested power sum (paper eq. 5) of every instance of a batch, for any (eps_y, eps_h).

``MiniBucket`` splits buckets whose tables would be too large. ``FactorDecomposition`` is the bound of Ping et al.
(2015),

    U  <=  sum_i PS_{w_i} [theta_i + sum_a d_i^a]  +  sum_a PS_{w^a} [theta_a - sum_{i in a} d_i^a]

with w_i + sum_a w_i^a = eps_h (hidden i) or eps_y (output i), every factor eliminated variable by variable, hidden ones
first: the weighted mini-bucket bound in which no two functions ever share a mini-bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.checks import temperature
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation

ROUNDING = 1e-12


class UpperBound(Protocol):
    """Upper bounds on PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta, one per instance."""

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Floats: ...


class _Relaxed:
    """The bound of every instance, relaxed to mini-buckets of at most ``entries`` table entries (0: one function each).

    ``iterations`` of L-BFGS follow the moment-matching pass; 0 leaves it at that pass, and so does a ``time_limit``
    (seconds per instance) that is used up by then.
    """

    entries: int
    iterations: int
    seed: int
    time_limit: float

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise InputError(f"iterations must be >= 0, got {self.iterations}.")

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Floats:
        eps_y = temperature(eps_y, "eps_y")
        eps_h = temperature(eps_h, "eps_h")
        theta.check(batch)
        query.check(batch)
        out = np.empty(len(batch))
        for b in range(len(batch)):
            deadline = monotonic() + self.time_limit
            instance = OneInstance.of(batch, b, theta, query)
            order = instance.order(eps_y == eps_h, seed=self.seed)
            relaxation = Relaxation(instance, order, self.entries, eps_y, eps_h)
            out[b] = relaxation.improve(self.iterations, deadline)
        # Raised by the rounding error of the sums, so that a tight bound is not below the value.
        return out + ROUNDING * np.where(np.isfinite(out), 1.0 + np.abs(out), 0.0)


@dataclass(frozen=True)
class MiniBucket(_Relaxed):
    """Upper bounds by weighted mini-buckets of at most ``2**ibound`` table entries; exact where nothing is split."""

    ibound: int = 12
    iterations: int = 40
    seed: int = 0
    time_limit: float = float("inf")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.ibound <= 32:
            raise InputError(f"ibound must be 1 to 32, got {self.ibound}.")

    @property
    def entries(self) -> int:  # type: ignore[override]
        return 1 << self.ibound


@dataclass(frozen=True)
class FactorDecomposition(_Relaxed):
    """Upper bounds by optimised decomposition into single factors; tables never grow, whatever the graph's width."""

    iterations: int = 100
    seed: int = 0
    time_limit: float = float("inf")
    entries = 0

"""The convex decomposition bound of Ping, Liu and Ihler (2015) on the nested power sum, for any (eps_y, eps_h).

    U  <=  sum_i PS_{w_i} [theta_i + sum_a d_i^a]  +  sum_a PS_{w^a} [theta_a - sum_{i in a} d_i^a]

with w_i + sum_a w_i^a = eps_h (hidden i) or eps_y (output i), every factor eliminated variable by variable, hidden ones
first. It is the weighted mini-bucket bound in which no two functions ever share a mini-bucket, so tables never grow
beyond the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch
from mssvm.inference.bounds.minibucket import Relaxing

NOTHING_SHARED = 0


@dataclass(frozen=True)
class Decomposition:
    """Upper bounds by optimised decomposition into single factors; cheap, whatever the width of the graph."""

    iterations: int = 100
    seed: int = 0
    time_limit: float = float("inf")

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise InputError(f"iterations must be >= 0, got {self.iterations}.")

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Floats:
        relax = Relaxing(NOTHING_SHARED, self.iterations, self.seed, self.time_limit)
        return relax(batch, theta, query, eps_y, eps_h)

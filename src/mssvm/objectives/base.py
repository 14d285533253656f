"""What the training problem needs of an objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Belief, Marginals, Potentials
from mssvm.inference.base import Inference
from mssvm.losses.losses import Loss
from mssvm.objectives.sample import Sample


@dataclass(frozen=True, eq=False)
class Difference:
    """Both parts' values and the difference of their gradients; ``converged`` counts the calls of inference that did,
    ``floored`` the instances that had to be raised to the subtracted part."""

    high: Floats
    low: Floats
    mu: Marginals
    converged: int
    exact: bool
    floored: int = 0


class Objective(Protocol):
    """A difference of two functions of theta, each convex in it, evaluated by inference."""

    @property
    def eps_y(self) -> float: ...

    @property
    def eps_h(self) -> float: ...

    @property
    def loss(self) -> Loss: ...

    def at(self, eps_y: float, eps_h: float) -> Self:
        """The same objective at other temperatures."""
        ...

    def minus(self, inference: Inference, sample: Sample, theta: Potentials) -> Belief:
        """The subtracted part and its gradient."""
        ...

    def plus(
        self, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials, minus: Belief | None = None
    ) -> tuple[Belief, int]:
        """The first part and its gradient, and the number of instances that had to be raised to ``minus``."""
        ...

    def difference(self, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials) -> Difference:
        """Both parts at once."""
        ...


def difference_of_parts(
    objective: Objective, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials
) -> Difference:
    """Both parts, one after the other."""
    low = objective.minus(inference, sample, theta)
    high, floored = objective.plus(inference, sample, theta, delta, low)
    both = (high.status, low.status)
    converged = sum(int(status.converged.sum()) for status in both)
    exact = all(bool(status.exact.all()) for status in both)
    return Difference(high.value, low.value, high.mu - low.mu, converged, exact, floored)

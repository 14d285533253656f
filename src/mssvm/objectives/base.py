"""What the training problem needs of an objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Belief, Marginals, Potentials
from mssvm.engines.base import Plan
from mssvm.inference.base import Planner
from mssvm.losses import Loss
from mssvm.objectives.sample import Sample


@dataclass(frozen=True, eq=False)
class Difference:
    """Both parts' values and the difference of their gradients; ``converged`` counts the calls of inference that did,
    ``floored`` the instances whose first part had to be raised to the second."""

    plus: Floats
    minus: Floats
    mu: Marginals
    converged: int
    exact: bool
    floored: int = 0


class Parts(Protocol):
    """An objective bound to instances: two functions of theta, each convex in it, evaluated by inference."""

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        """The first part and its gradient, and the number of instances that had to be raised to the second."""
        ...

    def minus(self, theta: Potentials) -> Belief:
        """The subtracted part and its gradient."""
        ...

    def difference(self, theta: Potentials) -> Difference:
        """Both parts at once."""
        ...


class Objective(Protocol):
    """A difference of two functions of theta; ``bind`` resolves everything but theta, once."""

    @property
    def eps_y(self) -> float: ...

    @property
    def eps_h(self) -> float: ...

    @property
    def loss(self) -> Loss: ...

    def at(self, eps_y: float, eps_h: float) -> Self:
        """The same objective at other temperatures."""
        ...

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> Parts:
        """The objective on a sample with the loss tables ``delta``; ``plan`` is that of the sample's batch, and
        ``planner`` plans batches made from it."""
        ...


def difference_of_parts(parts: Parts, theta: Potentials) -> Difference:
    """Both parts, one after the other."""
    minus = parts.minus(theta)
    plus, floored = parts.plus(theta)
    both = (plus.status, minus.status)
    converged = sum(int(status.converged.sum()) for status in both)
    exact = all(bool(status.exact.all()) for status in both)
    return Difference(plus.value, minus.value, plus.mu - minus.mu, converged, exact, floored)

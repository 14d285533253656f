"""The interface of objectives: a difference of two functions of theta, bound to a sample once.

``unified``, ``m3e`` and ``modlat`` are objectives; a new one is a file that implements these two protocols.
"""

from __future__ import annotations

from typing import Protocol, Self

from mssvm.core.potentials import Belief, Potentials
from mssvm.engines.base import Paired, Plan
from mssvm.inference.base import Planner
from mssvm.losses import Loss
from mssvm.objectives.sample import Sample


class Parts(Protocol):
    """An objective bound to instances: two functions of theta, each convex in it, evaluated by inference."""

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        """The first part and its gradient, and the number of instances whose value was raised to that of ``minus``."""
        ...

    def minus(self, theta: Potentials) -> Belief:
        """The subtracted part and its gradient."""
        ...

    def difference(self, theta: Potentials) -> Paired:
        """Both parts at once: one after the other, unless an objective can share work between them."""
        minus = self.minus(theta)
        plus, floored = self.plus(theta)
        return Paired.of(plus, minus, floored)


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

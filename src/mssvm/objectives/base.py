"""What the training problem needs of an objective."""

from __future__ import annotations

from typing import Protocol, Self

from mssvm.inference.base import Inference
from mssvm.models.losses import Loss
from mssvm.objectives.sample import Sample
from mssvm.potentials import Belief, Potentials


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

"""Features of mapped weights: theta = Phi expand(w), and the gradient restrict(Phi^T mu).

``restrict`` is the transpose of the linear part of ``expand``: known weights get no gradient, and a weight that is used
in two places gets the sum of both gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Marginals, Potentials
from mssvm.engines.base import Features, Joined, JoiningFeatures, Pair
from mssvm.models.base import BoundOnDemand
from mssvm.models.linear import WeightLayout


class SameWeights(BoundOnDemand):
    """Base of models that map the weights of an inner ``model`` and have as many of them, with the same names."""

    model: Any

    @property
    def n_weights(self) -> int:
        n_weights: int = self.model.n_weights
        return n_weights

    @property
    def layout(self) -> WeightLayout | None:
        layout: WeightLayout | None = self.model.layout
        return layout


@dataclass(frozen=True, eq=False)
class MappedFeatures:
    """``features`` as a function of the weights that ``expand`` takes."""

    features: Features
    expand: Callable[[Floats], Floats]
    restrict: Callable[[Floats], Floats]

    def forward(self, w: Floats) -> Potentials:
        return self.features.forward(self.expand(w))

    def adjoint(self, mu: Marginals) -> Floats:
        return self.restrict(self.features.adjoint(mu))

    def joined(self, pair: Pair, cost: Potentials | None) -> Joined | None:
        if not isinstance(self.features, JoiningFeatures):
            return None
        inner = self.features.joined(pair, cost)
        if inner is None:
            return None

        def run(w: Floats) -> tuple[Floats, Floats, Floats]:
            plus, minus, gradient = inner(self.expand(w))
            return plus, minus, self.restrict(gradient)

        return run

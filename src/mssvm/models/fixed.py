"""A linear model some of whose weights are known: theta = Phi(x) v with v = fixed where given, w elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.models.layout import Layout
from mssvm.models.linear import LinearInputs, LinearModel


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """``values`` holds the known weights and NaN where w is free. Known ones get no gradient, so solvers leave them."""

    model: LinearModel
    values: Floats

    def __post_init__(self) -> None:
        if self.values.shape != (self.model.n_weights,) or np.isinf(self.values).any():
            raise InputError(f"fixed weights need one finite number or NaN for each of {self.model.n_weights} weights.")

    @property
    def n_weights(self) -> int:
        return self.model.n_weights

    @property
    def gradient_size(self) -> int:
        return self.model.gradient_size

    @property
    def layout(self) -> Layout | None:
        return self.model.layout

    @property
    def known(self) -> Bools:
        return ~np.isnan(self.values)

    def fill(self, w: Floats) -> Floats:
        """The weights that act: ``w`` with the known ones put in."""
        return np.where(self.known, self.values, w)

    def forward(self, w: Floats, x: LinearInputs) -> Potentials:
        return self.model.forward(self.fill(w), x)

    def adjoint(self, mu: Marginals, x: LinearInputs) -> Floats:
        return np.where(self.known, 0.0, self.model.adjoint(mu, x))

    def touching(self, x: LinearInputs, variables: Bools) -> Bools:
        """Free weights of blocks that act on any of the given variables."""
        return self.model.touching(x, variables) & ~self.known

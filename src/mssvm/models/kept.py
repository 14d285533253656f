"""A linear model with some of its weights left out: theta = Phi(x) v with v = w where kept, 0 elsewhere.

Solvers see the kept weights only; what they do with vectors costs as much as there are weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.arrays import AnyArray, Floats, Ints
from mssvm.errors import InputError
from mssvm.models.fixed import FixedWeights
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.potentials import Marginals, Potentials


@dataclass(frozen=True, eq=False)
class KeptWeights:
    """``places`` are the numbers, rising, of the weights of ``model`` that are kept."""

    model: LinearModel | FixedWeights
    places: Ints

    @property
    def n_weights(self) -> int:
        return len(self.places)

    @property
    def gradient_size(self) -> int:
        return self.model.gradient_size

    def take(self, values: AnyArray) -> Any:
        """The entries of the kept weights."""
        if np.shape(values) != (self.model.n_weights,):
            raise InputError(f"there are {self.model.n_weights} weights, but the array has shape {np.shape(values)}.")
        return values[self.places]

    def fill(self, w: Floats) -> Floats:
        """The weights that act: ``w`` where kept, 0 elsewhere."""
        out = np.zeros(self.model.n_weights)
        out[self.places] = w
        return self.model.fill(out)

    def forward(self, w: Floats, x: LinearInputs) -> Potentials:
        return self.model.forward(self.fill(w), x)

    def adjoint(self, mu: Marginals, x: LinearInputs) -> Floats:
        return self.model.adjoint(mu, x)[self.places]

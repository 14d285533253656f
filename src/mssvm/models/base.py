"""What a model is to the rest of the library: weights and inputs to potentials, and the transpose of that map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch


class Inputs(Protocol):
    """Features of a batch of instances, together with its layout."""

    @property
    def batch(self) -> Batch: ...

    def select(self, which: Sequence[int] | Ints) -> Inputs: ...


X = TypeVar("X", bound=Inputs, contravariant=True)


class Model(Protocol[X]):
    """theta = forward(w, x) is linear (or differentiable) in w; adjoint(mu, x) = (d theta / d w)^T mu."""

    @property
    def n_weights(self) -> int: ...

    @property
    def gradient_size(self) -> int:
        """Numbers that one ``forward`` and ``adjoint`` write beside scores, which may be more than the weights."""
        ...

    def forward(self, w: Floats, x: X) -> Potentials: ...

    def adjoint(self, mu: Marginals, x: X) -> Floats: ...

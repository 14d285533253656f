"""The interface of models: the map from weights and inputs to potentials, and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import Engine, Features


class Inputs(Protocol):
    """Features of a batch of instances, together with its layout."""

    @property
    def batch(self) -> Batch: ...

    def select(self, instances: Sequence[int] | Ints) -> Inputs: ...


X = TypeVar("X", bound=Inputs, contravariant=True)


class Model(Protocol[X]):
    """theta = bind(x, engine).forward(w) is linear (or differentiable) in w; ``adjoint`` is (d theta / d w)^T mu.

    ``forward`` and ``adjoint`` of the model bind in every call; to run often, bind once and use the features.
    """

    @property
    def n_weights(self) -> int: ...

    def bind(self, inputs: X, engine: Engine) -> Features: ...

    def forward(self, w: Floats, x: X) -> Potentials: ...

    def adjoint(self, mu: Marginals, x: X) -> Floats: ...


class BoundOnDemand:
    """Base of models that define only ``bind``: ``forward`` and ``adjoint`` bind in every call."""

    def bind(self, inputs: Any, engine: Engine) -> Features:
        raise NotImplementedError

    def forward(self, w: Floats, x: Any) -> Potentials:
        return self.bind(x, engine_of()).forward(w)

    def adjoint(self, mu: Marginals, x: Any) -> Floats:
        return self.bind(x, engine_of()).adjoint(mu)

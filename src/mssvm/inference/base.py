"""The one shape of every inference method."""

from __future__ import annotations

from typing import Protocol

from mssvm.arrays import Floats, Ints
from mssvm.graph import Batch
from mssvm.potentials import Belief, Marginals, Potentials, Query


class Inference(Protocol):
    """Callable computing PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta for every instance of a batch."""

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief: ...


class Contrast(Protocol):
    """A method that some inferences have: a value, the value under a narrower mask and the difference of the gradients
    in one pass; None where only two calls can give them."""

    def __call__(
        self, batch: Batch, theta: Potentials, query: Query, given: Query, eps_y: float, eps_h: float
    ) -> tuple[Floats, Floats, Marginals] | None: ...


class Filler(Protocol):
    """An exact method that handles some instances of a batch and writes its results in place."""

    def fill(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        eps_y: float,
        eps_h: float,
        which: Ints,
        value: Floats,
        mu: Marginals | None,
    ) -> None: ...

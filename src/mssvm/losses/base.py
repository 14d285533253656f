"""The interface of a loss: Delta(truth, prediction) as a table to add to the potentials (paper eq. 3 and section 4).

The first index of a cost is always the truth, the second the prediction. Hidden variables carry no loss. Where the
label is a set S of states the loss is 0 inside S and min over s in S of cost[s, y] outside: a set of one is a label.
Losses are settings in scikit-learn's sense: ``loss__scale`` can be searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch


class Loss(Protocol):
    """Delta as potentials: the cost of a prediction, given the states that the labels admit.

    A loss with ``needs_own_tables = True`` adds to the tables of factors, which therefore must not be shared. An
    ``ExpectedLoss`` can also be minimised in expectation, as ``decode="marginal"`` does; so can all losses of this
    package but ``SpanLoss`` and ``ZeroOne``.

    >>> class Half:                                                                # of what Hamming counts
    ...     def delta(self, batch, output, truth, site_weight):
    ...         return ms.losses.Hamming(scale=0.5).delta(batch, output, truth, site_weight)
    >>> ms.SSVM(ms.Chain(), loss=Half()).fit(X, y).score(X, y)
    1.0
    """

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials: ...


class ExpectedLoss(Loss, Protocol):
    """A loss whose expectation is known: E[Delta(truth, y)], truth distributed as ``mu``, as potentials of y."""

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials: ...


class TiedInputs(Protocol):
    """Inputs of a model whose factors may share tables."""

    def untied(self) -> Self: ...


def refuse_site_weights(name: str, output: Bools, site_weight: Floats) -> None:
    """Raise unless all outputs have weight 1: a loss that is no sum over sites would ignore other weights."""
    if np.any(site_weight[output] != 1.0):
        raise UnsupportedError(
            f"the loss {name} is no sum over sites, so sites and classes have no weights in it; leave class_weight "
            "and site_weight out, or use 'hamming'."
        )


InputsT = TypeVar("InputsT", bound=TiedInputs)


def inputs_for(loss: Loss | None, inputs: InputsT) -> InputsT:
    """The inputs in the form that the loss needs: with a table of its own for every factor, or as they are."""
    return inputs.untied() if getattr(loss, "needs_own_tables", False) else inputs


@dataclass(frozen=True)
class Zero(Settings):
    """No loss (hidden conditional random fields).

    >>> ms.LossAugmentedCRF(loss=ms.losses.Zero()).fit(X, y).score(X, y)            # as CRF
    1.0
    """

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        return Potentials.zeros(batch)

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        return Potentials.zeros(batch)


class ScaledLoss(Settings):
    """Base of losses with a ``scale``, and ``normalize`` to divide by the number of outputs of the instance."""

    normalize: bool
    scale: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale >= 0.0):
            raise InputError(f"the scale of a loss must be a finite number >= 0, got {self.scale!r}.")

    def per_variable(self, batch: Batch, output: Bools) -> Floats:
        """Factor that multiplies the loss of each variable."""
        if not self.normalize:
            return np.full(batch.n_vars, self.scale)
        count = np.bincount(batch.owner, weights=output, minlength=len(batch))
        return (self.scale / np.maximum(count, 1.0))[batch.owner]

"""Losses on single sites.

Hamming          Delta(y_i, y) = sum_j c_j 1[y_j != y_ij]
WeightedHamming  Delta(y_i, y) = sum_j c_j cost[y_ij, y_j]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch
from mssvm.losses.base import ScaledLoss
from mssvm.losses.costs import checked_matrix, cost_against_set


@dataclass(frozen=True)
class Hamming(ScaledLoss):
    """Number of wrong outputs times ``scale``; ``normalize`` divides by the number of outputs of the instance.

    >>> ms.SSVM(ms.Chain(), loss=ms.losses.Hamming(normalize=True, scale=2.0), C=10.0).fit(X, y).score(X, y)
    1.0
    """

    normalize: bool = False
    scale: float = 1.0

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        per_site = np.where(output, site_weight, 0.0) * self.per_variable(batch, output)
        unary = np.where(truth, 0.0, np.repeat(per_site, batch.cards))
        return Potentials(unary, np.zeros(batch.n_table_entries))

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        per_site = np.where(output, self.per_variable(batch, output), 0.0)
        return Potentials((1.0 - mu.unary) * np.repeat(per_site, batch.cards), np.zeros(batch.n_table_entries))


@dataclass(frozen=True, eq=False)
class WeightedHamming(ScaledLoss):
    """A cost for every pair (truth, prediction): a square matrix, or one weight per true class.

    A vector c means cost[s, y] = c[s] for y != s. ``cost`` may also be a mapping from number of states to matrix or
    vector, for models whose outputs differ in their numbers of states. ``scale`` and ``normalize`` are as in
    ``Hamming``.

    >>> loss = ms.losses.WeightedHamming([5.0, 1.0, 1.0])                          # a B that is missed costs 5
    >>> ms.SSVM(ms.Chain(), loss=loss).fit(X, y).score(X, y)
    1.0
    """

    cost: AnyArray | Mapping[int, AnyArray]
    normalize: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = list(self.matrices)  # raises on unusable costs
        if isinstance(self.cost, Mapping) and list(self.cost) != sizes:
            raise InputError("WeightedHamming: every key of cost must be the number of states of its matrix.")

    @cached_property
    def matrices(self) -> dict[int, Floats]:
        """The cost matrix of outputs by their number of states."""
        costs = self.cost.values() if isinstance(self.cost, Mapping) else [self.cost]
        matrices = [checked_matrix(np.asarray(cost, dtype=np.float64)) for cost in costs]
        return {len(matrix): matrix for matrix in matrices}

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        def rows(at: Ints, cost: Floats) -> Floats:
            return cost_against_set(truth[at], cost)

        return self._over_sites(batch, output, site_weight, rows)

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        def rows(at: Ints, cost: Floats) -> Floats:
            return np.asarray(mu.unary[at] @ cost)

        return self._over_sites(batch, output, np.ones(batch.n_vars), rows)

    def _over_sites(
        self, batch: Batch, output: Bools, site_weight: Floats, rows: Callable[[Ints, Floats], Floats]
    ) -> Potentials:
        """Potentials from ``rows(at, cost)``, the costs (outputs, states) of all outputs with one number of states.

        ``at`` are the entries of their states, ``cost`` is their cost matrix.
        """
        unary = np.zeros(batch.n_states)
        scale = site_weight * self.per_variable(batch, output)
        for card in np.unique(batch.cards[output]).tolist():
            if card not in self.matrices:
                sizes = ", ".join(str(size) for size in self.matrices)
                raise InputError(
                    f"WeightedHamming has costs for {sizes} states, but some output has {card}; "
                    "pass a mapping from number of states to matrix."
                )
            members = np.flatnonzero(output & (batch.cards == card))
            at = batch.unary_ptr[members][:, None] + np.arange(card)
            unary[at] = rows(at, self.matrices[card]) * scale[members, None]
        return Potentials(unary, np.zeros(batch.n_table_entries))

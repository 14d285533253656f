"""A linear model with some of its weights left out, as zero: solvers and feature sums deal with the others only.

Weights are left out of terms with sparse features. Features of which many states are kept are laid out whole, because
a loop over all states is faster than one over a list; the weights that this adds get no gradient and stay zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.models.fixed import FixedWeights
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.models.terms import Listed, Term

WHOLE_FROM = 0.2  # share of a feature's states from which it is laid out whole


@dataclass(frozen=True, eq=False)
class KeptWeights:
    """``model`` is over the weights laid out, numbers ``laid`` of all ``n_all``; of these ``places`` are free."""

    model: LinearModel | FixedWeights
    n_all: int
    laid: Ints
    places: Ints

    @classmethod
    def of(cls, model: LinearModel | FixedWeights, inputs: LinearInputs, keep: Bools) -> KeptWeights:
        """``model`` without the weights where ``keep`` is False; only terms for which ``can_thin`` may have any."""
        whole = keep.copy()
        for term in inputs.terms:
            if can_thin(term):
                table = whole[term.block[0] : term.block[0] + term.block_size].reshape(-1, term.width)
                table[table.mean(axis=1) >= WHOLE_FROM] = True
        laid = np.flatnonzero(whole)
        smaller = LinearModel(len(laid))
        known = FixedWeights(smaller, model.values[laid]) if isinstance(model, FixedWeights) else smaller
        return cls(known, model.n_weights, laid, np.flatnonzero(keep[laid]))

    @property
    def n_weights(self) -> int:
        return len(self.places)

    @property
    def gradient_size(self) -> int:
        return 2 * self.model.gradient_size + len(self.places)

    def take(self, values: AnyArray) -> Any:
        """The entries of the free weights among those of all weights."""
        if np.shape(values) != (self.n_all,):
            raise InputError(f"there are {self.n_all} weights, but the array has shape {np.shape(values)}.")
        return values[self.laid[self.places]]

    def fill(self, w: Floats) -> Floats:
        """All weights: ``w`` where free, known ones put in, 0 elsewhere."""
        out = np.zeros(self.n_all)
        out[self.laid] = self.model.fill(self._spread(w))
        return out

    def inputs(self, x: LinearInputs) -> LinearInputs:
        """The features of ``x`` for the weights laid out."""
        return replace(x, terms=tuple(self._term(term) for term in x.terms))

    def forward(self, w: Floats, x: LinearInputs) -> Potentials:
        return self.model.forward(self._spread(w), x)

    def adjoint(self, mu: Marginals, x: LinearInputs) -> Floats:
        return self.model.adjoint(mu, x)[self.places]

    def _spread(self, w: Floats) -> Floats:
        out = np.zeros(len(self.laid))
        out[self.places] = w
        return out

    def _term(self, term: Term) -> Term:
        first = np.searchsorted(self.laid, term.block)
        count = np.searchsorted(self.laid, term.block + term.block_size) - first
        if np.all(count == term.block_size):
            return replace(term, block=first)
        if not can_thin(term):
            raise InputError("weights can be left out only where a term has one block and sparse features.")
        mine = self.laid[first[0] : first[0] + count[0]] - term.block[0]
        starts = np.searchsorted(mine, np.arange(term.features.shape[1] + 1) * term.width)
        return replace(term, block=first, listed=Listed(starts.astype(np.int64), mine % term.width))


def can_thin(term: Term) -> bool:
    """Whether some weights of the term may be left out."""
    return len(term.block) > 0 and sparse.issparse(term.features) and bool(np.all(term.block == term.block[0]))

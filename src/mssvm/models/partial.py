"""Linear models in which only some weights are trained: others are known (``FixedWeights``) or fixed at zero.

``ActiveWeights`` stores no weights that are fixed at zero, in terms with sparse features. Features with many active
states are stored whole, because a loop over all states is faster than one over a list; the weights that this adds get
no gradient and stay zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.terms import ActiveStates, Term
from mssvm.engines.base import Engine, Features
from mssvm.models.base import BoundOnDemand
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.models.mapped import MappedFeatures, SameWeights
from mssvm.models.symmetric import SymmetricTables

WHOLE_FROM = 0.2  # share of a feature's states from which it is stored whole


@dataclass(frozen=True, eq=False)
class FixedWeights(SameWeights):
    """theta = Phi(x) v with v = ``values`` where these are not NaN, w elsewhere.

    Known weights get no gradient, so solvers do not change them.
    """

    model: LinearModel | SymmetricTables
    values: Floats

    def __post_init__(self) -> None:
        if self.values.shape != (self.model.n_weights,) or np.isinf(self.values).any():
            raise InputError(f"fixed weights need one finite number or NaN for each of {self.model.n_weights} weights.")

    @cached_property
    def known(self) -> Bools:
        return ~np.isnan(self.values)

    def fill(self, w: Floats) -> Floats:
        """The weights by name: ``w`` with the known ones put in."""
        return np.where(self.known, self.values, w)

    expand = fill

    def select(self, numbers: Ints) -> FixedWeights:
        """The model over some of the weights, without their names."""
        return FixedWeights(self.model.select(numbers), self.values[numbers])

    def restrict(self, gradient: Floats) -> Floats:
        return np.where(self.known, 0.0, gradient)

    def bind(self, inputs: LinearInputs, engine: Engine) -> Features:
        return MappedFeatures(self.model.bind(inputs, engine), self.expand, self.restrict)


AllWeights = LinearModel | SymmetricTables | FixedWeights
"""A model over all weights of a structure."""


@dataclass(frozen=True, eq=False)
class ActiveWeights(BoundOnDemand):
    """A model over a subset of its weights.

    ``stored`` are the numbers, among all ``n_all`` weights, of those that ``model`` is over; ``active`` are the
    positions of the trained ones among them.
    """

    model: AllWeights
    n_all: int
    stored: Ints
    active: Ints

    @classmethod
    def of(cls, model: AllWeights, inputs: LinearInputs, keep: Bools, whole_from: float = WHOLE_FROM) -> ActiveWeights:
        """``model`` without the weights where ``keep`` is False; they must belong to ``has_optional_weights`` terms."""
        whole = keep.copy()
        for term in inputs.terms:
            if has_optional_weights(term):
                table = whole[term.block[0] : term.block[0] + term.block_size].reshape(-1, term.width)
                table[table.mean(axis=1) >= whole_from] = True
        stored = np.flatnonzero(whole)
        return cls(model.select(stored), model.n_weights, stored, np.flatnonzero(keep[stored]))

    @property
    def n_weights(self) -> int:
        return len(self.active)

    @property
    def gradient_size(self) -> int:
        """Length of the weight vectors that one ``forward`` and ``adjoint`` write: more than ``n_weights``."""
        return 2 * len(self.stored) + len(self.active)

    def take(self, values: AnyArray) -> Any:
        """The entries of the free weights among those of all weights."""
        if np.shape(values) != (self.n_all,):
            raise InputError(f"there are {self.n_all} weights, but the array has shape {np.shape(values)}.")
        return values[self.stored[self.active]]

    def fill(self, w: Floats) -> Floats:
        """All weights: ``w`` where free, known ones put in, 0 elsewhere."""
        weights = np.zeros(self.n_all)
        weights[self.stored] = self.model.fill(self.expand(w))
        return weights

    def expand(self, w: Floats) -> Floats:
        """The stored weights: ``w`` where free, 0 elsewhere."""
        weights = np.zeros(len(self.stored))
        weights[self.active] = w
        return weights

    def restrict(self, gradient: Floats) -> Floats:
        return gradient[self.active]

    def inputs(self, x: LinearInputs) -> LinearInputs:
        """``x`` with terms over the stored weights, as ``bind`` needs it."""
        return replace(x, terms=tuple(self._term(term) for term in x.terms))

    def bind(self, inputs: LinearInputs, engine: Engine) -> Features:
        return MappedFeatures(self.model.bind(inputs, engine), self.expand, self.restrict)

    def _term(self, term: Term) -> Term:
        """The term over the stored weights."""
        starts = term.block[:1] if term.one_block else term.block
        first = np.searchsorted(self.stored, starts)
        count = np.searchsorted(self.stored, starts + term.block_size) - first
        if np.all(count == term.block_size):
            return replace(term, block=first)
        if not has_optional_weights(term):
            raise InputError("weights can be left out only where a term has one block and sparse features.")
        in_block = self.stored[first[0] : first[0] + count[0]] - term.block[0]
        feature_ptr = np.searchsorted(in_block, np.arange(term.features.shape[1] + 1) * term.width)
        return replace(term, block=first, active=ActiveStates(feature_ptr.astype(np.int64), in_block % term.width))


def has_optional_weights(term: Term) -> bool:
    """Whether some weights of the term may be left out."""
    return term.one_block and sparse.issparse(term.features)

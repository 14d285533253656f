"""NumPy reference of linear features: Phi as one sparse matrix, its rows the states and then the table entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch, spans


@dataclass(frozen=True, eq=False)
class ReferenceFeatures:
    """theta = Phi w + offset, and Phi^T mu."""

    batch: Batch
    phi: Any
    offset: Potentials

    def forward(self, w: Floats) -> Potentials:
        theta = self.phi @ w
        return Potentials(theta[: self.batch.n_states], theta[self.batch.n_states :]) + self.offset

    def adjoint(self, mu: Marginals) -> Floats:
        return np.asarray(self.phi.T @ np.concatenate([mu.unary, self.batch.fold(mu.tables)]))


def linear(batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> ReferenceFeatures:
    """``Engine.linear``, entry by entry: feature j of row r times its weight for state k adds to the score of k."""
    phi: Any = sparse.csr_array((batch.n_states + batch.n_table_entries, n_weights))
    for term in terms:
        x = sparse.coo_array(term.features * (term.at >= 0)[:, None])
        x.eliminate_zeros()
        row, feature = x.coords
        if term.active is None:
            first = np.arange(x.shape[1] + 1) * term.width
            states = np.tile(np.arange(term.width), x.shape[1])
        else:
            first = term.active.first
            states = term.active.states
        # One entry of Phi for every nonzero feature and every state that it has a weight for.
        counts = np.diff(first)[feature]
        weight = spans(first[feature], counts)
        source = np.repeat(np.arange(len(feature)), counts)
        score = term.at[row][source] + states[weight]
        if term.target == "tables":
            score = score + batch.n_states
        columns = term.block[row][source] + weight
        phi = phi + sparse.csr_array((x.data[source], (score, columns)), shape=phi.shape)
    return ReferenceFeatures(batch, phi, offset or Potentials.zeros(batch))

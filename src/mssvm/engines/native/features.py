"""Linear models on CPUs: theta = Phi w + offset and Phi^T mu, every term by the loop that suits its layout.

BLAS is not used: its threads compete with ours for the cores, which makes small products many times slower. The loops
are those of ``cpp/features.hpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.library import Record
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch
from mssvm.engines.base import Joined, Pair
from mssvm.engines.native.joined import joined
from mssvm.engines.native.terms import ADJOINT, CHECK, FORWARD, MODEL, NO_FLOATS, NO_INTS, doubles, term_record

PACKED_FROM = 1 << 14  # multiplications of a term from which packing its weights pays


class LinearFeatures:
    """theta = Phi w + offset and Phi^T mu on one batch."""

    def __init__(
        self,
        batch: Batch,
        terms: Sequence[Term],
        offset: Potentials | None,
        n_weights: int,
        packed_from: int = PACKED_FROM,
    ) -> None:
        self.batch = batch
        self.n_weights = n_weights
        self._terms = [term_record(term) for term in terms]
        addresses = np.array([term.address for term in self._terms], dtype=np.int64)
        self.model = MODEL(
            terms=addresses,
            weights=n_weights,
            states=batch.n_states,
            entries=batch.n_table_entries,
            packed_from=packed_from,
        )
        CHECK.run(self.model)
        self.forward_record = FORWARD.record(
            model=self.model,
            w=NO_FLOATS,
            offset_unary=NO_FLOATS if offset is None else doubles(offset.unary),
            offset_tables=NO_FLOATS if offset is None else doubles(offset.tables),
            unary=NO_FLOATS,
            tables=NO_FLOATS,
        )

    def forward(self, w: Floats) -> Potentials:
        """theta at the weights, in new arrays."""
        theta = Potentials(np.empty(self.batch.n_states), np.empty(self.batch.n_table_entries))
        w = self.weights(w)
        FORWARD.run(self.forward_record.changed(w=w, unary=theta.unary, tables=theta.tables))
        return theta

    def weights(self, w: Floats) -> Floats:
        """The weights as contiguous doubles; raises if they are not as many as those of the model."""
        if w.shape != (self.n_weights,):
            raise InputError(f"the model has {self.n_weights} weights, but w has shape {w.shape}.")
        return doubles(w)

    def adjoint(self, mu: Marginals) -> Floats:
        batch = self.batch
        if mu.unary.shape != (batch.n_states,) or mu.tables.shape != (batch.n_mu_entries,):
            raise InputError(
                f"marginals have shapes {mu.unary.shape} and {mu.tables.shape}; "
                f"the batch needs ({batch.n_states},) and ({batch.n_mu_entries},)."
            )
        gradient = np.empty(self.n_weights)
        ADJOINT.run(
            self.adjoint_record.changed(
                mu_unary=doubles(mu.unary),
                mu_tables=doubles(mu.tables),
                tables=np.empty(batch.n_table_entries),
                gradient=gradient,
            )
        )
        return gradient

    @cached_property
    def adjoint_record(self) -> Record:
        none = NO_FLOATS
        return ADJOINT.record(
            model=self.model, mu_unary=none, mu_tables=none, runs=self._runs, tables=none, gradient=none
        )

    @cached_property
    def _runs(self) -> Ints:
        """Rows (from, to, length): contiguous runs of marginals that belong to contiguous tables."""
        n = self.batch.n_table_entries
        size = self.batch.n_mu_entries
        if not size:
            return NO_INTS
        if self.batch.whole_copies:
            first = np.arange(0, size, n)
            return np.stack([first, np.zeros_like(first), np.full_like(first, n)], axis=1)
        source = self.batch.mu_source
        first = np.flatnonzero(np.append(True, np.diff(source) != 1))
        return np.stack([first, source[first], np.diff(np.append(first, size))], axis=1)

    def joined(self, pair: Pair, cost: Potentials | None) -> Joined | None:
        """Values of both sides and the gradient from weights in one call; None unless both are forests or given."""
        return joined(self, pair, cost)

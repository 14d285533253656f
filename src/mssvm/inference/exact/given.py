"""Instances in which every variable has one allowed state: the value is theta(z) and mu its indicator.

U- of fully labelled data is of this kind. Nothing is left to infer, so only the entries to read are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.topology import Batch


@dataclass(frozen=True, eq=False)
class Clamped:
    """Where the given states of some instances read scores and write marginals."""

    unary: Ints
    unary_owner: Ints
    tables: Ints
    mu: Ints
    table_owner: Ints

    @classmethod
    def of(cls, batch: Batch, query: Query, which: Ints) -> Clamped:
        """For the instances ``which``, all of whose variables have one allowed state."""
        chosen = np.zeros(len(batch), dtype=bool)
        chosen[which] = True
        state = segment_argmax(query.allowed.astype(np.float64), batch.unary_ptr)
        variables = np.flatnonzero(chosen[batch.owner])
        inside = np.zeros(batch.n_factors, dtype=np.int64)
        if batch.n_factors:
            strides = np.concatenate([batch.topology(b).scope_strides for b in range(len(batch))])
            inside = np.add.reduceat(state[batch.scope_vars] * strides, batch.scope_ptr[:-1])
        owner = np.repeat(np.arange(len(batch)), np.diff(batch.factor_ptr))
        factors = np.flatnonzero(chosen[owner])
        return cls(
            batch.unary_ptr[variables] + state[variables],
            batch.owner[variables],
            (batch.table_at + inside)[factors],
            (batch.mu_at + inside)[factors],
            owner[factors],
        )

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
    ) -> None:
        """Write value and marginals of the instances ``which``; temperatures do not matter."""
        total = sum_by(self.unary_owner, theta.unary[self.unary], len(batch))
        total += sum_by(self.table_owner, theta.tables[self.tables], len(batch))
        value[which] = total[which]
        if mu is not None:
            asked: Bools = np.zeros(len(batch), dtype=bool)
            asked[which] = total[which] > -np.inf
            mu.unary[self.unary[asked[self.unary_owner]]] = 1.0
            np.add.at(mu.tables, self.mu[asked[self.table_owner]], 1.0)

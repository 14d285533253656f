"""Brute force: the nested power sum (paper eq. 5) over every assignment. The oracle all else is tested against."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.errors import MemoryLimitError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch


@dataclass(frozen=True)
class Enumerate:
    """Exact inference by listing all allowed assignments; refuses instances with more than ``limit`` of them.

    >>> by_hand = ms.CRF(ms.Chain(), inference=ms.inference.Enumerate(limit=1000)).fit(X, y)
    >>> bool(abs(by_hand.objective_ - ms.CRF(ms.Chain()).fit(X, y).objective_) < 1e-6)
    True
    """

    limit: int = 1 << 18

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        eps_y = temperature(eps_y, "eps_y")
        eps_h = temperature(eps_h, "eps_h")
        theta.check(batch)
        query.check(batch)
        value = np.zeros(len(batch))
        mu = Marginals.zeros(batch)
        for b in range(len(batch)):
            value[b] = self._one(batch, b, theta, query, eps_y, eps_h, mu)
        return Belief(value, mu, Status.exactly(value, "enumeration"))

    def _one(
        self, batch: Batch, b: int, theta: Potentials, query: Query, eps_y: float, eps_h: float, mu: Marginals
    ) -> float:
        """The value of instance b; adds its marginals to ``mu``."""
        (outputs, all_y), (hidden, all_h) = self._assignments(batch, b, query)
        n_vars = batch.topology(b).n_vars
        grid = np.zeros((len(all_y), len(all_h), n_vars), dtype=np.int64)
        grid[:, :, outputs] = all_y[:, None, :]
        grid[:, :, hidden] = all_h[None, :, :]
        z = grid.reshape(len(all_y) * len(all_h), n_vars)
        unary_at, table_at, mu_at = entries(batch, b, z)
        scores = theta.unary[unary_at].sum(1) + theta.tables[table_at].sum(1)
        q, weights_h = power_sum(scores.reshape(len(all_y), len(all_h)), eps_h, axis=1)
        value, weights_y = power_sum(q, eps_y, axis=0)
        p = (weights_y[:, None] * weights_h).ravel()
        np.add.at(mu.unary, unary_at, p[:, None])
        np.add.at(mu.tables, mu_at, p[:, None])
        return float(value)

    def _assignments(self, batch: Batch, b: int, query: Query) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Outputs and all their allowed assignments (rows), and the same of hidden variables."""
        first = batch.var_ptr[b]
        last = batch.var_ptr[b + 1]
        ptr = batch.unary_ptr
        states = [np.flatnonzero(query.allowed[ptr[i] : ptr[i + 1]]) for i in range(first, last)]
        size = float(np.prod([float(len(s)) for s in states]))
        if size > self.limit:
            raise MemoryLimitError(
                f"instance {b} has {size:.3g} assignments, more than the limit of {self.limit}; use elimination."
            )

        def assignments_of(members: Ints) -> Ints:
            rows = list(product(*(states[i] for i in members)))
            return np.array(rows, dtype=np.int64).reshape(len(rows), len(members))

        outputs = np.flatnonzero(query.output[first:last])
        hidden = np.flatnonzero(~query.output[first:last])
        return (outputs, assignments_of(outputs)), (hidden, assignments_of(hidden))


def entries(batch: Batch, b: int, z: Ints) -> tuple[Ints, Ints, Ints]:
    """Entries of unary scores, tables and table marginals of assignments ``z`` (rows over the variables of b)."""
    graph = batch.topology(b)
    unary_at = batch.unary_ptr[batch.var_ptr[b] : batch.var_ptr[b + 1]] + z
    entry = np.zeros((len(z), graph.n_factors), dtype=np.int64)
    for f, scope in enumerate(graph.scopes):
        entry[:, f] = np.ravel_multi_index(tuple(z[:, v] for v in scope), graph.table_shape(f))
    factors = slice(batch.factor_ptr[b], batch.factor_ptr[b + 1])
    return unary_at, batch.table_at[factors] + entry, batch.mu_at[factors] + entry


def score(batch: Batch, theta: Potentials, z: Ints) -> Floats:
    """theta(z) of one full assignment (a state for every variable of the batch), per instance."""
    out = np.zeros(len(batch))
    for b in range(len(batch)):
        row = z[batch.var_ptr[b] : batch.var_ptr[b + 1]][None, :]
        unary_at, table_at, _ = entries(batch, b, row)
        out[b] = theta.unary[unary_at].sum() + theta.tables[table_at].sum()
    return out

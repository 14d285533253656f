"""Linear features on a device: dense terms that share weights as matrix products, all others entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch
from mssvm.engines.reference.features import linear
from mssvm.engines.torch.arrays import Device, DeviceMarginals, DevicePotentials, fetched


@dataclass(frozen=True, eq=False)
class DenseTerm:
    """Rows of features that share one block of weights and fill whole rows of scores."""

    tables: bool
    x: torch.Tensor
    places: torch.Tensor
    block: slice
    width: int

    def add(self, w: torch.Tensor, theta: list[torch.Tensor]) -> None:
        scores = self.x @ w[self.block].reshape(-1, self.width)
        theta[self.tables].index_add_(0, self.places, scores.reshape(-1))

    def adjoint(self, mu: list[torch.Tensor], w: torch.Tensor) -> None:
        w[self.block] += (self.x.T @ mu[self.tables][self.places].reshape(-1, self.width)).reshape(-1)


@dataclass(frozen=True, eq=False)
class TorchFeatures:
    """theta = Phi w + offset, and Phi^T mu."""

    batch: Batch
    at: Device
    dense: tuple[DenseTerm, ...]
    rest: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None  # the other terms: rows, columns, entries of Phi
    offset: tuple[torch.Tensor, torch.Tensor]
    mu_source: torch.Tensor | None
    n_weights: int

    @classmethod
    def of(
        cls, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int, at: Device
    ) -> TorchFeatures:
        plain = [term for term in terms if isinstance(term.features, np.ndarray) and term.one_block]
        others = [term for term in terms if term not in plain]
        rest = None
        if others:
            phi = linear(batch, others, None, n_weights).phi.tocoo()
            rest = at.ints(phi.coords[0]), at.ints(phi.coords[1]), at.floats(np.array(phi.data))
        base = offset or Potentials.zeros(batch)
        return cls(
            batch,
            at,
            tuple(_dense(term, at) for term in plain),
            rest,
            (at.floats(base.unary), at.floats(base.tables)),
            None if batch.whole_copies else at.ints(batch.mu_source),
            n_weights,
        )

    def forward(self, w: Floats) -> Potentials:
        weights = self.at.floats(np.asarray(w, dtype=np.float64))
        theta = [part.clone() for part in self.offset]
        for term in self.dense:
            term.add(weights, theta)
        if self.rest is not None:
            rows, columns, entries = self.rest
            scores = torch.cat(theta).index_add_(0, rows, entries * weights[columns])
            theta = list(scores.split([self.batch.n_states, self.batch.n_table_entries]))
        return DevicePotentials(*theta)

    def adjoint(self, mu: Marginals) -> Floats:
        if isinstance(mu, DeviceMarginals):
            unary = mu.parts[0].to(self.at.dtype)
            tables = mu.parts[1].to(self.at.dtype)
        else:
            unary = self.at.floats(mu.unary)
            tables = self.at.floats(mu.tables)
        if self.mu_source is None:
            tables = tables.reshape(-1, self.batch.n_table_entries).sum(0)
        else:
            tables = tables.new_zeros(self.batch.n_table_entries).index_add_(0, self.mu_source, tables)
        w = unary.new_zeros(self.n_weights)
        for term in self.dense:
            term.adjoint([unary, tables], w)
        if self.rest is not None:
            rows, columns, entries = self.rest
            w.index_add_(0, columns, entries * torch.cat([unary, tables])[rows])
        return fetched(w)


def _dense(term: Term, at: Device) -> DenseTerm:
    rows = np.flatnonzero(term.at >= 0)
    places = (term.at[rows][:, None].astype(np.int64) + np.arange(term.width)).ravel()
    first = int(term.block[0])
    block = slice(first, first + term.block_size)
    return DenseTerm(
        term.target == "tables", at.floats(np.array(term.features[rows])), at.ints(places), block, term.width
    )

"""Rows of features times blocks of weights: theta += x W and its transpose W += x^T mu, as compiled loops.

Row r meets ``width`` numbers at ``at[r]`` of an array over states or table entries, and its (n_features, width) block
of weights at ``block[r]``. Rows are visited in order, so sums carry the same bits on every run. ``LinearFeatures``
chooses the loop (or BLAS) for every term once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats, Ints, sum_by
from mssvm.core.errors import InputError
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch

BLAS_FROM = 1 << 14  # multiplications; below, the compiled loop starts sooner than BLAS does
Product = Callable[[Floats, Floats], None]


class LinearFeatures:
    """theta = Phi w + offset and Phi^T mu on one batch, with the loop of every term and the fold of tables chosen."""

    def __init__(
        self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int, blas_from: int = BLAS_FROM
    ) -> None:
        self.batch, self.offset, self.n_weights = batch, offset, n_weights
        self.products = [(term.target == "unary", *_products(term, blas_from)) for term in terms]

    @cached_property
    def _fold(self) -> Callable[[Floats], Floats]:
        """Marginals of tables as tables: summed over the instances that share one."""
        batch = self.batch
        if not batch.tables_shared_across_instances and np.array_equal(batch.mu_at, batch.table_at):
            return lambda tables: tables
        n, source = batch.n_table_entries, batch.mu_source
        if n and len(source) % n == 0 and np.all(source.reshape(-1, n) == np.arange(n)):
            return lambda tables: np.asarray(tables.reshape(-1, n).sum(axis=0))
        return lambda tables: sum_by(source, tables, n)

    def forward(self, w: Floats) -> Potentials:
        if w.shape != (self.n_weights,):
            raise InputError(f"the model has {self.n_weights} weights, but w has shape {w.shape}.")
        w = np.ascontiguousarray(w, dtype=np.float64)
        if self.offset is None:
            unary, tables = np.zeros(self.batch.n_states), np.zeros(self.batch.n_table_entries)
        else:
            unary, tables = self.offset.unary.copy(), self.offset.tables.copy()
        for on_unary, forward, _ in self.products:
            forward(w, unary if on_unary else tables)
        return Potentials(unary, tables)

    def adjoint(self, mu: Marginals) -> Floats:
        batch, tables = self.batch, mu.tables
        if mu.unary.shape != (batch.n_states,) or tables.shape != (batch.n_mu_entries,):
            raise InputError(
                f"marginals have shapes {mu.unary.shape} and {tables.shape}; "
                f"the batch needs ({batch.n_states},) and ({batch.n_mu_entries},)."
            )
        tables = self._fold(tables)
        gradient = np.zeros(self.n_weights)
        for on_unary, _, adjoint in self.products:
            adjoint(mu.unary if on_unary else tables, gradient)
        return gradient


def _products(term: Term, blas_from: int) -> tuple[Product, Product]:
    """theta += x W and gradient += x^T mu of one term."""
    rows, place = term.features, (term.at, term.block[:1] if term.one_block else term.block, term.width)
    if sparse.issparse(rows):
        matrix = rows.data, rows.indices, rows.indptr
        if term.active is None:
            return partial(sparse_forward, *matrix, *place), partial(sparse_adjoint, *matrix, *place)
        listed = *matrix, *place, term.active.first, term.active.states
        return partial(listed_forward, *listed), partial(listed_adjoint, *listed)
    # A single feature is an outer product, better looped; so is little work.
    if rows.shape[1] >= 2 and len(term.at) * term.block_size >= blas_from and term.one_block:
        product = BlasProduct(term)
        return product.forward, product.adjoint
    if term.constant:
        return partial(constant_forward, *place), partial(constant_adjoint, *place)
    return partial(dense_forward, rows, *place), partial(dense_adjoint, rows, *place)


class BlasProduct:
    """Dense rows that share one block of weights, as matrix products."""

    def __init__(self, term: Term) -> None:
        self.rows, self.at, self.width = term.features, term.at, term.width
        first, n = int(term.block[0]), len(term.at)
        self.block = slice(first, first + term.block_size)
        follow = np.array_equal(term.at, term.at[0] + np.arange(n) * term.width)
        self.side_by_side = slice(int(term.at[0]), int(term.at[0]) + n * term.width) if follow else None

    def forward(self, w: Floats, theta: Floats) -> None:
        scores = self.rows @ w[self.block].reshape(-1, self.width)
        if self.side_by_side is not None:
            theta[self.side_by_side] += scores.ravel()
        else:
            scatter_rows(scores, self.at, theta)

    def adjoint(self, mu: Floats, gradient: Floats) -> None:
        if self.side_by_side is not None:
            rows = mu[self.side_by_side].reshape(-1, self.width)
        else:
            rows = np.zeros((len(self.at), self.width))
            gather_rows(mu, self.at, rows)
        gradient[self.block] += (self.rows.T @ rows).ravel()


# In the loops below unsigned indices spare the compiler the case of negative ones, which keeps it from vectorising.
# One block of weights for all rows is given as an array of one.


@njit(cache=True, nogil=True)
def constant_forward(at: AnyArray, block: Ints, width: int, w: Floats, out: Floats) -> None:
    """out[at[r] + k] += w[block[r] + k]."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] >= 0:
            target, source = at[r], block[r * step]
            for k in range(width):
                out[np.uintp(target + k)] += w[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def constant_adjoint(at: AnyArray, block: Ints, width: int, mu: Floats, out: Floats) -> None:
    """out[block[r] + k] += mu[at[r] + k]."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] >= 0:
            source, target = at[r], block[r * step]
            for k in range(width):
                out[np.uintp(target + k)] += mu[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def dense_forward(x: Floats, at: AnyArray, block: Ints, width: int, w: Floats, out: Floats) -> None:
    """out[at[r] + k] += sum_j x[r, j] w[block[r] + j width + k]."""
    step = 1 if len(block) > 1 else 0
    for r in range(x.shape[0]):
        if at[r] < 0:
            continue
        for j in range(x.shape[1]):
            value = x[r, j]
            if value != 0.0:
                target, source = at[r], block[r * step] + j * width
                for k in range(width):
                    out[np.uintp(target + k)] += value * w[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def dense_adjoint(x: Floats, at: AnyArray, block: Ints, width: int, mu: Floats, out: Floats) -> None:
    """out[block[r] + j width + k] += x[r, j] mu[at[r] + k]."""
    step = 1 if len(block) > 1 else 0
    for r in range(x.shape[0]):
        if at[r] < 0:
            continue
        for j in range(x.shape[1]):
            value = x[r, j]
            if value != 0.0:
                source, target = at[r], block[r * step] + j * width
                for k in range(width):
                    out[np.uintp(target + k)] += value * mu[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def sparse_forward(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: AnyArray, block: Ints, width: int, w: Floats, out: Floats
) -> None:
    """``dense_forward`` for rows in compressed form."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] < 0:
            continue
        for e in range(ptr[r], ptr[r + 1]):
            value, target, source = data[e], at[r], block[r * step] + indices[e] * width
            for k in range(width):
                out[np.uintp(target + k)] += value * w[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def sparse_adjoint(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: AnyArray, block: Ints, width: int, mu: Floats, out: Floats
) -> None:
    """``dense_adjoint`` for rows in compressed form."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] < 0:
            continue
        for e in range(ptr[r], ptr[r + 1]):
            value, source, target = data[e], at[r], block[r * step] + indices[e] * width
            for k in range(width):
                out[np.uintp(target + k)] += value * mu[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def listed_forward(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: AnyArray, block: Ints, width: int, first: Ints, states: Ints,
    w: Floats, out: Floats,
) -> None:  # fmt: skip
    """``sparse_forward`` where feature j has weights for ``states[first[j] : first[j + 1]]`` only, in this order."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] < 0:
            continue
        for e in range(ptr[r], ptr[r + 1]):
            value, a, b = data[e], first[indices[e]], first[indices[e] + 1]
            target, source = at[r], block[r * step] + a
            if b - a == width:
                for k in range(width):
                    out[np.uintp(target + k)] += value * w[np.uintp(source + k)]
            else:
                for q in range(b - a):
                    out[target + states[a + q]] += value * w[source + q]


@njit(cache=True, nogil=True)
def listed_adjoint(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: AnyArray, block: Ints, width: int, first: Ints, states: Ints,
    mu: Floats, out: Floats,
) -> None:  # fmt: skip
    """The transpose of ``listed_forward``."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] < 0:
            continue
        for e in range(ptr[r], ptr[r + 1]):
            value, a, b = data[e], first[indices[e]], first[indices[e] + 1]
            source, target = at[r], block[r * step] + a
            if b - a == width:
                for k in range(width):
                    out[np.uintp(target + k)] += value * mu[np.uintp(source + k)]
            else:
                for q in range(b - a):
                    out[target + q] += value * mu[source + states[a + q]]


@njit(cache=True, nogil=True)
def scatter_rows(rows: Floats, at: AnyArray, out: Floats) -> None:
    """out[at[r] + k] += rows[r, k]."""
    for r in range(rows.shape[0]):
        if at[r] >= 0:
            for k in range(rows.shape[1]):
                out[np.uintp(at[r] + k)] += rows[r, k]


@njit(cache=True, nogil=True)
def gather_rows(values: Floats, at: AnyArray, rows: Floats) -> None:
    """rows[r, k] = values[at[r] + k]."""
    for r in range(rows.shape[0]):
        if at[r] >= 0:
            for k in range(rows.shape[1]):
                rows[r, k] = values[np.uintp(at[r] + k)]

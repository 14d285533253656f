"""Rows of features times blocks of weights: theta += x W and its transpose W += x^T mu, as compiled loops.

Row r meets ``width`` numbers at ``at[r]`` of an array over states or table entries, and its (n_features, width) block
of weights at ``block[r]``. Rows are visited in order, so sums carry the same bits on every run. ``LinearFeatures``
chooses the loop for every term once. None of them is left to BLAS: its own threads wait for each other and for the
cores that ours run on, which makes small products many times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats, Ints, sum_by
from mssvm.core.errors import InputError
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch
from mssvm.engines.numba.vector import FAST, WIDTH, load, splat, store

ROWS = 6  # registers of sums in ``tied_forward`` and ``tied_adjoint``: as many as the shortest machine has
NARROW = 4  # states that would leave half of a register empty
SPAN = 32  # rows whose features stay in the nearest cache
TIED_FROM = 1 << 14  # multiplications from which packing the weights pays
Product = Callable[[Floats, Floats], None]


class LinearFeatures:
    """theta = Phi w + offset and Phi^T mu on one batch, with the loop of every term and the fold of tables chosen."""

    def __init__(
        self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int, tied_from: int = TIED_FROM
    ) -> None:
        self.batch, self.offset, self.n_weights = batch, offset, n_weights
        self.products = [(term.target == "unary", *_products(term, tied_from)) for term in terms]

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


def _products(term: Term, tied_from: int) -> tuple[Product, Product]:
    """theta += x W and gradient += x^T mu of one term."""
    rows, place = term.features, (term.at, term.block[:1] if term.one_block else term.block, term.width)
    if sparse.issparse(rows):
        matrix = rows.data, rows.indices, rows.indptr
        if term.active is None:
            return partial(sparse_forward, *matrix, *place), partial(sparse_adjoint, *matrix, *place)
        listed = *matrix, *place, term.active.first, term.active.states
        return partial(listed_forward, *listed), partial(listed_adjoint, *listed)
    if term.constant:
        return partial(constant_forward, *place), partial(constant_adjoint, *place)
    if rows.shape[1] > 1 and len(term.at) * term.block_size >= tied_from and term.one_block:
        if term.width <= NARROW:
            return partial(narrow_forward, rows, *place), partial(narrow_adjoint, rows, *place)
        return partial(tied_forward, rows, *place), partial(tied_adjoint, rows, *place)
    return partial(dense_forward, rows, *place), partial(dense_adjoint, rows, *place)


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
def tied_forward(x: Floats, at: AnyArray, block: Ints, width: int, w: Floats, out: Floats) -> None:
    """``dense_forward`` for rows that share one block: six rows and eight states at a time stay in registers."""
    n, d = x.shape
    flat, panels, last = x.reshape(n * d), (width + WIDTH - 1) // WIDTH, n - 1
    packed, sums = np.zeros(panels * d * WIDTH), np.empty(ROWS * WIDTH)
    for j in range(d):
        for k in range(width):
            packed[(k // WIDTH * d + j) * WIDTH + k % WIDTH] = w[block[0] + j * width + k]
    for r in range(0, n, ROWS):
        r0, r1, r2 = r * d, min(r + 1, last) * d, min(r + 2, last) * d
        r3, r4, r5 = min(r + 3, last) * d, min(r + 4, last) * d, min(r + 5, last) * d
        for p in range(panels):
            s0 = s1 = s2 = s3 = s4 = s5 = splat(0.0)
            for j in range(d):
                v = load(packed, (p * d + j) * WIDTH)
                s0, s1, s2 = s0 + flat[r0 + j] * v, s1 + flat[r1 + j] * v, s2 + flat[r2 + j] * v
                s3, s4, s5 = s3 + flat[r3 + j] * v, s4 + flat[r4 + j] * v, s5 + flat[r5 + j] * v
            keep_six(sums, 0, s0, s1, s2, s3, s4, s5)
            for i in range(min(ROWS, n - r)):
                if at[r + i] >= 0:
                    target = at[r + i] + p * WIDTH
                    for k in range(min(WIDTH, width - p * WIDTH)):
                        out[target + k] += sums[i * WIDTH + k]


@njit(cache=True, nogil=True)
def tied_adjoint(x: Floats, at: AnyArray, block: Ints, width: int, mu: Floats, out: Floats) -> None:
    """The transpose of ``tied_forward``: six features and eight states at a time, over ``SPAN`` rows."""
    n, d = x.shape
    flat, panels, last = x.reshape(n * d), (width + WIDTH - 1) // WIDTH, d - 1
    total, part, rows = np.zeros(panels * (d + ROWS) * WIDTH), np.empty(ROWS * WIDTH), np.zeros(SPAN * WIDTH)
    for begin in range(0, n, SPAN):
        count = min(SPAN, n - begin)
        for p in range(panels):
            many = min(WIDTH, width - p * WIDTH)
            for r in range(count):
                source, seen = np.uintp(at[begin + r] + p * WIDTH), at[begin + r] >= 0
                for k in range(many):  # what is left beyond goes to sums that nobody reads
                    rows[np.uintp(r * WIDTH + k)] = mu[source + np.uintp(k)] if seen else 0.0
            for j in range(0, d, ROWS):
                j0, j1, j2 = j, min(j + 1, last), min(j + 2, last)
                j3, j4, j5 = min(j + 3, last), min(j + 4, last), min(j + 5, last)
                s0 = s1 = s2 = s3 = s4 = s5 = splat(0.0)
                for r in range(count):
                    v, at_row = load(rows, r * WIDTH), (begin + r) * d
                    s0, s1, s2 = s0 + flat[at_row + j0] * v, s1 + flat[at_row + j1] * v, s2 + flat[at_row + j2] * v
                    s3, s4, s5 = s3 + flat[at_row + j3] * v, s4 + flat[at_row + j4] * v, s5 + flat[at_row + j5] * v
                keep_six(part, 0, s0, s1, s2, s3, s4, s5)
                place = (p * (d + ROWS) + j) * WIDTH
                for k in range(ROWS * WIDTH):
                    total[place + k] += part[k]
    for j in range(d):
        for k in range(width):
            out[block[0] + j * width + k] += total[(k // WIDTH * (d + ROWS) + j) * WIDTH + k % WIDTH]


@njit(cache=True, nogil=True, fastmath=set(FAST))
def narrow_forward(x: Floats, at: AnyArray, block: Ints, width: int, w: Floats, out: Floats) -> None:
    """``tied_forward`` for few states: features side by side."""
    n, d = x.shape
    turned = np.ascontiguousarray(w[block[0] : block[0] + d * width].reshape(d, width).T)
    for r in range(n):
        if at[r] >= 0:
            for k in range(width):
                total = 0.0
                for j in range(d):
                    total += x[r, j] * turned[k, j]
                out[at[r] + k] += total


@njit(cache=True, nogil=True)
def narrow_adjoint(x: Floats, at: AnyArray, block: Ints, width: int, mu: Floats, out: Floats) -> None:
    """The transpose of ``narrow_forward``."""
    n, d = x.shape
    total = np.zeros((width, d))
    for r in range(n):
        if at[r] >= 0:
            for k in range(width):
                weight = mu[at[r] + k]
                for j in range(d):
                    total[k, j] += weight * x[r, j]
    for j in range(d):
        for k in range(width):
            out[block[0] + j * width + k] += total[k, j]


@njit(inline="always")
def keep_six(into: Floats, at: int, s0: Any, s1: Any, s2: Any, s3: Any, s4: Any, s5: Any) -> None:
    """Six registers, one after the other."""
    store(into, at, s0)
    store(into, at + WIDTH, s1)
    store(into, at + 2 * WIDTH, s2)
    store(into, at + 3 * WIDTH, s3)
    store(into, at + 4 * WIDTH, s4)
    store(into, at + 5 * WIDTH, s5)

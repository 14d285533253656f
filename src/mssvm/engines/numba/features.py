"""Rows of features times blocks of weights: theta += x W and its transpose W += x^T mu, as compiled loops.

Row r meets ``width`` numbers at ``at[r]`` of an array over states or table entries, and its (n_features, width) block
of weights at ``block[r]``. Rows are visited in order, so sums carry the same bits on every run. ``LinearFeatures``
chooses the loop for every term once. None of them is left to BLAS: its own threads wait for each other and for the
cores that ours run on, which makes small products many times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats, Ints
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
Product = Callable[[Floats, Floats, bool], None]


class LinearFeatures:
    """theta = Phi w + offset and Phi^T mu on one batch, with the loop of every term chosen."""

    def __init__(
        self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int, tied_from: int = TIED_FROM
    ) -> None:
        self.batch, self.offset, self.n_weights = batch, offset, n_weights
        self.products = [(term.target == "unary", _product(term, tied_from)) for term in terms]

    def forward(self, w: Floats) -> Potentials:
        if w.shape != (self.n_weights,):
            raise InputError(f"the model has {self.n_weights} weights, but w has shape {w.shape}.")
        w = _typed(w)
        if self.offset is None:
            unary, tables = np.zeros(self.batch.n_states), np.zeros(self.batch.n_table_entries)
        else:
            unary, tables = self.offset.unary.copy(), self.offset.tables.copy()
        for on_unary, product in self.products:
            product(w, unary if on_unary else tables, False)
        return Potentials(unary, tables)

    def adjoint(self, mu: Marginals) -> Floats:
        batch = self.batch
        if mu.unary.shape != (batch.n_states,) or mu.tables.shape != (batch.n_mu_entries,):
            raise InputError(
                f"marginals have shapes {mu.unary.shape} and {mu.tables.shape}; "
                f"the batch needs ({batch.n_states},) and ({batch.n_mu_entries},)."
            )
        unary, tables = _typed(mu.unary), _typed(batch.fold(mu.tables))
        gradient = np.zeros(self.n_weights)
        for on_unary, product in self.products:
            product(gradient, unary if on_unary else tables, True)
        return gradient


def _typed(values: Floats) -> Floats:
    """Contiguous and writable, which is the one type that the loops below are compiled for."""
    fits = values.flags.carray and values.dtype == np.float64
    return values if fits else np.array(values, dtype=np.float64, order="C")


def _product(term: Term, tied_from: int) -> Product:
    """theta += x W of one term, and back."""
    block = term.block[:1].copy() if term.one_block else term.block  # writable, as types differ by it
    rows, place = term.features, (term.at, block, term.width)
    if sparse.issparse(rows):
        matrix = rows.data, rows.indices, rows.indptr
        if term.active is None:
            return partial(sparse_product, *matrix, *place)
        return partial(listed_product, *matrix, *place, term.active.first, term.active.states)
    if term.constant:
        return partial(constant_product, *place)
    if rows.shape[1] > 1 and len(term.at) * term.block_size >= tied_from and term.one_block:
        forward, adjoint = (narrow_forward, narrow_adjoint) if term.width <= NARROW else (tied_forward, tied_adjoint)
        return lambda w, theta, back: (adjoint if back else forward)(rows, *place, w, theta)
    return partial(dense_product, rows, *place)


# In the loops below unsigned indices spare the compiler the case of negative ones, which keeps it from vectorising.
# One block of weights for all rows is given as an array of one. ``back`` is the transpose: w += x^T theta.


@njit(cache=True, nogil=True)
def constant_product(at: AnyArray, block: Ints, width: int, w: Floats, theta: Floats, back: bool) -> None:
    """theta[at[r] + k] += w[block[r] + k]."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] >= 0:
            add(at[r], block[r * step], width, 1.0, w, theta, back)


@njit(cache=True, nogil=True)
def dense_product(x: Floats, at: AnyArray, block: Ints, width: int, w: Floats, theta: Floats, back: bool) -> None:
    """theta[at[r] + k] += sum_j x[r, j] w[block[r] + j width + k]."""
    step = 1 if len(block) > 1 else 0
    for r in range(x.shape[0]):
        if at[r] >= 0:
            for j in range(x.shape[1]):
                if x[r, j] != 0.0:
                    add(at[r], block[r * step] + j * width, width, x[r, j], w, theta, back)


@njit(cache=True, nogil=True)
def sparse_product(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: AnyArray, block: Ints, width: int, w: Floats, theta: Floats,
    back: bool,
) -> None:  # fmt: skip
    """``dense_product`` for rows in compressed form."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] >= 0:
            for e in range(ptr[r], ptr[r + 1]):
                add(at[r], block[r * step] + indices[e] * width, width, data[e], w, theta, back)


@njit(cache=True, nogil=True)
def listed_product(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: AnyArray, block: Ints, width: int, first: Ints, states: Ints,
    w: Floats, theta: Floats, back: bool,
) -> None:  # fmt: skip
    """``sparse_product`` where feature j has weights for ``states[first[j] : first[j + 1]]`` only, in this order."""
    step = 1 if len(block) > 1 else 0
    for r in range(at.shape[0]):
        if at[r] < 0:
            continue
        for e in range(ptr[r], ptr[r + 1]):
            value, a, b = data[e], first[indices[e]], first[indices[e] + 1]
            source = block[r * step] + a
            if b - a == width:
                add(at[r], source, width, value, w, theta, back)
            elif back:
                for q in range(b - a):
                    w[source + q] += value * theta[at[r] + states[a + q]]
            else:
                for q in range(b - a):
                    theta[at[r] + states[a + q]] += value * w[source + q]


@njit(inline="always")
def add(target: int, source: int, width: int, value: float, w: Floats, theta: Floats, back: bool) -> None:
    """``width`` weights times a number to as many scores, or back."""
    if back:
        for k in range(width):
            w[np.uintp(source + k)] += value * theta[np.uintp(target + k)]
    else:
        for k in range(width):
            theta[np.uintp(target + k)] += value * w[np.uintp(source + k)]


@njit(cache=True, nogil=True)
def tied_forward(x: Floats, at: AnyArray, block: Ints, width: int, w: Floats, out: Floats) -> None:
    """``dense_product`` for rows that share one block: six rows and eight states at a time stay in registers."""
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
def tied_adjoint(x: Floats, at: AnyArray, block: Ints, width: int, out: Floats, mu: Floats) -> None:
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
def narrow_adjoint(x: Floats, at: AnyArray, block: Ints, width: int, out: Floats, mu: Floats) -> None:
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

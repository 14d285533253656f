"""Rows of features times blocks of weights: theta += x W and its transpose W += x^T mu, as compiled loops.

Row r meets ``width`` numbers at ``at[r]`` of an array over states or table entries, and its (n_features, width) block
of weights at ``block[r]``. Rows are visited in order, so sums carry the same bits on every run. ``LinearFeatures``
chooses the loop for every term once; all terms are one compiled call, as threads wait for the interpreter before and
after each. None is left to BLAS: its own threads wait for each other and for the cores that ours run on, which makes
small products many times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals, Potentials, Term
from mssvm.core.topology import Batch
from mssvm.engines.base import Joined, Pair
from mssvm.engines.native.exact import joined
from mssvm.engines.numba.vector import FAST, WIDTH, floats_at, ints_at, load, pointer_to, shorts_at, splat, store

ROWS = 6  # registers of sums in ``tied_forward`` and ``tied_adjoint``: as many as the shortest machine has
NARROW = 4  # states that would leave half of a register empty
SPAN = 32  # rows whose features stay in the nearest cache
TIED_FROM = 1 << 14  # multiplications from which packing the weights pays
NONE, NO_RUNS = np.zeros(0), np.zeros((0, 3), dtype=np.int64)

# Columns of a term: addresses of its arrays, whether those of indices have 64 bits, and numbers.
KIND, UNARY, X, AT, BLOCK, INDICES, PTR, FIRST, STATES, WIDE_AT, WIDE, N, D, W, STEP = range(15)
CONSTANT, DENSE, SPARSE, LISTED, TIED, FEW = range(6)


class LinearFeatures:
    """theta = Phi w + offset and Phi^T mu on one batch, with the loop of every term chosen."""

    def __init__(
        self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int, tied_from: int = TIED_FROM
    ) -> None:
        self.batch, self.offset, self.n_weights = batch, offset, n_weights
        self._held = list[AnyArray]()  # what the terms' addresses point to
        self._terms = np.zeros((len(terms), STEP + 1), dtype=np.int64)
        for row, term in zip(self._terms, terms, strict=True):
            self._describe(term, tied_from, row)
        kinds = self._terms[:, KIND]
        compressed, tied = bool(np.any((kinds >= SPARSE) & (kinds < TIED))), bool(np.any(kinds >= TIED))
        self._loops = compressed or None, tied or None

    def _describe(self, term: Term, tied_from: int, row: Ints) -> None:
        """Write the columns of a term."""
        rows, block = term.features, np.ascontiguousarray(term.block[:1] if term.one_block else term.block)
        arrays, kind = {AT: term.at, BLOCK: block}, DENSE
        if sparse.issparse(rows):
            kind, arrays = SPARSE, arrays | {X: rows.data, INDICES: rows.indices, PTR: rows.indptr}
            if rows.indices.dtype != rows.indptr.dtype:
                arrays |= {INDICES: rows.indices.astype(np.int64), PTR: rows.indptr.astype(np.int64)}
            if term.active is not None:
                kind, arrays = LISTED, arrays | {FIRST: term.active.first, STATES: term.active.states}
        elif term.constant:
            kind = CONSTANT
        else:
            arrays[X] = np.ascontiguousarray(rows)
            if rows.shape[1] > 1 and len(term.at) * term.block_size >= tied_from and term.one_block:
                kind = FEW if term.width <= NARROW else TIED
        for column, array in arrays.items():
            arrays[column] = np.ascontiguousarray(array)
            row[column] = arrays[column].ctypes.data
        self._held += arrays.values()
        row[KIND], row[UNARY], row[W] = kind, term.target == "unary", term.width
        row[N], row[D] = rows.shape
        row[WIDE_AT], row[WIDE] = term.at.dtype == np.int64, arrays.get(INDICES, block[:0]).dtype == np.int64
        row[STEP] = not term.one_block

    def forward(self, w: Floats, into: Potentials | None = None) -> Potentials:
        """theta at the weights, in new arrays or in those given."""
        theta = into or Potentials(np.empty(self.batch.n_states), np.empty(self.batch.n_table_entries))
        if w.shape != (self.n_weights,):
            raise InputError(f"the model has {self.n_weights} weights, but w has shape {w.shape}.")
        known = (NONE, NONE) if self.offset is None else (_typed(self.offset.unary), _typed(self.offset.tables))
        products(self._terms, _typed(w), theta.unary, theta.tables, *known, NO_RUNS, False, *self._loops)
        return theta

    def adjoint(self, mu: Marginals) -> Floats:
        batch = self.batch
        if mu.unary.shape != (batch.n_states,) or mu.tables.shape != (batch.n_mu_entries,):
            raise InputError(
                f"marginals have shapes {mu.unary.shape} and {mu.tables.shape}; "
                f"the batch needs ({batch.n_states},) and ({batch.n_mu_entries},)."
            )
        gradient = np.zeros(self.n_weights)
        tables = np.empty(batch.n_table_entries)
        products(
            self._terms, gradient, _typed(mu.unary), tables, NONE, _typed(mu.tables), self._runs, True, *self._loops
        )
        return gradient

    @cached_property
    def _runs(self) -> Ints:
        """Runs (from, to, length) of the marginals that lie as the tables do."""
        n, size = self.batch.n_table_entries, self.batch.n_mu_entries
        if not size:
            return NO_RUNS
        if self.batch.whole_copies:
            first = np.arange(0, size, n)
            return np.stack([first, np.zeros_like(first), np.full_like(first, n)], axis=1)
        source = self.batch.mu_source
        first = np.flatnonzero(np.append(True, np.diff(source) != 1))
        return np.stack([first, source[first], np.diff(np.append(first, size))], axis=1)

    def joined(self, pair: Pair, cost: Potentials | None) -> Joined | None:
        return joined(self, pair, cost)


def _typed(values: Floats) -> Floats:
    """Contiguous and writable, which is the one type that the loops below are compiled for."""
    fits = values.flags.carray and values.dtype == np.float64
    return values if fits else np.array(values, dtype=np.float64, order="C")


@njit(cache=True, nogil=True)
def products(
    terms: Ints, w: Floats, unary: Floats, tables: Floats, known: Floats, known_tables: Floats, runs: Ints,
    back: bool, compressed: bool | None, registers: bool | None,
) -> None:  # fmt: skip
    """Scores from weights, on top of those ``known`` (none: zero); or ``back``, adding what the marginals of states and
    of tables are worth to every weight, those of tables (``known_tables``) being summed over instances first. Loops
    that no term needs (``compressed``, ``registers``: None) are not compiled."""
    if back:
        sum_tables(pointer_to(known_tables), runs, pointer_to(tables), len(tables))
    else:
        begin_with(known, unary)
        begin_with(known_tables, tables)
    for k in range(len(terms)):
        t, theta = terms[k], unary if terms[k, UNARY] else tables
        if t[KIND] >= TIED:
            if registers is not None:
                register_product(t, w, theta, back)
        elif t[KIND] >= SPARSE:
            if compressed is not None:
                compressed_product(t, pointer_to(w), pointer_to(theta), back)
        else:
            dense_product(t, pointer_to(w), pointer_to(theta), back)


@njit()
def register_product(t: Ints, w: Floats, theta: Floats, back: bool) -> None:
    """A term whose rows share one block of weights."""
    if t[KIND] == TIED and back:
        tied_adjoint(t, w, theta)
    elif t[KIND] == TIED:
        tied_forward(t, w, theta)
    elif back:
        narrow_adjoint(t, w, theta)
    else:
        narrow_forward(t, w, theta)


@njit()
def begin_with(known: Floats, out: Floats) -> None:
    """``known`` if there is any, else zeros."""
    for i in range(0 if len(known) else len(out)):
        out[i] = 0.0
    for i in range(len(known)):
        out[i] = known[i]


@njit()
def sum_tables(marginals: Any, runs: Ints, tables: Any, n: int) -> None:
    """Marginals by table entry."""
    for j in range(n):
        tables[j] = 0.0
    for r in range(len(runs)):
        first, to = runs[r, 0], runs[r, 1]
        for j in range(runs[r, 2]):
            tables[to + j] += marginals[first + j]


@njit()
def index(address: int, wide: int, i: int) -> int:
    """Entry i of an array of whole numbers, of 64 or of 32 bits."""
    place: int = ints_at(address)[i] if wide else int(shorts_at(address)[i])
    return place


# Loops of single rows get pointers: arrays would be counted, and their indices taken from the end where negative.


@njit()
def dense_product(t: Ints, w: Any, theta: Any, back: bool) -> None:
    """theta[at[r] + k] += sum_j x[r, j] w[block[r] + j width + k], or the transpose (``back``): w += x^T theta."""
    x, block, d, width, step = floats_at(t[X]), ints_at(t[BLOCK]), t[D], t[W], t[STEP]
    at, wide, constant = t[AT], t[WIDE_AT], t[KIND] == CONSTANT
    for r in range(t[N]):
        to, start = index(at, wide, r), block[r * step]
        for j in range(d if to >= 0 else 0):
            value = 1.0 if constant else x[r * d + j]
            if value != 0.0:
                add(to, start + j * width, width, value, w, theta, back)


@njit()
def compressed_product(t: Ints, w: Any, theta: Any, back: bool) -> None:
    """The same for rows in compressed form; feature j of a ``LISTED`` term has weights for
    ``states[first[j] : first[j + 1]]`` only, in this order."""
    x, block, width, step = floats_at(t[X]), ints_at(t[BLOCK]), t[W], t[STEP]
    at, wide_at, ptr, indices, wide = t[AT], t[WIDE_AT], t[PTR], t[INDICES], t[WIDE]
    listed, first, states = t[KIND] == LISTED, ints_at(t[FIRST]), ints_at(t[STATES])
    for r in range(t[N]):
        to, start = index(at, wide_at, r), block[r * step]
        for e in range(index(ptr, wide, r), index(ptr, wide, r + 1) if to >= 0 else 0):
            j = index(indices, wide, e)
            if not listed or first[j + 1] - first[j] == width:
                add(to, start + (first[j] if listed else j * width), width, x[e], w, theta, back)
            elif back:
                for q in range(first[j], first[j + 1]):
                    w[start + q] += x[e] * theta[to + states[q]]
            else:
                for q in range(first[j], first[j + 1]):
                    theta[to + states[q]] += x[e] * w[start + q]


@njit()
def add(to: int, start: int, width: int, value: float, w: Any, theta: Any, back: bool) -> None:
    """``width`` weights times a number to as many scores, or back."""
    if back:
        for k in range(width):
            w[start + k] += value * theta[to + k]
    else:
        for k in range(width):
            theta[to + k] += value * w[start + k]


@njit()
def tied_forward(t: Ints, w: Floats, out: Floats) -> None:
    """``product`` for rows that share one block: six rows and eight states at a time stay in registers."""
    n, d, width, start, flat = t[N], t[D], t[W], ints_at(t[BLOCK])[0], floats_at(t[X])
    panels, last, theta = (width + WIDTH - 1) // WIDTH, n - 1, pointer_to(out)
    packed, sums = np.zeros(panels * d * WIDTH), np.empty(ROWS * WIDTH)
    for j in range(d):
        for k in range(width):
            packed[(k // WIDTH * d + j) * WIDTH + k % WIDTH] = w[start + j * width + k]
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
                target = index(t[AT], t[WIDE_AT], r + i)
                if target >= 0:
                    target += p * WIDTH
                    for k in range(min(WIDTH, width - p * WIDTH)):
                        theta[target + k] += sums[np.uintp(i * WIDTH + k)]


@njit()
def tied_adjoint(t: Ints, out: Floats, mu: Floats) -> None:
    """The transpose of ``tied_forward``: six features and eight states at a time, over ``SPAN`` rows."""
    n, d, width, start, flat = t[N], t[D], t[W], ints_at(t[BLOCK])[0], floats_at(t[X])
    panels, last = (width + WIDTH - 1) // WIDTH, d - 1
    total, part, rows = np.zeros(panels * (d + ROWS) * WIDTH), np.empty(ROWS * WIDTH), np.zeros(SPAN * WIDTH)
    for begin in range(0, n, SPAN):
        count = min(SPAN, n - begin)
        for p in range(panels):
            many = min(WIDTH, width - p * WIDTH)
            for r in range(count):
                place = index(t[AT], t[WIDE_AT], begin + r)
                source, seen = np.uintp(place + p * WIDTH), place >= 0
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
            out[start + j * width + k] += total[(k // WIDTH * (d + ROWS) + j) * WIDTH + k % WIDTH]


@njit(fastmath=set(FAST))
def narrow_forward(t: Ints, w: Floats, out: Floats) -> None:
    """``tied_forward`` for few states: features side by side."""
    n, d, width, start, x = t[N], t[D], t[W], ints_at(t[BLOCK])[0], floats_at(t[X])
    turned = np.empty((width, d))
    for j in range(d):
        for k in range(width):
            turned[k, j] = w[start + j * width + k]
    for r in range(n):
        to = index(t[AT], t[WIDE_AT], r)
        if to >= 0:
            for k in range(width):
                total = 0.0
                for j in range(d):
                    total += x[r * d + j] * turned[k, j]
                out[to + k] += total


@njit()
def narrow_adjoint(t: Ints, out: Floats, mu: Floats) -> None:
    """The transpose of ``narrow_forward``."""
    n, d, width, start, x = t[N], t[D], t[W], ints_at(t[BLOCK])[0], floats_at(t[X])
    total = np.zeros((width, d))
    for r in range(n):
        to = index(t[AT], t[WIDE_AT], r)
        if to >= 0:
            for k in range(width):
                weight = mu[to + k]
                for j in range(d):
                    total[k, j] += weight * x[r * d + j]
    for j in range(d):
        for k in range(width):
            out[start + j * width + k] += total[k, j]


@njit()
def keep_six(into: Floats, at: int, s0: Any, s1: Any, s2: Any, s3: Any, s4: Any, s5: Any) -> None:
    """Six registers, one after the other."""
    store(into, at, s0)
    store(into, at + WIDTH, s1)
    store(into, at + 2 * WIDTH, s2)
    store(into, at + 3 * WIDTH, s3)
    store(into, at + 4 * WIDTH, s4)
    store(into, at + 5 * WIDTH, s5)

"""Rows of features times blocks of weights: theta += x W and its transpose W += x^T mu, as compiled loops.

Row r meets ``width`` numbers at ``at[r]`` of an array over states or table entries, and its (n_features, width) block
of weights at ``block[r]``. Rows are visited in order, so sums carry the same bits on every run.
"""

from __future__ import annotations

from numba import njit

from mssvm.core.arrays import AnyArray, Floats, Ints


@njit(cache=True, nogil=True)
def dense_forward(x: Floats, at: Ints, block: Ints, width: int, w: Floats, out: Floats) -> None:
    """out[at[r] + k] += sum_j x[r, j] w[block[r] + j width + k]."""
    for r in range(x.shape[0]):
        target = out[at[r] : at[r] + width]
        for j in range(x.shape[1]):
            value = x[r, j]
            if value != 0.0:
                source = w[block[r] + j * width : block[r] + (j + 1) * width]
                for k in range(width):
                    target[k] += value * source[k]


@njit(cache=True, nogil=True)
def dense_adjoint(x: Floats, at: Ints, block: Ints, width: int, mu: Floats, out: Floats) -> None:
    """out[block[r] + j width + k] += x[r, j] mu[at[r] + k]."""
    for r in range(x.shape[0]):
        source = mu[at[r] : at[r] + width]
        for j in range(x.shape[1]):
            value = x[r, j]
            if value != 0.0:
                target = out[block[r] + j * width : block[r] + (j + 1) * width]
                for k in range(width):
                    target[k] += value * source[k]


@njit(cache=True, nogil=True)
def sparse_forward(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: Ints, block: Ints, width: int, w: Floats, out: Floats
) -> None:
    """``dense_forward`` for rows in compressed form."""
    for r in range(at.shape[0]):
        target = out[at[r] : at[r] + width]
        for e in range(ptr[r], ptr[r + 1]):
            first = block[r] + indices[e] * width
            source = w[first : first + width]
            for k in range(width):
                target[k] += data[e] * source[k]


@njit(cache=True, nogil=True)
def sparse_adjoint(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: Ints, block: Ints, width: int, mu: Floats, out: Floats
) -> None:
    """``dense_adjoint`` for rows in compressed form."""
    for r in range(at.shape[0]):
        source = mu[at[r] : at[r] + width]
        for e in range(ptr[r], ptr[r + 1]):
            first = block[r] + indices[e] * width
            target = out[first : first + width]
            for k in range(width):
                target[k] += data[e] * source[k]


@njit(cache=True, nogil=True)
def listed_forward(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: Ints, block: Ints, width: int, first: Ints, states: Ints,
    w: Floats, out: Floats,
) -> None:  # fmt: skip
    """``sparse_forward`` where feature j has weights for ``states[first[j] : first[j + 1]]`` only, in this order."""
    for r in range(at.shape[0]):
        target = out[at[r] : at[r] + width]
        for e in range(ptr[r], ptr[r + 1]):
            value, a, b = data[e], first[indices[e]], first[indices[e] + 1]
            source = w[block[r] + a : block[r] + b]
            if b - a == width:
                for k in range(width):
                    target[k] += value * source[k]
            else:
                for q in range(b - a):
                    target[states[a + q]] += value * source[q]


@njit(cache=True, nogil=True)
def listed_adjoint(
    data: Floats, indices: AnyArray, ptr: AnyArray, at: Ints, block: Ints, width: int, first: Ints, states: Ints,
    mu: Floats, out: Floats,
) -> None:  # fmt: skip
    """The transpose of ``listed_forward``."""
    for r in range(at.shape[0]):
        source = mu[at[r] : at[r] + width]
        for e in range(ptr[r], ptr[r + 1]):
            value, a, b = data[e], first[indices[e]], first[indices[e] + 1]
            target = out[block[r] + a : block[r] + b]
            if b - a == width:
                for k in range(width):
                    target[k] += value * source[k]
            else:
                for q in range(b - a):
                    target[q] += value * source[states[a + q]]


@njit(cache=True, nogil=True)
def scatter_rows(rows: Floats, at: Ints, out: Floats) -> None:
    """out[at[r] + k] += rows[r, k]."""
    for r in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            out[at[r] + k] += rows[r, k]


@njit(cache=True, nogil=True)
def gather_rows(values: Floats, at: Ints, rows: Floats) -> None:
    """rows[r, k] = values[at[r] + k]."""
    for r in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            rows[r, k] = values[at[r] + k]

"""Terms of linear models: groups of feature rows, each multiplying a block of weights.

    theta[at[r] : at[r] + width] += features[r] @ w[block[r] : block[r] + d * width].reshape(d, width)

Equal blocks tie weights, different blocks untie them. Node features, edge features and indicators of joint states (one
feature that is 1) all have this form. A row with ``at[r] = -1`` adds nothing, so that several terms may share one
feature matrix. Sparse features may have weights for a subset of the states only (``ActiveStates``).
Terms are plain arrays; ``Engine.linear`` turns them into a map and its transpose.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.errors import InputError
from mssvm.core.topology import spans

Target = Literal["unary", "tables"]
MOST_32 = np.iinfo(np.int32).max
LARGE = 1 << 14  # a tied term with at least this many multiplications (rows times weights) is not fused with others


@dataclass(frozen=True, eq=False)
class ActiveStates:
    """States that each feature has weights for: ``states[first[j] : first[j + 1]]``, ascending, in the order of the
    weights."""

    first: Ints
    states: Ints


@dataclass(init=False, eq=False, repr=False)
class Term:
    """Rows of features (dense, or scipy.sparse) that add to ``Potentials.unary`` or ``Potentials.tables``.

    Derived: ``one_block``, whether all rows share one block of weights; ``constant``, whether every row is the single
    feature 1; ``block_size``, weights of one block; ``reach``, the least number of weights that a model with this term
    has. A term is not changed after its construction.
    """

    target: Target
    features: Any
    at: AnyArray
    width: int
    block: Ints
    active: ActiveStates | None
    one_block: bool = field(init=False)
    constant: bool = field(init=False)
    block_size: int = field(init=False)
    reach: int = field(init=False)

    def __init__(
        self,
        target: Target,
        features: Any,
        at: AnyArray,
        width: int,
        block: Ints,
        active: ActiveStates | None = None,
    ) -> None:
        if target not in ("unary", "tables"):
            raise InputError(f"a term adds to 'unary' or 'tables', not to {target!r}.")
        self.target = target
        self.features = _checked_rows(features)
        self.at = _compact(np.asarray(at))
        self.width = int(width)
        self.active = active
        self.block, is_broadcast = _checked_blocks(np.asarray(block, dtype=np.int64), self.at.shape)
        n_rows, n_features = self.features.shape
        if self.at.ndim != 1 or n_rows != len(self.at) or self.block.shape != self.at.shape:
            raise InputError(f"a term has features for {n_rows} rows but places for {self.at.shape}.")
        if active is None:
            self.block_size = int(n_features) * self.width
        elif sparse.issparse(self.features) and len(active.first) == n_features + 1:
            self.block_size = len(active.states)
        else:
            raise InputError("weights for some states only need sparse features, and a list of states for each.")
        self.one_block = len(self.block) > 0 and (is_broadcast or bool(np.all(self.block == self.block[0])))
        self.constant = _is_constant(self.features)
        distinct_blocks = self.block[:1] if self.one_block else self.block
        self.reach = int(distinct_blocks.max(initial=-self.block_size)) + self.block_size

    @cached_property
    def _by_place(self) -> tuple[AnyArray | None, AnyArray]:
        """The rows in ascending order of ``at`` (None: they are in that order), and their ``at``.

        Rows that add nothing (-1) do not count as out of order: they take the ``at`` of the row before them.
        """
        places = np.maximum.accumulate(self.at)
        if np.all((places == self.at) | (self.at < 0)):
            if self.at.min(initial=0) >= 0:
                return None, self.at  # the same array takes no memory
            return None, places
        order = np.argsort(self.at, kind="stable")
        return order, self.at[order]

    def move(self, old: Ints, sizes: Ints, new: Ints) -> Term:
        """The rows inside the segments ``old[k] : old[k] + sizes[k]``, moved to ``new[k]``."""
        order, places = self._by_place
        first = np.searchsorted(places, old)
        count = np.searchsorted(places, old + sizes) - first
        rows = spans(first, count)
        if order is not None:
            rows = order[rows]
        at = self.at[rows]
        at = np.where(at < 0, -1, at + np.repeat(new - old, count))
        block = self.block[:1] if self.one_block else self.block[rows]
        return Term(self.target, _take(self.features, rows), at, self.width, block, self.active)


def fused(terms: Sequence[Term], sizes: Sequence[int]) -> tuple[Term, ...]:
    """Dense terms with the same target, width and number of features, joined into one term.

    A model with separate weights for every site has one term per site, and each term costs a call, however few its
    rows are. Large tied terms are not joined, as they have a faster loop. ``sizes`` are the terms' numbers of rows, or
    those of the larger data set that the terms are a part of.
    """
    groups: dict[Hashable, list[Term]] = {}
    for number, (term, size) in enumerate(zip(terms, sizes, strict=True)):
        separate = sparse.issparse(term.features) or (term.one_block and size * term.block_size >= LARGE)
        key: Hashable = number if separate else (term.target, term.width, term.features.shape[1])
        groups.setdefault(key, []).append(term)
    return tuple(_concatenated(group) for group in groups.values())


def _concatenated(group: list[Term]) -> Term:
    """Dense terms with the same target and width as one."""
    first = group[0]
    if len(group) == 1:
        return first
    features = np.concatenate([term.features for term in group])
    at = np.concatenate([term.at for term in group])
    block = np.concatenate([term.block for term in group])
    return Term(first.target, features, at, first.width, block)


def _compact(at: AnyArray) -> AnyArray:
    """Places as 32-bit integers where these suffice."""
    dtype: type[np.integer[Any]] = np.int64
    if at.max(initial=0) <= MOST_32:
        dtype = np.int32
    return np.ascontiguousarray(at, dtype=dtype)


def _checked_blocks(block: Ints, shape: tuple[int, ...]) -> tuple[Ints, bool]:
    """Start of every row's block of weights, and whether it is a single number broadcast to all rows (no memory)."""
    is_broadcast = block.size == 1 or not any(block.strides)
    first = block.ravel()[:1] if is_broadcast else block
    if first.min(initial=0) < 0:
        raise InputError(f"a block of weights starts at {first.min()}; it must start at 0 or later.")
    if is_broadcast:
        return np.broadcast_to(first, shape), True
    return np.ascontiguousarray(block), False


def _is_constant(rows: Any) -> bool:
    """Whether every row is the single feature 1."""
    if sparse.issparse(rows) or rows.shape[1] != 1:
        return False
    distinct = rows if any(rows.strides) else rows[:1]
    return bool(np.all(distinct == 1.0))


def _checked_rows(features: Any) -> Any:
    """Finite features as a CSR matrix or a contiguous array; a broadcast array (one row for all) stays broadcast."""
    if sparse.issparse(features):
        rows = features.tocsr().astype(np.float64, copy=False)
        values = rows.data
    else:
        rows = np.asarray(features, dtype=np.float64)
        if rows.ndim != 2:
            raise InputError(f"features need two axes (rows, features), got shape {rows.shape}.")
        is_broadcast = not any(rows.strides)
        if is_broadcast:
            values = rows[:1]
        else:
            rows = np.ascontiguousarray(rows)
            values = rows
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(values.sum())  # a finite sum proves every entry finite, without an array of answers
    if not finite and not np.isfinite(values).all():
        raise InputError("features hold NaN or inf; every feature must be a finite number.")
    return rows


def _take(features: Any, rows: Ints) -> Any:
    """The given rows of a feature matrix; a run of consecutive rows shares memory."""
    if not len(rows) or rows[-1] - rows[0] != len(rows) - 1 or np.any(np.diff(rows) != 1):
        return features[rows]
    start = int(rows[0])
    stop = int(rows[-1]) + 1
    if not sparse.issparse(features):
        return features[start:stop]
    ptr = features.indptr[start : stop + 1]
    entries = slice(int(ptr[0]), int(ptr[-1]))
    parts = (features.data[entries], features.indices[entries], ptr - ptr[0])
    return sparse.csr_array(parts, shape=(stop - start, features.shape[1]), copy=False)

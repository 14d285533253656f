"""Terms of a linear model: groups of feature rows, each multiplying a block of weights.

    theta[at[r] : at[r] + width] += features[r] @ w[block[r] : block[r] + d * width].reshape(d, width)

Equal blocks tie weights, different blocks untie them. Features of nodes and of edges, and indicators of joint states
(one feature that is 1), are all of this form. A row whose place is -1 adds nothing, so that terms may share one matrix.
Sparse features may have weights for some states only (``ActiveStates``).
Terms are plain arrays; ``Engine.linear`` turns them into a map and its transpose.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.topology import Batch, spans

Target = Literal["unary", "tables"]
MOST_32 = np.iinfo(np.int32).max
LARGE = 1 << 14  # multiplications of a term that is not fused with others


@dataclass(frozen=True, eq=False)
class ActiveStates:
    """States that each feature has weights for: ``states[first[j] : first[j + 1]]``, rising, as the weights lie."""

    first: Ints
    states: Ints


@dataclass(frozen=True, eq=False)
class Term:
    """Rows of features (dense, or scipy.sparse) that add to ``Potentials.unary`` or ``Potentials.tables``."""

    target: Target
    features: Any
    at: AnyArray
    width: int
    block: Ints
    active: ActiveStates | None = None

    def __post_init__(self) -> None:
        if self.target not in ("unary", "tables"):
            raise InputError(f"a term adds to 'unary' or 'tables', not to {self.target!r}.")
        rows = self.features
        rows = rows.tocsr().astype(np.float64, copy=False) if sparse.issparse(rows) else _dense(rows)
        at = np.asarray(self.at)
        at = np.ascontiguousarray(at, dtype=np.int32 if at.max(initial=0) <= MOST_32 else np.int64)
        block = np.asarray(self.block, dtype=np.int64)
        # One block for all rows takes no memory, whoever made it so.
        one = block.size == 1 or not any(block.strides)
        block = np.broadcast_to(block.ravel()[:1], at.shape) if one else np.ascontiguousarray(block)
        if at.ndim != 1 or rows.shape[0] != len(at) or block.shape != at.shape:
            raise InputError(f"a term has features for {rows.shape[0]} rows but places for {at.shape}.")
        if not _finite(rows.data if sparse.issparse(rows) else rows):
            raise InputError("features hold NaN or inf; every feature must be a finite number.")
        low = block[:1] if one else block
        if low.min(initial=0) < 0:
            raise InputError(f"a block of weights starts at {low.min()}; it must start at 0 or later.")
        if self.active is not None and not (sparse.issparse(rows) and len(self.active.first) == rows.shape[1] + 1):
            raise InputError("weights for some states only need sparse features, and a list of states for each.")
        for name, value in (("features", rows), ("at", at), ("block", block), ("width", int(self.width))):
            object.__setattr__(self, name, value)

    @property
    def block_size(self) -> int:
        return int(self.features.shape[1]) * self.width if self.active is None else len(self.active.states)

    @cached_property
    def reach(self) -> int:
        """Number of weights that the term needs to exist."""
        starts = self.block[:1] if self.one_block else self.block
        return int(starts.max(initial=-self.block_size)) + self.block_size

    @cached_property
    def one_block(self) -> bool:
        """Whether all rows share one block of weights."""
        block = self.block
        return len(block) > 0 and (not any(block.strides) or bool(np.all(block == block[0])))

    @cached_property
    def constant(self) -> bool:
        """Whether every row is the single feature 1."""
        rows = self.features
        return not sparse.issparse(rows) and rows.shape[1] == 1 and bool(np.all(_seen_once(rows) == 1.0))

    @cached_property
    def _by_place(self) -> tuple[AnyArray | None, AnyArray]:
        """Rows in order of place (None: as they are) and their places; rows that add nothing follow the one before."""
        places = np.maximum.accumulate(self.at)
        if np.all((places == self.at) | (self.at < 0)):
            return None, self.at if self.at.min(initial=0) >= 0 else places
        order = np.argsort(self.at, kind="stable")
        return order, self.at[order]

    def move(self, old: Ints, sizes: Ints, new: Ints) -> Term:
        """The rows inside the segments ``old[k] : old[k] + sizes[k]``, moved to ``new[k]``."""
        order, places = self._by_place
        first = np.searchsorted(places, old)
        count = np.searchsorted(places, old + sizes) - first
        rows = spans(first, count)
        rows = rows if order is None else order[rows]
        at = self.at[rows]
        at = np.where(at < 0, -1, at + np.repeat(new - old, count))
        block = self.block[:1] if self.one_block else self.block[rows]
        return Term(self.target, _take(self.features, rows), at, self.width, block, self.active)


def fused(terms: Sequence[Term], sizes: Sequence[int]) -> tuple[Term, ...]:
    """Dense terms of one target, width and number of features as one term: a model with weights of its own for every
    site has a term a site, and each costs a call however few its rows are. Large tied terms stay: they have
    a faster loop. ``sizes`` are the terms' numbers of rows, or those of the larger data that they are a part of."""
    groups: dict[Hashable, list[Term]] = {}
    for number, (term, size) in enumerate(zip(terms, sizes, strict=True)):
        alone = sparse.issparse(term.features) or (term.one_block and size * term.block_size >= LARGE)
        groups.setdefault(number if alone else (term.target, term.width, term.features.shape[1]), []).append(term)
    return tuple(group[0] if len(group) == 1 else _joined(group) for group in groups.values())


def _joined(terms: Sequence[Term]) -> Term:
    rows, at, block = (np.concatenate([getattr(t, name) for t in terms]) for name in ("features", "at", "block"))
    return Term(terms[0].target, rows, at, terms[0].width, block)


def _dense(rows: Any) -> Floats:
    out = np.asarray(rows, dtype=np.float64)
    if out.ndim != 2:
        raise InputError(f"features need two axes (rows, features), got shape {out.shape}.")
    return np.ascontiguousarray(out) if any(out.strides) else out


def _seen_once(rows: Floats) -> Floats:
    """The rows, or the one that all of them are."""
    return rows if any(rows.strides) else rows[:1]


def _finite(values: Any) -> bool:
    """A finite sum proves every entry finite, without an array of answers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(_seen_once(values).sum()) or np.isfinite(values).all())


def _take(features: Any, rows: Ints) -> Any:
    """The given rows of a feature matrix; a run of consecutive rows shares memory."""
    if not len(rows) or rows[-1] - rows[0] != len(rows) - 1 or np.any(np.diff(rows) != 1):
        return features[rows]
    a, b = int(rows[0]), int(rows[-1]) + 1
    if not sparse.issparse(features):
        return features[a:b]
    ptr = features.indptr[a : b + 1]
    span = slice(int(ptr[0]), int(ptr[-1]))
    parts = (features.data[span], features.indices[span], ptr - ptr[0])
    return sparse.csr_array(parts, shape=(b - a, features.shape[1]), copy=False)


def node_term(batch: Batch, features: Any, block: int | Ints = 0, variables: Ints | None = None) -> Term:
    """One row of features per variable (default: all); ``block`` is one start for all, or one per row."""
    chosen = np.arange(batch.n_vars) if variables is None else np.asarray(variables, dtype=np.int64)
    width = _one_size(batch.cards[chosen], "variables", "states")
    return Term("unary", features, batch.unary_ptr[chosen], width, np.asarray(block))


def table_term(batch: Batch, features: Any = None, block: int | Ints = 0, factors: Ints | None = None) -> Term:
    """One row of features per different table of ``factors`` (default: all), in order of first use.

    Without features every row is the single feature 1: indicators of the joint states.
    """
    chosen = np.arange(batch.n_factors) if factors is None else np.asarray(factors, dtype=np.int64)
    width = _one_size(batch.table_sizes[chosen], "factors", "table entries")
    _, first = np.unique(batch.table_at[chosen], return_index=True)
    at = batch.table_at[chosen[np.sort(first)]]
    rows = ones(len(at)) if features is None else features
    return Term("tables", rows, at, width, np.asarray(block))


def ones(n: int) -> Floats:
    """The single feature 1 in every row, in no memory."""
    return np.broadcast_to(np.ones((1, 1)), (n, 1))


def _one_size(sizes: Ints, of: str, what: str) -> int:
    kinds = np.unique(sizes)
    if len(kinds) > 1:
        raise InputError(f"the {of} of one term differ in their number of {what} ({kinds}); make one term for each.")
    return int(kinds[0]) if len(kinds) else 1

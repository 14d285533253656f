"""What engines take and give: potentials, or the terms of features that they are sums of, and a query in; a belief out.

Arrays over variables, states and factors follow ``Batch``'s layout. A term of a linear model is a group of feature
rows, each multiplying a block of weights:

    theta[at[r] : at[r] + width] += features[r] @ w[block[r] : block[r] + d * width].reshape(d, width)

Equal blocks tie weights, different blocks untie them. Features of nodes and of edges, and indicators of joint states
(one feature that is 1), are all of this form. A row whose place is -1 adds nothing, so that terms may share one matrix.
Sparse features may have weights for some states only (``ActiveStates``).
Terms are plain arrays; ``Engine.linear`` turns them into a map and its transpose.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints, sum_by
from mssvm.core.errors import InputError
from mssvm.core.topology import Batch, ranks, spans

Target = Literal["unary", "tables"]
MOST_32 = np.iinfo(np.int32).max
LARGE = 1 << 14  # multiplications of a term that is not fused with others


@dataclass(frozen=True, eq=False)
class ScoreIndex:
    """Some scores and the instances they belong to, in their order: states of variables, entries of tables with how
    often each counts."""

    states: Ints
    owner: Ints
    tables: Ints
    table_owner: Ints
    count: Floats


@dataclass(frozen=True, eq=False)
class Potentials:
    """theta: one score per state of every variable, and one table per (tied group of) factor."""

    unary: Floats
    tables: Floats

    @classmethod
    def zeros(cls, batch: Batch) -> Potentials:
        return cls(np.zeros(batch.n_states), np.zeros(batch.n_table_entries))

    def __add__(self, other: Potentials) -> Potentials:
        return Potentials(self.unary + other.unary, self.tables + other.tables)

    def sums(self, picked: ScoreIndex, n: int) -> Floats:
        """For each of ``n`` instances the sum of the scores picked."""
        tables = picked.count * self.tables[picked.tables]
        return sum_by(picked.owner, self.unary[picked.states], n) + sum_by(picked.table_owner, tables, n)

    def check(self, batch: Batch, unary: bool = True) -> None:
        """Raise unless shapes fit the batch and no entry is NaN or +inf; those of ``unary`` may be looked at later."""
        for name, array, size in (
            ("unary", self.unary, batch.n_states),
            ("tables", self.tables, batch.n_table_entries),
        ):
            if array.shape != (size,):
                raise InputError(f"potentials.{name} has shape {array.shape}, the batch needs ({size},).")
            if name == "unary" and not unary:
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.sum()
            if np.isfinite(total):
                continue  # a finite sum proves every entry finite, at a fraction of the cost
            if np.isnan(array).any() or np.any(array == np.inf):
                raise InputError(f"potentials.{name} holds NaN or +inf; scores must be finite or -inf (forbidden).")


@dataclass(frozen=True, eq=False)
class Query:
    """Per variable: output (temperature eps_y) or hidden (eps_h); per state: allowed or not.

    Labels, candidate sets, clamping and hard constraints are all the ``allowed`` mask.
    """

    output: Bools
    allowed: Bools

    @classmethod
    def all_outputs(cls, batch: Batch) -> Query:
        return cls(np.ones(batch.n_vars, dtype=bool), np.ones(batch.n_states, dtype=bool))

    @classmethod
    def of(cls, batch: Batch, output: Bools) -> Query:
        """Every state allowed, the given variables outputs."""
        return cls(np.asarray(output, dtype=bool), np.ones(batch.n_states, dtype=bool))

    def restrict(self, mask: Bools) -> Query:
        """The same query with fewer states allowed."""
        return replace(self, allowed=self.allowed & mask)

    def clamp(self, batch: Batch, variables: Ints, states: Ints) -> Query:
        """The same query with each named variable held at the given state."""
        mask = np.ones(batch.n_states, dtype=bool)
        mask[np.isin(batch.state_var, variables)] = False
        mask[batch.unary_ptr[variables] + states] = True
        return self.restrict(mask)

    def check(self, batch: Batch) -> None:
        if self.output.shape != (batch.n_vars,) or self.allowed.shape != (batch.n_states,):
            raise InputError(
                f"query has {self.output.shape} roles and {self.allowed.shape} states; "
                f"the batch needs ({batch.n_vars},) and ({batch.n_states},)."
            )
        empty = np.flatnonzero(self.n_allowed(batch) == 0)
        if len(empty):
            i = int(empty[0])
            b = int(batch.owner[i])
            raise InputError(f"instance {b}, variable {i - int(batch.var_ptr[b])}: no state is allowed.")

    def n_allowed(self, batch: Batch) -> Ints:
        """Number of allowed states of each variable."""
        if self.allowed.all():
            return np.diff(batch.unary_ptr)
        return np.add.reduceat(self.allowed, batch.unary_ptr[:-1], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Marginals:
    """mu = d value / d theta: marginals of the (eps_y, eps_h)-tempered distribution.

    ``tables`` follows ``Batch.mu_at``: the marginals of tied factors are summed per instance.
    """

    unary: Floats
    tables: Floats

    @classmethod
    def zeros(cls, batch: Batch) -> Marginals:
        return cls(np.zeros(batch.n_states), np.zeros(batch.n_mu_entries))

    @classmethod
    def empty(cls, batch: Batch) -> Marginals:
        """Room for marginals, which may hold anything until it is written."""
        return cls(np.empty(batch.n_states), np.empty(batch.n_mu_entries))

    def __sub__(self, other: Marginals) -> Marginals:
        return Marginals(self.unary - other.unary, self.tables - other.tables)

    def best(self, batch: Batch) -> Ints:
        """The most probable state of each variable, the first of them where several are."""
        return segment_argmax(self.unary, batch.unary_ptr)

    def scaled(self, batch: Batch, weight: Floats) -> Marginals:
        """The marginals of every instance multiplied by its weight."""
        return Marginals(self.unary * weight[batch.owner][batch.state_var], self.tables * weight[batch.mu_owner])

    def clear(self, batch: Batch, instances: Bools) -> None:
        """Make those of the marked instances zero."""
        self.unary[instances[batch.owner][batch.state_var]] = 0.0
        self.tables[instances[batch.mu_owner]] = 0.0


@dataclass(frozen=True, eq=False)
class Status:
    """What is known about a result, per instance. NaN bounds mean that none was computed.

    ``lower`` <= true value <= ``upper`` wherever they are not NaN.
    """

    method: tuple[str, ...]
    exact: Bools
    converged: Bools
    sweeps: Ints
    residual: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def exactly(cls, value: Floats, method: str | tuple[str, ...]) -> Status:
        n = len(value)
        yes = np.ones(n, dtype=bool)
        names = (method,) * n if isinstance(method, str) else method
        return cls(names, yes, yes, np.ones(n, dtype=np.int64), np.zeros(n), value.copy(), value.copy())


@dataclass(frozen=True, eq=False)
class Belief:
    """The answer of an inference call: value per instance, its gradient, and what is known about it."""

    value: Floats
    mu: Marginals
    status: Status
    extras: dict[str, object] = field(default_factory=dict)

    def decode(self, batch: Batch) -> Ints:
        """Most probable state of each variable under ``mu`` (at eps_y = 0: the maximising outputs)."""
        return self.mu.best(batch)


def segment_argmax(values: Floats, ptr: Ints) -> Ints:
    """Index, within its segment, of the first maximum of each segment ``ptr[i] : ptr[i+1]``."""
    if len(ptr) < 2:
        return np.zeros(0, dtype=np.int64)
    sizes = np.diff(ptr)
    if np.all(sizes == sizes[0]):
        return np.asarray(values.reshape(len(sizes), -1).argmax(axis=1))
    top = np.repeat(np.maximum.reduceat(values, ptr[:-1]), sizes)
    index = ranks(ptr)
    return np.minimum.reduceat(np.where(values == top, index, len(values)), ptr[:-1])


# ----------------------------------------------------------------------------------------- terms of linear models


@dataclass(frozen=True, eq=False)
class ActiveStates:
    """States that each feature has weights for: ``states[first[j] : first[j + 1]]``, rising, as the weights lie."""

    first: Ints
    states: Ints


@dataclass(frozen=True, eq=False)
class Term:
    """Rows of features (dense, or scipy.sparse) that add to ``Potentials.unary`` or ``Potentials.tables``.

    ``one_block``: all rows share one block of weights; ``constant``: every row is the single feature 1; ``reach`` is
    the number of weights that the term needs to exist.
    """

    target: Target
    features: Any
    at: AnyArray
    width: int
    block: Ints
    active: ActiveStates | None = None
    one_block: bool = field(init=False, repr=False)
    constant: bool = field(init=False, repr=False)
    block_size: int = field(init=False, repr=False)
    reach: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.target not in ("unary", "tables"):
            raise InputError(f"a term adds to 'unary' or 'tables', not to {self.target!r}.")
        rows = _checked_rows(self.features)
        at = np.asarray(self.at)
        at = np.ascontiguousarray(at, dtype=np.int32 if at.max(initial=0) <= MOST_32 else np.int64)
        block = np.asarray(self.block, dtype=np.int64)
        # One block for all rows takes no memory, whoever made it so.
        one = block.size == 1 or not any(block.strides)
        block = np.broadcast_to(block.ravel()[:1], at.shape) if one else np.ascontiguousarray(block)
        if at.ndim != 1 or rows.shape[0] != len(at) or block.shape != at.shape:
            raise InputError(f"a term has features for {rows.shape[0]} rows but places for {at.shape}.")
        low = block[:1] if one else block
        if low.min(initial=0) < 0:
            raise InputError(f"a block of weights starts at {low.min()}; it must start at 0 or later.")
        if self.active is not None and not (sparse.issparse(rows) and len(self.active.first) == rows.shape[1] + 1):
            raise InputError("weights for some states only need sparse features, and a list of states for each.")
        size = int(rows.shape[1]) * int(self.width) if self.active is None else len(self.active.states)
        found = {"features": rows, "at": at, "block": block, "width": int(self.width), "block_size": size}
        found["one_block"] = len(block) > 0 and (one or bool(np.all(block == block[0])))
        single = not sparse.issparse(rows) and rows.shape[1] == 1
        found["constant"] = single and bool(np.all((rows if any(rows.strides) else rows[:1]) == 1.0))
        found["reach"] = int((block[:1] if found["one_block"] else block).max(initial=-size)) + size
        for name, value in found.items():
            object.__setattr__(self, name, value)

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
    out = []
    for group in groups.values():
        features, at, block = [], [], []
        for term in group:
            features.append(term.features)
            at.append(term.at)
            block.append(term.block)
        if len(group) > 1:
            arrays = np.concatenate(features), np.concatenate(at), term.width, np.concatenate(block)
            term = Term(term.target, *arrays)
        out.append(term)
    return tuple(out)


def _checked_rows(features: Any) -> Any:
    """Finite numbers as a CSR or a contiguous array; rows that are all the same one in no memory stay so."""
    if sparse.issparse(features):
        rows = features.tocsr().astype(np.float64, copy=False)
        values = rows.data
    else:
        rows = np.asarray(features, dtype=np.float64)
        if rows.ndim != 2:
            raise InputError(f"features need two axes (rows, features), got shape {rows.shape}.")
        repeated = not any(rows.strides)
        rows = rows if repeated else np.ascontiguousarray(rows)
        values = rows[:1] if repeated else rows
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(values.sum())  # a finite sum proves every entry finite, without an array of answers
    if not finite and not np.isfinite(values).all():
        raise InputError("features hold NaN or inf; every feature must be a finite number.")
    return rows


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

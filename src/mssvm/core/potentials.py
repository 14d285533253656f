"""Inputs and outputs of inference: potentials and a query in, a belief out.

Arrays over variables, states and factors follow ``Batch``'s layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.errors import InputError
from mssvm.core.topology import Batch, ranks

FEW_STATES = 8  # if all variables have at most this many, summing the mask by columns is faster than reduceat


@dataclass(frozen=True, eq=False)
class ScoreIndex:
    """An index of scores, grouped by instance: entries of ``Potentials.unary`` and of ``Potentials.tables``.

    ``states[k]`` belongs to instance ``owner[k]``; ``tables[k]`` to ``table_owner[k]``, and counts ``count[k]`` times.
    """

    states: Ints
    owner: Ints
    tables: Ints
    table_owner: Ints
    count: Floats


@dataclass(frozen=True, eq=False)
class Potentials:
    """theta: one score per state of every variable, and one table per factor or group of tied factors."""

    unary: Floats
    tables: Floats

    @classmethod
    def zeros(cls, batch: Batch) -> Potentials:
        return cls(np.zeros(batch.n_states), np.zeros(batch.n_table_entries))

    def __add__(self, other: Potentials) -> Potentials:
        return Potentials(self.unary + other.unary, self.tables + other.tables)

    def sums(self, index: ScoreIndex, n: int) -> Floats:
        """For each of ``n`` instances the sum of its indexed scores."""
        tables = index.count * self.tables[index.tables]
        return sum_by(index.owner, self.unary[index.states], n) + sum_by(index.table_owner, tables, n)

    def check(self, batch: Batch) -> None:
        """Raise unless shapes fit the batch and no entry is NaN or +inf."""
        self.check_shapes(batch)
        _check_scores("unary", self.unary)
        _check_scores("tables", self.tables)

    def check_shapes(self, batch: Batch) -> None:
        """Raise unless shapes fit the batch; scores are left to a kernel that reads them anyway."""
        _check_shape("unary", self.unary, batch.n_states)
        _check_shape("tables", self.tables, batch.n_table_entries)


def _check_shape(name: str, scores: Floats, size: int) -> None:
    if scores.shape != (size,):
        raise InputError(f"potentials.{name} has shape {scores.shape}, the batch needs ({size},).")


def _check_scores(name: str, scores: Floats) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        total = scores.sum()
    if np.isfinite(total):
        return  # a finite sum proves every entry finite, at a fraction of the cost
    if np.isnan(scores).any() or np.any(scores == np.inf):
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
            variable = int(empty[0])
            b = int(batch.owner[variable])
            raise InputError(f"instance {b}, variable {variable - int(batch.var_ptr[b])}: no state is allowed.")

    def n_allowed(self, batch: Batch) -> Ints:
        """Number of allowed states of each variable."""
        if self.allowed.all():
            return np.diff(batch.unary_ptr)
        n = batch.n_vars
        card = batch.n_states // max(n, 1)
        if 0 < card <= FEW_STATES and batch.n_states == n * card and bool(np.all(np.diff(batch.unary_ptr) == card)):
            columns = self.allowed.reshape(n, card)
            count = columns[:, 0].astype(np.int64)
            for state in range(1, card):
                count += columns[:, state]
            return count
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

    def __sub__(self, other: Marginals) -> Marginals:
        return Marginals(self.unary - other.unary, self.tables - other.tables)

    def add(self, other: Marginals) -> None:
        """Add marginals in place."""
        np.add(self.unary, other.unary, out=self.unary)
        np.add(self.tables, other.tables, out=self.tables)

    def best(self, batch: Batch) -> Ints:
        """The most probable state of each variable; ties go to the first."""
        return segment_argmax(self.unary, batch.unary_ptr)

    def scaled(self, batch: Batch, weight: Floats) -> Marginals:
        """The marginals of every instance multiplied by its weight."""
        return Marginals(self.unary * weight[batch.owner][batch.state_var], self.tables * weight[batch.mu_owner])

    def clear(self, batch: Batch, instances: Bools) -> None:
        """Set the marginals of the marked instances to zero."""
        self.unary[instances[batch.owner][batch.state_var]] = 0.0
        self.tables[instances[batch.mu_owner]] = 0.0


@dataclass(frozen=True, eq=False)
class Status:
    """Quality of a result, per instance: method, exactness, convergence, and bounds.

    ``lower`` <= true value <= ``upper``; NaN where no bound was computed.
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
        """The status of exact values, by one method or one method per instance; its arrays are read-only or copies."""
        n = len(value)
        yes, one_sweep, no_residual = _constants(n)
        bound = value.copy()
        return cls(
            method=(method,) * n if isinstance(method, str) else method,
            exact=yes,
            converged=yes,
            sweeps=one_sweep,
            residual=no_residual,
            lower=bound,
            upper=bound,
        )


@lru_cache
def _constants(n: int) -> tuple[Bools, Ints, Floats]:
    """Read-only arrays of n times True, 1 and 0.0, which take no memory."""
    one = np.broadcast_to(np.int64(1), n)
    return np.broadcast_to(np.True_, n), one, np.broadcast_to(0.0, n)


@dataclass(frozen=True, eq=False)
class Belief:
    """The answer of an inference call: value per instance, its gradient, and its status."""

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

"""Linear models: theta(x, y, h) = w . phi(x, y, h) (paper eq. 1), as potentials and as the transpose of that map.

forward   theta = Phi(x) w + offset
adjoint   Phi(x)^T mu = E_mu[phi(x, y, h)], the expected features of eq. 10 and 12
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch, spans
from mssvm.models.layout import Layout
from mssvm.models.terms import Term


@dataclass(frozen=True, eq=False)
class LinearInputs:
    """Features of a batch, and an optional fixed ``offset`` (known scores; -inf for what is forbidden)."""

    batch: Batch
    terms: tuple[Term, ...]
    offset: Potentials | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        for number, term in enumerate(self.terms):
            _check_places(self.batch, term, number)
        if self.offset is not None:
            self.offset.check(self.batch)

    @cached_property
    def reach(self) -> int:
        """Number of weights that the terms need."""
        return max((term.reach for term in self.terms), default=0)

    @cached_property
    def own_tables(self) -> bool:
        """Whether marginals of tables lie where the tables lie, so that there is nothing to fold."""
        return not self.batch.tables_shared_across_instances and np.array_equal(self.batch.mu_at, self.batch.table_at)

    def select(self, which: Sequence[int] | Ints) -> LinearInputs:
        """The named instances; tables are renumbered as ``Batch.select`` does."""
        chosen = np.asarray(which, dtype=np.int64)
        batch = self.batch
        ptr = batch.unary_ptr[batch.var_ptr]
        factors = spans(batch.factor_ptr[chosen], np.diff(batch.factor_ptr)[chosen])
        return self._moved(batch.select(chosen), ptr[chosen], np.diff(ptr)[chosen], factors)

    def untied(self) -> LinearInputs:
        """The same model with a table of its own for every factor (weights stay tied)."""
        batch = self.batch
        ptr = batch.unary_ptr[batch.var_ptr]
        apart = Batch.build([batch.topology(b) for b in range(len(batch))])
        return self._moved(apart, ptr[:-1], np.diff(ptr), np.arange(batch.n_factors))

    def _moved(self, batch: Batch, state_starts: Ints, state_sizes: Ints, factors: Ints) -> LinearInputs:
        """Terms and offset carried over to a batch made of the given states and factors, in this order."""
        new_ptr = batch.unary_ptr[batch.var_ptr][:-1]
        new_tables, first = np.unique(batch.table_at, return_index=True)
        tables = self.batch.table_at[factors[first]], self.batch.table_sizes[factors[first]], new_tables
        segments = {"unary": (state_starts, state_sizes, new_ptr), "tables": tables}
        terms = tuple(term.move(*segments[term.target]) for term in self.terms)
        offset = None
        if self.offset is not None:
            unary = self.offset.unary[spans(state_starts, state_sizes)]
            offset = Potentials(unary, self.offset.tables[spans(*tables[:2])])
        return LinearInputs(batch, terms, offset)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """theta = Phi(x) w: ``n_weights`` weights, with names where a ``layout`` is given."""

    n_weights: int
    layout: Layout | None = None

    @classmethod
    def named(cls, layout: Layout) -> LinearModel:
        return cls(layout.n_weights, layout)

    @property
    def gradient_size(self) -> int:
        return self.n_weights

    def fill(self, w: Floats) -> Floats:
        """The weights that act: all of ``w``."""
        return w

    def forward(self, w: Floats, x: LinearInputs) -> Potentials:
        if w.shape != (self.n_weights,) or x.reach > self.n_weights:
            raise InputError(
                f"the model has {self.n_weights} weights, w has shape {w.shape} and the inputs need {x.reach}."
            )
        w = np.ascontiguousarray(w, dtype=np.float64)
        if x.offset is None:
            unary, tables = np.zeros(x.batch.n_states), np.zeros(x.batch.n_table_entries)
        else:
            unary, tables = x.offset.unary.copy(), x.offset.tables.copy()
        for term in x.terms:
            term.forward(w, unary if term.target == "unary" else tables)
        return Potentials(unary, tables)

    def adjoint(self, mu: Marginals, x: LinearInputs) -> Floats:
        if mu.unary.shape != (x.batch.n_states,) or mu.tables.shape != (x.batch.n_mu_entries,):
            raise InputError(
                f"marginals have shapes {mu.unary.shape} and {mu.tables.shape}; "
                f"the batch needs ({x.batch.n_states},) and ({x.batch.n_mu_entries},)."
            )
        if x.reach > self.n_weights:
            raise InputError(f"the model has {self.n_weights} weights and the inputs need {x.reach}.")
        gradient = np.zeros(self.n_weights)
        tables = mu.tables if x.own_tables else x.batch.fold(mu.tables)
        for term in x.terms:
            term.adjoint(mu.unary if term.target == "unary" else tables, gradient)
        return gradient

    def touching(self, x: LinearInputs, variables: Bools) -> Bools:
        """Weights of blocks that act on any of the given variables (a mask over the variables of the batch)."""
        batch = x.batch
        near = np.zeros(batch.n_table_entries, dtype=bool)
        if batch.n_factors:
            hit = np.logical_or.reduceat(variables[batch.scope_vars], batch.scope_ptr[:-1])
            near[spans(batch.table_at[hit], batch.table_sizes[hit])] = True
        marked = np.zeros(self.n_weights, dtype=bool)
        for term in x.terms:
            rows = variables[batch.state_var[term.at]] if term.target == "unary" else near[term.at]
            starts = np.unique(term.block[rows])
            marked[spans(starts, np.full(len(starts), term.block_size))] = True
        return marked


def _check_places(batch: Batch, term: Term, number: int) -> None:
    """Raise unless every row of the term lies inside one variable's states or one table."""
    if term.target == "unary":
        starts, ends = batch.unary_ptr[:-1], batch.unary_ptr[1:]
    else:
        starts, first = np.unique(batch.table_at, return_index=True)
        ends = starts + batch.table_sizes[first]
    inside = np.searchsorted(starts, term.at, side="right") - 1
    bad = inside < 0
    if len(starts):
        bad |= term.at + term.width > ends[inside]
    if bad.any():
        what = "one variable's states" if term.target == "unary" else "one table"
        raise InputError(f"term {number}, row {int(np.flatnonzero(bad)[0])}: its place is not inside {what}.")

"""Linear models: theta(x, y, h) = w . phi(x, y, h) (paper eq. 1), as potentials and as the transpose of that map.

forward   theta = Phi(x) w + offset
adjoint   Phi(x)^T mu = E_mu[phi(x, y, h)], the expected features of paper eq. 6 and 8
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch, mask_from_indices, spans
from mssvm.engines.base import Engine, Features
from mssvm.models.base import BoundOnDemand


@dataclass(frozen=True, eq=False)
class LinearInputs:
    """Features of a batch, and an optional fixed ``offset`` (known scores; -inf at forbidden entries)."""

    batch: Batch
    terms: tuple[Term, ...]
    offset: Potentials | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        n = self.batch.n_table_entries
        table_ptr = np.append(np.flatnonzero(mask_from_indices(self.batch.table_at, n)), n)
        for number, term in enumerate(self.terms):
            is_unary = term.target == "unary"
            outside = _rows_outside(term, self.batch.unary_ptr if is_unary else table_ptr)
            if outside.any():
                row = int(np.flatnonzero(outside)[0])
                segment = "one variable's states" if is_unary else "one table"
                raise InputError(f"term {number}, row {row}: its place is not inside {segment}.")
        if self.offset is not None:
            self.offset.check(self.batch)

    def select(self, instances: Sequence[int] | Ints) -> LinearInputs:
        """The named instances; tables are renumbered as ``Batch.select`` does."""
        chosen = np.asarray(instances, dtype=np.int64)
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
        table_starts = self.batch.table_at[factors[first]]
        table_sizes = self.batch.table_sizes[factors[first]]
        segments = {
            "unary": (state_starts, state_sizes, new_ptr),
            "tables": (table_starts, table_sizes, new_tables),
        }
        terms = tuple(term.move(*segments[term.target]) for term in self.terms)
        if self.offset is None:
            return LinearInputs(batch, terms)
        unary = self.offset.unary[spans(state_starts, state_sizes)]
        tables = self.offset.tables[spans(table_starts, table_sizes)]
        return LinearInputs(batch, terms, Potentials(unary, tables))


def _rows_outside(term: Term, ptr: Ints) -> Bools:
    """Mask of the rows of a term that are not inside one segment of consecutive ``ptr``; -1 marks rows without one."""
    at = term.at
    starts = ptr[:-1]
    ends = ptr[1:]
    if len(at) == len(starts) and np.array_equal(at, starts):
        return np.asarray(at + term.width > ends)
    segment = np.searchsorted(starts, at, side="right") - 1
    outside = segment < 0
    if len(starts):
        outside |= at + term.width > ends[segment]
    return np.asarray(outside & (at != -1))


class WeightGroup(NamedTuple):
    """A named C-ordered array (n_features, width) inside w."""

    span: slice
    shape: tuple[int, int]


@dataclass(frozen=True)
class WeightLayout:
    """The groups of weights in w by name, one after the other."""

    groups: Mapping[str, WeightGroup]
    n_weights: int

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, int]]) -> WeightLayout:
        """Groups of the given shapes (n_features, width) one after the other."""
        groups = {}
        at = 0
        for name, shape in shapes.items():
            if len(shape) != 2 or min(shape) < 1:
                raise InputError(f"weight group {name!r} has shape {shape}; it needs (n_features, width).")
            groups[name] = WeightGroup(slice(at, at + prod(shape)), shape)
            at += prod(shape)
        return cls(groups, at)

    def __getitem__(self, name: str) -> WeightGroup:
        if name not in self.groups:
            raise InputError(f"no weights are called {name!r}; there are {', '.join(self.groups)}.")
        return self.groups[name]

    def view(self, w: Floats, name: str) -> Floats:
        """The named weights as an array of their own shape, sharing memory with ``w``."""
        group = self[name]
        return w[group.span].reshape(group.shape)

    def per_weight(self, values: Mapping[str, float], default: float = 1.0) -> Floats:
        """One number per weight, by group: for regularisation or step sizes that differ between groups."""
        numbers = np.full(self.n_weights, default)
        for name, value in values.items():
            numbers[self[name].span] = value
        return numbers


@dataclass(frozen=True, eq=False)
class LinearModel(BoundOnDemand):
    """theta = Phi(x) w: ``n_weights`` weights, with names where a ``layout`` is given."""

    n_weights: int
    layout: WeightLayout | None = None

    def fill(self, w: Floats) -> Floats:
        """The weights by name: all of ``w``."""
        return w

    def select(self, numbers: Ints) -> LinearModel:
        """The model over some of the weights, without their names."""
        return LinearModel(len(numbers))

    def bind(self, inputs: LinearInputs, engine: Engine) -> Features:
        for term in inputs.terms:
            if term.reach > self.n_weights:
                raise InputError(f"the model has {self.n_weights} weights and the inputs need {term.reach}.")
        return engine.linear(inputs.batch, inputs.terms, inputs.offset, self.n_weights)

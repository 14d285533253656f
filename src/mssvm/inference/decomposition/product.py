"""A lower bound on the nested power sum of pairwise graphs: independent variables with given marginals (mean field)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mssvm.core.arrays import Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, entries_of, spans

STATES_AT_ONCE = 1 << 16
FACTORS_AT_ONCE = 1 << 12


def product_bound(
    batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float, mu: Marginals, instances: Ints
) -> Floats:
    """E_q[theta] + eps_y H(q_y) + eps_h H(q_h) of the product q of the unary marginals, for some pairwise instances.

    For no distribution q does this exceed the power sum (variational form of paper eq. 5).
    """
    eps = np.where(query.output, eps_y, eps_h)
    q = mu.unary
    total = np.zeros(len(batch))
    for entries in _pieces(entries_of(batch.unary_ptr[batch.var_ptr], instances), STATES_AT_ONCE):
        total += _singles(batch, theta, q, eps, entries)
    for factors in _pieces(entries_of(batch.factor_ptr, instances), FACTORS_AT_ONCE):
        total += _pairs(batch, theta, q, factors)
    return np.asarray(total[instances])


def _pieces(entries: slice | Ints, size: int) -> Iterator[Ints]:
    """Some entries as indices, ``size`` at a time."""
    if isinstance(entries, slice):
        for begin in range(entries.start, entries.stop, size):
            yield np.arange(begin, min(begin + size, entries.stop))
    else:
        for begin in range(0, len(entries), size):
            yield entries[begin : begin + size]


def _singles(batch: Batch, theta: Potentials, q: Floats, eps: Floats, entries: Ints) -> Floats:
    """Expected scores of some states, and their part of the entropies, by instance."""
    possible = entries[q[entries] > 0.0]
    weight = q[possible]
    variable = batch.state_var[possible]
    entropy = -weight * np.log(weight)
    return sum_by(batch.owner[variable], weight * theta.unary[possible] + eps[variable] * entropy, len(batch))


def _pairs(batch: Batch, theta: Potentials, q: Floats, factors: Ints) -> Floats:
    """Expected scores of some factors, by instance."""
    ends = batch.scope_vars[batch.scope_ptr[factors][:, None] + np.arange(2)]
    first, second = batch.pair_cards(factors).T
    size = first * second
    which = np.repeat(np.arange(len(factors)), size)
    entry = spans(np.zeros(len(factors), dtype=np.int64), size)
    one = q[batch.unary_ptr[ends[which, 0]] + entry // second[which]]
    two = q[batch.unary_ptr[ends[which, 1]] + entry % second[which]]
    weight = one * two
    score = np.where(weight > 0.0, theta.tables[batch.table_at[factors][which] + entry], 0.0)
    return sum_by(batch.factor_owner[factors][which], weight * score, len(batch))

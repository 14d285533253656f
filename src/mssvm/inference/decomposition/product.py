"""A lower bound on the nested power sum of pairwise graphs: independent variables with given marginals (mean field)."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, entries_of, mask_from_indices, spans

FACTORS_AT_ONCE = 1 << 12


def product_bound(
    batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float, mu: Marginals, instances: Ints
) -> Floats:
    """E_q[theta] + eps_y H(q_y) + eps_h H(q_h) of the product q of the unary marginals, for some pairwise instances.

    For no distribution q does this exceed the power sum (variational form of paper eq. 5).
    """
    states = np.zeros(batch.n_states, dtype=bool)
    states[entries_of(batch.unary_ptr[batch.var_ptr], instances)] = True
    q = mu.unary
    possible = states & (q > 0.0)
    eps = np.where(query.output, eps_y, eps_h)
    score = theta.unary[possible]
    weight = q[possible]
    variable = batch.state_var[possible]
    entropy = -weight * np.log(weight)
    total = sum_by(batch.owner[variable], weight * score + eps[variable] * entropy, len(batch))
    factors = np.flatnonzero(mask_from_indices(instances, len(batch))[batch.factor_owner])
    for begin in range(0, len(factors), FACTORS_AT_ONCE):
        total += _pairs(batch, theta, q, factors[begin : begin + FACTORS_AT_ONCE])
    return np.asarray(total[instances])


def _pairs(batch: Batch, theta: Potentials, q: Floats, factors: Ints) -> Floats:
    """Expected scores of some factors, by instance."""
    ends = batch.scope_vars[batch.scope_ptr[factors][:, None] + np.arange(2)]
    first, second = batch.cards[ends].T
    size = first * second
    which = np.repeat(np.arange(len(factors)), size)
    entry = spans(np.zeros(len(factors), dtype=np.int64), size)
    one = q[batch.unary_ptr[ends[which, 0]] + entry // second[which]]
    two = q[batch.unary_ptr[ends[which, 1]] + entry % second[which]]
    weight = one * two
    score = np.where(weight > 0.0, theta.tables[batch.table_at[factors][which] + entry], 0.0)
    return sum_by(batch.factor_owner[factors][which], weight * score, len(batch))

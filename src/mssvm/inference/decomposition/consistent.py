"""Locally consistent marginals near those of the bound: they prove how small the bound can become.

Marginals are locally consistent if those of every factor have the marginals of its variables. By duality

    min over all shares of the bound  =  max over locally consistent mu of  <theta, mu> + eps H_rho(mu),
    H_rho(mu) = sum_ij rho_ij H(mu_ij) + sum_i (1 - sum_j rho_ij) H(mu_i)

with rho_ij the weight of the chain of a factor (Wainwright, Jaakkola and Willsky 2005). So every such mu is a lower
bound, linear in theta while mu is held. Sweeps that stopped early leave marginals that differ between chains. Here the
variables' marginals are held, and every factor gets the best table that has them: proportional to
exp(theta_ij / (eps rho_ij)) a(x) b(z), a and b in closed form for two states and by Sinkhorn's iterations for more.
A correction of rank one removes the remaining error of the marginals, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from mssvm.core.arrays import Floats, Ints, sum_by
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch, mask_from_indices

BOUND = "decomposition bound"  # the method's name in the status of an answer
ON_HOST = "decomposition bound on the host"  # its name where sweeps run on the host for an engine on another device
FACTORS_AT_ONCE = 1 << 16
ITERATIONS = 100
CLOSE = 1e-13  # probabilities that differ by at most this count as equal
ROUNDING = 1e-12  # relative error of the sum of a table
LEAST = 1e-12  # least probability of an allowed state


@dataclass(frozen=True, eq=False)
class ConsistentPoint:
    """Marginals, and by instance of the batch their expected score <theta, mu> and entropy H_rho (0 outside)."""

    mu: Marginals
    score: Floats
    entropy: Floats


def consistent_point(
    batch: Batch, theta: Potentials, query: Query, eps: float, mu: Marginals, weight: Floats, instances: Ints
) -> ConsistentPoint:
    """The consistent point with the unary marginals of ``mu``, for some pairwise instances at eps > 0.

    ``weight`` has rho of every factor. Where a table forbids a pair that needs probability, the score is -inf.
    """
    mine = mask_from_indices(instances, len(batch))
    p = _probabilities(batch, query, mu.unary)
    p[~mine[batch.owner][batch.state_var]] = 0.0
    ends = batch.scope_vars[batch.scope_ptr[:-1][:, None] + np.arange(2)] if batch.n_factors else np.zeros((0, 2), int)
    factors = np.flatnonzero(mine[batch.factor_owner])
    own_weight = np.ones(batch.n_vars)  # 1 - sum_j rho_ij
    np.subtract.at(own_weight, ends[factors].ravel(), np.repeat(weight[factors], 2))
    occupied = p > 0.0
    variable = batch.state_var[occupied]
    owner = batch.owner[variable]
    score = sum_by(owner, p[occupied] * theta.unary[occupied], len(batch))
    entropy = sum_by(owner, own_weight[variable] * _entropies(p[occupied]), len(batch))
    tables = np.zeros(batch.n_mu_entries)
    shapes = batch.cards[ends[factors]]
    for shape in np.unique(shapes, axis=0):
        alike = factors[(shapes == shape).all(axis=1)]
        for begin in range(0, len(alike), FACTORS_AT_ONCE):
            some = alike[begin : begin + FACTORS_AT_ONCE]
            at = batch.table_at[some][:, None] + np.arange(shape.prod())
            scores = theta.tables[at].reshape(-1, *shape)
            rows = p[batch.unary_ptr[ends[some, 0]][:, None] + np.arange(shape[0])]
            columns = p[batch.unary_ptr[ends[some, 1]][:, None] + np.arange(shape[1])]
            pairs = with_marginals(scores / (eps * weight[some][:, None, None]), rows, columns)
            np.add.at(tables, batch.mu_at[some][:, None] + np.arange(shape.prod()), pairs.reshape(len(some), -1))
            expected = np.where(pairs > 0.0, pairs * np.where(pairs > 0.0, scores, 0.0), 0.0).sum(axis=(1, 2))
            spread = weight[some] * _entropies(pairs).sum(axis=(1, 2))
            score += sum_by(batch.factor_owner[some], expected, len(batch))
            entropy += sum_by(batch.factor_owner[some], spread, len(batch))
    return ConsistentPoint(Marginals(p, tables), score, entropy)


@runtime_checkable
class ProvingPlan(Protocol):
    """A plan whose answers are exact or decomposition bounds."""

    @property
    def batch(self) -> Batch: ...

    def bind(self, query: Query, eps_y: float, eps_h: float) -> Callable[[Potentials], Belief]: ...

    def precise(self) -> ProvingPlan:
        """The plan whose bounds sweep for longer."""
        ...

    def factor_weights(self, instances: Ints) -> Floats:
        """By factor, rho of its chain in the bound of the named instances."""
        ...


def proven_point(
    plan: ProvingPlan, query: Query, theta: Potentials, eps_y: float, eps_h: float, target: float
) -> tuple[Floats, Marginals] | None:
    """By instance <theta, mu> + target H(mu), and mu; None if an answer is neither exact nor a decomposition bound.

    The values are lower bounds on the decomposition bound at eps_y = target, however scores are divided among chains.
    There is one temperature: nothing is hidden. mu is found at eps_y > 0. For fixed mu the values are linear in theta:
    minorants of the bound as a function of it.
    """
    batch = plan.batch
    belief = plan.precise().bind(query, eps_y, eps_h)(theta)
    exact = belief.status.exact
    others = np.flatnonzero(~exact)
    if any(belief.status.method[b] not in (BOUND, ON_HOST) for b in others.tolist()):
        return None
    expected = _expected(batch, theta, belief.mu)
    value = expected + target / eps_y * (belief.value - expected)
    if not len(others):
        return value, belief.mu
    weight = plan.factor_weights(others)
    point = consistent_point(batch, theta, query, eps_y, belief.mu, weight, others)
    value = np.where(exact, value, point.score + target * point.entropy)
    unary = np.where(exact[batch.owner][batch.state_var], belief.mu.unary, point.mu.unary)
    return value, Marginals(unary, np.where(exact[batch.mu_owner], belief.mu.tables, point.mu.tables))


def _expected(batch: Batch, theta: Potentials, mu: Marginals) -> Floats:
    """<theta, mu> by instance."""
    occupied = mu.unary > 0.0
    total = sum_by(batch.owner[batch.state_var[occupied]], mu.unary[occupied] * theta.unary[occupied], len(batch))
    entries = np.flatnonzero(mu.tables > 0.0)
    source, owner = batch.mu_entries(entries)
    return np.asarray(total + sum_by(owner, mu.tables[entries] * theta.tables[source], len(batch)))


def with_marginals(exponents: Floats, rows: Floats, columns: Floats) -> Floats:
    """Tables near exp(exponents) a b^T, (n, k, l), with the marginals ``rows`` (n, k) and ``columns`` (n, l)."""
    if exponents.shape[1:] == (2, 2) and bool(np.isfinite(exponents).all()):
        return _of_two_states(exponents, rows, columns)
    top = exponents.max(axis=(1, 2), keepdims=True)
    tables = np.exp(exponents - np.where(np.isfinite(top), top, 0.0))
    right = np.ones_like(columns)
    for step in range(ITERATIONS):
        left = _ratio(rows, np.einsum("nkl,nl->nk", tables, right))
        found = np.einsum("nkl,nk->nl", tables, left)
        if step % 10 == 9 and np.abs(found * right - columns).max(initial=0.0) <= CLOSE:
            break
        right = _ratio(columns, found)
    tables *= left[:, :, None] * right[:, None, :]
    # First scale down rows and columns with too large a sum, then add the missing mass.
    tables *= np.minimum(1.0, _ratio(rows, tables.sum(axis=2)))[:, :, None]
    tables *= np.minimum(1.0, _ratio(columns, tables.sum(axis=1)))[:, None, :]
    missing = np.maximum(rows - tables.sum(axis=2), 0.0)
    short = np.maximum(columns - tables.sum(axis=1), 0.0)
    total = missing.sum(axis=1)
    share = np.divide(1.0, total, out=np.zeros_like(total), where=total > ROUNDING)
    return np.asarray(tables + missing[:, :, None] * (share[:, None] * short)[:, None, :])


def _of_two_states(exponents: Floats, rows: Floats, columns: Floats) -> Floats:
    """Tables of two by two states: t = mu(0, 0) solves t (1 - p - q + t) = c (p - t) (q - t) with the odds ratio c.

    Where c < 1 columns change places, which inverts it.
    """
    log_odds = exponents[:, 0, 0] + exponents[:, 1, 1] - exponents[:, 0, 1] - exponents[:, 1, 0]
    attract = log_odds >= 0.0
    p = rows[:, 0]
    q = np.where(attract, columns[:, 0], columns[:, 1])
    unit = np.exp(-np.abs(log_odds))  # 1 / c; the equation is divided by c
    total = unit + (p + q) * (1.0 - unit)
    t = 2.0 * p * q / (total + np.sqrt(np.maximum(total**2 - 4.0 * (1.0 - unit) * p * q, 0.0)))
    t = np.clip(t, np.maximum(p + q - 1.0, 0.0), np.minimum(p, q))
    first = np.where(attract, t, p - t)
    second = p - first
    below = columns[:, 0] - first
    pairs = np.stack([first, second, below, columns[:, 1] - second], axis=1)
    return np.asarray(np.maximum(pairs, 0.0).reshape(-1, 2, 2))


def _probabilities(batch: Batch, query: Query, unary: Floats) -> Floats:
    """Unary marginals with a little of every allowed state, each variable's with a sum of one."""
    p = np.where(query.allowed, np.maximum(unary, LEAST), 0.0)
    total = sum_by(batch.state_var, p, batch.n_vars)
    return np.asarray(p / total[batch.state_var])


def _ratio(wanted: Floats, found: Floats) -> Floats:
    return np.asarray(np.divide(wanted, found, out=np.zeros_like(found), where=found > 0.0))


def _entropies(p: Floats) -> Floats:
    return np.asarray(-p * np.log(np.where(p > 0.0, p, 1.0)))

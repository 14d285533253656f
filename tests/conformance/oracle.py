"""Nested power sums (paper eq. 5) in long double, and how far rounding alone may move an answer.

Two computations that share no code with the library: ``enumerated`` lists every assignment, which is the definition;
``eliminated`` sums out one variable after the other in logs, hidden ones first, for models too large for that.

What may be asked of doubles. Scores, and sums of them, carry a rounding of

    delta = ROUNDINGS * 2^-53 * scale,   scale = the largest scores of all variables and factors, and what logs add,

so a value is known to ``delta``, and a weight of a power sum at temperature eps to a factor of exp(2 delta / eps). With
``gap_j`` the distance of term j from the largest one, the mass that can change hands is at most

    moved = min(1, exp(2 delta / eps) - 1) * min(1, sum over all but the largest of exp(-(gap_j - 2 delta)^+ / eps)),

at eps = 0 one if another term is within 2 delta of the largest, else zero. Summed over the power sums of an instance,
each with its weight, it is what a marginal may be off by beside ``RELATIVE``. Where scores are of few temperatures it
is far below 1e-12; where it is near one, nothing can be said about marginals in double precision, and nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch

RELATIVE = 1e-9
ROUNDINGS = 16.0
ULP = 2.0**-53
MOST = 1 << 11  # assignments that are listed; more are eliminated
Long = Any  # an array of np.longdouble
Scope = tuple[int, ...]
Table = tuple[Scope, Long]


@dataclass(frozen=True, eq=False)
class Answer:
    """Value and marginals of a batch in long double, and by instance what rounding may do to them."""

    value: Long
    unary: Long
    tables: Long
    rounding: Floats  # of the value
    moved: Floats  # of a marginal


@dataclass(frozen=True, eq=False)
class Error:
    """By instance: errors of values (relative to rounding and size) and of marginals, less what rounding explains."""

    value: Floats
    marginals: Floats
    moved: Floats

    @property
    def worst(self) -> Floats:
        return np.maximum(self.value, self.marginals)


def power_step(a: Long, eps: float, rounding: float) -> tuple[Long, Long, Long]:
    """PS_eps along the last axis: values, weights, and the mass that rounding may move."""
    top = a.max(axis=-1, keepdims=True)
    feasible = top > -np.inf
    gap = np.where(feasible, top, 0.0) - a
    sure = np.maximum(gap - 2.0 * rounding, 0.0)
    best = np.zeros(a.shape, dtype=bool)
    np.put_along_axis(best, a.argmax(axis=-1)[..., None], True, axis=-1)
    if eps == 0.0:
        weights = np.where(best & feasible, np.longdouble(1), np.longdouble(0))
        value = top[..., 0]
        others, change = np.where(best, 0.0, sure == 0.0).sum(axis=-1), 1.0
    else:
        weights = np.exp(-gap / np.longdouble(eps))
        total = weights.sum(axis=-1, keepdims=True)
        safe = np.where(feasible, total, 1.0)
        weights = np.where(feasible, weights / safe, 0.0)
        value = np.where(feasible, top + np.longdouble(eps) * np.log(safe), -np.inf)[..., 0]
        others = np.where(best, 0.0, np.exp(-sure / np.longdouble(eps))).sum(axis=-1)
        change = float(np.expm1(min(2.0 * rounding / eps, 1.0)))
    return value, weights, min(1.0, change) * np.minimum(1.0, others)


def over(scope: Scope, table: Table) -> Long:
    """The table with one axis for every variable of ``scope``, in its order."""
    axes, array = table
    order = sorted(range(len(axes)), key=lambda k: scope.index(axes[k]))
    sizes = dict(zip(axes, array.shape, strict=True))
    return array.transpose(order).reshape([sizes.get(v, 1) for v in scope])


def enumerated(
    tables: list[Table], output: list[bool], eps_y: float, eps_h: float, rounding: float
) -> tuple[Long, list[Long], float]:
    """Value, the marginal of every table, and what rounding moves, by listing all assignments."""
    ys = [v for v, out in enumerate(output) if out]
    hs = [v for v, out in enumerate(output) if not out]
    scope = (*ys, *hs)
    joint = over(scope, tables[0])
    for table in tables[1:]:
        joint = joint + over(scope, table)
    rows = int(np.prod(joint.shape[: len(ys)], dtype=np.int64))
    inner, weights_h, moved_h = power_step(joint.reshape(rows, -1), eps_h, rounding)
    value, weights_y, moved_y = power_step(inner, eps_y, rounding)
    p = (weights_y[:, None] * weights_h).reshape(joint.shape)
    marginals = []
    for axes, _ in tables:
        inside = p.sum(axis=tuple(k for k, v in enumerate(scope) if v not in axes))
        kept = [v for v in scope if v in axes]
        marginals.append(inside.transpose([kept.index(v) for v in axes]))
    return value, marginals, float(moved_y + (weights_y * moved_h).sum())


def eliminated(
    tables: list[Table], output: list[bool], eps_y: float, eps_h: float, rounding: float
) -> tuple[Long, list[Long], float]:
    """The same by elimination in logs, smallest joint table first; weights carry the gradient back."""
    made, alive, left = list(tables), set(range(len(tables))), set(range(len(output)))
    steps = []
    while left:
        choices = []
        for v in left:
            inputs = [k for k in sorted(alive) if v in made[k][0]]
            near = {u: n for k in inputs for u, n in zip(made[k][0], made[k][1].shape, strict=True)}
            late = output[v] and eps_y != eps_h
            choices.append((late, int(np.prod(list(near.values()), dtype=np.int64)), v, inputs, tuple(near)))
        _, _, v, inputs, near_v = min(choices)
        scope = (*(u for u in near_v if u != v), v)
        joint = over(scope, made[inputs[0]])
        for k in inputs[1:]:
            joint = joint + over(scope, made[k])
        message, weights, moved = power_step(joint, eps_y if output[v] else eps_h, rounding)
        steps.append((inputs, scope, weights, moved, len(made)))
        alive = alive - set(inputs) | {len(made)}
        left.remove(v)
        made.append((scope[:-1], message))
    value = sum((made[k][1] for k in alive), np.longdouble(0))
    one = np.longdouble(0) if value == -np.inf else np.longdouble(1)
    gradient: dict[int, Long] = {k: np.asarray(one) for k in alive}
    total = 0.0
    for inputs, scope, weights, moved, k in reversed(steps):
        total += float((gradient[k] * moved).sum())
        shared = weights * gradient[k][..., None]
        for i in inputs:
            axes = made[i][0]
            inside = shared.sum(axis=tuple(a for a, u in enumerate(scope) if u not in axes))
            kept = [u for u in scope if u in axes]
            gradient[i] = inside.transpose([kept.index(u) for u in axes])
    return value, [gradient[k] for k in range(len(tables))], total


def tables_of(batch: Batch, b: int, theta: Potentials, query: Query) -> tuple[list[Table], list[tuple[int, bool]]]:
    """Masked scores and tables of an instance in long double, and where the marginal of each begins (in ``unary``?)."""
    topology, first = batch.topology(b), int(batch.var_ptr[b])
    tables: list[Table] = []
    places: list[tuple[int, bool]] = []
    for v in range(topology.n_vars):
        lo, hi = int(batch.unary_ptr[first + v]), int(batch.unary_ptr[first + v + 1])
        scores = np.where(query.allowed[lo:hi], theta.unary[lo:hi], -np.inf)
        tables.append(((v,), scores.astype(np.longdouble)))
        places.append((lo, True))
    for f, scope in enumerate(topology.scopes):
        at, shape = int(batch.table_at[batch.factor_ptr[b] + f]), topology.table_shape(f)
        scores = theta.tables[at : at + int(np.prod(shape))].reshape(shape)
        tables.append((scope, scores.astype(np.longdouble)))
        places.append((int(batch.mu_at[batch.factor_ptr[b] + f]), False))
    return tables, places


def scale_of(tables: list[Table], eps: float) -> float:
    """The size of the numbers that are added up, and of the logarithms of sums."""
    total = 0.0
    for _, scores in tables:
        finite = np.abs(scores[scores > -np.inf])
        total += float(finite.max(initial=0.0)) + eps * float(np.log(scores.size))
    return total


def answer(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float, most: int = MOST) -> Answer:
    """Every instance of a batch: listed if it has at most ``most`` assignments, else eliminated."""
    n = len(batch)
    value, rounding, moved = np.zeros(n, dtype=np.longdouble), np.zeros(n), np.zeros(n)
    unary, pairs = np.zeros(batch.n_states, dtype=np.longdouble), np.zeros(batch.n_mu_entries, dtype=np.longdouble)
    for b in range(n):
        tables, places = tables_of(batch, b, theta, query)
        output = query.output[batch.var_ptr[b] : batch.var_ptr[b + 1]].tolist()
        rounding[b] = ROUNDINGS * ULP * scale_of(tables, max(eps_y, eps_h))
        few = float(np.prod([float(c) for c in batch.topology(b).cards])) <= most
        compute = enumerated if few else eliminated
        value[b], marginals, each = compute(tables, output, eps_y, eps_h, rounding[b])
        moved[b] = each * max(1, batch.topology(b).n_factors)  # marginals of tied factors are sums
        for (at, is_unary), mu in zip(places, marginals, strict=True):
            target = unary if is_unary else pairs
            target[at : at + mu.size] += mu.ravel()
    return Answer(value, unary, pairs, rounding, moved)


def _largest(batch: Batch, owner: Any, errors: Floats) -> Floats:
    out = np.zeros(len(batch))
    np.maximum.at(out, owner, errors)
    return out


def error_of(batch: Batch, got: Belief, want: Answer) -> Error:
    """By instance how far a belief is off, less what rounding explains; infinite where it is not a number, or where it
    is possible and should not be."""
    value = np.where(got.value == want.value, 0.0, np.inf)
    both = np.isfinite(want.value) & np.isfinite(got.value)
    off = np.abs(got.value[both] - want.value[both]) - want.rounding[both]
    size = np.maximum(np.abs(want.value[both]), np.finfo(float).tiny)
    value[both] = np.maximum(off, 0.0) / size
    marginals = _marginals(batch, got.mu, want)
    return Error(value, marginals, want.moved)


def _marginals(batch: Batch, mu: Marginals, want: Answer) -> Floats:
    out = np.zeros(len(batch))
    parts = ((batch.owner[batch.state_var], mu.unary, want.unary), (batch.mu_owner, mu.tables, want.tables))
    for owner, found, exact in parts:
        off = np.abs(found - exact) - want.moved[owner]
        off = np.maximum(off, 0.0) / np.maximum(exact, 1.0)
        off = np.where(np.isfinite(found), off, np.inf).astype(np.float64)
        out = np.maximum(out, _largest(batch, owner, off))
    return out

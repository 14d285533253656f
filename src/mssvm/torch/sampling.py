"""Draws from p(z) ~ exp theta(z): down the tree from pair marginals, or variable by variable."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.components import HiddenComponents, hidden_components
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, spans
from mssvm.inference.base import Planner
from mssvm.torch.functions import checked


def draw(planner: Planner, batch: Batch, theta: Potentials, query: Query, uniform: Floats) -> Ints:
    """States of all variables, one row for every row of ``uniform`` (one number in (0, 1) per variable)."""
    found = hidden_components(batch, np.zeros(batch.n_vars, dtype=bool))
    if found.forest.all():
        return _down(planner, batch, theta, query, uniform, found)
    return np.stack([_in_turn(planner, batch, theta, query, row) for row in uniform])


def _choose(probability: Floats, uniform: Floats) -> Ints:
    """The state in which each row's cumulated (unnormalised) probability passes its uniform number."""
    total = np.cumsum(probability, axis=-1)
    at = (total < uniform[..., None] * total[..., -1:]).sum(axis=-1)
    # Rounding must not land on a state of probability zero after the last possible one.
    last = probability.shape[-1] - 1 - np.argmax(probability[..., ::-1] > 0.0, axis=-1)
    chosen: Ints = np.minimum(at, last)
    return chosen


def _down(
    planner: Planner, batch: Batch, theta: Potentials, query: Query, uniform: Floats, found: HiddenComponents
) -> Ints:
    """Roots from their marginals, then every variable given its parent, a generation at a time."""
    apart = Batch.of_kinds(batch.topologies, batch.topology_of)
    tables = theta.tables[spans(batch.table_at, batch.table_sizes)]
    belief = planner(apart).bind(query, 1.0, 1.0)(Potentials(theta.unary, tables))
    checked(belief.value)
    depth = np.zeros(batch.n_vars, dtype=np.int64)
    for v in found.visit:
        depth[v] = depth[found.parent[v]] + 1 if found.parent[v] >= 0 else 0
    states = np.arange(batch.cards.max(initial=1))
    z = np.zeros(uniform.shape, dtype=np.int64)
    for generation in range(int(depth.max(initial=-1)) + 1):
        mine = np.flatnonzero(depth == generation)
        inside = states < batch.cards[mine, None]
        if generation == 0:
            at = np.where(inside, batch.unary_ptr[mine, None] + states, 0)
            p = np.broadcast_to(np.where(inside, belief.mu.unary[at], 0.0), (len(uniform), *at.shape))
        else:
            factor = found.up[mine]
            above = found.parent[mine]
            first = batch.scope_vars[batch.scope_ptr[factor]] == mine
            own = np.where(first, batch.cards[above], 1)
            other = np.where(first, 1, batch.cards[mine])
            at = (apart.mu_at[factor] + z[:, above] * other)[..., None] + states * own[:, None]
            p = np.where(inside, belief.mu.tables[np.where(inside, at, 0)], 0.0)
        z[:, mine] = _choose(p, uniform[:, mine])
    return z


def _in_turn(planner: Planner, batch: Batch, theta: Potentials, query: Query, uniform: Floats) -> Ints:
    """The next variable of every instance from its marginal given those drawn before."""
    plan = planner(batch)
    sizes = np.diff(batch.var_ptr)
    z = np.zeros(batch.n_vars, dtype=np.int64)
    states = np.arange(batch.cards.max(initial=1))
    for k in range(int(sizes.max(initial=0))):
        mine = (batch.var_ptr[:-1] + k)[k < sizes]
        belief = plan.bind(query, 1.0, 1.0)(theta)
        checked(belief.value)
        inside = states < batch.cards[mine, None]
        at = np.where(inside, batch.unary_ptr[mine, None] + states, 0)
        z[mine] = _choose(np.where(inside, belief.mu.unary[at], 0.0), uniform[mine])
        query = query.clamp(batch, mine, z[mine])
    return z

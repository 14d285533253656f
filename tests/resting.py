"""Loopy graphs with scores of any strength, and what has to hold of messages that are called converged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, spans
from mssvm.engines.base import Engine
from mssvm.engines.messages import MessageRun, Schedule, Temperatures
from mssvm.inference.propagation.effort import Effort

GRAPHS = (
    Topology((2, 2), ((0, 1), (0, 1))),
    Topology((2, 2, 2), ((0, 1), (1, 2), (2, 0))),
    Topology((3,) * 4, ((0, 1), (1, 2), (2, 3), (3, 0))),
    Topology((2,) * 6, ((0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5))),
    Topology((2, 3, 2, 3), ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3))),
)
TEMPERATURES = [(1.0, 1.0), (0.1, 0.1), (0.5, 1.0), (0.0, 1.0), (0.0, 0.0)]
STEPS = [1.0, 10.0, 40.0, 100.0]
# Largest change of a value, in temperatures, and of a marginal in 200 sweeps after convergence was said.
REST = 1e-6


def case(seed: int, step: float, eps: tuple[float, float], copies: int = 4) -> tuple[Batch, Potentials, Query]:
    """Loopy graphs with scores of ``step`` times the lowest temperature."""
    rng = np.random.default_rng(seed)
    batch = Batch.build([graph for graph in GRAPHS for _ in range(copies)])
    scale = step * min((e for e in eps if e > 0.0), default=1.0)
    unary, tables = scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries)
    return batch, Potentials(unary, tables), Query.of(batch, rng.random(batch.n_vars) < 0.5)


def pair_gaps(batch: Batch, mu: Marginals) -> Floats:
    """Of every instance, the largest difference of a variable's marginal from that of a pair's table."""
    worst = np.zeros(len(batch))
    for f in range(batch.n_factors):
        scope = batch.scope_vars[batch.scope_ptr[f] : batch.scope_ptr[f + 1]]
        shape = batch.cards[scope]
        table = mu.tables[batch.mu_at[f] : batch.mu_at[f] + shape.prod()].reshape(shape)
        for axis, v in enumerate(scope):
            own = mu.unary[batch.unary_ptr[v] : batch.unary_ptr[v + 1]]
            gap = np.abs(table.sum(axis=1 - axis) - own).max()
            worst[batch.factor_owner[f]] = max(worst[batch.factor_owner[f]], gap)
    return worst


class Snapshot(NamedTuple):
    messages: Floats
    value: Floats
    mu: Marginals


def after_sweeps(run: MessageRun, instances: Ints, t: Temperatures, n_sweeps: int) -> Snapshot:
    """What messages say after more sweeps, whatever the residual.

    Damping keeps messages that came to rest only with it from leaving, and hides no others.
    """
    run.advance(instances, t, n_sweeps, Schedule(damping=0.5, tolerance=-1.0))
    ptr = run.batch.message_ptr
    messages = run.log_messages(instances)[spans(ptr[instances], np.diff(ptr)[instances])]
    value, mu = np.zeros(len(run.batch)), Marginals.zeros(run.batch)
    if t.eps_y > 0.0:
        run.beliefs(instances, t, value, mu)
    return Snapshot(messages, value, mu)


def assert_rests(engine: Engine, batch: Batch, theta: Potentials, query: Query, eps: tuple[float, float]) -> int:
    """Run messages to convergence; 200 sweeps more change nothing. Returns how many instances converged."""
    n = batch.n_vars
    t = Temperatures.one(n, eps[0]) if eps[0] == eps[1] else Temperatures(query.output, *eps)
    model = engine.messages(batch).load(theta, query, np.zeros(batch.n_states))
    effort = Effort.of("normal")
    instances = np.arange(len(batch))
    run = model.run(instances, scaled_at=t)
    run.start(instances, None)
    effort.converge(run, instances, instances, t)
    rested = instances[run.residual[instances] <= effort.schedule.tolerance]
    first = after_sweeps(run, rested, t, 0)
    later = after_sweeps(run, rested, t, 200)
    unit = t.lowest or run.unit
    np.testing.assert_allclose(later.messages, first.messages, rtol=0.0, atol=REST * unit)
    if eps[0] > 0.0:
        np.testing.assert_allclose(later.value, first.value, rtol=0.0, atol=REST * unit)
        np.testing.assert_allclose(later.mu.unary, first.mu.unary, rtol=0.0, atol=REST)
        assert pair_gaps(batch, first.mu)[rested].max(initial=0.0) <= REST
    return len(rested)

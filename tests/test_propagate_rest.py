"""Messages called converged have come to rest in logarithms, on loopy graphs with scores of any strength."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, spans
from mssvm.engines import engine_of
from mssvm.engines.messages import MessageRun, Schedule, Temperatures
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.propagation.effort import Effort
from mssvm.inference.propagation.propagate import Propagate

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


@pytest.mark.parametrize("engine", ["reference", "numba"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("eps", TEMPERATURES)
def test_further_sweeps_change_nothing_after_convergence(engine: str, step: float, eps: tuple[float, float]) -> None:
    batch, theta, query = case(0, step, eps, 2 if engine == "reference" else 12)
    n = batch.n_vars
    t = Temperatures.one(n, eps[0]) if eps[0] == eps[1] else Temperatures(query.output, *eps)
    model = engine_of(engine).messages(batch).load(theta, query, np.zeros(batch.n_states))
    effort, said = Effort.of("normal"), 0
    for group in model.groups(np.arange(len(batch)), t, True):
        run, instances = group.run(False), group.instances
        run.start(instances, None)
        effort.converge(run, instances, instances, t)
        rested = instances[run.residual[instances] <= effort.schedule.tolerance]
        said += len(rested)
        first = after_sweeps(run, rested, t, 0)
        later = after_sweeps(run, rested, t, 200)
        unit = t.lowest or run.unit
        np.testing.assert_allclose(later.messages, first.messages, rtol=0.0, atol=REST * unit)
        if eps[0] > 0.0:
            np.testing.assert_allclose(later.value, first.value, rtol=0.0, atol=REST * unit)
            np.testing.assert_allclose(later.mu.unary, first.mu.unary, rtol=0.0, atol=REST)
            assert pair_gaps(batch, first.mu)[rested].max(initial=0.0) <= REST
    assert said >= 0.7 * len(batch)


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


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("eps", [(1.0, 1.0), (0.1, 0.1), (0.5, 1.0), (0.0, 1.0), (0.0, 0.0)])
def test_marginals_of_pairs_are_those_of_their_variables(step: float, eps: tuple[float, float]) -> None:
    """Through the whole of a call: sums in one go, searches, sums given y."""
    for seed in range(3):
        batch, theta, query = case(seed, step, eps, 8)
        for merging in (False, True):
            found = Propagate(merging=merging)(batch, theta, query, *eps)
            converged = found.status.converged
            assert pair_gaps(batch, found.mu)[converged].max(initial=0.0) <= REST
            assert converged.mean() >= 0.7
            assert np.all(found.status.residual[converged] <= 1e-9)


@pytest.mark.parametrize("engine", ["reference", "numba"])
@pytest.mark.parametrize(
    ("graph", "unary", "tables"),
    [
        (GRAPHS[0], [-77.8, 62.0, 71.5, 107.1], [-53.0, 2.0, -60.0, -128.0, -17.0, 48.0, -49.0, 0.0]),
        (
            GRAPHS[1],
            [59.6, -59.4, -127.4, -61.1, 20.2, -13.3],
            [6.0, 82.0, -48.0, 30.0, 94.0, -21.0, 21.0, -39.0, -63.0, 141.0, 47.0, 33.0],
        ),
    ],
)
def test_a_state_of_no_probability_turns_the_answer_round(
    engine: str, graph: Topology, unary: list[float], tables: list[float]
) -> None:
    """Probabilities rest after two or three sweeps, and at the wrong states."""
    batch = Batch.build([graph])
    theta, query = Potentials(np.array(unary), np.array(tables)), Query.of(batch, np.zeros(graph.n_vars, dtype=bool))
    want = Enumerate()(batch, theta, query, 1.0, 1.0)
    found = Propagate().plan(batch, engine_of(engine)).bind(query, 1.0, 1.0)(theta)
    assert found.status.converged.all()
    np.testing.assert_allclose(found.value, want.value, rtol=1e-6)
    np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=1e-6)


def test_no_sweep_left_for_a_look_is_no_convergence() -> None:
    batch, theta, query = case(0, 40.0, (1.0, 1.0))
    for sweeps in range(1, 6):
        found = Propagate(max_sweeps=sweeps, starts=())(batch, theta, query, 1.0, 1.0)
        further = Propagate(max_sweeps=sweeps + 200, starts=())(batch, theta, query, 1.0, 1.0)
        converged = found.status.converged
        np.testing.assert_allclose(found.value[converged], further.value[converged], rtol=1e-6)


@pytest.mark.parametrize("engine", ["reference", "numba"])
@pytest.mark.parametrize("eps", [1e-8, 1e-5, 1e5])
def test_rounding_of_scores_is_no_change(engine: str, eps: float) -> None:
    """At temperatures of a last digit of the scores messages still come to rest."""
    batch, theta, _ = case(1, 1.0, (1.0, 1.0), 2)
    strong = Potentials(1e3 * theta.unary, 10.0 * theta.tables)
    hidden = Query.of(batch, np.zeros(batch.n_vars, dtype=bool))
    found = Propagate(merging=False).plan(batch, engine_of(engine)).bind(hidden, eps, eps)(strong)
    assert found.status.converged.all()
    assert found.status.sweeps.max() <= 60

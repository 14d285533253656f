"""Messages called converged have come to rest in logarithms, on loopy graphs with scores of any strength."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.propagation.propagate import Propagate
from resting import GRAPHS, REST, STEPS, TEMPERATURES, assert_rests, case, pair_gaps


@pytest.mark.parametrize(
    ("engine", "step"),
    [*(("native", step) for step in STEPS), ("reference", STEPS[1]), ("reference", STEPS[-1])],  # a second a case
)
@pytest.mark.parametrize("eps", TEMPERATURES)
def test_further_sweeps_change_nothing_after_convergence(engine: str, step: float, eps: tuple[float, float]) -> None:
    batch, theta, query = case(0, step, eps, 1 if engine == "reference" else 12)
    assert assert_rests(engine_of(engine), batch, theta, query, eps) >= 0.6 * len(batch)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("eps", TEMPERATURES)
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


@pytest.mark.parametrize("engine", ["reference", "native"])
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
    theta = Potentials(np.array(unary), np.array(tables))
    query = Query.of(batch, np.zeros(graph.n_vars, dtype=bool))
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


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("eps", [1e-8, 1e-5, 1e5])
def test_rounding_of_scores_is_no_change(engine: str, eps: float) -> None:
    """At temperatures of a last digit of the scores messages still come to rest."""
    batch, theta, _ = case(1, 1.0, (1.0, 1.0), 2)
    strong = Potentials(1e3 * theta.unary, 10.0 * theta.tables)
    hidden = Query.of(batch, np.zeros(batch.n_vars, dtype=bool))
    found = Propagate(merging=False).plan(batch, engine_of(engine)).bind(hidden, eps, eps)(strong)
    assert found.status.converged.all()
    assert found.status.sweeps.max() <= 60

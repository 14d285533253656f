"""The three ways to evaluate U+ - U- give the same numbers, and each block gets the cheapest that it admits."""

from __future__ import annotations

import numpy as np
import pytest

from builders import node_term, table_term
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.exact import Exact
from mssvm.losses import Hamming, Zero
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.bound_block import BoundBlock
from mssvm.objectives.difference import JoinedDifference, LinearMinusDifference, PairedDifference, bind_difference
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified

LABELS = 3
FEATURES = 4
N_WEIGHTS = FEATURES * LABELS + LABELS * LABELS


def bound_chains(objective: Unified, *, native: bool, one_weight: bool, labelled: bool = True) -> BoundBlock:
    """Chains without hidden variables; without ``labelled`` every third label is missing."""
    rng = np.random.default_rng(0)
    batch = Batch.build([Topology((LABELS,) * n, tuple((t, t + 1) for t in range(n - 1))) for n in (4, 2, 7, 3)])
    truth = np.zeros(batch.n_states, dtype=bool)
    truth[batch.unary_ptr[:-1] + rng.integers(0, batch.cards)] = True
    if not labelled:
        truth |= (np.arange(batch.n_vars) % 3 == 0)[batch.state_var]
    x = rng.normal(size=(batch.n_vars, FEATURES))
    inputs = LinearInputs(batch, (node_term(batch, x), table_term(batch, None, FEATURES * LABELS)))
    weight = None if one_weight else rng.uniform(0.5, 2.0, len(batch))
    sample = Sample.of(inputs, Query.all_outputs(batch), truth, weight)
    engine = NativeEngine() if native else engine_of("reference")
    problem = TrainingProblem(objective, LinearModel(N_WEIGHTS), sample, Exact(), 0.7, engine)
    (bound,) = problem.bound
    return bound


@pytest.mark.parametrize("loss", [Zero(), Hamming()])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
@pytest.mark.parametrize("one_weight", [True, False])
def test_all_ways_give_the_same_numbers(eps_y: float, eps_h: float, loss: Hamming | Zero, one_weight: bool) -> None:
    bound = bound_chains(Unified(eps_y, eps_h, loss), native=True, one_weight=one_weight)
    w = np.random.default_rng(1).normal(size=N_WEIGHTS)
    expected = PairedDifference(bound.block, bound.parts)(w)
    ways = [LinearMinusDifference.of(bound.block, bound.parts), bind_difference(bound.block, bound.parts, True)]
    for way in ways:
        evaluation = way(w)
        np.testing.assert_allclose(evaluation.values, expected.values, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(evaluation.total, expected.total, rtol=1e-12)
        np.testing.assert_allclose(evaluation.gradient, expected.gradient, rtol=1e-11, atol=1e-12)
        assert evaluation.converged == expected.converged == 2 * len(bound.block)
        assert (evaluation.plus_calls, evaluation.minus_calls) == (expected.plus_calls, expected.minus_calls)
    both = bound.plus(w).values - bound.minus(w).values
    np.testing.assert_allclose(expected.values, both, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("native", "one_weight", "labelled", "way"),
    [
        (True, True, True, JoinedDifference),
        (True, True, False, JoinedDifference),
        (True, False, True, LinearMinusDifference),
        (False, True, True, LinearMinusDifference),
        (False, True, False, PairedDifference),
        (True, False, False, PairedDifference),
    ],
)
def test_each_block_gets_the_cheapest_way(native: bool, one_weight: bool, labelled: bool, way: type) -> None:
    """Weights of instances cannot be joined; a sum of scores needs single labels."""
    bound = bound_chains(Unified(1.0, 1.0), native=native, one_weight=one_weight, labelled=labelled)
    assert type(bind_difference(bound.block, bound.parts, bound.single_labels)) is way

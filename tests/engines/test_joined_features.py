"""From weights to values and gradients in one go: as the reference engine, the same bits on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from builders import node_term, table_term
from mssvm.core.arrays import Bools, Floats
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.base import JoiningFeatures
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.exact import Exact
from mssvm.losses import Hamming, Loss, Zero
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified

LABELS = 3
HIDDEN = 2
FEATURES = 4
N = 41
N_WEIGHTS = FEATURES * (LABELS + HIDDEN) + LABELS * max(LABELS, 2 * HIDDEN)


class OnTables(Hamming):
    """Costs on tables that instances share, too."""

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        cost = super().delta(batch, output, truth, site_weight)
        return Potentials(cost.unary, np.linspace(-0.3, 0.4, batch.n_table_entries))


def chains(hidden: bool, labelled: float) -> Sample:
    """Chains of different lengths, the labels linked directly or through hidden variables."""
    rng = np.random.default_rng(4)
    lengths = [2 if i == 7 else int(rng.choice([3, 5, 6])) for i in range(N)]
    graphs, tables, outputs = [], [], []
    for n in lengths:
        links = [(t, n + t) for t in range(n - 1)] + [(t + 1, n + t) for t in range(n - 1)]
        graphs.append(
            Topology((LABELS,) * n + (HIDDEN,) * (n - 1), tuple(links))
            if hidden
            else Topology((LABELS,) * n, tuple((t, t + 1) for t in range(n - 1)))
        )
        tables.append([0] * (n - 1) + [1] * (n - 1) if hidden else [0] * (n - 1))
        outputs += [True] * n + [False] * ((n - 1) * hidden)
    batch, output = Batch.build(graphs, tables), np.array(outputs)
    big = np.flatnonzero(batch.owner == 3)
    x = rng.normal(size=(batch.n_vars, FEATURES))
    x[big] *= 500.0  # sums that are not safe in registers
    y, h = np.flatnonzero(output), np.flatnonzero(~output)
    size = LABELS * (HIDDEN if hidden else LABELS)
    block = FEATURES * (LABELS + HIDDEN) + size * np.arange(1 + hidden)
    terms = [node_term(batch, x[y], 0, y), table_term(batch, None, block)]
    if hidden:
        terms.append(node_term(batch, x[h], FEATURES * LABELS, h))
    free = ~output | ((rng.random(batch.n_vars) >= labelled) & (batch.owner % 2 == 0))
    truth = free[batch.state_var]
    truth[batch.unary_ptr[:-1] + rng.integers(0, batch.cards)] = True
    return Sample.of(LinearInputs(batch, tuple(terms)), Query.of(batch, output), truth)


@pytest.mark.parametrize("loss", [Zero(), Hamming(), OnTables()])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.0, 1.0), (0.25, 1.0), (0.5, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize(("hidden", "labelled"), [(True, 0.6), (True, 1.0), (False, 0.6), (False, 1.0)])
def test_values_and_gradients_are_the_references(
    hidden: bool, labelled: float, eps_y: float, eps_h: float, loss: Loss
) -> None:
    sample, w = chains(hidden, labelled), np.random.default_rng(0).normal(size=N_WEIGHTS)
    found = []
    for engine in (NativeEngine(), NativeEngine(3), engine_of("reference")):
        problem = TrainingProblem(Unified(eps_y, eps_h, loss), LinearModel(N_WEIGHTS), sample, Exact(), 1.0, engine)
        found.append(problem.difference(w))
        if isinstance(engine, NativeEngine):
            features = problem.bound[0].block.features
            assert isinstance(features, JoiningFeatures)
            assert features.joined(problem.bound[0].parts.pair, None) is not None  # type: ignore[attr-defined]
    one, three, reference = found
    np.testing.assert_array_equal(one.values, three.values)
    np.testing.assert_array_equal(one.gradient, three.gradient)
    np.testing.assert_allclose(one.values, reference.values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.gradient, reference.gradient, rtol=1e-9, atol=1e-8)
    counts = [(p.plus_calls, p.minus_calls, p.converged, p.exact) for p in found]
    assert counts[0] == counts[1] == counts[2]

"""The zero-one loss against a sum over all labellings, its gradients, and training with it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.inference import Exact
from mssvm.inference.base import Planner
from mssvm.inference.enumerate import Enumerate
from mssvm.losses import Zero, ZeroOne
from mssvm.models.linear import LinearInputs
from mssvm.objectives.sample import Sample
from mssvm.objectives.unified import Unified

GRAPHS = {
    "node": Topology((3,), ()),
    "chain": Topology((3, 2, 3, 2), ((0, 1), (1, 2), (2, 3))),
    "star": Topology((2, 3, 2, 2), ((0, 1), (0, 2), (0, 3))),
    "loop": Topology((2, 3, 2, 3), ((0, 1), (1, 2), (2, 3), (3, 0))),
    "three at once": Topology((2, 2, 3), ((0, 1, 2),)),
}
TEMPERATURES = list(product((0.0, 0.3, 1.0), repeat=2))
SCALE = 1.7


def sample_of(graph: Topology, rng: np.random.Generator, sets: bool) -> tuple[Sample, Potentials]:
    """Three instances with some variables hidden, some states not allowed, and labels, or sets of them, that are
    allowed; scores with forbidden entries."""
    batch = Batch.build([graph] * 3)
    output = rng.random(batch.n_vars) < 0.7
    output[batch.var_ptr[:-1]] = True
    labels = rng.integers(0, batch.cards)
    at = batch.unary_ptr[:-1] + labels
    allowed = rng.random(batch.n_states) < 0.8
    allowed[at] = True
    truth = ~output[batch.state_var]
    truth[at] = True
    if sets:
        truth |= rng.random(batch.n_states) < 0.3
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < 0.1] = -np.inf
    sample = Sample.of(LinearInputs(batch, ()), Query(output, allowed), truth)
    return sample, theta


def by_definition(sample: Sample, theta: Potentials, eps_y: float, eps_h: float) -> np.ndarray:
    """PS over all labellings y of g(y) plus the loss, each g(y) by a sum over the hidden variables."""
    batch = sample.batch
    query = sample.query
    terms: list[list[float]] = [[-np.inf] for _ in range(len(batch))]
    for b in range(len(batch)):
        outputs = np.flatnonzero(query.output & (batch.owner == b))
        for states in product(*(range(batch.cards[v]) for v in outputs)):
            at = batch.unary_ptr[outputs] + np.array(states)
            if not query.allowed[at].all():
                continue
            clamped = query.clamp(batch, outputs, np.array(states))
            g = Enumerate()(batch, theta, clamped, 0.0, eps_h).value[b]
            terms[b].append(g + (0.0 if sample.truth[at].all() else SCALE))
    return np.array([power_sum(np.array(t), eps_y)[0] for t in terms])


@pytest.mark.parametrize("strength", [1.0, 300.0, 3e4])
@pytest.mark.parametrize("eps", TEMPERATURES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_value_is_the_power_sum_over_all_labellings(graph: str, eps: tuple[float, float], strength: float) -> None:
    for seed in range(2):
        rng = np.random.default_rng([seed, len(graph)])
        sample, theta = sample_of(GRAPHS[graph], rng, sets=seed % 2 == 1)
        strong = Potentials(theta.unary * strength, theta.tables * strength)
        planner = Planner(Exact(), engine_of("native"))
        objective = Unified(*eps, ZeroOne(SCALE))
        parts = objective.bind(sample, Potentials.zeros(sample.batch), planner(sample.batch), planner)
        belief, _ = parts.plus(strong)
        expected = by_definition(sample, strong, *eps)
        np.testing.assert_allclose(belief.value, expected, rtol=1e-12, atol=1e-12 * strength)
        assert belief.status.exact.all()
        np.testing.assert_array_equal(belief.status.upper, belief.value)
        assert np.all(belief.value >= parts.minus(strong).value)


@pytest.mark.parametrize("eps", TEMPERATURES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_gradient_is_that_of_the_value(graph: str, eps: tuple[float, float]) -> None:
    rng = np.random.default_rng(5)
    sample, theta = sample_of(GRAPHS[graph], rng, sets=True)
    planner = Planner(Exact(), engine_of("native"))
    parts = Unified(*eps, ZeroOne(SCALE)).bind(sample, Potentials.zeros(sample.batch), planner(sample.batch), planner)
    mu = parts.plus(theta)[0].mu
    direction = Potentials(rng.normal(size=theta.unary.shape), rng.normal(size=theta.tables.shape))
    step = 1e-6
    values = []
    for sign in (1.0, -1.0):
        unary = theta.unary + sign * step * direction.unary
        tables = theta.tables + sign * step * direction.tables
        values.append(parts.plus(Potentials(unary, tables))[0].value)
    feasible = np.isfinite(values[0])
    slope = (values[0][feasible] - values[1][feasible]).sum() / (2 * step)
    along = mu.unary @ direction.unary + mu.tables @ direction.tables
    assert along == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("eps", TEMPERATURES)
def test_a_loss_of_scale_zero_is_no_loss(eps: tuple[float, float]) -> None:
    sample, theta = sample_of(GRAPHS["loop"], np.random.default_rng(6), sets=False)
    planner = Planner(Exact(), engine_of("native"))
    plan = planner(sample.batch)
    nothing = Potentials.zeros(sample.batch)
    charged = Unified(*eps, ZeroOne(0.0)).bind(sample, nothing, plan, planner).difference(theta)
    free = Unified(*eps, Zero()).bind(sample, nothing, plan, planner).difference(theta)
    np.testing.assert_allclose(charged.plus, free.plus, rtol=1e-12)
    np.testing.assert_allclose(charged.mu.unary, free.mu.unary, atol=1e-12)


def test_a_margin_of_one_between_whole_labellings() -> None:
    """SSVM with much weight on the data separates it: the best wrong labelling scores at least 1 less."""
    rng = np.random.default_rng(0)
    y = [rng.integers(0, 3, size=4) for _ in range(12)]
    X = [np.eye(3)[labels] for labels in y]
    model = ms.SSVM(ms.Chain(), loss="zero-one", C=1e3, solver="cutting-plane").fit(X, y)
    assert model.score(X, y) == 1.0
    assert model.training_["outcome"] == "converged"
    assert model.decision_gap(X).min() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("member", [ms.MSSVM, ms.LSSVM, ms.LossAugmentedCRF])
def test_members_train_with_missing_labels(member: type) -> None:
    rng = np.random.default_rng(1)
    y = [rng.integers(0, 2, size=5) for _ in range(30)]
    X = [np.eye(2)[labels] + 0.3 * rng.normal(size=(5, 2)) for labels in y]
    partial = [[ms.MISSING if rng.random() < 0.3 else int(label) for label in labels] for labels in y]
    model = member(ms.Chain(), loss="zero-one", random_state=0).fit(X, partial)
    assert model.score(X, y) > 0.9


def test_objectives_that_need_tables_refuse_in_a_sentence() -> None:
    X = [np.eye(2)]
    with pytest.raises(UnsupportedError, match="ZeroOne is no sum over sites"):
        ms.ModLat(ms.Chain(hidden=2), loss=ms.losses.ZeroOne()).fit(X, [[0, 1]])
    with pytest.raises(UnsupportedError, match="ZeroOne is no sum over sites"):
        ms.M3E(ms.Chain(hidden=2), loss=ms.losses.ZeroOne()).fit(X, [[0, 1]])

"""Mini-bucket and decomposition bounds: never below the brute-force value, exact without splitting, gradients right."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.core.errors import InputError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference import bounds
from mssvm.inference.bounds import Bounded, FactorDecomposition, MiniBucket
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.inference.enumerate import Enumerate

TEMPERATURES = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (1.0, 0.0), (0.01, 0.3)]


def random_case(rng: np.random.Generator, instances: int = 1) -> tuple[Batch, Potentials, Query]:
    graphs = []
    for _ in range(instances):
        n = int(rng.integers(1, 8))
        orders = rng.integers(2, 4, int(rng.integers(0, 2 * n)))
        scopes = tuple(tuple(rng.permutation(n)[:k]) for k in orders if k <= n)
        graphs.append(Topology(tuple(rng.integers(1, 4, n)), scopes))
    batch = Batch.build(graphs)
    theta = Potentials(2 * rng.normal(size=batch.n_states), 2 * rng.normal(size=batch.n_table_entries))
    if rng.random() < 0.3:
        theta.tables[rng.random(batch.n_table_entries) < 0.15] = -np.inf
    allowed = rng.random(batch.n_states) < 0.9
    first = batch.unary_ptr[:-1]
    allowed[first] = True
    return batch, theta, Query(rng.random(batch.n_vars) < 0.5, allowed)


@pytest.mark.slow
def test_bounds_are_never_violated_on_500_models() -> None:
    rng = np.random.default_rng(0)
    tight = {"mini-bucket": 0, "decomposition": 0}
    for _ in range(500):
        batch, theta, query = random_case(rng)
        eps_y, eps_h = TEMPERATURES[rng.integers(len(TEMPERATURES))]
        value = Enumerate()(batch, theta, query, eps_y, eps_h).value
        slack = 1e-9 * np.maximum(1.0, np.abs(value))
        optimised = int(rng.integers(0, 2)) * 8
        for name, bound in (
            ("mini-bucket", MiniBucket(ibound=int(rng.integers(1, 5)), iterations=optimised)),
            ("decomposition", FactorDecomposition(iterations=optimised)),
        ):
            upper = bound(batch, theta, query, eps_y, eps_h)
            feasible = value > -np.inf
            assert np.all(upper[feasible] >= value[feasible] - slack[feasible]), (name, eps_y, eps_h, upper, value)
            tight[name] += bool(np.all(upper[feasible] < value[feasible] + 1.0))
    assert min(tight.values()) > 250


@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
def test_without_splitting_the_bound_is_the_value(eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        batch, theta, query = random_case(rng, instances=3)
        value = Enumerate()(batch, theta, query, eps_y, eps_h).value
        assert np.allclose(MiniBucket(ibound=20)(batch, theta, query, eps_y, eps_h), value, atol=1e-9)


def grid(rng: np.random.Generator, side: int = 3) -> tuple[Batch, Potentials, Query]:
    at = np.arange(side * side).reshape(side, side)
    pairs = [
        *zip(at[:, :-1].ravel(), at[:, 1:].ravel(), strict=True),
        *zip(at[:-1].ravel(), at[1:].ravel(), strict=True),
    ]
    batch = Batch.build([Topology((2,) * side**2, tuple(pairs))])
    theta = Potentials(rng.normal(size=batch.n_states), 2 * rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5)


@pytest.mark.slow
def test_optimising_tightens_and_larger_buckets_help() -> None:
    rng = np.random.default_rng(2)
    gaps = []
    for _ in range(10):
        batch, theta, query = grid(rng)
        value = Enumerate()(batch, theta, query, 0.0, 1.0).value[0]
        all_bounds = [
            FactorDecomposition(0),
            FactorDecomposition(60),
            MiniBucket(3, 0),
            MiniBucket(3, 60),
            MiniBucket(4, 60),
        ]
        gaps.append([bound(batch, theta, query, 0.0, 1.0)[0] - value for bound in all_bounds])
    mean = np.mean(gaps, axis=0)
    assert mean[1] < 0.5 * mean[0]
    assert mean[3] < 0.5 * mean[2]
    assert mean[4] <= mean[3] + 1e-6 and mean[3] <= mean[1] + 1e-6


@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.3)])
def test_gradients_in_shifts_and_weights(eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(3)
    batch, theta, query = grid(rng)
    instance = OneInstance.of(batch, 0, theta, query)
    r = Relaxation(instance, instance.order(False), 4, eps_y, eps_h)
    assert not r.exact
    r.weight *= rng.uniform(0.5, 1.5, len(r.weight))
    r.shifts = rng.normal(size=len(r.shifts))
    r.run()
    grad = np.zeros(len(r.work))
    d_weight = np.zeros(len(r.weight))
    r.sweep.gradient(r.weight, grad, d_weight)
    h = 1e-6
    for array, places, gradient in (
        (r.work, r.shift_index, grad[r.shift_index]),
        (r.weight, np.arange(len(r.weight)), d_weight),
    ):
        for k, expected in zip(places, gradient, strict=True):
            array[k] += h
            up = r.run()
            array[k] -= 2 * h
            down = r.run()
            array[k] += h
            assert (up - down) / (2 * h) == pytest.approx(expected, abs=1e-5)


def triples(rng: np.random.Generator, zeros: float, strength: float) -> tuple[Batch, Potentials, Query]:
    """Six variables in tables of three: mini-buckets of small tables share several variables."""
    scopes = tuple(tuple(int(v) for v in rng.permutation(6)[:3]) for _ in range(8))
    batch = Batch.build([Topology((2, 2, 3, 2, 2, 2), scopes)])
    theta = Potentials(strength * rng.normal(size=batch.n_states), strength * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < zeros] = -np.inf
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[int(rng.integers(2))] = rng.random() < 0.5  # evidence, in half of the models
    return batch, theta, Query(rng.random(batch.n_vars) < 0.5, allowed)


@pytest.mark.slow
@pytest.mark.parametrize("strength", [1.0, 300.0, 3e4])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_shifts_of_all_shared_variables_never_lower_the_bound_below_the_value(zeros: float, strength: float) -> None:
    rng = np.random.default_rng(7)
    wide = 0
    for _ in range(90):
        batch, theta, query = triples(rng, zeros, strength)
        eps_y, eps_h = TEMPERATURES[rng.integers(len(TEMPERATURES))]
        value = Enumerate()(batch, theta, query, eps_y, eps_h).value[0]
        instance = OneInstance.of(batch, 0, theta, query)
        relaxation = Relaxation(instance, instance.order(eps_y == eps_h), 12, eps_y, eps_h)
        wide += bool((relaxation.program.shift_size > relaxation.program.card).any())
        slack = 1e-9 * max(1.0, abs(value)) if value > -np.inf else 0.0
        plain = relaxation.run()
        matched = relaxation.run(match=True)
        optimised = relaxation.improve(12, warm_start=True)
        assert min(plain, matched, optimised) >= value - slack
        assert optimised <= matched + slack
    assert wide > 36


def test_matching_forbids_in_all_mini_buckets_what_one_of_them_forbids() -> None:
    """Two tables of four variables, of which they share three: in each the entries allowed are those of both."""
    rng = np.random.default_rng(8)
    batch = Batch.build([Topology((2,) * 5, ((0, 1, 2, 3), (0, 1, 2, 4)))])
    theta = Potentials(np.zeros(batch.n_states), rng.normal(size=batch.n_table_entries))
    first = theta.tables[:16].reshape(8, 2)
    second = theta.tables[16:].reshape(8, 2)
    first[:4] = -np.inf
    second[4:7] = -np.inf
    query = Query.of(batch, np.ones(5, dtype=bool))
    relaxation = Relaxation(OneInstance.of(batch, 0, theta, query), range(5), 16, 0.0, 1.0)
    assert relaxation.program.shift_size.max() == 8
    assert relaxation.run() > relaxation.run(match=True) + 1e-3
    assert relaxation.run() == pytest.approx(first[7].max() + second[7].max())


def test_infeasible_instances_are_seen_by_the_bound() -> None:
    batch = Batch.build([Topology((2, 2), ((0, 1), (0, 1)))])
    theta = Potentials(np.zeros(4), np.array([0.0, -np.inf, -np.inf, 0.0, -np.inf, 0.0, 0.0, -np.inf]))
    query = Query.all_outputs(batch)
    assert MiniBucket()(batch, theta, query, 0.0, 1.0)[0] == -np.inf


@pytest.mark.parametrize(("eps_y", "eps_h"), TEMPERATURES)
def test_any_inference_can_be_asked_for_bounds(eps_y: float, eps_h: float) -> None:
    rng = np.random.default_rng(4)

    def guess(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        """An inference that answers with the marginals of another model and knows nothing about its error."""
        other = Potentials(rng.normal(size=batch.n_states), np.zeros(batch.n_table_entries))
        belief = Enumerate()(batch, other, query, eps_y, eps_h)
        nothing = np.full(len(batch), np.nan)
        wrong = np.zeros(len(batch), dtype=bool)
        status = type(belief.status)(
            ("guess",) * len(batch), wrong, wrong, belief.status.sweeps, nothing, nothing, nothing
        )
        return Belief(belief.value, belief.mu, status)

    for _ in range(5):
        batch, theta, query = random_case(rng, instances=3)
        value = Enumerate()(batch, theta, query, eps_y, eps_h).value
        for bounded in (Bounded(guess, MiniBucket(3, 5)), Bounded(guess, FactorDecomposition(5), ibound=2)):
            assert np.isnan(bounded(batch, theta, query, eps_y, eps_h).status.upper).all()
            status = bounded(batch, theta, query, eps_y, eps_h, bound=True).status
            slack = 1e-9 * np.maximum(1.0, np.abs(np.where(np.isfinite(value), value, 0.0)))
            assert np.all(status.lower <= value + slack)
            assert np.all((status.upper >= value - slack) | (value == -np.inf))
            assert status.method == ("guess",) * 3


def test_exact_results_keep_their_bounds() -> None:
    batch, theta, query = grid(np.random.default_rng(5))
    belief = Bounded(Enumerate())(batch, theta, query, 0.0, 1.0, bound=True)
    assert belief.status.lower[0] == belief.value[0] == belief.status.upper[0]


def test_bad_settings() -> None:
    for make in (
        lambda: MiniBucket(ibound=0),
        lambda: MiniBucket(iterations=-1),
        lambda: FactorDecomposition(iterations=-1),
    ):
        with pytest.raises(InputError):
            make()


def test_the_former_name_of_the_factor_decomposition_warns() -> None:
    with pytest.warns(FutureWarning, match="FactorDecomposition"):
        former = bounds.Decomposition
    assert former is FactorDecomposition

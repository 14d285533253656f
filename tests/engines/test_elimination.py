"""Bucket elimination on both engines against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import builders
from mssvm.core.errors import MemoryLimitError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import METHODS
from mssvm.engines.native.elimination import plan_of
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.reference import ReferenceEngine
from mssvm.inference.enumerate import Enumerate, score
from mssvm.inference.exact import Exact

PAIRS = list(product((0.0, 0.5, 1.0), repeat=2))
ELIMINATION = Exact(methods=METHODS[-1:])
ENGINES = {
    "native": builders.On(ELIMINATION, NativeEngine()),
    "native in log space": builders.On(ELIMINATION, NativeEngine(log_space=True)),
    "reference": builders.On(ELIMINATION, ReferenceEngine()),
}


def random_case(seed: int, scale: float = 1.0, forbid: float = 0.0) -> tuple[Batch, Potentials, Query]:
    """A ragged batch of all topologies; some instances share a graph, some factors their tables."""
    case = builders.random_case("mixed", n=12, seed=seed, forbid=forbid).scaled(scale)
    return case.batch, case.theta, case.query


def assert_same(found: Belief, expected: Belief) -> None:
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.mu.unary, expected.mu.unary, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.mu.tables, expected.mu.tables, rtol=1e-9, atol=1e-9)
    assert found.status.exact.all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(12))
def test_nine_temperature_pairs(engine: str, seed: int) -> None:
    batch, theta, query = random_case(seed, forbid=0.1 * (seed % 3))
    inference = ENGINES[engine]
    for eps_y, eps_h in PAIRS:
        assert_same(inference(batch, theta, query, eps_y, eps_h), Enumerate()(batch, theta, query, eps_y, eps_h))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("pair", [(1e-6, 1e-6), (1e-6, 1.0), (1.0, 1e-6), (0.0, 1e-6)])
def test_tiny_temperatures(engine: str, scale: float, pair: tuple[float, float]) -> None:
    for seed in range(100, 104):
        batch, theta, query = random_case(seed, scale)
        assert_same(ENGINES[engine](batch, theta, query, *pair), Enumerate()(batch, theta, query, *pair))


@pytest.mark.parametrize("scale", [20.0, 60.0, 200.0])
def test_ranges_around_the_switch_to_log_space(scale: float) -> None:
    for seed in range(200, 206):
        batch, theta, query = random_case(seed, scale)
        for pair in [(1.0, 1.0), (0.5, 1.0), (0.0, 1.0)]:
            assert_same(ELIMINATION(batch, theta, query, *pair), Enumerate()(batch, theta, query, *pair))


@pytest.mark.parametrize("engine", ENGINES)
def test_infeasible_instances_do_not_disturb_their_neighbours(engine: str) -> None:
    graph = Topology((2, 3, 2), ((0, 1), (1, 2), (2, 0)))
    batch = Batch.build([graph] * 4)
    rng = np.random.default_rng(0)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.tables[batch.table_at[3] : batch.table_at[3] + 6] = -np.inf
    theta.unary[batch.unary_ptr[6] : batch.unary_ptr[7]] = -np.inf
    query = Query.of(batch, np.tile([True, False, True], 4))
    for eps_y, eps_h in PAIRS:
        belief = ENGINES[engine](batch, theta, query, eps_y, eps_h)
        assert_same(belief, Enumerate()(batch, theta, query, eps_y, eps_h))
        assert np.isneginf(belief.value).tolist() == [False, True, True, False]
        assert not belief.mu.unary[batch.state_span(1)].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_vertices_and_ties_at_temperature_zero(engine: str) -> None:
    """All scores equal: the marginals are still those of one assignment, the first one."""
    graph = Topology((3, 2, 3), ((0, 1), (1, 2), (0, 2)))
    batch = Batch.build([graph] * 2)
    belief = ENGINES[engine](batch, Potentials.zeros(batch), Query.all_outputs(batch), 0.0, 0.0)
    assert set(belief.mu.unary.tolist()) == set(belief.mu.tables.tolist()) == {0.0, 1.0}
    assert not belief.decode(batch).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_decode_without_marginals(engine: str) -> None:
    inference = ENGINES[engine]
    for seed in range(300, 310):
        batch, theta, query = random_case(seed)
        for eps_h in (0.0, 1.0):
            belief = inference(batch, theta, query, 0.0, eps_h)
            bound = inference.bind(batch, query, 0.0, eps_h, marginals=False)
            value, states = bound.decode(theta)
            np.testing.assert_array_equal(bound.value(theta), value)
            np.testing.assert_allclose(value, belief.value, rtol=1e-12)
            known = states >= 0
            assert known[query.output].all()
            np.testing.assert_array_equal(states[known], belief.decode(batch)[known])
            if eps_h == 0.0:
                np.testing.assert_allclose(score(batch, theta, states), value, rtol=1e-9, atol=1e-9)
    with pytest.raises(UnsupportedError, match="eps_y = 0"):
        inference.bind(batch, query, 0.5, 1.0, marginals=False).decode(theta)


def grid_batch(n: int, copies: int, cards: int = 3) -> tuple[Batch, Potentials, Query]:
    batch = Batch.build([Topology((cards,) * n * n, tuple(builders.grid_scopes(n, n)))] * copies)
    rng = np.random.default_rng(7)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5)


def test_threads_give_the_same_bits() -> None:
    batch, theta, query = grid_batch(4, 70)
    for output in (query.output, np.tile(query.output[:16], 70)):
        query = Query.of(batch, output)
        one = ELIMINATION(batch, theta, query, 0.3, 1.0)
        three = builders.On(ELIMINATION, NativeEngine(3))(batch, theta, query, 0.3, 1.0)
        np.testing.assert_array_equal(one.value, three.value)
        np.testing.assert_array_equal(one.mu.unary, three.mu.unary)
        np.testing.assert_array_equal(one.mu.tables, three.mu.tables)


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (0.7, 0.0)])
def test_engines_agree_beyond_brute_force(pair: tuple[float, float]) -> None:
    batch, theta, query = grid_batch(5, 3)
    assert_same(ELIMINATION(batch, theta, query, *pair), ENGINES["reference"](batch, theta, query, *pair))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bound_of_some_instances_leaves_the_others_zero(engine: str) -> None:
    batch, theta, query = random_case(401)
    expected = ENGINES[engine](batch, theta, query, 0.0, 1.0)
    instances = np.array([1, 3, 6])
    found = ENGINES[engine].bind(batch, query, 0.0, 1.0, instances=instances)(theta)
    inside = np.isin(np.arange(len(batch)), instances)
    np.testing.assert_allclose(found.value, np.where(inside, expected.value, 0.0))
    wanted = expected.mu.scaled(batch, inside.astype(float))
    np.testing.assert_allclose(found.mu.unary, wanted.unary, atol=1e-12)
    np.testing.assert_allclose(found.mu.tables, wanted.tables, atol=1e-12)


def test_memory_limit_says_what_to_do() -> None:
    """Hidden star around many outputs: constrained width is the number of outputs, the free width is one."""
    graph = Topology((3,) * 41, tuple((0, i) for i in range(1, 41)))
    batch = Batch.build([Topology((2,), ()), graph])
    theta, query = Potentials.zeros(batch), Query.of(batch, np.arange(42) != 1)
    inference = ELIMINATION
    costs = inference.plan(batch).costs(query, 0.0, 1.0)
    assert costs.width[1] == 40
    assert costs.bytes[1] > 3**40 and costs.operations[1] >= 3**41
    with pytest.raises(MemoryLimitError) as caught:
        inference(batch, theta, query, 0.0, 1.0)
    for part in (
        "instance 1",
        "width 40",
        "4.0 GiB",
        "2^",
        "belief propagation",
        "memory_limit",
        "eps_y = eps_h",
        "width 1",
    ):
        assert part in str(caught.value)
    assert inference.plan(batch).costs(query, 1.0, 1.0).width[1] == 1
    np.testing.assert_allclose(inference(batch, theta, query, 1.0, 1.0).value[1], 41 * np.log(3))
    with pytest.raises(MemoryLimitError, match=r"belief propagation or raise memory_limit\.$"):
        Exact(memory_limit=100, methods=METHODS[-1:])(batch, theta, query, 1.0, 1.0)


def test_orders_are_searched_once_for_a_topology_and_its_roles() -> None:
    batch, theta, query = grid_batch(3, 6)
    plan_of.cache_clear()
    ELIMINATION(batch, theta, query, 1.0, 1.0)
    assert plan_of.misses == 1
    ELIMINATION(batch, theta, query, 0.0, 1.0)
    assert plan_of.misses == 7
    ELIMINATION(batch, theta, query, 0.0, 1.0)
    assert plan_of.misses == 7

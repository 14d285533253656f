"""Bucket elimination on both engines against brute force."""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest

import builders
from mssvm.core.errors import MemoryLimitError, UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.numba.elimination import EliminationKernels
from mssvm.engines.program import Eliminator
from mssvm.engines.reference import ReferenceEngine
from mssvm.inference.enumerate import Enumerate, score
from mssvm.inference.exact.eliminate import Eliminate

PAIRS = list(product((0.0, 0.5, 1.0), repeat=2))
ENGINES: dict[str, Eliminator] = {
    "numba": EliminationKernels(),
    "numba in log space": EliminationKernels(max_spread=-1.0),
    "reference": ReferenceEngine(),
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
    inference = Eliminate(engine=ENGINES[engine])
    for eps_y, eps_h in PAIRS:
        assert_same(inference(batch, theta, query, eps_y, eps_h), Enumerate()(batch, theta, query, eps_y, eps_h))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("pair", [(1e-6, 1e-6), (1e-6, 1.0), (1.0, 1e-6), (0.0, 1e-6)])
def test_tiny_temperatures(engine: str, scale: float, pair: tuple[float, float]) -> None:
    for seed in range(100, 104):
        batch, theta, query = random_case(seed, scale)
        assert_same(
            Eliminate(engine=ENGINES[engine])(batch, theta, query, *pair), Enumerate()(batch, theta, query, *pair)
        )


@pytest.mark.parametrize("scale", [20.0, 60.0, 200.0])
def test_ranges_around_the_switch_to_log_space(scale: float) -> None:
    for seed in range(200, 206):
        batch, theta, query = random_case(seed, scale)
        for pair in [(1.0, 1.0), (0.5, 1.0), (0.0, 1.0)]:
            assert_same(Eliminate()(batch, theta, query, *pair), Enumerate()(batch, theta, query, *pair))


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
        belief = Eliminate(engine=ENGINES[engine])(batch, theta, query, eps_y, eps_h)
        assert_same(belief, Enumerate()(batch, theta, query, eps_y, eps_h))
        assert np.isneginf(belief.value).tolist() == [False, True, True, False]
        assert not belief.mu.unary[batch.state_span(1)].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_vertices_and_ties_at_temperature_zero(engine: str) -> None:
    """All scores equal: the marginals are still those of one assignment, the first one."""
    graph = Topology((3, 2, 3), ((0, 1), (1, 2), (0, 2)))
    batch = Batch.build([graph] * 2)
    belief = Eliminate(engine=ENGINES[engine])(batch, Potentials.zeros(batch), Query.all_outputs(batch), 0.0, 0.0)
    assert set(belief.mu.unary.tolist()) == set(belief.mu.tables.tolist()) == {0.0, 1.0}
    assert not belief.decode(batch).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_decode_without_marginals(engine: str) -> None:
    inference = Eliminate(engine=ENGINES[engine])
    for seed in range(300, 310):
        batch, theta, query = random_case(seed)
        for eps_h in (0.0, 1.0):
            belief = inference(batch, theta, query, 0.0, eps_h)
            value, states = inference.decode(batch, theta, query, 0.0, eps_h)
            np.testing.assert_allclose(value, belief.value, rtol=1e-12)
            known = states >= 0
            assert known[query.output].all()
            np.testing.assert_array_equal(states[known], belief.decode(batch)[known])
            if eps_h == 0.0:
                np.testing.assert_allclose(score(batch, theta, states), value, rtol=1e-9, atol=1e-9)
    with pytest.raises(UnsupportedError, match="eps_y = 0"):
        inference.decode(batch, theta, query, 0.5, 1.0)


def grid_batch(n: int, copies: int, cards: int = 3) -> tuple[Batch, Potentials, Query]:
    batch = Batch.build([Topology((cards,) * n * n, tuple(builders.grid_scopes(n, n)))] * copies)
    rng = np.random.default_rng(7)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5)


def test_threads_give_the_same_bits() -> None:
    batch, theta, query = grid_batch(4, 70)
    for output in (query.output, np.tile(query.output[:16], 70)):
        query = Query.of(batch, output)
        one = Eliminate()(batch, theta, query, 0.3, 1.0)
        three = Eliminate(threads=3)(batch, theta, query, 0.3, 1.0)
        np.testing.assert_array_equal(one.value, three.value)
        np.testing.assert_array_equal(one.mu.unary, three.mu.unary)
        np.testing.assert_array_equal(one.mu.tables, three.mu.tables)


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (0.7, 0.0)])
def test_engines_agree_beyond_brute_force(pair: tuple[float, float]) -> None:
    batch, theta, query = grid_batch(5, 3)
    assert_same(
        Eliminate()(batch, theta, query, *pair), Eliminate(engine=ReferenceEngine())(batch, theta, query, *pair)
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_fill_writes_only_the_named_instances(engine: str) -> None:
    batch, theta, query = random_case(401)
    inference = Eliminate(engine=ENGINES[engine])
    expected = inference(batch, theta, query, 0.0, 1.0)
    value, mu = np.full(len(batch), 7.0), Marginals(np.full(batch.n_states, 7.0), np.full(batch.n_mu_entries, 7.0))
    which = np.array([6, 1, 3])
    inference.fill(batch, theta, query, 0.0, 1.0, which, value, mu)
    inside = np.isin(np.arange(len(batch)), which)
    np.testing.assert_allclose(value, np.where(inside, expected.value, 7.0))
    states = inside[batch.owner[batch.state_var]]
    np.testing.assert_allclose(mu.unary, np.where(states, expected.mu.unary, 7.0), atol=1e-12)
    entries = np.zeros(batch.n_mu_entries, dtype=bool)
    for b in which:
        for f in range(batch.factor_ptr[b], batch.factor_ptr[b + 1]):
            entries[batch.mu_at[f] : batch.mu_at[f] + batch.table_sizes[f]] = True
    np.testing.assert_allclose(mu.tables, np.where(entries, expected.mu.tables, 7.0), atol=1e-12)
    only = np.zeros(len(batch))
    inference.fill(batch, theta, query, 0.0, 1.0, np.arange(len(batch)), only, None)
    np.testing.assert_allclose(only, expected.value, rtol=1e-12)


def test_memory_limit_says_what_to_do() -> None:
    """Hidden star around many outputs: constrained width is the number of outputs, the free width is one."""
    graph = Topology((3,) * 41, tuple((0, i) for i in range(1, 41)))
    batch = Batch.build([Topology((2,), ()), graph])
    theta, query = Potentials.zeros(batch), Query.of(batch, np.arange(42) != 1)
    inference = Eliminate()
    cost = inference.predict(batch, query, 0.0, 1.0)
    assert cost.width == 40
    assert cost.bytes > 3**40 and cost.operations >= 3**41
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
    assert inference.predict(batch, query, 1.0, 1.0).width == 1
    np.testing.assert_allclose(inference(batch, theta, query, 1.0, 1.0).value[1], 41 * np.log(3))
    with pytest.raises(MemoryLimitError, match=r"belief propagation or raise memory_limit\.$"):
        Eliminate(memory_limit=100)(batch, theta, query, 1.0, 1.0)


def test_plans_are_shared_bounded_and_left_behind_by_copies() -> None:
    batch, theta, query = grid_batch(3, 6)
    inference = Eliminate()
    inference(batch, theta, query, 1.0, 1.0)
    assert len(inference.plans) == 1
    inference(batch, theta, query, 0.0, 1.0)
    assert len(inference.plans) == 7
    assert len(copy.deepcopy(inference).plans) == 0
    small = Eliminate(cache_size=1)
    small(batch, theta, query, 0.0, 1.0)
    assert len(small.plans) == 1

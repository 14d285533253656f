"""Zeros as constraints: against brute force, on instances made so that some are impossible."""

from __future__ import annotations

from itertools import product
from time import monotonic

import numpy as np
import pytest

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import Enumerate
from mssvm.uai.anytime import Anytime
from mssvm.uai.regions import DRAWS, Walk
from mssvm.uai.search import AnytimeSearch
from mssvm.uai.support import Support


def constrained(seed: int, zeros: float) -> tuple[Batch, Potentials, Query]:
    """Eight variables of 2 to 3 states, tables of two and three variables, some states not allowed."""
    rng = np.random.default_rng(seed)
    scopes = tuple(tuple(rng.choice(8, size=2 + k % 2, replace=False).tolist()) for k in range(9))
    batch = Batch.build([Topology(tuple(rng.integers(2, 4, size=8).tolist()), scopes)])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < zeros] = -np.inf
    theta.unary[rng.random(batch.n_states) < 0.1] = -np.inf
    return batch, theta, Query.of(batch, rng.random(8) < 0.5)


def possible(support: Support) -> list[np.ndarray]:
    cards = support.instance.topology.cards
    everything = [np.array(z) for z in product(*(range(c) for c in cards))]
    return [z for z in everything if support.score(z) > -np.inf]


@pytest.mark.parametrize("zeros", [0.0, 0.3, 0.5, 0.6])
def test_finds_an_assignment_exactly_where_there_is_one(zeros: float) -> None:
    for seed in range(12):
        batch, theta, query = constrained(seed, zeros)
        support = Support(OneInstance.of(batch, 0, theta, query))
        truth = possible(support)
        left = support.states_left()
        found = support.find(monotonic() + 20.0, seed)
        assert (found is not None) == bool(truth)
        if found is None:
            assert Anytime(5.0).search(batch, 0, theta, query, 1.0).upper == -np.inf
            continue
        at = support.instance.topology.unary_ptr[:-1]
        assert left is not None and all(left[at + z].all() for z in truth)
        assert any((found == z).all() for z in truth)
        given = support.states_left(np.where(query.output, found, -1))
        assert given is not None and given[at + found].all()
        narrowed = support.narrowed(given)
        assert narrowed.clamped[query.output].all() and (narrowed.states == found)[query.output].all()


@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0])
def test_a_walk_over_regions_counts_right_and_reaches_the_optimum(eps_h: float) -> None:
    """Every value it claims, of outputs it holds and of the best ones, is the exact one."""
    for seed in range(8):
        batch, theta, query = constrained(seed, 0.35)
        truth = Enumerate()(batch, theta, query, 0.0, eps_h).value[0]
        search = AnytimeSearch(Anytime(20.0), OneInstance.of(batch, 0, theta, query), eps_h)
        states = search.support.find(search.deadline)
        assert (states is None) == (truth == -np.inf)
        if states is None or not search.outputs:
            continue
        search.offer(states)
        walk = Walk(search.support, eps_h, seed)
        walk.restart(search.best, search.lower)
        for _ in range(12):
            _, found = walk.run(0.0, search.lower)
            assert walk.value == pytest.approx(search.evaluate(walk.states)[0], abs=1e-7)
            assert (found is not None) == (found is not None and search.offer(found))
            assert search.lower <= truth + 1e-9
        assert search.lower == pytest.approx(truth)


def test_what_a_walk_remembers_of_other_regions_changes_nothing() -> None:
    """A call looks at the whole model once and then near its regions only: as many calls of one region end the same."""
    rows = 40
    moved = 0
    for seed in range(40):
        batch, theta, query = constrained(seed, 0.35)
        support = Support(OneInstance.of(batch, 0, theta, query))
        start = support.find(monotonic() + 20.0)
        if start is None:
            continue
        walk = Walk(support, 1.0, seed)
        draws = np.random.default_rng(seed).random((rows, DRAWS))
        together, one_by_one = start.copy(), start.copy()
        value = walk.call(draws, together, np.zeros(2), start.copy(), hot=0.5, cold=0.5)
        progress = np.zeros(2)
        for row in draws:
            last = walk.call(row[None], one_by_one, progress, start.copy(), hot=0.5, cold=0.5)
        assert (together == one_by_one).all()
        assert value == pytest.approx(last, abs=1e-9)
        moved += bool((together != start).any())
    assert moved > 5


def test_a_change_of_one_output_is_mended_by_others() -> None:
    """Any possible outputs may come of it, but for those that keep the changed one."""
    changes = 0
    for seed in range(30):
        batch, theta, query = constrained(seed, 0.35)
        support = Support(OneInstance.of(batch, 0, theta, query))
        left = support.states_left()
        if left is None:
            continue
        support = Support(support.narrowed(left))
        walk = Walk(support, 1.0, seed)
        truth = possible(support)
        if not truth or not walk.free.any():
            continue
        for before in truth[:4]:
            after = walk.changed(before)
            assert after is None or any((after == z).all() for z in truth)
            if after is not None:
                assert (after != before)[walk.free].any()
                changes += 1
    assert changes > 20


def test_a_search_within_some_states_finds_an_assignment_exactly_where_there_is_one() -> None:
    for seed in range(20):
        batch, theta, query = constrained(seed, 0.3)
        support = Support(OneInstance.of(batch, 0, theta, query))
        at = support.instance.topology.unary_ptr[:-1]
        within = (support.instance.unary > -np.inf) & (np.random.default_rng(seed).random(batch.n_states) < 0.8)
        truth = [z for z in possible(support) if within[at + z].all()]
        found = support.find(monotonic() + 20.0, within=within)
        assert (found is not None) == bool(truth)
        assert found is None or any((found == z).all() for z in truth)


def test_a_search_that_prefers_a_possible_assignment_finds_it() -> None:
    for seed in range(6):
        batch, theta, query = constrained(seed, 0.3)
        support = Support(OneInstance.of(batch, 0, theta, query))
        for z in possible(support)[:5]:
            found = support.find(monotonic() + 20.0, prefer=z)
            assert found is not None and (found == z).all()


def test_greedy_is_possible_where_parents_come_first() -> None:
    """Conditional tables with zeros: some state is always left."""
    rng = np.random.default_rng(0)
    scopes = tuple((max(i - 3, 0), i - 1, i) if i > 1 else (0, 1) for i in range(1, 30))
    tables = [np.where(np.eye(3)[rng.integers(3, size=3 ** (len(s) - 1))], 0.0, -np.inf).ravel() for s in scopes]
    batch = Batch.build([Topology((3,) * 30, scopes)])
    query = Query.of(batch, np.ones(30, dtype=bool)).clamp(batch, np.array([0]), np.array([2]))
    support = Support(OneInstance.of(batch, 0, Potentials(np.zeros(90), np.concatenate(tables)), query))
    found = support.greedy()
    assert found[0] == 2 and support.score(found) == 0.0


def test_scores_are_those_of_the_tables() -> None:
    batch, theta, query = constrained(0, 0.0)
    z = np.zeros(8, dtype=np.int64)
    expected = theta.unary[batch.unary_ptr[:-1]].sum() + theta.tables[batch.table_at].sum()
    assert Support(OneInstance.of(batch, 0, theta, query)).score(z) == pytest.approx(expected)


@pytest.mark.slow
def test_a_search_that_fails_often_ends_in_time() -> None:
    """Nine variables that all differ, of nine states; of eight there is no assignment, which only time tells."""
    n = 9
    scopes = tuple((i, j) for i in range(n) for j in range(i))
    apart = np.where(np.eye(n, dtype=bool), -np.inf, 0.0).ravel()
    batch = Batch.build([Topology((n,) * n, scopes)])
    theta = Potentials(np.zeros(batch.n_states), np.tile(apart, len(scopes)))
    support = Support(OneInstance.of(batch, 0, theta, Query.of(batch, np.ones(n, dtype=bool))))
    found = support.find(monotonic() + 20.0)
    assert found is not None and sorted(found) == list(range(n))
    fewer = theta.unary.reshape(n, n).copy()
    fewer[:, -1] = -np.inf
    support = Support(
        OneInstance.of(batch, 0, Potentials(fewer.ravel(), theta.tables), Query.of(batch, np.ones(n) > 0))
    )
    assert support.find(monotonic() + 1.0) is None

"""Paths of labels and hidden variables in turn at eps_y = eps_h / n, hidden variables copied n times, by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from engines.test_lanes import assert_by_numpy, drawn
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.native.exact import NativeBoundQuery
from mssvm.engines.native.forests import ForestRoute, Ran


def turns(lengths: list[int], labels: int, states: int, flips: tuple[bool, bool] = (False, False)) -> Batch:
    """Paths of so many labels, linked by hidden variables; one table towards each of them and one from it."""
    graphs, tables = [], []
    for n in lengths:
        left, right = [(t, n + t) for t in range(n - 1)], [(n + t, t + 1) for t in range(n - 1)]
        scopes = [s[::-1] if flips[0] else s for s in left] + [s[::-1] if flips[1] else s for s in right]
        graphs.append(Topology((labels,) * n + (states,) * (n - 1), tuple(scopes)))
        tables.append([0] * (n - 1) + [1] * (n - 1))
    return Batch.build(graphs, tables)


def some_labels(batch: Batch, lengths: list[int], share: float, seed: int) -> np.ndarray:
    """That share of the labels as outputs, one of every path at least; the others are missing."""
    rng, output = np.random.default_rng(seed), np.zeros(batch.n_vars, dtype=bool)
    for first, n in zip(batch.var_ptr[:-1], lengths, strict=True):
        output[first : first + n] = rng.random(n) < share
        output[first + rng.integers(n)] = True
    return output


def copied(bound: NativeBoundQuery) -> int:
    """How many instances belong to families that run with copies."""
    routes = [route for route in bound.routes if isinstance(route, ForestRoute)]
    return sum(len(family["instance"]) for route in routes for family in route.families if family["copies"])


def ran(bound: NativeBoundQuery, theta: Potentials) -> Ran:
    """How instances ran."""
    (route,) = (route for route in bound.routes if isinstance(route, ForestRoute))
    return route.infer_into(theta, np.zeros(len(bound.batch)), Marginals.zeros(bound.batch))


# Hidden states, labels, copies.
SIZES = [(2, 10, 4), (2, 4, 3), (2, 9, 8), (3, 10, 3), (3, 6, 2), (2, 6, 5), (4, 10, 2)]


@pytest.mark.parametrize(("states", "labels", "copies"), SIZES)
@pytest.mark.parametrize("share", [1.0, 0.7, 0.2])
def test_paths_of_any_length_with_missing_labels(states: int, labels: int, copies: int, share: float) -> None:
    lengths = [6] * 9 + [5, 5, 4, 3, 2, 2, 6, 5, 3]
    batch = turns(lengths, labels, states, (copies % 2 == 0, share == 1.0))
    theta, query = drawn(batch, copies, some_labels(batch, lengths, share, states))
    bound = assert_by_numpy(batch, theta, query, 0.7 / copies, 0.7)
    assert copied(bound) >= 12  # in others only labels, or only hidden variables, may have more than one state
    assert ran(bound, theta).copies == copied(bound)


def test_labels_of_different_numbers_and_entries_that_are_forbidden_have_rows() -> None:
    graph = Topology((5, 2, 4, 2, 6), ((0, 1), (2, 1), (2, 3), (4, 3)))
    batch = Batch.build([graph] * 11, [[0, 1, 2, 3]] * 11)
    rng, output = np.random.default_rng(0), np.tile([True, False, True, False, True], 11)
    output[rng.integers(0, 11, 9) * 5 + rng.integers(0, 3, 9) * 2] = False
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.tables[rng.integers(0, len(theta.tables), 6)] = -np.inf
    bound = assert_by_numpy(batch, theta, Query.of(batch, output), 1 / 3, 1.0)
    assert copied(bound) == 0 and ran(bound, theta).scores == 0
    batch = turns([4] * 9, 5, 2)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.tables[3] = -np.inf
    bound = assert_by_numpy(batch, theta, Query(batch.cards == 5, np.ones(batch.n_states, dtype=bool)), 0.5, 1.0)
    assert copied(bound) == 9 and ran(bound, theta) == (0, 9, 0)


def test_a_table_of_its_own_at_every_link() -> None:
    graph = Topology((5, 2, 5, 2, 5), ((0, 1), (2, 1), (2, 3), (4, 3)))
    batch = Batch.build([graph] * 11, [[0, 1, 2, 3]] * 11)
    rng, output = np.random.default_rng(0), np.tile([True, False, True, False, True], 11)
    output[rng.integers(0, 11, 9) * 5 + rng.integers(0, 3, 9) * 2] = False
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    bound = assert_by_numpy(batch, theta, Query.of(batch, output), 1 / 3, 1.0)
    assert ran(bound, theta).copies == copied(bound) >= 8


def test_powers_that_underflow_are_computed_by_rows_or_in_scores() -> None:
    lengths = [4] * 10
    batch = turns(lengths, 6, 2)
    theta, query = drawn(batch, 5, some_labels(batch, lengths, 0.6, 5))
    theta.tables[:2] -= 100.0  # of the first label, which one path cannot do without; 400 at eps_y
    theta.unary[batch.unary_ptr[batch.var_ptr[3]] + np.arange(4) * 6] = 1e3
    bound = assert_by_numpy(batch, theta, query, 0.25, 1.0)
    assert copied(bound) >= 8 and ran(bound, theta).copies == 0
    theta.tables[:2] += 80.0
    bound = assert_by_numpy(batch, theta, query, 0.25, 1.0)
    assert 0 < ran(bound, theta).copies <= copied(bound)


def test_where_copies_do_not_help_rows_are_used() -> None:
    lengths = [4] * 10
    for labels, states, eps_y in ((4, 2, 0.25), (6, 2, 0.3), (20, 2, 1 / 16), (6, 3, 0.25), (6, 2, 2.0)):
        batch = turns(lengths, labels, states)
        theta, query = drawn(batch, 1, some_labels(batch, lengths, 0.8, 1))
        assert copied(assert_by_numpy(batch, theta, query, eps_y, 1.0)) == 0
    batch = turns(lengths, 6, 2)
    everything = drawn(batch, 1, np.ones(batch.n_vars, dtype=bool))[1]
    some = drawn(batch, 1, np.arange(batch.n_vars) % 7 != 4)[1]  # the first hidden variable is one
    for query in (everything, some):
        assert copied(assert_by_numpy(batch, drawn(batch, 1, query.output)[0], query, 0.25, 1.0)) == 0


def chains_and_turns(lengths: list[int], labels: int, hidden: int) -> Batch:
    """Chains of labels, or with hidden variables between them; two tables in turn for chains."""
    if hidden:
        return turns(lengths, labels, hidden)
    graphs = [Topology((labels,) * n, tuple((t, t + 1) for t in range(n - 1))) for n in lengths]
    return Batch.build(graphs, [[b % 2] * (n - 1) for b, n in enumerate(lengths)])


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.25, 1.0), (0.3, 1.0), (0.0, 1.0), (1.0, 0.7)])
def test_long_chains_with_forbidden_entries_are_scaled(hidden: int, eps_y: float, eps_h: float) -> None:
    rng, lengths = np.random.default_rng(0), [40] * 11
    batch = chains_and_turns(lengths, 7, hidden)
    shares = np.where(rng.random(batch.n_vars) < 0.5, batch.cards == 7, False)
    theta = Potentials(rng.uniform(-15, 15, batch.n_states), rng.uniform(-5, 5, batch.n_table_entries))
    forbidden = [(0, 1), (2, 0)] if hidden else [(a, b) for a in range(7) for b in range(7) if (b - a) % 7 in (2, 3)]
    for a, b in forbidden:
        theta.tables[batch.pair_cards(np.array([0]))[0, 1] * a + b] = -np.inf
    query = Query(shares, np.ones(batch.n_states, dtype=bool))
    bound = assert_by_numpy(batch, theta, query, eps_y, eps_h)
    assert ran(bound, theta).scores == 0


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.5, 1.0), (0.3, 1.0), (1.0, 0.7)])
def test_derivatives_by_what_is_impossible_are_left_out(hidden: int, eps_y: float, eps_h: float) -> None:
    """The upper half of the labels is far better, but one end has none of them and they are not reached from there."""
    rng, lengths, half = np.random.default_rng(1), [30] * 6, 2
    batch = chains_and_turns(lengths, 4, hidden)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    labels = np.flatnonzero(batch.cards == 4)
    for v in labels:
        theta.unary[batch.unary_ptr[v] + half : batch.unary_ptr[v + 1]] += 50.0
    allowed = np.ones(batch.n_states, dtype=bool)
    for b, first in enumerate(batch.var_ptr[:-1]):
        end = first + (0 if b % 2 == 0 else lengths[b] - 1)
        allowed[batch.unary_ptr[end] + half : batch.unary_ptr[end] + 4] = False
    if hidden:
        sent, taken = (theta.tables[batch.table_at[f] :][:8] for f in (0, lengths[0] - 1))
        sent.reshape(4, 2)[:half, 1] = sent.reshape(4, 2)[half:, 0] = -np.inf
        taken.reshape(2, 4)[0, half:] = taken.reshape(2, 4)[1, :half] = -np.inf
    else:
        one, two = (theta.tables[batch.table_at[batch.factor_ptr[b]] :][:16].reshape(4, 4) for b in (0, 1))
        one[:half, half:] = two[half:, :half] = -np.inf
    output = rng.random(batch.n_vars) < 0.5
    output[batch.cards != 4] = False
    assert_by_numpy(batch, theta, Query(output, allowed), eps_y, eps_h)


def test_a_small_row_counts_where_hidden_variables_are_colder_than_outputs() -> None:
    """Rows are raised to the power 1/50: of one that underflows a good part would be left."""
    rng, batch = np.random.default_rng(0), turns([17] * 10, 5, 3)
    theta = Potentials(rng.uniform(-60, 60, batch.n_states), rng.uniform(-1, 1, batch.n_table_entries))
    assert_by_numpy(batch, theta, Query(batch.cards == 5, np.ones(batch.n_states, dtype=bool)), 1.0, 0.02)


@pytest.mark.parametrize("seed", [39, 53, 68, 81])
def test_trees_of_scores_hundreds_apart_have_finite_marginals(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 25
    tree = Topology((2,) * n, tuple((int(rng.integers(max(0, k - 3), k)), k) for k in range(1, n)))
    batch = Batch.build([tree] * 3, [[0] * (n - 1)] * 3)
    theta = Potentials(rng.uniform(-200, 200, batch.n_states), np.array([-16.0, -19.0, 14.0, -15.0]))
    output, allowed = rng.random(batch.n_vars) < 0.4, rng.random(batch.n_states) < 0.7
    allowed[batch.unary_ptr[:-1]] = True
    assert_by_numpy(batch, theta, Query(output, allowed), 0.25, 1.0)

"""Graphs and the layout of ragged batches, checked by hand-written offsets and by adjoint identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology, factorize, offsets, spans

PAIR = Topology((2, 3), ((0, 1),))
TRIANGLE = Topology((2, 2, 3), ((0, 1), (1, 2), (0, 1, 2)))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to five instances over a few wirings; table ids drawn per size, so that ties within and across happen."""
    graphs, ids = [], []
    for _ in range(draw(st.integers(0, 5))):
        cards = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
        subsets = st.lists(st.permutations(range(len(cards))), max_size=4)
        scopes = tuple(tuple(p[: max(2, len(p) - 1)]) for p in draw(subsets)) if len(cards) > 1 else ()
        graph = Topology(cards, scopes)
        graphs.append(graph)
        # The shape, in base 4, keeps tables of different shapes apart.
        codes = [int("".join(map(str, graph.table_shape(f))), 4) for f in range(graph.n_factors)]
        ids.append([2 * code + draw(st.integers(0, 1)) for code in codes])
    return Batch.build(graphs, ids)


def test_graph_describes_its_factors():
    assert (TRIANGLE.n_vars, TRIANGLE.n_factors) == (3, 3)
    assert TRIANGLE.table_sizes.tolist() == [4, 6, 12]
    assert TRIANGLE.table_shape(2) == (2, 2, 3)
    assert TRIANGLE.unary_ptr.tolist() == [0, 2, 4, 7]
    assert TRIANGLE.scope_ptr.tolist() == [0, 2, 4, 7]
    assert TRIANGLE.scope_flat.tolist() == [0, 1, 1, 2, 0, 1, 2]


def test_graphs_compare_and_hash_by_content():
    same = Topology(np.array([2, 3]), [np.array([0, 1])])
    assert same == PAIR
    assert hash(same) == hash(PAIR)
    assert Topology((3, 2), ((0, 1),)) != PAIR
    assert Topology((2, 3), ((1, 0),)) != PAIR


@pytest.mark.parametrize(
    ("cards", "scopes", "message"),
    [
        ((2, 0), (), "variable 1 has 0 states"),
        ((2, 2), ((0, 1), (1,)), r"factor 1 has scope \(1,\); it needs two or more different variables"),
        ((2, 2), ((0, 0),), r"factor 0 has scope \(0, 0\); it needs two or more different"),
        ((2, 2), ((0, 2),), r"factor 0 has scope \(0, 2\), but variables run from 0 to 1"),
        ((2, 2), ((-1, 1),), r"factor 0 has scope \(-1, 1\), but variables run from 0 to 1"),
    ],
)
def test_graph_errors_say_what_is_wrong(cards, scopes, message):
    with pytest.raises(InputError, match=message):
        Topology(cards, scopes)


def test_offsets_and_spans():
    sizes = np.array([2, 0, 3])
    assert offsets(sizes).tolist() == [0, 2, 2, 5]
    assert spans(np.array([10, 99, 4]), sizes).tolist() == [10, 11, 4, 5, 6]
    assert spans(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []


def test_layout_without_ties():
    batch = Batch.build([PAIR, TRIANGLE, PAIR])
    assert len(batch) == 3
    assert batch.topologies == (PAIR, TRIANGLE)
    assert batch.topology_of.tolist() == [0, 1, 0]
    assert batch.topology(2) is batch.topology(0)
    assert (batch.n_vars, batch.n_factors, batch.n_states) == (7, 5, 17)
    assert batch.var_ptr.tolist() == [0, 2, 5, 7]
    assert batch.factor_ptr.tolist() == [0, 1, 4, 5]
    assert batch.cards.tolist() == [2, 3, 2, 2, 3, 2, 3]
    assert batch.owner.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert batch.state_var.tolist() == [0] * 2 + [1] * 3 + [2] * 2 + [3] * 2 + [4] * 3 + [5] * 2 + [6] * 3
    assert [batch.state_span(b) for b in range(3)] == [slice(0, 5), slice(5, 12), slice(12, 17)]
    assert batch.table_at.tolist() == batch.mu_at.tolist() == [0, 6, 10, 16, 28]
    assert batch.n_table_entries == batch.n_mu_entries == 34
    assert batch.n_mu_entries == batch.n_table_entries
    mu = np.arange(34.0)
    assert np.array_equal(batch.fold(mu), mu)


def test_layout_with_ties_within_and_across_instances():
    square = Topology((2, 2, 2), ((0, 1), (1, 2)))
    batch = Batch.build([square, square, PAIR], [[7, 7], [7, 3], [5]])
    assert batch.table_at.tolist() == [0, 0, 0, 4, 8]
    assert batch.n_table_entries == 14
    assert batch.mu_at.tolist() == [0, 0, 4, 8, 12]
    assert batch.n_mu_entries == 18
    assert batch.mu_source.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    folded = batch.fold(np.arange(18.0))
    assert folded.tolist() == [4.0, 6.0, 8.0, 10.0, *range(8, 18)]


def test_ties_within_one_instance_only():
    chain = Topology((2, 2, 2), ((0, 1), (1, 2)))
    batch = Batch.build([chain, chain], [[0, 0], [1, 1]])
    assert batch.table_at.tolist() == batch.mu_at.tolist() == [0, 0, 4, 4]
    assert batch.fold(np.arange(8.0)).tolist() == list(range(8))


def test_one_instance_is_the_first_of_several() -> None:
    """Its arrays are those of its topology, without copies."""
    graph = Topology((2, 3, 2), ((0, 1), (1, 2), (0, 2)))
    ids = [[5, 6, 7]]
    one = Batch.build([graph], ids)
    two = Batch.build([graph, graph], ids * 2)
    for name in ("scope_ptr", "scope_vars", "table_at", "mu_at", "table_sizes", "unary_ptr"):
        part = getattr(one, name)
        np.testing.assert_array_equal(part, getattr(two, name)[: len(part)])
    assert one.scope_vars is graph.scope_flat


def test_empty_batch_and_instances_without_factors():
    assert len(Batch.build([])) == 0
    batch = Batch.build([Topology((3,), ()), Topology((2,), ())])
    assert (batch.n_factors, batch.n_table_entries, batch.n_states) == (0, 0, 5)
    assert batch.mu_source.tolist() == []
    assert batch.fold(np.zeros(0)).tolist() == []


def test_build_errors_say_what_is_wrong():
    with pytest.raises(InputError, match="table_ids has 1 rows for 2 instances"):
        Batch.build([PAIR, PAIR], [[0]])
    with pytest.raises(InputError, match="instance 1: 2 table ids for 1 factors"):
        Batch.build([PAIR, PAIR], [[0], [0, 1]])
    with pytest.raises(InputError, match=r"factor 1 shares table .* with a factor of another shape"):
        Batch.build([PAIR, Topology((2, 2), ((0, 1),))], [[0], [0]])


@given(batches(), st.integers(0, 2**32 - 1))
def test_fold_is_the_adjoint_of_reading_tables(batch, seed):
    rng = np.random.default_rng(seed)
    theta, mu = rng.normal(size=batch.n_table_entries), rng.normal(size=batch.n_mu_entries)
    folded = batch.fold(mu)
    assert folded.shape == theta.shape
    np.testing.assert_allclose(theta @ folded, theta[batch.mu_source] @ mu, rtol=1e-10, atol=1e-10)


@given(batches())
def test_marginals_are_shared_exactly_by_tied_factors_of_one_instance(batch):
    owner = np.repeat(np.arange(len(batch)), np.diff(batch.factor_ptr))
    for f in range(batch.n_factors):
        for g in range(f):
            tied = batch.table_at[f] == batch.table_at[g]
            assert (batch.mu_at[f] == batch.mu_at[g]) == (tied and owner[f] == owner[g])
            if not tied:
                assert not set(range(batch.table_at[f], batch.table_at[f] + batch.table_sizes[f])) & set(
                    range(batch.table_at[g], batch.table_at[g] + batch.table_sizes[g])
                )


@given(batches(), st.data())
def test_select_keeps_wiring_and_ties(batch, data):
    which = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=6) if len(batch) else st.just([]))
    part = batch.select(which)
    assert [part.topology(k) for k in range(len(part))] == [batch.topology(b) for b in which]
    old = np.concatenate([batch.table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]] for b in which] or [[]])
    for f in range(part.n_factors):
        for g in range(f):
            assert (part.table_at[f] == part.table_at[g]) == (old[f] == old[g])
    used = {int(at): int(size) for at, size in zip(part.table_at, part.table_sizes, strict=True)}
    assert part.n_table_entries == sum(used.values())


def test_select_accepts_repeats_in_any_order():
    batch = Batch.build([PAIR, TRIANGLE], [[0], [1, 2, 3]])
    part = batch.select(np.array([1, 0, 0]))
    assert part.table_at.tolist() == [0, 4, 10, 22, 22]
    assert part.mu_at.tolist() == [0, 4, 10, 22, 28]


def test_negative_table_ids_name_tables_like_any_other() -> None:
    pair = Topology((2, 3), ((0, 1),))
    batch = Batch.build([pair, pair], [[-1], [-2]])
    assert batch.table_at.tolist() == batch.mu_at.tolist() == [0, 6]


def test_tables_of_transposed_shape_are_not_tied() -> None:
    with pytest.raises(InputError, match="another shape"):
        Batch.build([Topology((2, 3), ((0, 1), (1, 0)))], [[0, 0]])


@pytest.mark.parametrize("bad", [[np.inf, -np.inf], [np.inf, 0.0], [np.nan, 0.0]])
def test_scores_are_finite_or_forbidden(bad: list[float]) -> None:
    batch = Batch.build([Topology((2,), ())])
    Potentials(np.array([-np.inf, 0.0]), np.zeros(0)).check(batch)
    Potentials(np.array([1.5e308, 1.5e308]), np.zeros(0)).check(batch)
    with pytest.raises(InputError, match=r"NaN or \+inf"):
        Potentials(np.array(bad), np.zeros(0)).check(batch)


@given(st.lists(st.sampled_from([-3, 0, 1, 5, 70_000]), max_size=12))
def test_numbers_by_first_use(ids: list[int]) -> None:
    first, number = factorize(np.array(ids, dtype=np.int64))
    known = list(dict.fromkeys(ids))
    assert first.tolist() == [ids.index(k) for k in known]
    assert number.tolist() == [known.index(k) for k in ids]


def test_a_topology_of_arrays_is_that_of_its_scopes():
    cards = np.array([2, 3, 4, 2])
    groups = [np.array([[0, 1], [2, 3]]), np.zeros((0, 2), dtype=np.int64), np.array([[3, 1, 0]])]
    made = Topology.of_arrays(cards, groups)
    assert made == Topology((2, 3, 4, 2), ((0, 1), (2, 3), (3, 1, 0)))
    assert hash(made) == hash(Topology((2, 3, 4, 2), ((0, 1), (2, 3), (3, 1, 0))))
    assert made != Topology((2, 3, 4, 2), ((0, 1), (2, 3), (3, 0, 1)))
    assert made.scopes == ((0, 1), (2, 3), (3, 1, 0))
    assert made.cards == (2, 3, 4, 2)
    assert Topology.of_arrays(cards, []) == Topology((2, 3, 4, 2), ())


def test_the_first_wrong_scope_is_named():
    with pytest.raises(InputError, match=r"factor 1 has scope \(2, 0, 2\); it needs two or more different"):
        Topology((2, 2, 2), ((0, 1), (2, 0, 2), (0, 9)))
    with pytest.raises(InputError, match=r"factor 1 has scope \(0, 9\), but variables run from 0 to 2"):
        Topology.of_arrays(np.array([2, 2, 2]), [np.array([[0, 1], [0, 9]]), np.array([[1, 1]])])


@pytest.mark.parametrize("cards", [(1,) * 7, (2,) * 7, (3,) * 7, (8,) * 7, (9,) * 7, (2, 4) * 4, (1, 2, 3)])
def test_allowed_states_are_counted_one_by_one(cards: tuple[int, ...]) -> None:
    batch = Batch.build([Topology(cards, ())] * 3)
    rng = np.random.default_rng(len(cards) + cards[0])
    for share in (0.5, 1.0):
        query = Query(np.ones(batch.n_vars, dtype=bool), rng.random(batch.n_states) < share)
        want = [int(query.allowed[a:b].sum()) for a, b in zip(batch.unary_ptr, batch.unary_ptr[1:], strict=False)]
        found = query.n_allowed(batch)
        assert found.dtype == np.int64
        assert found.tolist() == want

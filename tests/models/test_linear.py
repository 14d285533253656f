"""Linear models: forward against an explicit design, adjoint against its transpose, selections, untying, names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import sparse

from builders import node_term, state_rows, table_rows, table_term
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials, Term, fused
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.base import Features
from mssvm.engines.native.features import LinearFeatures
from mssvm.engines.reference import features as reference_features
from mssvm.models.linear import LinearInputs, LinearModel, WeightLayout
from mssvm.models.partial import ActiveWeights, FixedWeights


def ragged(rng: np.random.Generator, n: int = 7) -> Batch:
    """Chains of different lengths; some tables are shared within and across instances."""
    lengths = rng.integers(1, 6, n)
    graphs = [Topology((3,) * int(m), tuple((i, i + 1) for i in range(int(m) - 1))) for m in lengths]
    ids = [[10 * b + f if f % 2 else 1000 + f % 3 for f in range(g.n_factors)] for b, g in enumerate(graphs)]
    return Batch.build(graphs, ids)


def random_inputs(rng: np.random.Generator, kind: str, offset: bool = False) -> LinearInputs:
    """``kind``: dense or sparse features, one shared block or one per row, rows in shuffled order."""
    batch = ragged(rng)
    n_tables = len(np.unique(batch.table_at))
    node = rng.normal(size=(batch.n_vars, 4))
    edge = rng.normal(size=(n_tables, 2))
    node[rng.random(node.shape) < 0.5] = 0.0
    wrap = sparse.csr_array if "sparse" in kind else np.asarray
    untied = "untied" in kind
    node_block = rng.integers(0, 5, batch.n_vars) * 12 if untied else 0
    edge_block = 60 + rng.integers(0, 4, n_tables) * 18 if untied else 60
    rows = rng.permutation(batch.n_vars)
    terms = (
        node_term(batch, wrap(node), node_block),
        node_term(batch, wrap(node[rows]), 132, rows),
        table_term(batch, wrap(edge), edge_block),
        table_term(batch, None, 144),
        node_term(batch, np.ones((1, 1)), 153, np.array([0])),
    )
    fixed = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries)) if offset else None
    return LinearInputs(batch, terms, fixed)


def explicit(x: LinearInputs, n_weights: int) -> tuple[np.ndarray, np.ndarray]:
    """The design matrices of unary scores and of tables, entry by entry."""
    unary = np.zeros((x.batch.n_states, n_weights))
    tables = np.zeros((x.batch.n_table_entries, n_weights))
    for term in x.terms:
        features = term.features.toarray() if sparse.issparse(term.features) else term.features
        for r in range(len(term.at)):
            for j in range(features.shape[1]):
                for k in range(term.width):
                    place = term.at[r] + k, term.block[r] + j * term.width + k
                    (unary if term.target == "unary" else tables)[place] += features[r, j]
    return unary, tables


KINDS = ["dense", "sparse", "dense untied", "sparse untied"]


WAYS: dict[str, Callable[[LinearInputs, int], Features]] = {
    "loops": lambda x, n: LinearFeatures(x.batch, x.terms, x.offset, n, packed_from=1 << 40),
    "tied": lambda x, n: LinearFeatures(x.batch, x.terms, x.offset, n, packed_from=0),
    "bound": lambda x, n: LinearModel(n).bind(x, engine_of("native")),
    "reference": lambda x, n: reference_features.linear(x.batch, x.terms, x.offset, n),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_adjoint_are_an_explicit_matrix_and_its_transpose(kind: str, way: str) -> None:
    rng = np.random.default_rng(1)
    x = random_inputs(rng, kind, offset=True)
    features = WAYS[way](x, 160)
    w = rng.normal(size=160)
    design_unary, design_tables = explicit(x, 160)
    theta = features.forward(w)
    assert x.offset is not None
    np.testing.assert_allclose(theta.unary, design_unary @ w + x.offset.unary, atol=1e-12)
    np.testing.assert_allclose(theta.tables, design_tables @ w + x.offset.tables, atol=1e-12)
    mu = Marginals(rng.normal(size=x.batch.n_states), rng.normal(size=x.batch.n_mu_entries))
    expected = design_unary.T @ mu.unary + design_tables.T @ x.batch.fold(mu.tables)
    np.testing.assert_allclose(features.adjoint(mu), expected, atol=1e-12)


@pytest.mark.parametrize("whole_from", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("known", [False, True])
def test_weights_left_out_are_weights_fixed_at_zero(whole_from: float, known: bool) -> None:
    rng = np.random.default_rng(7)
    x = random_inputs(rng, "sparse", offset=True)
    keep = np.ones(160, dtype=bool)
    keep[:12] = rng.random(12) < 0.5
    keep[60:78] = rng.random(18) < 0.4
    values = np.where(keep, np.nan, 0.0)
    values[78:80] = 3.0 if known else np.nan
    every = FixedWeights(LinearModel(160), values)
    model = FixedWeights(LinearModel(160), np.where(keep, values, np.nan)) if known else LinearModel(160)
    some = ActiveWeights.of(model, x, keep, whole_from)
    inputs = some.inputs(x)
    w = rng.normal(size=160)
    assert some.n_weights == keep.sum() < 160
    np.testing.assert_array_equal(some.fill(some.take(w)), every.fill(w))
    theta = some.forward(some.take(w), inputs)
    expected = every.forward(w, x)
    np.testing.assert_allclose(theta.unary, expected.unary, atol=1e-12)
    np.testing.assert_allclose(theta.tables, expected.tables, atol=1e-12)
    reference = reference_features.linear(inputs.batch, inputs.terms, inputs.offset, len(some.stored))
    again = reference.forward(some.model.fill(some.expand(some.take(w))))
    np.testing.assert_allclose(again.unary, expected.unary, atol=1e-12)
    mu = Marginals(rng.normal(size=x.batch.n_states), rng.normal(size=x.batch.n_mu_entries))
    np.testing.assert_allclose(some.adjoint(mu, inputs), every.adjoint(mu, x)[keep], atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_dot_products_agree(kind: str) -> None:
    rng = np.random.default_rng(2)
    model = LinearModel(160)
    for _ in range(10):
        x = random_inputs(rng, kind)
        w = rng.normal(size=160)
        mu = Marginals(rng.normal(size=x.batch.n_states), rng.normal(size=x.batch.n_mu_entries))
        theta = model.forward(w, x)
        left = theta.unary @ mu.unary + theta.tables[x.batch.mu_source] @ mu.tables
        assert left == pytest.approx(w @ model.adjoint(mu, x), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", [[0], [3, 4, 5], [6, 0, 2], [1, 1, 5], []])
def test_select_gives_the_same_potentials_as_the_whole(kind: str, which: Sequence[int]) -> None:
    rng = np.random.default_rng(3)
    x = random_inputs(rng, kind, offset=True)
    model = LinearModel(160)
    w = rng.normal(size=160)
    whole = model.forward(w, x)
    part = x.select(np.array(which, dtype=np.int64))
    theta = model.forward(w, part)
    np.testing.assert_allclose(theta.unary, whole.unary[state_rows(x.batch, which)], atol=1e-13)
    np.testing.assert_allclose(theta.tables, whole.tables[table_rows(x.batch, part.batch, which)], atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_adjoint_of_the_whole_is_the_sum_over_instances(kind: str) -> None:
    rng = np.random.default_rng(4)
    x = random_inputs(rng, kind)
    model = LinearModel(160)
    mu = Marginals(rng.normal(size=x.batch.n_states), rng.normal(size=x.batch.n_mu_entries))
    total = np.zeros(160)
    for b in range(len(x.batch)):
        part = x.select([b])
        tables = np.zeros(part.batch.n_mu_entries)
        for f in range(part.batch.n_factors):
            size = int(part.batch.table_sizes[f])
            there = int(x.batch.mu_at[x.batch.factor_ptr[b] + f])
            tables[part.batch.mu_at[f] : part.batch.mu_at[f] + size] = mu.tables[there : there + size]
        total += model.adjoint(Marginals(mu.unary[x.batch.state_span(b)], tables), part)
    np.testing.assert_allclose(model.adjoint(mu, x), total, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_untied_inputs_are_the_same_function_of_w(kind: str) -> None:
    rng = np.random.default_rng(5)
    x = random_inputs(rng, kind, offset=True)
    apart = x.untied()
    model = LinearModel(160)
    w = rng.normal(size=160)
    whole = model.forward(w, x)
    each = model.forward(w, apart)
    np.testing.assert_array_equal(each.unary, whole.unary)
    for f in range(x.batch.n_factors):
        size = int(x.batch.table_sizes[f])
        here = apart.batch.table_at[f]
        there = x.batch.table_at[f]
        np.testing.assert_allclose(each.tables[here : here + size], whole.tables[there : there + size], atol=1e-13)
    assert len(np.unique(apart.batch.table_at)) == apart.batch.n_factors


def test_fused_terms_are_the_same_function_of_w_and_few() -> None:
    """Weights of their own for every variable and factor: two terms instead of one each."""
    rng = np.random.default_rng(0)
    batch = Batch.build([Topology((3,) * 5, tuple((i, i + 1) for i in range(4)))] * 3, [range(4)] * 3)
    sites = [np.arange(i, 15, 5) for i in range(5)]
    apart = [node_term(batch, rng.normal(size=(3, 2)), 6 * i, mine) for i, mine in enumerate(sites)]
    apart += [table_term(batch, None, 30 + 9 * e, np.array([e])) for e in range(4)]
    apart.append(node_term(batch, sparse.random(15, 2, 0.5, random_state=0), 66))
    sizes = [len(term.at) for term in apart]
    inputs = LinearInputs(batch, tuple(apart))
    joined = LinearInputs(batch, fused(apart, sizes))
    assert [(len(t.at), sparse.issparse(t.features)) for t in joined.terms] == [(15, False), (4, False), (15, True)]
    model = LinearModel(72)
    w = rng.normal(size=72)
    one = model.forward(w, inputs)
    two = model.forward(w, joined)
    np.testing.assert_array_equal(one.unary, two.unary)
    np.testing.assert_array_equal(one.tables, two.tables)
    mu = Marginals(rng.normal(size=batch.n_states), rng.normal(size=batch.n_mu_entries))
    np.testing.assert_array_equal(model.adjoint(mu, inputs), model.adjoint(mu, joined))
    parts = [model.forward(w, x.select([2, 0])).unary for x in (inputs, joined)]
    np.testing.assert_array_equal(*parts)


def test_forbidden_entries_stay_forbidden() -> None:
    batch = Batch.build([Topology((2, 2), ((0, 1),))])
    fixed = Potentials(np.zeros(4), np.array([0.0, -np.inf, 0.0, 0.0]))
    x = LinearInputs(batch, (table_term(batch),), fixed)
    np.testing.assert_array_equal(LinearModel(4).forward(np.arange(4.0), x).tables, [0.0, -np.inf, 2.0, 3.0])


def test_layout_names_every_weight() -> None:
    layout = WeightLayout.of({"node": (3, 2), "edge": (2, 4)})
    assert layout.n_weights == 14
    np.testing.assert_array_equal(layout.per_weight({"edge": 0.5}), [1.0] * 6 + [0.5] * 8)
    w = np.arange(14.0)
    layout.view(w, "edge")[1] = 0.0
    assert w[10:].sum() == 0.0
    for bad in (lambda: layout["table"], lambda: WeightLayout.of({"a": (3,)})):
        with pytest.raises(InputError):
            bad()


def test_bad_terms_are_refused() -> None:
    batch = Batch.build([Topology((2, 3), ((0, 1),))])
    with pytest.raises(InputError, match="one term for each"):
        node_term(batch, np.ones((2, 1)))
    with pytest.raises(InputError, match="finite"):
        node_term(batch, np.array([[np.nan]]), 0, np.array([0]))
    with pytest.raises(InputError, match="rows"):
        node_term(batch, np.ones((2, 1)), 0, np.array([0]))
    with pytest.raises(InputError, match="not inside one variable"):
        LinearInputs(batch, (Term("unary", np.ones((1, 1)), np.array([1]), 2, np.array([0])),))
    with pytest.raises(InputError, match="not inside one table"):
        LinearInputs(batch, (Term("tables", np.ones((1, 1)), np.array([6]), 1, np.array([0])),))
    x = LinearInputs(batch, (table_term(batch, None, 3),))
    with pytest.raises(InputError, match="need 9"):
        LinearModel(8).forward(np.zeros(8), x)
    with pytest.raises(InputError, match="need 9"):
        LinearModel(8).adjoint(Marginals.zeros(batch), x)
    with pytest.raises(InputError, match="has shape"):
        LinearModel(9).forward(np.zeros(8), x)


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array])
def test_rows_without_a_place_add_nothing(wrap: Callable[..., object]) -> None:
    """The same as without these rows, also in selections; consecutive instances share the matrix."""
    rng = np.random.default_rng(0)
    batch = Batch.build([Topology((2,) * 5, ())] * 6)
    rows = rng.normal(size=(batch.n_vars, 3))
    used = np.arange(batch.n_vars) % 5 != 0
    at = np.where(used, batch.unary_ptr[:-1], -1)
    some = LinearInputs(batch, (Term("unary", wrap(rows), at, 2, np.asarray(0)),))
    fewer = LinearInputs(batch, (Term("unary", wrap(rows[used]), at[used], 2, np.asarray(0)),))
    model = LinearModel(6)
    w = rng.normal(size=6)
    mu = Marginals(rng.normal(size=batch.n_states), np.zeros(0))
    for chosen in (np.arange(6), np.arange(2, 5), np.array([4, 0, 4])):
        one = some.select(chosen)
        two = fewer.select(chosen)
        part = Marginals(mu.unary[: one.batch.n_states], mu.tables)
        np.testing.assert_allclose(model.forward(w, one).unary, model.forward(w, two).unary, atol=1e-14)
        np.testing.assert_allclose(model.adjoint(part, one), model.adjoint(part, two), atol=1e-14)
    if wrap is np.asarray:
        assert np.shares_memory(some.select(np.arange(2, 5)).terms[0].features, some.terms[0].features)

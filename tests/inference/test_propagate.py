"""Belief propagation: exact where theory says so, ordered where it says so, the same on any kernel and thread."""

from __future__ import annotations

import numpy as np
import pytest

from builders import KINDS, Case, grid_scopes, mu_rows, random_case, state_rows, tree_scopes
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.propagation.propagate import Propagate

PAIRS = [(0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.5, 0.5), (0.5, 1.0), (1.0, 0.5), (1.0, 1.0)]


def models(graphs: list[Topology], seed: int, coupling: float = 1.0, outputs: np.ndarray | None = None) -> Case:
    rng = np.random.default_rng(seed)
    batch = Batch.build(graphs)
    theta = Potentials(rng.normal(size=batch.n_states), coupling * rng.normal(size=batch.n_table_entries))
    return Case(batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5 if outputs is None else outputs))


def random_trees(n: int, seed: int) -> list[Topology]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 8, n)
    return [Topology(tuple(rng.integers(2, 4, k).tolist()), tuple(tree_scopes(rng, int(k)))) for k in sizes]


def ab_trees(n: int, seed: int) -> Case:
    """Trees of outputs, with hidden trees that hang from at most one output each."""
    rng = np.random.default_rng(seed)
    graphs = []
    outputs = []
    for _ in range(n):
        role = [True]
        scopes = []
        for v in range(1, int(rng.integers(3, 8))):
            above = int(rng.integers(v))
            role.append(bool(role[above] and rng.random() < 0.5))
            scopes.append((above, v) if rng.random() < 0.5 else (v, above))
        graphs.append(Topology(tuple(rng.integers(2, 4, len(role)).tolist()), tuple(scopes)))
        outputs += role
    return models(graphs, seed, 1.5, np.array(outputs))


def infer(case: Case, method: Propagate, eps_y: float, eps_h: float) -> Belief:
    return method(case.batch, case.theta, case.query, eps_y, eps_h)


def brute(case: Case, eps_y: float, eps_h: float) -> Belief:
    return Enumerate()(case.batch, case.theta, case.query, eps_y, eps_h)


def assert_same(got: Belief, want: Belief, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(got.value, want.value, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, atol=tolerance)
    np.testing.assert_allclose(got.mu.tables, want.mu.tables, atol=tolerance)


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
def test_exact_on_ab_trees_without_merging(eps_y: float, eps_h: float, scaled: bool) -> None:
    case = ab_trees(40, 1)
    got = infer(case, Propagate("fast", merging=False, scaled=scaled, tolerance=1e-12), eps_y, eps_h)
    assert got.status.converged.all()
    assert_same(got, brute(case, eps_y, eps_h))


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.7, 3.0])
def test_exact_on_all_trees_at_one_temperature(eps: float, scaled: bool) -> None:
    case = models(random_trees(40, 2), 2, 2.0)
    got = infer(case, Propagate("fast", scaled=scaled), eps, eps)
    assert got.status.exact.all() and got.status.converged.all()
    assert_same(got, brute(case, eps, eps))


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
def test_merging_makes_every_tree_exact(eps_y: float, eps_h: float) -> None:
    case = models(random_trees(40, 3), 3, 2.0)
    got = infer(case, Propagate("fast"), eps_y, eps_h)
    assert got.status.exact.all()
    np.testing.assert_array_equal(got.status.lower, got.value)
    np.testing.assert_array_equal(got.status.upper, got.value)
    assert_same(got, brute(case, eps_y, eps_h))


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_called_exact_is_exact_and_bounds_hold(kind: str, scale: float) -> None:
    """Masks, forbidden entries, infeasible instances, ties of tables, higher orders, single states, both kernels."""
    case = random_case(kind, 28).scaled(scale)
    batch = case.batch
    for eps_y, eps_h in PAIRS:
        want = brute(case, eps_y, eps_h)
        for scaled in (True, False):
            got = infer(case, Propagate("normal", scaled=scaled), eps_y, eps_h)
            exact = got.status.exact
            finite = np.isfinite(want.value)
            np.testing.assert_array_equal(np.isneginf(got.value), np.isneginf(want.value))
            np.testing.assert_allclose(got.value[exact & finite], want.value[exact & finite], rtol=1e-9, atol=1e-9)
            held = exact[batch.owner][batch.state_var]
            np.testing.assert_allclose(got.mu.unary[held], want.mu.unary[held], atol=1e-9)
            held = exact[batch.mu_owner]
            np.testing.assert_allclose(got.mu.tables[held], want.mu.tables[held], atol=1e-9)
            known = finite & ~np.isnan(got.status.lower)
            assert np.all(got.status.lower[known] <= want.value[known] + 1e-9 * (1.0 + np.abs(want.value[known])))
            known = finite & ~np.isnan(got.status.upper)
            assert np.all(got.status.upper[known] >= want.value[known] - 1e-9 * (1.0 + np.abs(want.value[known])))
    if kind in ("nodes", "chains", "trees", "uniform"):
        assert exact.all()


@pytest.mark.parametrize("scaled", [True, False])
def test_order_of_the_free_energy_on_trees(scaled: bool) -> None:
    """Below U+ when eps_y < eps_h, above when eps_y > eps_h, equal when equal; strictly so on some tree."""
    case = models(random_trees(60, 4), 4, 2.0)
    method = Propagate("normal", merging=False, scaled=scaled, tolerance=1e-12)
    for eps_y, eps_h, sign in ((0.5, 1.0, -1.0), (0.6, 1.5, -1.0), (1.0, 0.5, 1.0), (2.0, 0.3, 1.0)):
        got = infer(case, method, eps_y, eps_h)
        settled = got.status.converged
        assert settled.mean() > 0.9
        difference = sign * (got.value - brute(case, eps_y, eps_h).value)[settled]
        assert difference.min() >= -1e-9 and difference.max() > 1e-4


def test_marginals_are_the_gradient_of_the_free_energy_with_cycles() -> None:
    graph = Topology((2, 3, 2, 2), ((0, 1), (1, 2), (2, 3), (3, 0), (0, 1, 2)))
    case = models([graph], 5, 0.4, np.array([True, False, True, False]))
    method = Propagate("normal", merging=False, tolerance=1e-13, max_sweeps=2000)
    for eps_y, eps_h in ((0.7, 1.0), (1.0, 0.6), (0.8, 0.8)):
        belief = infer(case, method, eps_y, eps_h)
        assert belief.status.converged.all() and not belief.status.exact.any()
        for part, mu in ((case.theta.unary, belief.mu.unary), (case.theta.tables, belief.mu.tables)):
            for e in range(len(part)):
                kept = part[e]
                ends = []
                for step in (1e-5, -1e-5):
                    part[e] = kept + step
                    ends.append(infer(case, method, eps_y, eps_h).value[0])
                part[e] = kept
                np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, mu[e], atol=1e-6)


# --- eps_y = 0 -------------------------------------------------------------------------------------------------------


def checkerboards(n: int, count: int, seed: int, card: int = 4) -> Case:
    rng = np.random.default_rng(seed)
    batch = Batch.build([Topology((card,) * (n * n), tuple(grid_scopes(n, n)))] * count)
    theta = Potentials(0.1 * rng.normal(size=batch.n_states), 2.0 * rng.normal(size=batch.n_table_entries))
    return Case(batch, theta, Query.of(batch, np.tile(np.add.outer(range(n), range(n)).ravel() % 2 == 0, count)))


@pytest.mark.parametrize("merging", [True, False])
def test_marginal_map_on_checkerboards(merging: bool) -> None:
    case = checkerboards(3, 30, 6)
    want = brute(case, 0.0, 1.0)
    got = infer(case, Propagate("careful", merging=merging), 0.0, 1.0)
    assert np.mean(np.abs(got.value - want.value) < 1e-9) >= 0.95
    assert np.all(got.status.lower <= want.value + 1e-9)
    best = np.abs(got.value - want.value) < 1e-9
    held = best[case.batch.owner][case.batch.state_var]
    np.testing.assert_allclose(got.mu.unary[held], want.mu.unary[held], atol=1e-9)


@pytest.mark.parametrize("start", ["cold", "damped", "marginals", "sum_first", "annealed", "joint"])
def test_every_start_alone_finds_most_optima_on_trees_and_claims_its_own_value(start: str) -> None:
    case = models(random_trees(60, 7), 7, 1.0)
    want = brute(case, 0.0, 1.0)
    got = infer(case, Propagate("fast", starts=(start,), merging=False, max_sweeps=200), 0.0, 1.0)
    assert np.mean(np.abs(got.value - want.value) < 1e-9) >= 0.85
    z = got.decode(case.batch)
    outputs = np.flatnonzero(case.query.output)
    again = Enumerate()(case.batch, case.theta, case.query.clamp(case.batch, outputs, z[outputs]), 0.0, 1.0)
    assert_same(got, again)


def test_values_given_y_are_no_bound_when_hidden_variables_form_cycles() -> None:
    case = models([Topology((3,) * 9, tuple(grid_scopes(3, 3)))] * 4, 8, 1.0, np.tile(np.arange(9) == 4, 4))
    got = infer(case, Propagate("careful"), 0.0, 1.0)
    assert np.isnan(got.status.lower).all() and np.isnan(got.status.upper).all() and not got.status.exact.any()
    np.testing.assert_allclose(got.value, brute(case, 0.0, 1.0).value, rtol=0.05)
    assert np.all(np.isin(got.mu.unary.reshape(4, 9, 3)[:, 4], (0.0, 1.0)))


@pytest.mark.parametrize("hidden", [0.3, 0.7])
@pytest.mark.parametrize("effort", ["fast", "normal"])
def test_a_candidate_keeps_the_objective_above_the_labels_own_score(effort: str, hidden: float) -> None:
    """U+ - U- >= 0 on loopy grids with strong couplings, whatever labels are asked about."""
    rng = np.random.default_rng(9)
    batch = Batch.build([Topology((3,) * 36, tuple(grid_scopes(6, 6)))] * 6)
    theta = Potentials(rng.normal(size=batch.n_states), 2.0 * rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, rng.random(batch.n_vars) > hidden)
    method = Propagate(effort)
    outputs = np.flatnonzero(query.output)
    best = method(batch, theta, query, 0.0, 1.0).decode(batch)
    for y in (rng.integers(0, 3, batch.n_vars), best):
        minus = method(batch, theta, query.clamp(batch, outputs, y[outputs]), 0.0, 1.0)
        plus = method(batch, theta, query, 0.0, 1.0, candidates=[y])
        assert np.all(plus.value >= minus.value - 1e-9 * np.abs(minus.value))


def test_polishing_leaves_no_better_single_flip() -> None:
    case = checkerboards(3, 6, 10, card=3)
    got = infer(case, Propagate("normal", starts=("joint",), merging=False), 0.0, 1.0)
    z = got.decode(case.batch)
    outputs = np.flatnonzero(case.query.output)
    for i in outputs:
        for x in range(3):
            y = z.copy()
            y[i] = x
            held = case.query.clamp(case.batch, outputs, y[outputs])
            assert np.all(Enumerate()(case.batch, case.theta, held, 0.0, 1.0).value <= got.value + 1e-9)


def test_ties_are_broken_by_the_seed_alone() -> None:
    graph = Topology((2,) * 4, tuple(grid_scopes(2, 2)))
    batch = Batch.build([graph] * 3)
    theta = Potentials(np.zeros(batch.n_states), np.tile([1.0, 0.0, 0.0, 1.0], batch.n_factors))
    decodes = []
    for seed in (0, 0, 1, 2, 3):
        belief = Propagate("fast", seed=seed)(batch, theta, Query.all_outputs(batch), 0.0, 0.0)
        assert np.all(belief.value == 4.0) and set(belief.mu.unary.tolist()) == {0.0, 1.0}
        decodes.append(belief.decode(batch).reshape(3, 4).tolist())
        assert decodes[-1][0] == decodes[-1][1] == decodes[-1][2]
    assert decodes[0] == decodes[1] and len({str(d) for d in decodes}) > 1


@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_tiny_temperatures_round_no_marginal(scale: float) -> None:
    case = random_case("disconnected", 20, seed=200, integer=True).scaled(scale)
    belief = infer(case, Propagate(), 0.0, 1e-12)
    expected = brute(case, 0.0, 1e-12)
    total = np.add.reduceat(belief.mu.unary, case.batch.unary_ptr[:-1])
    np.testing.assert_allclose(total, (belief.value > -np.inf)[case.batch.owner], atol=1e-12)
    exact = belief.status.exact
    assert exact.sum() > 10
    np.testing.assert_allclose(belief.value[exact], expected.value[exact], atol=1e-9 * scale)


@pytest.mark.parametrize("unary", [0.0, 1e8])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.0, 1e-12), (1e-12, 1e-12)])
def test_scores_without_a_range(unary: float, eps_y: float, eps_h: float) -> None:
    """Nothing but what breaks ties is left, which must not overflow when divided by a tiny temperature."""
    batch = Batch.build([Topology((3,) * 6, tuple(grid_scopes(2, 3)))])
    theta = Potentials(np.full(batch.n_states, unary), np.zeros(batch.n_table_entries))
    belief = infer(Case(batch, theta, Query.of(batch, np.arange(6) % 2 == 0)), Propagate(), eps_y, eps_h)
    np.testing.assert_allclose(belief.value, 6 * unary, atol=1e-9)
    np.testing.assert_allclose(belief.mu.unary.reshape(6, 3).sum(1), 1.0)


# --- the face --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 1.0), (1.0, 1.0), (0.5, 1.0), (0.0, 0.0)])
def test_threads_position_and_repetition_change_no_bit(eps_y: float, eps_h: float) -> None:
    case = random_case("mixed", 24, seed=2)
    one = infer(case, Propagate("careful", threads=1), eps_y, eps_h)
    three = infer(case, Propagate("careful", threads=3), eps_y, eps_h)
    np.testing.assert_array_equal(one.value, three.value)
    np.testing.assert_array_equal(one.mu.unary, three.mu.unary)
    np.testing.assert_array_equal(one.mu.tables, three.mu.tables)
    np.testing.assert_array_equal(one.status.sweeps, three.status.sweeps)
    which = [17, 3, 11]
    part = case.select(which)
    alone = infer(part, Propagate("careful"), eps_y, eps_h)
    np.testing.assert_allclose(alone.value, one.value[which], rtol=1e-12)
    np.testing.assert_allclose(alone.mu.unary, one.mu.unary[state_rows(case.batch, which)], atol=1e-9)
    np.testing.assert_allclose(alone.mu.tables, one.mu.tables[mu_rows(case.batch, part.batch, which)], atol=1e-9)


@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("directed", [False, True])
def test_threads_change_no_bit_of_instances_abreast(eps_y: float, eps_h: float, directed: bool) -> None:
    """Blocks of whole registers, of parts of one, and of single instances, which run in waves where every direction has
    its table; some variables are given."""
    rng = np.random.default_rng(4)
    scopes = tuple(grid_scopes(4, 5))
    tables = [int(b - a > 1) if directed else f % 2 for f, (a, b) in enumerate(scopes)]
    batch = Batch.build([Topology((3,) * 20, scopes)] * 21, [tables] * 21)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    allowed = np.ones(batch.n_states, dtype=bool).reshape(-1, 3)
    allowed[rng.random(batch.n_vars) < 0.2, 1:] = False
    case = Case(batch, theta, Query(rng.random(batch.n_vars) < 0.5, allowed.ravel()))
    one, *others = (infer(case, Propagate(threads=t), eps_y, eps_h) for t in (1, 2, 3, 16))
    for other in others:
        np.testing.assert_array_equal(one.value, other.value)
        np.testing.assert_array_equal(one.mu.unary, other.mu.unary)
        np.testing.assert_array_equal(one.mu.tables, other.mu.tables)
        np.testing.assert_array_equal(one.status.sweeps, other.status.sweeps)


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
def test_a_bound_of_some_instances_computes_only_these(eps_y: float, eps_h: float) -> None:
    case = random_case("mixed", 12, seed=3)
    batch = case.batch
    whole = infer(case, Propagate(), eps_y, eps_h)
    some = np.array([1, 4, 7])
    others = np.delete(np.arange(12), [1, 4, 7])
    part = Propagate().plan(batch).bind(case.query, eps_y, eps_h, some)(case.theta)
    np.testing.assert_array_equal(part.value[some], whole.value[some])
    assert np.all(part.value[others] == 0.0)
    for got, want, owner in (
        (part.mu.unary, whole.mu.unary, batch.owner[batch.state_var]),
        (part.mu.tables, whole.mu.tables, batch.mu_owner),
    ):
        np.testing.assert_array_equal(got, np.where(np.isin(owner, some), want, 0.0))
    status = part.status
    np.testing.assert_array_equal(status.exact[some], whole.status.exact[some])
    assert not status.exact[others].any() and not status.converged[others].any()
    assert np.isnan(status.lower[others]).all() and np.isnan(status.upper[others]).all()
    assert all(status.method[b] == whole.status.method[b] for b in some) and {status.method[b] for b in others} == {""}


def test_a_bound_serves_many_potentials_and_a_pair_is_two_of_them() -> None:
    case = models(random_trees(6, 11), 11)
    plan = Propagate().plan(case.batch)
    bound = plan.bind(case.query, 0.0, 1.0)
    for scale in (1.0, 3.0, 1.0):
        assert_same(bound(case.scaled(scale).theta), infer(case.scaled(scale), Propagate(), 0.0, 1.0), 0.0)
    outputs = np.flatnonzero(case.query.output)
    narrower = case.query.clamp(case.batch, outputs, np.zeros(len(outputs), dtype=np.int64))
    pair = plan.pair(case.query, narrower, 0.0, 1.0)(case.theta, case.theta)
    plus = bound(case.theta)
    minus = plan.bind(narrower, 0.0, 1.0)(case.theta)
    np.testing.assert_array_equal(pair.plus, plus.value)
    np.testing.assert_array_equal(pair.minus, minus.value)
    np.testing.assert_array_equal(pair.mu.tables, plus.mu.tables - minus.mu.tables)


def test_warm_start_on_request() -> None:
    case = models([Topology((3,) * 36, tuple(grid_scopes(6, 6)))] * 3, 12, 0.6)
    cold = infer(case, Propagate("normal", keep_messages=True), 1.0, 1.0)
    warm = Propagate("normal")(case.batch, case.theta, case.query, 1.0, 1.0, messages=cold.extras["messages"])
    assert np.all(warm.status.sweeps <= 2) and np.all(cold.status.sweeps > 4)
    np.testing.assert_allclose(warm.value, cold.value, rtol=1e-9)


def test_effort_is_a_dial() -> None:
    case = checkerboards(4, 12, 13)
    values = [infer(case, Propagate(effort, merging=False), 0.0, 1.0).value for effort in (0, "normal", 2, 3)]
    for less, more in zip(values[:-1], values[1:], strict=True):
        assert np.all(more >= less - 1e-9)
    assert values[2].mean() > values[0].mean()


def test_refusals_are_one_sentence() -> None:
    case = models(random_trees(3, 14), 14, outputs=None)
    with pytest.raises(UnsupportedError, match="eps_h = 0"):
        infer(case, Propagate(), 1.0, 0.0)
    for bad in (
        {"schedule": "random"},
        {"damping": 1.0},
        {"effort": "heroic"},
        {"effort": -1},
        {"starts": ("nowhere",)},
    ):
        with pytest.raises(InputError):
            Propagate(**bad)
    case.theta.tables[0] = np.nan
    with pytest.raises(InputError, match="NaN"):
        infer(case, Propagate(), 1.0, 1.0)

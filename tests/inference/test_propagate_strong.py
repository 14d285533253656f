"""Scores as strong as probabilities can bear: nothing underflows that counts, and what is called exact is."""

from __future__ import annotations

import numpy as np
import pytest

from builders import Case, grid_scopes, random_forest, random_query, tree_scopes
from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.messages import MessageModel, MessageRun, Schedule, Temperatures
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.propagation.propagate import Propagate

EXACT = 1e-7


def strong_table(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """One state of a variable preferred whatever the other's, one for each of the other's, or anything."""
    out = -np.ones(shape)
    kind = rng.integers(5)
    if kind == 0:
        out[rng.integers(shape[0])] = 0.0
    elif kind == 1:
        out[:, rng.integers(shape[1])] = 0.0
    elif kind == 2:
        out[np.arange(shape[0]), rng.integers(0, shape[1], shape[0])] = 0.0
    else:
        out = rng.normal(size=shape) if kind == 3 else np.zeros(shape)
    return np.asarray(out + 1e-3 * rng.normal(size=shape))


def strong_case(rng: np.random.Generator, reach: float, eps: float) -> Case:
    """Grids, forests and dense graphs, alone and several of a kind; scores that meet at a variable add up to a range of
    ``reach`` times the temperature."""
    n = int(rng.integers(2, 6))
    k = int(rng.choice([2, 3, 4, 5, 7, 13]))
    graphs = [
        Topology((k,) * 6, tuple(grid_scopes(2, 3))),
        random_forest(rng, n, 5),
        Topology((k,) * n, tuple((i, j) for i in range(n) for j in range(i))),
    ]
    graph = graphs[rng.integers(3)]
    count = int(rng.choice([1, 4, 9]))
    batch = Batch.build([graph] * count, [list(range(graph.n_factors))] * count if rng.random() < 0.6 else None)
    tables = np.zeros(batch.n_table_entries)
    for f in range(batch.n_factors):
        shape = batch.topology(0).table_shape(f % graph.n_factors)
        tables[batch.table_at[f] :][: int(np.prod(shape))] = strong_table(rng, (shape[0], shape[1])).ravel()
    unary = rng.choice([0.0, 1.0, 3.0]) * -rng.integers(0, 2, batch.n_states) + 1e-3 * rng.normal(size=batch.n_states)
    query = random_query(rng, batch)
    case = Case(batch, Potentials(unary, tables), query)
    return case.scaled(reach * eps / max(float(model_of(case).range.max()), 1e-3))


def model_of(case: Case, engine: str = "native") -> MessageModel:
    return engine_of(engine).messages(case.batch).load(case.theta, case.query, np.zeros(case.batch.n_states))


def temperatures(rng: np.random.Generator, case: Case, eps: float) -> Temperatures:
    kinds = (Temperatures.one(case.batch.n_vars, eps), Temperatures(case.query.output, 0.0, eps))
    return kinds[rng.integers(2)]


def field(run: MessageRun, case: Case, which: Ints) -> Floats:
    """Scores of states by all messages, the best of every variable 0, at those the mask allows."""
    allowed = case.query.allowed & np.isin(case.batch.owner, which)[case.batch.state_var]
    scores = np.where(allowed, run.scores(which), -1e300)
    top = np.maximum.reduceat(scores, case.batch.unary_ptr[:-1])
    return np.where(allowed, scores - top[case.batch.state_var], 0.0)


@pytest.mark.parametrize("seed", range(100))
def test_few_sweeps_of_strong_models_are_those_of_log_space(seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    eps = float(rng.choice([0.01, 1.0, 10.0]))
    reach = float(rng.choice([20.0, 200.0, 420.0, 590.0, 599.0]))
    case = strong_case(rng, reach, eps)
    t = temperatures(rng, case, eps)
    which = np.arange(len(case.batch))
    model = model_of(case)
    schedule = Schedule(float(rng.choice([0.0, 0.3, 0.5])), bool(rng.random() < 0.3), 0.0)
    reference = model_of(case, "reference").run()
    reference.start(which, None)
    n_sweeps = int(rng.integers(1, 5))
    reference.advance(which, t, n_sweeps, schedule)
    want = field(reference, case, which)
    values = np.zeros(len(which))
    mu = Marginals.zeros(case.batch)
    reference.beliefs(which, Temperatures.one(case.batch.n_vars, eps), values, mu)
    for group in model.groups(which, t, True):
        run = group.run(False)
        value = np.zeros(len(which))
        got = Marginals.zeros(case.batch)
        run.start(group.instances, None)
        run.advance(group.instances, t, n_sweeps, schedule)
        mine = np.isin(case.batch.owner, group.instances)[case.batch.state_var]
        np.testing.assert_allclose(field(run, case, group.instances)[mine], want[mine], rtol=1e-9, atol=1e-7 * eps)
        run.beliefs(group.instances, Temperatures.one(case.batch.n_vars, eps), value, got)
        np.testing.assert_allclose(value[group.instances], values[group.instances], rtol=1e-9, atol=1e-7 * eps)
        np.testing.assert_allclose(got.unary[mine], mu.unary[mine], atol=1e-6)


def assert_true(got: Belief, want: Belief, batch: Batch, eps: float) -> None:
    """What is called exact is so, bounds hold, and there is no NaN."""
    room = 1e-9 * np.abs(want.value) + EXACT * eps
    assert np.isfinite(got.value).all()
    assert np.all(np.abs(got.value - want.value)[got.status.exact] <= room[got.status.exact])
    assert not np.any(got.status.lower > want.value + room)
    assert not np.any(got.status.upper < want.value - room)
    proved = got.status.exact[batch.owner][batch.state_var]
    np.testing.assert_allclose(got.mu.unary[proved], want.mu.unary[proved], atol=1e-6)


@pytest.mark.parametrize("seed", range(50))
def test_claims_about_strong_models_are_true(seed: int) -> None:
    rng = np.random.default_rng([seed, 2])
    eps = float(rng.choice([0.01, 1.0, 10.0]))
    reach = float(rng.choice([50.0, 200.0, 420.0, 599.0, 900.0]))
    case = strong_case(rng, reach, eps)
    while np.prod(case.query.n_allowed(case.batch)[: case.batch.topology(0).n_vars].astype(float)) > 2000:
        case = strong_case(rng, reach, eps)
    messages = -reach * eps * rng.random(int(case.batch.cards[case.batch.scope_vars].sum()))
    messages[rng.random(len(messages)) < 0.1] = -np.inf
    method = Propagate(
        str(rng.choice(["fast", "normal"])),
        float(rng.choice([0.0, 0.3, 0.5])),
        merging=bool(rng.random() < 0.5),
        schedule=str(rng.choice(["sequential", "flooding"])),
    )
    for eps_y in (eps, 0.0):
        want = Enumerate()(case.batch, case.theta, case.query, eps_y, eps)
        for start in (None, messages):
            got = method(case.batch, case.theta, case.query, eps_y, eps, messages=start)
            if eps_y > 0.0:
                assert_true(got, want, case.batch, eps)
            assert not np.any(got.status.lower > want.value + 1e-9 * np.abs(want.value) + EXACT * eps)
            assert not np.isnan(got.value).any()
            assert not np.isnan(got.mu.unary).any()


@pytest.mark.parametrize(("states", "degree"), [(2, 1100), (14, 300)])
@pytest.mark.parametrize("count", [1, 9])
def test_a_hub_of_many_weak_factors(states: int, degree: int, count: int) -> None:
    """A product of messages that sum to one underflows without any range."""
    star = Topology((states,) * (degree + 1), tuple((0, i) for i in range(1, degree + 1)))
    batch = Batch.build([star] * count, [[0] * degree] * count)
    rng = np.random.default_rng(0)
    theta = Potentials(rng.normal(size=batch.n_states), 0.01 * rng.normal(size=batch.n_table_entries))
    got = Propagate()(batch, theta, Query.of(batch, np.zeros(batch.n_vars, dtype=bool)), 1.0, 1.0)
    table = theta.tables.reshape(states, states)
    leaves = theta.unary.reshape(count, degree + 1, states)
    hub = leaves[:, 0] + np.log(np.exp(leaves[:, 1:, None, :] + table).sum(axis=3)).sum(axis=1)
    np.testing.assert_allclose(got.value, np.log(np.exp(hub - hub.max()).sum(axis=1)) + hub.max(), rtol=1e-12)
    assert got.status.exact.all()


def test_marginals_of_forests_whose_messages_change_too_little_to_see() -> None:
    """Residuals are those of probabilities; states of tiny ones decide where strong scores balance."""
    rng = np.random.default_rng(0)
    for _ in range(25):
        tree = Topology((2,) * 5, tuple(tree_scopes(rng, 5)))
        batch = Batch.build([tree] * 40)
        levels = 30.0 * rng.integers(-2, 3, batch.n_states), 30.0 * rng.integers(-1, 2, batch.n_table_entries)
        theta = Potentials(*(level + rng.normal(size=len(level)) for level in levels))
        query = Query.of(batch, np.zeros(batch.n_vars, dtype=bool))
        want = Enumerate()(batch, theta, query, 1.0, 1.0)
        assert_true(Propagate()(batch, theta, query, 1.0, 1.0), want, batch, 1.0)


def test_a_search_without_sweeps_judges_the_states_it_starts_from() -> None:
    rng = np.random.default_rng(1)
    batch = Batch.build([Topology((3,) * 6, tuple(grid_scopes(2, 3)))] * 4)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, np.arange(batch.n_vars) % 2 == 0)
    want = Enumerate()(batch, theta, query, 0.0, 1.0)
    got = Propagate(max_sweeps=0, merging=False)(batch, theta, query, 0.0, 1.0)
    assert np.isfinite(got.value).all()
    assert np.all(got.value <= want.value + 1e-9)
    np.testing.assert_array_equal(got.mu.unary.reshape(-1, 3).sum(axis=1)[query.output], 1.0)

"""The decomposition bound against long double: equal on forests, a bound wherever there are cycles.

Rows: engines x structures x settings x nine pairs of temperatures, on 1 to 17 instances that share a graph and its
tables or have their own.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from builders import Case, chain_scopes, grid_scopes, loop_scopes, shuffled, tree_scopes
from conformance.methods import PAIRS
from conformance.oracle import RELATIVE, Answer, answer, error_of
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import acyclic
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, mask_from_indices
from mssvm.engines import engine_of
from mssvm.engines.decomposition import ChainRun, anneal, chains_of
from mssvm.inference import Decompose
from mssvm.inference.decomposition.labelling import Labelling
from mssvm.inference.enumerate import score

Rng = np.random.Generator
FORESTS = ("nodes", "chains", "trees", "stars")
LOOPY = ("loops", "grids", "dense")
SETTINGS = ("plain", "masks", "forbidden", "strong 300", "strong 3e4", "everything")
STRENGTH = {"strong 300": 300.0, "strong 3e4": 3e4, "everything": 300.0}
COUNTS = (1, 6, 17)
# More instances than a vector has lanes say nothing new of an engine that takes one at a time.
ENGINE_COUNTS = [("native", count) for count in COUNTS] + [("reference", count) for count in COUNTS[:2]]
ONE_TEMPERATURE = (0.0, 0.5, 1.0)
SWEEPS = 6


def graph_of(rng: Rng, structure: str) -> Topology:
    """Small enough to list its assignments; factors name their ends in either order."""
    n = {"nodes": 1, "grids": 6, "dense": 4}.get(structure, int(rng.integers(3, 6)))
    if structure == "chains":
        scopes = chain_scopes(n)
    elif structure == "trees":
        scopes = tree_scopes(rng, n)
    elif structure == "stars":
        scopes = [(0, k) for k in range(1, n)]
    elif structure == "loops":
        scopes = loop_scopes(rng, n)[:n]
    elif structure == "grids":
        scopes = grid_scopes(2, 3)
    elif structure == "dense":
        scopes = [(i, j) for j in range(n) for i in range(j)]
    else:
        scopes = []
    cards = rng.integers(2, 4, n) if rng.random() < 0.5 else np.full(n, 2)
    return Topology(tuple(cards.tolist()), tuple(shuffled(rng, scopes)))


@cache
def case_of(structure: str, setting: str, count: int) -> Case:
    """Half of the instances share a graph and its tables; assignments of state 0 are possible in all but few."""
    rng = np.random.default_rng([count, *structure.encode(), *setting.encode()])
    shared = graph_of(rng, structure)
    graphs = [shared if k % 2 else graph_of(rng, structure) for k in range(count)]
    tables_of_shared = np.arange(shared.n_factors)
    ids = [
        tables_of_shared if graph is shared else (k + 1) * 100 + np.arange(graph.n_factors)
        for k, graph in enumerate(graphs)
    ]
    batch = Batch.build(graphs, ids)
    strength = STRENGTH.get(setting, 1.0)
    unary = strength * rng.normal(size=batch.n_states)
    tables = strength * rng.normal(size=batch.n_table_entries)
    allowed = np.ones(batch.n_states, dtype=bool)
    if setting in ("masks", "everything"):
        allowed = rng.random(batch.n_states) < 0.7
        allowed[batch.unary_ptr[:-1]] = True
    if setting in ("forbidden", "everything"):
        tables[rng.random(batch.n_table_entries) < 0.2] = -np.inf
        unary[rng.random(batch.n_states) < 0.1] = -np.inf
        unary[batch.unary_ptr[:-1]] = 0.0
    return Case(batch, Potentials(unary, tables), Query(rng.random(batch.n_vars) < 0.5, allowed))


@cache
def exactly(structure: str, setting: str, count: int, eps_y: float, eps_h: float) -> Answer:
    case = case_of(structure, setting, count)
    return answer(case.batch, case.theta, case.query, eps_y, eps_h)


def unserved(case: Case, eps_y: float, eps_h: float) -> Bools:
    """Instances with cycles that are refused: outputs at a temperature beside hidden variables that are maximised."""
    batch, query = case.batch, case.query
    if not eps_h == 0.0 < eps_y:
        return np.zeros(len(batch), dtype=bool)
    free = query.n_allowed(batch) > 1
    counts = [np.bincount(batch.owner[free & role], minlength=len(batch)) for role in (query.output, ~query.output)]
    return (counts[0] > 0) & (counts[1] > 0) & ~acyclic(batch, free)


def assert_bounds(upper: Floats, want: Answer) -> None:
    """No value is above its bound; both are -inf only where nothing is possible."""
    possible = np.isfinite(want.value)
    slack = want.rounding + RELATIVE * np.abs(np.where(possible, want.value, 0.0))
    assert not np.isnan(upper).any()
    assert np.all(upper[possible] >= (want.value - slack)[possible])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("structure", FORESTS)
@pytest.mark.parametrize(("engine", "count"), ENGINE_COUNTS)
def test_forests_are_exact(engine: str, structure: str, setting: str, count: int) -> None:
    case = case_of(structure, setting, count)
    plan = Decompose().plan(case.batch, engine_of(engine))
    for eps_y, eps_h in PAIRS:
        got = plan.bind(case.query, eps_y, eps_h)(case.theta)
        assert got.status.exact.all()
        want = exactly(structure, setting, count, eps_y, eps_h)
        np.testing.assert_array_less(error_of(case.batch, got, want).worst, RELATIVE)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("structure", ["nodes", "chains"])
@pytest.mark.parametrize(("engine", "count"), ENGINE_COUNTS)
def test_one_chain_through_all_variables_is_its_own_bound(
    engine: str, structure: str, setting: str, count: int
) -> None:
    """Chains that cover a chain are one chain of weight one: value and marginals are exact after any sweep."""
    case = case_of(structure, setting, count)
    batch = case.batch
    for eps in ONE_TEMPERATURE:
        run = chains_of(engine_of(engine), batch, np.arange(len(batch))).run()
        run.load(case.theta, case.query.allowed, eps, eps)
        assert_exact(case, run, run.sweep(1), exactly(structure, setting, count, eps, eps), with_marginals=eps > 0.0)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("structure", ["nodes", "chains"])
@pytest.mark.parametrize("count", COUNTS)
def test_one_chain_is_exact_at_two_temperatures(structure: str, setting: str, count: int) -> None:
    """Also where the lanes of a vector have neighbours of both roles, which they have among 17 instances."""
    case = case_of(structure, setting, count)
    batch, query = case.batch, case.query
    free_hidden = ~query.output & (query.n_allowed(batch) > 1)
    for eps_y, eps_h in PAIRS:
        if eps_y == eps_h or eps_h == 0.0:
            continue  # one temperature, or none that chains serve
        run = chains_of(engine_of("native"), batch, np.arange(len(batch)), free_hidden).run()
        run.load(case.theta, query.allowed, eps_y or 0.1, eps_h)
        value = run.sweep(1)
        if eps_y == 0.0:
            run.load(case.theta, query.allowed, eps_y, eps_h)
            value = run.sweep(0)
        assert_exact(case, run, value, exactly(structure, setting, count, eps_y, eps_h), with_marginals=eps_y > 0.0)


def assert_exact(case: Case, run: ChainRun, value: Floats, want: Answer, with_marginals: bool) -> None:
    """The value after the last sweep, and the marginals read from it, are those wanted."""
    batch = case.batch
    np.testing.assert_array_equal(np.isneginf(value), np.isneginf(want.value))
    possible = np.isfinite(value)
    off = np.abs(value[possible] - want.value[possible])
    assert np.all(off <= want.rounding[possible] + RELATIVE * np.abs(want.value[possible]))
    if not with_marginals:
        return
    mu = Marginals.zeros(batch)
    run.read(mu)
    state_owner = batch.owner[batch.state_var]
    off = np.abs(mu.unary - want.unary)[possible[state_owner]]
    assert np.all(off <= RELATIVE + want.moved[state_owner][possible[state_owner]])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("structure", [*FORESTS, *LOOPY])
@pytest.mark.parametrize(("engine", "count"), ENGINE_COUNTS)
def test_every_sweep_is_a_bound(engine: str, structure: str, setting: str, count: int) -> None:
    """At all pairs that chains serve: above the value after every sweep, and never above the sweep before.

    At eps_y = 0 < eps_h sweeps are made at a positive eps_y, and the bound is read from their messages.
    """
    case = case_of(structure, setting, count)
    batch, query = case.batch, case.query
    free_hidden = ~query.output & (query.n_allowed(batch) > 1)
    for eps_y, eps_h in PAIRS:
        if eps_h == 0.0 < eps_y or (engine == "reference" and eps_y != eps_h):
            continue  # chains do not serve these
        want = exactly(structure, setting, count, eps_y, eps_h)
        run = chains_of(engine_of(engine), batch, np.arange(len(batch)), free_hidden if eps_y != eps_h else None).run()
        moving = 0.1 if eps_y == 0.0 < eps_h else eps_y
        last = np.full(len(batch), np.inf)
        for _ in range(SWEEPS):
            run.load(case.theta, query.allowed, moving, eps_h)
            value = run.sweep(1)
            slack = 10.0 * want.rounding + RELATIVE * np.abs(np.where(np.isfinite(value), value, 0.0))
            assert np.all(value <= last + slack)
            last = value
            if moving != eps_y:
                run.load(case.theta, query.allowed, eps_y, eps_h)
                value = run.sweep(0)
            assert_bounds(value, want)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("structure", LOOPY)
@pytest.mark.parametrize(("engine", "count"), ENGINE_COUNTS)
def test_answers_lie_between_bounds(engine: str, structure: str, setting: str, count: int) -> None:
    case = case_of(structure, setting, count)
    batch, query = case.batch, case.query
    plan = Decompose(sweeps=30).plan(batch, engine_of(engine))
    for eps_y, eps_h in PAIRS:
        if engine == "reference" and eps_y != eps_h:
            continue  # it has one temperature
        refused = unserved(case, eps_y, eps_h)
        if refused.any():
            with pytest.raises(UnsupportedError, match="eps_h = 0"):
                plan.bind(query, eps_y, eps_h)
        instances = np.flatnonzero(~refused)
        if not len(instances):
            continue
        got = plan.bind(query, eps_y, eps_h, instances)(case.theta)
        want = exactly(structure, setting, count, eps_y, eps_h)
        assert_answer(case, got, want, instances, maximum=eps_y == eps_h == 0.0)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("structure", [*FORESTS, *LOOPY])
def test_annealing_finds_the_best_labelling(structure: str, setting: str, count: int) -> None:
    """From any possible labelling to the maximum, on graphs this small; impossible ones stay as they are."""
    case = case_of(structure, setting, count)
    batch, allowed = case.batch, case.query.allowed
    want = exactly(structure, setting, count, 0.0, 0.0).value
    start = np.zeros(batch.n_vars, dtype=np.int64)
    before = scores_of(case, start)
    found = []
    for threads in (1, 3):
        states = start.copy()
        every = np.arange(len(batch))
        anneal(engine_of("native", threads), batch, case.theta, allowed, every, np.full(len(batch), 400), states)
        found.append(states)
    np.testing.assert_array_equal(found[0], found[1])
    after = scores_of(case, found[0])
    assert np.all(after >= before)
    possible = np.isfinite(before)
    np.testing.assert_array_equal(found[0][~possible[batch.owner]], 0)
    np.testing.assert_allclose(after[possible], want[possible], rtol=1e-9, atol=1e-9)


def scores_of(case: Case, states: Ints) -> Floats:
    """theta of a labelling by instance; -inf where it is forbidden."""
    labelling = Labelling(engine_of("native"), case.batch, case.theta, case.query, np.arange(len(case.batch)))
    labelling.take(states)
    return labelling.score


def assert_answer(case: Case, got: Belief, want: Answer, instances: Ints, maximum: bool) -> None:
    """Bounds on both sides, equality where exact is said, and marginals that are distributions on what is allowed."""
    batch, status = case.batch, got.status
    chosen = mask_from_indices(instances, len(batch))
    possible = np.isfinite(want.value) & chosen
    slack = want.rounding + RELATIVE * np.abs(np.where(possible, want.value, 0.0))
    assert np.all(status.upper[possible] >= (want.value - slack)[possible])
    assert np.all(status.lower[possible] <= (want.value + slack)[possible])
    proven = status.exact & chosen
    off = error_of(batch, got, want)
    np.testing.assert_array_less(off.value[proven], RELATIVE)
    np.testing.assert_array_equal(np.isneginf(got.value[proven]), np.isneginf(want.value[proven]))
    answered = np.isfinite(got.value) & chosen
    mass = np.bincount(batch.state_var, weights=got.mu.unary, minlength=batch.n_vars)
    np.testing.assert_allclose(mass[answered[batch.owner]], 1.0, atol=1e-9)
    impossible_states = ~case.query.allowed | np.isneginf(case.theta.unary)
    assert not got.mu.unary[impossible_states].any()
    assert not mass[~answered[batch.owner]].any()
    if maximum:
        labelling = score(batch, case.theta, got.decode(batch))
        found = possible & np.isfinite(status.lower)
        np.testing.assert_allclose(labelling[found], status.lower[found], rtol=1e-9, atol=1e-9)

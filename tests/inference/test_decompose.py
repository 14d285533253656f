"""The decomposition bound against brute force: it holds, never rises, and its marginals are its gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from loopy import grid, random_graph, random_graphs, random_mask
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.base import Paired
from mssvm.engines.decomposition import ChainRun, chains_of
from mssvm.engines.native.chain_layout import LayoutBuilder
from mssvm.engines.native.chains import chain_cover
from mssvm.engines.reference.chains import ReferenceCover
from mssvm.inference import Decompose, Enumerate
from mssvm.inference.decomposition.consistent import ON_HOST
from mssvm.inference.enumerate import score
from mssvm.optim import Checkpoint

NATIVE, REFERENCE = engine_of("native"), engine_of("reference")


class Draw:
    """A batch with scores of some strength, masks, and forbidden entries or none."""

    def __init__(self, seed: int, roles: bool = False) -> None:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 12))
        graphs, square = random_graphs(rng, n)
        tied = [np.zeros(g.n_factors, dtype=np.int64) for g in graphs]
        self.batch = Batch.build(graphs, tied if square and rng.random() < 0.5 else None)
        batch, strength = self.batch, float(rng.choice([0.3, 1.0, 5.0, 300.0, 3e4]))
        unary, tables = (strength * rng.normal(size=size) for size in (batch.n_states, batch.n_table_entries))
        if rng.random() < 0.2:
            tables[rng.random(len(tables)) < 0.1] = -np.inf
        self.theta = Potentials(unary, tables)
        allowed = random_mask(rng, batch)
        output = rng.random(batch.n_vars) < 0.5 if roles else np.ones(batch.n_vars, dtype=bool)
        self.query = Query(output, allowed)
        self.eps = float(rng.choice([0.0, 0.25, 1.0, 3.0]))
        self.rng = rng


def rounding(values: np.ndarray) -> np.ndarray:
    return 1e-9 * (1.0 + np.abs(np.where(np.isfinite(values), values, 0.0)))


@pytest.mark.parametrize("seed", range(150))
def test_sweeps_never_raise_the_bound_and_it_holds(seed: int) -> None:
    draw = Draw(seed)
    exact = Enumerate()(draw.batch, draw.theta, draw.query, draw.eps, draw.eps).value
    run = chains_of(NATIVE, draw.batch, np.arange(len(draw.batch))).run()
    run.load(draw.theta, draw.query.allowed, draw.eps, draw.eps)
    last = np.full(len(draw.batch), np.inf)
    for _ in range(8):
        value = run.sweep(1)
        assert np.all(value <= last + rounding(value))
        assert np.all(value >= exact - rounding(exact))
        last = value


@pytest.mark.parametrize("seed", range(60))
def test_native_sweeps_are_those_of_the_reference(seed: int) -> None:
    draw = Draw(1000 + seed)
    every = np.arange(len(draw.batch))
    mu: list[Any] = []
    values: list[Any] = []
    residual: list[Any] = []
    states: list[Any] = []
    for engine in (NATIVE, REFERENCE):
        run = chains_of(engine, draw.batch, every).run()
        run.load(draw.theta, draw.query.allowed, draw.eps, draw.eps)
        values.append(run.sweep(3))
        states.append(np.zeros(draw.batch.n_vars, dtype=np.int64))
        run.decode(states[-1])
        mu.append(Marginals.zeros(draw.batch))
        if draw.eps > 0:
            residual.append(run.read(mu[-1]))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-9, atol=1e-9)
    if draw.eps > 0 and np.isfinite(values[0]).all():
        small = np.abs(np.where(np.isfinite(draw.theta.tables), draw.theta.tables, 0.0)).max() < 1e3
        if small:  # otherwise rounding of scores moves marginals
            np.testing.assert_allclose(mu[0].unary, mu[1].unary, atol=1e-7)
            np.testing.assert_allclose(mu[0].tables, mu[1].tables, atol=1e-7)
            np.testing.assert_allclose(residual[0], residual[1], atol=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_covers_are_those_of_the_reference(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed))
    native, reference = chain_cover(graph), ReferenceCover(graph)
    np.testing.assert_allclose(native.weight, reference.weight, atol=1e-12)
    np.testing.assert_allclose(native.left, reference.left, atol=1e-12)
    for number, chain in enumerate(reference.chains()):
        assert set(native.chain[chain].tolist()) == {number}
    passed = np.zeros(graph.n_vars)
    for chain in reference.chains():
        visited = [int(reference.ends[chain[0], 0]), *reference.ends[chain, 1].tolist()]
        assert visited == sorted(set(visited))
        passed[visited] += reference.weight[chain[0]]
    np.testing.assert_allclose(passed + reference.left, 1.0, atol=1e-9)


@pytest.mark.parametrize("eps", [0.25, 1.0])
def test_marginals_are_the_gradient_of_the_converged_bound(eps: float) -> None:
    rng = np.random.default_rng(3)
    batch = Batch.build([grid(3, 4, (3,) * 12, eight=False)] * 2)
    scores = [rng.normal(size=size) for size in (batch.n_states, batch.n_table_entries)]
    steps = [rng.normal(size=size) for size in (batch.n_states, batch.n_table_entries)]
    query, infer = Query.all_outputs(batch), Decompose(sweeps=5000, tolerance=1e-15)

    def at(t: float) -> np.ndarray:
        theta = Potentials(scores[0] + t * steps[0], scores[1] + t * steps[1])
        return infer(batch, theta, query, eps, eps).value

    belief = infer(batch, Potentials(*scores), query, eps, eps)
    slope = (at(1e-5) - at(-1e-5)) / 2e-5
    along_unary = np.add.reduceat(belief.mu.unary * steps[0], [0, batch.n_states // 2])
    along_tables = np.add.reduceat(belief.mu.tables * steps[1], [0, batch.n_table_entries // 2])
    np.testing.assert_allclose(along_unary + along_tables, slope, rtol=1e-5)
    assert belief.status.residual.max() < 1e-4


@pytest.mark.parametrize("seed", range(60))
def test_answers_lie_between_their_bounds(seed: int) -> None:
    draw = Draw(2000 + seed)
    exact = Enumerate()(draw.batch, draw.theta, draw.query, draw.eps, draw.eps).value
    belief = Decompose(sweeps=30)(draw.batch, draw.theta, draw.query, draw.eps, draw.eps)
    status = belief.status
    slack = rounding(exact)
    feasible = np.isfinite(exact)
    assert np.all(status.upper[feasible] >= exact[feasible] - slack[feasible])
    assert np.all(status.lower[feasible] <= exact[feasible] + slack[feasible])
    proven = status.exact & feasible
    np.testing.assert_allclose(belief.value[proven], exact[proven], rtol=1e-9, atol=1e-9)
    if draw.eps == 0:
        found = score(draw.batch, draw.theta, belief.decode(draw.batch))
        inexact = feasible & ~status.exact
        np.testing.assert_allclose(found[inexact], status.lower[inexact], rtol=1e-9, atol=1e-9)


PAIRS = [(0.25, 1.0), (1.0, 0.5), (0.1, 2.0), (0.5, 0.5), (1.0, 1.0)]


@pytest.mark.parametrize("seed", range(150))
def test_two_temperatures_hold_never_rise_and_their_marginals_are_their_gradient(seed: int) -> None:
    draw = Draw(5000 + seed, roles=True)
    batch, allowed = draw.batch, draw.query.allowed
    eps_y, eps_h = PAIRS[seed % len(PAIRS)]
    hidden = ~draw.query.output & (draw.query.n_allowed(batch) > 1)
    exact = Enumerate()(batch, draw.theta, draw.query, eps_y, eps_h).value
    run = chains_of(NATIVE, batch, np.arange(len(batch)), hidden).run()
    run.load(draw.theta, allowed, eps_y, eps_h)
    last = np.full(len(batch), np.inf)
    for _ in range(8):
        value = run.sweep(1)
        assert np.all(value <= last + 10 * rounding(value))
        assert np.all(value >= exact - 10 * rounding(exact))
        last = value
    mu = Marginals.zeros(batch)
    run.read(mu)
    possible = np.isfinite(last)
    mass = np.add.reduceat(mu.unary, batch.unary_ptr[:-1])
    np.testing.assert_allclose(mass[possible[batch.owner]], 1.0, atol=1e-9)
    strongest = max(np.abs(draw.theta.unary).max(), np.abs(draw.theta.tables).max(initial=0.0))
    if not possible.all() or strongest > 50.0:
        return  # differences of large numbers have no digits left
    steps = [draw.rng.normal(size=size) for size in (batch.n_states, batch.n_table_entries)]

    def at(t: float) -> float:
        theta = Potentials(draw.theta.unary + t * steps[0], draw.theta.tables + t * steps[1])
        run.load(theta, allowed, eps_y, eps_h)
        return float(run.sweep(0).sum())

    slope = (at(1e-5) - at(-1e-5)) / 2e-5
    assert mu.unary @ steps[0] + batch.fold(mu.tables) @ steps[1] == pytest.approx(slope, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("strength", [1.0, 3e4])
@pytest.mark.parametrize("card", [2, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_neighbours_of_both_roles_in_one_vector(tied: bool, card: int, strength: float) -> None:
    """Answers do not depend on which variables share a vector, also where its lanes have neighbours of both roles."""
    rng = np.random.default_rng([card, int(strength), tied])
    graph = grid(4, 5, (card,) * 20, eight=tied)
    n = 21
    batch = Batch.build([graph] * n, [np.zeros(graph.n_factors, dtype=np.int64)] * n if tied else None)
    theta = Potentials(strength * rng.normal(size=batch.n_states), strength * rng.normal(size=batch.n_table_entries))
    allowed = random_mask(rng, batch)
    hidden = (rng.random(batch.n_vars) < 0.6) & (Query(np.ones(batch.n_vars, dtype=bool), allowed).n_allowed(batch) > 1)
    layout = LayoutBuilder(batch, np.arange(n), hidden)
    assert np.any((layout.other_hidden > 0) & (layout.other_hidden < (1 << layout.width) - 1))

    def answer(instances: np.ndarray) -> tuple[np.ndarray, Marginals]:
        run = chains_of(NATIVE, batch, instances, hidden).run()
        run.load(theta, allowed, 0.25, 1.0)
        mu = Marginals.zeros(batch)
        value = run.sweep(4)
        run.read(mu)
        return value, mu

    together, mu = answer(np.arange(n))
    alone = [answer(np.array([b])) for b in range(n)]
    np.testing.assert_allclose(together, sum(value for value, _ in alone), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(mu.unary, sum(one.unary for _, one in alone), atol=1e-9)
    np.testing.assert_allclose(mu.tables, sum(one.tables for _, one in alone), atol=1e-9 * n)


@pytest.mark.parametrize("eps_y", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("eps_h", [0.0, 0.25, 1.0])
def test_answers_at_nine_pairs_of_temperatures(eps_y: float, eps_h: float) -> None:
    for seed in range(12):
        draw = Draw(7000 + seed, roles=True)
        exact = Enumerate()(draw.batch, draw.theta, draw.query, eps_y, eps_h).value
        infer = Decompose(sweeps=20)
        if eps_h == 0.0 < eps_y:
            with pytest.raises(UnsupportedError):
                for more in range(8):  # until an instance has both roles and a cycle
                    both = Draw(7000 + more, roles=True)
                    infer(both.batch, both.theta, both.query, eps_y, eps_h)
            return
        status = infer(draw.batch, draw.theta, draw.query, eps_y, eps_h).status
        feasible, slack = np.isfinite(exact), 10 * rounding(exact)
        assert np.all(status.upper[feasible] >= (exact - slack)[feasible])
        assert np.all(status.lower[feasible] <= (exact + slack)[feasible])


def test_forests_are_exact() -> None:
    rng = np.random.default_rng(0)
    star = Topology((3,) * 6, tuple((0, k) for k in range(1, 6)))
    batch = Batch.build([star] * 3)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    for eps in (0.0, 1.0):
        belief = Decompose()(batch, theta, Query.all_outputs(batch), eps, eps)
        exact = Enumerate()(batch, theta, Query.all_outputs(batch), eps, eps)
        assert belief.status.exact.all()
        np.testing.assert_allclose(belief.value, exact.value)
        np.testing.assert_allclose(belief.mu.unary, exact.mu.unary, atol=1e-12)


def test_threads_do_not_change_bits() -> None:
    rng = np.random.default_rng(1)
    batch = Batch.build([grid(9, 11, (2,) * 99, eight=False)] * 40)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    found = []
    for threads in (1, 2, 3):
        belief = Decompose().plan(batch, engine_of("native", threads)).bind(Query.all_outputs(batch), 1.0, 1.0)(theta)
        found.append((belief.value, belief.mu.unary, belief.mu.tables))
    for one, two in ((0, 1), (0, 2)):
        for first, second in zip(found[one], found[two], strict=True):
            np.testing.assert_array_equal(first, second)


LARGE = {
    "one picture": ((40, 24, False),),
    "eight neighbours": ((33, 21, True),),
    "wide": ((17, 60, False),),
    "pictures of two sizes": ((24, 26, False),) * 9 + ((40, 16, False),) * 3,
}


def large_case(
    sizes: tuple[tuple[int, int, bool], ...], tied: bool, strength: float
) -> tuple[Batch, Potentials, Query]:
    """Grids of several bands with masks, roles and some forbidden pairs."""
    rng = np.random.default_rng(8)
    made = {size: grid(size[0], size[1], (3,) * (size[0] * size[1]), size[2]) for size in dict.fromkeys(sizes)}
    graphs = [made[size] for size in sizes]
    names = [np.arange(graph.n_factors) % 2 for graph in graphs] if tied else None
    batch = Batch.build(graphs, names)
    tables = strength * rng.normal(size=batch.n_table_entries)
    if not tied:
        tables[rng.random(len(tables)) < 0.02] = -np.inf
    allowed = rng.random(batch.n_states) < 0.9
    allowed[batch.unary_ptr[:-1]] = True
    query = Query(rng.random(batch.n_vars) < 0.3, allowed)
    return batch, Potentials(strength * rng.normal(size=batch.n_states), tables), query


@pytest.mark.parametrize("sizes", LARGE)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.5, 0.5), (0.3, 1.0)])
def test_threads_of_one_picture_do_not_change_bits(sizes: str, tied: bool, eps_y: float, eps_h: float) -> None:
    batch, theta, query = large_case(LARGE[sizes], tied, {True: 1.0, False: 300.0}[tied])
    hidden = None if eps_y == eps_h else ~query.output & (query.n_allowed(batch) > 1)

    def answer(threads: int) -> list[np.ndarray]:
        run = chains_of(engine_of("native", threads), batch, np.arange(len(batch)), hidden).run()
        run.load(theta, query.allowed, eps_y, eps_h)
        value = run.sweep(2)
        if eps_y == 0.0:
            states = np.zeros(batch.n_vars, dtype=np.int64)
            run.decode(states)
            return [value, run.state, states]
        mu = Marginals.zeros(batch)
        residual = run.read(mu)
        return [value, run.state, mu.unary, mu.tables, residual]

    one = answer(1)
    for threads in (2, 5):
        for first, second in zip(one, answer(threads), strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("sizes", LARGE)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.5, 0.5), (0.3, 1.0)])
def test_an_answer_on_threads_is_sweeps_and_a_reading(sizes: str, tied: bool, eps_y: float, eps_h: float) -> None:
    batch, theta, query = large_case(LARGE[sizes], tied, {True: 1.0, False: 300.0}[tied])
    hidden = None if eps_y == eps_h else ~query.output & (query.n_allowed(batch) > 1)

    def loaded(threads: int) -> ChainRun:
        run = chains_of(engine_of("native", threads), batch, np.arange(len(batch)), hidden).run()
        run.load(theta, query.allowed, eps_y, eps_h)
        return run

    run = loaded(1)
    expected = [run.sweep(2), run.sweep(1)]
    mu = Marginals.zeros(batch)
    expected.append(run.read(mu) if eps_y > 0.0 else np.zeros(len(batch)))
    expected += [run.state, mu.unary, mu.tables]
    for threads in (1, 2, 5):
        run = loaded(threads)
        mu = Marginals.zeros(batch)
        found = [*run.answer(3, mu if eps_y > 0.0 else None)(), run.state, mu.unary, mu.tables]
        for first, second in zip(expected, found, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("sizes", LARGE)
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.0, 1.0), (0.3, 1.0), (1.0, 1.0)])
def test_both_sides_at_once_on_threads_are_each_side_alone(sizes: str, eps_y: float, eps_h: float) -> None:
    batch, theta, query = large_case(LARGE[sizes], True, 1.0)
    rng = np.random.default_rng(9)
    narrower = query.restrict(random_mask(rng, batch))
    other = Potentials(theta.unary + rng.normal(size=batch.n_states), theta.tables)

    alone = Decompose().plan(batch, engine_of("native", 1))
    plus = alone.bound(query, eps_y, eps_h, None, "plus")
    minus = alone.bound(narrower, eps_y, eps_h, None, "minus")
    expected = [Paired.of(plus(theta), minus(other)), Paired.of(plus(other), minus(theta))]
    for threads in (1, 2, 5):
        pair = Decompose().plan(batch, engine_of("native", threads)).pair(query, narrower, eps_y, eps_h)
        for one, two in zip(expected, [pair(theta, other), pair(other, theta)], strict=True):
            np.testing.assert_array_equal(one.plus, two.plus)
            np.testing.assert_array_equal(one.minus, two.minus)
            np.testing.assert_array_equal(one.mu.unary, two.mu.unary)
            np.testing.assert_array_equal(one.mu.tables, two.mu.tables)
            np.testing.assert_array_equal(one.plus_status.residual, two.plus_status.residual)
            np.testing.assert_array_equal(one.minus_status.residual, two.minus_status.residual)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("strength", [1.0, 300.0, 3e4])
def test_bands_are_those_of_the_reference(tied: bool, strength: float) -> None:
    batch, theta, query = large_case(((20, 18, False),), tied, strength)
    found = []
    for engine in (engine_of("native", 3), REFERENCE):
        run = chains_of(engine, batch, np.arange(len(batch))).run()
        run.load(theta, query.allowed, 0.5, 0.5)
        mu = Marginals.zeros(batch)
        found.append([run.sweep(1), run.read(mu), mu.unary, mu.tables])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-8)


def scribbled(n: int = 3, side: int = 12) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Noisy halves of which a third of the pixels is labelled."""
    rng = np.random.default_rng(5)
    X, y = [], []
    for _ in range(n):
        labels = np.zeros((side, side), dtype=np.int64)
        labels[:, int(rng.integers(4, side - 4)) :] = 1
        X.append(np.stack([labels + rng.normal(size=labels.shape), np.ones(labels.shape)], axis=-1))
        y.append(np.where(rng.random(labels.shape) < 0.33, labels, -1))
    return X, y


@pytest.mark.parametrize("member", ["HCRF", "MSSVM"])
@pytest.mark.parametrize("n_jobs", [(1, 1, 1), (1, 5, 2)])
def test_a_resumed_training_has_the_same_bits(member: str, n_jobs: tuple[int, int, int], tmp_path: Path) -> None:
    X, y = scribbled(5, 14)
    whole, cut, resumed = (
        getattr(ms, member)(ms.Grid(), missing_label=-1, random_state=0, inference="decompose", n_jobs=n)
        for n in n_jobs
    )
    whole.fit(X, y, checkpoint=Checkpoint(tmp_path / "whole", every_seconds=0.0))
    count = [0]

    def stop(row: Any, w: Any) -> bool:
        count[0] += 1
        if count[0] == 20:
            raise KeyboardInterrupt
        return False

    file = Checkpoint(tmp_path / "cut", every_seconds=0.0)
    cut.fit(X, y, checkpoint=file, callback=stop)
    resumed.fit(X, y, checkpoint=file)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert resumed.objective_ == whole.objective_


def test_auto_predicts_as_it_trained(tmp_path: Path) -> None:
    X, y = scribbled(side=20)
    model = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0).fit(X, y)
    assert "decomposition bound" in model.training_["methods"]
    model.save(tmp_path / "model.safetensors")
    again = ms.load(tmp_path / "model.safetensors")
    by_bound = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0, inference="decompose").fit(X, y)
    for fitted in (again, by_bound):
        for one, two in zip(fitted.predict_marginals(X), model.predict_marginals(X), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-9)


def test_an_impossible_instance_has_no_finite_bound() -> None:
    graph = Topology((2, 2, 2), ((0, 1), (1, 2), (2, 0)))
    batch = Batch.build([graph, graph])
    tables = np.zeros(batch.n_table_entries)
    tables[:4] = -np.inf
    for eps in (0.0, 1.0):
        status = Decompose()(batch, Potentials(np.zeros(12), tables), Query.all_outputs(batch), eps, eps).status
        assert status.lower[0] == status.upper[0] == -np.inf
        assert np.isfinite(status.lower[1])


@pytest.mark.parametrize("eps_y", [0.5, 1.0])
def test_more_sweeps_once_when_the_first_tables_come(eps_y: float) -> None:
    """Weights of zero, where training begins, need no messages; a resumed training goes on where it was."""
    rng = np.random.default_rng(3)
    batch = Batch.build([grid(5, 6, (2,) * 30, eight=False)] * 3)
    output = rng.random(batch.n_vars) < 0.5
    query = Query.of(batch, output)
    unary = rng.normal(size=batch.n_states)
    flat = Potentials(unary, np.zeros(batch.n_table_entries))
    theta = Potentials(unary, rng.normal(size=batch.n_table_entries))
    settings = Decompose(operations_limit=1.0)
    plan = settings.plan(batch, NATIVE)
    bound = plan.bound(query, eps_y, 1.0, None, "plus")
    assert bound(flat).status.sweeps.tolist() == [3, 3, 3]
    assert plan.memory() == {}
    assert bound(theta).status.sweeps.tolist() == [10, 10, 10]
    memory = {name: state.copy() for name, state in plan.memory().items()}
    value = bound(theta).value
    resumed = settings.plan(batch, NATIVE)
    for name, state in memory.items():
        resumed.recall(name, state)
    answer = resumed.bound(query, eps_y, 1.0, None, "plus")(theta)
    assert answer.status.sweeps.tolist() == [3, 3, 3]
    np.testing.assert_array_equal(answer.value, value)


class OnHost:
    """An engine of another device that leaves chains to the host."""

    def __init__(self) -> None:
        self.name = NATIVE.name

    def __getattr__(self, name: str) -> Any:
        return getattr(NATIVE, name)

    def chains(self, batch: Batch, instances: np.ndarray, hidden: np.ndarray | None) -> Any:
        plan = NATIVE.chains(batch, instances, hidden)
        run = plan.run

        def elsewhere() -> Any:
            found = run()
            found.elsewhere = True
            return found

        plan.run = elsewhere
        return plan


@pytest.mark.parametrize(("engine", "method"), [(NATIVE, "decomposition bound"), (OnHost(), ON_HOST)])
def test_status_says_where_sweeps_ran(engine: Any, method: str) -> None:
    batch = Batch.build([grid(3, 3, (2,) * 9, eight=False)])
    rng = np.random.default_rng(0)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, rng.random(9) < 0.5)
    for eps_y, eps_h in ((1.0, 1.0), (0.5, 1.0), (0.0, 0.0)):
        plan = Decompose(operations_limit=1.0).plan(batch, engine)
        assert plan.bind(query, eps_y, eps_h)(theta).status.method == (method,)


def test_diagnose_says_that_a_bound_was_swept_on_the_host() -> None:
    X = [np.random.default_rng(k).normal(size=(4, 4, 2)) for k in range(3)]
    y = [(x[..., 0] > 0).astype(int) for x in X]
    model = ms.HCRF(ms.Grid(), inference=Decompose(operations_limit=1.0), random_state=0).fit(X, y)
    assert "(decomposition bound for 3 instances)" in model.diagnose()
    model.training_["methods"] = {ON_HOST: 3}
    assert f"({ON_HOST} for 3 instances)" in model.diagnose()
    assert model._trained_by() == (3, "decompose", "normal")

"""The decomposition bound on the torch engine: kernels lane by lane on the CPU, and on a GPU where there is one,
beside the native engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from loopy import grid, random_graphs, random_mask
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.decomposition import chains_of
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.decomposition import MOST_NESTED, HostPlan, HostRun, TorchChainRun
from mssvm.inference import Decompose, Enumerate
from with_torch import fibers

NATIVE = engine_of("native")


@pytest.fixture(params=fibers.DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return fibers.kernel_device(request.param, monkeypatch)


class Draw:
    """A ragged batch with scores of some strength, masks, roles, and forbidden entries or none."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        graphs, square = random_graphs(rng, n, least=2)
        tied = [np.arange(g.n_factors, dtype=np.int64) % 2 for g in graphs]
        self.batch = Batch.build(graphs, tied if square and rng.random() < 0.6 else None)
        batch = self.batch
        self.strength = float(rng.choice([0.3, 1.0, 5.0, 300.0, 3e4]))
        unary = self.strength * rng.normal(size=batch.n_states)
        tables = self.strength * rng.normal(size=batch.n_table_entries)
        if rng.random() < 0.3:
            tables[rng.random(len(tables)) < 0.1] = -np.inf
        self.theta = Potentials(unary, tables)
        allowed = random_mask(rng, batch)
        self.query = Query(rng.random(batch.n_vars) < 0.5, allowed)
        self.rng = rng

    @property
    def hidden(self) -> np.ndarray:
        return ~self.query.output & (self.query.n_allowed(self.batch) > 1)


def answer(engine: Any, draw: Draw, eps_y: float, eps_h: float, instances: np.ndarray) -> dict[str, Any]:
    """Everything that a run says, in two calls that continue each other."""
    batch = draw.batch
    run = chains_of(engine, batch, instances, None if eps_y == eps_h else draw.hidden).run()
    if engine.name == "torch":
        assert isinstance(run, TorchChainRun)
    run.load(draw.theta, draw.query.allowed, eps_y, eps_h)
    found: dict[str, Any] = {"first": run.sweep(1)}
    mu = Marginals.zeros(batch)
    before, value, residual = run.answer(3, mu if eps_y > 0 else None)()
    found |= {"before": before, "value": value, "unary": mu.unary, "tables": mu.tables, "residual": residual}
    if eps_y == eps_h:
        found["states"] = np.zeros(batch.n_vars, dtype=np.int64)
        run.decode(found["states"])
    again = Potentials(0.5 * draw.theta.unary, draw.theta.tables)
    run.load(again, draw.query.allowed, eps_y, eps_h)
    found["again"] = run.sweep(2)
    if eps_y != eps_h:
        found["still"] = run.sweep(0)
    return found


PAIRS = [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0), (3.0, 3.0), (0.25, 1.0), (1.0, 0.5), (0.05, 1.0), (0.5, 2.0)]


@pytest.mark.parametrize("seed", range(96))
def test_the_kernels_are_the_native_engine(seed: int, device: str) -> None:
    draw = Draw(seed)
    eps_y, eps_h = PAIRS[seed % len(PAIRS)]
    n = len(draw.batch)
    instances = np.arange(n) if seed % 3 else np.flatnonzero(draw.rng.random(n) < 0.7)[::-1]
    if not len(instances):
        instances = np.arange(n)
    want = answer(NATIVE, draw, eps_y, eps_h, instances)
    found = answer(TorchEngine(device), draw, eps_y, eps_h, instances)
    finite = np.isfinite(draw.theta.tables)
    scale = np.abs(draw.theta.unary).max() + np.abs(np.where(finite, draw.theta.tables, 0.0)).max(initial=0.0)
    for name in ("first", "before", "value", "again", *(["still"] if eps_y != eps_h else [])):
        np.testing.assert_allclose(found[name], want[name], rtol=1e-9, atol=1e-9 * (1.0 + scale))
    if eps_y == eps_h:
        np.testing.assert_array_equal(found["states"], want["states"])
    possible = np.isfinite(want["value"])
    close = 1e-9 + 1e-11 * scale / max(eps_y, 0.05)
    of_states = possible[draw.batch.owner][draw.batch.state_var]
    np.testing.assert_allclose(found["unary"][of_states], want["unary"][of_states], atol=close)
    of_tables = possible[draw.batch.mu_owner]
    np.testing.assert_allclose(found["tables"][of_tables], want["tables"][of_tables], atol=close)
    np.testing.assert_allclose(found["residual"][possible], want["residual"][possible], atol=close)


@pytest.mark.parametrize("seed", range(16))
def test_many_states_share_a_message_among_lanes(seed: int, device: str) -> None:
    """More than four states; at two temperatures more than eight are left to the native engine."""
    rng = np.random.default_rng(seed)
    widest = int(rng.integers(5, 12))
    cards = rng.integers(max(1, widest - 3), widest + 1, size=6)
    cards[0] = widest
    draw = Draw(seed)
    draw.batch = Batch.build([grid(2, 3, tuple(cards.tolist()), eight=False)] * 2)
    batch = draw.batch
    draw.theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    draw.query = Query(rng.random(batch.n_vars) < 0.5, np.ones(batch.n_states, dtype=bool))
    eps_y, eps_h = PAIRS[seed % len(PAIRS)]
    if eps_y != eps_h and widest > MOST_NESTED:
        plan = chains_of(TorchEngine(device), batch, np.arange(2), draw.hidden)
        assert isinstance(plan, HostPlan)
        eps_h = eps_y
    want = answer(NATIVE, draw, eps_y, eps_h, np.arange(2))
    found = answer(TorchEngine(device), draw, eps_y, eps_h, np.arange(2))
    for name, values in found.items():
        np.testing.assert_allclose(values, want[name], rtol=1e-9, atol=1e-9)


TEMPERATURES = [(eps_y, eps_h) for eps_y in (0.0, 0.25, 1.0) for eps_h in (0.25, 1.0)]


@pytest.mark.parametrize("seed", range(24))
def test_answers_are_those_of_the_native_engine_and_hold(seed: int, device: str) -> None:
    """Whole answers: exact forests beside bounds, bounds from below, and brute force between them."""
    draw = Draw(3000 + seed)
    batch = draw.batch
    eps_y, eps_h = TEMPERATURES[seed % len(TEMPERATURES)]
    exact = Enumerate()(batch, draw.theta, draw.query, eps_y, eps_h).value
    settings = Decompose(sweeps=24)
    want = settings.plan(batch, NATIVE).bind(draw.query, eps_y, eps_h)(draw.theta)
    belief = settings.plan(batch, TorchEngine(device)).bind(draw.query, eps_y, eps_h)(draw.theta)
    feasible = np.isfinite(exact)
    slack = 1e-8 * (1.0 + np.abs(np.where(feasible, exact, 0.0)))
    status = belief.status
    assert np.all((status.upper >= exact - slack)[feasible])
    assert np.all((status.lower <= exact + slack)[feasible])
    np.testing.assert_array_equal(belief.value == -np.inf, want.value == -np.inf)
    scale = 1e-8 * draw.strength
    np.testing.assert_allclose(belief.value, want.value, rtol=1e-8, atol=scale)
    np.testing.assert_allclose(status.lower, want.status.lower, rtol=1e-6, atol=1e-6 * draw.strength)
    if draw.strength <= 5.0:  # differences of large scores have few digits left
        np.testing.assert_allclose(belief.mu.unary, want.mu.unary, atol=1e-6)
        np.testing.assert_allclose(belief.mu.tables, want.mu.tables, atol=1e-6)


def test_paired_answers_continue_from_their_messages_and_from_a_checkpoint(device: str) -> None:
    rng = np.random.default_rng(0)
    batch = Batch.build([grid(4, 5, (2,) * 20, eight=False)] * 3)
    query = Query(rng.random(batch.n_vars) < 0.4, np.ones(batch.n_states, dtype=bool))
    narrower = Query(query.output, rng.random(batch.n_states) < 0.5)
    narrower.allowed[np.flatnonzero(~np.logical_or.reduceat(narrower.allowed, batch.unary_ptr[:-1])) * 2] = True
    thetas = [Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries)) for _ in range(4)]
    plans = [Decompose().plan(batch, engine) for engine in (NATIVE, TorchEngine(device))]
    pairs = [plan.pair(query, narrower, 0.25, 1.0) for plan in plans]
    for theta in thetas[:3]:
        want, found = (pair(theta, theta) for pair in pairs)
        np.testing.assert_allclose(found.plus, want.plus, rtol=1e-9)
        np.testing.assert_allclose(found.minus, want.minus, rtol=1e-9)
        np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=1e-8)
        np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=1e-8)
    memory = plans[1].memory()
    resumed = Decompose().plan(batch, TorchEngine(device))
    for name, messages in memory.items():
        resumed.recall(name, messages.copy())
    one = pairs[1](thetas[3], thetas[3])
    two = resumed.pair(query, narrower, 0.25, 1.0)(thetas[3], thetas[3])
    np.testing.assert_array_equal(one.plus, two.plus)
    np.testing.assert_array_equal(one.mu.tables, two.mu.tables)
    other = Decompose().plan(batch, TorchEngine(device))
    other.recall(next(iter(memory)), np.zeros(3))
    with pytest.raises(InputError, match="continue on the device"):
        other.pair(query, narrower, 0.25, 1.0)(thetas[0], thetas[0])


@pytest.mark.slow
def test_a_model_is_trained_and_predicts_as_on_the_cpu(device: str, tmp_path: Path) -> None:
    """Also after it was saved. Weights differ by rounding that many iterations repeat."""
    rng = np.random.default_rng(5)
    X = []
    y = []
    for _ in range(2):
        labels = np.zeros((12, 12), dtype=np.int64)
        labels[:, int(rng.integers(4, 8)) :] = 1
        X.append(np.stack([labels + rng.normal(size=labels.shape), np.ones(labels.shape)], axis=-1))
        y.append(np.where(rng.random(labels.shape) < 0.33, labels, -1))
    inference = ms.inference.Auto(operations_limit=100.0, wide="decompose")
    settings = {"missing_label": -1, "random_state": 0, "max_iter": 6, "inference": inference}
    host = ms.MSSVM(ms.Grid(), **settings).fit(X, y)
    model = ms.MSSVM(ms.Grid(), device=device, **settings).fit(X, y)
    assert "decomposition bound" in model.status_
    np.testing.assert_allclose(model.coef_, host.coef_, atol=1e-5)
    found = model.predict(X)
    for one, two in zip(found, host.predict(X), strict=True):
        np.testing.assert_array_equal(one, two)
    model.save(tmp_path / "model")
    for one, two in zip(ms.load(tmp_path / "model").predict(X), found, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_default_training_of_wide_grids_is_by_the_bound(device: str) -> None:
    plan = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0, max_iter=1, device=device)
    rng = np.random.default_rng(1)
    X = [rng.normal(size=(20, 20, 1))]
    y = [np.where(rng.random((20, 20)) < 0.3, X[0][..., 0] > 0, -1)]
    assert "decomposition bound" in plan.fit(X, y).status_


@pytest.mark.parametrize("engine", [TorchEngine("cpu"), TorchEngine("cpu", plain=True)])
def test_on_a_cpu_without_kernels_the_native_chains_run(engine: TorchEngine) -> None:
    draw = Draw(4)
    batch = draw.batch
    run = chains_of(engine, batch, np.arange(len(batch))).run()
    assert isinstance(run, HostRun)
    want = Decompose().plan(batch, NATIVE).bind(draw.query, 1.0, 1.0)(draw.theta)
    found = Decompose().plan(batch, engine).bind(draw.query, 1.0, 1.0)(draw.theta)
    np.testing.assert_allclose(found.value, want.value, rtol=1e-12)
    np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=1e-12)


def test_two_temperatures_with_many_states_run_on_the_host(device: str) -> None:
    rng = np.random.default_rng(2)
    batch = Batch.build([grid(2, 3, (9,) * 6, eight=False)] * 2)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query(np.arange(batch.n_vars) % 2 == 0, np.ones(batch.n_states, dtype=bool))
    want = Decompose().plan(batch, NATIVE).bind(query, 0.5, 1.0)(theta)
    found = Decompose().plan(batch, TorchEngine(device)).bind(query, 0.5, 1.0)(theta)
    np.testing.assert_allclose(found.value, want.value, rtol=1e-12)
    np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=1e-12)
    np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=1e-12)
    np.testing.assert_allclose(found.status.lower, want.status.lower, rtol=1e-12)


@pytest.mark.parametrize("n_states", [8, 9])
def test_status_says_what_is_left_to_the_host(n_states: int, device: str) -> None:
    batch = Batch.build([grid(3, 3, (n_states,) * 9, eight=False)])
    rng = np.random.default_rng(0)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, np.arange(9) % 2 == 0)
    settings = Decompose(operations_limit=1.0)
    status = settings.plan(batch, TorchEngine(device)).bind(query, 0.5, 1.0)(theta).status
    left = device != "cpu" and n_states > 8
    assert status.method == ("decomposition bound on the host" if left else "decomposition bound",)


@pytest.mark.parametrize("certified", ["report", True])
def test_certified_training_reads_scores_and_marginals_of_the_device(certified: Any) -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(12, 12, 2)) for _ in range(4)]
    y = [np.where(rng.random((12, 12)) < 0.4, x[..., 0] > 0, -1) for x in X]
    inference = ms.inference.Decompose(certified=certified)
    fitted = ms.HCRF(ms.Grid(), missing_label=-1, random_state=0, engine="torch", inference=inference).fit(X, y)
    bound = fitted.training_["objective_bound"]
    assert bound > fitted.objective_ if certified == "report" else bound == fitted.objective_

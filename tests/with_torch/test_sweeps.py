"""The kernels of propagation and chains, thread by thread on the CPU, against plain PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import ExactSettings
from mssvm.engines.messages import Schedule, Temperatures
from mssvm.engines.torch import TorchEngine
from with_torch import fibers


@pytest.fixture(autouse=True)
def on_fibers(monkeypatch: pytest.MonkeyPatch) -> None:
    fibers.install(monkeypatch)


def grid(height: int, width: int, states: int) -> Topology:
    at = np.arange(height * width).reshape(height, width)
    pairs = [np.stack([a.ravel(), b.ravel()], 1) for a, b in ((at[:, :-1], at[:, 1:]), (at[:-1], at[1:]))]
    return Topology((states,) * at.size, tuple(map(tuple, np.concatenate(pairs).tolist())))


def graph(states: int) -> Topology:
    ends = np.random.default_rng(3).permuted(np.tile(np.arange(7), (12, 1)), axis=1)[:, :2]
    return Topology((states,) * 7, tuple(map(tuple, np.unique(np.sort(ends, axis=1), axis=0).tolist())))


def settled(engine: TorchEngine, batch: Batch, theta: Potentials, query: Query, t: Temperatures, s: Schedule) -> Floats:
    """Messages after many sweeps, those to states that are not allowed left out."""
    run, every = engine.messages(batch).load(theta, query, np.zeros(batch.n_states)).run(), np.arange(len(batch))
    run.start(every, None)
    assert engine.plain or run.model.kernel_for(run.unary, t, s.flooding) is not None
    run.advance(every, t, 150, s)
    assert np.all(run.residual <= s.tolerance)
    states = batch.cards[0]
    allowed = query.allowed.reshape(-1, states)[batch.scope_vars]
    messages = np.where(allowed, run.log_messages(every).reshape(-1, states), -np.inf)
    found: Floats = np.where(allowed, messages - messages.max(axis=1, keepdims=True), 0.0)
    return found


PRODUCTS = [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (0.2, 1.0)]
CASES = [
    (name, 3, own, flooding, eps)
    for name in ("grid", "graph")
    for own in (False, True)
    for flooding in (False, True)
    for eps in PRODUCTS
]
# Many states have kernels for tables of all edges of a direction, and for outputs at zero.
CASES += [("grid", 10, False, False, eps) for eps in PRODUCTS[:3]]


@pytest.mark.parametrize(("name", "states", "own", "flooding", "eps"), CASES)
def test_messages_settle_where_those_of_plain_torch_do(
    name: str, states: int, own: bool, flooding: bool, eps: tuple[float, float]
) -> None:
    topology, rng = grid(3, 4, states) if name == "grid" else graph(states), np.random.default_rng(5)
    one = np.arange(topology.n_factors) if own else (np.arange(topology.n_factors) >= 9) * (name == "grid")
    batch = Batch.of_kinds((topology,), np.zeros(2, dtype=np.int64), np.tile(one, 2).astype(np.int64))
    theta = Potentials(rng.normal(size=batch.n_states), 0.2 * rng.normal(size=batch.n_table_entries))
    query = Query(rng.random(batch.n_vars) < 0.5, rng.random(batch.n_states) < 0.9)
    query.allowed[batch.unary_ptr[:-1] + 1] = True
    t = Temperatures.one(batch.n_vars, eps[0]) if eps[0] == eps[1] else Temperatures(query.output, *eps)
    schedule = Schedule(0.3, flooding, tolerance=1e-9)
    engines = TorchEngine(plain=True), TorchEngine()
    want, found = (settled(engine, batch, theta, query, t, schedule) for engine in engines)
    np.testing.assert_allclose(found, want, atol=1e-7)


@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("states", [2, 5, 20])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_chains(states: int, eps: float, precision: str) -> None:
    rng = np.random.default_rng(states)
    graphs = tuple(Topology((states,) * n, tuple((t, t + 1) for t in range(n - 1))) for n in (2, 5, 9))
    of = np.array([0, 1, 2, 2, 0, 1])
    batch = Batch.of_kinds(graphs, of, np.zeros(sum(graphs[k].n_factors for k in of), dtype=np.int64))
    theta = Potentials(3.0 * rng.normal(size=batch.n_states), 3.0 * rng.normal(size=batch.n_table_entries))
    query, close = Query.all_outputs(batch), 1e-9 if precision == "double" else 1e-4
    engines = TorchEngine(plain=True), TorchEngine(precision=precision)
    plain, bound = (engine.exact(batch, ExactSettings()).bind(query, eps, eps) for engine in engines)
    assert {route.method for route in bound.routes} == {"chain kernel"}
    want, found = plain(theta), bound(theta)
    np.testing.assert_allclose(found.value, want.value, rtol=close, atol=close)
    np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=close)
    np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=10 * close)

"""The decomposition bound on the torch engine: kernels lane by lane on the CPU, and on a GPU where there is one,
beside the native engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.decomposition import chains_of
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.decomposition import TorchChainRun
from with_torch import fibers

NATIVE = engine_of("native")


@pytest.fixture(params=fibers.DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return fibers.kernel_device(request.param, monkeypatch)


def grid(height: int, width: int, cards: tuple[int, ...], eight: bool) -> Topology:
    at = np.arange(height * width).reshape(height, width)
    ends = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    if eight:
        ends += [(at[:-1, :-1], at[1:, 1:]), (at[:-1, 1:], at[1:, :-1])]
    scopes = [tuple(pair) for one, two in ends for pair in zip(one.ravel().tolist(), two.ravel().tolist(), strict=True)]
    return Topology(cards, tuple(scopes))


def random_graph(rng: np.random.Generator) -> Topology:
    """Grids with four or eight neighbours, and other graphs whose factors name their ends in either order."""
    kind = rng.integers(3)
    if kind < 2:
        height, width = rng.integers(2, 4, size=2).tolist()
        n = height * width
        same = rng.random() < 0.7
        cards = (int(rng.integers(2, 4)),) * n if same else tuple(rng.integers(1, 4, size=n).tolist())
        return grid(height, width, cards, eight=bool(kind == 1))
    n = int(rng.integers(2, 8))
    pairs = [(i, j) for i in range(n) for j in range(i)]
    chosen = rng.choice(len(pairs), size=min(len(pairs), n + int(rng.integers(0, 4))), replace=False)
    scopes = [pairs[k] if rng.random() < 0.5 else pairs[k][::-1] for k in chosen]
    return Topology(tuple(rng.integers(1, 4, size=n).tolist()), tuple(scopes))


class Draw:
    """A ragged batch with scores of some strength, masks, roles, and forbidden entries or none."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        graphs = [random_graph(rng)] * n if rng.random() < 0.5 else [random_graph(rng) for _ in range(n)]
        tied = [np.arange(g.n_factors, dtype=np.int64) % 2 for g in graphs]
        square = all(len(set(g.cards)) == 1 and g.cards[0] == graphs[0].cards[0] for g in graphs)
        self.batch = Batch.build(graphs, tied if square and rng.random() < 0.6 else None)
        batch = self.batch
        self.strength = float(rng.choice([0.3, 1.0, 5.0, 300.0, 3e4]))
        unary = self.strength * rng.normal(size=batch.n_states)
        tables = self.strength * rng.normal(size=batch.n_table_entries)
        if rng.random() < 0.3:
            tables[rng.random(len(tables)) < 0.1] = -np.inf
        self.theta = Potentials(unary, tables)
        allowed = rng.random(batch.n_states) < rng.choice([0.8, 1.0])
        allowed[batch.unary_ptr[:-1]] |= np.add.reduceat(allowed, batch.unary_ptr[:-1], dtype=np.int64) == 0
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


@pytest.mark.parametrize("seed", range(160))
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

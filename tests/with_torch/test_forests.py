"""The kernels of forests, lane by lane on the CPU, against the reference engine: any roles, masks and temperatures."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import ExactSettings
from mssvm.engines.reference import ReferenceEngine
from mssvm.engines.torch import TorchEngine
from with_torch import fibers

TEMPERATURES = (0.0, 1e-3, 0.03, 0.5, 1.0, 5.0)


@pytest.fixture(autouse=True)
def on_fibers(monkeypatch: pytest.MonkeyPatch) -> None:
    fibers.install(monkeypatch)


def random_forests(rng: np.random.Generator, most: int) -> Batch:
    """Paths, and trees with many neighbours; some variables have fewer states than others."""
    graphs = []
    for _ in range(rng.integers(1, 4)):
        n, reach = int(rng.integers(1, 8)), int(rng.choice([1, 3, 8]))
        cards = rng.integers(1, most + 1, n) if rng.random() < 0.5 else np.full(n, most)
        pairs = [(int(rng.integers(max(0, v - reach), v)), v) for v in range(1, n) if rng.random() < 0.9]
        turned = tuple(pair[:: int(rng.choice([1, -1]))] for pair in pairs)
        graphs.append(Topology(tuple(cards.tolist()), turned))
    of = rng.integers(0, len(graphs), rng.integers(1, 7))
    return Batch.of_kinds(tuple(graphs), of, np.arange(sum(graphs[g].n_factors for g in of)))


def random_scores(rng: np.random.Generator, batch: Batch, scale: float) -> Potentials:
    theta = [scale * rng.normal(size=n) for n in (batch.n_states, batch.n_table_entries)]
    for part in theta:
        if rng.random() < 0.3:
            part[rng.random(len(part)) < 0.15] = -np.inf
    return Potentials(*theta)


def random_query(rng: np.random.Generator, batch: Batch) -> Query:
    """Outputs and hidden variables in any order, four in ten with some states forbidden."""
    allowed = np.ones(batch.n_states, dtype=bool)
    for a, b in zip(batch.unary_ptr[:-1], batch.unary_ptr[1:], strict=True):
        if rng.random() < 0.4:
            allowed[a:b] = rng.random(b - a) < 0.5
            allowed[a + rng.integers(b - a)] = True
    return Query(rng.random(batch.n_vars) < rng.choice([0.2, 0.5, 0.8]), allowed)


def assert_same(found: Belief, want: Belief, tolerance: float) -> None:
    assert np.array_equal(np.isneginf(found.value), np.isneginf(want.value))
    finite = np.isfinite(want.value)
    np.testing.assert_allclose(found.value[finite], want.value[finite], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=tolerance)
    np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=tolerance)


@pytest.mark.parametrize("seed", range(60))
def test_kernels_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_forests(rng, int(rng.choice([2, 3, 5])))
    scale, (eps_y, eps_h) = float(rng.choice([1.0, 1.0, 30.0, 300.0])), rng.choice(TEMPERATURES, 2).tolist()
    theta, query = random_scores(rng, batch, scale), random_query(rng, batch)
    want = ReferenceEngine().exact(batch, ExactSettings()).bind(query, eps_y, eps_h)(theta)
    narrow = scale < 30.0 and min(eps_y, eps_h) >= 0.03
    for precision, tolerance in [("double", 1e-9)] + [("single", 1e-3)] * narrow:
        bound = TorchEngine(precision=precision).exact(batch, ExactSettings()).bind(query, eps_y, eps_h)
        assert_same(bound(theta), want, tolerance)


def test_chains_with_roles_of_their_own_are_one_launch() -> None:
    """Labels that are missing here and there make no groups, and none of them goes to general elimination."""
    rng, n = np.random.default_rng(0), 9
    batch = Batch.of_kinds(
        (Topology((3,) * n, tuple((t, t + 1) for t in range(n - 1))),),
        np.zeros(40, dtype=np.int64),
        np.zeros(40 * (n - 1), dtype=np.int64),
    )
    query = Query(rng.random(batch.n_vars) < 0.5, np.ones(batch.n_states, dtype=bool))
    bound = TorchEngine().exact(batch, ExactSettings()).bind(query, 0.0, 1.0)
    assert not bound.groups and sum(route.method == "nested tree kernel" for route in bound.routes) == 1
    theta = random_scores(rng, batch, 1.0)
    want = ReferenceEngine().exact(batch, ExactSettings()).bind(query, 0.0, 1.0)(theta)
    assert_same(bound(theta), want, 1e-10)


def test_a_hidden_star_is_left_to_elimination() -> None:
    """A hidden variable between three free outputs would have to carry two; with one of them given it need not."""
    batch = Batch.of_kinds((Topology((2,) * 4, ((0, 1), (0, 2), (0, 3))),), np.zeros(1, dtype=np.int64), np.arange(3))
    rng = np.random.default_rng(1)
    theta, query = random_scores(rng, batch, 1.0), Query(np.array([False, True, True, True]), np.ones(8, dtype=bool))
    fewer = query.clamp(batch, np.array([2]), np.array([1]))
    for given, method in ((query, "elimination"), (fewer, "nested tree kernel")):
        found = TorchEngine().exact(batch, ExactSettings()).bind(given, 0.0, 1.0)(theta)
        assert found.status.method == (method,)
        assert_same(found, ReferenceEngine().exact(batch, ExactSettings()).bind(given, 0.0, 1.0)(theta), 1e-10)

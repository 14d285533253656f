"""Values and marginals against arithmetic of forty digits: any range, any temperature, long chains, hubs."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpmath import exp, log, mp, mpf

from builders import chain_scopes, tree_scopes
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.exact import Exact

ULP = float(np.finfo(float).eps)
RANGES = [1e-150, 1e-8, 1.0, 1e3, 1e8, 1e20, 1e150]
TEMPERATURES = [*product((1e-8, 1.0, 1e8), repeat=2), (1e-3, 1e3), (1e3, 1e-3)]


@pytest.fixture(autouse=True)
def forty_digits() -> Any:
    with mp.workdps(40):
        yield


def ask(graph: Topology, unary: np.ndarray, tables: np.ndarray, output: np.ndarray, eps: tuple[float, float]) -> Belief:
    batch = Batch.build([graph], [[0] * graph.n_factors] if len(tables) < graph.n_factors * 2 else None)
    return Exact()(batch, Potentials(unary, tables), Query.of(batch, output), *eps)


def power_sum(values: list[Any], eps: float) -> Any:
    """eps log sum exp(v / eps), the maximum at zero."""
    top = max(values)
    return top if eps == 0 else top + mpf(eps) * log(sum(exp((v - top) / mpf(eps)) for v in values))


def by_enumeration(
    graph: Topology, unary: np.ndarray, tables: np.ndarray, output: np.ndarray, eps: tuple[float, float]
) -> tuple[Any, list[Any]]:
    """The value, and the marginals of single variables, of a small model whose tables are all of its own."""
    at_unary = np.concatenate([[0], np.cumsum(graph.cards)])
    sizes = [int(np.prod(graph.table_shape(f))) for f in range(graph.n_factors)]
    at_table = np.concatenate([[0], np.cumsum(sizes)])
    scores: dict[tuple[int, ...], Any] = {}
    for z in product(*map(range, graph.cards)):
        score = sum(mpf(float(unary[at_unary[v] + s])) for v, s in enumerate(z))
        for f, scope in enumerate(graph.scopes):
            entry = int(np.ravel_multi_index([z[v] for v in scope], graph.table_shape(f)))
            score += mpf(float(tables[at_table[f] + entry]))
        scores[z] = score
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for z in scores:
        groups.setdefault(tuple(s for s, out in zip(z, output, strict=True) if out), []).append(z)
    inner = {y: power_sum([scores[z] for z in members], eps[1]) for y, members in groups.items()}
    value = power_sum(list(inner.values()), eps[0])
    mu = [mpf(0)] * len(unary)
    for y, members in groups.items():
        outer = exp((inner[y] - value) / mpf(eps[0]))
        for z in members:
            weight = outer * exp((scores[z] - inner[y]) / mpf(eps[1]))
            for v, s in enumerate(z):
                mu[at_unary[v] + s] += weight
    return value, mu


@pytest.mark.parametrize("size", RANGES)
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_small_models_of_any_range_at_any_temperatures(kind: str, size: float) -> None:
    rng = np.random.default_rng(int(np.log10(size)) + 200)
    n = 5
    scopes = chain_scopes(n) if kind == "chain" else tree_scopes(rng, n)
    graph = Topology((2, 3, 2, 2, 3), tuple(scopes))
    unary = size * rng.uniform(-1, 1, sum(graph.cards))
    tables = size * rng.uniform(-1, 1, sum(int(np.prod(graph.table_shape(f))) for f in range(graph.n_factors)))
    hidden_leaves = np.array([sum(v in scope for scope in scopes) > 1 for v in range(n)])
    for output, eps in product((np.ones(n, dtype=bool), hidden_leaves), TEMPERATURES):
        found = ask(graph, unary, tables, output, eps)
        value, mu = by_enumeration(graph, unary, tables, output, eps)
        scale = 2 * n * size + 10 * max(eps)
        assert abs(float(mpf(float(found.value[0])) - value)) <= 32 * ULP * scale, (output, eps)
        # A rounding of the scores moves a marginal by as much as it is of the temperature.
        moved = 64 * ULP * (1 + scale / min(eps))
        if moved < 0.1:
            np.testing.assert_allclose(found.mu.unary, np.array(mu, dtype=float), rtol=0, atol=moved)
        assert np.all(np.isfinite(found.mu.unary)) and abs(found.mu.unary.sum() - n) <= 1e-9


@pytest.mark.parametrize("eps", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("size", [1.0, 1e150])
def test_chains_of_a_hundred_thousand_sites(size: float, eps: float) -> None:
    """One table, and site scores out of a few, so that the reference takes few exponentials."""
    rng = np.random.default_rng(3)
    n = 100_000
    few = size * rng.uniform(-1, 1, 12)
    unary, table = few[rng.integers(0, 12, (n, 2))], size * rng.uniform(-1, 1, (2, 2))
    graph = Topology((2,) * n, tuple(chain_scopes(n)))
    found = ask(graph, unary.ravel(), table.ravel(), np.ones(n, dtype=bool), (eps, eps))

    @cache
    def power(score: float) -> Any:
        return exp(mpf(score) / mpf(eps))

    (aa, ab), (ba, bb) = ([power(float(v)) for v in row] for row in table)
    a, b = (power(float(v)) for v in unary[0])
    for u, v in unary[1:].tolist():
        a, b = (a * aa + b * ba) * power(u), (a * ab + b * bb) * power(v)
    value = mpf(eps) * log(a + b)
    assert abs(float(mpf(float(found.value[0])) - value)) <= 0.5 * n * ULP * (size + eps) * n  # of n sums, each rounded
    np.testing.assert_allclose(found.mu.unary.reshape(n, 2).sum(axis=1), 1.0, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e150])
@pytest.mark.parametrize("eps", [(1e-8, 1e-8), (1.0, 1.0), (1e-3, 1.0), (1e8, 1e8)])
def test_hubs_of_five_thousand_neighbours(size: float, eps: tuple[float, float]) -> None:
    """Hidden leaves around one output: the leaves are summed out at eps_h, the hub at eps_y."""
    rng = np.random.default_rng(4)
    leaves = 5_000
    few = size * rng.uniform(-1, 1, 10)
    unary, table = few[rng.integers(0, 10, 2 * (leaves + 1))], size * rng.uniform(-1, 1, (2, 2))
    graph = Topology((2,) * (leaves + 1), tuple((0, i) for i in range(1, leaves + 1)))
    output = np.arange(leaves + 1) == 0
    found = ask(graph, unary, table.ravel(), output, eps)

    @cache
    def message(a: float, b: float, hub: int) -> Any:
        return power_sum([mpf(v) + mpf(float(t)) for v, t in zip((a, b), table[hub], strict=True)], eps[1])

    hub = [mpf(float(u)) for u in unary[:2]]
    for a, b in unary[2:].reshape(-1, 2).tolist():
        hub = [score + message(a, b, k) for k, score in enumerate(hub)]
    value = power_sum(hub, eps[0])
    scale = (size + max(eps)) * leaves
    assert abs(float(mpf(float(found.value[0])) - value)) <= 0.5 * leaves * ULP * scale
    weights = [float(exp((score - value) / mpf(eps[0]))) for score in hub]
    moved = leaves * ULP * scale / min(eps)
    if moved < 0.1:
        np.testing.assert_allclose(found.mu.unary[:2], weights, rtol=0, atol=moved)

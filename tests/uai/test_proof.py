"""Proofs part by part: bounds of single states and proven optima against brute force, zeros included."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

import numpy as np
import pytest

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact
from mssvm.uai.anytime import Anytime
from mssvm.uai.proof import Proof, best_relaxation, state_bounds
from mssvm.uai.search import AnytimeSearch
from uai.test_anytime import grid
from uai.test_support import constrained


@pytest.mark.parametrize("zeros", [0.0, 0.25])
@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0])
def test_no_state_is_bounded_below_its_best_outputs(zeros: float, eps_h: float) -> None:
    for seed in range(6):
        batch, theta, query = constrained(seed, zeros)
        instance = OneInstance.of(batch, 0, theta, query)
        relaxation = best_relaxation(instance, 4, eps_h, np.random.default_rng(seed), np.inf)
        value = relaxation.improve(seed)
        bounds = np.full(len(instance.unary), np.inf)
        state_bounds(relaxation.sweep, instance.topology.unary_ptr, bounds)
        for v in instance.free[1]:
            own = bounds[batch.unary_ptr[v] : batch.unary_ptr[v + 1]]
            assert own.max() <= value + 1e-9
            for j, bound in enumerate(own):
                assert bound >= _best(batch, theta, query, v, j, eps_h) - 1e-9
                if relaxation.exact:
                    assert bound == pytest.approx(_best(batch, theta, query, v, j, eps_h))


def _best(batch: Batch, theta: Potentials, query: Query, v: int, state: int, eps_h: float) -> float:
    if not query.allowed[batch.unary_ptr[v] + state]:
        return -np.inf
    return float(Enumerate()(batch, theta, query.clamp(batch, [v], [state]), 0.0, eps_h).value[0])


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.15])
def test_a_proof_alone_finds_and_proves_the_optimum(zeros: float, known: bool) -> None:
    """Whether the incumbent is the optimum from the start, or nothing is known; the bound is never below it."""
    rng = np.random.default_rng(3)
    for _ in range(8):
        batch, theta, query = grid(rng, 3, 4, zeros)
        best = Enumerate()(batch, theta, query, 0.0, 1.0)
        uppers: list[float] = []
        settings = Anytime(ibound=8, report=lambda at, uppers=uppers: uppers.append(at.upper))
        search = AnytimeSearch(settings, OneInstance.of(batch, 0, theta, query), 1.0)
        if known and best.value[0] > -np.inf:
            search.offer(best.decode(batch))
        search.proof_entries = 4
        proof = Proof(search, Relaxation(search.instance, search.orders[0], 4, 0.0, 1.0))
        proof.run(monotonic() + 60.0)
        assert proof.done
        assert search.upper == pytest.approx(best.value[0])
        assert all(upper >= best.value[0] - 1e-9 for upper in uppers)
        if best.value[0] > -np.inf:
            assert search.proven and search.lower == pytest.approx(best.value[0])


def test_a_proof_stops_in_the_middle_and_goes_on() -> None:
    batch, theta, query = grid(np.random.default_rng(11), 4, 5)
    best = Exact()(batch, theta, query, 0.0, 1.0).value[0]
    search = AnytimeSearch(Anytime(ibound=8), OneInstance.of(batch, 0, theta, query), 1.0)
    search.proof_entries = 4
    turns = 0
    proof = Proof(search, Relaxation(search.instance, search.orders[0], 4, 0.0, 1.0))
    while not proof.done:
        proof.run(monotonic())
        turns += 1
        assert search.upper >= best - 1e-9
    assert turns > 1 and search.lower == pytest.approx(best) and search.proven


def test_a_proof_whose_memory_is_short_goes_on_depth_first() -> None:
    batch, theta, query = grid(np.random.default_rng(11), 4, 5)
    best = Exact()(batch, theta, query, 0.0, 1.0).value[0]
    search = AnytimeSearch(Anytime(ibound=8), OneInstance.of(batch, 0, theta, query), 1.0)
    search.proof_entries = 4
    search.memory_limit = 1
    proof = Proof(search, Relaxation(search.instance, search.orders[0], 4, 0.0, 1.0))
    proof.run(monotonic() + 60.0)
    assert proof.done and search.proven and search.lower == pytest.approx(best)


def test_minimising_again_goes_on_from_what_there_is_and_stops_at_enough() -> None:
    batch, theta, query = grid(np.random.default_rng(2), 4, 5)
    instance = OneInstance.of(batch, 0, theta, query)
    relaxation = Relaxation(instance, instance.order(False), 4, 0.0, 1.0)
    first = relaxation.improve(20)
    parameters = relaxation.parameters
    assert relaxation.improve(20, warm_start=True) <= first
    relaxation.parameters = parameters
    assert relaxation.run() == pytest.approx(first, abs=1e-12)
    assert relaxation.improve(20, enough=first, warm_start=True) == pytest.approx(first, abs=1e-12)
    fewer = replace(instance, unary=np.where(np.arange(len(instance.unary)) == 0, -np.inf, instance.unary))
    relaxation.instance = fewer
    relaxation.load(fewer.states)
    assert relaxation.run() <= first + 1e-12

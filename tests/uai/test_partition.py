"""log Z and marginals with bounds from both sides: against brute force, on networks with zeros, at every moment."""

from __future__ import annotations

from time import monotonic

import numpy as np
import pytest

from mssvm.core.arrays import Floats
from mssvm.core.errors import InfeasibleError
from mssvm.core.potentials import Query
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import Enumerate
from mssvm.uai import answers, partition
from mssvm.uai.answers import Answer, AnswerLimits, answer
from mssvm.uai.model import UaiModel, UaiTask
from mssvm.uai.quick_bound import quick_lower_bound
from mssvm.uai.reduction import possible, reduced

ROUNDING = 1e-9


def deterministic_network(rng: np.random.Generator, n: int = 9) -> UaiModel:
    """A random Bayesian network, the child named last; two tables of three have a single state in most rows."""
    cards = tuple(rng.integers(2, 4, size=n).tolist())
    scopes = []
    tables = []
    for v in range(n):
        parents = rng.permutation(v)[: rng.integers(0, 4)].tolist()
        rows = int(np.prod([cards[u] for u in parents], dtype=int))
        table = rng.random((rows, cards[v])) + 1e-3
        if rng.random() < 0.67:
            chosen = rng.integers(cards[v], size=rows)
            table = np.where(np.arange(cards[v]) == chosen[:, None], table, 0.0)
        scopes.append((*parents, v))
        tables.append((table / table.sum(axis=1, keepdims=True)).ravel())
    return UaiModel(cards, tuple(scopes), tuple(tables), "BAYES")


def field(rng: np.random.Generator, n: int = 9) -> UaiModel:
    """A random Markov field with zeros, tables of one to three variables, strong ones among them."""
    cards = tuple(rng.integers(2, 4, size=n).tolist())
    scopes = [tuple(rng.permutation(n)[: rng.integers(1, 4)].tolist()) for _ in range(n + 3)]
    tables = []
    for scope in scopes:
        size = int(np.prod([cards[u] for u in scope]))
        strength = rng.choice([1.0, 5.0, 40.0])
        tables.append(np.exp(strength * rng.normal(size=size)) * (rng.random(size) > 0.15))
    return UaiModel(cards, tuple(scopes), tuple(tables))


def task_of(seed: int) -> UaiTask:
    rng = np.random.default_rng(seed)
    model = (deterministic_network, field)[seed % 2](rng)
    observed = rng.permutation(model.n_vars)[: rng.integers(0, 3)].tolist()
    evidence = {v: int(rng.integers(model.cards[v])) for v in observed}
    return UaiTask.of(("PR", "MAR")[seed // 2 % 2], model, evidence)


def truth(task: UaiTask) -> tuple[float, Floats]:
    problem = task.problem
    found = Enumerate()(problem.batch, problem.theta, task.query, 1.0, 1.0)
    return float(found.value[0]) + problem.constant, found.mu.unary


def check(found: Answer, value: float, mu: Floats) -> None:
    """Bounds hold, and the estimates are between them."""
    assert found.lower <= value + ROUNDING * (1.0 + abs(value))
    assert not found.upper < value - ROUNDING * (1.0 + abs(value))
    assert found.lower - ROUNDING <= found.value
    if found.marginal_bounds is None:
        return
    assert found.marginals is not None
    estimate = np.concatenate(found.marginals)
    least, most = (np.concatenate(bound) for bound in found.marginal_bounds)
    assert (least <= mu + ROUNDING).all() and (most >= mu - ROUNDING).all()
    assert (least <= estimate + ROUNDING).all() and (estimate <= most + ROUNDING).all()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is eliminated at once, and parts are tiny."""
    monkeypatch.setattr(answers, "SECONDS_PER_SUMMED_ENTRY", 1e12)
    monkeypatch.setattr(partition, "ROOTS", ((2, 5, 1.0), (4, 5, 1.0)))
    monkeypatch.setattr(partition.Partition, "_budget", lambda self, free: 16.0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("first", range(0, 400, 20))
def test_bounds_hold_at_every_moment_and_meet_at_brute_force(first: int) -> None:
    conditioned = 0
    for seed in range(first, first + 20):
        task = task_of(seed)
        value, mu = truth(task)
        told: list[Answer] = []
        limits = AnswerLimits(monotonic() + 120.0, 1 << 30, seed, keep=told.append)
        if value == -np.inf:
            with pytest.raises(InfeasibleError, match="no assignment"):
                answer(task, "auto", limits)
            continue
        found = answer(task, "auto", limits)
        assert found.exact
        conditioned += found.method == "conditioning"
        assert found.value == pytest.approx(value, abs=1e-9, rel=1e-9)
        if task.name == "MAR":
            assert found.marginals is not None
            assert np.concatenate(found.marginals) == pytest.approx(mu, abs=1e-8)
        for progress in [*told, found]:
            check(progress, value, mu)
        rounding = ROUNDING * (1.0 + abs(value))
        assert (np.diff([p.lower for p in told]) >= -rounding).all()
        assert (np.diff([min(p.upper, 1e300) for p in told]) <= rounding).all()
    assert conditioned > 5  # the others had nothing left to eliminate


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", [2, 3, 7, 11])
def test_at_the_deadline_the_bounds_are_those_of_the_parts_summed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs out after some parts, whatever the machine."""
    task = task_of(seed)
    value, mu = truth(task)
    ticks = iter(range(1 << 30))
    monkeypatch.setattr(partition, "monotonic", lambda: float(next(ticks)))
    for ticks_left in (1, 10, 20, 40, 80):
        start = float(next(ticks))
        found = answer(task, "auto", AnswerLimits(start + ticks_left, 1 << 30, 0))
        check(found, value, mu)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_models_without_impossible_states_have_the_same_sums(first: int) -> None:
    for seed in range(first, first + 20):
        task = task_of(seed)
        value, mu = truth(task)
        small, states = possible(task)
        if value == -np.inf:
            continue
        for smaller in (small, reduced(small, leaves=False)):
            found, found_mu = truth(smaller)
            assert found == pytest.approx(value, abs=1e-9, rel=1e-12)
            expanded = np.zeros(len(mu))
            expanded[states] = found_mu
            assert expanded == pytest.approx(mu, abs=1e-9)
        assert truth(reduced(small))[0] == pytest.approx(value, abs=1e-9, rel=1e-12)


def test_the_quick_lower_bound_holds_and_is_the_value_of_a_network_without_evidence() -> None:
    bounded = 0
    for seed in range(200):
        task = task_of(seed)
        problem = task.problem
        lower = quick_lower_bound(OneInstance.of(problem.batch, 0, problem.theta, task.query)) + problem.constant
        value, _ = truth(task)
        assert lower == -np.inf or lower <= value + ROUNDING * (1.0 + abs(value))
        bounded += lower > -np.inf
    assert bounded > 20
    model = deterministic_network(np.random.default_rng(0))
    problem = UaiTask.of("PR", model, {}).problem
    query = Query.of(problem.batch, np.zeros(problem.batch.n_vars, dtype=bool))
    lower = quick_lower_bound(OneInstance.of(problem.batch, 0, problem.theta, query)) + problem.constant
    assert lower == pytest.approx(0.0, abs=1e-9)


def test_conditioning_is_exact_in_a_fraction_of_the_memory_of_elimination() -> None:
    """A torus of 6 by 6 in less than a tenth of the memory that its elimination takes."""
    rng = np.random.default_rng(0)
    at = np.arange(36).reshape(6, 6)
    pairs = [*zip(at.ravel(), np.roll(at, 1, 0).ravel(), strict=True)]
    pairs += zip(at.ravel(), np.roll(at, 1, 1).ravel(), strict=True)
    tables = tuple(np.exp(rng.normal(size=4)) for _ in pairs)
    model = UaiModel((2,) * 36, tuple((int(a), int(b)) for a, b in pairs), tables)
    task = UaiTask.of("MAR", model, {})
    whole = answer(task, "exact", AnswerLimits(monotonic() + 60.0, 1 << 30, 0))
    found = answer(task, "auto", AnswerLimits(monotonic() + 60.0, 1 << 16, 0))
    assert whole.method == "elimination" and found.method == "conditioning"
    assert found.exact and found.value == pytest.approx(whole.value, abs=1e-8)
    assert whole.marginals is not None and found.marginals is not None
    assert np.concatenate(found.marginals) == pytest.approx(np.concatenate(whole.marginals), abs=1e-8)

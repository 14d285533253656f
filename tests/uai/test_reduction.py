"""Smaller models of the same value, and the bound that is known for nothing, against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mssvm.core.potentials import Query
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import Enumerate
from mssvm.uai.answers import METHODS, AnswerLimits, answer
from mssvm.uai.model import UaiModel, UaiTask
from mssvm.uai.quick_bound import quick_bound
from mssvm.uai.reduction import reduced, summed


def network(rng: np.random.Generator, n: int = 9, zeros: float = 0.3) -> UaiModel:
    """A random Bayesian network; the child is named last, and some tables are nearly deterministic."""
    cards = tuple(rng.integers(2, 4, size=n).tolist())
    scopes = []
    tables = []
    for v in range(n):
        parents = rng.permutation(v)[: rng.integers(0, 3)].tolist()
        rows = int(np.prod([cards[u] for u in parents], dtype=int))
        table = rng.random((rows, cards[v])) * (rng.random((rows, cards[v])) >= zeros) + 1e-12
        scopes.append((*parents, v))
        tables.append((table / table.sum(axis=1, keepdims=True)).ravel())
    return UaiModel(cards, tuple(scopes), tuple(tables), "BAYES")


def field(rng: np.random.Generator, n: int = 8) -> UaiModel:
    """A random Markov field with zeros, tables of one to three variables."""
    cards = tuple(rng.integers(2, 4, size=n).tolist())
    scopes = [tuple(rng.permutation(n)[: rng.integers(1, 4)].tolist()) for _ in range(n)]
    tables = []
    for scope in scopes:
        size = int(np.prod([cards[u] for u in scope]))
        tables.append(rng.random(size) * (rng.random(size) > 0.1))
    return UaiModel(cards, tuple(scopes), tuple(tables))


def task_of(rng: np.random.Generator, model: UaiModel, name: str = "MMAP") -> UaiTask:
    order = rng.permutation(model.n_vars).tolist()
    evidence = {v: int(rng.integers(model.cards[v])) for v in order[:2]}
    return UaiTask.of(name, model, evidence, sorted(order[2:5]))


def value(task: UaiTask) -> float:
    problem = task.problem
    found = Enumerate()(problem.batch, problem.theta, task.query, task.eps_y, task.eps_h)
    return float(found.value[0]) + problem.constant


@pytest.mark.parametrize("make", [network, field])
def test_the_smaller_model_has_the_same_value_for_all_outputs(make: object) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        task = task_of(rng, make(rng))  # type: ignore[operator]
        small = reduced(task)
        assert value(small) == pytest.approx(value(task), abs=1e-9)
        states = np.array([int(rng.integers(card)) for card in task.problem.batch.topology(0).cards])
        outputs = np.array(task.asked)
        clamped = [replace(t, query=t.query.clamp(t.problem.batch, outputs, states[outputs])) for t in (task, small)]
        if all(t.query.n_allowed(t.problem.batch).all() for t in clamped):
            assert value(clamped[1]) == pytest.approx(value(clamped[0]), abs=1e-9)


@pytest.mark.parametrize("make", [network, field])
@pytest.mark.parametrize("entries", [0, 1, 4, 12, 10_000])
def test_small_sums_keep_the_value(make: object, entries: int) -> None:
    """With all hidden variables summed, joint MAP is marginal MAP."""
    for seed in range(15):
        rng = np.random.default_rng(seed)
        task = task_of(rng, make(rng))  # type: ignore[operator]
        small = summed(task, entries)
        topology = small.problem.batch.topology(0)
        largest = task.problem.batch.topology(0).table_sizes.max()
        assert topology.table_sizes.max(initial=1) <= max(entries, largest)
        assert value(small) == pytest.approx(value(task), abs=1e-9)
        if entries == 10_000:
            assert small.query.output[topology.scope_flat].all()
            assert value(replace(small, eps_h=0.0)) == pytest.approx(value(task), abs=1e-9)


def test_barren_variables_vanish() -> None:
    """x0 -> x1 -> x2 and x1 -> x3: with x0 asked and nothing seen, only the table of x0 is left."""
    rng = np.random.default_rng(0)
    p = rng.random((3, 2, 2))
    p /= p.sum(axis=2, keepdims=True)
    prior = np.array([0.3, 0.7])
    model = UaiModel((2, 2, 2, 2), ((0,), (0, 1), (1, 2), (1, 3)), (prior, *(t.ravel() for t in p)), "BAYES")
    small = reduced(UaiTask.of("MMAP", model, {}, [0]))
    assert small.problem.batch.topology(0).n_factors == 0
    assert value(small) == pytest.approx(np.log(0.7))


def test_the_quick_bound_is_one_for_networks_and_holds_for_all_models() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        model = network(rng) if seed % 2 else field(rng)
        for name in ("MMAP", "MAP", "PR"):
            task = task_of(rng, model, name)
            instance = OneInstance.of(task.problem.batch, 0, task.problem.theta, task.query)
            bound = quick_bound(instance, task.eps_h) + task.problem.constant
            assert bound >= value(task) - 1e-9
            if model.kind == "BAYES":
                assert bound <= 1e-9, "a product of conditional probabilities is at most one"


def test_the_quick_bound_of_a_network_without_outputs_or_evidence_is_its_value() -> None:
    task = UaiTask.of("PR", network(np.random.default_rng(5)), {})
    instance = OneInstance.of(task.problem.batch, 0, task.problem.theta, task.query)
    assert quick_bound(instance, 1.0) + task.problem.constant == pytest.approx(0.0, abs=1e-9)


def test_masks_count_in_the_quick_bound() -> None:
    model = UaiModel((2, 2), ((0, 1),), (np.array([0.9, 0.1, 0.4, 0.6]),))
    problem = model.problem()
    query = Query(np.array([True, False]), np.array([True, True, False, True]))
    bound = quick_bound(OneInstance.of(problem.batch, 0, problem.theta, query), 1.0)
    assert bound == pytest.approx(np.log(0.6))


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("name", ["MMAP", "MAP", "PR", "MAR"])
def test_no_answer_prints_a_bound_above_one_or_below_its_value(method: str, name: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(3):
        task = task_of(rng, network(rng, 12), name)
        found = answer(task, method, AnswerLimits(np.inf, 1 << 30, 0))
        assert found.upper <= 1e-9
        assert found.upper >= value(task) - 1e-9
        if name != "MAR":
            assert found.value <= found.upper + 1e-9

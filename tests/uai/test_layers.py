"""Layered models: layers, bounds and proofs against brute force, and plans against a program of their own."""

from __future__ import annotations

from itertools import product
from time import monotonic

import numpy as np
import pytest

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import Enumerate
from mssvm.uai import layered_search, layers
from mssvm.uai.anytime import Anytime
from mssvm.uai.incumbent import SearchProgress
from mssvm.uai.layered_search import LayeredSearch
from mssvm.uai.layers import Layers, layers_of
from mssvm.uai.search import AnytimeSearch
from uai.test_anytime import grid

PLENTY = 1 << 32

Case = tuple[Batch, Potentials, Query]


def plan_model(rng: np.random.Generator, steps: int, zeros: float = 0.4) -> Case:
    """Two facts and a hidden accident a step, one or two decisions that a constraint ties, evidence at the end."""
    cards = [2, 3]
    facts = (0, 1)
    scopes: list[tuple[int, ...]] = [(0, 1)]
    outputs: list[int] = []
    for _ in range(steps):
        first = len(cards)
        decisions = [first] if rng.random() < 0.5 else [first, first + 1]
        cards += [int(rng.integers(2, 4)) for _ in decisions] + [2, 2, 3]
        accident, *after = range(len(cards) - 3, len(cards))
        scopes += [(facts[0], decisions[0], accident, after[0]), (*facts, decisions[-1], after[1])]
        if len(decisions) == 2:
            scopes.append((decisions[0], decisions[1]))
        facts = (after[0], after[1])
        outputs += decisions
    batch = Batch.build([Topology(tuple(cards), tuple(scopes))])
    theta = Potentials(rng.normal(size=batch.n_states), 2.0 * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < zeros] = -np.inf
    output = np.zeros(len(cards), dtype=bool)
    output[outputs] = True
    query = Query.of(batch, output)
    return batch, theta, query.clamp(batch, np.array([facts[0]]), np.array([1]))


def search_of(case: Case, eps_h: float) -> AnytimeSearch:
    batch, theta, query = case
    return AnytimeSearch(Anytime(ibound=4), OneInstance.of(batch, 0, theta, query), eps_h)


def found_layers(search: AnytimeSearch) -> Layers:
    found = layers_of(search.instance, search.eps_h, np.inf, PLENTY)
    assert found is not None
    return found


def brute_force(case: Case, eps_h: float) -> float:
    batch, theta, query = case
    return float(Enumerate(1 << 22)(batch, theta, query, 0.0, eps_h).value[0])


@pytest.mark.parametrize("eps_h", [0.5, 1.0])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_the_optimum_is_found_and_proven(zeros: float, eps_h: float) -> None:
    solved = 0
    for seed in range(12):
        case = plan_model(np.random.default_rng(seed), 2, zeros)
        best = brute_force(case, eps_h)
        search = search_of(case, eps_h)
        if search.upper == -np.inf:
            assert best == -np.inf
            continue
        model = layers_of(search.instance, eps_h, np.inf, PLENTY)
        if model is None:  # arc consistency left no decision, or one layer with decisions
            continue
        LayeredSearch(search, model).run(monotonic() + 60.0)
        if best == -np.inf:
            assert search.lower == best
            continue
        assert search.proven
        assert search.lower == pytest.approx(best, abs=1e-9) and search.upper == pytest.approx(best, abs=1e-7)
        evaluated = search.evaluator.instance.states.copy()
        evaluated[search.instance.output] = search.best[search.instance.output]
        assert search.evaluate(evaluated)[0] == pytest.approx(best, abs=1e-9)
        solved += 1
    assert solved >= 6


@pytest.mark.parametrize("eps_h", [0.5, 1.0])
def test_products_of_layers_are_the_values_of_outputs(eps_h: float) -> None:
    """Every plan of a layered model, of which those that are missing are impossible."""
    case = plan_model(np.random.default_rng(3), 2, 0.2)
    batch, theta, query = case
    search = search_of(case, eps_h)
    model = found_layers(search)
    outputs = np.flatnonzero(query.output)
    seen = set()
    for picked in product(*(range(len(layer.choices)) for layer in model.layers)):
        belief = np.ones((1, 1))
        states = search.instance.states.copy()
        for layer, choice in zip(model.layers, picked, strict=True):
            belief = (belief @ layer.arcs).reshape(len(layer.choices), -1)[choice : choice + 1]
            states[list(layer.outputs)] = layer.choices[choice]
        seen.add(tuple(states[outputs]))
        clamped = query.clamp(batch, outputs, states[outputs])
        value = float(Enumerate()(batch, theta, clamped, 0.0, eps_h).value[0])
        with np.errstate(divide="ignore"):
            assert model.constant + eps_h * np.log(belief.sum()) == pytest.approx(value, abs=1e-9)
    possible = 0
    for every in product(*(range(batch.topology(0).cards[v]) for v in outputs)):
        clamped = query.clamp(batch, outputs, np.array(every))
        value = float(Enumerate()(batch, theta, clamped, 0.0, eps_h).value[0])
        possible += value > -np.inf
        assert value == -np.inf or every in seen
    assert possible > 10


def test_a_search_whose_memory_is_short_ends_without_a_proof() -> None:
    case, tables = moves(np.random.default_rng(1), 6, 5, 3)
    search = search_of(case, 1.0)
    search.memory_limit = 100
    layered = LayeredSearch(search, found_layers(search))
    layered.width = 1
    layered.run(monotonic() + 60.0)
    assert layered.done and not search.proven
    assert search.lower <= best_of_all_plans(tables, 6) <= search.upper


def moves(rng: np.random.Generator, steps: int, places: int, actions: int) -> tuple[Case, Floats]:
    """A walker between places, who is moved by actions with uncertain effects and must be at place 0 at the end."""
    tables = rng.dirichlet(np.full(places, 0.3), size=(places, actions))
    tables[tables < 0.05] = 0.0
    cards = (places, *((actions, places) * steps))
    scopes = tuple((2 * t, 2 * t + 1, 2 * t + 2) for t in range(steps))
    batch = Batch.build([Topology(cards, scopes)])
    with np.errstate(divide="ignore"):
        theta = Potentials(np.zeros(batch.n_states), np.tile(np.log(tables).ravel(), steps))
    output = np.arange(len(cards)) % 2 == 1
    query = Query.of(batch, output).clamp(batch, np.array([0, len(cards) - 1]), np.array([places - 1, 0]))
    return (batch, theta, query), tables


def best_of_all_plans(tables: Floats, steps: int) -> float:
    """Products of matrices for every plan of ``moves``."""
    beliefs = np.eye(len(tables))[-1:]
    for _ in range(steps):
        beliefs = np.einsum("nx,xay->nay", beliefs, tables).reshape(-1, len(tables))
    return float(np.log(beliefs[:, 0].max()))


def test_narrow_rounds_are_bounded_from_above_and_wider_ones_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true optimum is between both bounds after every layer, whichever nodes a round leaves out."""
    monkeypatch.setattr(layered_search, "WIDTH", 1)
    monkeypatch.setattr(layered_search, "GROWTH", 2)
    monkeypatch.setattr(layered_search, "ENTRIES", 8)
    widths = []
    for seed in range(8):
        case, tables = moves(np.random.default_rng(seed), 6, 5, 3)
        best = best_of_all_plans(tables, 6)
        told: list[SearchProgress] = []
        search = search_of(case, 1.0)
        search.incumbent.report = told.append
        layered = LayeredSearch(search, found_layers(search))
        while not search.proven:
            layered.run(monotonic())
            assert search.lower <= best + 1e-9 and search.upper >= best - 1e-9
        widths.append(layered.width)
        assert search.lower == pytest.approx(best, abs=1e-9)
        assert np.all(np.diff([p.lower for p in told[1:]]) >= 0.0)
        assert np.all(np.diff([p.upper for p in told[1:]]) <= 0.0)
    assert max(widths) > 4


def test_long_plans_equal_those_of_a_program_of_their_own() -> None:
    """All 3^7 plans by products of matrices; the search through its public face proves the best of them."""
    for seed in range(3):
        (batch, theta, query), tables = moves(np.random.default_rng(seed), 7, 6, 3)
        belief = Anytime(time_limit=60.0)(batch, theta, query, 0.0, 1.0)
        assert belief.value[0] == pytest.approx(best_of_all_plans(tables, 7), abs=1e-9)
        assert belief.status.exact[0]
        reached = np.eye(6)[5]
        for action in belief.decode(batch)[1::2]:
            reached = reached @ tables[:, action]
        assert np.log(reached[0]) == pytest.approx(belief.value[0], abs=1e-9)


def test_choices_that_lead_to_the_same_belief_are_one_node() -> None:
    """Actions that do the same, or nothing: the nodes of a layer are far fewer than the plans."""
    tables = np.zeros((3, 3, 3))
    tables[:, 0] = np.eye(3)
    tables[:, 1] = tables[:, 2] = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    (batch, theta, query), _ = moves(np.random.default_rng(0), 6, 3, 3)
    with np.errstate(divide="ignore"):
        theta.tables[:] = np.tile(np.log(tables).ravel(), 6)
    search = search_of((batch, theta, query), 1.0)
    layered = LayeredSearch(search, found_layers(search))
    for t in range(1, 6):
        layered._step()
        assert len(layered.steps[-1].beliefs) <= t + 1


def test_values_below_what_floats_hold_are_not_excluded() -> None:
    """Nodes beneath ``LEAST`` are not followed: without an incumbent nothing is proven, and the bound stays above."""
    steps = 8
    tables = np.zeros((2, 2, 2))
    tables[0, :, 0] = [1e-30, 1e-31]
    tables[1, :, 1] = 1.0
    tables[0, :, 1] = 0.5
    cards = (2, *((2, 2) * steps))
    batch = Batch.build([Topology(cards, tuple((2 * t, 2 * t + 1, 2 * t + 2) for t in range(steps)))])
    with np.errstate(divide="ignore"):
        theta = Potentials(np.zeros(batch.n_states), np.tile(np.log(tables).ravel(), steps))
    query = Query.of(batch, np.arange(len(cards)) % 2 == 1)
    # The one possible end is in state 0; arc consistency sees that only once it is evidence.
    ending = query.clamp(batch, np.array([0]), np.array([0]))
    theta.unary[-2:] = [0.0, -2000.0]
    search = search_of((batch, theta, ending), 1.0)
    layered = LayeredSearch(search, found_layers(search))
    layered.run(monotonic() + 60.0)
    assert layered.done and not search.proven
    best = steps * np.log(1e-30)
    assert search.upper >= best


def test_what_has_no_layers_or_too_large_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = search_of(plan_model(np.random.default_rng(1), 3, 0.1), 1.0)
    assert layers_of(plan.instance, 1.0, np.inf, PLENTY) is not None
    assert layers_of(plan.instance, 0.0, np.inf, PLENTY) is None
    assert layers_of(plan.instance, 1.0, monotonic() - 1.0, PLENTY) is None
    batch, theta, _ = grid(np.random.default_rng(0), 5, 5)
    dense = search_of((batch, theta, Query.of(batch, np.arange(25) % 2 == 1)), 1.0)
    assert layers_of(dense.instance, 1.0, np.inf, PLENTY) is None
    assert layers_of(plan.instance, 1.0, np.inf, 1000) is None
    monkeypatch.setattr(layers, "MOST_ROWS", 8)
    assert layers_of(plan.instance, 1.0, np.inf, PLENTY) is None
    monkeypatch.undo()
    monkeypatch.setattr(layers, "LEAST_WEIGHT", 0.1)
    assert layers_of(plan.instance, 1.0, np.inf, PLENTY) is None

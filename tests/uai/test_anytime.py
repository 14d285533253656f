"""Anytime marginal MAP: right on small models, monotone, interruptible, within its time and table limits."""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np
import pytest

from mssvm.core.arrays import Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.elimination import compile_elimination
from mssvm.engines.program import Program
from mssvm.inference.bounds import relaxation
from mssvm.inference.bounds.conditioning import ConditionedElimination
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact
from mssvm.inference.propagation import Propagate
from mssvm.uai.anytime import Anytime, within_seconds
from mssvm.uai.branching import BranchAndBound
from mssvm.uai.incumbent import SearchProgress, Valued
from mssvm.uai.local_search import CONDITIONING, LocalSearch
from mssvm.uai.search import HELPFUL, AnytimeSearch, Start, Starts, Suggestion


def grid(rng: np.random.Generator, rows: int, columns: int, zeros: float = 0.0) -> tuple[Batch, Potentials, Query]:
    at = np.arange(rows * columns).reshape(rows, columns)
    across = zip(at[:, :-1].ravel(), at[:, 1:].ravel(), strict=True)
    down = zip(at[:-1].ravel(), at[1:].ravel(), strict=True)
    batch = Batch.build([Topology((2,) * at.size, (*across, *down))])
    theta = Potentials(rng.normal(size=batch.n_states), 1.5 * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < zeros] = -np.inf
    return batch, theta, Query.of(batch, rng.random(batch.n_vars) < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [0.0, 0.12])
@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0])
def test_proves_the_brute_force_optimum_with_tiny_tables(zeros: float, eps_h: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        batch, theta, query = grid(rng, 3, 4, zeros)
        value = Enumerate()(batch, theta, query, 0.0, eps_h).value
        belief = Anytime(time_limit=20.0, ibound=4)(batch, theta, query, 0.0, eps_h)
        assert belief.value == pytest.approx(value, abs=1e-8)
        if value[0] > -np.inf:
            assert belief.status.exact[0]
            assert belief.status.upper[0] == pytest.approx(value[0], abs=1e-6)
            outputs = np.flatnonzero(query.output)
            clamped = query.clamp(batch, outputs, belief.decode(batch)[outputs])
            assert Enumerate()(batch, theta, clamped, 0.0, eps_h).value == pytest.approx(belief.value)


def test_branch_and_bound_alone_is_exact() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        batch, theta, query = grid(rng, 3, 3)
        value = Enumerate()(batch, theta, query, 0.0, 1.0).value[0]
        search = AnytimeSearch(Anytime(ibound=3), OneInstance.of(batch, 0, theta, query), 1.0)
        search.entries = 8
        relaxed = Relaxation(search.instance, search.orders[0], 4, 0.0, 1.0)
        relaxed.run()
        search.evaluator = Relaxation(
            search.evaluator.instance, search.evaluator.instance.order(False), 1 << 20, 0.0, 1.0
        )
        tree = BranchAndBound(search, relaxed)
        tree.run(monotonic() + 60.0)
        assert search.proven
        assert search.lower == pytest.approx(value)


@pytest.mark.slow
def test_incumbent_and_bound_only_improve_and_enclose_the_optimum() -> None:
    batch, theta, query = grid(np.random.default_rng(2), 6, 6)
    value = Exact()(batch, theta, query, 0.0, 1.0).value[0]
    told: list[SearchProgress] = []
    found = Anytime(time_limit=4.0, ibound=6, report=told.append).search(batch, 0, theta, query, 1.0)
    lower = [p.lower for p in told]
    upper = [p.upper for p in told]
    assert len(told) > 2
    assert np.all(np.diff(lower[1:]) >= 0) and np.all(np.diff(upper) <= 0)
    assert all(lo <= value + 1e-7 for lo in lower) and all(up >= value - 1e-7 for up in upper)
    assert found.value == lower[-1] and found.upper >= value - 1e-7
    assert found.value == pytest.approx(value, abs=1e-6)
    assert found.states[~query.output].tolist() == [-1] * int((~query.output).sum())


@pytest.mark.slow
def test_time_limit_is_kept_on_a_model_that_cannot_be_solved() -> None:
    batch, theta, query = grid(np.random.default_rng(3), 24, 24)
    search = Anytime(time_limit=1.0, ibound=8)
    search.search(*_one(batch, theta, query))
    began = monotonic()
    found = search.search(*_one(batch, theta, query))
    assert found.seconds < 4.0 and monotonic() - began < 10.0
    assert np.isfinite(found.upper) and found.value <= found.upper


def _one(batch: Batch, theta: Potentials, query: Query) -> tuple[Batch, int, Potentials, Query, float]:
    return batch, 0, theta, query, 1.0


def sizes_of_tables(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The largest table of every elimination that relaxations compile from now on."""
    largest: list[int] = []

    def watched(*args: Any) -> Program:
        program = compile_elimination(*args)
        largest.append(int((program.message_size * program.card).max(initial=1)))
        return program

    monkeypatch.setattr(relaxation, "compile_elimination", watched)
    return largest


@pytest.mark.slow
def test_no_table_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = sizes_of_tables(monkeypatch)
    for seed in (8, 11):
        batch, theta, query = grid(np.random.default_rng(seed), 9, 9)
        found = Anytime(time_limit=3.0, ibound=7).search(batch, 0, theta, query, 1.0)
        assert found.evaluated
        assert found.value == pytest.approx(Exact()(batch, theta, query, 0.0, 1.0).value[0])
    assert len(largest) > 10 and 1 << 4 < max(largest) <= 1 << 7


@pytest.mark.slow
def test_bounds_of_the_whole_use_larger_tables_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = sizes_of_tables(monkeypatch)
    batch, theta, query = grid(np.random.default_rng(12), 7, 7, zeros=0.02)
    value = Exact()(batch, theta, query, 0.0, 1.0).value[0]
    uppers = []
    for widest in (0, 4):
        search = AnytimeSearch(Anytime(1e6, ibound=4, widest=widest), OneInstance.of(batch, 0, theta, query), 1.0)
        narrow = search._relaxation(4)
        largest.clear()
        search._widened(narrow)
        assert max(largest) == 1 << 4 + widest
        assert search.upper >= value - 1e-7
        uppers.append(search.upper)
    assert uppers[1] < uppers[0]


@pytest.mark.parametrize(
    ("incumbent", "exact", "gap", "asked"),
    [
        ("best", True, 50.0, []),
        ("best", False, 50.0, []),
        ("same", True, 1.0, []),
        ("same", True, 50.0, ["closer", "closer too"]),
        ("same", False, 1.0, []),
        ("same", False, 50.0, ["coarse", "coarser"]),
        ("none", True, 1.0, []),
        ("none", True, 50.0, ["closer", "closer too"]),
        ("none", False, 1.0, ["coarse", "coarser"]),
        ("none", False, 50.0, ["coarse", "coarser", "again"]),
    ],
)
def test_which_starts_follow_the_first(incumbent: str, exact: bool, gap: float, asked: list[str]) -> None:
    """None if the first is far below the incumbent, and some only where bounds stay far apart."""
    batch, theta, query = grid(np.random.default_rng(5), 3, 4)
    best = Enumerate()(batch, theta, query, 0.0, 1.0).decode(batch)
    worst = Enumerate()(batch, Potentials(-theta.unary, -theta.tables), query, 0.0, 1.0).decode(batch)
    calls = []

    def start(name: str, states: Ints, exact: bool) -> Start:
        def suggest(seconds: float) -> Suggestion:
            calls.append(name)
            return Suggestion(states, exact)

        return suggest

    starts = Starts(
        first=(start("first", worst, exact),),
        closer=(start("closer", worst, True), start("closer too", best, False)),
        coarser=(start("coarse", worst, False), start("coarser", best, False)),
        again=(start("again", best, False),),
    )
    search = AnytimeSearch(Anytime(1e6), OneInstance.of(batch, 0, theta, query), 1.0, starts)
    if incumbent == "same":
        search.offer(worst)
    if incumbent == "best":
        search.offer(best)
        assert search.evaluate(worst)[0] < search.lower - HELPFUL
    search._offer_starts()
    search.incumbent.upper = search.lower + gap
    search.offer_later()
    assert calls == ["first", *asked]
    assert search.offer(best) is (incumbent != "best" and not asked)


def test_once_a_coarser_start_is_exact_none_is_tried_again() -> None:
    batch, theta, query = grid(np.random.default_rng(5), 3, 4)
    best = Enumerate()(batch, theta, query, 0.0, 1.0).decode(batch)
    calls = []

    def again(seconds: float) -> Suggestion:
        calls.append(seconds)
        return Suggestion(best, False)

    for exact in (True, False):
        starts = Starts(
            first=(lambda _: Suggestion(best, False),),
            coarser=(lambda _, exact=exact: Suggestion(best, exact),),
            again=(again,),
        )
        search = AnytimeSearch(Anytime(1e6), OneInstance.of(batch, 0, theta, query), 1.0, starts)
        search._offer_starts()
        search.incumbent.upper = search.lower + 50.0
        search.offer_later()
        assert len(calls) == (0 if exact else 1)


def test_interruption_returns_the_best_so_far() -> None:
    batch, theta, query = grid(np.random.default_rng(4), 8, 8)

    def interrupt(progress: SearchProgress) -> None:
        if progress.lower > -np.inf:
            raise KeyboardInterrupt

    found = Anytime(time_limit=60.0, ibound=3, report=interrupt).search(batch, 0, theta, query, 1.0)
    assert found.interrupted and not found.proven
    outputs = np.flatnonzero(query.output)
    clamped = query.clamp(batch, outputs, found.states[outputs])
    exact = Exact()(batch, theta, clamped, 0.0, 1.0).value[0]
    assert found.value == pytest.approx(exact) if found.evaluated else found.value >= exact - 1e-9
    assert found.seconds < 30.0


def test_starts_are_judged() -> None:
    batch, theta, _ = grid(np.random.default_rng(5), 3, 4)
    query = Query.of(batch, np.arange(12) % 2 == 1)  # no cut without outputs: the search has no layers
    best = Enumerate()(batch, theta, query, 0.0, 1.0)
    calls = []

    def start(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        calls.append((batch.n_vars, eps_y, eps_h))
        return best

    found = Anytime(ibound=3, starts=(start,)).search(batch, 0, theta, query, 1.0)
    assert calls[-1] == (12, 0.0, 1.0)
    assert found.value == pytest.approx(best.value[0])


def test_propagation_as_a_start_makes_the_sweeps_there_is_time_for() -> None:
    batch, theta, query = grid(np.random.default_rng(9), 6, 6)
    start = Propagate("normal", merging=False, max_sweeps=50, tolerance=0.0, starts=("annealed",))
    call = (batch, theta, query, 0.0, 1.0)
    hurried = within_seconds(start, 0.0, call)
    unhurried = within_seconds(start, 1e9, call)
    assert hurried.status.sweeps[0] < unhurried.status.sweeps[0]


def test_a_deadline_counts_whatever_the_time_limit() -> None:
    batch, theta, query = grid(np.random.default_rng(10), 12, 12)
    began = monotonic()
    found = Anytime(time_limit=60.0, ibound=4, deadline=began).search(batch, 0, theta, query, 1.0)
    assert found.seconds < 30.0 and not found.proven


def test_blocks_escape_infeasible_outputs() -> None:
    """A cycle of copy constraints: only two of 2^12 output assignments are possible."""
    n = 12
    batch = Batch.build([Topology((2,) * n, tuple((i, (i + 1) % n) for i in range(n)))])
    theta = Potentials(np.linspace(0.0, 1.0, batch.n_states), np.tile([0.0, -np.inf, -np.inf, 0.0], n))
    query = Query.of(batch, np.arange(n) % 3 != 0)
    search = AnytimeSearch(Anytime(ibound=3), OneInstance.of(batch, 0, theta, query), 1.0)
    search.incumbent.valued = Valued(np.arange(n) % 2, -np.inf, False)
    LocalSearch(search).run(monotonic() + 5.0, max_kicks=50)
    assert search.lower == pytest.approx(Enumerate()(batch, theta, query, 0.0, 1.0).value[0])


def test_outputs_can_be_held_along_the_evaluators_order() -> None:
    """Whatever the plain order needs: where outputs can be evaluated, conditioning has tables of that size."""
    rng = np.random.default_rng(12)
    for _ in range(20):
        batch, theta, query = grid(rng, 5, 5)
        search = AnytimeSearch(Anytime(ibound=4), OneInstance.of(batch, 0, theta, query), 1.0)
        assert sorted(search.evaluation_order) == list(range(25))
        if not search.evaluator.exact:
            continue
        order = search.evaluation_order
        conditioned = ConditionedElimination(search.instance, order, search.entries, search.outputs, 0.0, 1.0)
        assert conditioned.fits
        held = conditioned.hold(rng)
        assert held is not None
        states = np.zeros(25, dtype=np.int64)
        value, best = conditioned.maximise(held, states)
        outputs = np.flatnonzero(query.output)
        clamped = query.clamp(batch, outputs, best[outputs])
        assert value == pytest.approx(Exact()(batch, theta, clamped, 0.0, 1.0).value[0])


@pytest.mark.slow
def test_a_search_that_can_hold_nothing_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = grid(np.random.default_rng(13), 3, 4)
    monkeypatch.setattr(ConditionedElimination, "hold", lambda *_: None)
    search = AnytimeSearch(Anytime(ibound=12), OneInstance.of(batch, 0, theta, query), 1.0)
    search.offer(np.zeros(12, dtype=np.int64))
    best = float(Enumerate()(batch, theta, query, 0.0, 1.0).value[0])
    local_search = LocalSearch(search)
    local_search.run(monotonic() + 2.0, max_kicks=3)
    assert not local_search.conditionable
    assert local_search.seconds[CONDITIONING] == 0.0
    assert search.lower == pytest.approx(best)


def test_several_instances_with_shared_tables_and_evidence() -> None:
    rng = np.random.default_rng(6)
    graph = Topology((2, 3, 2), ((0, 1), (1, 2)))
    batch = Batch.build([graph, graph], [[0, 1], [0, 1]])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, np.array([True, False, True, False, True, True]))
    query = query.clamp(batch, np.array([4]), np.array([2]))
    expected = Enumerate()(batch, theta, query, 0.0, 1.0)
    belief = Anytime(time_limit=5.0)(batch, theta, query, 0.0, 1.0)
    assert np.allclose(belief.value, expected.value)
    assert np.allclose(belief.mu.unary, expected.mu.unary)
    assert np.allclose(belief.mu.tables, expected.mu.tables)


def test_refusals() -> None:
    batch, theta, query = grid(np.random.default_rng(7), 2, 2)
    with pytest.raises(UnsupportedError):
        Anytime()(batch, theta, query, 1.0, 1.0)
    with pytest.raises(InputError):
        Anytime(time_limit=-1.0)

"""Searches with several threads: the same proofs as with one, monotone bounds, no error lost and no thread left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from threading import Thread, current_thread, enumerate
from time import monotonic, sleep

import numpy as np
import pytest

from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.threads import QUICK_SWITCHES, SWITCH_SECONDS
from mssvm.core.topology import Batch, Topology
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact
from mssvm.uai import portfolio
from mssvm.uai.anytime import Anytime
from mssvm.uai.incumbent import Incumbent, SearchProgress, Valued
from mssvm.uai.local_search import LocalSearch
from mssvm.uai.proof import MiniBuckets, OpenPart, OpenParts, Proof
from mssvm.uai.search import AnytimeSearch
from mssvm.uai.support import Support
from uai.test_anytime import grid

HELPER = "mssvm-search-"


def helpers() -> list[Thread]:
    """The helpers at work."""
    return [thread for thread in enumerate() if thread.name.startswith(HELPER)]


def wait_for_helpers() -> None:
    """What a helper is at when a search ends it finishes by itself, within a few seconds."""
    deadline = monotonic() + 10.0
    while helpers() and monotonic() < deadline:
        sleep(0.01)
    assert not helpers()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("zeros", [0.0, 0.12])
def test_any_number_of_threads_proves_the_brute_force_optimum(threads: int, zeros: float) -> None:
    rng = np.random.default_rng(21)
    for _ in range(4):
        batch, theta, query = grid(rng, 3, 4, zeros)
        value = Enumerate()(batch, theta, query, 0.0, 1.0).value
        belief = Anytime(time_limit=20.0, ibound=3, threads=threads)(batch, theta, query, 0.0, 1.0)
        assert belief.value == pytest.approx(value, abs=1e-8)
        if value[0] == -np.inf:
            continue
        assert belief.status.exact[0]
        assert belief.status.upper[0] == pytest.approx(value[0], abs=1e-6)
        outputs = np.flatnonzero(query.output)
        clamped = query.clamp(batch, outputs, belief.decode(batch)[outputs])
        assert Enumerate()(batch, theta, clamped, 0.0, 1.0).value == pytest.approx(belief.value)
    wait_for_helpers()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 4])
def test_bounds_that_threads_share_only_improve_and_enclose_the_optimum(threads: int) -> None:
    batch, theta, query = grid(np.random.default_rng(2), 7, 7)
    value = Exact()(batch, theta, query, 0.0, 1.0).value[0]
    told: list[SearchProgress] = []
    names = set()

    def report(progress: SearchProgress) -> None:
        told.append(progress)
        names.add(current_thread().name)

    found = Anytime(time_limit=6.0, ibound=4, report=report, threads=threads).search(batch, 0, theta, query, 1.0)
    lower = [p.lower for p in told]
    upper = [p.upper for p in told]
    assert any(name.startswith(HELPER) for name in names) and current_thread().name in names
    assert np.all(np.diff(lower[1:]) >= 0) and np.all(np.diff(upper) <= 0)
    assert np.all(np.diff([p.seconds for p in told]) >= 0)
    assert all(lo <= value + 1e-7 for lo in lower) and all(up >= value - 1e-7 for up in upper)
    assert found.value == lower[-1] and found.upper >= found.value
    assert found.value == pytest.approx(value, abs=1e-6)
    wait_for_helpers()
    assert len(told) == len(lower)


@pytest.mark.slow
def test_threads_in_turn_prove_the_optimum() -> None:
    """Every part is split by another thread, in memory of its own; the bound counts the parts that others have."""
    turns = 0
    for seed in range(4):
        batch, theta, query = grid(np.random.default_rng(seed), 6, 6)
        best = Exact()(batch, theta, query, 0.0, 1.0).value[0]
        search = AnytimeSearch(Anytime(ibound=8, threads=3), OneInstance.of(batch, 0, theta, query), 1.0)
        search.proof_entries = 4
        proof = Proof(search, Relaxation(search.instance, search.orders[0], 4, 0.0, 1.0))
        views = [proof, *(proof.beside(search.beside(number)) for number in (1, 2))]
        with ExitStack() as stack:
            pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in views]
            while not proof.done:
                pools[turns % 3].submit(views[turns % 3].run, monotonic()).result()
                turns += 1
                assert search.upper >= best - 1e-9
        assert search.proven and search.lower == pytest.approx(best)
        assert all(view.search.lower == search.lower for view in views)
    assert turns > 12


@pytest.mark.slow
def test_threads_at_once_prove_the_optimum() -> None:
    for seed in range(4):
        batch, theta, query = grid(np.random.default_rng(seed), 4, 5, zeros=0.05)
        best = Exact()(batch, theta, query, 0.0, 1.0).value[0]
        uppers: list[float] = []
        settings = Anytime(ibound=8, threads=4, report=lambda at, uppers=uppers: uppers.append(at.upper))
        search = AnytimeSearch(settings, OneInstance.of(batch, 0, theta, query), 1.0)
        search.proof_entries = 4
        proof = Proof(search, Relaxation(search.instance, search.orders[0], 4, 0.0, 1.0))
        views = [proof.beside(search.beside(number)) for number in range(1, 4)]
        threads = [Thread(target=view.run_with, args=(LocalSearch(view.search),)) for view in views]
        for thread in threads:
            thread.start()
        proof.run_with(LocalSearch(search))
        for thread in threads:
            thread.join()
        assert proof.parts.done or search.proven
        assert search.lower == pytest.approx(best) and search.upper == pytest.approx(best, abs=1e-6)
        assert uppers == sorted(uppers, reverse=True) and uppers[-1] >= best - 1e-9


def part(bound: float, mini_buckets: MiniBuckets) -> OpenPart:
    return OpenPart(np.ones(1, dtype=bool), bound, mini_buckets, mini_buckets.here.parameters, bound, 1)


def test_parts_that_a_thread_is_splitting_still_count() -> None:
    batch, theta, query = grid(np.random.default_rng(0), 2, 2)
    instance = OneInstance.of(batch, 0, theta, query)
    mini_buckets = MiniBuckets(Relaxation(instance, instance.order(False), 4, 0.0, 1.0))
    root, low, high = (part(bound, mini_buckets) for bound in (3.0, 1.0, 2.0))
    parts = OpenParts(root)
    assert parts.take(1 << 30) is root and parts.take(1 << 30) is None
    assert not parts.done
    assert parts.replace(root, [high, low]) == 2.0
    assert parts.take(1 << 30) is high
    assert parts.take(0) is low  # the last one where memory is short
    assert parts.replace(low, []) == 2.0 and not parts.done
    assert parts.replace(high, []) == -np.inf and parts.done


def test_memory_counts_the_copies_of_threads() -> None:
    batch, theta, query = grid(np.random.default_rng(0), 3, 3)
    instance = OneInstance.of(batch, 0, theta, query)
    relaxation = Relaxation(instance, instance.order(False), 4, 0.0, 1.0)
    mini_buckets = MiniBuckets(relaxation)
    parts = OpenParts(part(0.0, mini_buckets))
    alone = parts.n_bytes()
    assert mini_buckets.here is relaxation and alone == 8 * 4 * relaxation.program.n_work
    values: list[float] = []

    def elsewhere() -> None:
        assert mini_buckets.here.work is not relaxation.work
        values.append(mini_buckets.here.run())

    other = Thread(target=elsewhere)
    other.start()
    other.join()
    parts.join()
    assert values == [relaxation.run()]
    assert parts.n_bytes() == 2 * alone


def test_offers_of_many_threads_leave_the_best_and_are_told_in_order() -> None:
    told: list[SearchProgress] = []
    incumbent = Incumbent(np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool), monotonic(), told.append)

    def offer(seed: int) -> None:
        for value in np.random.default_rng(seed).normal(size=2000):
            incumbent.offer(Valued(np.array([seed]), float(value), True), "blocks")
            incumbent.improve_upper(10.0 - float(value), "prove")

    threads = [Thread(target=offer, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    best = [np.random.default_rng(seed).normal(size=2000).max() for seed in range(4)]
    assert incumbent.valued.value == max(best) and incumbent.valued.states[0] == int(np.argmax(best))
    assert incumbent.upper == 10.0 - max(best)
    assert np.all(np.diff([p.lower for p in told][1:]) >= 0) and np.all(np.diff([p.upper for p in told]) <= 0)


def test_after_its_end_a_search_takes_nothing() -> None:
    told: list[SearchProgress] = []
    incumbent = Incumbent(np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool), monotonic(), told.append)
    incumbent.close()
    assert not incumbent.offer(Valued(np.ones(1, dtype=np.int64), 1.0, True), "blocks")
    incumbent.improve_upper(2.0, "prove")
    assert incumbent.valued.value == -np.inf and incumbent.upper == np.inf and not told


def let_helpers(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let helpers ``act`` before they search locally."""
    run = LocalSearch.run

    def acting(self: LocalSearch, deadline: float, max_kicks: int) -> None:
        if current_thread().name.startswith(HELPER):
            act()
        run(self, deadline, max_kicks)

    monkeypatch.setattr(LocalSearch, "run", acting)


@pytest.mark.parametrize("threads", [2, 3])
def test_an_error_of_a_helper_ends_the_search_and_is_raised(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    def fail() -> None:
        raise ZeroDivisionError("in a helper")

    let_helpers(monkeypatch, fail)
    batch, theta, query = grid(np.random.default_rng(4), 12, 12)
    began = monotonic()
    with pytest.raises(ZeroDivisionError, match="in a helper"):
        Anytime(time_limit=60.0, ibound=4, threads=threads).search(batch, 0, theta, query, 1.0)
    assert monotonic() - began < 30.0
    wait_for_helpers()


@pytest.mark.parametrize("where", [HELPER, "MainThread"])
def test_an_interruption_on_any_thread_ends_them_all(where: str) -> None:
    """Helpers interrupt the search once they find better outputs, its own thread once it has a better bound."""
    batch, theta, query = grid(np.random.default_rng(4), 12, 12)

    def interrupt(progress: SearchProgress) -> None:
        if helpers() and (where == "MainThread" or current_thread() in helpers()):
            raise KeyboardInterrupt

    found = Anytime(time_limit=60.0, ibound=3, report=interrupt, threads=3).search(batch, 0, theta, query, 1.0)
    assert found.interrupted and not found.proven
    assert found.seconds < 30.0 and found.value <= found.upper
    wait_for_helpers()


def test_helpers_run_in_the_context_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    name = ContextVar("name", default="nobody")
    name.set("somebody")
    seen: list[str] = []
    let_helpers(monkeypatch, lambda: seen.append(name.get()))
    batch, theta, query = grid(np.random.default_rng(4), 8, 8)
    Anytime(time_limit=1.0, ibound=3, threads=2).search(batch, 0, theta, query, 1.0)
    wait_for_helpers()
    assert set(seen) == {"somebody"}


@pytest.mark.slow
def test_threads_keep_the_time_limit() -> None:
    batch, theta, query = grid(np.random.default_rng(3), 24, 24)
    search = Anytime(time_limit=1.0, ibound=8, threads=3)
    search.search(batch, 0, theta, query, 1.0)
    found = search.search(batch, 0, theta, query, 1.0)
    assert found.seconds < 4.0
    assert np.isfinite(found.upper) and found.value <= found.upper
    wait_for_helpers()


def test_one_thread_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = grid(np.random.default_rng(8), 3, 4)
    monkeypatch.delattr(portfolio, "Thread")
    best = Enumerate()(batch, theta, query, 0.0, 1.0).value[0]
    assert Anytime(ibound=3).search(batch, 0, theta, query, 1.0).value == pytest.approx(best)


def test_random_choices_follow_from_the_seed_and_the_number_of_the_thread() -> None:
    batch, theta, query = grid(np.random.default_rng(8), 3, 3)

    def draws(seed: int, number: int) -> list[float]:
        search = AnytimeSearch(Anytime(ibound=3, seed=seed), OneInstance.of(batch, 0, theta, query), 1.0)
        return search.beside(number).rng.random(3).tolist()

    assert draws(0, 1) == draws(0, 1)
    assert len({tuple(draws(seed, number)) for seed in range(3) for number in range(1, 4)}) == 9


def test_no_threads_are_refused() -> None:
    with pytest.raises(InputError, match="threads"):
        Anytime(threads=0)


def test_a_search_for_an_instance_without_outputs_ends_with_any_number_of_threads() -> None:
    batch, theta, _ = grid(np.random.default_rng(9), 3, 3)
    query = Query.of(batch, np.zeros(9, dtype=bool))
    value = Enumerate()(batch, theta, query, 0.0, 1.0).value[0]
    assert _value(batch, theta, query) == pytest.approx(value)


def _value(batch: Batch, theta: Potentials, query: Query) -> float:
    return Anytime(ibound=3, threads=2).search(batch, 0, theta, query, 1.0).value


def test_later_helpers_walk_and_leave_conditioning_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditioning runs Python, for which all threads would wait."""
    walking: dict[str, bool] = {}
    run = LocalSearch.run

    def watched(self: LocalSearch, deadline: float, max_kicks: int) -> None:
        walking.setdefault(current_thread().name, not self.conditionable)
        run(self, deadline, max_kicks)

    monkeypatch.setattr(LocalSearch, "run", watched)
    batch, theta, query = grid(np.random.default_rng(4), 12, 12)
    Anytime(time_limit=1.0, ibound=8, threads=5).search(batch, 0, theta, query, 1.0)
    wait_for_helpers()
    assert {name: walks for name, walks in walking.items() if name.startswith(HELPER)} == {
        "mssvm-search-1": False,
        "mssvm-search-2": False,
        "mssvm-search-3": True,
        "mssvm-search-4": True,
    }


def test_threads_switch_quickly_while_a_search_has_several() -> None:
    before = sys.getswitchinterval()
    seen: set[float] = set()
    batch, theta, query = grid(np.random.default_rng(4), 4, 4)
    for threads in (1, 2):
        seen.clear()
        told = Anytime(ibound=3, threads=threads, report=lambda _: seen.add(sys.getswitchinterval()))
        told.search(batch, 0, theta, query, 1.0)
        (interval,) = seen
        assert interval == pytest.approx(before if threads == 1 else SWITCH_SECONDS)
        assert sys.getswitchinterval() == before
    with QUICK_SWITCHES:
        with QUICK_SWITCHES:
            pass
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == before


def test_helpers_also_begin_without_possible_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle of copy constraints in which neither the constraint search nor mini-buckets find anything possible."""
    n = 12
    batch = Batch.build([Topology((2,) * n, tuple((i, (i + 1) % n) for i in range(n)))])
    theta = Potentials(np.linspace(0.0, 1.0, batch.n_states), np.tile([0.0, -np.inf, -np.inf, 0.0], n))
    query = Query.of(batch, np.arange(n) % 3 != 0)
    monkeypatch.setattr(Support, "find", lambda *_, **__: None)
    monkeypatch.setattr(Support, "greedy", lambda _: np.arange(n) % 2)
    monkeypatch.setattr(AnytimeSearch, "_offer_decoded", lambda *_: None)
    monkeypatch.setattr(AnytimeSearch, "find_outputs", lambda search: LocalSearch(search))
    monkeypatch.setattr(AnytimeSearch, "_search_layers", lambda _: None)
    begun: list[str] = []
    let_helpers(monkeypatch, lambda: begun.append(current_thread().name))
    found = Anytime(time_limit=20.0, ibound=3, threads=2).search(batch, 0, theta, query, 1.0)
    wait_for_helpers()
    assert set(begun) == {"mssvm-search-1"}
    assert found.proven and found.value == pytest.approx(Enumerate()(batch, theta, query, 0.0, 1.0).value[0])

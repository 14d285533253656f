"""The pool of threads: results in order, the first error, work inside work."""

from __future__ import annotations

import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from threading import Thread, get_ident
from threading import enumerate as enumerate_threads

import pytest

from mssvm.core.threads import Workers


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 40])
def test_results_come_in_order(threads: int, n: int) -> None:
    assert Workers(threads).parallel_map(lambda a, b: a * b, range(n), range(1, n + 1)) == [
        k * (k + 1) for k in range(n)
    ]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_is_raised_and_the_pool_goes_on(threads: int) -> None:
    workers = Workers(threads)

    def work(k: int) -> int:
        time.sleep(0.002 * (k == 3))
        if k > 2:
            raise ValueError(k)
        return k

    for _ in range(5):
        with pytest.raises(ValueError, match="3"):
            workers.parallel_map(work, range(30))
    assert workers.parallel_map(work, range(3)) == [0, 1, 2]


def test_work_inside_work_is_done_by_whoever_asks() -> None:
    workers = Workers(3)

    def outer(_: int) -> bool:
        time.sleep(0.001)
        return {get_ident()} == set(workers.parallel_map(lambda _: get_ident(), range(4)))

    assert all(workers.parallel_map(outer, range(12)))
    assert workers.parallel_map(lambda k: k, range(4)) == [0, 1, 2, 3]


def test_threads_end_with_the_object_that_they_work_for_and_are_not_more_than_work() -> None:
    def others() -> set[Thread]:
        return set(enumerate_threads()) - before

    before = set(enumerate_threads())
    workers = Workers(9)
    workers.parallel_map(lambda k: k, range(3))
    assert len(others()) == 2
    assert len(set(workers.parallel_map(lambda _: (time.sleep(0.02), get_ident())[1], range(9)))) == 9
    assert len(others()) == 8
    ending = others()
    del workers
    for thread in ending:
        thread.join(10.0)
    assert not others()


def test_a_forked_process_has_threads_of_its_own() -> None:
    workers = Workers(3)
    assert workers.parallel_map(lambda k: k, range(9)) == list(range(9))
    child = get_context("fork").Process(target=lambda: sys.exit(sum(workers.parallel_map(lambda k: k, range(9)))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child.start()
    child.join(30.0)
    child.kill()
    assert child.exitcode == 36


def test_several_callers_share_threads() -> None:
    workers = Workers(3)

    def call(n: int) -> list[int]:
        return [sum(workers.parallel_map(lambda k: k, range(n))) for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        assert [set(one) for one in pool.map(call, range(4, 20))] == [{n * (n - 1) // 2} for n in range(4, 20)]

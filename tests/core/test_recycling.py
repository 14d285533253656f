"""Memory that comes back when nobody holds the array any more, and not sooner."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mssvm.core.recycling import WORTH_KEEPING, RecycledArray

SIZE = 2 * WORTH_KEEPING


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_serves_the_next_array() -> None:
    recycled = RecycledArray(SIZE)
    first = recycled.empty()
    place = address(first)
    del first
    assert address(recycled.empty()) == place


def test_arrays_in_use_keep_their_memory() -> None:
    recycled = RecycledArray(SIZE)
    first = recycled.empty()
    first.fill(1.0)
    view = first[3:9]
    del first
    second = recycled.empty()
    second.fill(2.0)
    assert not np.shares_memory(view, second)
    assert (view == 1.0).all()


def test_arrays_outlive_what_made_them() -> None:
    recycled = RecycledArray(SIZE)
    array = recycled.empty()
    array.fill(3.0)
    del recycled
    assert (array == 3.0).all()


def test_arrays_are_ordinary_ones() -> None:
    for size in (0, 1, WORTH_KEEPING - 1, SIZE):
        array = RecycledArray(size).empty()
        assert type(array) is np.ndarray
        assert array.shape == (size,)
        assert array.dtype == np.float64
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_threads_never_share_memory() -> None:
    recycled = RecycledArray(SIZE)

    def intact(number: int) -> bool:
        array = recycled.empty()
        array.fill(number)
        return bool((array == number).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(intact, range(400)))

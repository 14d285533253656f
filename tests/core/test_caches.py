"""Caches with a limit on their total size."""

from __future__ import annotations

from mssvm.core.caches import cached_by_size
from mssvm.core.topology import Topology, shared


def test_results_are_cached_until_their_sizes_exceed_the_capacity() -> None:
    calls: list[tuple[int, ...]] = []

    @cached_by_size(10, lambda n, extra=0: n)
    def double(n: int, extra: int = 0) -> int:
        calls.append((n, extra))
        return 2 * n

    assert [double(4), double(5), double(4)] == [8, 10, 8]
    assert calls == [(4, 0), (5, 0)]
    assert double(3) == 6, "12 is too much: 5, unused for longest, is forgotten"
    assert len(double.cache) == 2
    assert double(4) == 8
    assert len(calls) == 3
    assert double(5) == 10
    assert double(5, extra=1) == 10
    assert double.misses == len(calls) == 5
    assert double(40) == 80, "a value alone may exceed the capacity"
    assert len(double.cache) == 1
    double.cache_clear()
    assert (len(double.cache), double.misses) == (0, 0)


def test_equal_topologies_share_memory_as_keys() -> None:
    one = Topology((2, 3), ((0, 1),))
    other = Topology((2, 3), ((0, 1),))
    assert shared(other) is shared(one)
    assert shared(Topology((3, 2), ((0, 1),))) is not shared(one)

"""Sums over blocks carry the same bits however the blocks were spread before."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.objectives.problem import Evaluation
from mssvm.objectives.sums import FAN, Stretch, in_order, joined


def _parts(n: int) -> list[Evaluation]:
    rng = np.random.default_rng(n)
    sizes = 10.0 ** rng.integers(-8, 8, size=(n, 5))
    return [
        Evaluation(np.array([float(k)]), float(s[0]), s * rng.normal(size=5), plus_calls=1) for k, s in enumerate(sizes)
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 15, 16, 17, 21, 64, 65, 100])
def test_the_sum_does_not_depend_on_who_summed_what(n: int) -> None:
    rng = np.random.default_rng(0)
    parts = _parts(n)
    whole = in_order(parts)
    for _ in range(10):
        inner = rng.choice(np.arange(1, n), size=rng.integers(0, min(n, 9)), replace=False)
        cuts = [0, *sorted(inner.tolist()), n]
        spans = zip(cuts[:-1], cuts[1:], strict=True)
        lists = [joined([Stretch(k, k + 1, parts[k]) for k in range(a, b)], n) for a, b in spans]
        while len(lists) > 1:
            k = int(rng.integers(len(lists) - 1))
            lists[k : k + 2] = [joined([*lists[k], *lists[k + 1]], n)]
        (found,) = lists[0]
        assert found.part.total == whole.total and found.part.plus_calls == n
        np.testing.assert_array_equal(found.part.gradient, whole.gradient)
        np.testing.assert_array_equal(found.part.values, np.arange(n))


def test_few_blocks_are_summed_from_left_to_right_and_aligned_stretches_become_one() -> None:
    parts = _parts(FAN)
    left = parts[0].gradient + parts[1].gradient + parts[2].gradient + parts[3].gradient
    np.testing.assert_array_equal(in_order(parts).gradient, left)
    many = [Stretch(k, k + 1, part) for k, part in enumerate(_parts(64))]
    assert [len(joined(many[a:b], 64)) for a, b in ((0, 16), (16, 32), (0, 32), (32, 64))] == [1, 1, 1, 2]

"""What inference keeps between calls: shared by threads, forgotten in time, left behind by copies and pickles."""

from __future__ import annotations

import copy
import gc
import pickle  # noqa: TID251 - users' tools (joblib, Dask) pickle estimators that hold methods of inference
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from builders import random_case
from mssvm.inference.auto import Auto
from mssvm.inference.exact.eliminate import Eliminate
from mssvm.inference.exact.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.inference.remember import Recent, WhileAlive


class Key:
    """Something that can be referred to weakly."""


@pytest.mark.parametrize("method", [Exact(), Auto(), Eliminate(), Propagate("fast")], ids=lambda m: type(m).__name__)
def test_methods_of_inference_can_be_sent_to_other_processes(method) -> None:
    case = random_case("mixed", 8)
    expected = method(case.batch, case.theta, case.query, 0.0, 1.0)
    for twin in (pickle.loads(pickle.dumps(method)), copy.deepcopy(method)):
        assert twin == method
        np.testing.assert_array_equal(twin(case.batch, case.theta, case.query, 0.0, 1.0).value, expected.value)


def test_recent_values_stay_up_to_the_capacity() -> None:
    kept: Recent[int, int] = Recent(10, size=int)
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key

    for key in (4, 5, 4, 6, 4, 5, 50):
        assert kept.get(key, make) == key
    assert made == [4, 5, 6, 5, 50] and len(kept) == 1


def test_threads_share_recent_values() -> None:
    """Far more keys than room: every call meets values that other threads are throwing out."""
    kept: Recent[int, int] = Recent(2)
    keys = np.random.default_rng(0).integers(0, 5, 20_000).tolist()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda key: kept.get(key, lambda k: 10 * k), keys)) == [10 * key for key in keys]
    assert len(kept) == 2


def test_values_live_as_long_as_their_key() -> None:
    kept: WhileAlive[Key, Key] = WhileAlive()
    key = Key()
    value = kept.get(key, Key)
    assert kept.get(key, Key) is value and kept.get(Key(), Key) is not value
    assert copy.copy(kept).get(key, Key) is not value
    del key
    gc.collect()
    assert len(kept._known) == 0

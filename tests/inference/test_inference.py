"""What every inference has in common."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - users' tools (joblib, Dask) pickle estimators that hold methods of inference

import numpy as np
import pytest

from builders import random_case
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.auto import Auto
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate


@pytest.mark.parametrize("method", [Exact(), Auto(), Propagate("fast")], ids=lambda m: type(m).__name__)
def test_methods_of_inference_can_be_sent_to_other_processes(method) -> None:
    case = random_case("mixed", 8)
    expected = method(case.batch, case.theta, case.query, 0.0, 1.0)
    for twin in (pickle.loads(pickle.dumps(method)), copy.deepcopy(method)):
        assert twin == method
        np.testing.assert_array_equal(twin(case.batch, case.theta, case.query, 0.0, 1.0).value, expected.value)


def test_engines_can_be_sent_too_and_start_their_threads_anew() -> None:
    engine = NativeEngine(2)
    assert engine.parallel_map(pow, [2, 3], [3, 2]) == [8, 9]
    twin = pickle.loads(pickle.dumps(engine))
    assert twin == engine and twin.parallel_map(pow, [2, 3], [3, 2]) == [8, 9]


def test_work_that_hands_out_work_does_not_wait_for_itself() -> None:
    engine = NativeEngine(2)
    assert engine.parallel_map(lambda n: sum(engine.parallel_map(pow, range(n), range(n))), [3, 4, 5]) == [6, 33, 289]


@pytest.mark.parametrize("methods", ["elimination", (), ("elimination", "trees")])
def test_unknown_methods_are_refused(methods) -> None:
    with pytest.raises(InputError, match=r"methods must be a tuple of some of 'given states', .*'elimination'"):
        Exact(methods=methods)


def test_instances_that_no_method_computes_are_refused() -> None:
    """They were left out, with value 0 and marginals 0, and called exact."""
    tree = Topology((2, 2), [(0, 1)])
    cycle = Topology((2, 2, 2), [(0, 1), (1, 2), (0, 2)])
    batch = Batch.build([tree, cycle])
    query = Query.all_outputs(batch)
    only_trees = Exact(methods=("side by side", "tree recursion"))
    with pytest.raises(
        UnsupportedError, match=r"instance 1 cannot be .* side by side, tree recursion; add 'elimination'"
    ):
        only_trees(batch, Potentials.zeros(batch), query, 1.0, 1.0)
    alone = Batch.build([tree])
    assert only_trees(alone, Potentials.zeros(alone), Query.all_outputs(alone), 1.0, 1.0).value == pytest.approx(
        np.log(4)
    )

"""Kernels that are compiled are named; kernels that are ready are not."""

from __future__ import annotations

import numpy as np
from numba import njit

from mssvm.engines.numba.compiling import compiling
from mssvm.engines.numba.forests.tree import power


def test_names_what_is_compiled_and_only_that():
    fresh = njit(power.py_func)  # without the cache on disk
    ours, other = [], njit(lambda x: x + 1)
    with compiling(ours.append):
        assert fresh(np.array([1.0, 2.0]), 0.0) == 2.0
        fresh(np.array([3.0, 2.0]), 0.0)
        assert other(1) == 2
    assert ours == ["forests.tree.power"]
    with compiling(ours.append):
        fresh(np.array([3.0]), 1.0)
    assert len(ours) == 1

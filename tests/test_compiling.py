"""Kernels that are compiled are named; kernels that are ready are not."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numba import njit

from mssvm.core import progress
from mssvm.engines.numba.compiling import compiling
from mssvm.engines.numba.forests.tree import power
from mssvm.estimators.base import tells_of_compiling


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


class Asks:
    """Stands for an estimator."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose

    @tells_of_compiling
    def predict(self, x: float) -> float:
        return njit(power.py_func)(np.array([x, 1.0]), 0.0)  # compiled at every call


@pytest.mark.parametrize("verbose, session, told", [(True, False, True), (False, True, True), (False, False, False)])
def test_methods_tell_who_can_see_it(verbose, session, told, capsys, monkeypatch):
    monkeypatch.setattr(progress.ProgressLine.__init__, "__defaults__", ("MB", 1e6, None, 0.0, False))
    if session:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert Asks(verbose).predict(2.0) == 2.0
    err = capsys.readouterr().err
    assert err == ("Asks: compiling forests.tree.power (only the first time)\n" if told else "")
    with compiling([].append):  # somebody tells already
        Asks(verbose).predict(2.0)
    assert capsys.readouterr().err == ""

"""Kernels that are compiled are named; kernels that are ready are not."""

from __future__ import annotations

import sys

import pytest
from numba import njit

from mssvm.core import progress
from mssvm.engines.numba.compiling import compiling
from mssvm.engines.numba.messages.exponential import exp_neg
from mssvm.estimators.base import tells_of_compiling


def test_names_what_is_compiled_and_only_that():
    fresh = njit(exp_neg.py_func)  # without the cache on disk
    ours, other = [], njit(lambda x: x + 1)
    with compiling(ours.append):
        assert fresh(0.0) == 1.0
        fresh(-1.0)
        assert other(1) == 2
    assert ours == ["messages.exponential.exp_neg"]
    with compiling(ours.append):
        fresh(-2.0)
    assert len(ours) == 1


class Asks:
    """Stands for an estimator."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose

    @tells_of_compiling
    def predict(self, x: float) -> float:
        return njit(exp_neg.py_func)(x)  # compiled at every call


@pytest.mark.parametrize("verbose, session, told", [(True, False, True), (False, True, True), (False, False, False)])
def test_methods_tell_who_can_see_it(verbose, session, told, capsys, monkeypatch):
    monkeypatch.setattr(progress.ProgressLine.__init__, "__defaults__", ("MB", 1e6, None, 0.0, False))
    if session:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert Asks(verbose).predict(0.0) == 1.0
    err = capsys.readouterr().err
    assert err == ("Asks: compiling messages.exponential.exp_neg (only the first time)\n" if told else "")
    with compiling([].append):  # somebody tells already
        Asks(verbose).predict(2.0)
    assert capsys.readouterr().err == ""

"""Bounds of partly given outputs: against brute force, exact when all are given."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import Enumerate
from mssvm.uai.conditional import MOST_ENTRIES, ConditionalBound
from uai.test_support import constrained


@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_bounds_fall_to_the_value_as_outputs_are_given_and_come_back(eps_h: float, zeros: float) -> None:
    rng = np.random.default_rng(0)
    for seed in range(6):
        batch, theta, query = constrained(seed, zeros)
        instance = OneInstance.of(batch, 0, theta, query)
        order = rng.permutation(instance.free[1])
        conditional = ConditionalBound(instance, order.tolist(), eps_h)
        assert conditional.fits
        first = conditional.value()
        before = np.inf
        clamped = query
        states = [int(rng.choice(np.flatnonzero(_allowed(instance, v)))) for v in order]
        for v, state in zip(order, states, strict=True):
            conditional.decide(int(v), state)
            clamped = clamped.clamp(batch, np.array([v]), np.array([state]))
            bound = conditional.value()
            truth = Enumerate()(batch, theta, clamped, 0.0, eps_h).value[0]
            assert truth - 1e-9 <= bound <= before + 1e-9
            before = bound
        if len(order):
            assert before == pytest.approx(truth)
        for v, state in zip(order, states, strict=True):
            conditional.undo(int(v), state)
        assert conditional.value() == pytest.approx(first)


def test_what_might_underflow_bounds_nothing() -> None:
    batch, theta, query = constrained(0, 0.0)
    theta.tables[:] = np.where(np.arange(len(theta.tables)) % 2, 0.0, -700.0)
    instance = OneInstance.of(batch, 0, theta, query)
    conditional = ConditionalBound(instance, instance.free[1].tolist(), 1.0)
    assert conditional.value() == np.inf


def test_wide_hidden_parts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mssvm.uai.conditional.MOST_ENTRIES", 3)
    batch, theta, query = constrained(1, 0.0)
    instance = OneInstance.of(batch, 0, theta, query)
    assert MOST_ENTRIES > 3 and not ConditionalBound(instance, instance.free[1].tolist(), 1.0).fits


def _allowed(instance: OneInstance, v: int) -> np.ndarray:
    return instance.unary[instance.topology.unary_ptr[v] : instance.topology.unary_ptr[v + 1]] > -np.inf

"""Symmetric tables: the map and its transpose, in whole and over a part of the weights."""

from __future__ import annotations

import numpy as np

from mssvm.models.linear import LinearModel, WeightLayout
from mssvm.models.symmetric import SymmetricTables, mirror_of

LAYOUT = WeightLayout.of({"node": (2, 3), "edge": (2, 9)})
MODEL = SymmetricTables(LinearModel(LAYOUT.n_weights, LAYOUT), mirror_of(LAYOUT, {"edge": 3}))


def test_tables_are_scored_in_both_orders() -> None:
    w = np.random.default_rng(0).normal(size=LAYOUT.n_weights)
    both = MODEL.both_orders(w)
    tables = LAYOUT.view(w, "edge").reshape(2, 3, 3)
    assert np.array_equal(LAYOUT.view(both, "node"), LAYOUT.view(w, "node"))
    assert np.allclose(LAYOUT.view(both, "edge").reshape(2, 3, 3), tables + tables.transpose(0, 2, 1))


def test_the_map_is_its_own_transpose() -> None:
    one, two = np.random.default_rng(1).normal(size=(2, LAYOUT.n_weights))
    assert np.isclose(one @ MODEL.both_orders(two), MODEL.both_orders(one) @ two)


def test_a_part_of_the_weights() -> None:
    numbers = np.r_[1, 4, np.arange(6, LAYOUT.n_weights)]
    part = MODEL.select(numbers)
    w = np.zeros(LAYOUT.n_weights)
    w[numbers] = np.random.default_rng(2).normal(size=len(numbers))
    assert np.allclose(part.both_orders(w[numbers]), MODEL.both_orders(w)[numbers])

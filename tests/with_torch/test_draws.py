"""The torch engine on models drawn for every strategy, and on what another engine got wrong, against long double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance.draws import BY_NAME, STRATEGIES, as_code, draw_of, rebuilt, run, shrunk
from conformance.oracle import RELATIVE
from conformance.test_draws import CASES

SAMPLE = 2  # batches of every strategy; each pattern of roles is a group of its own here


@pytest.mark.parametrize("name", CASES)
def test_what_underflows_at_one_temperature_counts_at_the_other(name: str) -> None:
    outcome = run(rebuilt(*CASES[name]), BY_NAME["any forests"], "torch")
    assert outcome.exact.all()
    np.testing.assert_array_less(outcome.error.worst, RELATIVE)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_drawn_models_equal_long_double(strategy: Any) -> None:
    for seed in range(SAMPLE):
        draw = draw_of(strategy, seed)
        assert not run(draw, strategy, "torch").failed.any(), as_code(shrunk(draw, strategy, "torch"))

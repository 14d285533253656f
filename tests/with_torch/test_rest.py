"""Messages of this engine called converged have come to rest, on loopy graphs with scores of any strength."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.engines.torch import TorchEngine
from mssvm.inference.propagation.propagate import Propagate
from resting import REST, STEPS, TEMPERATURES, assert_rests, case, pair_gaps


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("eps", TEMPERATURES)
def test_further_sweeps_change_nothing_after_convergence(step: float, eps: tuple[float, float]) -> None:
    batch, theta, query = case(0, step, eps, 2)
    engine = TorchEngine(plain=True)
    assert assert_rests(engine, batch, theta, query, eps) >= 0.6 * len(batch)
    found = Propagate(merging=False).plan(batch, engine).bind(query, *eps)(theta)
    assert np.all(pair_gaps(batch, found.mu)[found.status.converged] <= REST)

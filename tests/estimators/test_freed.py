"""What training leaves behind: nothing that only the garbage collector can free."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import mssvm as ms


def blocks_and_runs() -> list[Any]:
    """All objects of these types that are in memory."""
    return [each for each in gc.get_objects() if type(each).__name__ in ("Block", "ChainRun")]


@pytest.mark.parametrize("certified", [False, True])
@pytest.mark.parametrize("name", ["HCRF", "MSSVM"])
def test_training_frees_its_blocks_when_it_ends(name: str, certified: bool) -> None:
    rng = np.random.default_rng(0)
    X = list(rng.normal(size=(2, 6, 6, 2)))
    y = list(rng.integers(-1, 2, (2, 6, 6)))
    model = getattr(ms, name)(
        ms.Grid(), missing_label=-1, random_state=0, inference=ms.inference.Decompose(certified=certified)
    )
    model.fit(X, y)
    gc.collect()
    gc.disable()
    try:
        earlier = {id(each) for each in blocks_and_runs()}  # of problems that other tests keep
        model.fit(X, y)
        kept = [type(each).__name__ for each in blocks_and_runs() if id(each) not in earlier]
    finally:
        gc.enable()
    assert not kept

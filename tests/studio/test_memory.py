"""Memory of a long session: what a stroke leaves behind is its line in the history, and no model, layout or plan."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mssvm.studio import learner as learning
from mssvm.studio.learner import Learner
from mssvm.studio.pictures import PictureProject
from studio.serving import stroke, two_colours

SIDE = 40
STROKES = 60
WARM = 30  # strokes after which caches are filled
LIMIT = 4096  # bytes that a stroke may leave: its points, its line in the curve


@pytest.mark.slow
def test_strokes_leave_nothing_behind_but_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "FIRST_ITERATIONS", 2)
    monkeypatch.setattr(learning, "FURTHER_ITERATIONS", 1)
    rng = np.random.default_rng(0)
    project = PictureProject(two_colours(tmp_path, SIDE, SIDE))
    learner = Learner(project, lambda: None)
    tracemalloc.start()
    try:
        for number in range(STROKES):
            if number == WARM:
                before = tracemalloc.get_traced_memory()[0]
            x = float(rng.uniform(0, SIDE))
            mark = stroke(int(2 * x > SIDE), (x, float(rng.uniform(0, SIDE))), radius=1.0)
            learner.compare(project.record(mark) or {})
            learner.learn_now()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0 in learner.answers
    assert after - before < LIMIT * (STROKES - WARM)

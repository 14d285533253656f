"""The check of kept trials (``tools/replay_trials.py``): rounding passes, a change of the mathematics does not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mssvm.core.arrays import Floats
from mssvm.experiments.protocol import Protocol
from mssvm.objectives.bound_block import BoundBlock
from mssvm.objectives.problem import Evaluation

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import replay_trials

KEPT = {"M": {"accuracy": 61.5, "objective": 100.0, "calls": 7}, "bayes": 70.0}
RANGES = {"M.objective": (99.9, 100.1), "M.accuracy": (61.4, 61.5)}


def changed(**figures: float) -> dict[str, Any]:
    return KEPT | {"M": {**KEPT["M"], **figures}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("new", "ranges", "n_wrong"),
    [
        (KEPT, {}, 0),
        (changed(objective=100.00001), {}, 0),
        (changed(objective=100.001), {}, 1),
        (changed(objective=100.25, accuracy=61.3), RANGES, 0),
        (changed(objective=100.35, accuracy=61.5), RANGES, 1),
        (changed(objective=99.65, accuracy=61.2), RANGES, 2),
        (changed(accuracy=61.4), {}, 1),
        (changed(calls=8), {}, 0),
        (KEPT | {"bayes": 70.1}, RANGES, 1),
        ({"M": KEPT["M"]}, {}, 1),
        (KEPT, {"H.objective": (1.0, 2.0)}, 1),
        (changed(objective=100.2), {"M.objective": (100.2, 100.21)}, 1),  # what is kept is none of the twins'
    ],
)
def test_numbers_are_judged_by_the_range_of_their_twins(new: Any, ranges: Any, n_wrong: int) -> None:
    assert len(replay_trials.differences(KEPT, new, ranges)[0]) == n_wrong


def kept_trial(solver: str) -> tuple[replay_trials.Record, replay_trials.Ranges]:
    """The kept trial of table2 on the chain by a solver that is replayed first."""
    records = replay_trials.chosen_trials("table2")
    record = next(r for r in records if (r["params"]["solver"], r["params"]["graph"]) == (solver, "chain"))
    return record, replay_trials.read_ranges().get(replay_trials.identify("table2", record), {})


def wrong(solver: str, **settings: Any) -> list[str]:
    """What is wrong with a kept trial under a protocol with other settings."""
    record, ranges = kept_trial(solver)
    protocol = Protocol(Protocol.load().tree | settings)
    new = replay_trials.run_trial("table2", record["params"], protocol)
    return replay_trials.differences(record["result"], new, ranges)[0]


@pytest.mark.parametrize("solver", ["LB", "paper CCCP"])
def test_a_kept_trial_comes_out_as_kept(solver: str) -> None:
    assert wrong(solver) == []


@pytest.mark.parametrize("solver", ["LB", "paper CCCP"])
def test_another_weight_of_the_loss_is_noticed(solver: str) -> None:
    assert wrong(solver, C=1.001)


def test_an_objective_that_is_slightly_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BoundBlock.difference

    def off(block: BoundBlock, w: Floats) -> Evaluation:
        part = right(block, w)
        return replace(part, values=1.001 * part.values, total=1.001 * part.total, gradient=1.001 * part.gradient)

    monkeypatch.setattr(BoundBlock, "difference", off)
    assert wrong("LB")

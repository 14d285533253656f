"""Plans of the UAI competition: proven, and evaluated by a small program that shares no code with the package."""

from __future__ import annotations

from collections import defaultdict
from math import log
from pathlib import Path
from time import monotonic
from zipfile import ZipFile

import pytest

from mssvm.uai import UaiTask, read_model, read_query
from mssvm.uai.answers import AnswerLimits, answer


def probability(model: Path, plan: dict[int, int]) -> float:
    """The probability of the evidence in the tables when the variables of ``plan`` are set: history after history.

    A history is a dictionary of states; variables come after their parents, and are forgotten after their last child.
    """
    numbers = iter(model.read_text().split()[1:])
    cards = [int(next(numbers)) for _ in range(int(next(numbers)))]
    scopes = [[int(next(numbers)) for _ in range(int(next(numbers)))] for _ in range(int(next(numbers)))]
    tables = [[float(next(numbers)) for _ in range(int(next(numbers)))] for _ in scopes]
    of_child = {scope[-1]: (scope, table) for scope, table in zip(scopes, tables, strict=True)}
    last_child = {v: max(scope[-1] for scope in scopes if v in scope) for v in range(len(cards))}
    histories: dict[tuple[int, ...], float] = {(): 1.0}
    alive: list[int] = []
    for v, card in enumerate(cards):
        scope, table = of_child[v]
        still = [u for u in [*alive, v] if last_child[u] > v]
        after: dict[tuple[int, ...], float] = defaultdict(float)
        for history, weight in histories.items():
            for state in [plan[v]] if v in plan else range(card):
                states = dict(zip(alive, history, strict=True)) | {v: state}
                entry = 0
                for u in scope:
                    entry = entry * cards[u] + states[u]
                if weight * table[entry] > 0.0:
                    after[tuple(states[u] for u in still)] += weight * table[entry]
        histories = dict(after)
        alive = still
    return sum(histories.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bw_p24_6", "bw_p24_18", "bw_p34_10", "bw_p34_16", "bw_p44_12", "comm_p01_6"])
def test_plans_are_proven_and_have_the_value_they_claim(name: str, data_dir: Path, tmp_path: Path) -> None:
    with ZipFile(data_dir / "uai_mmap_planning.zip") as archive:
        for suffix in ("uai", "map"):
            archive.extract(f"{name}.{suffix}", tmp_path)
    file = tmp_path / f"{name}.uai"
    model = read_model(file)
    task = UaiTask.of("MMAP", model, {}, read_query(file.with_suffix(".map"), model))
    found = answer(task, "auto", AnswerLimits(monotonic() + 300.0, 4 << 30, 0))
    assert found.exact and found.lower == found.value
    assert found.upper == pytest.approx(found.value, abs=1e-8)
    assert found.states is not None
    plan = {v: int(found.states[v]) for v in task.asked}
    assert log(probability(file, plan)) == pytest.approx(found.value, abs=1e-9)

"""Wrong labels: one in ten makes predictions a little worse, never into an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mssvm as ms

LABELS = ("a", "b", "c")


def sticky_chains(n: int, seed: int) -> tuple[list[np.ndarray], list[list[str]]]:
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        states = np.cumsum(rng.random(20) < 0.25) + rng.integers(3)
        X.append(np.eye(3)[states % 3] + 0.4 * rng.normal(size=(20, 3)))
        y.append([LABELS[s % 3] for s in states])
    return X, y


def noisy(y: list[list[str]], share: float, sets: bool) -> list[list[Any]]:
    """A share of the labels replaced by others; as ``sets`` of two candidates, by such that lack the true one."""
    rng = np.random.default_rng(7)
    out: list[list[Any]] = []
    for row in y:
        others = [[k for k in LABELS if k != label] for label in row]
        wrong = rng.random(len(row)) < share
        if sets:
            right = [{label, rest[int(rng.integers(2))]} for label, rest in zip(row, others, strict=True)]
            out.append([set(rest) if bad else good for bad, good, rest in zip(wrong, right, others, strict=True)])
        else:
            picked = [rest[int(rng.integers(2))] for rest in others]
            out.append([new if bad else old for bad, new, old in zip(wrong, picked, row, strict=True)])
    return out


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("sets", [False, True], ids=["labels", "candidate sets"])
@pytest.mark.parametrize(("member", "hidden"), [("CRF", 0), ("SSVM", 0), ("HCRF", 2), ("LSSVM", 2), ("MSSVM", 2)])
def test_one_wrong_label_in_ten_is_borne(member: str, hidden: int, sets: bool) -> None:
    X, y = sticky_chains(60, seed=0)
    X_new, y_new = sticky_chains(60, seed=1)
    scores = []
    for share in (0.0, 0.1, 0.2):
        model = getattr(ms, member)(ms.Chain(hidden=hidden), max_iter=60, random_state=0)
        scores.append(model.fit(X, noisy(y, share, sets)).score(X_new, y_new))
    clean, tenth, fifth = scores
    assert clean > 0.93
    assert tenth > clean - 0.04 and fifth > clean - 0.1

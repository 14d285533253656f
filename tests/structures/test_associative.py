"""Associative grids from end to end: every member and solver keeps couplings >= 0, and scribbles give no stripes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.registry import MEMBERS, SOLVERS
from mssvm.estimators.plan import inference_of
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import Regulariser
from mssvm.structures.encoded import to_sample

COUPLINGS = ("edge:side", "edge.x:side", "hidden.edge:side", "hidden.edge.x:side")


def checkered(n: int = 3, side: int = 3, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Small boards whose neighbours differ, so that free couplings would be negative; some labels are missing."""
    rng = np.random.default_rng(seed)
    board = np.indices((side, side)).sum(axis=0) % 2
    X = [board[..., None] + rng.normal(size=(side, side, 1)) for _ in range(n)]
    return X, [[[None if rng.random() < 0.2 else int(v) for v in row] for row in board] for _ in range(n)]


def couplings(model: Any) -> list[float]:
    return [weight.value for weight in model.weights_table() if weight.block in COUPLINGS]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_keeps_couplings_non_negative(name: str) -> None:
    X, y = checkered()
    hidden = 2 if MEMBERS[name].hidden else 0
    model = getattr(ms, name)(ms.Grid(edges="contrast", hidden=hidden, direct=True), random_state=0, max_iter=10)
    found = couplings(model.fit(X, y))
    assert len(found) == (4 if hidden else 2) and min(found) >= 0
    assert couplings(getattr(ms, name)(ms.Grid(), random_state=0, max_iter=10).fit(X, y)) == []


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_and_penalty_keeps_couplings_non_negative(solver: str) -> None:
    X, y = checkered()
    full = [[[v if v is not None else (i + j) % 2 for j, v in enumerate(row)] for i, row in enumerate(b)] for b in y]
    given = {"solver": solver, "penalties": {"edge:side": 0.5}, "support": "seen", "random_state": 0}
    model = ms.SSVM(ms.Grid(edges="associative"), **given).fit(X, full)
    assert couplings(model) == pytest.approx([0.0], abs=0.02) and couplings(model)[0] >= 0


def test_gradients_of_tied_couplings_match_finite_differences() -> None:
    X, y = checkered()
    model = ms.HCRF(ms.Grid(edges="contrast", neighbours=8), max_iter=1).fit(X, y)
    encoder = model.encoder_
    encoded = encoder.encode(X)
    sample = to_sample(encoded, encoder.vocabulary.encode(y, encoded.labels.shapes))
    problem = TrainingProblem(
        model._objective(model._loss()), encoder.model, sample, inference_of("auto", 1 << 30, 1, 3), 1.0
    )
    w = np.random.default_rng(1).normal(size=encoder.layout.n_weights)
    slope = problem.difference(w).gradient
    for j, e in enumerate(np.eye(len(w)) * 1e-5):
        change = (problem.difference(w + e).total - problem.difference(w - e).total) / 2e-5
        assert slope[j] == pytest.approx(change, abs=1e-6)
    bounded = encoder.weight_masks.nonnegative
    assert np.all(Regulariser(nonnegative=bounded).project(-np.abs(w))[bounded] == 0)


def test_an_associative_model_survives_a_file(tmp_path: Any) -> None:
    X, y = checkered()
    model = ms.MSSVM(ms.Grid(edges="contrast"), max_iter=3, random_state=0).fit(X, y)
    model.save(tmp_path / "m.safetensors")
    again = ms.load(tmp_path / "m.safetensors")
    assert again.structure_.edges == "contrast"
    assert all(np.array_equal(a, b) for a, b in zip(model.predict(X), again.predict(X), strict=True))


def test_scribbled_discs_are_discs_not_stripes() -> None:
    """Horizontal strokes say nothing about vertical neighbours: free tables then learn stripes."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:24, :24]
    X, y, truth = [], [], []
    for k in range(2):
        disc = ((rows - 11 - k) ** 2 + (columns - 12) ** 2 < 64).astype(int)
        given = np.where((rows % 6 == 2) & (rng.random(disc.shape) < 0.6), disc, -1)
        X.append((disc + rng.normal(0, 0.5, disc.shape))[..., None])
        y.append([[None if v < 0 else int(v) for v in row] for row in given])
        truth.append(disc)

    def overlap(edges: str) -> float:
        model = ms.CRF(ms.Grid(edges=edges), inference="propagate", random_state=0).fit(X, y)
        found = [np.asarray(p) == 1 for p in model.predict(X)]
        return min((f & (t == 1)).sum() / (f | (t == 1)).sum() for f, t in zip(found, truth, strict=True))

    assert overlap("contrast") > 0.85 and overlap("associative") > 0.85
    assert overlap("free") < 0.7


def test_a_thousand_labels_around_one_component_are_counted_quietly() -> None:
    """More joint states than a float can hold; warnings are errors here."""
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=(60, 100))
    given = np.where(rng.random(truth.shape) < 0.7, np.nan, truth)  # NaN is a missing label
    y = [given.tolist()]
    model = ms.MSSVM(ms.Grid(edges="contrast"), max_iter=1, random_state=0, solver="subgradient")
    assert np.isfinite(model.fit([truth[..., None] + 0.0], y).objective_)

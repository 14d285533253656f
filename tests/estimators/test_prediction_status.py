"""What an answer says of itself: exact or not, converged or not, and by how much it can be off."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import InputError
from mssvm.estimators.prediction_status import PredictionStatus
from ragged import QUICK, sequences


def noisy_grids(n: int = 3, side: int = 24) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    y = [np.pad(np.ones((side // 2, side // 2), dtype=int), side // 4) for _ in range(n)]
    return [mask[..., None] + rng.normal(size=(side, side, 1)) for mask in y], y


def test_chains_are_exact_and_say_so() -> None:
    X, y = sequences(6)
    clf = ms.HCRF(ms.Chain(hidden=2), **QUICK).fit(X, y)
    for answer in (clf.predict, clf.predict_marginals):
        _, status = answer(X, return_status=True)
        assert status.exact.shape == (len(X),) and status.exact.all() and status.converged.all()
        assert np.all(status.gap == 0.0)
        assert str(status).startswith("Inference was exact (")
        assert clf.prediction_status_ is status


def test_a_decoder_that_is_approximate_does_not_hide_behind_exact_training() -> None:
    """Hidden states that are linked: sums are exact, marginal MAP is not."""
    X, y = sequences(6)
    clf = ms.MSSVM(ms.Chain(hidden=2, linked=True), memory_limit=1 << 12, **QUICK).fit(X, y)
    clf.predict(X, decode="map")
    assert not clf.prediction_status_.exact.all()
    assert "approximate" in str(clf.prediction_status_)


def test_wide_grids_have_gaps_and_one_warning_a_call() -> None:
    X, y = noisy_grids()
    clf = ms.HCRF(ms.Grid(), max_iter=5, random_state=0).fit(X, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, status = clf.predict_marginals(X, return_status=True)
    assert not status.exact.all()
    assert np.all(status.gap[~status.exact] > 0.0)
    assert len(caught) == int(not status.converged.all())
    few = ms.HCRF(ms.Grid(), inference=ms.inference.Propagate(max_sweeps=1), max_iter=2, random_state=0).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="did not converge on 3") as told:
        few.predict_marginals(X)
    assert len(told) == 1


def test_statuses_of_several_parts_are_one() -> None:
    one = PredictionStatus(("a",), np.array([True]), np.array([True]), np.array([0.0]))
    two = PredictionStatus(("b",), np.array([False]), np.array([False]), np.array([0.25]))
    text = str(PredictionStatus.joined([one, two]))
    assert text == (
        "Inference was approximate on 1 of 2 instances (a, b); it did not converge on 1; "
        "values are within 0.25 of the true ones."
    )
    unknown = PredictionStatus(("b",), np.array([False]), np.array([True]), np.array([np.nan]))
    assert str(unknown) == "Inference was approximate on 1 of 1 instances (b); it converged."


def test_shards_have_no_status_yet(tmp_path: Path) -> None:
    X, y = sequences(6)
    clf = ms.HCRF(ms.Chain(), **QUICK).fit(X, y)
    (tmp_path / "a.jsonl").write_text('{"x": [[0.1, 0.2, 0.3]], "y": ["B"]}\n')
    shards = ms.ShardedDataset(str(tmp_path / "a.jsonl"))
    with pytest.raises(InputError, match="return_status"):
        clf.predict(shards, return_status=True)


def test_the_command_line_says_what_inference_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"x": [[0.0], [1.0]], "y": ["a", "b"]}\n{"x": [[1.0], [0.0]], "y": ["b", "a"]}\n')
    model = tmp_path / "m.safetensors"
    assert main(["fit", str(data), "-o", str(model), "--max-iter", "5"]) == 0
    assert main(["predict", str(model), str(data), "-o", str(tmp_path / "out.jsonl")]) == 0
    assert "Inference was exact" in capsys.readouterr().out

"""Whole numbers below zero are missing labels or classes by one rule, whichever way they come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import InputError

X = [np.array([[1.0], [0.0], [1.0]]), np.array([[0.0], [1.0]])]
REMEDY = "y, instance 0, site 1: the label {} is below zero; write None or pass missing_label={} .* name it in classes="


@pytest.mark.parametrize("label", [-100, -1, -1.0, np.int64(-100)])
def test_estimators_refuse_them_with_the_remedy(label: Any) -> None:
    number = int(label) if isinstance(label, np.integer) else label
    with pytest.raises(InputError, match=REMEDY.format(number, number)):
        ms.CRF(ms.Chain()).fit(X, [[1, label, 1], [0, 1]])
    with pytest.raises(InputError, match="is below zero"):
        ms.CRF(ms.Chain()).fit(X, [[1, {0, number}, 1], [0, 1]])


def test_missing_label_says_that_they_are_missing() -> None:
    with_none = ms.CRF(ms.Chain()).fit(X, [[1, None, 1], [0, 1]])
    named = ms.CRF(ms.Chain(), missing_label=-100).fit(X, [np.array([1, -100, 1]), np.array([0, 1])])
    assert named.classes_.tolist() == [0, 1]
    assert np.array_equal(named.coef_, with_none.coef_)
    assert named.score(X, [[1, -100, 0], [0, 1]]) == 0.75
    with pytest.raises(InputError, match="the label -1 is below zero"):
        ms.CRF(ms.Chain(), missing_label=-100).fit(X, [[1, -100, -1], [0, 1]])


def test_classes_says_that_they_are_classes() -> None:
    model = ms.CRF(ms.Chain(), classes=[-1, 1]).fit(X, [[1, -1, 1], [-1, 1]])
    assert model.predict(X)[0].tolist() == [1, -1, 1]
    assert model.score(X, [[1, -1, 1], [-1, 1]]) == 1.0
    scorer = ms.metrics.scorer("flat_f1")
    assert scorer(model, X[1:], [[1, 1]]) == pytest.approx(1 / 3)  # -1 is predicted at the first site
    assert scorer(model, X[1:], [[-1, -1]]) == pytest.approx(1 / 3)


def test_answers_and_scores_follow_the_rule() -> None:
    model = ms.CRF(ms.Chain()).fit(X, [[1, 0, 1], [0, 1]])
    for ask in (model.score, model.calibrate):
        with pytest.raises(InputError, match="the label -100 is below zero"):
            ask(X, [[1, -100, 1], [0, 1]])
    with pytest.raises(InputError, match="label -1 is not among the classes 0, 1; write None or pass missing_label=-1"):
        model.predict(X, given=[[1, -1, 1], [0, 1]])


def test_metrics_follow_the_rule() -> None:
    with pytest.raises(InputError, match="the label -100 is below zero"):
        ms.metrics.site_accuracy([[0, -100]], [[0, 1]])
    assert ms.metrics.site_accuracy([[0, -100]], [[0, 1]], missing_label=-100) == 1.0
    assert ms.metrics.site_accuracy([[-1, 1]], [[1, 1]], classes=[-1, 1]) == 0.5
    assert ms.metrics.site_accuracy([[-1, 1]], [[-1, 1]]) == 1.0  # predictions are classes
    model = ms.CRF(ms.Chain(), missing_label=-100).fit(X, [[1, -100, 1], [0, 1]])
    for name in ("site_accuracy", "instance_accuracy", "flat_f1"):
        assert ms.metrics.scorer(name)(model, X, [[1, -100, 1], [0, 1]]) == 1.0


def jsonl(path: Path, labels: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"x": x.tolist(), "y": y}) + "\n" for x, y in zip(X, labels, strict=True)))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = jsonl(tmp_path / "a.jsonl", [[1, 0, 1], [-100, 1]])
    model = tmp_path / "m.safetensors"
    code, _, err = run(capsys, "fit", data, "-o", model, "--method", "crf")
    assert code == 2 and "a.jsonl, line 2, site 0: the label -100 is below zero" in err
    code, _, err = run(capsys, "check", data)
    assert code == 2 and "line 2: the label -100 is below zero; add --missing-label -100" in err
    assert run(capsys, "check", data, "--missing-label", "-100")[0] == 0
    assert run(capsys, "fit", data, "-o", model, "--method", "crf", "--missing-label", "-100")[0] == 0
    assert ms.load(model).classes_.tolist() == [0, 1]
    found = json.loads(run(capsys, "evaluate", model, data, "--json")[1])  # the model remembers
    assert found["n_unlabelled"] == 1 and found["accuracy"] == 1.0
    assert (
        run(capsys, "compare", data, "--methods", "crf", "--cv", "2", "--missing-label", "-100", "--no-curves")[0] == 0
    )
    assert ms.data.read(data, ms.data.Options(missing_label=-100)).labels == [[1, 0, 1], [None, 1]]


def test_negative_classes_of_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = jsonl(tmp_path / "a.jsonl", [[1, -1, 1], [-1, 1]])
    assert run(capsys, "fit", data, "-o", tmp_path / "m", "--method", "crf", "--classes=-1,1")[0] == 0
    assert ms.load(tmp_path / "m").classes_.tolist() == [-1, 1]


def test_columns_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("The O\ncat ?\n\n")
    assert ms.data.read(tmp_path / "a.conll", ms.data.Options(missing_label="?")).labels == [["O", None]]
    (tmp_path / "b.jsonl").write_text('{"x": ["a", "b"], "y": ["0", "B"]}\n')
    assert ms.data.read(tmp_path / "b.jsonl", ms.data.Options(missing_label=0)).labels == [[None, "B"]]


def test_archives(tmp_path: Path) -> None:
    def saved(labels: list[list[int]]) -> Path:
        np.savez(tmp_path / "a.npz", x=np.ones((2, 2, 1)), y=np.array(labels))
        return tmp_path / "a.npz"

    with pytest.warns(FutureWarning, match="labels of -1 are read as missing"):
        assert ms.data.read(saved([[0, -1], [1, 1]])).labels == [[0, None], [1, 1]]
    data = ms.data.read(saved([[0, -100], [1, 1]]))
    with pytest.raises(InputError, match="the label -100 is below zero"):
        ms.CRF(ms.Chain()).fit(data.X, data.labels)
    read = ms.data.read(saved([[0, -100], [-1, 1]]), ms.data.Options(missing_label=-100))
    assert read.labels == [[0, None], [-1, 1]]


def test_votes_follow_the_rule() -> None:
    votes = [{"ann": [1, -1, 1]}, {"ann": [0, 1]}]
    with pytest.raises(InputError, match="the label -1 is below zero; write None"):
        ms.HCRF(ms.Chain(), annotators=ms.Annotators()).fit(X, votes)

"""The command line from votes to labels, a table and a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.test_compare import Page
from cli.test_text import run
from mssvm.annotators import simulate

CROWD = simulate(40, 8, 3, (0.9, 0.8, 0.3), seed=2)


def write(path: Path, gold: bool) -> Path:
    with path.open("w") as file:
        for x, y, votes in zip(CROWD.X, CROWD.truth, CROWD.votes, strict=True):
            record = {"x": x.tolist(), "votes": votes}
            if gold:
                record["y"] = y.tolist()
            file.write(json.dumps(record) + "\n")
    return path


def test_from_votes_to_labels_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = write(tmp_path / "votes.jsonl", gold=False)
    code, out, _ = run(capsys, "check", votes)
    assert code == 0
    assert "annotator" in out
    model = tmp_path / "m.st"
    code, out, err = run(capsys, "fit", votes, "-o", model, "--method", "hcrf", "--annotators")
    assert (code, "a2" in out, "320 of 320 sites (100.0%) had votes, 960 in all" in out) == (0, True, True), err
    truth = write(tmp_path / "truth.jsonl", gold=True)
    page = tmp_path / "page.html"
    code, out, err = run(capsys, "aggregate", model, truth, "-o", tmp_path / "out.jsonl", "--html", page, "--marginals")
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    right = sum(a == b for r, y in zip(records, CROWD.truth, strict=True) for a, b in zip(r["y"], y, strict=True))
    assert f"Agreement with y: {right / 320:.2%} of 320 labelled sites" in out
    assert right / 320 > 0.85
    assert len(records[0]["marginals"]) == 8
    assert records[0]["classes"] == [0, 1, 2]
    text = page.read_text()
    Page(text)
    for words in ("Who needs help", "Worth a second look", "a2", "truth.jsonl, line"):
        assert words in text


def test_labels_beside_votes_are_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.jsonl"
    lines = [json.dumps({"x": [[1.0], [0.0]], "y": ["a", "b"], "votes": {"liar": ["b", "a"]}})] * 40
    path.write_text("\n".join(lines) + "\n")
    code, out, err = run(capsys, "fit", path, "-o", tmp_path / "m.st", "--method", "hcrf", "--annotators")
    assert code == 0, err
    assert "liar                       80   100.0%     0.0%" in out


def test_columns_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "votes.conll"
    path.write_text("the O O\ncat B B\n\na O O\ndog B _\n\n" * 10)
    model = tmp_path / "m.st"
    columns = ("--vote-columns", "ann,bob")
    assert run(capsys, "fit", path, "-o", model, "--method", "hcrf", "--annotators", *columns)[0] == 0
    code, _, err = run(capsys, "aggregate", model, path, "-o", tmp_path / "out.conll", *columns)
    assert code == 0, err
    assert (tmp_path / "out.conll").read_text().startswith("the O O O\ncat B B B\n\na O O O\ndog B _ B\n\n")
    code, _, err = run(capsys, "fit", path, "-o", tmp_path / "n.st", "--annotators", "--vote-columns", "ann,ann")
    assert (code, "twice" in err) == (2, True)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = write(tmp_path / "votes.jsonl", gold=False)
    code, _, err = run(capsys, "fit", votes, "-o", tmp_path / "m.st")
    assert (code, "fit --annotators learns" in err) == (2, True)
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"x": [[1], [2]], "y": ["a", "b"]}\n' * 5)
    code, _, err = run(capsys, "fit", labels, "-o", tmp_path / "m.st", "--annotators")
    assert (code, "holds no votes" in err) == (2, True)
    assert run(capsys, "fit", labels, "-o", tmp_path / "m.st", "--method", "crf")[0] == 0
    code, _, err = run(capsys, "aggregate", tmp_path / "m.st", votes)
    assert (code, "was not trained on votes" in err) == (2, True)
    assert run(capsys, "fit", votes, "-o", tmp_path / "v.st", "--method", "hcrf", "--annotators")[0] == 0
    code, _, err = run(capsys, "aggregate", tmp_path / "v.st", votes, "-o", tmp_path / "x", "--html", tmp_path / "x")
    assert (code, "cannot hold both" in err, (tmp_path / "x").exists()) == (2, True, False)

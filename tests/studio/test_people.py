"""Several people: names in the journal, votes, disagreements; and rejected predictions as candidate sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import InputError
from mssvm.data.readers import png
from mssvm.studio.pictures import PictureProject
from mssvm.studio.sequences import SequenceProject
from mssvm.studio.votes import agreed, consensus
from studio.serving import LEFT, RIGHT, serving, stroke, two_colours


def mark(label: int | None, start: int, stop: int, item: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": "mark", "item": item, "class": label, "start": start, "stop": stop, **more}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("Ann met Bob .\nBob saw Ann .\nThen Ann left .\n")
    return path


@pytest.mark.parametrize(
    ("votes", "label", "differ"),
    [
        ([], None, False),
        ([None, None], None, False),
        (["O", None, "O"], "O", False),
        (["O", "B-x"], None, True),
        (["O", frozenset({"O", "B-x"})], "O", False),
        (["O", frozenset({"I-x", "B-x"})], None, True),
        ([frozenset({"O", "B-x"}), frozenset({"B-x", "I-x"})], "B-x", False),
        ([frozenset({"O", "B-x"}), None], frozenset({"O", "B-x"}), False),
    ],
)
def test_what_votes_on_a_site_agree_on(votes: list[Any], label: Any, differ: bool) -> None:
    assert agreed(votes) == (label, differ)


def test_other_labels_hold_where_there_is_no_vote() -> None:
    by_name = {"ann": ["O", None, "O"], "bob": ["O", None, "B-x"]}
    assert consensus(by_name, ["B-x", "B-x", "B-x"]) == (["O", "B-x", None], [2])


def test_names_are_kept_and_disagreements_found(notes: Path) -> None:
    project = SequenceProject(notes)
    project.record(mark(1, 0, 1, by="ann"))
    assert project.labels(0) == ["B-span", None, None, None]
    assert project.disputed_items() == []
    project.record(mark(0, 0, 2, by=" bob "))
    project.record(mark(1, 2, 3, by="bob"))
    project.record(mark(1, 2, 3, by="ann"))
    project.record(mark(1, 0, 1, item=1, by="ann"))
    for again in (project, SequenceProject(notes)):
        assert again.annotators() == {"ann": 3, "bob": 2}
        assert again.votes(0) == {"ann": ["B-span", None, "B-span", None], "bob": ["O", "O", "B-span", None]}
        assert again.labels(0) == [None, "O", "B-span", None]
        assert again.disputed(0) == [0]
        assert again.disputed_items() == [0]
        assert again.votes(1) == {}
    project.record({"kind": "undo"})
    project.record({"kind": "undo"})
    project.record(mark(None, 0, 1, by="ann"))
    assert project.disputed_items() == [], "an eraser takes back one's own label"
    assert project.labels(0)[:2] == ["O", "O"]


@pytest.mark.parametrize("name", ["x" * 41, "a\nb", 7])
def test_bad_names_are_refused(notes: Path, name: Any) -> None:
    project = SequenceProject(notes)
    with pytest.raises(InputError, match="name of an annotator"):
        project.record(mark(1, 0, 1, by=name))
    assert project.journal.read() == []


def test_labels_of_the_file_hold_where_nobody_marked(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("New\tB-LOC\nYork\tI-LOC\nnow\tO\n\n")
    project = SequenceProject(path)
    project.record(mark(0, 0, 1, by="ann"))
    project.record(mark(1, 0, 2, by="bob"))
    assert project.labels(0) == [None, "I-LOC", "O"]
    data = project.training_set()
    assert data is not None
    assert data.votes
    assert data.y == [
        {"gold": [None, None, "O"], "ann": ["O", None, None], "bob": ["B-LOC", "I-LOC", None]},
    ]


def test_the_model_learns_from_votes_and_the_page_sees_them(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(notes.parent)
    with serving(notes) as client:
        for name in ("ann", "bob", "cid"):
            for start, label in ((0, 1), (1, 0), (2, 1), (3, 0)):
                wrong = name == "cid" and start == 1
                client.json("/api/events", mark(1 if wrong else label, start, start + 1, by=name))
        client.learned(0)
        state = client.studio.state()
        assert [person["name"] for person in state["annotators"]] == ["ann", "bob", "cid"]
        assert all(0 < person["accuracy"] <= 1 for person in state["annotators"])
        assert state["disputed"] == [0]
        described = client.json("/api/items/0")
        assert described["disputed"] == [1]
        assert described["votes"]["cid"][1] == "B-span"
        assert client.json("/api/items/0/labels")["labels"] == ["B-span", "O", "B-span", "O"], "two of three"
        client.learned(1)
        assert client.json("/api/items/1/labels")["labels"] == ["B-span", "O", "B-span", "O"]
        client.json("/api/export", {})
        first = json.loads(notes.with_name("notes.labels.jsonl").read_text().splitlines()[0])
        assert first["votes"]["cid"][1] == "B-span"
        assert (first["y"], first["agreed"]) == ([None] * 4, ["B-span", None, "B-span", "O"])
        exec(client.studio.state()["recipe"]["python"], scope := {})
        assert scope["tags"][0].tolist() == ["B-span", "O", "B-span", "O"]
        for _ in range(4):
            client.json("/api/events", {"kind": "undo"})
        client.learned(0)
        assert len(client.studio.state()["annotators"]) == 2
    fitted = ms.load(notes.with_name("model.safetensors"))
    assert [row.name for row in fitted.annotators_] == ["ann", "bob", "cid"]


def test_votes_on_a_picture(tmp_path: Path) -> None:
    with serving(two_colours(tmp_path)) as client:
        client.json("/api/events", {**LEFT, "by": "ann"})
        client.json("/api/events", {**RIGHT, "by": "ann"})
        client.json("/api/events", {**LEFT, "by": "bob"})
        client.json("/api/events", {**stroke(0, (50, 10), radius=3.0), "by": "bob"})
        client.learned()
        project = client.studio.project
        assert isinstance(project, PictureProject)
        assert project.raster(0)[10, 50] == -1
        assert project.raster(0)[10, 10] == 0
        assert project.raster(0)[25, 50] == 1
        assert client.studio.state()["disputed"] == [0]
        disputed = png.decode(client.request("/api/items/0/disputed")[1], "disputed")[..., 0]
        covered = np.argwhere(disputed)
        assert len(covered) == len(project.disputed(0)) > 5
        assert np.abs(covered - [9.5, 49.5]).max() <= 3.5
        mask = png.decode(client.request("/api/items/0/labels")[1], "mask")[..., 0]
        assert (mask == np.repeat([0, 1], 30)[None, :]).mean() > 0.9
        assert client.json("/api/suggest")["item"] == 0
        assert client.json("/api/export", {})["files"][0] == "people.json"
        own = png.decode((tmp_path / "strokes" / "two.1.png").read_bytes(), "bob")[..., 0]
        assert set(np.unique(own)) == {0, 255}
        shared = png.decode((tmp_path / "strokes" / "two.png").read_bytes(), "all")[..., 0]
        assert shared[10, 50] == 255
    assert main(["studio", str(tmp_path), "--write"]) == 0


def test_rejected_classes_leave_candidates(notes: Path) -> None:
    project = SequenceProject(notes)
    project.record({"kind": "class", "name": "LOC"})
    rest = frozenset({"O", "B-LOC", "I-LOC"})
    project.record(mark(1, 0, 2, **{"not": True}))
    assert project.labels(0) == [rest, rest, None, None]
    assert project.describe(0)["labels"] == [None] * 4
    assert project.describe(0)["rejected"] == [["span"], ["span"], [], []]
    project.record(mark(2, 0, 1, **{"not": True}))
    assert project.labels(0)[0] == "O"
    with pytest.raises(InputError, match="reject"):
        project.record(mark(None, 0, 1, **{"not": True}))
    with pytest.raises(InputError, match="'not' is true or false"):
        project.record(mark(1, 0, 1, **{"not": 3}))
    project.record(mark(0, 1, 2, **{"not": True}))
    with pytest.raises(InputError, match="rejected there already"):
        project.record(mark(2, 1, 2, **{"not": True}))
    project.record(mark(1, 2, 4))
    assert project.labels(0)[2:] == ["B-span", "I-span"]
    assert [event["class"] for event in SequenceProject(notes).marks(0)] == [1, 2, 0, 1]


def test_candidates_are_learned_predicted_and_written(notes: Path) -> None:
    with serving(notes) as client:
        for start, label in ((0, 1), (1, 0), (2, 1), (3, 0)):
            client.json("/api/events", mark(label, start, start + 1))
        client.json("/api/events", mark(1, 0, 1, item=1, **{"not": True}))
        client.learned(1)
        found = client.json("/api/items/1/labels")["labels"]
        assert found[0] == "O", "what is rejected is predicted no more"
        assert client.json("/api/items/1")["labels"][0] == "O", "of two classes one is left"
        client.json("/api/events", {"kind": "class", "name": "LOC"})
        client.learned(1)
        client.json("/api/export", {})
    record = json.loads(notes.with_name("notes.labels.jsonl").read_text().splitlines()[1])
    assert record["y"] == [["B-LOC", "I-LOC", "O"], None, None, None]
    lines = notes.with_name("notes.labels.conll").read_text().splitlines()
    assert lines[5].split("\t")[1] == "B-LOC|I-LOC|O"
    first = json.loads(notes.with_name("notes.labels.jsonl").read_text().splitlines()[0])
    assert first["entities"] == [[0, 1, "span"], [2, 3, "span"]]
    data = ms.data.read(notes.with_name("notes.labels.jsonl"))
    assert data.y is not None
    assert set(data.y[1][0]) == {"B-LOC", "I-LOC", "O"}

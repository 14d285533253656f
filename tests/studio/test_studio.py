"""The studio over HTTP and on disk: marks, predictions, undo, files; what is refused; what survives a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from mssvm.cli import main
from mssvm.core.errors import InputError
from mssvm.data.readers import png
from mssvm.studio import sequences
from mssvm.studio.journal import Journal
from mssvm.studio.learner import Learner
from mssvm.studio.pictures import REGION, PictureProject, _coarse_labels, covered_pixels
from mssvm.studio.sequences import SequenceProject
from studio.serving import LEFT, RIGHT, serving, stroke, two_colours


def test_two_strokes_label_the_whole_picture(tmp_path: Path) -> None:
    with serving(two_colours(tmp_path / "pictures")) as client:
        assert client.studio.state()["progress"]["doing"] == "waiting for marks of two classes"
        client.json("/api/events", LEFT)
        client.json("/api/events", RIGHT)
        client.learned()
        mask = png.decode(client.request("/api/items/0/labels")[1], "mask")[..., 0]
        truth = np.repeat([0, 1], 30)[None, :].repeat(40, axis=0)
        assert (mask == truth).mean() > 0.95
        unsure = png.decode(client.request("/api/items/0/uncertainty")[1], "unsure")[..., 0]
        assert unsure[:, 26:34].mean() > unsure[:, :20].mean()
        picture = png.decode(client.request("/api/items/0/picture")[1], "picture")
        assert picture.shape == (40, 60, 3)
        found = client.json("/api/suggest")
        assert found["item"] == 0
        assert 0 <= found["x"] <= 60


def test_undo_redo_and_the_eraser(tmp_path: Path) -> None:
    with serving(two_colours(tmp_path)) as client:
        for event in (LEFT, RIGHT):
            client.json("/api/events", event)
        client.learned()
        assert client.json("/api/events", {"kind": "undo"})["changed"]
        assert client.studio.state()["marks"] == 1
        assert client.json("/api/events", {"kind": "redo"})["changed"]
        assert not client.json("/api/events", {"kind": "redo"})["changed"]
        client.json("/api/events", stroke(None, (50, 0), (50, 40), radius=8.0))
        raster = client.studio.project.raster(0)
        assert set(np.unique(raster)) == {-1, 0}
        client.json("/api/events", {"kind": "undo"})
        client.learned()
        client.json("/api/events", stroke(0, (50, 20)))
        assert not client.json("/api/events", {"kind": "redo"})["changed"], "a new mark ends what could be redone"
        client.learned()
        assert client.studio.state()["progress"]["agreement"], "corrections are compared before they are learned"


def test_nothing_is_answered_without_the_token_or_from_elsewhere(tmp_path: Path) -> None:
    with serving(two_colours(tmp_path)) as client:
        token = {"x-studio-token": client.studio.token}
        for path in ("/", "/api/items/0", "/api/suggest", "/api/items/0/picture"):
            assert client.request(path, headers={})[0] == 403
            assert client.request(path, headers={"x-studio-token": "wrong"})[0] == 403
            assert client.request(path, headers={**token, "Host": "evil.example"})[0] == 403
            assert client.request(path, headers={**token, "Origin": "http://evil.example"})[0] == 403
        assert client.request("/")[0] == 200
        for name in ("../server.py", "..%2fserver.py", "index.html", "nothing.js"):
            assert client.request(f"/static/{name}")[0] == 404
        with urlopen(Request(f"{client.base}/?token={client.studio.token}")) as response:
            assert "script-src 'self'" in response.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"kind": "paint"}, "no event of kind"),
        ({**LEFT, "item": 7}, "no item 7"),
        ({**LEFT, "item": "0"}, "no item"),
        ({**LEFT, "class": 9}, "no class 9"),
        ({**LEFT, "radius": 1e9}, "radius"),
        ({**LEFT, "points": []}, "points"),
        ({**LEFT, "points": [[0, 0]] * 5001}, "points"),
        ({**LEFT, "points": [[0, "a"]]}, "pairs"),
        ({**LEFT, "points": [[1e9, 0]]}, "pairs"),
        ({"kind": "class", "name": ""}, "needs a name"),
        ({"kind": "class", "name": "x" * 41}, "needs a name"),
        ({"kind": "class", "name": "background"}, "already"),
    ],
)
def test_bad_marks_are_refused_in_a_sentence_and_not_written(
    tmp_path: Path, event: dict[str, object], words: str
) -> None:
    project = PictureProject(two_colours(tmp_path))
    with pytest.raises(InputError, match=words):
        project.record(event)
    assert project.journal.read() == []


def test_bad_requests(tmp_path: Path) -> None:
    with serving(two_colours(tmp_path)) as client:
        assert client.request("/api/events", raw=b"[1, 2")[0] == 400
        assert client.request("/api/events", raw=b"[1, 2]")[0] == 400
        assert client.request("/api/events", raw=b'"' + b"x" * (1 << 20) + b'"')[0] == 413
        status, content = client.request("/api/events", {"kind": "paint"})
        assert (status, "no event of kind" in json.loads(content)["error"]) == (400, True)
        assert client.request("/api/items/5")[0] == 404
        assert client.request("/api/items/0/labels")[0] == 404
        assert client.request("/api/shown", {"item": 5})[0] == 404
        assert client.request("/api/suggest")[0] == 400


@pytest.mark.slow
def test_a_killed_studio_has_lost_nothing(tmp_path: Path) -> None:
    folder = two_colours(tmp_path / "pictures")
    command = [sys.executable, "-m", "mssvm", "studio", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    assert address is not None
    base, _, token = address[0].partition("/?token=")
    for event in (LEFT, RIGHT, {"kind": "class", "name": "third"}):
        urlopen(Request(f"{base}/api/events", json.dumps(event).encode(), {"x-studio-token": token})).read()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    project = PictureProject(folder)
    assert [event["class"] for event in project.history.done] == [0, 1]
    assert [info.name for info in project.classes] == ["background", "object", "third"]


def test_a_torn_last_line_is_dropped_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"kind": "undo"}\n{"kind": "re')
    journal = Journal(path)
    journal.append({"kind": "redo"})
    assert journal.read() == [{"kind": "undo"}, {"kind": "redo"}]
    path.write_text('{"kind": \n{"kind": "undo"}\n')
    with pytest.raises(InputError, match="line 1 is damaged"):
        Journal(path).read()


def test_covered_pixels_are_those_within_the_radius_of_the_line() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = rng.uniform(-5, 35, size=(int(rng.integers(1, 5)), 2))
        event = stroke(0, *(tuple(p) for p in points), radius=float(rng.uniform(0.5, 6)))
        ends = np.concatenate([points[1:], points[-1:]])
        fine = [a + t * (b - a) for a, b in zip(points, ends, strict=True) for t in np.linspace(0, 1, 200)]
        centres = np.stack(np.meshgrid(np.arange(30) + 0.5, np.arange(20) + 0.5), axis=-1)
        nearest = np.min([np.linalg.norm(centres - p, axis=2) for p in fine], axis=0)
        found = covered_pixels(event, (20, 30))
        assert found[nearest <= event["radius"] - 0.05].all()
        assert not found[nearest > event["radius"] + 0.05].any()


def test_rasters_by_steps_equal_rasters_from_the_start(tmp_path: Path) -> None:
    project = PictureProject(two_colours(tmp_path))
    for event in (LEFT, RIGHT, stroke(None, (10, 20)), {"kind": "undo"}, stroke(1, (10, 20))):
        project.record(event)
        stepwise = project.raster(0)
        project._rasters.clear()
        np.testing.assert_array_equal(project.raster(0), stepwise)


def test_coarse_labels_are_majorities_of_blocks() -> None:
    raster = np.full((5, 4), -1)
    raster[:2, :2] = [[1, 1], [0, -1]]
    raster[4, 2] = 2
    assert _coarse_labels(raster, 2, 3).tolist() == [[1, -1], [-1, -1], [-1, 2]]


@pytest.mark.slow
def test_files_beside_the_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_colours(tmp_path)
    with serving(folder) as client:
        client.json("/api/events", LEFT)
        client.json("/api/events", RIGHT)
        client.learned()
        assert client.json("/api/export", {})["files"] == ["two.png", "two.png", "model.safetensors"]
    strokes = png.decode((folder / "strokes" / "two.png").read_bytes(), "strokes")[..., 0]
    assert set(np.unique(strokes)) == {0, 1, 255}
    before = png.decode((folder / "masks" / "two.png").read_bytes(), "mask")[..., 0]
    assert main(["studio", str(folder), "--write"]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    after = png.decode((folder / "masks" / "two.png").read_bytes(), "mask")[..., 0]
    assert (before == after).mean() > 0.95


def test_several_pictures_share_one_model(tmp_path: Path) -> None:
    folder = two_colours(tmp_path)
    (folder / "again.png").write_bytes((folder / "two.png").read_bytes())
    with serving(folder) as client:
        client.json("/api/events", {**LEFT, "item": 0})
        client.json("/api/events", {**RIGHT, "item": 0})
        client.learned(1)
        mask = png.decode(client.request("/api/items/1/labels")[1], "mask")[..., 0]
        assert (mask == np.repeat([0, 1], 30)[None, :]).mean() > 0.9


SENTENCES = ["Ann met Bob .", "Bob saw Ann .", "Then Ann left .", "It rained in Rome ."]


def test_words_are_tagged_as_one_goes(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    with serving(path) as client:
        client.json("/api/events", {"kind": "class", "name": "PER"})
        assert client.json("/api/items/0")["words"] == ["Ann", "met", "Bob", "."]
        for start, label in ((0, 2), (1, 0), (2, 2), (3, 0)):
            client.json("/api/events", {"kind": "mark", "item": 0, "class": label, "start": start, "stop": start + 1})
        client.learned(1)
        assert client.json("/api/items/1/labels")["labels"] == ["B-PER", "O", "B-PER", "O"]
        assert len(client.json("/api/items/1/uncertainty")["uncertainty"]) == 4
        assert client.json("/api/suggest")["item"] in (1, 2, 3)
        assert client.json("/api/export", {})["files"] == [
            "notes.labels.jsonl",
            "notes.labels.conll",
            "model.safetensors",
        ]
    lines = (tmp_path / "notes.labels.conll").read_text().splitlines()
    assert lines[:5] == ["Ann\tB-PER\tB-PER", "met\tO\tO", "Bob\tB-PER\tB-PER", ".\tO\tO", ""]
    assert json.loads((tmp_path / "notes.labels.jsonl").read_text().splitlines()[1])["y"] == [None] * 4


def test_marks_on_words_make_whole_spans(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("New\tB-LOC\nYork\tI-LOC\nCity\tI-LOC\nnow\t_\n\n")
    project = SequenceProject(path)
    assert [info.name for info in project.classes] == ["O", "LOC"]
    project.record({"kind": "mark", "item": 0, "class": 0, "start": 0, "stop": 1})
    assert project.labels(0) == ["O", "B-LOC", "I-LOC", None]
    project.record({"kind": "mark", "item": 0, "class": None, "start": 1, "stop": 2})
    assert project.labels(0) == ["O", None, "B-LOC", None]
    with pytest.raises(InputError, match="range of sites between 0 and 4"):
        project.record({"kind": "mark", "item": 0, "class": 0, "start": 3, "stop": 9})


def test_series_are_labelled_in_a_strip(tmp_path: Path) -> None:
    path = tmp_path / "series.jsonl"
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 0], 10)
    lines = [json.dumps({"x": (truth[:, None] * 3.0 + rng.normal(size=(30, 1))).tolist()}) for _ in range(3)]
    path.write_text("\n".join(lines) + "\n")
    with serving(path) as client:
        assert client.studio.project.kind == "series"
        assert len(client.json("/api/items/0")["values"][0]) == 30
        client.json("/api/events", {"kind": "mark", "item": 0, "class": 0, "start": 0, "stop": 9})
        client.json("/api/events", {"kind": "mark", "item": 0, "class": 1, "start": 11, "stop": 19})
        client.learned(1)
        found = client.json("/api/items/1/labels")["labels"]
        assert np.mean(np.array(found) == np.where(truth, "b", "a")) > 0.9


def test_places_that_hold_nothing_to_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", str(tmp_path / "absent")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["studio", str(tmp_path)]) == 2
    assert "holds no pictures" in capsys.readouterr().err
    assert main(["studio", str(two_colours(tmp_path / "p")), "--write"]) == 2
    assert "less than two classes" in capsys.readouterr().err


def test_two_tabs_see_the_same_state(tmp_path: Path) -> None:
    def marks(tab: Any) -> int:
        """Of the next state; the learner may send one of its own at any time."""
        event = tab.readline()
        tab.readline()
        return json.loads(event[len(b"data: ") :])["marks"]

    with serving(two_colours(tmp_path)) as client:
        address = f"{client.base}/api/events?token={client.studio.token}"
        with urlopen(address, timeout=30) as first, urlopen(address, timeout=30) as second:
            assert marks(first) == marks(second) == 0
            client.json("/api/events", LEFT)
            for tab in (first, second):
                assert any(marks(tab) == 1 for _ in range(5))


def test_suggestions_are_places_without_strokes_and_apart(tmp_path: Path) -> None:
    project = PictureProject(two_colours(tmp_path))
    for event in (LEFT, RIGHT):
        project.record(event)
    learner = Learner(project, lambda: None)
    learner.learn_now()
    found = project.suggestions(learner.model, 3)
    assert len(found) == 3
    assert [one["gain"] for one in found] == sorted((one["gain"] for one in found), reverse=True)
    for k, one in enumerate(found):
        assert project.raster(0)[int(one["y"]), int(one["x"])] == -1
        for other in found[:k]:
            assert max(abs(one["x"] - other["x"]), abs(one["y"] - other["y"])) > REGION
    assert project.suggest(learner.model) == found[0]
    project.record(stroke(0, (30, 20), radius=100.0))
    assert project.suggestions(learner.model, 3) == [], "everything has a label"


def test_suggestions_in_long_files_are_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "POOL", 3)
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(f"Ann saw {k} ." for k in range(30)) + "\n")
    project = SequenceProject(path)
    for start, label in ((0, 1), (1, 0), (2, 0), (3, 0)):
        project.record({"kind": "mark", "item": 0, "class": label, "start": start, "stop": start + 1})
    learner = Learner(project, lambda: None)
    learner.learn_now()
    items = set()
    for _ in range(4):
        found = project.suggestions(learner.model, 2)
        assert len(found) == 2
        assert len({one["item"] for one in project.suggestions(learner.model, 100)}) == 3
        items |= {one["item"] for one in found}
        project.record({"kind": "class", "name": f"class {project.version}"})
    assert 0 not in items, "its words have labels"
    assert len(items) > 3, "another sample after every change"


def test_a_raster_is_that_of_the_marks_as_they_are_now(tmp_path: Path) -> None:
    """Marks that were undone and forgotten leave nothing behind, even if a new mark takes the memory of an old one."""
    project = PictureProject(two_colours(tmp_path))
    for k in range(200):
        event = stroke(k % 2, (10 + k % 40, 20), radius=2.0)
        project.record(event)
        covered = covered_pixels(event, project.raster(0).shape)
        assert np.array_equal(project.raster(0), np.where(covered, k % 2, -1))
        project.record({"kind": "undo"})
        project.history.undone.clear()

"""Data files: every format says the same thing, and every fault is one sentence with file and line."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.data import chunking, read, read_parts, weak_pictures
from mssvm.data.embedded import write_pictures
from mssvm.data.features import FeatureSchema
from mssvm.data.readers import Options, check, png
from mssvm.data.readers.stream import MAX_LINE, Stream


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


CHAINS = lines(
    {"x": [[0.5, 1], [2, 3]], "y": ["B", None], "id": "first"},
    {"x": [[4, 5]], "y": [["B", "I"]]},
    {"x": [[6, 7], [8, 9]]},
)


@pytest.mark.parametrize("packed", [False, True])
def test_chains_with_missing_and_candidate_labels(tmp_path: Path, packed: bool) -> None:
    text = CHAINS.encode()
    path = write(tmp_path / ("a.jsonl" + ".gz" * packed), gzip.compress(text) if packed else text)
    data = read(path)
    assert data.kind == "chain" and data.lines == [1, 2, 3] and data.ids == ["first", None, None]
    assert [x.tolist() for x in data.X] == [[[0.5, 1], [2, 3]], [[4, 5]], [[6, 7], [8, 9]]]
    assert data.y == [["B", None], [["B", "I"]], [None, None]]


def test_standard_input_and_blank_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (b"\n" + CHAINS.encode() + b"\n", gzip.compress(b"\n" + CHAINS.encode())):
        fake = io.TextIOWrapper(io.BytesIO(text))
        monkeypatch.setattr(sys, "stdin", fake)
        assert read("-").lines == [2, 3, 4]


def test_structures_show_in_the_records(tmp_path: Path) -> None:
    sequence = read(write(tmp_path / "s.jsonl", lines({"x": [[1], [2]]}, {"x": [[1]], "y": "walk"})))
    assert sequence.kind == "sequence" and sequence.y == [None, "walk"]
    grid = read(write(tmp_path / "g.jsonl", lines({"x": [[[1], [2]], [[3], [4]]], "y": [[0, 1], [None, 1]]})))
    assert grid.kind == "grid" and grid.X[0].shape == (2, 2, 1) and grid.y == [[[0, 1], [None, 1]]]
    record = {"nodes": [[1], [2]], "edges": [[0, 1]], "edge_x": [[3]], "y": ["a", "b"], "hidden": [False, True]}
    graph = read(write(tmp_path / "h.jsonl", lines(record)))
    assert graph.kind == "graph" and graph.X[0].edges.tolist() == [[0, 1]]
    assert graph.hidden is not None and graph.hidden[0].tolist() == [False, True]


def test_named_features_and_words_train_a_model(tmp_path: Path) -> None:
    named = [{"x": [{"w": "a", "n": 2.0}, {"w": "b"}], "y": ["A", "B"]}, {"x": [{"w": "b"}], "y": ["B"]}]
    words = [{"x": ["a", "b"], "y": ["A", "B"]}, {"x": ["b"], "y": ["B"]}]
    indicators = [{"x": [["w=a", "cap"], ["w=b"]], "y": ["A", "B"]}]
    for records in (named, words, indicators):
        data = read(write(tmp_path / "n.jsonl", lines(*records)))
        assert ms.CRF().fit(data.X, data.labels).score(data.X, data.labels) == 1.0


def test_edge_features_of_chains(tmp_path: Path) -> None:
    data = read(write(tmp_path / "e.jsonl", lines({"x": [[1], [2]], "edge_x": [[5]], "y": ["a", "b"]})))
    assert data.X[0]["edge_x"].tolist() == [[5]]
    assert ms.CRF().fit(data.X, data.labels).score(data.X, data.labels) == 1.0


def test_conll(tmp_path: Path) -> None:
    text = "# a comment\nThe DT B-NP\ncat NN _\n\nsat VB B-VP|I-VP\n\n"
    data = read(write(tmp_path / "a.conll", text))
    assert data.y == [["B-NP", None], [["B-VP", "I-VP"]]] and data.lines == [2, 5]
    assert "w=cat" in data.X[0][1] and "c1=NN" in data.X[0][1] and "w<=the" in data.X[0][1]
    assert read(write(tmp_path / "b.conll", "The\ncat\n")).y is None
    assert read(tmp_path / "a.conll", Options(labelled=False)).y is None


def test_time_series(tmp_path: Path) -> None:
    head = "@problemName p\n@timeStamps false\n@classLabel true up down\n@data\n"
    data = read(write(tmp_path / "a.ts", head + "1,2,3:4,5,6:up\n1,2:0,0:?\n"))
    assert data.kind == "sequence" and data.y == ["up", None]
    assert data.X[0].tolist() == [[1, 4], [2, 5], [3, 6]] and data.X[1].shape == (2, 2)


def test_archives(tmp_path: Path) -> None:
    rows = np.arange(10.0).reshape(5, 2)
    np.savez(tmp_path / "a.npz", x=rows, y=np.array([0, 1, -1, 1, 0]), ptr=np.array([0, 2, 5]))
    with pytest.warns(FutureWarning, match="labels of -1 are read as missing; say so with missing_label=-1"):
        data = read(tmp_path / "a.npz")
    assert data.kind == "chain" and data.y == [[0, 1], [None, 1, 0]] and data.X[1].tolist() == rows[2:].tolist()
    write(tmp_path / "b.npz.gz", gzip.compress((tmp_path / "a.npz").read_bytes()))
    assert read(tmp_path / "b.npz.gz", Options(missing_label=-1)).y == data.y
    np.savez(tmp_path / "c.npz", x=np.ones((2, 3, 4, 1)), y=np.full((2, 3, 4), "sky"))
    grids = read(tmp_path / "c.npz")
    assert grids.kind == "grid" and grids.X[0].shape == (3, 4, 1) and grids.labels[0][0] == ["sky"] * 4
    np.savez(tmp_path / "d.npz", x=np.ones((2, 3, 1)), y=np.array([1.0, np.nan]))
    assert read(tmp_path / "d.npz").y == [1, None]


def test_image_folders(tmp_path: Path) -> None:
    pictures = weak_pictures(2, 5, 7)
    data = read(write_pictures(tmp_path, pictures))
    assert data.kind == "grid" and data.X[0].shape == (5, 7, 6) and data.ids == ["000.png", "001.png"]
    assert np.allclose(data.X[0][..., :3] * 255, pictures[0].pixels)
    given = pictures[0].given
    assert data.labels[0] == [[None if v == 255 else v for v in row] for row in given.tolist()]
    colours = np.zeros((5, 7, 3), np.uint8)
    colours[0, 0] = 255
    for k in range(2):
        write(tmp_path / "masks" / f"{k:03d}.png", png.encode(colours))
    assert read(tmp_path).labels[0][0][:2] == [None, "#000000"]
    assert read(tmp_path, Options(missing_colour="#000000")).labels[0][0][:2] == ["#ffffff", None]


def test_png_filters_and_depths_against_an_independent_reader(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    smooth = np.cumsum(np.cumsum(rng.integers(-3, 4, (24, 31, 3)), 0), 1).astype(np.uint8)
    for mode, array in (("RGB", smooth), ("L", smooth[..., 0]), ("1", smooth[..., 0] > 99), ("P", smooth[..., 0] % 7)):
        picture = image.fromarray(array if mode != "P" else array.astype(np.uint8), "L" if mode == "P" else None)
        if mode == "P":
            picture.putpalette([7 * k % 256 for k in range(768)])
        picture.save(tmp_path / "p.png", optimize=True)
        found = png.decode((tmp_path / "p.png").read_bytes(), "p.png")
        assert np.array_equal(found.squeeze(), array)
    assert np.array_equal(png.decode(png.encode(smooth), "p.png"), smooth)


def test_pictures_are_read_as_they_are_seen(tmp_path: Path) -> None:
    """Palette pictures have the features of their colours, and pictures of one bit those of black and white; masks keep
    their numbers."""
    image = pytest.importorskip("PIL.Image")
    indices = np.random.default_rng(0).integers(0, 3, (4, 5)).astype(np.uint8)
    palette = np.array([[0, 0, 0], [200, 10, 90], [255, 255, 0]], np.uint8)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.png", png.encode(indices, palette))
    data = read(tmp_path)
    assert np.allclose(data.X[0][..., :3] * 255, palette[indices])
    assert data.labels[0] == indices.tolist()
    bits = indices > 0
    image.fromarray(bits).save(tmp_path / "images" / "a.png")
    assert np.array_equal(read(tmp_path).X[0][..., 0], bits.astype(float))
    write(tmp_path / "images" / "a.png", png.encode(indices, palette[:2]))
    with pytest.raises(InputError, match="without a colour in its palette"):
        read(tmp_path)


def test_weak_pictures_that_cannot_be_are_refused() -> None:
    """More than all pixels would be labelled never."""
    for settings, words in (
        ({"share": 1.5}, "share must be"),
        ({"width": 4}, "width must be"),
        ({"n": -1}, "n must be"),
    ):
        with pytest.raises(InputError, match=words):
            weak_pictures(**{"n": 1, "height": 5, "width": 7, **settings})
    assert (weak_pictures(1, 3, 5, share=1.0)[0].given != 255).all()


def test_pictures_that_would_share_a_mask_are_refused(tmp_path: Path) -> None:
    write_pictures(tmp_path, weak_pictures(1, 5, 7))
    (tmp_path / "images" / "000.jpg").write_bytes(b"")
    with pytest.raises(InputError, match="would share a mask"):
        read(tmp_path)


GRAPH = {"nodes": [[1], [2]], "y": ["a", "b"]}
FAULTS = {
    "a.jsonl": [
        ("no JSON\n", 1, "not JSON"),
        ("[1, 2]\n", 1, "expected an object"),
        ('{"z": 1}\n', 1, "no 'x'"),
        (lines({"x": [[1]], "y": ["a"]}) + '{"x": [[NaN]], "y": ["a"]}\n', 2, "NaN or infinite"),
        (lines({"x": [[1]], "y": ["a"]}, {"x": [[1], [2]], "y": ["a"]}), 2, "1 labels for 2 sites"),
        (lines({"x": [[1]], "y": ["a"]}, {"x": [[1]], "y": [1]}), 2, "another type"),
        (lines({"x": [[1]], "y": [1]}, {"x": [[1]], "y": [True]}), 2, "another type"),
        (lines({"x": [[1]], "y": [["a", 1]]}), 1, "another type"),
        (lines({"x": [[1]], "y": [[]]}), 1, "empty"),
        (lines({"x": [[1]], "y": [1.5]}), 1, "cannot be a label"),
        (lines({"x": [[1, 2]], "y": ["a"]}, {"x": [[1]], "y": ["a"]}), 2, "1 features per site"),
        (lines({"x": [[1, 2], [1]], "y": ["a", "b"]}), 1, "row 1 of 'x' has 1 entries"),
        (lines({"x": [[1, "b"]], "y": ["a"]}), 1, "must be numbers"),
        (lines({"x": [1, 2], "y": ["a", "b"]}), 1, "write [[1.5], [2.5]]"),
        (lines({"x": [], "y": []}), 1, "empty"),
        (lines(GRAPH | {"edges": [[0, -1]]}), 1, "0 to 1"),
        (lines(GRAPH | {"edges": [[0, 2]]}), 1, "0 to 1"),
        (lines(GRAPH | {"edges": [[0, 0.5]]}), 1, "pair of node numbers"),
        (lines(GRAPH | {"edges": [[0, 1]], "edge_x": [[1], [2]]}), 1, "edge_features has 2"),
        (lines({"x": [{"w": None}], "y": ["a"]}), 1, "feature 'w' is None"),
        (b"\xff\xfe{}\n", 1, "not UTF-8"),
        ("[" * 100_000 + "\n", 1, "nested too deeply"),
    ],
    "a.jsonl.gz": [
        (gzip.compress(CHAINS.encode() * 200)[:-20], None, "ends in the middle"),
        (b"\x1f\x8b" + b"garbage" * 9, 1, "damaged"),
    ],
    "a.conll": [("The DT B\ncat B\n", 2, "2 columns")],
    "a.ts": [
        ("1,2:a\n", 1, "begins with lines"),
        ("@classLabel true a\n@data\n1,2:b\n", 3, "not among"),
        ("@classLabel true a\n@data\n1,?:a\n", 3, "not a number"),
    ],
}


CASES = [(name, *fault) for name, rows in FAULTS.items() for fault in rows]


@pytest.mark.parametrize(("name", "text", "line", "words"), CASES)
def test_faults_name_file_line_and_remedy(tmp_path: Path, name: str, text: str, line: int | None, words: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    number = str(line) if line else "[0-9]+"
    assert words in message and re.search(f"{re.escape(str(path))}, line {number}", message)
    assert message.endswith(".") and "\n" not in message


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.jsonl", "No such file"),
        (tmp_path, "no folder images"),
        (write(tmp_path / "empty.jsonl", ""), "no instances"),
        (write(tmp_path / "a.docx", "x"), "does not tell the format"),
        (write(tmp_path / "bad.npz", "x"), "not a NumPy archive"),
    ):
        with pytest.raises(InputError, match=words):
            read(path)


def test_check_lists_every_problem(tmp_path: Path) -> None:
    bad = lines({"x": [[1]], "y": ["a"]}, {"x": [[1]], "y": []}, {"x": [[1]], "y": ["b"]}, {"x": 3})
    data, problems = check(write(tmp_path / "a.jsonl", bad))
    assert data is not None and data.lines == [1, 3]
    assert [re.search(r"line (\d)", p)[1] for p in problems] == ["2", "4"]  # type: ignore[index]


def test_errors_of_a_model_speak_of_lines(tmp_path: Path) -> None:
    train = read(write(tmp_path / "a.jsonl", lines({"x": [[1.0]], "y": ["a"]}, {"x": [[2.0]], "y": ["b"]})))
    model = ms.CRF().fit(train.X, train.labels)
    test = read(write(tmp_path / "b.jsonl", "\n" + lines({"x": [[1.0]], "y": ["c"]})))
    assert model.score(test.X, test.labels) == 0.0  # a label never met is wrong
    wide = read(write(tmp_path / "c.jsonl", "\n" + lines({"x": [[1.0]], "y": ["a"]}, {"x": [[1.0]], "y": ["c"]})))
    with pytest.raises(InputError, match=r"c\.jsonl, line 3, site 0: label 'c' is not among"), wide.places():
        model.decision_gap(wide.X, wide.labels)


def test_parts_have_all_instances_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(*({"x": [[k]], "y": [k % 2]} for k in range(10))))
    parts = list(read_parts(path, 4))
    assert [len(p) for p in parts] == [4, 4, 2]
    assert [int(x[0, 0]) for p in parts for x in p.X] == list(range(10)) and parts[2].lines == [9, 10]


@pytest.mark.slow
def test_reading_needs_little_more_memory_than_the_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "big.jsonl"
    with path.open("w") as file:
        for _ in range(2000):
            file.write(json.dumps({"x": rng.normal(size=(40, 20)).round(4).tolist(), "y": ["a", "b"] * 20}) + "\n")
    told: list[tuple[int, int | None]] = []
    tracemalloc.start()
    data = read(path, Options(progress=lambda done, total: told.append((done, total))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    features = sum(x.nbytes for x in data.X)
    assert features == 2000 * 40 * 20 * 8
    assert peak < 1.4 * features
    assert len(told) > 5 and told[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_long_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="longer than"):
        list(Stream(write(tmp_path / "a.jsonl", "x" * 200), limit=100 / MAX_LINE).lines())


def test_embedded_sentences() -> None:
    train, test = chunking(), chunking("test")
    flat = [tag for y in train.labels for tag in y]
    assert len(train) == 60 and 0.4 < sum(tag is None for tag in flat) / len(flat) < 0.6
    assert all(isinstance(tag, str) for y in test.labels for tag in y)


def test_features_that_were_read_are_not_copied_again(tmp_path: Path) -> None:
    records = [{"x": np.arange(6 * k, 6 * k + 6).reshape(3, 2).tolist(), "y": [0, 1, 1]} for k in range(4)]
    data = read(write(tmp_path / "a.jsonl", lines(*records)))
    for which, shared in (([0, 1, 2, 3], True), ([1, 2], True), ([0, 2], False), ([1, 0], False)):
        X = [data.X[b] for b in which]
        _, rows = FeatureSchema.learn(X)
        assert np.array_equal(rows.matrix, np.concatenate(X))
        assert np.shares_memory(rows.matrix, data.X[which[0]]) == shared

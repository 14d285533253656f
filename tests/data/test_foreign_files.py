"""Files of other programs: Hugging Face's columns, spaCy's documents, long tables as CSV and Parquet."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import InputError, UnsupportedError

WORDS = [["Anna", "sings"], ["in", "Rome", "Italy"]]
TAGS = [["B-PER", "O"], ["O", "B-LOC", "B-LOC"]]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_columns_of_hugging_face(tmp_path: Path) -> None:
    records = []
    for number, (words, tags) in enumerate(zip(WORDS, TAGS, strict=True)):
        records.append({"id": str(number), "tokens": words, "pos_tags": [0] * len(words), "ner_tags": tags})
    data = ms.data.read(lines(tmp_path / "a.jsonl", *records))
    assert data.kind == "chain" and data.labels == TAGS and data.ids == ["0", "1"]
    plain = ms.data.read(lines(tmp_path / "b.jsonl", *({"x": w, "y": t} for w, t in zip(WORDS, TAGS, strict=True))))
    assert data.X == plain.X
    other = ms.data.read(tmp_path / "a.jsonl", ms.data.Options(columns=("pos_tags",)))
    assert other.labels == [[0, 0], [0, 0, 0]]
    with pytest.raises(InputError, match="line 1: there is no column 'gold'"):
        ms.data.read(tmp_path / "a.jsonl", ms.data.Options(columns=("gold",)))
    numbers = [{"tokens": ["a", "b"], "labels": [1, -100]}, {"tokens": ["c"], "labels": [0]}]
    padded = ms.data.read(lines(tmp_path / "c.jsonl", *numbers), ms.data.Options(missing_label=-100))
    assert padded.labels == [[1, None], [0]]
    assert ms.data.read(lines(tmp_path / "d.jsonl", {"tokens": ["a", "b"]})).y is None


def document(text: str, entities: list[Any] | None, sep: str = " ") -> dict[str, Any]:
    """A document as spaCy's Doc.to_json writes it."""
    tokens, at = [], 0
    for number, word in enumerate(text.split(sep)):
        tokens.append({"id": number, "start": at, "end": at + len(word)})
        at += len(word) + len(sep)
    found = {"text": text, "tokens": tokens}
    return found if entities is None else {**found, "ents": entities}


def test_documents_of_spacy(tmp_path: Path) -> None:
    entities = [{"start": 0, "end": 8, "label": "GPE"}, {"start": 12, "end": 16, "label": "PER"}]
    data = ms.data.read(lines(tmp_path / "a.jsonl", document("New York has Anna", [entities[0]]), document("x", [])))
    assert data.labels == [["B-GPE", "I-GPE", "O", "O"], ["O"]]
    assert data.X == ms.data.read(lines(tmp_path / "b.jsonl", {"x": ["New", "York", "has", "Anna"]}, {"x": ["x"]})).X
    assert ms.data.read(lines(tmp_path / "c.jsonl", document("New York", None))).y is None


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (document("New York", [{"start": 1, "end": 8, "label": "GPE"}]), "does not begin and end with tokens"),
        (document("a b", [{"start": 0, "end": 1, "label": "X"}, {"start": 0, "end": 3, "label": "Y"}]), "overlaps"),
        (document("a b", [{"start": 0, "label": "X"}]), "entity 0 needs 'start' and 'end'"),
        (document("a b", "none"), "'ents' should be a list"),  # type: ignore[arg-type]
        ({"tokens": [{"id": 0}]}, "token 0 has no text"),
        ({"text": "a", "tokens": [{"start": 1, "end": 0}]}, "token 0 needs 'start' and 'end'"),
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "1 labels for 2 sites"),
    ],
)
def test_documents_that_cannot_be_used(record: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        ms.data.read(lines(tmp_path / "a.jsonl", record))
    assert "a.jsonl, line 1" in str(error.value) and words in str(error.value)


def test_tables_of_numbers_and_of_words(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence,size,tag\n1,0.5,a\n1,1.5,\n2,2.5,b\n1,3.5,a\n")
    data = ms.data.read(path)
    assert data.kind == "chain" and data.ids == ["1", "2"] and data.labels == [["a", None, "a"], ["b"]]
    assert [x.tolist() for x in data.X] == [[[0.5], [1.5], [3.5]], [[2.5]]]
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert ms.data.read(tmp_path / "b.csv.gz").labels == data.labels
    words = tmp_path / "c.csv"
    words.write_text('sentence,word,tag\n1,"Anna, dear",B-PER\n1,sings,O\n')
    assert [ms.features.words([[("Anna, dear",), ("sings",)]])[0]] == ms.data.read(words).X
    numbers = tmp_path / "d.csv"
    numbers.write_text("doc,x,gold\n1,0.5,1\n1,1.5,-100\n")
    options = ms.data.Options(columns=("doc", "gold"), missing_label=-100)
    assert ms.data.read(numbers, options).labels == [[1, None]]
    assert ms.data.read(numbers, ms.data.Options(columns=("doc",))).y is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "has no column 'group' or 'sentence'"),
        ("group,x,tag\n1,2\n", "line 2: 2 cells, but the first line names 3 columns"),
        ("group,group\n1,2\n", "line 1: the first line must name every column once"),
        ("", "line 1: the first line must name"),
        ('group,x,tag\n1,"2,a\n', "not CSV"),
        ("group,tag\n1,a\n", "no column of features"),
        ("group,x,tag\n", "has no rows"),
        ("group,x,tag\n,1,a\n", "row 0 of column 'group' is missing"),
        ("group,x,z,tag\n1,1,2,a\n1,,2,b\n", "row 1 of column 'x' is empty"),
        ("group,x,w,tag\n1,1,u,a\n1, ,v,b\n", "row 1 of column 'x' is empty"),
        ("group,x,tag\n1,nan,a\n", "row 0 of column 'x' holds 'nan'"),
        ("group,x,tag\n1,1,a\n1,1e999,b\n", "row 1 of column 'x' holds '1e999'"),
    ],
)
def test_tables_that_cannot_be_used(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError) as error:
        ms.data.read(tmp_path / "a.csv")
    assert "a.csv" in str(error.value) and words in str(error.value)


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["1", "-2", ""], [1, -2, None]),
        (["--1", "2", ""], ["--1", "2", None]),
        (["01", "1", "0"], ["01", "1", "0"]),
        (["9" * 5000, "1", "2"], ["9" * 5000, "1", "2"]),
    ],
)
def test_labels_of_tables_are_whole_numbers_only_if_all_are_written_so(
    cells: list[str], labels: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("group,x,tag\n" + "".join(f"1,2,{cell}\n" for cell in cells))
    assert ms.data.read(tmp_path / "a.csv").labels == [labels]


def test_other_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("group,x,tag\n1,2,a\n")
    with pytest.raises(InputError, match="has no column 'doc'; it has 'group', 'x', 'tag'"):
        ms.data.read(tmp_path / "a.csv", ms.data.Options(columns=("doc", "tag")))
    with pytest.raises(InputError, match="a table of rows, which holds chains, not grids"):
        ms.data.read(tmp_path / "a.csv", ms.data.Options(structure="grid"))


def test_tables_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = ["doc,a,b,gold"]
    for k in range(20):
        for _ in range(4):
            tag = int(rng.integers(2))
            rows.append(f"{k},{tag + 0.1 * rng.normal():.3f},{rng.normal():.3f},{'xy'[tag]}")
    data, model = tmp_path / "a.csv", tmp_path / "m.safetensors"
    data.write_text("\n".join(rows) + "\n")
    named = ["--columns", "doc,gold"]
    assert main(["check", str(data), *named]) == 0
    assert main(["fit", str(data), "-o", str(model), "--method", "crf", *named]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(model), str(data), "--json", *named]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    assert main(["predict", str(model), str(data), *named]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["id"] == "0"
    assert main(["compare", str(data), "--methods", "crf", "--cv", "2", "--no-curves", *named]) == 0


def test_parquet_without_pyarrow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UnsupportedError, match="Parquet files need pyarrow; run pip install pyarrow, or save"):
        ms.data.read(tmp_path / "a.parquet")


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pyarrow's own functions in small: the bytes are those of a JSON object of columns."""

    class Invalid(Exception):
        pass

    def read_table(data: bytes) -> Any:
        try:
            return SimpleNamespace(to_pydict=lambda: json.loads(data))
        except ValueError:
            raise Invalid from None

    arrow = SimpleNamespace(BufferReader=lambda data: data, ArrowInvalid=(Invalid, ValueError))
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(read_table=read_table))  # type: ignore[arg-type]
    table = {"sentence": [1, 1, 2], "size": [0.5, 1.5, 2.5], "label": ["a", None, "b"]}
    (tmp_path / "a.parquet").write_text(json.dumps(table))
    data = ms.data.read(tmp_path / "a.parquet")
    assert data.labels == [["a", None], ["b"]] and data.X[0].tolist() == [[0.5], [1.5]]
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(InputError, match="is damaged or not a Parquet file"):
        ms.data.read(tmp_path / "b.parquet")

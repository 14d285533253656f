"""Columns in and out, several labels at once, pages of models, capitals, completion and odd characters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mssvm.cli import main
from mssvm.data.embedded import write_chunking


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences in columns, and a model of them."""
    folder = tmp_path_factory.mktemp("text")
    train, _ = write_chunking(folder)
    assert main(["fit", str(train), "-o", str(folder / "m.st"), "--method", "CRF", "--max-iter", "15"]) == 0
    return folder


def chunks(tags: list[str]) -> set[tuple[int, int, str]]:
    """Chunks by the rules of conlleval: one ends before O, B and another name, and begins at what is left."""
    found, start = set(), None
    for t, tag in enumerate([*tags, "O"]):
        before, here = (tags[t - 1] if t else "O"), tag
        if start is not None and (here == "O" or here[0] == "B" or here[1:] != before[1:]):
            found.add((start, t, before[2:]))
            start = None
        if here != "O" and start is None:
            start = t
    return found


# ----------------------------------------------------------------------------------------- columns


def test_columns_come_back_with_one_more_that_scores_the_same(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = next(tagged.glob("*test*"))
    code, out, _ = run(capsys, "predict", tagged / "m.st", test, "--format", "conll")
    assert code == 0
    sentences = [[line.split() for line in part.split("\n")] for part in out.strip().split("\n\n")]
    text = "\n".join(line for line in test.read_text().splitlines() if not line.startswith("# "))
    given = [[line.split() for line in part.split("\n")] for part in text.strip().split("\n\n")]
    assert [[row[:-1] for row in rows] for rows in sentences] == given
    gold = [chunks([row[-2] for row in rows]) for rows in sentences]
    said = [chunks([row[-1] for row in rows]) for rows in sentences]
    right = sum(len(a & b) for a, b in zip(gold, said, strict=True))
    f1 = 2 * right / (sum(map(len, gold)) + sum(map(len, said)))
    found = json.loads(run(capsys, "evaluate", tagged / "m.st", test, "--json")[1])
    assert 0.3 < f1 < 1 and found["span_f1"]["f1"] == pytest.approx(f1, abs=1e-12)
    assert found["span_f1"]["support"] == sum(map(len, gold))


def test_the_ending_of_the_output_says_columns_too(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tagged / "new.tsv"
    new.write_text("# text\nThe\tDT\ncat\tNN\n\n\nIt\tPRP\n")
    for name, lines in (("out.bio.gz", 0), ("out.jsonl", 2), ("out.conll", 5)):
        code, *_ = run(capsys, "predict", tagged / "m.st", new, "--unlabelled", "-o", tagged / name)
        assert code == 0 and (not lines or len((tagged / name).read_text().splitlines()) == lines)
    rows = (tagged / "out.conll").read_text().splitlines()
    assert [row.split("\t")[:2] for row in rows] == [["The", "DT"], ["cat", "NN"], [""], ["It", "PRP"], [""]]
    assert all(len(row.split("\t")) == 3 for row in rows if row)


def test_columns_cannot_hold_everything(tagged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "predict", tagged / "m.st", tagged / "x.txt", "--format", "conll", "--marginals")
    assert (code, out) == (2, "") and "need JSON lines" in err
    (tmp_path / "a.jsonl").write_text('{"x": ["a", "b"], "y": ["New York", "B"]}\n')
    (tmp_path / "a.txt").write_text("a\nb\n")
    assert run(capsys, "fit", tmp_path / "a.jsonl", "-o", tmp_path / "m.st", "--method", "crf")[0] == 0
    code, _, err = run(capsys, "predict", tmp_path / "m.st", tmp_path / "a.txt", "-o", tmp_path / "out.conll")
    assert code == 2 and "'New York' has blanks" in err and not (tmp_path / "out.conll").exists()


def test_names_may_be_in_capitals(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = next(tagged.glob("*test*"))
    code, out, _ = run(
        capsys, "compare", test, "--methods", "CRF,Ssvm,crf", "--cv", "2", "--no-curves", "--max-iter", "2"
    )
    assert code == 0 and "CRF" in out and "SSVM" in out
    code, _, err = run(capsys, "fit", test, "-o", tagged / "no.st", "--method", "svm")
    assert code == 2 and "'svm' is not one of 'mssvm'" in err

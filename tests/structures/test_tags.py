"""Schemes of tags: which transitions BIO and BIOES forbid, in Python and on the command line."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import InfeasibleError, InputError
from mssvm.structures.tags import illegal_pairs

BIO = ["B-x", "B-y", "I-x", "I-y", "O"]
BIOES = ["B-x", "E-x", "I-x", "O", "S-x", "S-y"]


def chunks(tags: tuple[str, ...], scheme: str) -> bool:
    """Whether the tags are written by some list of chunks: every cut of the sites into chunks is tried."""
    return tags in written(len(tags), scheme)


def written(n: int, scheme: str) -> set[tuple[str, ...]]:
    """All sequences of n tags that chunks of the types x and y can be written as."""
    if n == 0:
        return {()}
    out = {("O", *rest) for rest in written(n - 1, scheme)}
    for size, name in product(range(1, n + 1), "xy"):
        if scheme == "bio":
            tags = [f"B-{name}", *[f"I-{name}"] * (size - 1)]
        elif size == 1:
            tags = [f"S-{name}"]
        else:
            tags = [f"B-{name}", *[f"I-{name}"] * (size - 2), f"E-{name}"]
        out |= {(*tags, *rest) for rest in written(n - size, scheme)}
    return out


@pytest.mark.parametrize(("scheme", "classes"), [("bio", BIO), ("bioes", BIOES)])
def test_legal_sequences_are_those_that_chunks_are_written_as(scheme: str, classes: list[str]) -> None:
    forbidden = set(illegal_pairs(scheme, classes))
    for n in range(1, 5):
        for tags in product(classes, repeat=n):
            padded = [None, *tags, None]
            legal = not any(pair in forbidden for pair in zip(padded[:-1], padded[1:], strict=True))
            assert legal == chunks(tags, scheme), tags


@pytest.mark.parametrize("decode", ["map", "marginal", "auto"])
@pytest.mark.parametrize(("scheme", "classes"), [("bio", BIO), ("bioes", BIOES), ("bio", ["B", "I", "O"])])
def test_no_prediction_is_illegal(scheme: str, classes: list[str], decode: str) -> None:
    rng = np.random.default_rng(0)
    forbidden = set(illegal_pairs(scheme, classes))
    X = [rng.normal(size=(n, 4)) for n in (1, 2, 5, 9)]
    model = ms.HCRF(ms.Chain(forbidden=scheme), classes=classes, random_state=0)
    model.fit(X, [["O"] * len(x) for x in X])
    model.coef_ = 5.0 * rng.normal(size=model.coef_.shape)  # weights of no sense: only the scheme keeps order
    for tags in model.predict(X, decode=decode):
        padded = [None, *tags.tolist(), None]
        assert not any(pair in forbidden for pair in zip(padded[:-1], padded[1:], strict=True))


@pytest.mark.parametrize(
    ("scheme", "classes", "words"),
    [
        ("bio", ["noun", "verb"], "forbidden='bio' needs the tags O, B-x, I-x, but there is the label 'noun'"),
        ("bio", BIOES, "(or is it 'bioes'?)"),
        ("bio", [0, 1], "there is the label 0"),
        ("bio", ["I-x", "O"], "there is the tag 'I-x' and no 'B-x'"),
        ("bioes", ["B-x", "I-x", "O"], "there is the tag 'B-x' and no 'E-x'"),
        ("iob", BIO, "or be 'bio' or 'bioes', got 'iob'"),
    ],
)
def test_other_labels_are_refused(scheme: str, classes: list[Any], words: str) -> None:
    X = [np.ones((len(classes), 1))]
    with pytest.raises(InputError) as error:
        ms.CRF(ms.Chain(forbidden=scheme)).fit(X, [classes])
    assert words in str(error.value)


def test_labels_that_break_the_scheme_are_named_by_the_callers_index() -> None:
    X = [np.ones((2, 1))] * 4
    y = [None, ["B", "I"], [None, None], ["O", "I"]]
    with pytest.raises(InfeasibleError, match="y, instance 3: its labels contradict what the structure forbids"):
        ms.CRF(ms.Chain(forbidden="bio"), classes=["B", "I", "O"]).fit(X, y)


def test_chunks_are_decoded_as_a_whole() -> None:
    """By marginals the tags of a site fit nothing; of tags that are no chunks the most probable are best."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(6, 2)) for _ in range(20)]
    y = [[BIO[k] if k else "O" for k in rng.integers(5, size=6)] for _ in X]
    model = ms.CRF(ms.Chain(), C=5.0).fit(X, y)
    other = ms.CRF(ms.Chain(), C=5.0).fit(X, [[tag.replace("-", "_") for tag in tags] for tags in y])
    differ = [
        not np.array_equal(*(m.predict([x], decode=d)[0] for d in ("map", "marginal"))) for m in [model] for x in X
    ]
    assert any(differ)
    for x in X:
        assert np.array_equal(model.predict([x])[0], model.predict([x], decode="map")[0])
        assert np.array_equal(other.predict([x])[0], other.predict([x], decode="marginal")[0])


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_constraints_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "a.conll"
    data.write_text("Anna B-PER\nSmith I-PER\nsings O\n\nin O\nRome B-LOC\n\n" * 3)
    model = tmp_path / "m.safetensors"
    assert run(capsys, "fit", data, "-o", model, "--method", "crf", "--constraints", "bio")[0] == 0
    assert ms.load(model).structure_.forbidden == "bio"
    code, _, err = run(capsys, "fit", data, "-o", model, "--constraints", "bioes")
    assert code == 2 and "no 'E-LOC'" in err
    compared = run(capsys, "compare", data, "--methods", "crf", "--cv", "2", "--constraints", "bio", "--no-curves")
    assert compared[0] == 0
    rows = tmp_path / "b.jsonl"
    rows.write_text('{"x": [[1.0], [2.0]], "y": "walk"}\n{"x": [[1.0], [2.0]], "y": "run"}\n')
    code, _, err = run(capsys, "fit", rows, "-o", model, "--constraints", "bio")
    assert code == 2 and "--constraints is for chains" in err


def test_evaluate_by_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "a.conll"
    data.write_text("Anna B-PER\nSmith I-PER\nsings O\n\nin O\nRome B-LOC\n\n" * 3)
    model = tmp_path / "m.safetensors"
    assert run(capsys, "fit", data, "-o", model, "--method", "crf", "--constraints", "bio")[0] == 0
    other = tmp_path / "b.conll"
    other.write_text("Anna B-PER\nSmith I-PER\nsings O\n\nin O\nRome B-PER\n\n")
    code, out, _ = run(capsys, "evaluate", model, other, "--by-class")
    assert code == 0
    for name in ("By type of span", "LOC", "PER", "micro avg", "macro avg", "weighted avg"):
        assert name in out
    found = json.loads(run(capsys, "evaluate", model, other, "--json")[1])["spans_by_type"]
    assert found["PER"]["precision"] == 1.0 and found["PER"]["recall"] == 0.5 and found["PER"]["support"] == 2
    assert found["LOC"]["precision"] == 0.0 and found["LOC"]["support"] == 0

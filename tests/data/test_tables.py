"""Words, units and tables: what users bring beside arrays, against the same data written out by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import mssvm as ms
from mssvm.core.errors import InputError

SENTENCES = [["The", "Cat", "sat"], ["A", "dog-2"], ["The", "dog", "sat", "."]]
TAGS = [["D", "N", "V"], ["D", "N"], ["D", None, "V", "."]]


def test_words_in_python_are_words_in_files(tmp_path: Path) -> None:
    file = tmp_path / "words.jsonl"
    lines = [json.dumps({"x": x, "y": y}) for x, y in zip(SENTENCES, TAGS, strict=True)]
    file.write_text("\n".join(lines))
    read = ms.data.read(file)
    here = ms.CRF(ms.Chain(), random_state=0).fit(SENTENCES, TAGS)
    there = ms.CRF(ms.Chain(), random_state=0).fit(read.X, read.labels)
    assert here.schema_.to_json() == there.schema_.to_json() and np.array_equal(here.coef_, there.coef_)
    forms: list[Any] = [SENTENCES, [np.array(s) for s in SENTENCES], [tuple(s) for s in SENTENCES], read.X]
    for X in (*forms, ms.features.words(SENTENCES), [[], *SENTENCES][1:]):
        assert [p.tolist() for p in here.predict(X)] == [p.tolist() for p in there.predict(read.X)]


def test_the_features_of_a_word() -> None:
    expected = "w=cat-9 pre2=ca suf2=-9 suf3=t-9 shape=Xx-9 w<=the end>"
    assert ms.features.words([["The", "Cat-9"]])[0][1] == expected.split()
    found = ms.features.words(
        [[("The", "DT"), ("cat", "NN"), ("sat", "VB")]], window=2, prefixes=(), suffixes=(1,), shape=False
    )
    assert found[0][0] == ["w=the", "suf1=e", "c1=DT", "end<", "w>=cat", "c1>=NN", "end<<", "w>>=sat", "c1>>=VB"]
    assert ms.features.words([["a", "b"]], window=0, prefixes=(), suffixes=(), shape=False) == [[["w=a"], ["w=b"]]]


def test_words_in_a_pipeline() -> None:
    step = FunctionTransformer(ms.features.words, kw_args={"window": 0})
    pipe = make_pipeline(step, ms.CRF(ms.Chain())).fit(SENTENCES, TAGS)
    assert [len(p) for p in pipe.predict(SENTENCES)] == [3, 2, 4]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: ms.features.words(["The cat"]), "split the text first"),
        (lambda: ms.features.words([["a", 3]]), "X, instance 0, site 1: 3 is neither"),
        (lambda: ms.features.words([["a"]], window=-1), "window must be"),
        (lambda: ms.features.words([["a"]], suffixes=(0,)), "suffixes must be"),
        (lambda: ms.CRF(ms.Chain()).fit([["a", "b"], np.ones((2, 3))], [[0, 1], [0, 1]]), "instance 1: words here"),
        (lambda: ms.CRF(ms.Chain()).fit([["a", 2]], [[0, 1]]), "instance 0, site 1: 2 is neither"),
    ],
)
def test_words_that_are_none(act: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        act()


# ----------------------------------------------------------------------------------------- units


def ragged(n: int = 12) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    y = [rng.integers(0, 2, size=t) for t in rng.integers(2, 7, size=n)]
    return [np.stack([1e3 * (c + rng.normal(size=len(c))) + 5e3, np.full(len(c), 7.1)], axis=1) for c in y], y


def test_standardise_is_the_standard_scaler_of_all_sites() -> None:
    X, _ = ragged()
    there = StandardScaler().fit(np.concatenate(X))
    here = ms.features.Standardise().fit(X)
    assert np.allclose(here.mean_, there.mean_) and np.allclose(here.scale_, there.scale_) and here.scale_[1] == 1.0
    assert np.allclose(np.concatenate(here.transform(X)), there.transform(np.concatenate(X)))
    assert np.allclose(np.concatenate(here.inverse_transform(here.transform(X))), np.concatenate(X))
    assert list(here.get_feature_names_out()) == ["x0", "x1"]
    packed = [sparse.csr_array(x) for x in X]
    alone = ms.features.Standardise(with_mean=False).fit(packed)
    assert np.allclose(alone.scale_, there.scale_) and not alone.mean_.any()
    assert np.allclose(alone.transform(packed)[0].toarray(), X[0] / there.scale_)


def test_standardise_takes_what_estimators_take() -> None:
    X, _ = ragged()
    scaler = ms.features.Standardise().fit(X)
    graph = scaler.transform([ms.Graph(X[0], [[0, 1]])])[0]
    assert np.allclose(graph.nodes, scaler.transform(X)[0]) and graph.edges.tolist() == [[0, 1]]
    both = scaler.transform([{"x": X[0], "edge_x": X[0][1:]}])[0]
    assert np.allclose(both["x"], graph.nodes) and both["edge_x"] is not None
    pictures = np.arange(24.0).reshape(2, 2, 3, 2)
    assert np.allclose(
        ms.features.Standardise().fit_transform(list(pictures)), ms.features.Standardise().fit_transform(pictures)
    )


def test_a_pipeline_learns_in_any_units(tmp_path: Path) -> None:
    X, y = ragged()
    pipe = make_pipeline(ms.features.Standardise(), ms.CRF(ms.Chain(), random_state=0)).fit(X, y)
    scaled = StandardScaler().fit(np.concatenate(X))
    alone = ms.CRF(ms.Chain(), random_state=0).fit([scaled.transform(x) for x in X], y)
    assert pipe.score(X, y) == alone.score([scaled.transform(x) for x in X], y) > 0.6
    search = GridSearchCV(clone(pipe), {"standardise__with_mean": [True, False]}, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.5
    pipe[0].save(tmp_path / "units.safetensors")
    pipe[1].save(tmp_path / "model.safetensors")
    again = make_pipeline(
        ms.features.Standardise.load(tmp_path / "units.safetensors"), ms.load(tmp_path / "model.safetensors")
    )
    assert [p.tolist() for p in again.predict(X)] == [p.tolist() for p in pipe.predict(X)]


def test_output_as_data_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def frame(table: Any, columns: Any, index: Any) -> Any:
        return ("frame", table.shape, list(columns))

    X, _ = ragged()
    scaler = clone(ms.features.Standardise().set_output(transform="pandas")).fit(X)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=frame))
    assert scaler.transform(X)[0] == ("frame", X[0].shape, ["x0", "x1"])
    assert isinstance(scaler.set_output(transform="default").transform(X)[0], np.ndarray)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([np.ones((2, 2)), np.ones((2, 3))], "same number of features"),
        ([np.array([[1.0, np.nan]])], "instance 0: features must be"),
        ([sparse.csr_array(np.ones((2, 2)))], "with_mean=False"),
        ([["a", "b"]], "instance 0: features must be"),
        ([], "there are no sites"),
    ],
)
def test_standardise_refuses(X: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ms.features.Standardise().fit(X)


def test_units_of_other_data_and_files_are_refused(tmp_path: Path) -> None:
    scaler = ms.features.Standardise().fit([np.eye(3)])
    with pytest.raises(InputError, match="instance 1: 2 features per site, but the mean was learned from 3"):
        scaler.transform([np.eye(3), np.eye(2)])
    with pytest.raises(InputError, match="must be one of"):
        scaler.set_output(transform="polars")
    (tmp_path / "no").write_bytes(b"not a file of units")
    with pytest.raises(InputError, match=r"no is not a file written by Standardise\.save"):
        ms.features.Standardise.load(tmp_path / "no")


# ----------------------------------------------------------------------------------------- tables


def test_rows_with_lengths() -> None:
    X, y = ragged(3)
    lengths = [len(x) for x in X]
    assert all(map(np.array_equal, ms.data.split(np.concatenate(X), lengths), X))
    assert all(map(np.array_equal, ms.data.split(np.concatenate(y), lengths), y))
    assert ms.data.split(["a", "b", "c"], [2, 0, 1]) == [["a", "b"], [], ["c"]]
    assert ms.data.split(sparse.coo_array(np.eye(3)), [1, 2])[1].toarray().tolist() == [[0, 1, 0], [0, 0, 1]]
    for lengths, words in (([2, 2], "add up to 4, but there are 3"), ([1.5, 1.5], "whole numbers"), ([4, -1], "whole")):
        with pytest.raises(InputError, match=words):
            ms.data.split([1, 2, 3], lengths)


FRAME: dict[str, Any] = {
    "s": np.array(["b", "a", "b", "a", "b"], dtype=object),
    "word": np.array(["The", "A", "cat", "dog", "sat"], dtype=object),
    "n": np.array([1, 2, 3, 4, 5]),
    "tag": np.array(["D", "D", "N", None, float("nan")], dtype=object),
}


def test_a_long_table_becomes_chains_and_back() -> None:
    numbers = ms.data.from_frame(FRAME, "s", "tag", ["n"])
    assert [x.tolist() for x in numbers.X] == [[[1], [3], [5]], [[2], [4]]]
    assert numbers.y == [["D", "N", None], ["D", None]] and numbers.ids == ["b", "a"] and numbers.lines == [0, 1]
    text = ms.data.from_frame(FRAME, "s", "tag", ["word"])
    assert ms.features.words([["The", "cat", "sat"], ["A", "dog"]]) == text.X
    both = ms.data.from_frame(FRAME, group="s", label="tag")
    assert both.X[1] == [{"word": "A", "n": 2}, {"word": "dog", "n": 4}]
    clf = ms.CRF(ms.Chain()).fit(both.X, both.labels)
    marks = [np.array([10, 11, 12]), np.array([20, 21])]
    assert ms.data.to_column(FRAME, "s", marks).tolist() == [10, 20, 11, 21, 12]
    assert len(ms.data.to_column(FRAME, "s", clf.predict(both.X))) == 5


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({}, {"label": "label"}, "no column 'label'; it has 's', 'word'"),
        ({"s": np.array(["a", None, "a", "a", "a"], dtype=object)}, {}, "row 1 of column 's' is missing"),
        ({"word": np.array(["a", None, "a", "a", "a"], dtype=object)}, {}, "row 1 of column 'word' holds None"),
        ({}, {"features": []}, "no column of features"),
    ],
)
def test_tables_that_cannot_be(change: Any, arguments: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ms.data.from_frame({**FRAME, **change}, **{"group": "s", **arguments})

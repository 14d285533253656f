"""Votes of several annotators in JSON lines and CoNLL columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mssvm.core.errors import InputError
from mssvm.data.dataset import Dataset
from mssvm.data.readers import Options, read


def read_lines(folder: Path, *records: object) -> Dataset:
    path = folder / "votes.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read(path)


def test_votes_by_annotator_and_by_site_are_the_same(tmp_path: Path) -> None:
    by_annotator = {"x": [[1], [2]], "votes": {"ann": ["B", "I"], "bob": [None, ["B", "O"]]}}
    by_site = {"x": [[1], [2]], "votes": [{"ann": "B"}, {"ann": "I", "bob": ["B", "O"]}]}
    data = read_lines(tmp_path, by_annotator, by_site)
    assert data.kind == "chain"
    assert data.y is None
    assert data.votes == [{"ann": ["B", "I"], "bob": [None, ["B", "O"]]}] * 2


def test_votes_for_whole_sequences_and_for_grids(tmp_path: Path) -> None:
    sequences = read_lines(tmp_path, {"x": [[1], [2]], "votes": {"ann": "walk", "bob": None}})
    assert (sequences.kind, sequences.votes) == ("sequence", [{"ann": "walk", "bob": None}])
    grids = read_lines(tmp_path, {"x": [[[1], [2]]], "votes": {"ann": [[0, 1]]}})
    assert (grids.kind, grids.votes) == ("grid", [{"ann": [[0, 1]]}])


def test_spans_of_labelling_functions_are_tags_and_a_function_left_out_abstains(tmp_path: Path) -> None:
    spans = {"dictionary": [[2, 3, "LOC"], [0, 2, "PER"], [1, 3, "ORG"]], "rule": [], "other": None}
    data = read_lines(tmp_path, {"x": ["Ann", "Lee", "Rome"], "spans": spans}, {"x": ["a"], "y": ["O"]})
    assert data.votes == [{"dictionary": ["B-PER", "I-PER", "B-LOC"], "rule": ["O", "O", "O"]}, {}]
    assert data.y == [[None, None, None], ["O"]]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"x": [[1]], "votes": {"ann": ["B", "I"]}}, "votes of 'ann': 2 labels for 1 sites"),
        ({"x": [[1]], "votes": {"ann": [1.5]}}, "votes of 'ann': 1.5 cannot be a label"),
        ({"x": [[1]], "y": ["B"], "votes": {"ann": [1]}}, "label 1 is of another type"),
        ({"x": [[1]], "votes": [{"ann": "B"}, {}]}, "'votes' has 2 entries for 1 sites"),
        ({"x": [[1]], "votes": ["B"]}, "'votes' of site 0 should be an object"),
        ({"x": [[1]], "y": ["B"], "votes": 3}, "'votes' should be an object"),
        ({"x": ["a"], "spans": {"f": [[0, 2, "X"]]}}, "[0, 2, 'X'] is no span [start, stop, type] of 1 sites"),
        ({"x": ["a"], "spans": {"f": 3}}, "spans should be a list"),
        ({"x": ["a"], "votes": {"f": ["O"]}, "spans": {"f": []}}, "'f' is in 'votes' and in 'spans'"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, record: object, words: str) -> None:
    with pytest.raises(InputError, match="line 1: ") as error:
        read_lines(tmp_path, record)
    assert words in str(error.value)


def test_columns_of_annotators(tmp_path: Path) -> None:
    path = tmp_path / "votes.conll"
    path.write_text("the DT O O\ncat NN B|I _\n\nsat VB O B\n")
    data = read(path, Options(vote_columns=("ann", "bob")))
    assert data.votes == [{"ann": ["O", ["B", "I"]], "bob": ["O", None]}, {"ann": ["O"], "bob": ["B"]}]
    assert data.y is None
    with pytest.raises(InputError, match="4 columns, too few for words and the votes of 4 annotators"):
        read(path, Options(vote_columns=("a", "b", "c", "d")))
    with pytest.raises(InputError, match="fit --annotators learns"):
        _ = data.labels


def test_selected_instances_keep_their_votes(tmp_path: Path) -> None:
    data = read_lines(tmp_path, *({"x": [[b]], "votes": {"ann": [str(b)]}} for b in range(3)))
    assert data.select([2, 0]).votes == [{"ann": ["2"]}, {"ann": ["0"]}]
    assert data.unlabelled() == [[None], [None], [None]]

"""Votes in every form that users give them, as flat arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mssvm.annotators import dawid_skene, majority, simulate
from mssvm.annotators.baselines import vote_shares
from mssvm.annotators.votes import RawVotes, Votes
from mssvm.core.errors import InputError
from mssvm.data.labels import MISSING, LabelVocabulary


def encode(votes: Any, depth: int = 1) -> Votes:
    raw = RawVotes.parse(votes, depth)
    sizes = np.array([len(gold) for gold in raw.gold])
    return Votes.encode(raw, sizes, LabelVocabulary(raw.classes()))


def as_rows(votes: Votes) -> list[tuple[str, int, list[int], int]]:
    rows = []
    for k in range(len(votes)):
        labels = votes.label[votes.ptr[k] : votes.ptr[k + 1]].tolist()
        rows.append((str(votes.names[votes.annotator[k]]), int(votes.site[k]), labels, int(votes.previous[k])))
    return sorted(rows)


def test_both_forms_say_the_same() -> None:
    by_site = [[{"ann": "B", "bob": "B"}, {"ann": "I"}, {"bob": "O"}], [{"bob": "O"}]]
    by_annotator = [{"ann": ["B", "I", None], "bob": ["B", MISSING, "O"]}, {"bob": ["O"]}]
    assert as_rows(encode(by_site)) == as_rows(encode(by_annotator))


def test_a_gold_label_that_stands_for_a_missing_one_hides_no_votes() -> None:
    for votes in ([{"ann": [0, 1], "gold": [-100, 1]}], [[{"ann": 0, "gold": -100}, {"ann": 1, "gold": 1}]]):
        raw = RawVotes.parse(votes, 1, -100)
        assert raw.gold == [[MISSING, 1]]
        assert [labels.tolist() for labels in raw.labels((0, 1))] == [[[0, 1], 1]]


def test_votes_for_nothing_are_refused() -> None:
    for vote in (set(), []):
        with pytest.raises(InputError, match=r"votes, instance 1, site 0: the vote of annotator 'bob' is an empty set"):
            encode([{"ann": ["B", "O"]}, {"bob": [vote, "B"]}])
    with pytest.raises(InputError, match="votes, instance 1: there are no votes"):
        encode([{"ann": ["B", "O"]}, None])


def test_the_previous_vote_is_that_of_the_same_annotator_on_the_site_before() -> None:
    votes = encode([{"ann": ["B", "I", None, "O"]}, {"ann": ["I", {"B", "O"}, "O"]}])
    n = votes.n_classes
    assert [row[3] for row in as_rows(votes)] == [n, 0, n, n, 1, n]


def test_sets_count_in_equal_parts_and_gold_sites_have_no_votes() -> None:
    votes = encode([[{"ann": {"a", "b"}, "bob": "b"}, "a", MISSING]])
    assert votes.counts().tolist() == [[0.5, 1.5], [0.0, 0.0], [0.0, 0.0]]
    assert vote_shares(votes)[1:].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_gold_stands_beside_votes() -> None:
    by_site = RawVotes.parse([[{"ann": "a", "gold": "b"}, {"ann": "b"}]], 1)
    by_annotator = RawVotes.parse([{"ann": ["a", "b"], "gold": ["b", None]}], 1)
    assert by_site.votes == by_annotator.votes == [[(0, "ann", "a"), (1, "ann", "b")]]
    assert by_site.labels(("a", "b"))[0].tolist() == by_annotator.labels(("a", "b"))[0].tolist() == ["b", ["a", "b"]]


def test_labels_keep_gold_and_admit_everything_where_there_are_votes() -> None:
    raw = RawVotes.parse([[[{"ann": 1}, 0], [MISSING, {0, 1}]]], 2)
    (labels,) = raw.labels(raw.classes())
    assert labels.shape == (2, 2)
    assert labels.tolist() == [[[0, 1], 0], [MISSING, {0, 1}]]


def test_one_label_an_instance() -> None:
    votes = encode([{"ann": "cat", "bob": "dog"}, "dog", {"bob": "dog"}], depth=0)
    assert as_rows(votes) == [("ann", 0, [0], 2), ("bob", 0, [1], 2), ("bob", 2, [1], 2)]


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        ({"ann": ["B"]}, "votes must be a sequence"),
        ([{"ann": ["B", "O"], "bob": ["B"]}], "annotator 'bob' has votes for 1 sites, another one for 2"),
    ],
)
def test_what_is_wrong_is_said(votes: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RawVotes.parse(votes, 1)


def test_a_vote_that_is_no_class_is_named_with_its_place() -> None:
    raw = RawVotes.parse([[{"ann": "B"}], [{"ann": "O"}, {"bob": "X"}]], 1)
    with pytest.raises(InputError, match="votes, instance 1, site 1: annotator 'bob' votes 'X'"):
        Votes.encode(raw, np.array([1, 2]), LabelVocabulary(("B", "O")))


def test_dawid_skene_finds_an_adversary_where_the_majority_is_misled() -> None:
    crowd = simulate(200, 10, 3, (0.8, 0.6, 0.1, 0.1), seed=1)
    truth = np.concatenate(crowd.truth)
    by_majority = np.mean(np.concatenate(majority(crowd.votes)) == truth)
    by_tables = np.mean(np.concatenate(dawid_skene(crowd.votes)) == truth)
    assert by_tables > by_majority + 0.2


def test_baselines_take_every_shape_and_keep_gold() -> None:
    assert majority([{"ann": "cat", "bob": "dog"}, "dog", {"bob": "dog"}]).tolist() == ["cat", "dog", "dog"]
    (mask,) = majority([{"ann": np.eye(2, dtype=int), "bob": np.zeros((2, 2), dtype=int), "cat": np.eye(2, dtype=int)}])
    assert mask.tolist() == [[1, 0], [0, 1]]
    (labels,) = majority([[{"ann": "a", "bob": "a", "gold": "b"}, {"ann": "a"}]])
    assert labels.tolist() == ["b", "a"]
    with pytest.raises(InputError, match="holds no instances"):
        majority([])

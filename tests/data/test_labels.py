"""Labels of every kind: order, missing marks, candidate sets, shapes, and the words for what is wrong."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - users' tools (joblib, Dask) pickle what holds MISSING
import re
from typing import Any

import numpy as np
import pytest

from mssvm.core.errors import InputError
from mssvm.data.labels import MISSING, Labels, LabelVocabulary
from mssvm.structures import Chain, Encoder
from mssvm.structures.encoded import Encoded, to_query, to_sample


def test_missing_is_one_object() -> None:
    assert copy.copy(MISSING) is MISSING and copy.deepcopy([MISSING])[0] is MISSING
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert type(MISSING)() is MISSING
    assert repr(MISSING) == "MISSING" and not MISSING


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([["b", "a"], ["a"]], ("a", "b")),
        ([[3, 1], [2]], (1, 2, 3)),
        ([np.array([3, 1]), np.array([2])], (1, 2, 3)),
        ([np.array(["x", "w"])], ("w", "x")),
        ([[("N", 1), ("A", 2)]], (("A", 2), ("N", 1))),
        ([[2, 1.5, np.float32(3)]], (1.5, 2, 3)),
        ([[None, float("nan"), MISSING, "a"]], ("a",)),
        ([[{"a", "c"}, ["b"], frozenset({"d"})]], ("a", "b", "c", "d")),
        ([[np.int64(2), 2, 1]], (1, 2)),
        ([np.array([1.0, np.nan, 0.0])], (0.0, 1.0)),
        ([[True, False]], (False, True)),
    ],
)
def test_classes_are_learned_in_order(y: Any, classes: tuple[Any, ...]) -> None:
    space = LabelVocabulary.learn(y, depth=1)
    assert space.classes == classes
    assert not any(isinstance(c, np.generic) for c in space.classes)


def test_the_order_of_labels_that_do_not_compare_does_not_depend_on_the_data() -> None:
    values = [("b", 3), (3, "b"), ("t",), (1.5, 2), None]
    orders = {
        LabelVocabulary.learn([[values[k] for k in np.random.default_rng(s).permutation(5)]], 1).classes
        for s in range(8)
    }
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", 1], "text ('a') and numbers (1)"),
        ([1, True], "numbers (1) and true and false (True)"),
        ([True, {"a"}], "true and false (True) and text ('a')"),
        ([("a",), "a"], "tuple (('a',)) and text ('a')"),
    ],
)
def test_labels_are_of_one_type_as_in_files(labels: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        LabelVocabulary.learn([labels], 1)
    if not isinstance(labels[1], set):
        with pytest.raises(InputError, match="the labels of classes are of several types"):
            LabelVocabulary.learn([[None]], 1, labels)


def test_labels_that_training_never_met_are_classes_behind_the_others() -> None:
    known = LabelVocabulary(("b", "a"))
    wide = known.widened([["a", "z", None], [{"c", "b"}]], 1)
    assert wide.classes == ("b", "a", "c", "z")
    assert known.widened([["a", MISSING]], 1) is known
    with pytest.raises(InputError, match="y, instance 1, site 0: label 1 is of another type"):
        known.widened([[None, MISSING], [1, 0]], 1)


@pytest.mark.parametrize("classes", [("a\0", "b"), ("a", "a\0"), (-1, 2**63, 2**63 + 1)])
def test_labels_come_back_as_they_are(classes: tuple[Any, ...]) -> None:
    """Text that ends with a zero character, and whole numbers beyond those of the machine, which NumPy changes."""
    vocabulary = LabelVocabulary(classes)
    states = np.arange(len(classes))
    assert vocabulary.decode(states).tolist() == list(classes)
    assert vocabulary.encode([vocabulary.decode(states)], [(len(classes),)]).states.tolist() == states.tolist()


def test_depths() -> None:
    assert LabelVocabulary.learn(["u", None, ["v", "w"]], depth=0).classes == ("u", "v", "w")
    assert LabelVocabulary.learn(np.array([2, 1]), depth=0).classes == (1, 2)
    assert LabelVocabulary.learn([np.array([[1, 255], [0, 1]])], depth=2, missing_label=255).classes == (0, 1)
    assert LabelVocabulary.learn([[["a", None], [{"b"}, "a"]]], depth=2).classes == ("a", "b")


def by_hand(space: LabelVocabulary, sites: list[Any]) -> tuple[list[bool], list[list[bool]]]:
    observed, mask = [], []
    for value in sites:
        missing = value is None or value is MISSING or value != value or value == space.missing_label
        members = value if isinstance(value, (set, frozenset, list)) else [value]
        observed.append(not missing)
        mask.append([missing or c in members for c in space.classes])
    return observed, mask


@pytest.mark.parametrize("kind", ["lists", "objects", "ints", "strings"])
def test_encoding_against_one_site_at_a_time(kind: str) -> None:
    rng = np.random.default_rng(0)
    pool: list[Any] = [0, 1, 2, -1] if kind == "ints" else ["a", "b", "c"]
    if kind in ("lists", "objects"):
        pool += [None, MISSING, float("nan"), {"a", "c"}, ["b"], frozenset({"b", "c"})]
    y: list[Any] = [[pool[k] for k in rng.integers(0, len(pool), n)] for n in (5, 1, 7, 20)]
    expected = [site for row in y for site in row]
    if kind == "objects":
        y = [np.array([*row, None], dtype=object)[:-1] for row in y]
    elif kind != "lists":
        y = [np.array(row) for row in y]
    space = LabelVocabulary.learn(y, 1, missing_label=-1)
    labels = space.encode(y, [(len(row),) for row in y])
    observed, mask = by_hand(space, expected)
    assert labels.observed.tolist() == observed and labels.mask.tolist() == mask
    assert labels.ptr.tolist() == [0, 5, 6, 13, 33]
    single = labels.single
    back = space.decode(labels.states[single])
    assert back.tolist() == [
        next(iter(v)) if isinstance(v, (set, frozenset, list)) else v
        for v, s in zip(expected, single, strict=True)
        if s
    ]
    part = labels.select([2, 0])
    assert part.mask.tolist() == mask[6:13] + mask[:5] and part.ptr.tolist() == [0, 7, 12]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, "U4"])
def test_arrays_are_encoded_at_once(dtype: Any) -> None:
    y = [np.random.default_rng(0).integers(0, 26, 2000).astype(dtype) for _ in range(10)]
    space = LabelVocabulary.learn(y, 1)
    labels = space.encode(y, [(2000,)] * 10)
    assert labels.observed.all() and np.array_equal(space.decode(labels.states), np.concatenate(y))


@pytest.mark.parametrize(
    ("y", "shapes", "words"),
    [
        ([["a", "z"]], [(2,)], "instance 0, site 1: label 'z' is not among the classes 'a', 'b'"),
        ([np.array(["a", "b"]), np.array(["z"])], [(2,), (1,)], "instance 1, site 0: label 'z'"),
        ([["a"], [{"a", "q"}]], [(1,), (1,)], "instance 1, site 0: label 'q'"),
        ([["a", set()]], [(2,)], "instance 0, site 1: the candidate set is empty"),
        ([["a"]], [(2,)], "instance 0: labels for 1 sites, but X has 2"),
        ([np.array(["a"])], [(2,)], "instance 0: labels for 1 sites, but X has 2"),
        ([["a"]], [(1,), (1,)], "y has 1 instances and X has 2"),
        (None, [(2,)], "y must be a sequence with the labels of every instance, got NoneType"),
        (["ab"], [(2,)], "instance 0: expected a sequence of labels"),
        ([["a", {"k": 1}]], [(2,)], "instance 0, site 1: {'k': 1} cannot be a label"),
        ([[["a", "b"], ["a"]]], [(2, 2)], "instance 0: labels for 2 sites, but X has 2 x 2"),
        ([np.array([["a", "b"]])], [(2, 2)], "labels for 1 x 2 sites, but X has 2 x 2"),
    ],
)
def test_what_does_not_fit_is_named(y: Any, shapes: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        LabelVocabulary(("a", "b")).encode(y, shapes)
    assert words in str(caught.value)


def test_errors_say_by_fields_which_instance_and_site() -> None:
    with pytest.raises(InputError) as caught:
        LabelVocabulary(("a", "b")).encode([["a"], ["a", "z"]], [(1,), (2,)])
    for error in (caught.value, copy.copy(caught.value)):
        assert (error.instance, error.site) == (1, 1)
        assert str(error) == f"y, instance 1, site 1: {error.reason}" and error.reason.startswith("label 'z' is not")
    plain = InputError("no place.")
    assert (str(plain), plain.instance, plain.site) == ("no place.", None, None)
    assert str(InputError("empty.", what="edge", instance=3)) == "edge, instance 3: empty."


def test_classes_that_cannot_be_are_refused() -> None:
    for classes, words in ((("a", "a"), "twice"), (("a", None), "missing"), ((), "no classes"), ((1, -1), "missing")):
        with pytest.raises(InputError, match=words):
            LabelVocabulary(classes, missing_label=-1)
    with pytest.raises(InputError, match="no classes"):
        LabelVocabulary.learn([[None, MISSING]], 1)
    assert LabelVocabulary.learn([["a"]], 1, classes=["b", "a"]).classes == ("b", "a")


def chain(lengths: tuple[int, ...], **options: Any) -> tuple[Encoded, LabelVocabulary]:
    X = [np.ones((n, 1)) for n in lengths]
    structure, labels = Chain(**options), LabelVocabulary(("a", "b", "c"))
    return Encoder.learn(structure, X, labels)[0].encode(X), labels


def test_missing_sites_become_hidden_and_sets_become_truth() -> None:
    encoded, space = chain((3, 2), hidden=2)
    y = [["a", None, {"a", "c"}], [MISSING, "b"]]
    sample = to_sample(encoded, space.encode(y, encoded.labels.shapes), np.array([2.0, 1.0]), np.arange(5.0))
    batch = encoded.batch
    assert sample.query.output.tolist() == [True, False, True, False, False, False, True, False]
    truth = [sample.truth[batch.unary_ptr[v] : batch.unary_ptr[v + 1]].tolist() for v in range(batch.n_vars)]
    assert truth[0] == [True, False, False] and truth[2] == [True, False, True] and truth[6] == [False, True, False]
    assert all(all(truth[v]) for v in (1, 3, 4, 5, 7))
    assert sample.site_weight[encoded.labels.vars].tolist() == [0, 1, 2, 3, 4]
    assert sample.weight.tolist() == [2.0, 1.0]


def test_queries_of_prediction() -> None:
    encoded, space = chain((2, 1), forbidden=[(None, "c")])
    shapes = encoded.labels.shapes
    assert to_query(encoded).output.all()
    assert to_query(encoded).n_allowed(encoded.batch).tolist() == [2, 3, 2]
    hidden = np.array([False, True, False])
    query = to_query(encoded, hidden, space.encode([[None, "c"], [{"a", "c"}]], shapes))
    assert query.output.tolist() == [True, False, True]
    assert query.n_allowed(encoded.batch).tolist() == [2, 1, 1]
    allowed = space.encode([[{"a", "b"}, {"b", "c"}], [None]], shapes)
    assert to_query(encoded, allowed=allowed).n_allowed(encoded.batch).tolist() == [2, 2, 2]
    with pytest.raises(InputError, match="given, instance 1, site 0: no label is left"):
        to_query(encoded, given=space.encode([[None, None], ["c"]], shapes))
    with pytest.raises(InputError, match="y, instance 0, site 0: no label is left"):
        to_sample(encoded, space.encode([["c", "a"], ["a"]], shapes))
    with pytest.raises(InputError, match="hidden_sites has shape"):
        to_query(encoded, hidden[:2])


def test_predictions_come_back_in_the_users_shapes() -> None:
    encoded, _ = chain((3, 1, 2))
    parts = encoded.labels.split(np.arange(12).reshape(6, 2))
    assert [p.shape for p in parts] == [(3, 2), (1, 2), (2, 2)] and parts[2][0].tolist() == [8, 9]


def test_labels_of_another_shape_are_refused() -> None:
    encoded, _ = chain((2,))
    other = Labels(np.ones(3, bool), np.ones((3, 3), bool), np.array([0, 3]))
    with pytest.raises(InputError, match="y covers 3 sites"):
        to_sample(encoded, other)

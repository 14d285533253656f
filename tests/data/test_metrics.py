"""Metrics of true and predicted labels against scikit-learn and counting by hand, and as scorers."""

from __future__ import annotations

import pickle  # noqa: TID251 - scikit-learn pickles scorers for other processes
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.data.metrics import is_bio, spans
from ragged import QUICK, sequences

TAGS = ("O", "B-x", "I-x", "E-x", "S-x", "B-y", "I-y", "E-y", "S-y")


def drawn(seed: int, tags: tuple[str, ...] = TAGS) -> tuple[list[Any], list[Any]]:
    """True tags, and predictions that repeat two thirds of them."""
    rng = np.random.default_rng(seed)
    truth = [[tags[k] for k in rng.integers(len(tags), size=n)] for n in rng.integers(1, 9, 30)]
    said = [np.array([t if rng.random() < 0.67 else tags[rng.integers(len(tags))] for t in item]) for item in truth]
    return truth, said


def test_sites_against_scikit_learn() -> None:
    truth, said = drawn(0)
    flat, flat_said = np.concatenate(truth), np.concatenate(said)
    assert ms.metrics.site_accuracy(truth, said) == pytest.approx(accuracy_score(flat, flat_said))
    for average in ("macro", "weighted", "micro"):
        expected = f1_score(flat, flat_said, average=average)
        assert ms.metrics.flat_f1(truth, said, average) == pytest.approx(expected)
    whole = np.mean([list(a) == list(b) for a, b in zip(truth, said, strict=True)])
    assert ms.metrics.instance_accuracy(truth, said) == pytest.approx(whole)
    with pytest.raises(InputError, match="average must be one of"):
        ms.metrics.flat_f1(truth, said, "samples")


def test_missing_labels_candidates_and_unknown_ones() -> None:
    said = [np.array(["a", "b"]), np.array(["a"])]
    assert ms.metrics.site_accuracy([["a", None], [{"b", "a"}]], said) == 1.0
    assert ms.metrics.site_accuracy([["z", "b"], [ms.MISSING]], said) == 0.5
    assert ms.metrics.instance_accuracy([[None, None], ["z"]], said) == 0.0
    with pytest.raises(InputError, match="no labelled site"):
        ms.metrics.site_accuracy([[None, None], [None]], said)
    assert ms.metrics.site_accuracy(["u", "v"], np.array(["u", "u"])) == 0.5  # one label an instance
    grids = [np.zeros((2, 2), int), np.ones((1, 3), int)]
    assert ms.metrics.site_accuracy([[[0, 1], [0, 0]], [[1, 1, None]]], grids) == pytest.approx(5 / 6)


CLASSES = ("a", "b", "c", "d")
LABEL = st.none() | st.sampled_from(CLASSES) | st.sets(st.sampled_from(CLASSES), min_size=2)
SITES = st.lists(st.lists(st.tuples(LABEL, st.sampled_from(CLASSES)), min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.mark.slow
@given(SITES)
def test_only_labelled_sites_count_as_in_scikit_learn(instances: list[list[tuple[Any, str]]]) -> None:
    truth, said = ([[site[k] for site in item] for item in instances] for k in range(2))
    labelled = [site for item in instances for site in item if site[0] is not None]
    single = [site for site in labelled if isinstance(site[0], str)]
    if not single:
        with pytest.raises(InputError, match=r"no labelled site|needs a site with a single label"):
            ms.metrics.flat_f1(truth, said)
        return
    for average in ("macro", "weighted", "micro"):
        expected = f1_score(*zip(*single, strict=True), average=average, zero_division=0.0)
        assert ms.metrics.flat_f1(truth, said, average) == pytest.approx(expected)
    right = [v == s or (isinstance(v, set) and s in v) for v, s in labelled]
    assert ms.metrics.site_accuracy(truth, said) == pytest.approx(np.mean(right))
    whole = [
        all(s == v or (isinstance(v, set) and s in v) for v, s in item if v is not None)
        for item in instances
        if any(v is not None for v, _ in item)
    ]
    assert ms.metrics.instance_accuracy(truth, said) == pytest.approx(np.mean(whole))


def test_a_class_predicted_only_where_no_single_label_is_does_not_count() -> None:
    assert ms.metrics.flat_f1([["a", None]], [["a", "b"]]) == 1.0
    assert ms.metrics.flat_f1([["a", {"b", "c"}]], [["a", "b"]]) == 1.0
    with pytest.raises(InputError, match="needs a site with a single label"):
        ms.metrics.flat_f1([[{"a", "b"}]], [["a"]])


BIOES = ("O", "B-x", "I-x", "E-x", "S-x", "B-y", "I-y")


@given(st.lists(st.tuples(st.none() | st.sampled_from(BIOES), st.sampled_from(BIOES)), min_size=1, max_size=5))
def test_chunks_count_where_every_way_to_fill_in_labels_agrees(sites: list[tuple[str | None, str]]) -> None:
    """By enumeration of all labels that could stand where one is missing."""
    truth, said = [v for v, _ in sites], [s for _, s in sites]
    if truth.count(None) in (0, len(truth)) or truth.count(None) > 3:
        truth[0] = "B-x"
        truth[1:] = [v or "O" for v in truth[1:]]
    ways = [set(spans(tags)) for tags in product(*((v,) if v else BIOES for v in truth))]
    certain, possible = set.intersection(*ways), set.union(*ways)
    predicted = {span for span in spans(said) if span in certain or span not in possible}
    total = len(predicted) + len(certain)
    # Another instance with one right chunk makes the tags BIOES, whatever was drawn, and tells counts from rates.
    expected = 2 * (len(predicted & certain) + 1) / (total + 2)
    assert ms.metrics.span_f1([truth, ["B-x", "O"]], [said, ["B-x", "O"]]) == pytest.approx(expected)


def test_a_chunk_that_may_be_right_is_not_wrong() -> None:
    truth, said = [[None, "I-x", "O"], ["B-x", "O"]], [["O", "B-x", "O"], ["B-x", "O"]]
    assert ms.metrics.span_f1(truth, said) == 1.0
    assert ms.metrics.span_f1([["O", None], ["B-x", "O"]], [["B-x", "I-x"], ["B-x", "O"]]) == pytest.approx(2 / 3)


def test_chunks_of_both_schemes() -> None:
    for tags, found in (
        ("B-x I-x O B-y", [(0, 2, "x"), (3, 4, "y")]),
        ("B-x B-x I-x", [(0, 1, "x"), (1, 3, "x")]),
        ("B-x I-x E-x S-x O S-y", [(0, 3, "x"), (3, 4, "x"), (5, 6, "y")]),
        ("B-x E-x I-x", [(0, 2, "x"), (2, 3, "x")]),  # after an end another one opens
        ("B-x E-y", [(0, 1, "x"), (1, 2, "y")]),
        ("E-x O I-y I-y", [(0, 1, "x"), (2, 4, "y")]),
        ("S I E", [(0, 1, ""), (1, 3, "")]),
    ):
        assert spans(tags.split()) == found, tags
    assert is_bio(TAGS) and is_bio(("O", "B", "I")) and is_bio(("O", "S-x"))
    assert not is_bio(("O", "I-x")) and not is_bio(("noun", "verb")) and not is_bio(("O", "B-x", "X-x"))


def test_chunks_are_the_same_in_both_schemes() -> None:
    """BIO tags rewritten as BIOES have the same chunks and the same F1."""
    truth, said = drawn(1, ("O", "B-x", "I-x", "B-y", "I-y"))

    def rewritten(tags: Any) -> list[str]:
        out = ["O"] * len(tags)
        for a, b, name in spans(list(tags)):
            out[a:b] = [f"S-{name}"] if b == a + 1 else [f"B-{name}", *[f"I-{name}"] * (b - a - 2), f"E-{name}"]
        return out

    both = [[rewritten(item) for item in part] for part in (truth, said)]
    real, found = ({(k, s) for k, item in enumerate(p) for s in spans(list(item))} for p in (truth, said))
    expected = 2 * len(real & found) / (len(real) + len(found))
    assert ms.metrics.span_f1(truth, said) == pytest.approx(expected) == ms.metrics.span_f1(*both)
    with pytest.raises(InputError, match="needs BIO or BIOES tags"):
        ms.metrics.span_f1([["a"]], [["b"]])


def test_metrics_score_estimators() -> None:
    X, y = sequences(20, noise=1.5)
    tags = [[{"a": "O", "b": "B-x", "c": "I-x"}[v] for v in item] for item in y]
    model = ms.CRF(decode="map", **QUICK).fit(X, tags)
    for name in ("site_accuracy", "instance_accuracy", "flat_f1", "span_f1"):
        metric = getattr(ms.metrics, name)
        score = ms.metrics.scorer(name)
        assert score(model, X, tags) == metric(tags, model.predict(X)) == make_scorer(metric)(model, X, tags)
        marginal = ms.metrics.scorer(metric, decode="marginal")
        assert marginal(model, X, tags) == metric(tags, model.predict(X, decode="marginal"))
        assert pickle.loads(pickle.dumps(score)) == score
    assert len(cross_val_score(model, X, tags, scoring=ms.metrics.scorer("span_f1"), cv=2)) == 2
    search = GridSearchCV(ms.CRF(**QUICK), {"C": [0.1, 1.0]}, scoring=ms.metrics.scorer("span_f1"), cv=2)
    assert search.fit(X, tags).best_score_ > 0.0
    with pytest.raises(InputError, match="metric must be one of 'site_accuracy'"):
        ms.metrics.scorer("f1")


def test_spans_by_type_as_seqeval_reports_them() -> None:
    """The figures are those of seqeval's classification_report on its own example."""
    y_true = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    y_pred = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    found = ms.metrics.span_report(y_true, y_pred)
    assert list(found) == ["MISC", "PER", "micro avg", "macro avg", "weighted avg"]
    rates = {name: (r.precision, r.recall, r.f1, r.support) for name, r in found.items()}
    assert rates["MISC"] == (0.0, 0.0, 0.0, 1) and rates["PER"] == (1.0, 1.0, 1.0, 1)
    for name in ("micro avg", "macro avg", "weighted avg"):
        assert rates[name] == (0.5, 0.5, 0.5, 2)
    assert found["micro avg"].f1 == ms.metrics.span_f1(y_true, y_pred)
    with pytest.raises(InputError, match="span_report needs BIO or BIOES tags"):
        ms.metrics.span_report([["noun"]], [["verb"]])


def test_averages_over_types_of_unequal_size() -> None:
    y_true = [["B-a", "B-a", "B-a", "B-b", "O", "O"]]
    y_pred = [["B-a", "O", "B-b", "B-b", "B-b", "O"]]
    found = ms.metrics.span_report(y_true, y_pred)
    assert (found["a"].precision, found["a"].recall) == (1.0, pytest.approx(1 / 3))
    assert (found["b"].precision, found["b"].recall) == (pytest.approx(1 / 3), 1.0)
    assert found["micro avg"].precision == found["micro avg"].recall == 0.5
    assert found["macro avg"].f1 == pytest.approx(0.5) and found["weighted avg"].recall == pytest.approx(0.5)
    assert found["weighted avg"].precision == pytest.approx((3 * 1 + 1 / 3) / 4)


def test_results_of_every_label() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y_true, y_pred = rng.integers(2, size=(2, 40, 3))
    found = ms.metrics.label_report(y_true, y_pred, names=["a", "b", "c"])
    wanted = sklearn.classification_report(
        y_true, y_pred, target_names=["a", "b", "c"], output_dict=True, zero_division=0
    )
    for name, rates in found.items():
        assert rates.precision == pytest.approx(wanted[name]["precision"])
        assert rates.recall == pytest.approx(wanted[name]["recall"])
        assert rates.f1 == pytest.approx(wanted[name]["f1-score"]) and rates.support == wanted[name]["support"]
    partly = y_true.astype(float)
    partly[:20, 0] = np.nan
    known = ms.metrics.label_report(partly, y_pred)["0"]
    assert known.support == y_true[20:, 0].sum()
    with pytest.raises(InputError, match="names lists 2 names for 3 labels"):
        ms.metrics.label_report(y_true, y_pred, names=["a", "b"])
    with pytest.raises(InputError, match="got shape"):
        ms.metrics.label_report([0, 1], [0, 1])
    with pytest.raises(InputError, match="differ in length"):
        ms.metrics.label_report(y_true, [[0], [0, 1]])
    with pytest.raises(InputError, match="binary labels"):
        ms.metrics.label_report([[0, 1]], [[2, 1]])

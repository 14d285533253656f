"""Conformal sets: the promise by simulation with dependent sites, and label and span sets of real models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.conformal.spans import determined_spans
from mssvm.conformal.thresholds import threshold
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary


class Given:
    """A model whose marginals are its input."""

    def __init__(self, n_classes: int) -> None:
        self.labels_ = LabelVocabulary(tuple(range(n_classes)))
        self.classes_ = np.arange(n_classes)

    def predict_marginals(self, X: list[np.ndarray]) -> list[np.ndarray]:
        return X


def drawn(rng: np.random.Generator, n: int, k: int = 4) -> tuple[list[np.ndarray], list[list[int]]]:
    """Instances whose difficulty all their sites share: marginals are overconfident where it is high."""
    X = []
    y = []
    for _ in range(n):
        length = int(rng.integers(1, 9))
        difficulty = rng.random()
        truth = rng.integers(k, size=length)
        shown = np.where(rng.random(length) < 0.6 * difficulty, rng.integers(k, size=length), truth)
        p = rng.dirichlet(np.ones(k), size=length) + 3.0 * np.eye(k)[shown]
        X.append(p / p.sum(axis=1, keepdims=True))
        y.append(truth.tolist())
    return X, y


@pytest.mark.slow
@pytest.mark.parametrize("score", ["probability", "cumulative"])
@pytest.mark.parametrize("unit", ["item", "instance"])
def test_the_promise_holds_on_average_over_calibrations_though_sites_depend_on_each_other(
    unit: str, score: str
) -> None:
    rng = np.random.default_rng(0)
    misses = 0.0
    total = 0.0
    shares = []
    for _ in range(150):
        sets = ms.conformal.LabelSets(Given(4), coverage=0.8, unit=unit, score=score).calibrate(*drawn(rng, 40))
        X, y = drawn(rng, 60)
        found = sets.evaluate(X, y)
        misses += (1.0 - found.by_item) * found.n_items
        total += found.n_items
        shares.append(found.by_instance)
    covered = 1.0 - misses / total if unit == "item" else float(np.mean(shares))
    assert 0.795 < covered < 0.86


def test_the_promise_of_every_class() -> None:
    rng = np.random.default_rng(1)
    X, y = drawn(rng, 3000)
    rare = [[0 if label == 0 and rng.random() < 0.9 else label for label in labels] for labels in y]
    sets = ms.conformal.LabelSets(Given(4), coverage=0.9, by_class=True).calibrate(X, rare)
    masks = np.concatenate(sets.predict_mask(X))
    truth = np.concatenate(rare)
    for label in range(4):
        assert masks[truth == label, label].mean() == pytest.approx(0.9, abs=0.02)


def test_thresholds_by_hand() -> None:
    """Ten instances of one site: at most alpha * 10 - (1 - alpha) = 1 miss is allowed at alpha = .2."""
    scores = np.arange(10.0)
    assert threshold(scores, np.arange(10), 0.2, "item") == 8.0
    assert threshold(scores, np.arange(10), 0.2, "instance") == 8.0
    assert threshold(scores, np.arange(10), 0.05, "item") == np.inf, "too few to promise 95%"
    assert threshold(scores, np.repeat([0, 1], 5), 0.5, "item") == 7.0
    assert threshold(scores, np.repeat([0, 1], 5), 0.5, "instance") == 7.0


def test_missing_labels_are_left_out_and_of_candidates_each_counts_as_the_truth() -> None:
    X = [np.array([[0.7, 0.2, 0.1]])] * 12
    sets = ms.conformal.LabelSets(Given(3), coverage=0.5).calibrate(X, [[0]] * 5 + [[None]] * 7)
    assert sets.thresholds_[0] == pytest.approx(0.3)
    sets.calibrate(X, [[{0, 1}]] * 12)
    assert sets.thresholds_[0] == pytest.approx(0.8)
    sets.calibrate(X, [[0]] * 2 + [[7]] * 10)
    assert sets.thresholds_[0] == np.inf, "a label that no set can contain is a miss"
    assert sets.evaluate(X, [[0]] * 9 + [[7]] * 3).by_item == 0.75


def test_refusals() -> None:
    X, y = drawn(np.random.default_rng(0), 5)
    for settings, words in (
        ({"coverage": 1.0}, "no finite sample"),
        ({"coverage": 0.0}, "coverage"),
        ({"unit": "word"}, "unit must be"),
        ({"score": "odd"}, "score must be"),
    ):
        with pytest.raises(InputError, match=words):
            ms.conformal.LabelSets(Given(4), **settings).calibrate(X, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="call calibrate"):
        ms.conformal.LabelSets(Given(4)).predict(X)
    with pytest.raises(InputError, match="y holds no labels"):
        ms.conformal.LabelSets(Given(4)).calibrate(X, [[None] * len(labels) for labels in y])


@pytest.fixture(scope="module")
def tagger() -> Any:
    train = ms.data.chunking("train")
    half = len(train) // 2
    clf = ms.CRF(ms.Chain(), max_iter=20).fit(train.X[:half], train.labels[:half])
    return clf, train.X[half:], train.labels[half:]


def test_sets_of_a_tagger(tagger: Any) -> None:
    clf, X, y = tagger
    sets = ms.conformal.LabelSets(clf, coverage=0.95).calibrate(X, y)
    found = sets.predict(X[:3])
    best = clf.predict(X[:3], decode="marginal")
    for labels, tags in zip(found, best, strict=True):
        assert all(tag in members for tag, members in zip(tags, labels, strict=True))
    assert sets.evaluate(X, y).by_item >= 0.95


def test_span_sets_of_a_tagger(tagger: Any) -> None:
    clf, X, y = tagger
    sets = ms.conformal.SpanSets(clf, coverage=0.7, k=10).calibrate(X, y)
    result = sets.evaluate(X, y)
    assert result.by_item >= 0.7
    assert result.n_items == sum(len(determined_spans(tags)) for tags in y)
    for spans in sets.predict(X[:5]):
        assert [span.share for span in spans] == sorted((span.share for span in spans), reverse=True)
    with pytest.raises(InputError, match="cannot be promised"):
        ms.conformal.SpanSets(clf, coverage=0.999, k=1).calibrate(X, y)
    with pytest.raises(InputError, match="call calibrate"):
        ms.conformal.SpanSets(clf).predict(X)


def test_spans_beside_missing_tags_do_not_count() -> None:
    assert determined_spans(["B-X", "I-X", None, "O", "B-Y", "O"]) == [(4, 5, "Y")]
    assert determined_spans([None, "I-X", "O"]) == []
    assert determined_spans([None, "B-X", "O"]) == [(1, 2, "X")]
    assert determined_spans(["B-X", {"I-X", "O"}]) == []
    assert determined_spans(["B-X", "I-X"]) == [(0, 2, "X")]


def test_labels_that_stand_for_missing_ones_end_no_span() -> None:
    X = [[{"w": "a"}, {"w": "b"}, {"w": "c"}]] * 6
    clf = ms.CRF(ms.Chain(), missing_label="?").fit(X, [["B-X", "I-X", "O"]] * 6)
    sets = ms.conformal.SpanSets(clf, coverage=0.5, k=27)
    with pytest.raises(InputError, match="no complete span"):
        sets.calibrate(X, [["B-X", "?", "O"]] * 6)
    known = [["B-X", "I-X", "O"], None, ["B-X", "I-X", None], ["?", "B-X", "I-X"], ["B-X", {"I-X", "O"}, "O"]]
    assert sets.calibrate(X[:5], known).evaluate(X[:5], known).n_items == 2


def test_tags_that_do_not_fit_are_refused(tagger: Any) -> None:
    clf, X, y = tagger
    sets = ms.conformal.SpanSets(clf, coverage=0.7, k=10).calibrate(X, y)
    for wrong, words in (
        (y[:-1], "instances and X has"),
        ([[*y[0], "O"], *y[1:]], "y, instance 0: labels for"),
        ([["X"] * len(y[0]), *y[1:]], "not BIO or BIOES"),
    ):
        for method in (sets.evaluate, ms.conformal.SpanSets(clf, coverage=0.7, k=10).calibrate):
            with pytest.raises(InputError, match=words):
                method(X, wrong)


def test_label_sets_of_segments_and_of_no_instances() -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(4, 2)) for _ in range(12)]
    spans = [[(0, 2, "a"), (2, 4, "b")]] * 12
    sites = [["a", "a", "b", "b"]] * 12
    clf = ms.CRF(ms.Segments(max_length=3)).fit(X, spans)
    sets = ms.conformal.LabelSets(clf, coverage=0.5)
    assert sets.calibrate(X, spans).thresholds_.tolist() == sets.calibrate(X, sites).thresholds_.tolist()
    assert sets.evaluate(X, spans) == sets.evaluate(X, sites)
    with pytest.raises(InputError, match="nothing to compare"):
        sets.evaluate([], [])


@pytest.mark.parametrize(("coverage", "n"), [(0.9, 9), (0.8, 4), (0.95, 19), (0.7, 3)])
@pytest.mark.parametrize("unit", ["item", "instance"])
def test_exactly_as_many_instances_as_the_promise_needs(coverage: float, n: int, unit: str) -> None:
    """alpha n - (1 - alpha) = 0 up to rounding: no miss is allowed, and the threshold is the largest score."""
    n_needed = round(coverage / (1.0 - coverage))
    scores = np.arange(float(n_needed))
    assert threshold(scores, np.arange(n_needed), 1.0 - coverage, unit) == (n_needed - 1.0 if n_needed >= n else np.inf)
    assert threshold(scores[1:], np.arange(n_needed - 1), 1.0 - coverage, unit) == np.inf

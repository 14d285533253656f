"""What to label next: scores by hand, what is known is left out, neighbours are one suggestion, any structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.estimators.suggestion import Pool


@pytest.fixture(scope="module")
def chains() -> Any:
    rng = np.random.default_rng(0)
    y = [rng.integers(3, size=8).tolist() for _ in range(30)]
    X = [np.eye(3)[labels] + rng.normal(size=(8, 3)) for labels in y]
    return ms.HCRF(ms.Chain(), random_state=0).fit(X, y), X, y


def test_sites_by_falling_entropy_of_the_marginals_in_turns_over_the_predicted_labels(chains: Any) -> None:
    clf, X, _ = chains
    p = np.array(clf.predict_marginals(X))
    expected = -(p * np.log(p)).sum(axis=2)
    predicted = p.argmax(axis=2)
    found = clf.suggest(X, n=240, by="entropy", spacing=0)
    assert found[0].gain == pytest.approx(expected.max())
    turns = dict.fromkeys(range(3), 0)
    of_label = {label: sorted(expected[predicted == label], reverse=True) for label in range(3)}
    for suggestion in found:
        label = predicted[suggestion.instance][suggestion.site]
        assert expected[suggestion.instance][suggestion.site] == of_label[label][turns[label]]
        assert all(turns[label] <= turns[other] or turns[other] == len(of_label[other]) for other in range(3))
        turns[label] += 1
    assert sum(turns.values()) == 240


def test_margin_and_change_by_hand(chains: Any) -> None:
    clf, X, _ = chains
    p = np.array(clf.predict_marginals(X))
    top = np.sort(p, axis=2)
    margins = 1.0 - (top[:, :, -1] - top[:, :, -2])
    best = clf.suggest(X, n=1, by="margin")[0]
    assert margins[best.instance][best.site] == margins.max()
    lengths = np.sqrt(np.linalg.norm(np.array(X), axis=2) ** 2 + 1.0)  # features, and a bias that is 1
    gradients = [np.abs(np.eye(3)[y] - p).sum(axis=2) for y in range(3)]
    changes = lengths * sum(p[:, :, y] * gradients[y] for y in range(3))
    best = clf.suggest(X, n=1, by="change")[0]
    assert changes[best.instance][best.site] == pytest.approx(changes.max())
    assert best.gain == pytest.approx(changes.max())


def test_known_labels_are_not_suggested_and_inform_their_neighbours(chains: Any) -> None:
    clf, X, y = chains
    given = [[label if t % 2 else None for t, label in enumerate(labels)] for labels in y]
    found = clf.suggest(X, n=1000, given=given, by="entropy", spacing=0)
    assert {s.site[0] % 2 for s in found} == {0}
    assert len(found) == 30 * 4
    p = clf.predict_marginals(X, given=given)
    best = found[0]
    assert best.gain == pytest.approx(max((-q * np.log(np.maximum(q, 1e-300))).sum(axis=1).max() for q in p))


def test_sites_of_one_neighbourhood_are_suggested_once(chains: Any) -> None:
    clf, X, _ = chains
    found = clf.suggest(X, n=60, spacing=2)
    for a in found:
        for b in found:
            if a is not b and a.instance == b.instance:
                assert abs(a.site[0] - b.site[0]) > 2


def test_whole_instances_by_the_sum_over_their_unknown_sites(chains: Any) -> None:
    clf, X, y = chains
    given = [y[0], *([None] * 8 for _ in y[1:])]
    p = np.array(clf.predict_marginals(X, given=given))
    sums = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=(1, 2))
    found = clf.suggest(X, n=100, unit="instance", by="entropy", given=given)
    assert [s.instance for s in found] == [b for b in np.argsort(-sums) if b != 0]
    assert found[0].site is None


def test_grids_and_single_labels() -> None:
    rng = np.random.default_rng(1)
    y = [rng.integers(2, size=(5, 6)) for _ in range(4)]
    X = [rng.normal(size=(5, 6, 1)) + labels[:, :, None] for labels in y]
    grid = ms.CRF(ms.Grid(), random_state=0).fit(X, [labels.tolist() for labels in y])
    assert all(len(s.site) == 2 for s in grid.suggest(X, n=5))
    sequences = [rng.normal(size=(4, 2)) for _ in range(10)]
    one = ms.HCRF(ms.SequenceLabel(), random_state=0).fit(sequences, ["a", "b"] * 5)
    assert one.suggest(sequences, n=2)[0].site == ()


def test_random_choice_is_repeatable_and_settings_are_checked(chains: Any) -> None:
    clf, X, _ = chains
    assert clf.suggest(X, n=5, by="random") == clf.suggest(X, n=5, by="random")
    for settings, words in (({"by": "luck"}, "by must be"), ({"unit": "word"}, "unit must be"), ({"n": 0}, "n must")):
        with pytest.raises(InputError, match=words):
            clf.suggest(X, **settings)


def test_instances_without_sites_are_not_suggested(chains: Any) -> None:
    clf, X, _ = chains
    with_empty = [X[0], np.zeros((0, 3)), X[1], np.zeros((0, 3))]
    for by in ("margin", "random"):
        assert {s.instance for s in clf.suggest(with_empty, n=4, unit="instance", by=by)} == {0, 2}


@pytest.mark.parametrize("by", ["entropy", "margin", "change"])
def test_no_gain_is_below_zero_where_rounding_puts_a_probability_above_one(by):
    certain = np.array([[1.0 + 2.0**-52, 0.0], [0.5, 0.5]])
    pool = Pool(certain, np.ones(2), np.zeros(2, dtype=bool), np.array([0, 2]), [(2,)])
    gains = [found.gain for found in pool.suggest(2, by, "site", 0, np.random.RandomState(0))]
    assert gains[0] > 0.4
    assert gains[1] == 0.0

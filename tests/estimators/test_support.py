"""``support="seen"``: weights of sparse features only for labels seen with them, against the same by fixed zeros."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import mssvm as ms
from mssvm.core.errors import InputError
from ragged import QUICK, sequences

NAMES = [f"f{j}" for j in range(12)]


def named(n: int = 25, missing: float = 0.0):
    """Sentences of named features that each go with some labels only, and their labels."""
    rng = np.random.default_rng(3)
    X, Y = [], []
    for _ in range(n):
        labels = [int(v) for v in rng.integers(0, 4, rng.integers(1, 6))]
        X.append([["bias", NAMES[3 * v + int(rng.integers(3))], NAMES[int(rng.integers(12))]] for v in labels])
        Y.append([ms.MISSING if rng.random() < missing else "abcd"[v] for v in labels])
    return X, Y


def seen_pairs(X, Y):
    pairs = zip((f for x in X for f in x), (v for y in Y for v in y), strict=True)
    return {(name, label) for names, label in pairs if label is not ms.MISSING for name in names}


@pytest.mark.parametrize(("member", "missing"), [(ms.CRF, 0.0), (ms.SSVM, 0.0), (ms.MSSVM, 0.4)])
def test_seen_is_all_with_the_rest_fixed_at_zero(member, missing):
    X, Y = named(missing=missing)
    seen = member(ms.Chain(), support="seen", classes="abcd", **QUICK).fit(X, Y)
    pairs = seen_pairs(X, Y)
    zeros = {(f, v): 0.0 for f in {f for x in X for s in x for f in s} for v in "abcd" if (f, v) not in pairs}
    assert len(zeros) > 5
    other = member(ms.Chain(fixed={"node": zeros}), classes="abcd", **QUICK).fit(X, Y)
    np.testing.assert_allclose(seen.coef_, other.coef_, atol=1e-8)
    assert seen.objective_ == pytest.approx(other.objective_, rel=1e-10)
    found = {(w.feature, w.states[0]) for w in seen.weights_table() if w.block == "node" and w.value != 0}
    assert found <= pairs


def test_candidates_count_as_seen_and_known_weights_stay():
    X = [[["u"], ["v"]], [["v"], ["u"]]]
    Y = [[{"a", "b"}, "c"], ["c", "a"]]
    known = {("v", "a"): 2.5}
    model = ms.HCRF(ms.Chain(fixed={"node": known}), support="seen", **QUICK).fit(X, Y)
    weights = {(w.feature, w.states[0]): w.value for w in model.weights_table() if w.block == "node"}
    assert weights["v", "a"] == 2.5
    assert weights["u", "c"] == weights["v", "b"] == 0.0
    assert 0.0 not in (weights["u", "a"], weights["u", "b"], weights["v", "c"])


def test_dense_features_and_hidden_states_keep_all_weights():
    X, Y = sequences(12)
    for structure, features in ((ms.Chain(hidden=2), X), (ms.Chain(), X)):
        every = ms.HCRF(structure, **QUICK).fit(features, Y)
        seen = ms.HCRF(structure, support="seen", **QUICK).fit(features, Y)
        np.testing.assert_array_equal(every.coef_, seen.coef_)
    thin = [sparse.csr_array(np.where(x > 0, x, 0)) for x in X]
    hidden = ms.HCRF(ms.Chain(hidden=2), support="seen", **QUICK).fit(thin, Y)
    blocks = {w.block for w in hidden.weights_table() if w.value != 0}
    assert blocks == {w.block for w in hidden.weights_table()}


def test_starts_penalties_and_warm_starts_are_of_all_weights():
    X, Y = named()
    settings = {"support": "seen", "penalties": {"node": 2.0}, "random_state": 0}
    first = ms.CRF(ms.Chain(), warm_start=True, **settings).fit(X, Y)
    coef, steps = first.coef_.copy(), first.n_iter_
    again = first.fit(X, Y)
    np.testing.assert_allclose(again.coef_, coef, atol=1e-3)
    assert again.n_iter_ < steps / 2
    given = ms.CRF(ms.Chain(), init=coef, **settings).fit(X, Y)
    np.testing.assert_array_equal(given.coef_, again.coef_)
    with pytest.raises(InputError, match="there are"):
        ms.CRF(ms.Chain(), support="seen", init=np.zeros(3), **QUICK).fit(X, Y)


def test_words_for_a_support_that_is_none():
    X, Y = named(3)
    with pytest.raises(InputError, match="support must be one of 'all', 'seen', got 'some'"):
        ms.CRF(ms.Chain(), support="some").fit(X, Y)

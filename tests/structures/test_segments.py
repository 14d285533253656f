"""The structure Segments: labels in all their forms, training, answers, files and errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.base import clone

import mssvm as ms
from mssvm.core.power import power_sum
from mssvm.estimators.training_data import TrainingData
from mssvm.inference.segments import SegmentInference
from segments_oracle import segmentations

LENGTHS = {"a": (2, 3), "b": (4, 4)}


def drawn(n=12, length=14, noise=1.0, seed=0):
    """Sequences of alternating segments: a of 2 or 3 sites, b of 4."""
    rng = np.random.default_rng(seed)
    X, sites, spans = [], [], []
    for _ in range(n):
        labels, own = [], []
        label = "ab"[rng.integers(2)]
        while len(labels) < length:
            low, high = LENGTHS[label]
            stop = min(length, len(labels) + int(rng.integers(low, high + 1)))
            own.append((len(labels), stop, label))
            labels += [label] * (stop - len(labels))
            label = "b" if label == "a" else "a"
        X.append(noise * rng.normal(size=(length, 2)) + np.array([[c == "a", c == "b"] for c in labels]))
        sites.append(labels)
        spans.append(own)
    return X, sites, spans


def problem_of(estimator, X, y):
    """The training problem of an estimator."""
    data = TrainingData.of(estimator._plan(), X, y, None, None, None)
    return data, data.pose(data.encoder.structure.inference(data.encoder))


PARTIAL = {
    "sites": lambda sites, spans: sites,
    "spans": lambda sites, spans: spans,
    "some spans": lambda sites, spans: [own[::2] for own in spans],
    "missing": lambda sites, spans: [[v if t % 3 else ms.MISSING for t, v in enumerate(row)] for row in sites],
    "candidates": lambda sites, spans: [[v if t % 3 else {"a", "b"} for t, v in enumerate(row)] for row in sites],
    "both": lambda sites, spans: [
        {"sites": [v if t < 5 else None for t, v in enumerate(row)], "spans": own[-2:]}
        for row, own in zip(sites, spans, strict=True)
    ],
    "an unlabelled instance": lambda sites, spans: [None, *sites[1:]],
}
STRUCTURES = {
    "table": ms.Segments(max_length=5),
    "hidden": ms.Segments(max_length=5, hidden=2),
    "moving": ms.Segments(max_length=5, hidden=2, moving=True),
    "geometric": ms.Segments(max_length=5, durations="geometric", ends=True),
    "poisson, borders": ms.Segments(max_length=5, durations="poisson", borders=True),
    "negative binomial": ms.Segments(max_length=5, durations=("negative-binomial", 3.0)),
    "gamma, repeats": ms.Segments(max_length=5, durations="gamma", repeat=True),
    "features of lengths": ms.Segments(max_length=5, durations=np.eye(5)[:, :4]),
    "segment features": ms.Segments(max_length=5, segment_features=lambda x, a, b: [x[a:b].max(), b - a == 4]),
    "limits": ms.Segments(max_length={"a": 3, "b": 5}, min_length={"b": 1}, repeat=["b"]),
}


@pytest.mark.parametrize("labels", PARTIAL)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_of_the_objective_equal_differences(structure, labels):
    X, sites, spans = drawn(n=4, length=9)
    y = PARTIAL[labels](sites, spans)
    rng = np.random.default_rng(1)
    for member in (
        partial(ms.UnifiedSSVM, eps_y=0.5, eps_h=1.0),
        partial(ms.UnifiedSSVM, eps_y=0.7, eps_h=0.3, loss="spans"),
    ):
        _, problem = problem_of(member(structure=STRUCTURES[structure]), X, y)
        w = rng.normal(size=problem.n_weights)
        direction = rng.normal(size=problem.n_weights)
        at = problem.difference(w)
        step = 1e-6
        slope = (problem.difference(w + step * direction).total - problem.difference(w - step * direction).total) / (
            2 * step
        )
        assert at.exact
        assert (at.values >= -1e-9).all()
        assert at.gradient @ direction == pytest.approx(slope, rel=1e-5, abs=1e-6)
        plus, minus = problem.plus(w), problem.minus(w)
        assert at.total == pytest.approx(plus.total - minus.total, rel=1e-10)
        np.testing.assert_allclose(at.gradient, plus.gradient - minus.gradient, atol=1e-9)


def segment_score(w, layout, x, segments, longest):
    """The score of a segmentation without hidden states, of two labels."""
    parts = {name: layout.view(w, name) for name in layout.groups}
    total = 0.0
    for a, b, c in segments:
        total += (x[a:b] @ parts["node"][:, c]).sum() + (b - a) * parts["bias"][0, c]
        total += parts["duration"][0].reshape(longest, 2)[b - a - 1, c]
    for (_, _, p), (_, _, c) in zip(segments, segments[1:], strict=False):
        total += parts["transition"][0].reshape(2, 2)[p, c]
    return total


def brute_force_objective(w, layout, x, y, loss, eps_y, longest):
    """U+ - U- of one instance without hidden states, from the definition; labels a and b never follow themselves."""
    n = len(x)

    def score(segments):
        return segment_score(w, layout, x, segments, longest)

    def fits(segments):
        labels = [c for a, b, c in segments for _ in range(a, b)]
        return all(v is None or "ab"[c] == v for c, v in zip(labels, y, strict=True))

    listed = [s for s in segmentations(n, longest, 2) if all(p[2] != q[2] for p, q in zip(s, s[1:], strict=False))]
    plus = power_sum(np.array([score(s) + loss(s) for s in listed]), eps_y, axis=0)[0]
    minus = power_sum(np.array([score(s) for s in listed if fits(s)]), eps_y, axis=0)[0]
    return float(plus - minus)


@pytest.mark.parametrize("eps_y", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["hamming", "spans"])
def test_the_objective_equals_its_definition(name, eps_y):
    x = np.random.default_rng(0).normal(size=(6, 2))
    y = ["a", "a", "b", None, None, "a"] if name == "hamming" else list("aabbba")
    true = {(0, 2, 0), (2, 5, 1), (5, 6, 0)}

    def loss(segments):
        if name == "spans":
            return len(true ^ set(segments))
        labels = ["ab"[c] for a, b, c in segments for _ in range(a, b)]
        return sum(v is not None and v != label for v, label in zip(y, labels, strict=True))

    estimator = ms.UnifiedSSVM(ms.Segments(max_length=4), eps_y=eps_y, eps_h=1.0, loss=name)
    data, problem = problem_of(estimator, [x], [y])
    w = np.random.default_rng(1).normal(size=problem.n_weights)
    expected = brute_force_objective(w, data.encoder.layout, x, y, loss, eps_y, 4)
    assert problem.difference(w).total == pytest.approx(expected, abs=1e-9)
    assert problem.convex == (name == "spans")


@pytest.mark.parametrize("eps_y", [0.0, 1.0])
def test_spans_of_unknown_labels_are_known_boundaries(eps_y):
    """An instance of which only boundaries are known has an objective, beside labelled instances and alone."""
    X = list(np.random.default_rng(0).normal(size=(2, 6, 2)))
    y = [list("aabbba"), [(0, 2, ms.MISSING), (2, 5, None), (5, 6, ms.MISSING)]]
    estimator = ms.UnifiedSSVM(ms.Segments(max_length=4, repeat=False), eps_y=eps_y, eps_h=1.0, classes=["a", "b"])
    data, problem = problem_of(estimator, X, y)
    assert problem.n_instances == 2
    w = np.random.default_rng(1).normal(size=problem.n_weights)
    layout = data.encoder.layout
    parts = [power_of(w, layout, X[1], cuts, eps_y) for cuts in (None, {0, 2, 5})]
    assert problem.difference(w).values[1] == pytest.approx(parts[0] - parts[1], abs=1e-9)
    alone = ms.CRF(estimator.structure, classes=["a", "b"]).fit(X[1:], y[1:])
    assert "1 instances had no label" not in alone.diagnose()


def power_of(w, layout, x, cuts, eps_y):
    """The power sum over segmentations with these starts (None: all), whose neighbours differ in their labels."""
    listed = []
    for segments in segmentations(len(x), 4, 2):
        differ = all(p[2] != q[2] for p, q in zip(segments, segments[1:], strict=False))
        if differ and cuts in (None, {a for a, _, _ in segments}):
            listed.append(segment_score(w, layout, x, segments, 4))
    return float(power_sum(np.array(listed), eps_y, axis=0)[0])


@pytest.mark.parametrize("eps_y", [0.0, 0.5])
def test_the_zero_one_loss_charges_segmentations_with_wrong_boundaries(eps_y):
    """Where a label follows itself, labels of sites may all be right in a segmentation that contradicts the spans."""
    x = np.random.default_rng(0).normal(size=(5, 2))
    estimator = ms.UnifiedSSVM(ms.Segments(max_length=4, repeat=True), eps_y=eps_y, eps_h=1.0, loss="zero-one")
    data, problem = problem_of(estimator, [x], [[(0, 2, "a"), (2, 3, "a"), (3, 5, "b")]])
    rng = np.random.default_rng(1)
    w = rng.normal(size=problem.n_weights)
    true = {(0, 2, 0), (2, 3, 0), (3, 5, 1)}
    scores = []
    for segments in segmentations(5, 4, 2):
        scores.append(segment_score(w, data.encoder.layout, x, segments, 4) + float(set(segments) != true))
    expected = power_sum(np.array(scores), eps_y, axis=0)[0]
    assert problem.plus(w).total == pytest.approx(expected, abs=1e-9)
    direction = rng.normal(size=problem.n_weights)
    ahead, behind = (problem.plus(w + step * direction).total for step in (1e-6, -1e-6))
    assert problem.plus(w).gradient @ direction == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)


def test_spans_are_labels_wherever_labels_are_given():
    """What knows labels of sites takes spans, and [] where no span is known."""
    X, sites, spans = drawn(n=10)
    clf = ms.CRF(ms.Segments(max_length=5)).fit(X, spans)
    assert ms.metrics.calibration(clf, X, spans) == ms.metrics.calibration(clf, X, sites)
    scorer = ms.metrics.scorer("site_accuracy")
    assert scorer(clf, X, spans) == scorer(clf, X, sites) == clf.score(X, spans)
    some = [spans[0][:1], *spans[1:]]
    known = [[v if t < spans[0][0][1] else None for t, v in enumerate(sites[0])], *sites[1:]]
    for given in (some, known):
        suggested = clf.suggest(X, n=20, given=given, spacing=0)
        assert {s.instance for s in suggested} == {0}
        assert {s.site[0] for s in suggested} == set(range(spans[0][0][1], len(sites[0])))
    for nothing in (None, []):
        fitted = ms.CRF(ms.Segments(max_length=5)).fit(X, [nothing, *spans[1:]])
        assert "1 instances had no label" in fitted.diagnose()
        np.testing.assert_array_equal(clf.predict(X[:1], given=[nothing])[0], clf.predict(X[:1])[0])


MEMBERS = {
    "MSSVM": partial(ms.MSSVM, random_state=0),
    "LSSVM": partial(ms.LSSVM, random_state=0),
    "HCRF": partial(ms.HCRF, random_state=0),
    "LossAugmentedCRF": partial(ms.LossAugmentedCRF, random_state=0),
    "EpsilonSSVM": partial(ms.EpsilonSSVM, eps=0.5, random_state=0),
    "SSVM": ms.SSVM,
    "CRF": ms.CRF,
    "MSSVM by CCCP": partial(ms.MSSVM, solver="cccp", max_iter=5, random_state=0),
    "HCRF by Adam": partial(ms.HCRF, solver="adam", max_iter=20, random_state=0),
    "SSVM by BCFW": partial(ms.SSVM, solver="bcfw", max_iter=20),
    "SSVM by cutting planes": partial(ms.SSVM, solver="cutting-plane", max_iter=60),
    "SSVM with spans as loss": partial(ms.SSVM, loss="spans"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_and_solvers_learn_lengths(name):
    """Noise hides the labels of sites; lengths tell them apart, so that segments beat a chain."""
    hidden = 0 if name.startswith(("SSVM", "CRF")) else 2
    X, sites, _ = drawn(n=40, length=20, noise=1.2)
    X_new, new, _ = drawn(n=40, length=20, noise=1.2, seed=1)
    y = sites
    if hidden:
        y = [[v if t % 4 else ms.MISSING for t, v in enumerate(row)] for row in sites]
    fitted = MEMBERS[name](structure=ms.Segments(max_length=6, hidden=hidden)).fit(X, y)
    chain = MEMBERS[name.split(" ")[0]](structure=ms.Chain()).fit(X, sites)
    assert fitted.score(X_new, new) > chain.score(X_new, new) + 0.02
    assert fitted.training_["exact"]


def test_spans_and_sites_say_the_same_where_labels_do_not_repeat():
    X, sites, spans = drawn()
    a = ms.CRF(ms.Segments(max_length=5)).fit(X, sites)
    b = ms.CRF(ms.Segments(max_length=5)).fit(X, spans)
    assert np.array_equal(a.coef_, b.coef_)
    assert b.score(X, spans) == a.score(X, sites)


def test_answers():
    X, sites, spans = drawn(n=30)
    clf = ms.HCRF(ms.Segments(max_length=5, hidden=2), random_state=0).fit(X, sites)
    for decode in ("map", "marginal"):
        labels = clf.predict(X, decode=decode)
        for row, segments in zip(labels, clf.predict_segments(X, decode=decode), strict=True):
            assert [s.label for s in segments for _ in range(s.start, s.stop)] == row.tolist()
            assert [s.start for s in segments[1:]] == [s.stop for s in segments[:-1]]
            assert all(0.0 <= s.probability <= 1.0 for s in segments)
    marginals = clf.predict_marginals(X)[0]
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0, atol=1e-9)
    boundaries = clf.predict_boundaries(X)[0]
    assert boundaries[0] == pytest.approx(1.0)
    drawn_spans = clf.sample_segments(X[:1], n=500, random_state=0)[0]
    starts = np.zeros(len(boundaries))
    for segments in drawn_spans:
        starts[[a for a, _, _ in segments]] += 1 / len(drawn_spans)
    np.testing.assert_allclose(starts, boundaries, atol=0.12)
    given = [[(2, 5, "b")] for _ in X]
    for segments in clf.predict_segments(X, given=given):
        assert (2, 5, "b") in [s[:3] for s in segments]
        assert next(s.probability for s in segments if s[:3] == (2, 5, "b")) == pytest.approx(1.0)
    assert clf.predict(X, allowed=[["a"] + [None] * 13 for _ in X])[0][0] == "a"
    hidden = clf.predict_hidden(X)
    assert [len(h) for h in hidden] == [14] * 30
    assert set(np.concatenate(hidden)) <= {0, 1}
    for states, segments in zip(hidden, clf.predict_segments(X, decode="map"), strict=True):
        assert all(len(set(states[s.start : s.stop])) == 1 for s in segments)  # constant in a segment
    gap = clf.decision_gap(X, spans)
    assert (gap >= 0).all() and gap.max() > 0


def test_the_k_best_labellings_are_those_of_enumeration():
    X, sites, _ = drawn(n=10, length=7)
    clf = ms.CRF(ms.Segments(max_length=4)).fit(X, sites)
    labels, scores = clf.predict_topk(X[:1], k=5)
    layout = clf.encoder_.layout

    def objective(segments):
        """Minus U- with nothing known but one segmentation: its score."""
        y = ["ab"[c] for a, b, c in segments for _ in range(a, b)]
        return brute_force_objective(clf.coef_, layout, X[0], y, lambda s: 0.0, 0.0, 4)

    listed = [s for s in segmentations(7, 4, 2) if all(p[2] != q[2] for p, q in zip(s, s[1:], strict=False))]
    gaps = sorted(objective(s) for s in listed)[:5]
    np.testing.assert_allclose(scores[0][0] - scores[0], gaps, atol=1e-9)
    assert len({tuple(row.tolist()) for row in labels[0]}) == 5


@pytest.mark.parametrize("structure", [name for name in STRUCTURES if name != "segment features"])
def test_files_keep_segments(structure, tmp_path):
    X, sites, _ = drawn()
    y = [[v if t % 3 else ms.MISSING for t, v in enumerate(row)] for row in sites]
    clf = ms.HCRF(STRUCTURES[structure], random_state=0, max_iter=5).fit(X, y)
    clf.save(tmp_path / "m.safetensors")
    again = ms.load(tmp_path / "m.safetensors")
    assert again.predict_segments(X) == clf.predict_segments(X)
    assert np.array_equal(again.predict_marginals(X)[3], clf.predict_marginals(X)[3])


def test_scikit_learn_clones_and_searches():
    from sklearn.model_selection import GridSearchCV

    X, sites, _ = drawn(n=20)
    assert clone(STRUCTURES["limits"]).get_params() == STRUCTURES["limits"].get_params()
    search = GridSearchCV(ms.CRF(ms.Segments()), {"structure__max_length": [2, 5]}, cv=2).fit(X, sites)
    assert search.best_params_ == {"structure__max_length": 5}


def test_long_runs_repeat_and_runs_of_known_sites_are_candidate_sets():
    """A run longer than max_length is several segments; where it is cut is not known."""
    X, sites, _ = drawn(n=10)
    sites[0] = ["a"] * 14
    clf = ms.CRF(ms.Segments(max_length=4)).fit(X, sites)
    assert clf.schema_.types["repeat"] == ("0",)
    assert not clf.encoder_.structure._repeating(clf.schema_, clf.labels_)[1]
    with pytest.raises(ms.errors.InfeasibleError, match="contradict"):
        ms.CRF(ms.Segments(max_length=4, repeat=False)).fit(X, sites)
    adjacent = ms.CRF(ms.Segments(max_length=4)).fit(X[:1], [[(0, 2, "a"), (2, 4, "a"), (4, 7, "b")]])
    assert adjacent.schema_.types["repeat"] == ("0",)


def test_length_limits_and_forbidden_transitions_hold():
    X, _, _ = drawn(n=20)
    structure = ms.Segments(max_length=6, min_length={"b": 4}, forbidden=[(None, "b"), ("a", None)])
    clf = ms.CRF(structure).fit([x[:7] for x in X[:1]], [list("aaabbbb")])
    for segments in clf.predict_segments(X, decode="map"):
        assert all(s.stop - s.start >= 4 for s in segments if s.label == "b")
        assert segments[0].label == "a" and segments[-1].label == "b"


def test_the_weights_have_names_and_can_be_fixed():
    X, sites, _ = drawn()
    clf = ms.CRF(ms.Segments(max_length=5, fixed={"duration": {(2, "a"): 1.5}})).fit(X, sites)
    rows = {(w.block, w.states): w.value for w in clf.weights_table() if w.block == "duration"}
    assert rows["duration", (2, "a")] == 1.5
    assert sorted({states[0] for _, states in rows}) == [1, 2, 3, 4, 5]
    geometric = ms.CRF(ms.Segments(max_length=5, durations="geometric")).fit(X, sites)
    assert {w.feature for w in geometric.weights_table() if w.block == "duration"} == {"1", "length"}


ERRORS = {
    "max_length": (lambda X, y: ms.CRF(ms.Segments(max_length=0)).fit(X, y), "max_length"),
    "moving": (lambda X, y: ms.CRF(ms.Segments(moving=True)).fit(X, y), "hidden states"),
    "durations": (lambda X, y: ms.CRF(ms.Segments(durations="weibull")).fit(X, y), "durations must be"),
    "rows": (lambda X, y: ms.CRF(ms.Segments(durations=np.ones((3, 2)))).fit(X, y), "40 lengths"),
    "repeat": (lambda X, y: ms.CRF(ms.Segments(repeat="never")).fit(X, y), "repeat must be"),
    "overlap": (lambda X, y: ms.CRF(ms.Segments()).fit(X[:1], [[(0, 4, "a"), (3, 5, "b")]]), "overlaps"),
    "behind": (lambda X, y: ms.CRF(ms.Segments()).fit(X[:1], [[(0, 40, "a")]]), "ends after"),
    "empty": (lambda X, y: ms.CRF(ms.Segments()).fit(X[:1], [[(4, 4, "a")]]), "start < stop"),
    "contradiction": (
        lambda X, y: ms.CRF(ms.Segments()).fit(X[:1], [{"sites": ["a"] * 14, "spans": [(0, 2, "b")]}]),
        "covers a site",
    ),
    "key": (lambda X, y: ms.CRF(ms.Segments()).fit(X[:1], [{"site": ["a"] * 14}]), "'sites' and 'spans'"),
    "too long": (lambda X, y: ms.CRF(ms.Segments(max_length=3)).fit(X[:1], [[(0, 5, "a")]]), "5 sites"),
    "instances": (lambda X, y: ms.CRF(ms.Segments()).fit(X, y[:2]), "must match"),
    "inference": (lambda X, y: ms.CRF(ms.Segments(), inference="propagate").fit(X, y), "of its own"),
    "hidden in CRF": (lambda X, y: ms.CRF(ms.Segments(hidden=2)).fit(X, y), "no hidden variables"),
    "segment_x": (
        lambda X, y: ms.CRF(ms.Segments(max_length=2)).fit([{"x": X[0], "segment_x": np.ones((14, 3, 1))}], y[:1]),
        "segment_x has shape",
    ),
    "first": (
        lambda X, y: ms.CRF(ms.Segments(forbidden=[(None, "a"), (None, "b")])).fit(X, y),
        "instance 0, site 0: no label is left for the first segment",
    ),
    "last": (
        lambda X, y: ms.CRF(ms.Segments(forbidden=[("a", None)])).fit(X[:1], [["a", "b"] * 6 + ["b", "a"]]),
        "y, instance 0, site 13: no label is left for the last segment",
    ),
    "repeated": (
        lambda X, y: ms.CRF(ms.Segments(repeat=False)).fit(X[:1], [[(0, 2, "a"), (2, 3, "a")]]),
        "y, instance 0, site 2: a segment begins and may not",
    ),
    "span loss": (lambda X, y: ms.SSVM(ms.Chain(), loss="spans").fit(X, y), "structure Segments"),
    "min above max": (lambda X, y: ms.CRF(ms.Segments(max_length=2, min_length=3)).fit(X, y), "above its max_length"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_sentence(name):
    X, sites, _ = drawn(n=4)
    call, match = ERRORS[name]
    with pytest.raises(ms.errors.InputError, match=match) as caught:
        call(X, sites)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("empty", [[0], [1], [2], [0, 1, 3]])
def test_sequences_without_sites_have_answers_without_segments(empty):
    X, sites, _ = drawn(n=4)
    clf = ms.MSSVM(ms.Segments(max_length=5, hidden=2, forbidden=[("b", "b")]), random_state=0).fit(X, sites)
    mixed = list(X[:3])
    given = [["a", *[None] * 12, "b"] for _ in mixed]
    for b in empty:
        mixed.insert(b, np.zeros((0, 2)))
        given.insert(b, [])
    filled = [b for b in range(len(mixed)) if b not in empty]
    for name in ("predict", "predict_segments", "predict_boundaries", "predict_marginals"):
        answers = getattr(clf, name)(mixed, given=given)
        alone = getattr(clf, name)([mixed[b] for b in filled], given=[given[b] for b in filled])
        assert all(len(answers[b]) == 0 for b in empty)
        assert repr([answers[b] for b in filled]) == repr(alone)
    drawn_segments = clf.sample_segments(mixed, n=2, given=given, random_state=0)
    assert all(drawn_segments[b] == [[], []] for b in empty)
    assert all(draw[0][2] == "a" and draw[-1][2] == "b" for b in filled for draw in drawn_segments[b])


@pytest.mark.parametrize("member", [ms.M3E, ms.ModLat])
def test_members_with_objectives_of_their_own_are_refused(member):
    X, sites, _ = drawn(n=4)
    with pytest.raises(ms.errors.UnsupportedError, match="not defined on segments"):
        member(ms.Segments(hidden=2)).fit(X, sites)


def test_other_structures_have_no_segments():
    X, sites, _ = drawn(n=4)
    chain = ms.CRF(ms.Chain()).fit(X, sites)
    assert not hasattr(chain, "predict_segments")


def test_segment_features_come_with_x_or_from_a_function():
    X, sites, _ = drawn(n=6)

    def four(x, start, stop):
        return [float(stop - start == 4)]

    inside = ms.CRF(ms.Segments(max_length=5, segment_features=four)).fit(X, sites)
    table = np.zeros((14, 5, 1))
    for a in range(14):
        for k in range(5):
            table[a, k] = a + k < 14 and k == 3
    beside = ms.CRF(ms.Segments(max_length=5)).fit([{"x": x, "segment_x": table} for x in X], sites)
    np.testing.assert_allclose(inside.coef_, beside.coef_, atol=1e-9)


def test_inference_is_a_setting_like_others():
    X, sites, _ = drawn(n=4)
    clf = ms.CRF(ms.Segments(max_length=5)).fit(X, sites)
    assert isinstance(clf.structure_.inference(clf.encoder_), SegmentInference)

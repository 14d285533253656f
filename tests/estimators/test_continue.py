"""Training that goes on with new data, new labels and new features: ``warm_start`` and ``partial_fit``."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import mssvm as ms
from mssvm.core.errors import InputError, UnsupportedError

TIGHT = {"tol": 1e-9, "max_iter": 2000}
FIRST = [[{"w": "the"}, {"w": "cat", "len": 3.0}], [{"w": "a"}, {"w": "dog", "len": 3.0}]]
FIRST_Y = [["D", "N"], ["D", "N"]]
MORE = [[{"w": "the"}, {"w": "cat", "len": 3.0}, {"w": "sleeps", "len": 6.0}], [{"w": "dogs"}, {"w": "bark"}]]
MORE_Y = [["D", "N", "V"], ["N", "V"]]


def weights(model) -> dict:
    return {(w.block, w.feature, w.states): w.value for w in model.encoder_.weights(model.coef_)}


def dense(n: int, seed: int = 0, classes: str = "abc") -> tuple[list, list]:
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((int(rng.integers(2, 6)), 4)) for _ in range(n)]
    Y = [[classes[int(x[:3].argmax()) % len(classes)] for x in rows] for rows in X]
    return X, Y


@pytest.mark.parametrize("member", [ms.CRF, ms.SSVM])
def test_warm_start_on_all_data_ends_where_a_full_fit_does(member):
    X = FIRST + MORE
    Y = FIRST_Y + MORE_Y
    model = member(ms.Chain(), warm_start=True, **TIGHT).fit(FIRST, FIRST_Y)
    model.fit(X, Y)
    full = member(ms.Chain(), **TIGHT).fit(X, Y)
    assert model.objective_ == pytest.approx(full.objective_, rel=1e-6)
    assert sorted(model.classes_) == sorted(full.classes_)
    found = weights(model)
    expected = weights(full)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), atol=5e-3)


def test_a_first_row_of_the_history_shows_that_old_weights_are_kept():
    """At the start of the second training, new weights are zero: its objective on the old data is the one reached."""
    model = ms.CRF(ms.Chain(), warm_start=True).fit(FIRST, FIRST_Y)
    before = weights(model)
    rows = []
    model.fit(MORE, MORE_Y, callback=lambda row, w: rows.append((row, w.copy())) or True)
    start = dict(zip(weights(model), rows[0][1], strict=True))
    assert {name: start[name] for name in before} == before
    assert all(value == 0.0 for name, value in start.items() if name not in before)


def test_classes_and_features_keep_their_places_and_new_ones_follow():
    model = ms.CRF(ms.Chain()).fit(FIRST, FIRST_Y)
    names = model.schema_.features["node"].names
    model.partial_fit(MORE, MORE_Y)
    assert model.classes_.tolist() == ["D", "N", "V"]
    assert model.schema_.features["node"].names[: len(names)] == names
    assert "w:bark" in model.schema_.features["node"].names
    assert model.predict(MORE)[1].tolist() == ["N", "V"]


def test_partial_fit_minimises_the_distance_from_the_last_weights_and_the_loss():
    """Against SciPy on the same smooth objective, whose data part is the objective of a fit less its regulariser."""
    X, Y = dense(12)
    model = ms.CRF(ms.Chain(), C=0.7, **TIGHT).fit(X[:6], Y[:6])
    last = model.coef_.copy()
    model.partial_fit(X[6:], Y[6:])

    def data_part(w):
        at = ms.CRF(ms.Chain(), C=0.7, init=w, classes="abc")
        rows = []
        at.fit(X[6:], Y[6:], callback=lambda row, v: rows.append(row) or True)
        return rows[0].objective - 0.5 * float(w @ w)

    def objective(w):
        return 0.5 * float((w - last) @ (w - last)) + data_part(w)

    assert model.objective_ == pytest.approx(objective(model.coef_), rel=1e-9)
    rng = np.random.default_rng(1)
    for _ in range(5):  # no direction lowers it: a minimum
        direction = rng.standard_normal(len(last))
        along = minimize(lambda t, d=direction: objective(model.coef_ + t[0] * d), [0.0], method="Nelder-Mead")
        assert along.fun >= model.objective_ - 1e-6 and abs(along.x[0]) < 1e-2
    assert 0.0 < np.linalg.norm(model.coef_ - last) < np.linalg.norm(last)


def test_without_a_word_to_say_a_chunk_leaves_the_weights():
    X, Y = dense(8)
    model = ms.CRF(ms.Chain(), C=1e-9).fit(X[:4], Y[:4]).set_params(C=1.0).fit(X[:4], Y[:4])
    last = model.coef_.copy()
    model.set_params(C=1e-12).partial_fit(X[4:], Y[4:])
    np.testing.assert_allclose(model.coef_, last, atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        ms.MSSVM(ms.Chain(hidden=2), random_state=0),
        ms.HCRF(ms.Chain(hidden=2, linked=True), random_state=0),
        ms.LSSVM(ms.Chain(hidden=2), random_state=0),
        ms.SSVM(ms.Chain(ends=True)),
        ms.CRF(ms.Chain(forbidden=[("a", "a")]), support="seen"),
        ms.CRF(ms.Segments(max_length=3)),
    ],
    ids=repr,
)
def test_members_and_structures_learn_a_class_that_comes_late(model):
    X, Y = dense(30)
    late = [["d" if label == "c" else label for label in labels] for labels in Y[15:]]
    Y[:15] = [["b" if label == "c" else label for label in labels] for labels in Y[:15]]
    if "forbidden" in repr(model):
        Y[:15] = [["b"] * len(labels) for labels in Y[:15]]
        Y[0][0] = "a"
        late = [["d"] * len(labels) for labels in late]
    model.fit(X[:15], Y[:15])
    model.partial_fit(X[15:], late)
    assert model.classes_.tolist() == ["a", "b", "d"]
    assert np.isfinite(model.coef_).all()
    assert any("d" in labels for labels in map(list, model.predict(X[15:])))


def test_hidden_states_of_a_class_that_comes_late_are_told_apart():
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((5, 3)) for _ in range(20)]
    y = ["a"] * 7 + ["b"] * 7 + ["c"] * 6
    model = ms.HCRF(ms.SequenceLabel(hidden=2, per_class=True), random_state=0).fit(X[:14], y[:14])
    model.partial_fit(X, y)
    of_c = [w.value for w in model.encoder_.weights(model.coef_) if w.block == "state" and w.states[0] == "c"]
    first, second = of_c[::2], of_c[1::2]
    assert not np.allclose(first, second)


def test_weights_of_pairs_that_a_chunk_lacks_are_kept_with_support_seen():
    model = ms.CRF(ms.Chain(), support="seen").fit(FIRST, FIRST_Y)
    before = weights(model)
    model.partial_fit([[{"w": "new"}]], [["N"]])
    after = weights(model)
    assert after["node", "w:cat", ("N",)] == pytest.approx(before["node", "w:cat", ("N",)])
    assert after["node", "w:new", ("N",)] > 0


def test_saved_and_loaded_models_go_on(tmp_path):
    model = ms.CRF(ms.Chain()).partial_fit(FIRST, FIRST_Y)
    model.save(tmp_path / "m.safetensors")
    again = ms.load(tmp_path / "m.safetensors").partial_fit(MORE, MORE_Y)
    model.partial_fit(MORE, MORE_Y)
    assert np.array_equal(model.coef_, again.coef_)
    again.save(tmp_path / "n.safetensors")
    loaded = ms.load(tmp_path / "n.safetensors")
    assert loaded.classes_.tolist() == ["D", "N", "V"]
    assert np.array_equal(loaded.coef_, again.coef_)
    assert [p.tolist() for p in loaded.predict(MORE)] == [p.tolist() for p in again.predict(MORE)]


def test_a_stopped_chunk_goes_on_from_its_checkpoint(tmp_path):
    X, Y = dense(20)
    settings = {"tol": 1e-8}
    whole = ms.CRF(**settings).fit(X[:10], Y[:10]).partial_fit(X[10:], Y[10:])
    model = ms.CRF(**settings).fit(X[:10], Y[:10])
    other = ms.CRF(**settings).fit(X[:10], Y[:10])

    def press(row, w):
        if row.iteration == 4:
            raise KeyboardInterrupt

    model.partial_fit(X[10:], Y[10:], callback=press, checkpoint=tmp_path / "c")
    assert model.training_["outcome"] == "interrupted"
    other.partial_fit(X[10:], Y[10:], checkpoint=tmp_path / "c")
    assert np.array_equal(other.coef_, whole.coef_)


def test_multilabel_keeps_its_graph():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    Y = (X @ rng.standard_normal((3, 4)) > 0).astype(int)
    model = ms.CRF(ms.MultiLabel()).fit(X[:20], Y[:20])
    graph = model.schema_.types
    model.partial_fit(X[20:], Y[20:])
    assert dict(model.schema_.types) == dict(graph)
    with pytest.raises(InputError, match="2 labels an instance"):
        model.partial_fit(X[20:], Y[20:, :2])


@pytest.mark.parametrize("warm", [False, True])
def test_factors_of_a_type_that_comes_late_bring_their_features(warm):
    own = {"own": ([[0], [1]], [[1.0], [0.0]])}
    first = ms.FactorInput(["y", "y"], own)
    later = ms.FactorInput(["y", "y"], {**own, "pair": ([[0, 1]], [[1.0, -1.0]])})
    model = ms.CRF(ms.FactorModel(), warm_start=warm).fit([first], [["a", "b"]])
    before = weights(model)
    if warm:
        model.fit([first, later], [["a", "b"], ["b", "b"]])
        full = ms.CRF(ms.FactorModel()).fit([first, later], [["a", "b"], ["b", "b"]])
        assert model.objective_ == pytest.approx(full.objective_, rel=1e-5)
    else:
        model.partial_fit([later], [["b", "b"]])
    assert weights(model).keys() - before.keys() > {("pair.x", "x1", ("b", "b"))}
    with pytest.raises(InputError, match="own features"):
        ms.CRF(ms.FactorModel()).fit([ms.FactorInput(["y"], {"own": [[0]]})], [["a"]]).partial_fit(
            [first], [["a", "a"]]
        )


def test_graphs_with_a_type_of_edges_that_comes_late():
    def graph(seed, kinds):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((4, 2))
        return ms.Graph(x, [(0, 1), (1, 2), (2, 3)], edge_types=kinds), (x[:, 0] > 0).astype(int).tolist()

    early = [graph(k, ["near"] * 3) for k in range(6)]
    late = [graph(k, ["near", "far", "far"]) for k in range(6, 12)]
    model = ms.CRF(ms.GraphModel()).fit(*zip(*early, strict=True))
    before = weights(model)
    model.partial_fit(*zip(*late, strict=True))
    new = {block for block, _, _ in weights(model).keys() - before.keys()}
    assert new and all("far" in block for block in new)
    assert model.schema_.types["edge"] == ("far", "near")


@pytest.mark.parametrize(
    ("more", "labels", "message"),
    [
        ([np.ones((2, 5))], [["a", "b"]], "features per site"),
        ([[{"w": "x"}]], [["a"]], "holds named features"),
        ([np.ones((1, 4))], [[3]], "another kind"),
        ([np.ones((1, 4))], [], "empty"),
        ([{"x": np.ones((2, 4)), "edge_x": np.ones((1, 1))}], [["a", "b"]], "edge features"),
    ],
)
def test_data_that_do_not_fit_are_refused(more, labels, message):
    X, Y = dense(4)
    model = ms.CRF(ms.Chain()).fit(X, Y)
    with pytest.raises(InputError, match=message):
        model.partial_fit(more, labels)
    assert model.score(X, Y) > 0.5  # still usable


def test_settings_that_do_not_fit_are_refused():
    X, Y = dense(6)
    with pytest.raises(UnsupportedError, match="L1"):
        ms.CRF(l1_ratio=0.5).fit(X, Y).partial_fit(X, Y)
    with pytest.raises(UnsupportedError, match="near earlier weights"):
        ms.SSVM(solver="bcfw").fit(X, Y).partial_fit(X, Y)
    with pytest.raises(InputError, match="classes"):
        ms.CRF(classes="abc").fit(X, Y).partial_fit(X[:1], [["z"] * len(X[0])])

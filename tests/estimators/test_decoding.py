"""Decisions of a fitted model: the best labelling or the labels of least expected loss, by brute force; calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.data.calibration import calibration_of
from mssvm.data.labels import Labels
from mssvm.inference.enumerate import Enumerate
from mssvm.losses import Hamming, TableLoss, WeightedHamming
from ragged import MEMBERS, QUICK, same, sequences, thinned
from saved.make import HERE

X, Y = sequences(20, noise=1.5)
THIN = thinned(Y, 0.3)
NEW = sequences(8, seed=1, noise=2.0)
COST = np.array([[0.0, 1.0, 5.0], [0.2, 0.0, 1.0], [1.0, 3.0, 0.0]])


def posterior(model: Any, x: Any, eps_y: float, eps_h: float) -> Any:
    """Marginals of the labels of one sequence by enumeration."""
    request = model._request([x])
    batch = request.encoded.batch
    return request.encoded.over_sites(Enumerate()(batch, request.theta, request.query, eps_y, eps_h).mu.unary)


def joint(model: Any, x: Any) -> tuple[Any, Any]:
    """All labellings of one sequence without hidden variables, and their probabilities."""
    request = model._request([x])
    n, k = len(x), len(model.classes_)
    every = np.array(list(np.ndindex(*([k] * n))))
    unary, tables = request.theta.unary.reshape(n, k), request.theta.tables.reshape(-1)
    score = unary[np.arange(n), every].sum(axis=1)
    if n > 1:
        score = score + tables.reshape(-1, k, k)[0][every[:, :-1], every[:, 1:]].sum(axis=1)
    p = np.exp(score - score.max())
    return every, p / p.sum()


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_marginals_decide_at_the_temperatures_of_the_member(name: str) -> None:
    model = MEMBERS[name]().set_params(max_iter=3).fit(X, THIN)
    assert model.temperatures_ == (1.0, model.eps_h)
    for x in NEW[0]:
        p = posterior(model, x, 1.0, model.eps_h)
        np.testing.assert_allclose(model.predict_marginals([x])[0], p, atol=1e-9)
        clear = np.sort(p, axis=1)[:, -1] - np.sort(p, axis=1)[:, -2] > 1e-9
        expected = model.classes_[p.argmax(axis=1)]
        assert np.array_equal(model.predict([x], decode="marginal")[0][clear], expected[clear])


def test_hidden_variables_at_zero_are_summed_where_they_cannot_be_eliminated() -> None:
    """Hidden chains under the labels have no exact (1, 0): the width is the length of the chain."""
    model = ms.LSSVM(ms.Chain(hidden=2, linked=True), inference="propagate", **QUICK).fit(X, THIN)
    exact = clone(model).set_params(inference="exact", max_iter=1).fit(X, THIN)
    exact.coef_ = model.coef_
    for x in NEW[0]:
        np.testing.assert_allclose(model.predict_marginals([x])[0], posterior(exact, x, 1.0, 1.0), atol=1e-6)


def test_a_weighted_loss_is_minimised_in_expectation() -> None:
    model = ms.SSVM(loss=WeightedHamming(COST), **QUICK).fit(X, Y)
    for x in NEW[0]:
        expected = (posterior(model, x, 1.0, 0.0) @ COST).argmin(axis=1)
        assert np.array_equal(model.predict([x], decode="marginal")[0], model.classes_[expected])


def test_a_loss_on_pairs_is_minimised_in_expectation() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.random((3, 3, 3, 3)) * (1 - np.eye(9).reshape(3, 3, 3, 3))
    model = ms.SSVM(loss=TableLoss({(3, 3): pairs}, WeightedHamming(COST)), **QUICK).fit(X, Y)
    for x in NEW[0]:
        every, p = joint(model, x)
        cost = COST[every[:, None], every].sum(axis=2)
        a, b = every[:, None, :], every[None, :, :]
        cost = cost + pairs[a[..., :-1], a[..., 1:], b[..., :-1], b[..., 1:]].sum(axis=2)
        best = every[(p @ cost).argmin()]
        assert np.array_equal(model.predict([x], decode="marginal")[0], model.classes_[best])


def test_constraints_hold_whatever_decides() -> None:
    forbidden = [("a", "c"), ("b", "a"), ("c", "b")]
    model = ms.CRF(ms.Chain(forbidden=forbidden), C=0.1, **QUICK)
    kept = [k for k, item in enumerate(Y) if not any(pair in forbidden for pair in zip(item, item[1:], strict=False))]
    model.fit([X[k] for k in kept], [Y[k] for k in kept])
    broken = 0
    for x in sequences(40, seed=3, noise=3.0)[0]:
        every, _ = joint(model, x)
        labels = model.classes_[every]
        legal = np.array([not any(pair in forbidden for pair in zip(z, z[1:], strict=False)) for z in labels])
        marginals = posterior(model, x, 1.0, 1.0)
        gain = np.where(legal, marginals[np.arange(len(x)), every].sum(axis=1), -1)
        assert np.array_equal(model.predict([x], decode="marginal")[0], labels[gain.argmax()])
        broken += not legal[np.flatnonzero((every == marginals.argmax(axis=1)).all(axis=1))[0]]
    assert broken  # site by site, the most probable labels would break the constraints somewhere
    allowed = [[{"b", "c"}] * len(x) for x in NEW[0]]
    assert not any("a" in item for item in model.predict(NEW[0], decode="marginal", allowed=allowed))


def test_only_the_best_labelling_keeps_the_bound_of_lemma_1() -> None:
    """U >= Delta for decode="map" at every w; there are w at which it fails for decode="marginal"."""
    rng = np.random.default_rng(0)
    model = ms.SSVM(max_iter=1).fit(X, Y)
    worse = 0
    for _ in range(300):
        model.coef_ = rng.normal(0, 3.0, len(model.coef_))
        x, y = NEW[0][int(rng.integers(8))], None
        every, p = joint(model, x)
        y = every[rng.choice(len(every), p=p)]
        score = np.log(np.maximum(p, 1e-300))
        truth = int(np.flatnonzero((every == y).all(axis=1))[0])
        U = (score + (every != y).sum(axis=1)).max() - score[truth]
        said = {how: model.predict([x], decode=how)[0] for how in ("map", "marginal")}
        wrong = {how: int((z != model.classes_[y]).sum()) for how, z in said.items()}
        assert wrong["map"] <= U + 1e-9
        worse += wrong["marginal"] > U + 1e-9
    assert worse


def test_the_parameter_is_what_predict_and_score_use() -> None:
    models = {how: ms.CRF(decode=how, **QUICK).fit(X, Y) for how in ("map", "marginal", "auto")}
    one, two = (models[how].predict(NEW[0]) for how in ("map", "marginal"))
    assert not same(one, two)
    for how, expected in (("map", one), ("marginal", two)):
        for model in models.values():
            assert same(model.predict(NEW[0], decode=how), expected)
            assert model.score(*NEW, decode=how) == ms.metrics.site_accuracy(NEW[1], expected)
        assert models[how].score(*NEW) == models[how].score(*NEW, decode=how)
        assert clone(models[how]).decode == how
    found = GridSearchCV(ms.CRF(**QUICK), {"decode": ["map", "marginal"]}, cv=2).fit(X, Y)
    scores = found.cv_results_["mean_test_score"]
    assert len(set(scores)) == 2 and found.best_params_["decode"] == ("map", "marginal")[int(scores.argmax())]


def test_one_label_an_instance_is_decided_alike() -> None:
    y = [item[0] for item in Y]
    for model in (ms.LSSVM(ms.SequenceLabel(2), **QUICK), ms.HCRF(ms.SequenceLabel(2), **QUICK)):
        model.fit(X, y)
        assert same(model.predict(NEW[0], decode="map"), model.predict(NEW[0], decode="marginal"))
        p = model.predict_proba(NEW[0])
        assert p.shape == (8, 3) and np.allclose(p.sum(axis=1), 1.0)
        assert np.array_equal(model.classes_[p.argmax(axis=1)], model.predict(NEW[0]))
    assert not hasattr(ms.CRF(), "predict_proba")
    with pytest.raises(AttributeError, match=r"has no attribute 'predict_proba' on a Chain.* predict_marginals has"):
        ms.CRF().predict_proba(X)
    assert ms.CRF.predict_proba.__name__ == "predict_proba"


def test_a_saved_model_decides_as_before(tmp_path: Any) -> None:
    model = ms.LSSVM(ms.Chain(hidden=2), decode="marginal", **QUICK).fit(X, THIN).calibrate(*NEW)
    model.save(tmp_path / "m")
    twin = ms.load(tmp_path / "m")
    assert twin.decode == "marginal" and twin.temperatures_ == model.temperatures_ != (1.0, 0.0)
    assert same(twin.predict(NEW[0]), model.predict(NEW[0]))
    assert same(twin.predict_marginals(NEW[0]), model.predict_marginals(NEW[0]))
    earlier = ms.load(HERE / "LSSVM.chain-hidden.safetensors")  # written before there was a choice
    assert earlier.decode == "map" and earlier.temperatures_ == (1.0, 1.0)
    assert earlier.predict([np.ones((2, 3))], decode="auto")[0].shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        (ms.CRF(), "marginal"),
        (ms.LossAugmentedCRF(), "marginal"),
        (ms.LossAugmentedCRF(loss=WeightedHamming(COST)), "map"),  # the margin has paid for unequal costs already
        (ms.UnifiedSSVM(eps_y=1.0, eps_h=0.0), "marginal"),
        (ms.EpsilonSSVM(eps=0.5), "map"),
        (ms.SSVM(), "map"),
        (ms.MSSVM(), "map"),
        (ms.MSSVM(inference="propagate"), "marginal"),
        (ms.LSSVM(inference="propagate"), "map"),
    ],
)
def test_what_auto_stands_for(model: Any, chosen: str) -> None:
    assert model.decode == "auto"
    cycle = [(0, 1), (1, 2), (2, 0)]
    graphs = [ms.Graph(np.resize(x, (3, 3)), cycle) for x in X]
    y = [(item * 3)[:3] for item in Y]
    model = clone(model).set_params(structure=ms.GraphModel(), max_iter=2).fit(graphs, y)
    assert model.training_["exact"] == (model.inference == "auto")
    assert same(model.predict(graphs), model.predict(graphs, decode=chosen))
    assert model._decoder(None, model.training_["exact"]) == chosen


def test_a_loss_of_ones_own() -> None:
    class Own:
        def delta(self, *given: Any) -> Any:
            return Hamming().delta(*given)

    model = ms.MSSVM(loss=Own(), **QUICK).fit(X, THIN)
    assert same(model.predict(NEW[0]), model.predict(NEW[0], decode="map"))
    with pytest.raises(InputError, match="needs a loss with a method expected"):
        model.predict(NEW[0], decode="marginal")


# ----------------------------------------------------------------------------------------- calibration


def test_calibration_finds_the_temperature_of_least_log_loss() -> None:
    model = ms.SSVM(C=20.0, **QUICK).fit(X, Y)
    held, truth = sequences(60, seed=2, noise=1.5)
    before = ms.metrics.calibration(model, held, truth)
    labels = model.predict(held, decode="map")
    model.calibrate(held, truth)
    t = model.temperatures_[0]
    assert model.temperatures_ == (t, 0.0)
    after = ms.metrics.calibration(model, held, truth).log_loss
    assert after < before.log_loss
    for other in (0.8 * t, 1.25 * t):
        model.temperatures_ = (other, 0.0)
        assert ms.metrics.calibration(model, held, truth).log_loss > after
    model.temperatures_ = (t, 0.0)
    p = np.concatenate([posterior(model, x, t, 0.0) for x in held])
    states = np.concatenate([np.searchsorted(model.classes_, item) for item in truth])
    assert after == pytest.approx(-np.mean(np.log(p[np.arange(len(p)), states])), abs=1e-9)
    assert same(model.predict(held, decode="map"), labels)
    assert model.fit(X, Y).temperatures_ == (1.0, 0.0)


def two_minima() -> tuple[Any, Any, Any]:
    """A model whose log loss has one minimum at a low temperature and another, higher one at a high temperature."""
    x, y = [np.array([[0.158, -0.417], [1.167, -0.405]])], [["b", "a"]]
    structure = ms.Chain(hidden=2, direct=True, forbidden=[("a", "b")])
    model = ms.HCRF(structure, classes=["a", "b"], random_state=0).fit(x * 2, [["b", "a"], ["a", "a"]])
    weights = """
        -0.7256 -0.3356 -1.5672 1.7768 -0.9762 -0.4233 0.8725 -1.3641 -0.6325 -0.0765 -0.9669 0.0987 1.3498
        -0.178 1.1534 0.0385 0.5172 1.3136 0.1469 -0.8254 -0.3572 0.2711 0.4203 0.6835 -1.2255 -0.0252
    """
    model.coef_ = np.array([float(weight) for weight in weights.split()])
    return model, x, y


def test_calibration_finds_the_lower_of_two_minima() -> None:
    model, x, y = two_minima()
    losses = {}
    for t in np.exp(np.linspace(-np.log(32), np.log(32), 101)):
        model.temperatures_ = (t, t)
        losses[t] = ms.metrics.calibration(model, x, y).log_loss
    values = list(losses.values())
    assert sum(a > b < c for a, b, c in zip([np.inf, *values], values, [*values[1:], np.inf], strict=False)) == 2
    model.calibrate(x, y)
    assert ms.metrics.calibration(model, x, y).log_loss <= min(values) + 1e-9
    found = model.training_["calibration"]
    assert found["temperature"] == model.temperatures_[0] == pytest.approx(1 / 32)
    assert found["log_loss"] == pytest.approx(min(values)) and found["at_edge"]
    assert "at the edge of the interval searched" in model.diagnose()


def test_calibration_says_that_a_minimum_is_inside(tmp_path: Path) -> None:
    model = ms.SSVM(C=20.0, **QUICK).fit(X, Y)
    assert "Calibrated" not in model.diagnose()
    model.calibrate(*sequences(60, seed=2, noise=1.5))
    assert not model.training_["calibration"]["at_edge"]
    assert "a minimum inside the interval searched" in model.diagnose()
    model.save(tmp_path / "m.safetensors")
    assert ms.load(tmp_path / "m.safetensors").diagnose() == model.diagnose()
    assert "Calibrated" not in model.fit(X, Y).diagnose()


def test_a_loss_that_no_temperature_changes_keeps_the_temperature_1() -> None:
    model = ms.CRF(ms.Chain(), **QUICK).fit(X, Y)
    model.coef_ = np.zeros_like(model.coef_)
    model.calibrate(X, Y)
    assert model.temperatures_[0] == 1.0 and not model.training_["calibration"]["at_edge"]


def test_reliability_against_counting() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 500)
    states = np.array([rng.choice(3, p=row) for row in p])
    observed = rng.random(500) < 0.8
    labels = Labels(observed, np.eye(3, dtype=bool)[states] | ~observed[:, None], np.array([0, 500]))
    found = calibration_of(p, labels, 5)
    top, right = p.max(axis=1)[observed], (p.argmax(axis=1) == states)[observed]
    total = 0.0
    for b in found.bins:
        here = (top > b.low) & (top <= b.high)
        assert b.n_sites == here.sum() and b.accuracy == pytest.approx(right[here].mean())
        assert b.confidence == pytest.approx(top[here].mean())
        total += abs(right[here].sum() - top[here].sum())
    assert sum(b.n_sites for b in found.bins) == observed.sum()
    assert found.error == pytest.approx(total / observed.sum()) and found.error < 0.1
    assert found.log_loss == pytest.approx(-np.log(p[np.arange(500), states][observed]).mean())


def test_probabilities_of_labels_that_training_never_met_do_not_count() -> None:
    model = ms.CRF(**QUICK).fit(X, Y)
    changed = [["z", *item[1:]] for item in NEW[1]]
    hidden = [[None, *item[1:]] for item in NEW[1]]
    assert ms.metrics.calibration(model, NEW[0], changed) == ms.metrics.calibration(model, NEW[0], hidden)
    one, two = (clone(model).fit(X, Y).calibrate(NEW[0], item).temperatures_ for item in (changed, hidden))
    assert one == two
    with pytest.raises(InputError, match="no labelled site"):
        ms.metrics.calibration(model, NEW[0], [[None] * len(x) for x in NEW[0]])


# ----------------------------------------------------------------------------------------- labels and instances


def test_a_label_that_training_never_met_is_wrong() -> None:
    model = ms.CRF(**QUICK).fit(X, Y)
    changed = [["z", *item[1:]] for item in NEW[1]]
    n, first = sum(map(len, NEW[1])), [p[0] == item[0] for p, item in zip(model.predict(NEW[0]), NEW[1], strict=True)]
    assert model.score(NEW[0], changed) == pytest.approx(model.score(*NEW) - sum(first) / n)
    with pytest.raises(InputError, match="label 0 is of another type"):
        model.score(NEW[0], [[0] * len(x) for x in NEW[0]])
    held = ms.HeldOut(NEW[0], changed)
    assert ms.CRF(**QUICK).fit(X, Y, validation=held).n_iter_ > 0


@pytest.mark.parametrize("name", ["CRF", "SSVM", "MSSVM", "LSSVM"])
@pytest.mark.parametrize("inference", ["auto", "propagate"])
def test_an_empty_sequence_among_others_has_an_empty_answer(name: str, inference: str) -> None:
    model = MEMBERS[name]().set_params(max_iter=2).fit(X, THIN).set_params(inference=inference)
    empty = np.zeros((0, 3))
    for how in ("map", "marginal"):
        found = model.predict([NEW[0][0], empty, NEW[0][1], empty], decode=how)
        assert [len(z) for z in found] == [len(NEW[0][0]), 0, len(NEW[0][1]), 0]
        assert same([found[0], found[2]], model.predict(NEW[0][:2], decode=how))
        assert len(model.predict([empty], decode=how)[0]) == 0
    assert model.predict_marginals([empty, NEW[0][0]])[0].shape == (0, 3)
    assert model.score([empty, *NEW[0]], [[], *NEW[1]]) == model.score(*NEW)
    with pytest.raises(InputError, match="instance 1: there is no site to label; leave empty instances out"):
        clone(model).fit([X[0], empty], [Y[0], []])

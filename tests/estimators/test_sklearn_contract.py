"""The contract with scikit-learn: its own checks where they apply, and the same promises on ragged data."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251  what joblib and Dask do to estimators; the package itself never unpickles
from unittest import SkipTest

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, KFold, cross_val_score, learning_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import mssvm as ms
from ragged import MEMBERS, QUICK, same, sequences, thinned


@parametrize_with_checks([ms.LatentClassifier()])
def test_latent_classifier_is_a_scikit_learn_classifier(estimator, check):
    check(estimator)


# Checks of scikit-learn that the structured estimators cannot pass, and why. Whatever else fails is a defect, and so is
# an entry that passes. The promises behind these checks are tested on ragged data below.
MATRIX = "it passes a plain matrix, a row for each instance, where every instance has rows of its own"
MESSAGE = "it asks for a message about matrices, which are not what these estimators take"
EXPECTED_FAILURES = {
    "check_fit_score_takes_y": MATRIX,
    "check_estimators_overwrite_params": MATRIX,
    "check_dont_overwrite_parameters": MATRIX,
    "check_estimators_fit_returns_self": MATRIX,
    "check_readonly_memmap_input": MATRIX,
    "check_n_features_in_after_fitting": MATRIX,
    "check_positive_only_tag_during_fit": MATRIX,
    "check_estimators_dtypes": MATRIX,
    "check_sample_weights_pandas_series": MATRIX,
    "check_sample_weights_not_an_array": MATRIX,
    "check_sample_weights_list": MATRIX,
    "check_all_zero_sample_weights_error": MATRIX,
    "check_sample_weights_shape": MATRIX,
    "check_sample_weights_not_overwritten": MATRIX,
    "check_sample_weight_equivalence_on_dense_data": MATRIX,
    "check_complex_data": MESSAGE,
    "check_dtype_object": MATRIX,
    "check_estimators_empty_data_messages": MESSAGE,
    "check_pipeline_consistency": MATRIX,
    "check_estimators_nan_inf": MATRIX,
    "check_estimator_sparse_tag": MATRIX,
    "check_estimator_sparse_array": MATRIX,
    "check_estimator_sparse_matrix": MATRIX,
    "check_estimators_pickle": MATRIX,
    "check_array_api_input": MATRIX,
    "check_f_contiguous_array_estimator": MATRIX,
    "check_methods_sample_order_invariance": MATRIX,
    "check_methods_subset_invariance": MATRIX,
    "check_fit2d_1sample": MESSAGE,
    "check_fit2d_1feature": MESSAGE,
    "check_dict_unchanged": MATRIX,
    "check_fit_idempotent": MATRIX,
    "check_fit_check_is_fitted": MATRIX,
    "check_n_features_in": MATRIX,
    "check_fit2d_predict1d": MATRIX,
}


@pytest.mark.parametrize("name", MEMBERS)
def test_checks_of_scikit_learn(name, monkeypatch):
    kind = type(MEMBERS[name]())
    tags = kind.__sklearn_tags__

    def of_matrices(self):  # as the estimators are, no check would be run at all
        out = tags(self)
        out.input_tags.two_d_array = True
        return out

    monkeypatch.setattr(kind, "__sklearn_tags__", of_matrices)
    passed, failed, skipped = set(), {}, set()
    for estimator, check in estimator_checks_generator(kind()):
        check_name = check.func.__name__
        try:
            check(estimator)
        except SkipTest:  # something optional is not installed
            skipped.add(check_name)
        except Exception as error:
            failed[check_name] = repr(error)
        else:
            passed.add(check_name)
    assert {k: v for k, v in failed.items() if k not in EXPECTED_FAILURES} == {}
    assert passed & EXPECTED_FAILURES.keys() == set()
    assert EXPECTED_FAILURES.keys() - failed.keys() <= skipped
    assert len(passed) >= 13


@pytest.fixture(scope="module")
def data():
    X, y = sequences(30)
    return X, thinned(y, 0.3)


@pytest.fixture(scope="module")
def fitted(data):
    return {name: make().fit(*data) for name, make in MEMBERS.items()}


@pytest.mark.parametrize("name", MEMBERS)
class TestEveryMember:
    def test_is_no_flat_classifier(self, name, fitted):
        assert not is_classifier(fitted[name])  # or searches would stratify by ragged labels

    def test_fits_to_the_same_bits_again(self, name, data, fitted):
        again = MEMBERS[name]().fit(*data)
        assert np.array_equal(again.coef_, fitted[name].coef_)
        assert np.array_equal(again.fit(*data).coef_, fitted[name].coef_)

    def test_learned_attributes(self, name, fitted):
        model = fitted[name]
        assert list(model.classes_) == ["a", "b", "c"]
        assert model.n_features_in_ == 3
        assert model.n_iter_ == len(model.history_) > 0
        assert np.all(np.isfinite(model.coef_))
        assert model.status_.endswith(".") and "exact" in model.status_
        assert np.isfinite(model.history_["objective"]).all()

    def test_answers_do_not_depend_on_company_or_order(self, name, data, fitted):
        X, model = data[0], fitted[name]
        whole = model.predict_marginals(X)
        assert same([model.predict_marginals([x])[0].round(9) for x in X[:4]], [p.round(9) for p in whole[:4]])
        assert same(model.predict(X[::-1])[::-1], model.predict(X))
        assert same(model.predict(X[3:9]), model.predict(X)[3:9])

    def test_pickles(self, name, data, fitted):
        model = pickle.loads(pickle.dumps(fitted[name]))
        assert same(model.predict(data[0]), fitted[name].predict(data[0]))

    def test_clone_forgets_and_keeps(self, name, fitted):
        twin = clone(fitted[name])
        assert not hasattr(twin, "coef_")
        assert repr(twin) == repr(fitted[name])

    def test_unfitted_says_so(self, name, data):
        model = MEMBERS[name]()
        for call in (model.predict, model.predict_marginals, model.predict_hidden, model.predict_topk):
            with pytest.raises(NotFittedError):
                call(data[0])
        for call in (model.diagnose, model.weights_table, lambda: model.save("nowhere"), lambda: model.score(*data)):
            with pytest.raises(NotFittedError):
                call()

    def test_inputs_stay_as_they_are(self, name, data):
        X, y = data
        X0, y0 = copy.deepcopy(X), copy.deepcopy(y)
        model = MEMBERS[name]()
        before = repr(model)
        model.set_params(max_iter=2).fit(X, y).predict(X, given=y)
        assert same(X, X0) and y == y0
        assert repr(model.set_params(max_iter=MEMBERS[name]().max_iter)) == before

    def test_scores_probabilities(self, name, data, fitted):
        for p, labels in zip(fitted[name].predict_marginals(data[0]), data[1], strict=True):
            assert p.shape == (len(labels), 3)
            np.testing.assert_allclose(p.sum(axis=1), 1.0)


# Three iterations of the other members would follow rounding errors into other local minima.
@pytest.mark.parametrize("name", sorted(MEMBERS.keys() - {"M3E", "ModLat"}))
def test_order_of_training_instances_does_not_matter(name, data):
    X, y = data
    a = MEMBERS[name]().set_params(max_iter=5).fit(X, y)
    b = MEMBERS[name]().set_params(max_iter=5).fit(X[::-1], y[::-1])
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-3, atol=1e-3)


class TestModelSelection:
    X, y = sequences(24)

    def test_grid_search_reaches_into_the_structure(self):
        search = GridSearchCV(ms.HCRF(ms.Chain(), **QUICK), {"structure__hidden": [0, 2], "C": [0.1, 1.0]}, cv=2)
        search.fit(self.X, thinned(self.y, 0.2))
        assert search.best_params_.keys() == {"structure__hidden", "C"}
        assert 0.5 < search.best_score_ <= 1.0
        assert len(search.predict(self.X)) == len(self.X)

    def test_halving_search(self):
        search = HalvingGridSearchCV(ms.CRF(**QUICK), {"C": [0.1, 1.0]}, cv=2, min_resources=12, factor=2)
        assert search.fit(self.X, self.y).best_score_ > 0.5

    def test_cross_val_score_and_learning_curve(self):
        assert cross_val_score(ms.CRF(**QUICK), self.X, self.y, cv=3).min() > 0.4
        _, train, test = learning_curve(ms.CRF(**QUICK), self.X, self.y, cv=2, train_sizes=[0.5, 1.0])
        assert train.shape == test.shape == (2, 2) and np.isfinite(test).all()

    def test_pipeline(self):
        scale = FunctionTransformer(lambda X: [x / 2 for x in X])
        pipe = make_pipeline(scale, ms.CRF(**QUICK)).fit(self.X, self.y)
        direct = ms.CRF(**QUICK).fit([x / 2 for x in self.X], self.y)
        assert same(pipe.predict(self.X), direct.predict([x / 2 for x in self.X]))
        assert pipe.score(self.X, self.y) == direct.score([x / 2 for x in self.X], self.y)

    def test_sample_weight_is_routed(self):
        weight = np.r_[np.ones(12), np.zeros(12)]
        with config_context(enable_metadata_routing=True):
            model = ms.CRF(**QUICK).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
            split = [(np.arange(24), np.arange(24))]
            search = GridSearchCV(model, {"C": [1.0]}, cv=split).fit(self.X, self.y, sample_weight=weight)
        first = ms.CRF(**QUICK).fit(self.X[:12], self.y[:12])
        np.testing.assert_allclose(search.best_estimator_.coef_, first.coef_, atol=1e-4)
        assert search.best_score_ == pytest.approx(first.score(self.X[:12], self.y[:12]))

    def test_own_cross_val_predict_matches_fits_by_hand(self):
        cv = KFold(3)
        got = ms.cross_val_predict(ms.CRF(**QUICK), self.X, self.y, cv=cv)
        for train, test in cv.split(self.X):
            by_hand = ms.CRF(**QUICK).fit([self.X[i] for i in train], [self.y[i] for i in train])
            assert same([got[i] for i in test], by_hand.predict([self.X[i] for i in test]))

    def test_own_cross_val_predict_of_one_label_each(self):
        labels = np.array([item[0] for item in self.y])
        model = ms.HCRF(ms.SequenceLabel(hidden=2), **QUICK)
        assert ms.cross_val_predict(model, self.X, labels, cv=2).shape == (24,)
        with pytest.raises(ms.errors.InputError, match="exactly once"):
            ms.cross_val_predict(model, self.X, labels, cv=[(np.arange(12), np.arange(12, 20))])


def test_settings_of_solvers_losses_and_inference_can_be_searched():
    X, y = sequences(18)
    model = ms.SSVM(solver=ms.solvers.LBFGS(), loss=ms.losses.Hamming(), inference=ms.inference.Auto())
    grid = {"solver__max_iter": [1, 10], "loss__scale": [1.0, 2.0], "inference__memory_limit": [1 << 20]}
    search = GridSearchCV(model, grid, cv=3).fit(X, y)
    assert search.best_estimator_.solver.max_iter in (1, 10) and model.solver.max_iter == 500
    iterations = [p["solver__max_iter"] for p in search.cv_results_["params"]]
    fitted = clone(model).set_params(solver__max_iter=1).fit(X, y)
    assert sorted(iterations) == [1, 1, 10, 10] and "all 1 iterations were used" in fitted.training_["message"]
    nested = ms.LSSVM(solver=ms.solvers.CCCP(ms.solvers.BCFW())).set_params(solver__inner__max_iter=7)
    assert clone(nested).solver.inner.max_iter == 7
    with pytest.raises(ValueError, match="no parameter 'speed'"):
        nested.set_params(solver__speed=3)

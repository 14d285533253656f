"""What a user sees of the estimators: labels of every kind, answers checked by enumeration, words for what is wrong."""

from __future__ import annotations

import copy
import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms
from mssvm.core.errors import InfeasibleError, InputError, MemoryLimitError, MssvmWarning, UnsupportedError
from mssvm.core.progress import ProgressLine
from mssvm.engines.native.engine import NativeEngine
from mssvm.estimators.hooks import TrainingLine
from mssvm.estimators.prediction import KnownLabels
from mssvm.experiments.members import Untrained
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.propagation.propagate import Propagate
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import BCFW, LBFGS, Checkpoint, Row, Subgradient, Validation, checkpoints_of
from ragged import QUICK, same, sequences, thinned

X, Y = sequences(30)
Y_THIN = thinned(Y, 0.3)


@pytest.fixture(scope="module")
def hcrf():
    return ms.HCRF(ms.Chain(hidden=2), **QUICK).fit(X, Y_THIN)


@pytest.fixture(scope="module")
def mssvm():
    return ms.MSSVM(ms.Chain(hidden=2), **QUICK).fit(X, Y_THIN)


def scores_of_all(model, x, given=None):
    """Score of every output of one instance: the value of the query clamped to it, by enumeration."""
    out = {}
    for labels in itertools.product(model.classes_, repeat=len(x)):
        if given is None or all(g is ms.MISSING or g == v for g, v in zip(given, labels, strict=True)):
            request = model._request([x], KnownLabels(given=[list(labels)]))
            belief = Enumerate()(request.encoded.batch, request.theta, request.query, 0.0, model.eps_h)
            out[labels] = float(belief.value[0])
    return out


class TestAnswers:
    @pytest.mark.slow
    def test_predict_is_the_best_of_all_outputs(self, mssvm):
        for x, got in zip(X[:6], mssvm.predict(X[:6]), strict=True):
            scores = scores_of_all(mssvm, x)
            assert tuple(got) == max(scores, key=scores.get)

    @pytest.mark.slow
    def test_what_is_kept_of_a_prediction_answers_the_question_that_is_asked(self, hcrf, mssvm):
        for model in (hcrf, mssvm):
            own, given = copy.deepcopy(model), [[y[0], *[ms.MISSING] * (len(y) - 1)] for y in Y]
            changes = {"eps_h": 0.0}, {"eps_h": 1.0}, {"inference": "propagate"}, {"inference": Enumerate()}
            for change in ({}, *changes, {"n_jobs": 2}):
                for name, value in change.items():
                    setattr(own, name, value)
                fresh = copy.deepcopy(own)  # has kept nothing
                for decode in ("map", "marginal", "map"):
                    assert same(own.predict(X, decode=decode), copy.deepcopy(fresh).predict(X, decode=decode))
                assert same(own.predict(X, given=given), fresh.predict(X, given=given))
                assert same(own.predict_marginals(X), copy.deepcopy(fresh).predict_marginals(X))
            with ThreadPoolExecutor(4) as pool:
                found = pool.map(own.predict, [X] * 8)
                assert all(same(labels, fresh.predict(X)) for labels in found)

    def test_topk_are_the_k_best_of_all_outputs(self, mssvm):
        for x in (X[2], X[4]):
            labels, scores = mssvm.predict_topk([x], 7)
            every = sorted(scores_of_all(mssvm, x).items(), key=lambda item: -item[1])[:7]
            np.testing.assert_allclose(scores[0], [s for _, s in every])
            assert [tuple(v) for v in labels[0]] == [v for v, _ in every]

    def test_topk_stops_where_outputs_end(self, mssvm):
        single = next(x for x in X if len(x) == 1)
        labels, scores = mssvm.predict_topk([single], 10)
        assert sorted(v[0] for v in labels[0]) == ["a", "b", "c"]
        assert np.all(np.diff(scores[0]) <= 0)

    def test_topk_of_one_label_a_sequence(self):
        y = np.array([item[-1] for item in Y])
        model = ms.HCRF(ms.SequenceLabel(hidden=2), **QUICK).fit(X, y)
        labels, scores = model.predict_topk(X[:3], 3)
        p = model.predict_marginals(X[:3])
        for b in range(3):
            assert labels[b] == [model.classes_[k] for k in np.argsort(-p[b])]
            np.testing.assert_allclose(np.exp(scores[b] - scores[b][0]), np.sort(p[b])[::-1] / p[b].max(), rtol=1e-6)

    def test_topk_of_a_long_sequence_is_refused_before_memory_is_used_up(self, monkeypatch):
        monkeypatch.setattr("mssvm.core.memory.machine_memory", lambda: 1 << 20)
        X = [np.arange(200.0)[:, None] % 3, np.zeros((1, 1))]
        clf = ms.CRF().fit([x[:9] for x in X], [list("abcabcabc"), ["a"]])
        with pytest.raises(MemoryLimitError, match=r"the 5 best labellings of 2 instances would need .* shorter ones"):
            clf.predict_topk(X, 5)
        assert clf.decision_gap(X)[0] > 0.0

    def test_topk_is_refused_where_inference_is_not_exact(self):
        model = ms.MSSVM(ms.Chain(hidden=2), inference=Propagate(merging=False), max_iter=1, random_state=0).fit(X, Y)
        with pytest.raises(UnsupportedError, match="k best outputs need exact inference"):
            model.predict_topk(X, 2)

    def test_decision_gap(self, mssvm):
        x, labels = X[2], Y[2]
        scores = scores_of_all(mssvm, x)
        first, second = sorted(scores.values())[::-1][:2]
        np.testing.assert_allclose(mssvm.decision_gap([x]), [first - second])
        np.testing.assert_allclose(mssvm.decision_gap([x], [labels]), [first - scores[tuple(labels)]], atol=1e-9)
        assert mssvm.decision_gap([x], [[ms.MISSING] * len(x)]) == 0.0

    def test_marginals_and_their_decoder(self, hcrf):
        x = X[2]
        request = hcrf._request([x])
        belief = Enumerate()(request.encoded.batch, request.theta, request.query, 1.0, 1.0)
        p = hcrf.predict_marginals([x])[0]
        np.testing.assert_allclose(p, request.encoded.over_sites(belief.mu.unary))
        assert hcrf.predict([x], decode="marginal")[0].tolist() == hcrf.classes_[p.argmax(axis=1)].tolist()

    def test_given_labels_stay_and_the_rest_follows(self, mssvm):
        given = [[v if t == 1 else ms.MISSING for t, v in enumerate(item)] for item in Y]
        for x, fixed, got in zip(X[:6], given, mssvm.predict(X[:6], given=given[:6]), strict=False):
            scores = scores_of_all(mssvm, x, fixed)
            assert tuple(got) == max(scores, key=scores.get)

    def test_given_candidates_and_allowed_restrict(self, mssvm):
        for how in ("given", "allowed"):
            got = mssvm.predict(X, **{how: [[{"a", "b"}] * len(x) for x in X]})
            assert set(np.concatenate(got)) <= {"a", "b"}

    def test_hidden_sites_are_summed_out(self, mssvm):
        x = X[2]
        hidden = np.zeros(len(x), dtype=bool)
        hidden[0] = True
        request = mssvm._request([x], KnownLabels([hidden]))
        assert request.query.output.tolist()[: len(x)] == (~hidden).tolist()
        belief = Enumerate()(request.encoded.batch, request.theta, request.query, 0.0, 1.0)
        expected = belief.decode(request.encoded.batch)[: len(x)]
        assert mssvm.predict([x], hidden_sites=[hidden])[0].tolist() == mssvm.classes_[expected].tolist()

    def test_old_names_warn_and_work(self, mssvm):
        mask = [[True] + [False] * (len(x) - 1) for x in X]
        for method in (mssvm.predict, mssvm.predict_marginals, mssvm.predict_hidden):
            expected = method(X, hidden_sites=mask)
            with pytest.warns(FutureWarning, match="hidden= is called hidden_sites= now") as caught:
                found = method(X, hidden=mask)
            assert caught[0].filename == __file__
            assert same(found, expected)
        with pytest.raises(InputError, match="give hidden_sites only"):
            mssvm.predict(X, hidden=mask, hidden_sites=mask)
        with pytest.warns(FutureWarning, match="space_ is called schema_ now"):
            assert mssvm.space_ is mssvm.schema_
        with pytest.warns(FutureWarning, match="is called hidden_sites= now"):
            assert ms.HeldOut(X, Y, hidden=mask).hidden_sites is mask

    def test_predictions_of_the_same_shapes_are_compiled_once(self, mssvm):
        own = copy.deepcopy(mssvm)
        first = own._request(X[:2])
        second = own._request([x + 1.0 for x in X[:2]])
        assert first.query is second.query
        assert first._bound(own._predictor) is second._bound(own._predictor)
        known = own._request(X[:2], KnownLabels(given=Y[:2]))
        assert known._bound(own._predictor) is not first._bound(own._predictor)

    def test_hidden_states(self, mssvm):
        states = mssvm.predict_hidden(X)
        assert [len(s) for s in states] == [len(x) - 1 for x in X]
        assert set(np.concatenate(states)) <= {0, 1}

    def test_score_skips_missing_and_takes_any_candidate(self, hcrf):
        predicted = hcrf.predict(X)
        wrong = [["a" if v != "a" else "b" for v in item] for item in predicted]
        assert hcrf.score(X, predicted) == 1.0
        assert hcrf.score(X, wrong) == 0.0
        assert hcrf.score(X, [[{"a", "b", "c"}] * len(x) for x in X]) == 1.0
        half = [list(item) for item in wrong]
        for item, right in zip(half[:15], predicted, strict=False):
            item[:] = [ms.MISSING] * len(item)
            item[0] = right[0]
        sites = sum(len(x) for x in X[15:])
        assert hcrf.score(X, half) == pytest.approx(15 / (15 + sites))
        assert hcrf.score(X, half, sample_weight=np.r_[np.ones(15), np.zeros(15)]) == 1.0
        with pytest.raises(InputError, match="at least one labelled site"):
            hcrf.score(X, [[None] * len(x) for x in X])


class TestLabels:
    @pytest.mark.parametrize("kinds", [(0, 1, 2), ("x", "yy", "z"), ((0, 1), (1, 0), (2, 2)), (1.5, 2.5, 3)])
    def test_any_hashable_label(self, kinds):
        named = [[kinds["abc".index(v)] for v in item] for item in Y]
        model = ms.CRF(**QUICK).fit(X, named)
        plain = ms.CRF(**QUICK).fit(X, Y)
        order = {model.labels_.classes.index(k) for k in kinds}
        assert order == {0, 1, 2}
        assert model.score(X, named) == pytest.approx(plain.score(X, Y), abs=0.05)

    @pytest.mark.parametrize("mark", [None, ms.MISSING, float("nan"), -1, 255])
    def test_every_way_to_say_missing(self, mark):
        numbers = [[mark if v is ms.MISSING else "abc".index(v) for v in item] for item in Y_THIN]
        missing_label = mark if isinstance(mark, int) else None
        model = ms.HCRF(missing_label=missing_label, **QUICK).fit(X, numbers)
        expected = ms.HCRF(**QUICK).fit(X, Y_THIN)
        assert np.array_equal(model.coef_, expected.coef_)

    def test_instances_without_labels_are_legal_and_change_nothing(self):
        model = ms.HCRF(**QUICK).fit([*X, X[0]], [*Y_THIN, [None] * len(X[0])])
        assert np.array_equal(model.coef_, ms.HCRF(**QUICK).fit(X, Y_THIN).coef_)
        assert "2 instances had no label and changed nothing" in model.diagnose()
        for nothing in (None, ms.MISSING):
            again = ms.HCRF(**QUICK).fit([*X, X[0]], [*Y_THIN, nothing])
            assert np.array_equal(again.coef_, model.coef_) and again.diagnose() == model.diagnose()

    def test_a_candidate_set_of_one_is_a_label(self):
        sets = [[{v} for v in item] for item in Y]
        assert np.array_equal(ms.MSSVM(**QUICK).fit(X, sets).coef_, ms.MSSVM(**QUICK).fit(X, Y).coef_)

    def test_classes_may_be_named_in_advance(self):
        model = ms.CRF(classes=["a", "b", "c", "d"], **QUICK).fit(X, Y)
        assert model.classes_.tolist() == ["a", "b", "c", "d"]
        assert model.predict_marginals(X[:1])[0].shape[-1] == 4
        assert "'d'" in model.diagnose()


class TestTraining:
    def test_instance_weights_equal_repeats(self):
        weight = np.r_[np.full(10, 2.0), np.ones(20)]
        a = ms.CRF(tol=1e-12).fit(X, Y, sample_weight=weight)
        b = ms.CRF(tol=1e-12).fit(X[:10] + X, Y[:10] + Y)
        np.testing.assert_allclose(a.coef_, b.coef_, atol=1e-5)

    def test_class_weight_of_a_margin_scales_the_loss_and_of_a_likelihood_the_instances(self):
        heavy = {"a": 4.0}
        for kind in (ms.SSVM, ms.CRF):
            plain, weighted = kind(**QUICK).fit(X, Y), kind(class_weight=heavy, **QUICK).fit(X, Y)
            share = [np.mean(np.concatenate(m.predict(X)) == "a") for m in (plain, weighted)]
            assert share[1] >= share[0]
            assert not np.array_equal(plain.coef_, weighted.coef_)
        weight = [np.mean([heavy.get(v, 1.0) for v in item]) for item in Y]
        by_hand = ms.CRF(**QUICK).fit(X, Y, sample_weight=weight)
        np.testing.assert_allclose(ms.CRF(class_weight=heavy, **QUICK).fit(X, Y).coef_, by_hand.coef_)

    @pytest.mark.parametrize("loss", ["zero-one", "spans"])
    def test_class_weights_are_refused_by_losses_that_are_no_sum_over_sites(self, loss):
        structure = ms.Segments(max_length=3) if loss == "spans" else ms.Chain()
        with pytest.raises(UnsupportedError, match="is no sum over sites"):
            ms.SSVM(structure, loss=loss, class_weight={"a": 4.0}, **QUICK).fit(X, Y)
        ms.SSVM(structure, loss=loss, class_weight=dict.fromkeys("abc", 1.0), **QUICK).fit(X, Y)

    def test_balanced_is_the_dict_it_stands_for(self):
        flat = np.concatenate(Y)
        weights = {c: len(flat) / (3 * np.sum(flat == c)) for c in "abc"}
        a = ms.SSVM(class_weight="balanced", **QUICK).fit(X, Y)
        np.testing.assert_allclose(a.coef_, ms.SSVM(class_weight=weights, **QUICK).fit(X, Y).coef_)

    def test_threads_do_not_change_a_bit(self):
        one, two = (ms.MSSVM(ms.Chain(hidden=2), n_jobs=n, **QUICK).fit(X, Y) for n in (1, 2))
        assert np.array_equal(one.coef_, two.coef_)
        assert same(one.predict_marginals(X), two.predict_marginals(X))

    def test_warm_start_saves_work(self):
        model = ms.MSSVM(ms.Chain(hidden=2), solver="lbfgs", warm_start=True, random_state=0).fit(X, Y_THIN)
        first, reached = model.n_iter_, model.objective_
        model.fit(X, Y_THIN)
        assert model.n_iter_ < first / 3 and model.objective_ <= reached * (1 + 1e-3)

    @pytest.mark.parametrize(
        "model",
        [ms.CRF(max_iter=2), ms.MSSVM(ms.Chain(hidden=2), max_iter=2), ms.SSVM(solver="bcfw", max_iter=1, C=100)],
        ids=repr,
    )
    def test_training_that_stops_early_warns(self, model):
        with pytest.warns(ConvergenceWarning, match="used up its iterations before it converged; raise max_iter"):
            model.fit(X, Y)
        assert model.training_["outcome"] == "budget"

    def test_few_epochs_warn_and_many_do_not(self):
        grids, labels = [np.zeros((2, 2, 2)) + k for k in (0, 1)], [np.full((2, 2), k) for k in (0, 1)]
        settings = {"solver": "adam", "random_state": 0}
        with pytest.warns(ConvergenceWarning, match="raise max_iter"):
            ms.SSVM(ms.Grid(), max_iter=1, **settings).fit(grids, labels)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settled = ms.SSVM(ms.Grid(), **settings).fit(grids, labels)
            ms.CRF().fit(X, Y)
        assert settled.training_["outcome"] == "completed" and "whether more would" in settled.status_

    def test_l1_ratio(self):
        settings = {"penalties": {"transition": 0.5}, "tol": 1e-12, "max_iter": 2000}
        plain, sparse = (ms.CRF(l1_ratio=ratio, **settings).fit(X, Y) for ratio in (0.0, 0.9))
        strengths = 1.0 - 0.5 * np.array([row.block == "transition" for row in sparse.weights_table()])
        zero = sparse.coef_ == 0
        assert not np.any(plain.coef_ == 0) and 0 < zero.sum() < len(zero)
        # What the data pull by, from the objective of the plain model: its gradient is minus the pull.
        solver = Untrained()
        ms.CRF(solver=solver, init=sparse.coef_).fit(X, Y)
        pull = -solver.problem.difference(sparse.coef_).gradient
        expected = strengths * (0.1 * sparse.coef_ + 0.9 * np.sign(sparse.coef_))
        np.testing.assert_allclose(pull[~zero], expected[~zero], atol=1e-3)
        assert np.all(np.abs(pull[zero]) <= 0.9 * strengths[zero] + 1e-3)
        with pytest.raises(InputError, match="l1_ratio must be a finite number >= 0 and <= 1"):
            ms.CRF(l1_ratio=1.5).fit(X, Y)
        with pytest.raises(UnsupportedError, match="use LBFGS"):
            ms.SSVM(l1_ratio=0.5, solver="bcfw").fit(X, Y)

    def test_certificates_and_calls_in_words(self):
        model = ms.CRF(max_iter=3).fit(X, Y)
        model.training_ |= {"objective": 852.0, "gap": 4540.0, "exact": False, "floored": 3}
        told = model.diagnose()
        assert "The certificate is not useful: it leaves a gap of 4540." in told and "of the minimum" not in told
        assert "3 calls fell below" in told and "loss-augmented" not in told
        model.training_ |= {"gap": 0.5, "augmented": True}
        assert "not useful" not in model.diagnose() and "3 loss-augmented calls" in model.diagnose()

    def test_counting_goes_on_after_an_interruption(self, tmp_path):
        seen: list[Row] = []

        def press(row, w):
            seen.append(row)
            if len(seen) == 8:
                raise KeyboardInterrupt

        model = ms.MSSVM(ms.Chain(hidden=2), random_state=0)
        assert model.fit(X, Y_THIN, callback=press, checkpoint=tmp_path / "c").training_["outcome"] == "interrupted"
        model.fit(X, Y_THIN, callback=press, checkpoint=tmp_path / "c")
        assert [row.iteration for row in seen[6:11]] == [6, 7, 8, 7, 8] and seen[9].seconds > seen[6].seconds
        whole = ms.MSSVM(ms.Chain(hidden=2), random_state=0).fit(X, Y_THIN)
        assert np.array_equal(model.coef_, whole.coef_) and model.n_iter_ == whole.n_iter_

    def test_warm_start_goes_on_where_it_stopped(self):
        model = ms.CRF(warm_start=True, max_iter=4).fit(X, Y)
        first = model.objective_
        assert model.fit(X, Y).history_["objective"][0] == pytest.approx(first)
        assert model.objective_ < first
        with pytest.raises(InputError, match="features per site"):
            model.fit([x[:, :2] for x in X], Y)

    def test_restarts_keep_the_lowest_objective(self):
        model = ms.LSSVM(ms.Chain(hidden=2), n_init=3, **QUICK).fit(X, Y_THIN)
        restarts = model.training_["restarts"]
        assert len(restarts) == 3 and model.objective_ == min(restarts)
        assert "3 starts ended between" in model.diagnose()
        assert len(ms.CRF(n_init=3, **QUICK).fit(X, Y).training_["restarts"]) == 1  # one minimum, one start

    def test_zeros_leave_hidden_states_symmetric_and_say_so(self):
        with pytest.warns(MssvmWarning, match="identical for ever"):
            model = ms.MSSVM(ms.Chain(hidden=2), init="zeros", **QUICK).fit(X, Y)
        left = model.encoder_.layout.view(model.coef_, "left").reshape(3, 2)
        np.testing.assert_allclose(left[:, 0], left[:, 1], atol=1e-12)

    def test_likelihood_and_given_starts(self):
        given = ms.MSSVM(init=np.full(21, 0.1), **QUICK).fit(X, Y)
        assert given.history_["objective"][0] > given.objective_
        cold, warm = (ms.LSSVM(ms.Chain(hidden=2), init=i, **QUICK).fit(X, Y) for i in ("auto", "hcrf"))
        assert warm.history_["objective"][0] < 0.8 * cold.history_["objective"][0]

    @pytest.mark.slow
    @pytest.mark.parametrize("solver", ["lbfgs", "bcfw", "cutting-plane", "subgradient", "cccp"])
    def test_solvers_by_name_agree(self, solver):
        model = ms.SSVM(C=0.1, solver=solver, tol=1e-3, random_state=0).fit(X, Y)
        best = ms.SSVM(C=0.1, solver=BCFW(tolerance=1e-5, max_iter=500)).fit(X, Y)
        assert model.objective_ <= 1.1 * best.objective_

    def test_penalties_name_blocks(self):
        free = ms.CRF(C=0.01, penalties={"transition": 0.0, "bias": 0.0}, **QUICK).fit(X, Y)
        bound = ms.CRF(C=0.01, **QUICK).fit(X, Y)
        view = [m.encoder_.layout.view(m.coef_, "transition") for m in (free, bound)]
        assert np.abs(view[0]).max() > 5 * np.abs(view[1]).max()

    def test_auto_solver_follows_inference(self):
        exact = ms.CRF(max_iter=2).fit(X, Y)
        rough = ms.MSSVM(ms.Chain(hidden=2), inference=Propagate(merging=False), max_iter=1, random_state=0).fit(X, Y)
        assert "L-BFGS" in exact.training_["message"] and "epochs" in rough.training_["message"]
        assert "exact" in exact.status_ and "approximate" in rough.status_
        assert "approximate" in rough.diagnose()
        rng = np.random.default_rng(0)
        grids, labels = list(rng.normal(size=(3, 3, 3, 2))), list(rng.integers(2, size=(3, 3, 3)).astype(object))
        thin = [np.where(rng.random((3, 3)) < 0.5, None, item) for item in labels]
        told = [
            ms.SSVM(ms.Grid(), inference="propagate", max_iter=1, random_state=0).fit(grids, y).training_["message"]
            for y in (labels, thin)
        ]
        assert "rounds" in told[0] and "epochs" in told[1]
        rough = ms.inference.Propagate("fast", starts=("marginals",))
        by_messages = ms.SSVM(ms.Grid(), inference=rough, max_iter=1, random_state=0).fit(grids, labels)
        assert "passes" in by_messages.training_["message"]

    def test_auto_cools_less_where_labels_are_scarce(self):
        def lowest(solver, y):
            temperatures = ms.LSSVM(solver=solver, max_iter=2).fit(X, y).history_["eps_y"]
            return temperatures[temperatures > 0].min()

        assert (lowest("auto", Y), lowest("auto", thinned(Y, 0.8)), lowest("lbfgs", Y)) == (0.25, 0.5, 1 / 32)

    def test_without_hidden_variables_means_without(self):
        for kind in (ms.SSVM, ms.CRF):
            with pytest.raises(InputError, match="has no hidden variables"):
                kind(ms.Chain(hidden=2)).fit(X, Y)

    def test_members_agree_where_they_should(self):
        unified = ms.UnifiedSSVM(ms.Chain(hidden=2), eps_y=0.0, eps_h=1.0, **QUICK).fit(X, Y_THIN)
        assert np.array_equal(unified.coef_, ms.MSSVM(ms.Chain(hidden=2), **QUICK).fit(X, Y_THIN).coef_)
        epsilon = ms.EpsilonSSVM(eps=1.0, **QUICK).fit(X, Y)
        assert np.array_equal(epsilon.coef_, ms.LossAugmentedCRF(**QUICK).fit(X, Y).coef_)


class TestWords:
    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"C": 0}, "C must be a finite number > 0"),
            ({"C": "big"}, "C must be a finite number > 0"),
            ({"structure": 3}, "structure must be a structure"),
            ({"loss": "square"}, "loss must be one of"),
            ({"loss": 3}, "loss must be a name"),
            ({"solver": "newton"}, "solver must be 'auto'"),
            ({"solver": LBFGS(), "max_iter": 3}, "belong to solvers given by name"),
            ({"inference": "magic"}, "inference must be"),
            ({"memory_limit": 0}, "memory_limit must be"),
            ({"init": "best"}, "init must be one of"),
            ({"init": np.zeros(2)}, "init as an array needs 21"),
            ({"n_init": 0}, "n_init must be a whole number"),
            ({"n_jobs": 0}, r"threads \(n_jobs\) must be"),
            ({"max_iter": 1.5}, "max_iter must be a whole number"),
            ({"tol": -1}, "tol must be"),
            ({"class_weight": "fair"}, "class_weight must be"),
            ({"class_weight": {"z": 1}}, "class_weight names 'z'"),
            ({"class_weight": {"a": -1}}, "must be a finite number >= 0"),
            ({"penalties": {"colour": 1}}, "no weights are called 'colour'"),
            ({"penalties": 3}, "penalties must map"),
            ({"penalties": {"node": "much"}}, "penalties\\['node'\\] must be a finite number >= 0, got 'much'"),
            ({"penalties": {"node": -1.0}}, "penalties\\['node'\\] must be a finite number >= 0, got -1"),
            ({"structure": ms.Chain(fixed={"bias": "a"})}, "fixed\\['bias'\\] holds 'a'"),
            ({"structure": ms.Chain(fixed={"bias": {"B": "a"}})}, "fixed\\['bias'\\] holds 'a'"),
            ({"classes": ["a", "b"]}, "label 'c' is not among the classes"),
        ],
    )
    def test_bad_parameters_are_named_in_fit(self, parameters, message):
        model = ms.SSVM(**parameters)  # construction never complains
        with pytest.raises(InputError, match=message):
            model.fit(X, Y)

    def test_bad_data(self, mssvm):
        for call, message in (
            (lambda: ms.CRF().fit(X, None), "requires y to be passed, but the target y is None"),
            (lambda: ms.CRF().fit(X, Y, sample_weight=np.zeros(30)), "weight is zero"),
            (lambda: ms.CRF().fit(X, Y, sample_weight=np.ones(3)), "sample_weight needs one"),
            (lambda: ms.CRF(classes="abc").fit(X, [[None] * len(x) for x in X]), "no site of y is labelled"),
            (lambda: ms.HCRF(loss="hamming").fit(X, Y), "use LossAugmentedCRF"),
            (lambda: mssvm.predict(X, decode="viterbi"), "decode must be 'map', 'marginal' or 'auto'"),
            (lambda: ms.CRF(decode="viterbi").fit(X, Y), "decode must be 'map', 'marginal' or 'auto'"),
            (lambda: ms.CRF().fit(X, Y, sample_weight=[np.ones(len(x)) for x in X]), "sites cannot be weighted"),
            (lambda: mssvm.score(X, Y, sample_weight=[np.ones(len(x)) for x in X]), "sites cannot be weighted"),
            (lambda: mssvm.predict(X[:2], hidden_sites=[[True]]), "hidden_sites has 1 instances"),
            (lambda: mssvm.predict(X[:1], hidden_sites=[["yes"] * len(X[0])]), "give True or False"),
            (lambda: mssvm.predict_topk(X, 0), "k must be a whole number"),
        ):
            with pytest.raises(InputError, match=message):
                call()

    def test_impossible_requests(self):
        model = ms.CRF(ms.Chain(forbidden=[("a", "b")]), **QUICK).fit([x[:1] for x in X], [item[:1] for item in Y])
        with pytest.raises(InfeasibleError, match="no labelling satisfies the constraints"):
            model.predict([X[2][:2]], given=[["a", "b"]])

    def test_memory(self):
        with pytest.raises(MemoryLimitError):
            ms.HCRF(ms.Grid(), inference="exact", memory_limit=100).fit(
                [np.zeros((6, 6, 2))], [np.arange(36).reshape(6, 6) % 3]
            )

    def test_weights_table(self, hcrf):
        table = hcrf.weights_table()
        assert len(table) == len(hcrf.coef_)
        assert [row.value for row in table] == hcrf.coef_.tolist()
        top = hcrf.weights_table(top=3)
        assert abs(top[0].value) == np.abs(hcrf.coef_).max() and len(top) == 3

    def test_diagnosis_speaks_of_everything(self, hcrf):
        text = hcrf.diagnose()
        for words in ("Training", "Objective", "Inference was exact", "sites", "hidden states"):
            assert words in text

    def test_progress_line(self, capsys):
        row = Row(3, 12.5, 0.1, float("nan"), 4, 4, 3.0, 0.5, 0, 0.0, 1.0)
        line = TrainingLine(ProgressLine("MSSVM"))
        line.begin(LBFGS(max_iter=9, schedule=(1.0, 0.5)).limit((0.0, 1.0)), 1, 2)
        start = "start 1 of 2, iteration 3, 1/s, objective 12.5, gap 0.1, 50% of inference converged, "
        assert line.text(row) == f"{start}temperatures 0 and 1"  # 3 of 40 iterations, most of which may never run
        line.begin(LBFGS(max_iter=5).limit((1.0, 1.0)), 2, 2)
        assert line.text(row).endswith("at most 2 s left")  # the second half of one stage of a likelihood
        epochs = Subgradient(max_iter=11)
        line.begin(epochs.limit((1.0, 1.0)), 2, 2, None, epochs.uses_whole_budget)
        assert line.text(row).endswith("temperatures 0 and 1, 9 s left")  # all epochs are run, and the mean is recorded
        ms.CRF(verbose=True, max_iter=2).fit(X, Y)
        assert "CRF: iteration" in capsys.readouterr().err


@pytest.mark.slow
def test_latent_classifier_finds_prototypes():
    rng = np.random.default_rng(0)
    corner = rng.integers(4, size=400)
    x = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]])[corner] * 2 + rng.normal(0, 0.5, (400, 2))
    y = np.where(corner < 2, "same", "different")  # no line separates these
    model = ms.LatentClassifier(hidden=2, C=10, n_init=5, random_state=0).fit(x[:200], y[:200])
    assert model.score(x[200:], y[200:]) > 0.95
    assert ms.LatentClassifier(hidden=1, random_state=0).fit(x[:200], y[:200]).score(x[200:], y[200:]) < 0.8
    states = model.predict_hidden(x)
    agree = [len(np.unique(states[corner == c], return_counts=True)[1]) for c in range(4)]
    assert max(agree) <= 2
    for eps_y, eps_h in ((0.0, 1.0), (0.0, 0.0), (1.0, 1.0)):
        margin = ms.LatentClassifier(2, eps_y=eps_y, eps_h=eps_h, n_init=5, random_state=0).fit(x[:200], y[:200])
        assert margin.score(x[200:], y[200:]) > 0.9


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"same": 2.0, "z": 1.0}, "class_weight names 'z'"),
        ("balance", "class_weight must be"),
        (3.0, "class_weight must"),
    ],
)
def test_latent_classifier_refuses_weights_of_unknown_classes(weights, sentence):
    x = np.array([[0.0], [1.0], [2.0], [3.0]])
    y = np.array(["same", "different", "same", "different"])
    with pytest.raises(ms.errors.InputError, match=sentence):
        ms.LatentClassifier(class_weight=weights).fit(x, y)
    ms.LatentClassifier(class_weight={"same": 2.0}, max_iter=2).fit(x, y)


@pytest.mark.parametrize(
    ("arguments", "settings", "proper"),
    [
        ((), {"hidden": 2}, "MSSVM(Chain(hidden=2))"),
        ((ms.Grid(),), {"hidden": 2}, "MSSVM(Grid(hidden=2))"),
        ((), {"edges": "contrast"}, "MSSVM(Grid(edges='contrast'))"),
    ],
)
def test_a_parameter_of_the_structure_is_sent_there(arguments, settings, proper):
    with pytest.raises(TypeError, match="a parameter of the structure") as raised:
        ms.MSSVM(*arguments, **settings)
    assert f"write {proper}." in str(raised.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        ms.EpsilonSSVM(colour=1)


@pytest.mark.parametrize("annotators", [None, ms.Annotators()])
def test_training_on_nothing_is_refused(annotators):
    for X in ([], np.zeros((0, 3)), [np.zeros((2, 3))]):
        with pytest.raises(InputError, match="y is empty; HCRF needs at least one instance with a label"):
            ms.HCRF(annotators=annotators).fit(X, [])


def test_solver_objects_pass_through():
    model = ms.CRF(solver=Subgradient(max_iter=2, rate=0.1)).fit(X, Y)
    assert "All 2 epochs" in model.training_["message"]


class TestFollowing:
    def test_a_callback_sees_every_row_and_stops(self):
        rows = []

        def callback(row, w):
            rows.append((row, w))
            return row.iteration == 3

        model = ms.CRF().fit(X, Y, callback=callback)
        assert model.training_["outcome"] == "stopped" and len(rows) == model.n_iter_ == 4
        assert all(w.shape == model.coef_.shape for _, w in rows)

    def test_callbacks_and_scores_see_all_weights_whatever_the_support(self):
        named = [[["bias", f"f{v}"] for v in y] for y in Y]
        seen = []
        score = Validation(lambda w: -float(w @ w), patience=2)
        model = ms.CRF(support="seen", max_iter=5).fit(
            named, Y, callback=lambda row, w: seen.append(len(w)), validation=score
        )
        assert set(seen) == {len(model.coef_)} and model.training_["outcome"] == "early"

    def test_held_out_data_stop_training_at_their_best_score(self):
        X_held, Y_held = sequences(12, seed=5)
        held = ms.HeldOut(X_held, Y_held, patience=3)
        scores = []

        def callback(row, w):
            probe = ms.CRF(max_iter=1).fit(X, Y)
            probe.coef_ = w
            scores.append(probe.score(X_held, Y_held))

        model = ms.CRF(C=100.0).fit(X, Y, validation=held, callback=callback)
        assert model.training_["outcome"] == "early"
        assert model.score(X_held, Y_held) == max(scores) and len(scores) == scores.index(max(scores)) + 4
        pair = ms.CRF(C=100.0).fit(X, Y, validation=(X_held, Y_held))
        assert pair.score(X_held, Y_held) >= max(scores)

    def test_a_checkpoint_is_resumed(self, tmp_path):
        model = ms.LSSVM(ms.Chain(hidden=2), n_init=2, solver="subgradient", **QUICK)
        whole = clone(model).fit(X, Y_THIN)
        file = Checkpoint(tmp_path / "run", every_seconds=0.0)

        def press(row, w):
            if row.iteration == 4:
                raise KeyboardInterrupt

        cut = clone(model).fit(X, Y_THIN, checkpoint=file, callback=press)
        assert cut.training_["outcome"] == "interrupted" and len(cut.training_["restarts"]) == 1
        assert [p.name for p in checkpoints_of(tmp_path / "run")] == ["run-1"]
        resumed = clone(model).fit(X, Y_THIN, checkpoint=file)
        assert np.array_equal(resumed.coef_, whole.coef_) and len(resumed.training_["restarts"]) == 2
        with pytest.raises(InputError, match="another solver, problem or start"):
            clone(model).set_params(C=2.0).fit(X, Y_THIN, checkpoint=tmp_path / "run")

    def test_a_time_limit_keeps_the_best_so_far(self):
        endless = Subgradient(max_iter=10**6, rate=0.1)
        model = ms.LSSVM(ms.Chain(hidden=2), solver=endless, n_init=3, random_state=0)
        model.fit(X, Y_THIN, time_limit=1.0)
        assert model.training_["outcome"] == "time" and len(model.training_["restarts"]) == 1
        assert model.objective_ == model.history_["objective"].min() < model.history_["objective"][0]
        assert "time limit" in model.diagnose()
        with pytest.raises(InputError, match="time_limit must be"):
            model.fit(X, Y_THIN, time_limit=0)

    def test_the_pass_that_picks_the_solver_is_not_made_twice(self, monkeypatch):
        calls = []
        difference = TrainingProblem.difference

        def counted(self, w, instances=None):
            calls.append(self.temperatures)
            return difference(self, w, instances)

        monkeypatch.setattr(TrainingProblem, "difference", counted)
        model = ms.CRF(max_iter=4).fit(X, Y)
        assert len(calls) * len(X) == model.history_["plus_calls"][-1]


def test_an_engine_of_ones_own_runs_everything():
    class Counting(NativeEngine):
        calls = 0

        def exact(self, *args, **kwargs):
            Counting.calls += 1
            return super().exact(*args, **kwargs)

    model = ms.MSSVM(ms.Chain(hidden=2), engine=Counting(1), **QUICK).fit(X, Y_THIN)
    trained = Counting.calls
    assert trained > 0
    assert same(model.predict(X), ms.MSSVM(ms.Chain(hidden=2), **QUICK).fit(X, Y_THIN).predict(X))
    assert Counting.calls > trained
    with pytest.raises(InputError, match="engine must be one of"):
        ms.CRF(engine="steam").fit(X, Y)

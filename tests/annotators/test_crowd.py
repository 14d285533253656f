"""Training on votes: the objective by brute force, its gradient, its limits, and what it recovers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mssvm as ms
from mssvm.annotators import Annotators, dawid_skene, simulate
from mssvm.annotators.confusion import Confusion
from mssvm.annotators.votes import RawVotes, Votes
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.estimators.crowd import Rounds, _over_states
from mssvm.estimators.hooks import FitHooks
from mssvm.estimators.training_data import Earlier, TrainingData
from mssvm.objectives.training import TrainingProblem

CROWD = simulate(3, 4, 3, (0.9, 0.5), coverage=0.8, seed=3)


def laid_out(member: type = ms.HCRF) -> tuple[TrainingData, Votes]:
    """Training data and votes of the small crowd."""
    plan = member(ms.Chain(), random_state=0)._plan()
    raw = RawVotes.parse(CROWD.votes, 1)
    data = TrainingData.of(replace(plan, classes=raw.classes()), CROWD.X, raw.labels(raw.classes()), None, None, None)
    return data, Votes.encode(raw, np.diff(data.encoded.labels.ptr), data.encoder.vocabulary)


def problem_of(data: TrainingData, evidence: np.ndarray) -> TrainingProblem:
    sample = replace(data.sample, evidence=_over_states(data.encoded, evidence))
    return replace(data, sample=sample).pose(ms.inference.Auto())


def random_confusion(votes: Votes, rng: np.random.Generator, sequential: bool) -> Confusion:
    contexts = votes.n_classes + 1 if sequential else 1
    shape = (len(votes.names), contexts, votes.n_classes, votes.n_classes)
    tables = rng.dirichlet(np.ones(votes.n_classes), size=shape[:3])
    return Confusion(np.log(tables), tables[0], sequential)


@pytest.mark.parametrize("sequential", [False, True])
def test_the_objective_is_the_likelihood_of_the_votes_by_brute_force(sequential: bool) -> None:
    data, votes = laid_out()
    rng = np.random.default_rng(0)
    confusion = random_confusion(votes, rng, sequential)
    evidence = confusion.evidence(votes)
    w = rng.normal(size=data.encoder.model.n_weights)
    theta = data.encoder.model.forward(w, data.encoded.inputs)
    batch = data.encoded.batch
    expected = []
    for b in range(len(batch)):
        first = batch.var_ptr[b]
        unary = theta.unary[batch.unary_ptr[first] : batch.unary_ptr[batch.var_ptr[b + 1]]].reshape(4, 3)
        table = theta.tables[batch.table_at[batch.factor_ptr[b]] :][:9].reshape(3, 3)
        free = observed = -np.inf
        for y in itertools.product(range(3), repeat=4):
            score = sum(unary[t, y[t]] for t in range(4)) + sum(table[y[t - 1], y[t]] for t in range(1, 4))
            free = np.logaddexp(free, score)
            observed = np.logaddexp(observed, score + sum(evidence[4 * b + t, y[t]] for t in range(4)))
        expected.append(free - observed)
    found = problem_of(data, evidence).difference(w)
    np.testing.assert_allclose(found.values, expected, rtol=1e-10)


def test_the_evidence_is_the_log_likelihood_of_the_votes_up_to_a_constant() -> None:
    _, votes = laid_out()
    confusion = random_confusion(votes, np.random.default_rng(1), True)
    expected = np.zeros((votes.n_sites, 3))
    for k in range(len(votes)):
        for y in range(3):
            table = confusion.log_tables[votes.annotator[k], votes.previous[k]]
            expected[votes.site[k], y] += table[y, votes.label[votes.ptr[k]]]
    expected -= expected.max(axis=1, keepdims=True)
    np.testing.assert_allclose(confusion.evidence(votes), expected, atol=1e-12)


@pytest.mark.parametrize("member", [ms.HCRF, ms.MSSVM, ms.LossAugmentedCRF])
def test_gradients_by_finite_differences(member: type) -> None:
    data, votes = laid_out(member)
    rng = np.random.default_rng(2)
    problem = problem_of(data, random_confusion(votes, rng, True).evidence(votes))
    w = rng.normal(size=problem.n_weights)
    gradient = problem.difference(w).gradient
    step = 1e-6
    for j in range(problem.n_weights):
        shift = np.zeros_like(w)
        shift[j] = step
        slope = (problem.difference(w + shift).total - problem.difference(w - shift).total) / (2 * step)
        assert gradient[j] == pytest.approx(slope, abs=1e-6)


def test_perfect_annotators_are_ordinary_labels_and_useless_ones_missing_labels() -> None:
    data, votes = laid_out()
    rng = np.random.default_rng(4)
    w = rng.normal(size=data.encoder.model.n_weights)
    truth = np.concatenate(CROWD.truth)
    with np.errstate(divide="ignore"):
        perfect = np.log(np.eye(3)[truth])
    labelled = TrainingData.of(data.plan, CROWD.X, CROWD.truth, None, None, Earlier(data.encoder, w))
    ordinary = labelled.pose(ms.inference.Auto()).difference(w)
    found = problem_of(data, perfect).difference(w)
    voted = np.add.reduceat(data.observed.observed, data.encoded.labels.ptr[:-1]) == 4
    np.testing.assert_allclose(found.values[voted], ordinary.values[voted], atol=1e-9)
    assert voted.any()
    uniform = np.full((len(votes.names), 1, 3, 3), -np.log(3.0))
    nothing = problem_of(data, Confusion(uniform, np.full((1, 3, 3), 1 / 3), False).evidence(votes)).difference(w)
    np.testing.assert_allclose(nothing.values, 0.0, atol=1e-9)
    np.testing.assert_allclose(nothing.gradient, 0.0, atol=1e-9)


def test_rounds_lower_the_penalised_likelihood() -> None:
    """Tables of highest posterior density: EM is monotone when the prior's own table is fixed."""
    crowd = simulate(40, 10, 3, (0.9, 0.6, 0.5), seed=5)
    settings = Annotators(context="none")
    plan = ms.HCRF(ms.Chain(), random_state=0)._plan()
    raw = RawVotes.parse(crowd.votes, 1)
    data = TrainingData.of(replace(plan, classes=raw.classes()), crowd.X, raw.labels(raw.classes()), None, None, None)
    votes = Votes.encode(raw, np.diff(data.encoded.labels.ptr), data.encoder.vocabulary)
    rounds = Rounds(data, votes, settings, FitHooks(lambda *_: None))  # type: ignore[arg-type]
    posterior = np.full((votes.n_sites, 3), 1 / 3) + votes.counts()
    posterior /= posterior.sum(axis=1, keepdims=True)
    shared = Confusion.estimate(votes, posterior, settings, False).shared
    values = []
    w = None
    for _ in range(6):
        confusion = Confusion.estimate(votes, posterior, settings, False, shared)
        log_likelihood = confusion.log_likelihood(votes)
        w, solution, _ = rounds._lower(posterior, log_likelihood, w, 20)
        prior = settings.strength * np.sum(shared * confusion.log_tables)
        values.append(solution.objective - prior)
        posterior = rounds.truth(w, log_likelihood)
    assert np.all(np.diff(values) <= 1e-6), values


def test_truth_is_recovered_better_than_by_dawid_skene_and_tables_are_found() -> None:
    crowd = simulate(300, 10, 3, (0.75, 0.6, 0.6), seed=6)
    clf = ms.HCRF(ms.Chain(), annotators=Annotators(max_iter=20), random_state=0).fit(crowd.X, crowd.votes)
    truth = np.concatenate(crowd.truth)
    labels, marginals = clf.aggregate(crowd.X, crowd.votes, marginals=True)
    alone = np.mean(np.concatenate(dawid_skene(crowd.votes)) == truth)
    assert np.mean(np.concatenate(labels) == truth) > alone + 0.03
    assert np.allclose(np.concatenate(marginals).sum(axis=1), 1.0)
    for a, name in enumerate(("a0", "a1", "a2")):
        row = clf.annotators_[name]
        assert np.abs(row.confusion - crowd.tables[a]).max() < 0.06
        assert row.coverage == 1.0 and row.n_votes == 3000
    assert "a0" in str(clf.annotators_)


@pytest.mark.slow
def test_the_error_of_tables_falls_as_one_over_the_root_of_the_votes() -> None:
    errors = []
    for n_chains in (50, 800):
        found = []
        for seed in range(3):
            crowd = simulate(n_chains, 10, 2, (0.8, 0.7, 0.9), signal=2.0, seed=seed)
            settings = Annotators(context="none", strength=1.0, diagonal=1.0, max_iter=20)
            clf = ms.HCRF(ms.Chain(), annotators=settings, random_state=0).fit(crowd.X, crowd.votes)
            tables = np.stack([row.confusion for row in clf.annotators_])
            found.append(np.sqrt(np.mean((tables - crowd.tables) ** 2)))
        errors.append(np.mean(found))
    assert errors[1] < errors[0] / 2.5  # sixteen times the votes: a quarter, up to the noise of three draws


def test_gold_labels_tell_adversaries_from_others() -> None:
    """Two annotators who are wrong together look like the good ones, until some true labels are known."""
    crowd = simulate(100, 10, 3, (0.8, 0.1, 0.1), signal=0.0, seed=7)
    votes = [dict(votes) for votes in crowd.votes]
    misled = ms.HCRF(ms.Chain(), annotators=ms.Annotators(context="none"), random_state=0).fit(crowd.X, votes)
    assert misled.annotators_["a0"].accuracy < 0.5
    for b in range(30):
        votes[b] = {**votes[b], ms.annotators.GOLD: crowd.truth[b].tolist()}
    clf = ms.HCRF(ms.Chain(), annotators=ms.Annotators(context="none"), random_state=0).fit(crowd.X, votes)
    assert clf.annotators_["a0"].accuracy > 0.7
    assert clf.annotators_["a1"].accuracy < 0.2
    labels = clf.aggregate(crowd.X[:30], votes[:30])
    assert np.concatenate(labels).tolist() == np.concatenate(crowd.truth[:30]).tolist()


def test_grids_and_single_labels_take_votes() -> None:
    rng = np.random.default_rng(8)
    masks = [np.pad(np.ones((3, 3), dtype=int), 2) for _ in range(4)]
    X = [mask[..., None] + 0.5 * rng.normal(size=(7, 7, 1)) for mask in masks]
    votes = [{"ann": mask, "bob": np.where(rng.random((7, 7)) < 0.2, 1 - mask, mask)} for mask in masks]
    grid = ms.HCRF(ms.Grid(), annotators=ms.Annotators(max_iter=3), random_state=0).fit(X, votes)
    assert np.mean(np.array(grid.aggregate(X, votes)) == np.array(masks)) > 0.95
    chains = [rng.normal(size=(5, 2)) + label for label in (0, 3) for _ in range(10)]
    one = [{"ann": label, "bob": label} for label in (0, 1) for _ in range(10)]
    single = ms.HCRF(ms.SequenceLabel(hidden=2), annotators=ms.Annotators(), random_state=0).fit(chains, one)
    assert single.aggregate(chains, one).tolist() == [0] * 10 + [1] * 10


def test_annotators_that_training_never_met_are_like_all_together() -> None:
    crowd = simulate(60, 10, 3, (0.9, 0.9), seed=9)
    clf = ms.HCRF(ms.Chain(), annotators=ms.Annotators(), random_state=0).fit(crowd.X, crowd.votes)
    stranger = [{"cat": votes["a0"]} for votes in crowd.votes]
    found = np.concatenate(clf.aggregate(crowd.X, stranger))
    assert np.mean(found == np.concatenate(crowd.truth)) > np.mean(
        np.concatenate(clf.predict(crowd.X)) == np.concatenate(crowd.truth)
    )


def test_refusals() -> None:
    with pytest.raises(InputError, match="y holds no votes"):
        ms.HCRF(ms.Chain(), annotators=ms.Annotators()).fit([np.zeros((2, 1))], [["a", "b"]])
    with pytest.raises(UnsupportedError, match="M3E has an objective of its own"):
        ms.M3E(ms.Chain(), annotators=ms.Annotators()).fit(CROWD.X, CROWD.votes)
    with pytest.raises(InputError, match="context must be"):
        ms.Annotators(context="next")
    with pytest.raises(InputError, match="context='previous' is for sequences"):
        ms.Annotators(context="previous").sequential(2)


def test_noisy_labels_are_corrected_by_features_and_neighbours() -> None:
    """One annotator, every site: with nothing but votes there would be no way to doubt them."""
    crowd = simulate(200, 10, 3, (0.7,), signal=1.5, seed=10)
    clf = ms.HCRF(ms.Chain(), annotators=ms.Annotators(context="none", max_iter=20), random_state=0)
    clf.fit(crowd.X, crowd.votes)
    truth = np.concatenate(crowd.truth)
    votes = np.concatenate([votes["a0"] for votes in crowd.votes])
    assert np.mean(np.concatenate(clf.aggregate(crowd.X, crowd.votes)) == truth) > np.mean(votes == truth) + 0.1
    assert clf.annotators_["a0"].accuracy == pytest.approx(0.7, abs=0.06)


def test_a_saved_model_aggregates_as_before(tmp_path: Path) -> None:
    settings = ms.Annotators(weight=0.7, max_iter=5)
    clf = ms.HCRF(ms.Chain(), annotators=settings, random_state=0).fit(CROWD.X, CROWD.votes)
    clf.save(tmp_path / "crowd.safetensors")
    same = ms.load(tmp_path / "crowd.safetensors")
    assert same.annotators == settings
    assert str(same.annotators_) == str(clf.annotators_)
    for mine, theirs in zip(
        clf.aggregate(CROWD.X, CROWD.votes, marginals=True)[1],
        same.aggregate(CROWD.X, CROWD.votes, marginals=True)[1],
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)

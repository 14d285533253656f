"""Reviews of annotators: doubts, habits, groups, the plot, and interrupted training on votes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest

import mssvm as ms
from mssvm.annotators import Annotators, review, simulate
from mssvm.annotators.confusion import Confusion
from mssvm.annotators.votes import RawVotes, Votes, with_gold
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary

matplotlib.use("Agg")
CROWD = simulate(60, 10, 3, (0.95, 0.9, 0.9), seed=1)


def fitted(crowd: ms.annotators.SimulatedCrowd) -> ms.HCRF:
    settings = Annotators(context="none", max_iter=30)
    return ms.HCRF(ms.Chain(), annotators=settings, random_state=0).fit(crowd.X, crowd.votes)


def test_doubts_are_disagreements_by_falling_uncertainty_with_the_votes_as_given() -> None:
    clf = fitted(CROWD)
    found = review(clf, CROWD.X, CROWD.votes, n=15)
    labels, marginals = clf.aggregate(CROWD.X, CROWD.votes, marginals=True)
    entropies = []
    for doubt in found.doubts:
        votes = {name: CROWD.votes[doubt.instance][name][doubt.site] for name in ("a0", "a1", "a2")}
        assert doubt.votes == votes
        assert len(set(votes.values())) > 1
        assert doubt.label == labels[doubt.instance][doubt.site]
        p = marginals[doubt.instance][doubt.site]
        assert doubt.probability == pytest.approx(p[doubt.label])
        entropies.append(float(-(p * np.log(p)).sum()))
    assert len(found.doubts) == 15
    assert entropies == sorted(entropies, reverse=True)
    places = {(doubt.instance, doubt.site) for doubt in found.doubts}
    assert not {(b, site + 1) for b, site in places} & places, "neighbours are one doubt"


def test_a_habit_is_found_with_its_share() -> None:
    votes = []
    for b, given in enumerate(CROWD.votes):
        always_zero_for_one = [0 if label == 1 else int(label) for label in CROWD.truth[b]]
        votes.append({**given, "habitual": always_zero_for_one})
    clf = ms.HCRF(ms.Chain(), annotators=Annotators(context="none", max_iter=30), random_state=0).fit(CROWD.X, votes)
    habits = review(clf, CROWD.X, votes).habits
    assert [(h.annotator, h.truth, h.vote) for h in habits] == [("habitual", 1, 0)]
    assert habits[0].share > 0.9
    assert str(habits[0]).startswith("habitual votes 0 where the truth is 1: 100% of about ")


def test_members_of_a_group_shrink_towards_the_table_of_the_group() -> None:
    names = [f"good{k}" for k in range(4)] + [f"bad{k}" for k in range(4)]
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=200)
    votes = [{name: [int(y if name.startswith("good") else 1 - y) for y in truth]} for name in names]
    votes.append({"goodnew": [0], "badnew": [0]})
    raw = RawVotes.parse(votes, 1)
    flat = Votes.encode(raw, np.array([200] * 8 + [1]), LabelVocabulary((0, 1)))
    posterior = np.eye(2)[np.concatenate([np.tile(truth, 8), [0]])]
    groups = {name: name[:3] for name in [*names, "goodnew", "badnew"]}
    alone = np.exp(Confusion.estimate(flat, posterior, Annotators(context="none"), False).log_tables)[:, 0]
    grouped = np.exp(Confusion.estimate(flat, posterior, Annotators(context="none", groups=groups), False).log_tables)
    new = flat.names.index("badnew")
    assert abs(alone[new] - alone[flat.names.index("goodnew")]).max() < 0.1
    assert grouped[new, 0].diagonal().max() < 0.15
    assert grouped[flat.names.index("goodnew"), 0].diagonal().min() > 0.85
    with pytest.raises(InputError, match="groups must map annotators"):
        Annotators(groups=["good"])  # type: ignore[arg-type]


def test_one_group_of_everybody_is_between_no_group_and_the_shared_table() -> None:
    flat = Votes.encode(RawVotes.parse(CROWD.votes, 1), np.full(60, 10), LabelVocabulary((0, 1, 2)))
    posterior = np.eye(3)[np.concatenate(CROWD.truth)]
    everybody = dict.fromkeys(flat.names, "all")
    settings = Annotators(context="none", strength=1e9)
    grouped = Confusion.estimate(flat, posterior, Annotators(context="none", strength=1e9, groups=everybody), False)
    shared = Confusion.estimate(flat, posterior, settings, False)
    assert np.allclose(grouped.log_tables, shared.log_tables, atol=1e-5)


def test_the_plot_has_every_annotator() -> None:
    ax = fitted(CROWD).plot_annotators()
    assert {text.get_text() for text in ax.get_yticklabels()} == {"a0", "a1", "a2"}


def test_instances_without_votes_are_read_beside_gold_labels() -> None:
    votes = with_gold([*CROWD.votes[:20], {}], [*([None] * 10 for _ in range(20)), CROWD.truth[20].tolist()])
    clf = ms.HCRF(ms.Chain(), annotators=Annotators(max_iter=2, tol=1.0), random_state=0).fit(CROWD.X[:21], votes)
    assert clf.aggregate(CROWD.X[:21], votes)[20].tolist() == CROWD.truth[20].tolist()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_training_on_votes_resumes_where_it_was_stopped(tmp_path: Path) -> None:
    whole = fitted(CROWD)
    rows = 0

    def interrupt_later(row: object, w: object) -> None:
        nonlocal rows
        rows += 1
        if rows == 15:
            raise KeyboardInterrupt

    checkpoint = ms.solvers.Checkpoint(tmp_path / "run", every_seconds=0.0)
    settings = Annotators(context="none", max_iter=30)
    clf = ms.HCRF(ms.Chain(), annotators=settings, random_state=0)
    clf.fit(CROWD.X, CROWD.votes, callback=interrupt_later, checkpoint=checkpoint)
    assert clf.training_["rounds"] < whole.training_["rounds"]
    n_rounds = len(ms.solvers.checkpoints_of(tmp_path / "run"))
    stopped = ms.HCRF(ms.Chain(), annotators=settings, random_state=0)
    stopped.fit(CROWD.X, CROWD.votes, callback=lambda row, w: True)
    assert stopped.training_["rounds"] == 1, "a callback ends the training, not one round of it"
    resumed = ms.HCRF(ms.Chain(), annotators=settings, random_state=0)
    resumed.fit(CROWD.X, CROWD.votes, checkpoint=checkpoint)
    assert n_rounds == clf.training_["rounds"]
    assert np.array_equal(resumed.coef_, whole.coef_)
    assert np.array_equal(resumed.confusion_.log_tables, whole.confusion_.log_tables)


def test_single_labels_are_no_neighbours() -> None:
    """Every instance is one site: doubts about consecutive instances are all listed."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(3, 2)) for _ in range(12)]
    votes = [{"ann": "a", "bob": "b"} if b < 6 else {"ann": "a", "bob": "a"} for b in range(12)]
    clf = ms.HCRF(ms.SequenceLabel(hidden=2), annotators=Annotators(max_iter=2, tol=1.0), random_state=0).fit(X, votes)
    assert sorted(doubt.instance for doubt in review(clf, X, votes).doubts) == [0, 1, 2, 3, 4, 5]

"""For managers of annotation projects: sites worth a second look, and annotators who need help."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.annotators.confusion import expected_counts
from mssvm.annotators.table import AnnotatorTable
from mssvm.annotators.votes import RawVotes, Votes
from mssvm.core.arrays import Floats
from mssvm.core.entropy import entropy
from mssvm.data.labels import plain

FEW = 5.0  # expected sites below which a habit is not worth a sentence
HABIT = 0.15  # share of a true label's sites that makes a mistake a habit


@dataclass(frozen=True)
class Doubt:
    """A site (``site``, in C order, of ``instance``) on which annotators disagree: ``votes`` by annotator, the
    aggregated ``label`` and its ``probability``.

    >>> crowd = ms.annotators.simulate(20, 10, accuracies=(0.9, 0.6), seed=0)
    >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(max_iter=2, tol=1.0), random_state=0)
    >>> doubt = ms.annotators.review(fitted.fit(crowd.X, crowd.votes), crowd.X, crowd.votes).doubts[0]
    >>> sorted(doubt.votes), 0.0 < doubt.probability < 1.0
    (['a0', 'a1'], True)
    """

    instance: int
    site: int
    votes: dict[Hashable, Any]
    label: Hashable
    probability: float


@dataclass(frozen=True)
class Habit:
    """A mistake that ``annotator`` often makes: ``vote`` where the truth is ``truth``, on a ``share`` of these sites,
    of which there are ``n_sites`` by expectation.

    >>> crowd = ms.annotators.simulate(50, 10, n_classes=2, accuracies=(0.9, 0.9, 0.1), seed=0)
    >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(max_iter=2, tol=1.0), random_state=0)
    >>> found = ms.annotators.review(fitted.fit(crowd.X, crowd.votes), crowd.X, crowd.votes)
    >>> {habit.annotator for habit in found.habits}
    {'a2'}
    """

    annotator: Hashable
    truth: Hashable
    vote: Hashable
    share: float
    n_sites: float

    def __str__(self) -> str:
        return (
            f"{self.annotator} votes {self.vote} where the truth is {self.truth}: "
            f"{self.share:.0%} of about {self.n_sites:.0f} sites"
        )


@dataclass(frozen=True, eq=False)
class Review:
    """``table`` describes the annotators on these data, ``doubts`` are sites worth a second look, the least certain
    first, and ``habits`` the frequent mistakes, those on most sites first.

    >>> crowd = ms.annotators.simulate(20, 10, seed=0)
    >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(max_iter=2, tol=1.0), random_state=0)
    >>> review = ms.annotators.review(fitted.fit(crowd.X, crowd.votes), crowd.X, crowd.votes, n=5)
    >>> len(review.table), len(review.doubts)
    (3, 5)
    """

    table: AnnotatorTable
    doubts: tuple[Doubt, ...]
    habits: tuple[Habit, ...]


def review(clf: Any, X: Any, votes: Any, n: int = 20) -> Review:
    """Compare the votes on X with the labels that ``clf.aggregate`` finds; up to ``n`` doubts and ``n`` habits.

    ``clf`` is an estimator fitted with ``annotators``, and ``votes`` are as in its ``fit``.

    >>> crowd = ms.annotators.simulate(20, 10, seed=0)
    >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(max_iter=2, tol=1.0), random_state=0)
    >>> ms.annotators.review(fitted.fit(crowd.X, crowd.votes), crowd.X, crowd.votes).table["a0"].n_votes
    200
    """
    labels, marginals = clf.aggregate(X, votes, marginals=True)
    classes = clf.labels_.classes
    raw = RawVotes.parse(votes, clf.structure_.depth, clf.labels_.missing_label)
    sizes = np.array([np.size(found) for found in labels], dtype=np.int64)
    flat = Votes.encode(raw, sizes, clf.labels_)
    posterior = np.concatenate([np.reshape(p, (-1, len(classes))) for p in marginals])
    states = clf.labels_.encode(list(labels), [np.shape(found) for found in labels]).states
    table = AnnotatorTable.of(flat, posterior, classes)
    return Review(table, _doubts(flat, posterior, states, sizes, classes, n), _habits(flat, posterior, classes, n))


def _doubts(
    votes: Votes, posterior: Floats, states: Any, sizes: Any, classes: tuple[Hashable, ...], n: int
) -> tuple[Doubt, ...]:
    """Sites with different votes by falling entropy; of neighbouring sites of a sequence only the least certain."""
    disagreed = np.count_nonzero(votes.counts(), axis=1) > 1
    candidates = np.flatnonzero(disagreed)
    candidates = candidates[np.argsort(-entropy(posterior[candidates]), kind="stable")]
    first_site = np.concatenate([[0], np.cumsum(sizes)])
    by_site = np.argsort(votes.site, kind="stable")
    site_of = votes.site[by_site]
    out: list[Doubt] = []
    reached: set[int] = set()  # sites so far, reported or not
    for site in candidates.tolist():
        if len(out) == n:
            break
        instance = int(np.searchsorted(first_site, site, side="right")) - 1
        inside = range(int(first_site[instance]), int(first_site[instance + 1]))
        beside_reached = any(other in inside and other in reached for other in (site - 1, site + 1))
        reached.add(site)
        if beside_reached:
            continue
        given: dict[Hashable, Any] = {}
        for k in by_site[np.searchsorted(site_of, site) : np.searchsorted(site_of, site, side="right")].tolist():
            members = [plain(classes[c]) for c in votes.label[votes.ptr[k] : votes.ptr[k + 1]].tolist()]
            given[votes.names[votes.annotator[k]]] = members[0] if len(members) == 1 else members
        state = int(states[site])
        place = site - int(first_site[instance])
        out.append(Doubt(instance, place, given, plain(classes[state]), float(posterior[site, state])))
    return tuple(out)


def _habits(votes: Votes, posterior: Floats, classes: tuple[Hashable, ...], n: int) -> tuple[Habit, ...]:
    """Off-diagonal cells of the annotators' expected counts that are frequent and a fair share of their row."""
    counts = expected_counts(votes, posterior, sequential=False)[:, 0]
    rows = counts.sum(axis=2, keepdims=True)
    shares = counts / np.maximum(rows, 1e-300)
    wrong = ~np.eye(len(classes), dtype=bool)
    found = np.argwhere((counts >= FEW) & (shares >= HABIT) & wrong)
    order = np.argsort([-counts[a, y, v] for a, y, v in found], kind="stable")[:n]
    return tuple(
        Habit(votes.names[a], plain(classes[y]), plain(classes[v]), float(shares[a, y, v]), float(rows[a, y, 0]))
        for a, y, v in found[order]
    )

"""Aggregation of votes site by site, without features or neighbours: majority, and Dawid and Skene (1979)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mssvm.annotators.confusion import Annotators, Confusion
from mssvm.annotators.votes import RawVotes, Votes
from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary


def majority(votes: Any) -> Any:
    """The label with the most votes at every site, in the shape of y; the first class where there is a tie.

    ``votes`` are as ``fit`` takes them (``mssvm.annotators.votes``); gold labels are used where there are any.

    >>> ms.annotators.majority([{"ann": ["B", "O"], "bob": ["B", "B"], "cat": ["O", "B"]}])[0].tolist()
    ['B', 'B']
    """
    return _aggregate(votes, vote_shares)


def dawid_skene(votes: Any) -> Any:
    """The most probable label of every site, in the shape of y, given a confusion table for each annotator.

    ``votes`` are as ``fit`` takes them (``mssvm.annotators.votes``); gold labels are used where there are any.

    >>> crowd = ms.annotators.simulate(50, 10, accuracies=(0.9, 0.9, 0.2), seed=0)           # one is mostly wrong
    >>> found = ms.annotators.dawid_skene(crowd.votes)
    >>> bool(np.mean(np.concatenate(found) == np.concatenate(crowd.truth)) > 0.8)
    True
    """
    return _aggregate(votes, dawid_skene_posterior)


def vote_shares(votes: Votes, doubt: float = 0.0) -> Floats:
    """(sites, classes): the share of votes for each class; equal shares where nobody voted.

    ``doubt`` is a number of pseudo-votes, spread over the classes: with 0, one vote alone is certain.
    """
    counts = votes.counts() + doubt / votes.n_classes
    total = counts.sum(axis=1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1e-300), 1.0 / votes.n_classes)


def dawid_skene_posterior(votes: Votes, max_iter: int = 50, tol: float = 1e-6) -> Floats:
    """(sites, classes): probabilities of the true labels, with sites as independent draws from one prior.

    Expectation maximisation from the shares of votes, with one pseudo-vote in every row of a confusion table.
    """
    settings = Annotators(context="none", strength=1.0, diagonal=1.0)
    posterior = vote_shares(votes)
    voted = np.bincount(votes.site, minlength=votes.n_sites) > 0
    for _ in range(max_iter):
        tables = Confusion.estimate(votes, posterior, settings, sequential=False)
        prior = posterior[voted].mean(axis=0) if voted.any() else np.full(votes.n_classes, 1.0 / votes.n_classes)
        with np.errstate(divide="ignore"):
            scores = np.log(prior) + tables.evidence(votes)
        scores -= scores.max(axis=1, keepdims=True)
        updated = np.exp(scores)
        updated /= updated.sum(axis=1, keepdims=True)
        moved = float(np.abs(updated - posterior).sum(axis=1).mean())
        posterior = updated
        if moved < tol:
            break
    return posterior


def _aggregate(votes: Any, posterior_of: Any) -> Any:
    """Labels by a function of flat votes, gold labels as they are."""
    raw = RawVotes.parse(votes, _depth(votes))
    vocabulary = LabelVocabulary(raw.classes())
    sizes = np.array([len(gold) for gold in raw.gold], dtype=np.int64)
    posterior = posterior_of(Votes.encode(raw, sizes, vocabulary))
    gold = vocabulary.encode(raw.labels(vocabulary.classes), raw.shapes, "votes")
    states = np.where(gold.mask, posterior, -1.0).argmax(axis=1)
    labels = vocabulary.decode(states)
    if raw.shapes and raw.shapes[0] == ():
        return labels
    parts = np.split(labels, gold.ptr[1:-1])
    return [part.reshape(shape) for part, shape in zip(parts, raw.shapes, strict=True)]


def _depth(votes: Any) -> int:
    """The number of axes of an instance's labels, read off the first instance."""
    first = next(iter(votes), None)
    if first is None:
        raise InputError("votes holds no instances.")
    if isinstance(first, Mapping):
        first = next(iter(first.values()), None)
    depth = 0
    while isinstance(first, (list, tuple, np.ndarray)) and len(first):
        depth += 1
        first = first[0]
    return depth

"""Aggregation of votes site by site, without features or neighbours: majority, and Dawid and Skene (1979)."""

from __future__ import annotations

import numpy as np

from mssvm.annotators.confusion import Annotators, Confusion
from mssvm.annotators.votes import Votes
from mssvm.core.arrays import Floats


def majority(votes: Votes, doubt: float = 0.0) -> Floats:
    """(sites, classes): the share of votes for each class; equal shares where nobody voted.

    ``doubt`` is a number of pseudo-votes, spread over the classes: with 0, one vote alone is certain.
    """
    counts = votes.counts() + doubt / votes.n_classes
    total = counts.sum(axis=1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1e-300), 1.0 / votes.n_classes)


def dawid_skene(votes: Votes, settings: Annotators | None = None, max_iter: int = 50, tol: float = 1e-6) -> Floats:
    """(sites, classes): probabilities of the true labels, sites being independent draws from one prior.

    Expectation maximisation from the shares of votes, on sites that somebody voted on. ``settings`` smooths the tables;
    by default one pseudo-vote a row.
    """
    settings = settings or Annotators(context="none", strength=1.0, diagonal=1.0)
    posterior = majority(votes)
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

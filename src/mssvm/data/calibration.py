"""Whether the probabilities of a model agree with how often it is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.data.labels import Labels


@dataclass(frozen=True)
class Bin:
    """Sites whose most probable class has a probability from ``low`` to ``high``: its mean (``confidence``), the share
    that is right (``accuracy``), and how many there are.

    >>> sum(part.n_sites for part in ms.metrics.calibration(clf, X, y).bins)
    7
    """

    low: float
    high: float
    confidence: float
    accuracy: float
    n_sites: int


@dataclass(frozen=True)
class Calibration:
    """Mean log loss of the labels, and how far confidence is from accuracy: in bins, and on average (``error``).

    >>> found = ms.metrics.calibration(clf, X, y)
    >>> found.log_loss < 1.0, len(found.bins) > 0
    (True, True)
    """

    log_loss: float
    error: float
    bins: tuple[Bin, ...]


def calibration(estimator: Any, X: Any, y: Any, n_bins: int = 10) -> Calibration:
    """Whether the probabilities of a fitted ``estimator`` agree with how often it is right on labelled data, in
    ``n_bins`` bins. Missing labels, and labels unseen in training, do not count; the probability of a candidate set is
    the sum over its members.

    >>> 0.0 <= ms.metrics.calibration(clf, X, y, n_bins=5).error <= 1.0
    True
    """
    marginals = estimator.predict_marginals(X)
    shapes = [np.shape(item)[:-1] for item in marginals]
    p = np.concatenate([np.reshape(item, (-1, len(estimator.classes_))) for item in marginals])
    labels = estimator.labels_.encode_seen(estimator.structure_.site_labels(y, shapes), shapes)
    return calibration_of(p, labels, n_bins)


def calibration_of(p: Floats, labels: Labels, n_bins: int = 10) -> Calibration:
    """The calibration of probabilities (sites, classes)."""
    labelled = p[labels.observed]
    confidence = labelled.max(axis=1)
    right = labels.mask[labels.observed][np.arange(len(labelled)), labelled.argmax(axis=1)]
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    bin_of = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    bins = []
    for k in range(n_bins):
        inside = bin_of == k
        if inside.any():
            mean = float(confidence[inside].mean())
            accuracy = float(right[inside].mean())
            bins.append(Bin(float(edges[k]), float(edges[k + 1]), mean, accuracy, int(inside.sum())))
    error = sum(b.n_sites * abs(b.confidence - b.accuracy) for b in bins) / max(len(labelled), 1)
    return Calibration(log_loss(p, labels), error, tuple(bins))


def log_loss(p: Floats, labels: Labels) -> float:
    """Mean over labelled sites of -log p(label), or of the candidates together."""
    of_labels = np.where(labels.mask, p, 0.0).sum(axis=1)[labels.observed]
    if not len(of_labels):
        raise InputError("there is no labelled site to compare probabilities with.")
    return float(-np.mean(np.log(np.clip(of_labels, np.finfo(np.float64).tiny, 1.0))))

"""Chains with known truth and known annotators, for tests and examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class SimulatedCrowd:
    """``X`` features, ``truth`` labels, ``votes`` as ``fit`` takes them, and ``tables[a, y, v]`` that votes were drawn
    from.

    >>> ms.annotators.simulate(2, 5, accuracies=(1.0,)).tables[0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    X: list[Floats]
    truth: list[Ints]
    votes: list[dict[str, list[Any]]]
    tables: Floats


def simulate(
    n_chains: int = 100,
    length: int = 20,
    n_classes: int = 3,
    accuracies: tuple[float, ...] = (0.9, 0.7, 0.6),
    *,
    coverage: float = 1.0,
    stay: float = 0.8,
    signal: float = 1.0,
    seed: int = 0,
) -> SimulatedCrowd:
    """Markov chains of labels, features that are noisy indicators of them, and an annotator for each of ``accuracies``.

    There are ``n_chains`` of ``length`` sites, drawn with ``seed``. Labels stay with probability ``stay``; features are
    the indicators of ``n_classes`` labels, times ``signal``, plus standard normal noise. The mistakes of an annotator
    are spread evenly over the other classes, and each votes on a share ``coverage`` of the sites.

    >>> crowd = ms.annotators.simulate(2, 5, accuracies=(0.9, 0.1))
    >>> len(crowd.X), sorted(crowd.votes[0]), crowd.tables.shape
    (2, ['a0', 'a1'], (2, 3, 3))
    """
    rng = np.random.default_rng(seed)
    right = np.asarray(accuracies, dtype=np.float64).reshape(-1, 1, 1)
    identity = np.eye(n_classes)
    tables = right * identity + (1 - right) / (n_classes - 1) * (1 - identity)
    X = []
    truth = []
    votes = []
    for _ in range(n_chains):
        labels = np.zeros(length, dtype=np.int64)
        labels[0] = rng.integers(n_classes)
        for t in range(1, length):
            labels[t] = labels[t - 1] if rng.random() < stay else rng.integers(n_classes)
        X.append(signal * np.eye(n_classes)[labels] + rng.normal(size=(length, n_classes)))
        truth.append(labels)
        votes.append({f"a{a}": _drawn(tables[a], labels, coverage, rng) for a in range(len(accuracies))})
    return SimulatedCrowd(X, truth, votes, tables)


def _drawn(table: Floats, labels: Ints, coverage: float, rng: np.random.Generator) -> list[Any]:
    votes: list[Any] = []
    for label in labels.tolist():
        vote = int(rng.choice(len(table), p=table[label]))
        votes.append(vote if rng.random() < coverage else None)
    return votes

"""The threshold of a conformal set: the least one whose misses on held-out instances are few enough.

Instance i has n_i items (sites or spans) with scores s_ij, and a set at threshold t misses those with s_ij > t. Let the
loss of an instance be

    unit "item"        L_i(t) = misses_i(t) - alpha n_i       promise:  E[misses] <= alpha E[n]
    unit "instance"    L_i(t) = misses_i(t) / n_i - alpha     promise:  E[misses / n] <= alpha

Both fall with t and are at most B: (1 - alpha) times the most items of an instance, and 1 - alpha. If the N calibration
instances and a new one are exchangeable, the least t with  sum_i L_i(t) + B <= 0  keeps E[L(t)] <= 0 on the new one
(Angelopoulos, Bates, Fisch, Lei and Schuster 2022, Theorem 1). Items of one instance may depend on each other in any
way: only whole instances need to be exchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import number
from mssvm.core.errors import InputError

UNITS = ("item", "instance")
ROUNDING = 1e-12  # tolerance of a number of misses, relative to their budget


@dataclass(frozen=True)
class Coverage:
    """How sets did on labelled data: ``by_item`` is the share of ``n_items`` true labels (or spans) that they contain,
    ``by_instance`` the mean over instances of that share, and ``mean_size`` the mean number of members of a set.

    >>> sets = ms.conformal.LabelSets(clf, coverage=0.5, unit="instance").calibrate(X, y)
    >>> sets.evaluate(X, y).by_item
    1.0
    """

    by_item: float
    by_instance: float
    mean_size: float
    n_items: int


def check_settings(coverage: float, unit: str) -> float:
    """The allowed share of misses; raises for settings that make no sense."""
    number(coverage, "coverage", above=0.0, high=1.0)
    if unit not in UNITS:
        raise InputError(f"unit must be 'item' or 'instance', got {unit!r}.")
    if coverage == 1.0:
        raise InputError("coverage must be below 1: no finite sample promises certainty.")
    return 1.0 - coverage


def threshold(scores: Floats, instance: Ints, alpha: float, unit: str) -> float:
    """The least threshold that the theorem allows, infinite if the calibration data are too few.

    ``scores`` are those of the true labels, ``instance`` the instances that they belong to.
    """
    _, owner, n_items = np.unique(instance, return_inverse=True, return_counts=True)
    if not len(scores):
        return np.inf
    if unit == "item":
        weight = np.ones(len(scores))
        budget = alpha * len(scores)
        bound = (1.0 - alpha) * n_items.max()
    else:
        weight = 1.0 / n_items[owner]
        budget = alpha * len(n_items)
        bound = 1.0 - alpha
    # Rounding must not turn a budget of exactly k misses into one of k - 1, nor one of no misses into too little data.
    allowed = budget - bound + ROUNDING * budget
    if allowed < 0.0:
        return np.inf
    order = np.argsort(-scores, kind="stable")
    missed = np.cumsum(weight[order])
    n_missed = int(np.searchsorted(missed, allowed, side="right"))
    if n_missed == len(scores):
        return -np.inf
    return float(scores[order[n_missed]])


def measured(covered: Floats, instance: Ints, sizes: Floats) -> Coverage:
    """The coverage of labelled items: ``covered`` is 1 where the set has the item; ``sizes`` are those of all sets."""
    if not len(covered):
        raise InputError("y holds nothing to compare with; give at least one label.")
    _, owner = np.unique(instance, return_inverse=True)
    shares = np.bincount(owner, weights=covered) / np.bincount(owner)
    return Coverage(float(covered.mean()), float(shares.mean()), float(sizes.mean()), len(covered))

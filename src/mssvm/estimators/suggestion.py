"""What to label next: the sites or instances about which the model is most in doubt, and that differ from each other.

    entropy    - sum_y p(y) log p(y) of a site's marginals
    margin     1 - (p(y1) - p(y2)) of its two most probable labels
    change     sum_y p(y) |e_y - p|_1 |x|, the expected length of the gradient: how much a label would move the weights
    random     uniform draws, to compare with

The score of an instance is the sum over its sites without a label. Labels of similar sites are redundant. So
suggestions alternate between the labels that the model predicts (the best site of every label comes before the second
best of any), and sites within ``spacing`` steps of a suggested site are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import count
from mssvm.core.entropy import entropy
from mssvm.core.errors import InputError
from mssvm.core.topology import counts
from mssvm.structures.encoded import Encoded

UNITS = ("site", "instance")


@dataclass(frozen=True)
class Suggestion:
    """Label this site (a tuple of indices into the labels of ``instance``; None: the whole instance). ``gain`` is the
    score by which it was chosen.

    >>> best = clf.suggest(X, n=1)[0]
    >>> best.instance in (0, 1), len(best.site)
    (True, 1)
    """

    instance: int
    site: tuple[int, ...] | None
    gain: float


def feature_lengths(encoded: Encoded) -> Floats:
    """|x| of every label site: the Euclidean length of the features of its own scores."""
    squares = np.zeros(encoded.batch.n_states)
    for term in encoded.inputs.terms:
        if term.target != "unary":
            continue
        rows = term.features
        of_rows = rows.multiply(rows).sum(axis=1) if issparse(rows) else (np.asarray(rows) ** 2).sum(axis=1)
        used = term.at >= 0
        np.add.at(squares, term.at[used], np.asarray(of_rows, dtype=np.float64).ravel()[used])
    return np.sqrt(squares[encoded.batch.unary_ptr[encoded.labels.vars]])


def by_entropy(p: Floats, lengths: Floats) -> Floats:
    return entropy(p)


def by_margin(p: Floats, lengths: Floats) -> Floats:
    if p.shape[1] < 2:
        return np.zeros(len(p))
    top = np.partition(p, -2, axis=1)
    return np.asarray(1.0 - (top[:, -1] - top[:, -2]))


def by_change(p: Floats, lengths: Floats) -> Floats:
    # |e_y - p|_1 = 2 (1 - p(y))
    return np.asarray(2.0 * (p * (1.0 - p)).sum(axis=1) * lengths)


GAINS: dict[str, Callable[[Floats, Floats], Floats]] = {"entropy": by_entropy, "margin": by_margin, "change": by_change}


@dataclass(frozen=True, eq=False)
class Pool:
    """Sites of all instances: probabilities (sites, classes), lengths |x| of their features, whether each is known, and
    the shapes of the instances' labels."""

    marginals: Floats
    lengths: Floats
    known: Bools
    ptr: Ints
    shapes: Any

    def suggest(self, n: int, by: str, unit: str, spacing: int, rng: np.random.RandomState) -> list[Suggestion]:
        """Up to n suggestions, the best first."""
        count(n, "n", 1)
        count(spacing, "spacing", 0)
        if by not in (*GAINS, "random"):
            raise InputError(f"by must be 'entropy', 'margin', 'change' or 'random', got {by!r}.")
        if unit not in UNITS:
            raise InputError(f"unit must be 'site' or 'instance', got {unit!r}.")
        if by == "random":
            gains = rng.rand(len(self.known))
        else:
            gains = np.maximum(GAINS[by](self.marginals, self.lengths), 0.0)  # rounding may put p above 1
        if unit == "instance":
            return self._instances(np.where(self.known, 0.0, gains), n, by, rng)
        return self._sites(gains, n, spacing, diverse=by != "random")

    def _instances(self, gains: Floats, n: int, by: str, rng: np.random.RandomState) -> list[Suggestion]:
        # The zero at the end is for instances without sites: reduceat gives them the entry after them.
        sums = np.add.reduceat(np.append(gains, 0.0), self.ptr[:-1]) * (np.diff(self.ptr) > 0)
        unknown = counts(~self.known, self.ptr)
        if by == "random":
            sums = rng.rand(len(sums))
        candidates = np.flatnonzero(unknown > 0)
        order = candidates[np.argsort(-sums[candidates], kind="stable")][:n]
        return [Suggestion(int(b), None, float(sums[b])) for b in order]

    def _sites(self, gains: Floats, n: int, spacing: int, diverse: bool) -> list[Suggestion]:
        candidates = np.flatnonzero(~self.known)
        order = candidates[np.argsort(-gains[candidates], kind="stable")]
        if diverse:
            order = _in_turns(order, self.marginals.argmax(axis=1))
        chosen: list[Suggestion] = []
        near: dict[int, list[tuple[int, ...]]] = {}
        for site in order.tolist():
            if len(chosen) == n:
                break
            instance = int(np.searchsorted(self.ptr, site, side="right")) - 1
            place = tuple(int(i) for i in np.unravel_index(site - int(self.ptr[instance]), self.shapes[instance]))
            if any(_distance(place, other) <= spacing for other in near.get(instance, ())):
                continue
            near.setdefault(instance, []).append(place)
            chosen.append(Suggestion(instance, place, float(gains[site])))
        return chosen


def _in_turns(order: Ints, group: Ints) -> Ints:
    """Sites in the given order, but the k-th of every group before the (k + 1)-th of any."""
    by_group = np.argsort(group[order], kind="stable")
    sizes = np.bincount(group[order])
    turn = np.empty(len(order), dtype=np.int64)
    turn[by_group] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return order[np.argsort(turn, kind="stable")]


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Chebyshev distance of two sites; 0 for labels without axes."""
    return max((abs(i - j) for i, j in zip(a, b, strict=True)), default=0)

"""Label sets of sites: every label whose probability is not too small, by a threshold from held-out data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Self

import numpy as np

from mssvm.conformal.thresholds import Coverage, check_settings, measured, threshold
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.data.labels import Labels, LabelVocabulary, plain

SCORES = ("probability", "cumulative")


class LabelSets:
    """Sets of labels, one for every site, that contain the true label with probability ``coverage``.

    Parameters
    ----------
    clf : fitted estimator with ``predict_marginals``
    coverage : float
        The promised share of sites whose set has their true label, in (0, 1).
    unit : "item" or "instance"
        What is promised on average: the share of all sites, or the mean over instances of the share of their sites.
    by_class : bool
        Keep the promise for the sites of every class by itself: rare classes are not sacrificed to frequent ones.
    score : "probability" or "cumulative"
        The nonconformity score of a label. "probability": one minus its own probability, which gives the smallest sets.
        "cumulative": the sum of its probability and those of more probable labels, so that sets grow where the model
        is unsure.

    The promise assumes that instances of calibration and of prediction are exchangeable, and that labels missing in
    calibration are missing at random. Of a candidate set in calibration every member counts as possibly true.

    >>> sets = ms.conformal.LabelSets(clf, coverage=0.5, unit="instance").calibrate(X, y)
    >>> [sorted(labels) for labels in sets.predict(X)[0]]
    [['B'], ['I'], ['O']]
    """

    def __init__(
        self,
        clf: Any,
        coverage: float = 0.9,
        unit: str = "item",
        by_class: bool = False,
        score: str = "probability",
    ) -> None:
        self.clf = clf
        self.coverage = coverage
        self.unit = unit
        self.by_class = by_class
        self.score = score

    def calibrate(self, X: Any, y: Any) -> Self:
        """Choose thresholds from labelled instances that training has not seen; labels may be missing.

        >>> sets = ms.conformal.LabelSets(clf, coverage=0.5, unit="instance").calibrate(X, y)
        >>> sets.thresholds_.shape
        (3,)
        """
        alpha = check_settings(self.coverage, self.unit)
        if self.score not in SCORES:
            raise InputError(f"score must be 'probability' or 'cumulative', got {self.score!r}.")
        strangeness = self._strangeness(X)
        labels = self._encoded(y, strangeness)
        known = labels.observed
        if not known.any():
            raise InputError("y holds no labels; calibration needs some.")
        instance = _instances(labels)
        flat = _flat(strangeness, len(self.clf.classes_))
        worst = np.where(labels.mask, flat, -np.inf).max(axis=1)
        worst[~labels.mask.any(axis=1)] = np.inf  # a label unseen in training is in no set
        n_classes = len(self.clf.classes_)
        if not self.by_class:
            self.thresholds_ = np.full(n_classes, threshold(worst[known], instance[known], alpha, self.unit))
            return self
        self.thresholds_ = np.empty(n_classes)
        for state in range(n_classes):
            of_class = known & labels.mask[:, state]
            self.thresholds_[state] = threshold(flat[of_class, state], instance[of_class], alpha, self.unit)
        return self

    def predict(self, X: Any) -> list[Any]:
        """The label sets of X, as frozen sets in the shape of y; the most probable label is always a member.

        >>> sets = ms.conformal.LabelSets(clf, coverage=0.9).calibrate(X, y)       # far too few instances to promise it
        >>> sorted(sets.predict(X)[0][0])
        ['B', 'I', 'O']
        """
        classes: list[Hashable] = [plain(label) for label in self.clf.classes_]
        out = []
        for members in self.predict_mask(X):
            rows = members.reshape(-1, len(classes))
            sets = np.empty(len(rows), dtype=object)
            for site, row in enumerate(rows):
                sets[site] = frozenset(classes[state] for state in np.flatnonzero(row))
            out.append(sets.reshape(members.shape[:-1])[()])
        return out

    def predict_mask(self, X: Any) -> list[Bools]:
        """The label sets of X as masks over the classes (last axis).

        >>> sets = ms.conformal.LabelSets(clf, coverage=0.5, unit="instance").calibrate(X, y)
        >>> sets.predict_mask(X)[0].astype(int).tolist()
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
        """
        if not hasattr(self, "thresholds_"):
            raise InputError("these sets have no thresholds yet; call calibrate with held-out data first.")
        return [self._members(values) for values in self._strangeness(X)]

    def evaluate(self, X: Any, y: Any) -> Coverage:
        """How often the sets of X contain the labels y, and how large they are.

        >>> sets = ms.conformal.LabelSets(clf, coverage=0.5, unit="instance").calibrate(X, y)
        >>> sets.evaluate(X, y).mean_size
        1.0
        """
        masks = self.predict_mask(X)
        labels = self._encoded(y, masks)
        if not masks:
            raise InputError("there are no instances, and nothing to compare with; give at least one label.")
        members = _flat(masks, len(self.clf.classes_))
        scored = labels.observed & (labels.mask.sum(axis=1) <= 1)
        covered = (members & labels.mask).any(axis=1)[scored]
        return measured(covered.astype(np.float64), _instances(labels)[scored], members.sum(axis=1).astype(np.float64))

    def _members(self, strangeness: Floats) -> Bools:
        members: Bools = strangeness <= self.thresholds_
        most_probable = strangeness.argmin(axis=-1)[..., None]
        np.put_along_axis(members, most_probable, True, axis=-1)
        return members

    def _strangeness(self, X: Any) -> list[Floats]:
        """The score of every label (last axis) at every site."""
        return [self._scores(np.asarray(p)) for p in self.clf.predict_marginals(X)]

    def _scores(self, p: Floats) -> Floats:
        if self.score == "probability":
            return 1.0 - p
        order = np.argsort(-p, axis=-1, kind="stable")
        cumulative = np.cumsum(np.take_along_axis(p, order, axis=-1), axis=-1)
        out = np.empty_like(cumulative)
        np.put_along_axis(out, order, cumulative, axis=-1)
        return out

    def _encoded(self, y: Any, like: list[Any]) -> Labels:
        """Labels y as masks over the model's classes; the mask of a label unseen in training is empty."""
        shapes = [values.shape[:-1] for values in like]
        structure = getattr(self.clf, "structure_", None)
        if structure is not None:  # reads forms of its own, such as spans
            y = structure.site_labels(y, shapes)
        vocabulary: LabelVocabulary = self.clf.labels_
        labels = vocabulary.widened(y, len(shapes[0]) if shapes else 0).encode(y, shapes)
        return replace(labels, mask=labels.mask[:, : vocabulary.n_classes])


def _instances(labels: Labels) -> Ints:
    """The instance of every site."""
    return np.repeat(np.arange(len(labels.ptr) - 1), np.diff(labels.ptr))


def _flat(values: list[Any], n_classes: int) -> Any:
    """The arrays (..., classes) of all instances, flattened to rows of one array."""
    return np.concatenate([np.reshape(array, (-1, n_classes)) for array in values])

"""Span sets of sequences with BIO tags: every span that is probable enough, by a threshold from held-out data.

The probability of a span is its share among the k best taggings: the sum of exp(score / T) of those that contain it,
divided by the sum of all k. A true span that none of them contains has the largest strangeness.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from mssvm.conformal.thresholds import Coverage, check_settings, measured, threshold
from mssvm.core.errors import InputError
from mssvm.data.chunks import is_bio, spans
from mssvm.data.labels import is_missing

NEVER_FOUND = 2.0  # the strangeness of a span that is in none of the k best taggings; others have at most 1


class PossibleSpan(NamedTuple):
    """A span from ``start`` to before ``stop`` of a type, and its share of the probability of the k best taggings."""

    start: int
    stop: int
    type: str
    share: float


class SpanSets:
    """Sets of spans, one for every sequence, that contain each true span with probability ``coverage``.

    Parameters
    ----------
    clf : fitted estimator with ``predict_topk`` on chains with BIO or BIOES tags
    coverage : float
        The promised share of true spans that are in the sets, in (0, 1).
    unit : "item" or "instance"
        What is promised on average: the share of all spans, or the mean over sequences of the share of their spans.
    k : int
        Taggings per sequence that spans are taken from. If fewer than ``coverage`` of the true spans are among them,
        nothing can be promised, and ``calibrate`` says so.

    >>> tagger = ms.CRF(ms.Chain()).fit([[{"w": "a"}, {"w": "b"}]] * 4, [["B", "O"]] * 4)
    >>> sets = ms.conformal.SpanSets(tagger, coverage=0.5, k=3)
    >>> found = sets.calibrate([[{"w": "a"}, {"w": "b"}]] * 4, [["B", "O"]] * 4).predict([[{"w": "a"}, {"w": "b"}]])
    >>> [(span.start, span.stop) for span in found[0]]
    [(0, 1)]
    """

    def __init__(self, clf: Any, coverage: float = 0.9, unit: str = "item", k: int = 20) -> None:
        self.clf = clf
        self.coverage = coverage
        self.unit = unit
        self.k = k

    def calibrate(self, X: Any, y: Any) -> Self:
        """Choose the threshold from labelled sequences that training has not seen; spans whose ends are unknown because
        of missing tags do not count.

        >>> tagger = ms.CRF(ms.Chain()).fit([[{"w": "a"}, {"w": "b"}]] * 4, [["B", "O"]] * 4)
        >>> sets = ms.conformal.SpanSets(tagger, coverage=0.5, k=3)
        >>> sets.calibrate([[{"w": "a"}, {"w": "b"}]] * 4, [["B", "O"]] * 4).threshold_ < 0.5
        True
        """
        alpha = check_settings(self.coverage, self.unit)
        if not is_bio(self.clf.labels_.classes):
            raise InputError("span sets need BIO or BIOES tags (O, B-x, I-x, E-x, S-x) as labels.")
        scores = []
        instance = []
        every_possible, lengths = self._possible(X)
        for b, (possible, tags) in enumerate(zip(every_possible, self._known_tags(y, lengths), strict=True)):
            share = {span[:3]: span.share for span in possible}
            for span in determined_spans(tags):
                scores.append(1.0 - share[span] if span in share else NEVER_FOUND)
                instance.append(b)
        if not scores:
            raise InputError("y holds no complete span; calibration needs some.")
        found = threshold(np.array(scores), np.array(instance), alpha, self.unit)
        if found >= NEVER_FOUND:
            missing = np.mean(np.array(scores) == NEVER_FOUND)
            raise InputError(
                f"coverage {self.coverage:g} cannot be promised: {missing:.1%} of {len(scores)} calibration spans are "
                f"in none of the {self.k} best taggings; raise k, give more calibration data, or promise less."
            )
        self.threshold_ = found
        return self

    def predict(self, X: Any) -> list[list[PossibleSpan]]:
        """The possible spans of every sequence, most probable first; they may overlap.

        >>> tagger = ms.CRF(ms.Chain()).fit([[{"w": "a"}, {"w": "b"}]] * 4, [["B", "O"]] * 4)
        >>> sets = ms.conformal.SpanSets(tagger, coverage=0.5, k=3).calibrate([[{"w": "a"}]] * 4, [["B"]] * 4)
        >>> len(sets.predict([[{"w": "b"}, {"w": "a"}]]))
        1
        """
        self._check_calibrated()
        return self._probable(self._possible(X)[0])

    def evaluate(self, X: Any, y: Any) -> Coverage:
        """How often the sets of X contain the spans of y; ``mean_size`` is the number of spans of a sequence's set.

        >>> tagger = ms.CRF(ms.Chain()).fit([[{"w": "a"}, {"w": "b"}]] * 4, [["B", "O"]] * 4)
        >>> sets = ms.conformal.SpanSets(tagger, coverage=0.5, k=3).calibrate([[{"w": "a"}]] * 4, [["B"]] * 4)
        >>> sets.evaluate([[{"w": "a"}]] * 2, [["B"]] * 2).by_item
        1.0
        """
        covered = []
        instance = []
        sizes = []
        self._check_calibrated()
        every_possible, lengths = self._possible(X)
        known = self._known_tags(y, lengths)
        for b, (found, tags) in enumerate(zip(self._probable(every_possible), known, strict=True)):
            members = {span[:3] for span in found}
            sizes.append(len(members))
            for span in determined_spans(tags):
                covered.append(float(span in members))
                instance.append(b)
        return measured(np.array(covered), np.array(instance), np.array(sizes, dtype=np.float64))

    def _check_calibrated(self) -> None:
        if not hasattr(self, "threshold_"):
            raise InputError("these sets have no threshold yet; call calibrate with held-out data first.")

    def _probable(self, every_possible: list[list[PossibleSpan]]) -> list[list[PossibleSpan]]:
        """The spans of every sequence that are probable enough."""
        return [[span for span in possible if 1.0 - span.share <= self.threshold_] for possible in every_possible]

    def _known_tags(self, y: Any, lengths: Sequence[int]) -> list[list[Any]]:
        """The true tags of every sequence, None where a tag is missing or one of several."""
        vocabulary = self.clf.labels_.widened(y, 1)
        if not is_bio(vocabulary.classes):
            raise InputError(f"y holds tags that are not BIO or BIOES (O, B-x, I-x, E-x, S-x): {vocabulary.shown}.")
        labels = vocabulary.encode(y, [(n,) for n in lengths])
        tags = [None] * len(labels.states)
        for t in np.flatnonzero(labels.single):
            tags[t] = vocabulary.classes[labels.states[t]]
        return [tags[first:last] for first, last in pairwise(labels.ptr.tolist())]

    def _possible(self, X: Any) -> tuple[list[list[PossibleSpan]], list[int]]:
        """The spans of the k best taggings of every sequence with their shares, largest first, and the lengths of the
        sequences."""
        taggings, scores = self.clf.predict_topk(X, self.k)
        temperature = self.clf.temperatures_[0]
        out = []
        for best, values in zip(taggings, scores, strict=True):
            weight = np.exp((values - values.max()) / temperature)
            weight /= weight.sum()
            share: dict[tuple[int, int, str], float] = {}
            for tags, part in zip(best, weight.tolist(), strict=True):
                for span in spans(tags.tolist()):
                    share[span] = share.get(span, 0.0) + part
            possible = [PossibleSpan(*span, min(part, 1.0)) for span, part in share.items()]
            out.append(sorted(possible, key=lambda span: (-span.share, span)))
        return out, [len(best[0]) for best in taggings]


def determined_spans(tags: Sequence[Any]) -> list[tuple[int, int, str]]:
    """The spans of tags both of whose ends are known: a missing tag or a set of candidates does not follow them, nor
    precede them unless their first tag is B or S."""
    known = [None if is_missing(tag) or not isinstance(tag, str) else tag for tag in tags]
    found = []
    for start, stop, kind in spans(known):
        begins = start == 0 or known[start - 1] is not None or str(known[start]).startswith(("B", "S"))
        ends = stop == len(known) or known[stop] is not None
        if begins and ends:
            found.append((start, stop, kind))
    return found

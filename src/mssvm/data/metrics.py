"""How good predictions are on data whose labels may be missing or ambiguous: only what the labels say counts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.data.labels import Labels, LabelVocabulary

Span = tuple[int, int, str]
"""First site, site after the last, and name of a chunk."""


@dataclass(frozen=True)
class Rates:
    """Precision, recall and their harmonic mean, with the number of true cases."""

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def of(cls, right: int, predicted: int, true: int) -> Rates:
        """0 where there is nothing to divide by."""
        precision, recall = right / max(predicted, 1), right / max(true, 1)
        return cls(precision, recall, 2 * right / max(predicted + true, 1), true)


@dataclass(frozen=True, eq=False)
class Scores:
    """Counts of one evaluation: labelled and unlabelled sites, and labelled ones predicted right, per instance.

    ``spans`` is None unless the labels are BIO tags.
    """

    right: Ints
    labelled: Ints
    n_unlabelled: int
    by_class: dict[Hashable, Rates]
    spans: Rates | None

    @property
    def n_instances(self) -> int:
        return len(self.labelled)

    @property
    def n_sites(self) -> int:
        """Labelled sites."""
        return int(self.labelled.sum())

    @property
    def accuracy(self) -> float:
        """Share of labelled sites predicted right; any candidate is right."""
        return int(self.right.sum()) / max(self.n_sites, 1)

    @property
    def whole(self) -> float:
        """Share of instances with a label whose labelled sites are all right."""
        counted = self.labelled > 0
        return float(np.mean((self.right == self.labelled)[counted])) if counted.any() else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "whole_instances": self.whole,
            "n_instances": self.n_instances,
            "n_sites": self.n_sites,
            "n_unlabelled": self.n_unlabelled,
            "by_class": {str(label): asdict(rates) for label, rates in self.by_class.items()},
            "span_f1": None if self.spans is None else asdict(self.spans),
        }


def evaluate(vocabulary: LabelVocabulary, truth: Labels, states: Ints) -> Scores:
    """Scores of predicted states of all sites. Candidate sets count in the accuracy, single labels per class."""
    right = truth.observed & truth.mask[np.arange(len(states)), states]
    n = len(truth.ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(truth.ptr))
    counts = [np.bincount(owner, marked, n).astype(np.int64) for marked in (right, truth.observed)]
    said, true = states[truth.single], truth.states[truth.single]
    by_class = {
        label: Rates.of(int(((true == k) & (said == k)).sum()), int((said == k).sum()), int((true == k).sum()))
        for k, label in enumerate(vocabulary.classes)
    }
    chunks = _spans(vocabulary, truth, states) if is_bio(vocabulary.classes) else None
    return Scores(counts[0], counts[1], int((~truth.observed).sum()), by_class, chunks)


def is_bio(classes: Iterable[Hashable]) -> bool:
    """Whether the labels are chunk tags: O, and B-x and I-x (or plain B and I)."""
    names = {c for c in classes if isinstance(c, str)}
    tags = {c for c in names if c in ("B", "I") or c.startswith(("B-", "I-"))}
    return len(names) > 1 and names - tags <= {"O"} and any(c[0] == "B" for c in tags)


def spans(tags: Sequence[str | None]) -> list[Span]:
    """Chunks of a tag sequence: B opens one, I goes on with one of its own name and opens one otherwise."""
    out: list[Span] = []
    start, name = -1, ""
    for t, tag in enumerate([*tags, "O"]):
        kind, _, what = (tag or "O").partition("-")
        goes_on = kind == "I" and start >= 0 and what == name
        if start >= 0 and not goes_on:
            out.append((start, t, name))
            start = -1
        if kind in ("B", "I") and not goes_on:
            start, name = t, what
    return out


def _spans(vocabulary: LabelVocabulary, truth: Labels, states: Ints) -> Rates:
    """Exact matches of chunks; those that touch a site whose label is not known for sure are left out on both sides."""
    right = predicted = true = 0
    for first, end in zip(truth.ptr[:-1], truth.ptr[1:], strict=True):
        known = truth.single[first:end]
        here = range(int(first), int(end))
        gold = [str(vocabulary.classes[int(truth.states[s])]) if truth.single[s] else None for s in here]
        said = [str(vocabulary.classes[int(states[s])]) for s in here]
        ours = {span for span in spans(said) if _sure(span, said, known)}
        theirs = {span for span in spans(gold) if _sure(span, gold, known)}
        right, predicted, true = right + len(ours & theirs), predicted + len(ours), true + len(theirs)
    return Rates.of(right, predicted, true)


def _sure(span: Span, tags: Sequence[str | None], known: Any) -> bool:
    """Whether the labels of the chunk are known, of the site after it and, unless it opens with B, of that before."""
    opens = (tags[span[0]] or "").startswith("B")
    return bool(known[span[0] if opens else max(span[0] - 1, 0) : span[1] + 1].all())

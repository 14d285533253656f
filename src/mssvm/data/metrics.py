"""How good predictions are on data whose labels may be missing or ambiguous: only what the labels say counts.

``site_accuracy``, ``instance_accuracy``, ``flat_f1`` and ``span_f1`` compare true and predicted labels; ``scorer``
makes of each what scikit-learn takes as ``scoring``: ``GridSearchCV(..., scoring=ms.metrics.scorer("span_f1"))``.
``calibration`` says whether the probabilities of a model are those of its being right.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.data.labels import Labels, LabelVocabulary

__all__ = [
    "Bin", "Calibration", "Rates", "Scorer", "calibration", "flat_f1", "instance_accuracy", "is_bio", "scorer",
    "site_accuracy", "span_f1", "spans",
]  # fmt: skip

Span = tuple[int, int, str]
"""First site, site after the last, and name of a chunk."""
OPENING, INSIDE, CLOSING = ("B", "S"), ("I", "E"), ("E", "S")  # tags of chunks, beside O
AVERAGES = ("macro", "weighted", "micro")


@dataclass(frozen=True)
class Rates:
    """Precision, recall and their harmonic mean, with the number of true cases.

    >>> ms.metrics.Rates.of(right=3, predicted=4, true=6)
    Rates(precision=0.75, recall=0.5, f1=0.6, support=6)
    """

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

    ``by_class`` has every class of the vocabulary; ``occurring`` are those that some site with a single label has or is
    predicted to have, over which F1 is averaged. ``spans`` is None unless the labels are BIO or BIOES tags.
    """

    right: Ints
    labelled: Ints
    n_unlabelled: int
    by_class: dict[Hashable, Rates]
    occurring: frozenset[Hashable]
    spans: Rates | None

    @property
    def n_instances(self) -> int:
        return len(self.labelled)

    @property
    def n_labelled_instances(self) -> int:
        """Instances with a label."""
        return int(np.count_nonzero(self.labelled))

    @property
    def n_sites(self) -> int:
        """Labelled sites."""
        return int(self.labelled.sum())

    @property
    def accuracy(self) -> float:
        """Share of labelled sites predicted right; any candidate is right."""
        return int(self.right.sum()) / self.n_sites

    @property
    def whole(self) -> float:
        """Share of instances with a label whose labelled sites are all right."""
        return float(np.mean((self.right == self.labelled)[self.labelled > 0]))

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
    if not truth.observed.any():
        raise InputError("there is no labelled site to compare predictions with.")
    right = truth.observed & truth.mask[np.arange(len(states)), states]
    n = len(truth.ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(truth.ptr))
    counts = [np.bincount(owner, marked, n).astype(np.int64) for marked in (right, truth.observed)]
    said, true = states[truth.single], truth.states[truth.single]
    by_class = {
        label: Rates.of(int(((true == k) & (said == k)).sum()), int((said == k).sum()), int((true == k).sum()))
        for k, label in enumerate(vocabulary.classes)
    }
    occurring = frozenset(vocabulary.classes[int(k)] for k in np.union1d(true, said))
    chunks = _spans(vocabulary, truth, states) if is_bio(vocabulary.classes) else None
    return Scores(counts[0], counts[1], int((~truth.observed).sum()), by_class, occurring, chunks)


def is_bio(classes: Iterable[Hashable]) -> bool:
    """Whether ``classes`` are chunk tags: O, and B-x and I-x, also E-x and S-x (or the plain letters).

    >>> ms.metrics.is_bio(["B-NP", "I-NP", "O"]), ms.metrics.is_bio(["noun", "verb"])
    (True, False)
    """
    names = [c for c in classes if isinstance(c, str)]
    kinds = {name.partition("-")[0] for name in names}
    return len(names) > 1 and kinds <= {*INSIDE, *OPENING, "O"} and bool(kinds & set(OPENING))


def spans(tags: Sequence[str | None]) -> list[Span]:
    """Chunks of a sequence of ``tags``: B and S open one, I and E go on with one of their own name and open one
    otherwise, and after E and S it ends.

    >>> ms.metrics.spans(["B-NP", "I-NP", "O", "B-VP"])
    [(0, 2, 'NP'), (3, 4, 'VP')]
    """
    out: list[Span] = []
    start, name = -1, ""
    for t, tag in enumerate([*tags, "O"]):
        kind, _, what = (tag or "O").partition("-")
        goes_on = kind in INSIDE and start >= 0 and what == name
        if start >= 0 and not goes_on:
            out.append((start, t, name))
            start = -1
        if kind != "O" and not goes_on:
            start, name = t, what
        if kind in CLOSING:
            out.append((start, t + 1, name))
            start = -1
    return out


def _spans(vocabulary: LabelVocabulary, truth: Labels, states: Ints) -> Rates:
    """Exact matches of chunks, as far as the labels tell: a true chunk counts where every way to fill in the labels
    that are not known for sure has it, and a predicted one where all ways have it (right) or none has (wrong)."""
    right = predicted = true = 0
    for first, end in zip(truth.ptr[:-1], truth.ptr[1:], strict=True):
        here = range(int(first), int(end))
        gold = [str(vocabulary.classes[int(truth.states[s])]) if truth.single[s] else None for s in here]
        said = [str(vocabulary.classes[int(states[s])]) for s in here]
        judged = [_is_span(span, gold) for span in spans(said)]
        right += judged.count(True)
        predicted += len(judged) - judged.count(None)
        true += sum(_is_span(span, gold) is True for span in spans(gold))
    return Rates.of(right, predicted, true)


def _is_span(span: Span, tags: Sequence[str | None]) -> bool | None:
    """Whether ``span`` is a chunk of ``tags``; None where that depends on tags that are not known (None)."""
    first, end, name = span
    padded = ["O", *tags, "O"]  # tag t is padded[t + 1]
    links = [_goes_on(padded[t], padded[t + 1]) for t in range(first, end + 1)]
    facts = [None if tag is None else tag != "O" and tag.partition("-")[2] == name for tag in tags[first:end]]
    facts += links[1:-1]
    facts += [None if link is None else not link for link in (links[0], links[-1])]
    if False in facts:
        return False
    return None if None in facts else True


def _goes_on(before: str | None, tag: str | None) -> bool | None:
    """Whether the chunk of the site before goes on at a site; None where that depends on a tag that is not known."""
    kind, _, name = (tag or "I").partition("-")
    kind_before, _, name_before = (before or "B").partition("-")
    if kind not in INSIDE or kind_before == "O" or kind_before in CLOSING:
        return False
    return None if tag is None or before is None else name == name_before


# ----------------------------------------------------------------------------------------- true and predicted labels


def site_accuracy(y_true: Any, y_pred: Any) -> float:
    """Share of labelled sites that are right; missing labels do not count, any candidate is right.

    >>> ms.metrics.site_accuracy([["B", None, {"B", "I"}, "O"]], [["B", "I", "I", "I"]])      # two of three
    0.6666666666666666
    """
    return _compared(y_true, y_pred).accuracy


def instance_accuracy(y_true: Any, y_pred: Any) -> float:
    """Share of instances with a label whose labelled sites are all right.

    >>> ms.metrics.instance_accuracy([["B", "O"], ["O", None]], [["B", "B"], ["O", "B"]])
    0.5
    """
    return _compared(y_true, y_pred).whole


def flat_f1(y_true: Any, y_pred: Any, average: str = "macro") -> float:
    """F1 of single sites, averaged over the classes that occur ("macro"), by their number of sites ("weighted"), or of
    all sites together ("micro").

    Only sites with one label count: as in scikit-learn on these sites, a class occurs where one of them has it or is
    predicted to have it, and a class that is predicted only where the label is missing or a candidate set does not.

    >>> ms.metrics.flat_f1([["B", "O"]], [["B", "B"]], average="micro")
    0.5
    >>> ms.metrics.flat_f1([["B", None]], [["B", "O"]])
    1.0
    """
    if average not in AVERAGES:
        raise InputError(f"average must be one of {', '.join(map(repr, AVERAGES))}, got {average!r}.")
    found = _compared(y_true, y_pred)
    rates = [rates for label, rates in found.by_class.items() if label in found.occurring]
    if not rates:
        raise InputError("flat_f1 needs a site with a single label; all labels are missing or candidate sets.")
    if average == "micro":
        right = sum(round(r.recall * r.support) for r in rates)
        return right / sum(r.support for r in rates)
    weight = [r.support if average == "weighted" else 1 for r in rates]
    return float(np.average([r.f1 for r in rates], weights=weight))


def span_f1(y_true: Any, y_pred: Any) -> float:
    """F1 of the chunks of BIO or BIOES tags: right where type and both ends are right. Chunks of which the labels do
    not tell, because some are missing or candidate sets, do not count.

    >>> ms.metrics.span_f1([["B-NP", "I-NP", "B-VP"]], [["B-NP", "I-NP", "O"]])
    0.6666666666666666
    """
    found = _compared(y_true, y_pred)
    if found.spans is None:
        raise InputError("span_f1 needs BIO or BIOES tags (O, B-x, I-x, E-x, S-x) as labels.")
    return found.spans.f1


METRICS = {f.__name__: f for f in (site_accuracy, instance_accuracy, flat_f1, span_f1)}


@dataclass(frozen=True)
class Scorer:
    """A metric of (y_true, y_pred) as a score of (estimator, X, y); ``decode`` is as in ``predict``.

    >>> ms.metrics.Scorer(ms.metrics.site_accuracy, decode="marginal")(clf, X, y)
    1.0
    """

    metric: Any
    decode: str | None = None

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        chosen = {} if self.decode is None else {"decode": self.decode}
        return float(self.metric(y, estimator.predict(X, **chosen)))


def scorer(metric: Any, decode: str | None = None) -> Scorer:
    """What ``scoring`` of scikit-learn takes, from a ``metric`` of this module by name or any of (y_true, y_pred);
    ``decode`` is as in ``predict``.

    >>> from sklearn.model_selection import cross_val_score
    >>> both = {"cv": 2, "scoring": ms.metrics.scorer("instance_accuracy")}
    >>> cross_val_score(ms.CRF(), X + X, y + y, **both).tolist()
    [1.0, 1.0]
    """
    if isinstance(metric, str) and metric not in METRICS:
        raise InputError(f"metric must be one of {', '.join(map(repr, METRICS))} or a function, got {metric!r}.")
    return Scorer(METRICS[metric] if isinstance(metric, str) else metric, decode)


def _compared(y_true: Any, y_pred: Any) -> Scores:
    """Scores of predictions, whose nesting tells what an instance is."""
    shapes = [np.shape(item) for item in y_pred]
    depth = max((len(shape) for shape in shapes), default=0)
    vocabulary = LabelVocabulary.learn(y_pred, depth).widened(y_true, depth)
    truth = vocabulary.encode(y_true, shapes)
    return evaluate(vocabulary, truth, vocabulary.encode(y_pred, shapes).states)


# ----------------------------------------------------------------------------------------- probabilities


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
    """Whether the probabilities of a fitted ``estimator`` are those of being right, on labelled data, in ``n_bins``
    bins. Missing labels and labels that training never met do not count; the probability of a candidate set is that of
    its members together.

    >>> 0.0 <= ms.metrics.calibration(clf, X, y, n_bins=5).error <= 1.0
    True
    """
    found = estimator.predict_marginals(X)
    shapes = [np.shape(p)[:-1] for p in found]
    p = np.concatenate([np.reshape(item, (-1, len(estimator.classes_))) for item in found])
    return calibration_of(p, estimator.labels_.encode_met(y, shapes), n_bins)


def calibration_of(p: Floats, labels: Labels, n_bins: int = 10) -> Calibration:
    """The same of probabilities (sites, classes)."""
    seen = labels.observed
    top, right = p[seen].max(axis=1), labels.mask[seen][np.arange(int(seen.sum())), p[seen].argmax(axis=1)]
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    number = np.clip(np.searchsorted(edges, top, side="left") - 1, 0, n_bins - 1)
    bins = tuple(
        Bin(float(edges[k]), float(edges[k + 1]), float(top[here].mean()), float(right[here].mean()), int(here.sum()))
        for k in range(n_bins)
        if (here := number == k).any()
    )
    error = sum(b.n_sites * abs(b.confidence - b.accuracy) for b in bins) / max(len(top), 1)
    return Calibration(log_loss(p, labels), error, bins)


def log_loss(p: Floats, labels: Labels) -> float:
    """Mean of -log of the probability that the labels have, over labelled sites."""
    given = np.where(labels.mask, p, 0.0).sum(axis=1)[labels.observed]
    if not len(given):
        raise InputError("there is no labelled site to compare probabilities with.")
    return float(-np.mean(np.log(np.clip(given, np.finfo(np.float64).tiny, 1.0))))

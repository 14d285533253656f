"""Metrics for labels that may be missing or ambiguous: only cases that the labels determine count.

``site_accuracy``, ``instance_accuracy``, ``flat_f1`` and ``span_f1`` compare true and predicted labels; ``scorer``
turns each into a scorer of scikit-learn: ``GridSearchCV(..., scoring=ms.metrics.scorer("span_f1"))``. ``missing_label``
and ``classes`` of the metrics are as in estimators; a scorer passes on those of its estimator. ``calibration`` and the
functions on tags have modules of their own (``calibration``, ``chunks``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import sequence_length
from mssvm.core.errors import InputError
from mssvm.data.calibration import Bin, Calibration, calibration
from mssvm.data.chunks import is_bio, is_span, spans
from mssvm.data.labels import OF_LABELS, Labels, LabelVocabulary, labels_of, plain

__all__ = [
    "Bin",
    "Calibration",
    "Rates",
    "Scorer",
    "calibration",
    "flat_f1",
    "instance_accuracy",
    "is_bio",
    "label_report",
    "scorer",
    "site_accuracy",
    "span_f1",
    "span_report",
    "spans",
]

AVERAGES = ("macro", "weighted", "micro")
ALL = "\0all"  # chunks of all types together; no type has this name


@dataclass(frozen=True)
class Rates:
    """Precision, recall and their harmonic mean, with the number of true cases (``support``) and of ``predicted`` ones.

    >>> ms.metrics.Rates.of(right=3, predicted=4, true=6)
    Rates(precision=0.75, recall=0.5, f1=0.6, support=6)
    """

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int = field(default=0, repr=False, compare=False)

    @classmethod
    def of(cls, right: int, predicted: int, true: int) -> Rates:
        """0 where there is nothing to divide by."""
        precision = right / max(predicted, 1)
        recall = right / max(true, 1)
        return cls(precision, recall, 2 * right / max(predicted + true, 1), true, predicted)


@dataclass(frozen=True, eq=False)
class Scores:
    """Counts of one evaluation: labelled and unlabelled sites, and labelled ones predicted right, per instance.

    ``by_class`` has every class of the vocabulary; ``occurring`` are those that some site with a single label has or is
    predicted to have, over which F1 is averaged. ``spans`` and ``spans_by_type`` are None unless the labels are BIO or
    BIOES tags; ``by_label`` is None unless every instance has the same several labels (multi-label).
    """

    right: Ints
    labelled: Ints
    n_unlabelled: int
    by_class: dict[Hashable, Rates]
    occurring: frozenset[Hashable]
    spans: Rates | None
    spans_by_type: dict[str, Rates] | None = None
    by_label: dict[str, Rates] | None = None

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
            "spans_by_type": _as_json(self.spans_by_type),
            "by_label": _as_json(self.by_label),
        }


def _as_json(rates: dict[str, Rates] | None) -> dict[str, Any] | None:
    return None if rates is None else {name: asdict(part) for name, part in rates.items()}


def evaluate(vocabulary: LabelVocabulary, truth: Labels, states: Ints, names: Sequence[str] = ()) -> Scores:
    """Scores of predicted states of all sites. Candidate sets count in the accuracy, single labels per class.
    ``names`` are those of the labels where every instance has the same several labels."""
    if not truth.observed.any():
        raise InputError("there is no labelled site to compare predictions with.")
    right = truth.observed & truth.mask[np.arange(len(states)), states]
    n = len(truth.ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(truth.ptr))
    right_sites = np.bincount(owner, right, n).astype(np.int64)
    labelled_sites = np.bincount(owner, truth.observed, n).astype(np.int64)
    predicted = states[truth.single]
    true = truth.states[truth.single]
    by_class = {}
    occurring = set()
    for k, label in enumerate(vocabulary.classes):
        is_predicted = predicted == k
        is_true = true == k
        n_predicted = int(is_predicted.sum())
        n_true = int(is_true.sum())
        by_class[label] = Rates.of(int((is_true & is_predicted).sum()), n_predicted, n_true)
        if n_predicted or n_true:
            occurring.add(label)
    spans_by_type = _span_rates(vocabulary, truth, states) if is_bio(vocabulary.classes) else None
    return Scores(
        right_sites,
        labelled_sites,
        int((~truth.observed).sum()),
        by_class,
        frozenset(occurring),
        spans=None if spans_by_type is None else spans_by_type.pop(ALL),
        spans_by_type=spans_by_type,
        by_label=_label_rates(truth, states, names) if names else None,
    )


def _label_rates(truth: Labels, states: Ints, names: Sequence[str]) -> dict[str, Rates]:
    """By label of multi-label data: how well its second class (1, true) is found, on the instances whose label is
    known."""
    known = truth.single.reshape(-1, len(names))
    is_true = truth.states.reshape(-1, len(names)) == 1
    is_predicted = states.reshape(-1, len(names)) == 1
    out = {}
    for j, name in enumerate(names):
        true = is_true[known[:, j], j]
        predicted = is_predicted[known[:, j], j]
        out[name] = Rates.of(int((true & predicted).sum()), int(predicted.sum()), int(true.sum()))
    return out


def averages(rates: dict[str, Rates]) -> dict[str, Rates]:
    """Averages over types or labels, as scikit-learn and seqeval name them: of all cases together ("micro avg"), of
    the types ("macro avg"), and of the types by their number of true cases ("weighted avg")."""
    if not rates:
        return {}
    support = np.array([part.support for part in rates.values()])
    table = np.array([(part.precision, part.recall, part.f1) for part in rates.values()])
    total = int(support.sum())
    right = sum(round(part.recall * part.support) for part in rates.values())
    predicted = sum(part.predicted for part in rates.values())
    weighted = support @ table / max(total, 1)
    return {
        "micro avg": Rates.of(right, predicted, total),
        "macro avg": _mean_rates(table.mean(axis=0), total, predicted),
        "weighted avg": _mean_rates(weighted, total, predicted),
    }


def _mean_rates(means: Floats, support: int, predicted: int) -> Rates:
    precision, recall, f1 = means.tolist()
    return Rates(precision, recall, f1, support, predicted)


def _span_rates(vocabulary: LabelVocabulary, truth: Labels, states: Ints) -> dict[str, Rates]:
    """Exact matches of chunks by type, and of ``ALL``, as far as the labels determine them: a true chunk counts if
    every completion of the unknown labels has it, a predicted chunk if all completions have it (right) or none has it
    (wrong)."""
    names = [str(label) for label in vocabulary.classes]
    counts: dict[str, Counter[str]] = {"right": Counter(), "predicted": Counter(), "true": Counter()}
    for first, end in pairwise(truth.ptr.tolist()):
        gold_tags: list[str | None] = []
        for s in range(first, end):
            gold_tags.append(names[truth.states[s]] if truth.single[s] else None)
        predicted_tags = [names[state] for state in states[first:end]]
        for span in spans(predicted_tags):
            verdict = is_span(span, gold_tags)
            counts["right"][span[2]] += verdict is True
            counts["predicted"][span[2]] += verdict is not None
        for span in spans(gold_tags):
            counts["true"][span[2]] += is_span(span, gold_tags) is True
    types = sorted({name.partition("-")[2] for name in names if name != "O"})
    out = {}
    for name in types:
        out[name] = Rates.of(*(counts[what][name] for what in ("right", "predicted", "true")))
    out[ALL] = Rates.of(*(counts[what].total() for what in ("right", "predicted", "true")))
    return out


# ----------------------------------------------------------------------------------------- true and predicted labels


def site_accuracy(y_true: Any, y_pred: Any, *, missing_label: Hashable = None, classes: Any = None) -> float:
    """Share of labelled sites that are right; missing labels do not count, any candidate is right. ``missing_label``
    and ``classes`` are as in estimators.

    >>> ms.metrics.site_accuracy([["B", None, {"B", "I"}, "O"]], [["B", "I", "I", "I"]])      # two of three
    0.6666666666666666
    """
    return _compared(y_true, y_pred, missing_label, classes).accuracy


def instance_accuracy(y_true: Any, y_pred: Any, *, missing_label: Hashable = None, classes: Any = None) -> float:
    """Share of instances with a label whose labelled sites are all right. ``missing_label`` and ``classes`` are as in
    estimators.

    >>> ms.metrics.instance_accuracy([["B", "O"], ["O", None]], [["B", "B"], ["O", "B"]])
    0.5
    """
    return _compared(y_true, y_pred, missing_label, classes).whole


def flat_f1(
    y_true: Any, y_pred: Any, average: str = "macro", *, missing_label: Hashable = None, classes: Any = None
) -> float:
    """F1 of single sites, averaged over the classes that occur ("macro"), by their number of sites ("weighted"), or of
    all sites together ("micro").

    Only sites with a single label count. As in scikit-learn, a class occurs if one of these sites has it or is
    predicted to have it; a class that is predicted at other sites only does not occur.
    ``missing_label`` and ``classes`` are as in estimators.

    >>> ms.metrics.flat_f1([["B", "O"]], [["B", "B"]], average="micro")
    0.5
    >>> ms.metrics.flat_f1([["B", None]], [["B", "O"]])
    1.0
    """
    if average not in AVERAGES:
        raise InputError(f"average must be one of {', '.join(map(repr, AVERAGES))}, got {average!r}.")
    scores = _compared(y_true, y_pred, missing_label, classes)
    rates = [rates for label, rates in scores.by_class.items() if label in scores.occurring]
    if not rates:
        raise InputError("flat_f1 needs a site with a single label; all labels are missing or candidate sets.")
    if average == "micro":
        right = sum(round(r.recall * r.support) for r in rates)
        return right / sum(r.support for r in rates)
    weight = [r.support if average == "weighted" else 1 for r in rates]
    return float(np.average([r.f1 for r in rates], weights=weight))


def span_f1(y_true: Any, y_pred: Any, *, missing_label: Hashable = None, classes: Any = None) -> float:
    """F1 of the chunks of BIO or BIOES tags: right where type and both ends are right. Chunks that the labels do not
    determine, because some are missing or candidate sets, do not count. ``missing_label`` and ``classes`` are as in
    estimators.

    >>> ms.metrics.span_f1([["B-NP", "I-NP", "B-VP"]], [["B-NP", "I-NP", "O"]])
    0.6666666666666666
    """
    scores = _compared(y_true, y_pred, missing_label, classes)
    if scores.spans is None:
        raise InputError("span_f1 needs BIO or BIOES tags (O, B-x, I-x, E-x, S-x) as labels.")
    return scores.spans.f1


def span_report(y_true: Any, y_pred: Any, *, missing_label: Hashable = None, classes: Any = None) -> dict[str, Rates]:
    """Precision, recall and F1 of chunks by type (PER, LOC, ...), then their averages, as seqeval reports them.
    ``missing_label`` and ``classes`` are as in estimators.

    >>> ms.metrics.span_report([["B-NP", "I-NP", "B-VP"]], [["B-NP", "I-NP", "O"]])["NP"]
    Rates(precision=1.0, recall=1.0, f1=1.0, support=1)
    """
    scores = _compared(y_true, y_pred, missing_label, classes)
    if scores.spans_by_type is None:
        raise InputError("span_report needs BIO or BIOES tags (O, B-x, I-x, E-x, S-x) as labels.")
    return {**scores.spans_by_type, **averages(scores.spans_by_type)}


def label_report(
    y_true: Any, y_pred: Any, names: Iterable[str] | None = None, *, missing_label: Hashable = None
) -> dict[str, Rates]:
    """Precision, recall and F1 of every label of multi-label data (its second class, such as 1), then their averages;
    ``names`` are those of the labels, their numbers by default. Missing labels, also ``missing_label``, do not count.

    >>> ms.metrics.label_report([[1, 0], [1, None]], [[1, 0], [0, 1]], names=["red", "round"])["red"]
    Rates(precision=1.0, recall=0.5, f1=0.6666666666666666, support=2)
    """
    try:
        table = np.asarray(y_pred)
    except ValueError:  # rows of different lengths
        raise InputError(
            "label_report needs predictions (instances, labels), got rows that differ in length."
        ) from None
    if table.ndim != 2 or not len(table):
        raise InputError(f"label_report needs predictions (instances, labels), got shape {table.shape}.")
    known = dict.fromkeys((*labels_of(y_true, 1, missing_label), *labels_of(table, 1, missing_label)))
    vocabulary = LabelVocabulary(tuple(sorted(known, key=repr)), missing_label)
    if vocabulary.n_classes > 2:
        raise InputError(f"label_report has binary labels, but there are {vocabulary.shown}.")
    shapes = [(table.shape[1],)] * len(table)
    listed = [str(j) for j in range(table.shape[1])] if names is None else [str(name) for name in names]
    if len(listed) != table.shape[1]:
        raise InputError(f"names lists {len(listed)} names for {table.shape[1]} labels.")
    rates = _label_rates(vocabulary.encode(y_true, shapes), vocabulary.encode(table, shapes).states, listed)
    return {**rates, **averages(rates)}


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
        decoding = {} if self.decode is None else {"decode": self.decode}  # estimators of other packages have none
        y_pred = estimator.predict(X, **decoding)
        settings = {}
        if self.metric in METRICS.values() and hasattr(estimator, "labels_"):
            settings = {"missing_label": estimator.labels_.missing_label, "classes": estimator.labels_.classes}
            y = estimator.structure_.site_labels(y, [np.shape(labels) for labels in y_pred])
        return float(self.metric(y, y_pred, **settings))


def scorer(metric: Any, decode: str | None = None) -> Scorer:
    """A scorer for scikit-learn's ``scoring``, from a ``metric`` of this module by name or a function of
    (y_true, y_pred); ``decode`` is as in ``predict``.

    >>> from sklearn.model_selection import cross_val_score
    >>> both = {"cv": 2, "scoring": ms.metrics.scorer("instance_accuracy")}
    >>> cross_val_score(ms.CRF(), X + X, y + y, **both).tolist()
    [1.0, 1.0]
    """
    if not isinstance(metric, str):
        return Scorer(metric, decode)
    if metric not in METRICS:
        raise InputError(f"metric must be one of {', '.join(map(repr, METRICS))} or a function, got {metric!r}.")
    return Scorer(METRICS[metric], decode)


def _shape(item: Any, b: int) -> tuple[int, ...]:
    """The shape of the predicted labels of an instance."""
    try:
        return np.shape(item)
    except ValueError:
        raise InputError("its labels are not a table; give one label per site.", what="y_pred", instance=b) from None


def _compared(y_true: Any, y_pred: Any, missing_label: Hashable, classes: Any) -> Scores:
    """Scores of predictions; their nesting gives the shapes of the instances."""
    sequence_length(y_pred, "y_pred", OF_LABELS)
    shapes = [_shape(item, b) for b, item in enumerate(y_pred)]
    depth = max((len(shape) for shape in shapes), default=0)
    predicted = labels_of(y_pred, depth, missing_label)
    known = dict.fromkeys((*predicted, *(() if classes is None else map(plain, classes))))
    vocabulary = LabelVocabulary(tuple(known), missing_label).widened(y_true, depth)
    truth = vocabulary.encode(y_true, shapes)
    return evaluate(vocabulary, truth, vocabulary.encode(y_pred, shapes).states)

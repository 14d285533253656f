"""The page of a comparison: table, learning curves, bars per class, and for images the first predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.data.dataset import Dataset
from mssvm.experiments.comparison import Comparison
from mssvm.experiments.statistics import Estimate
from mssvm.report.charts import Series, bar_chart, line_chart
from mssvm.report.model import Figure, Section, Table, Text
from mssvm.report.pictures import enlarged, label_picture, scalar_picture, strip

MOST_CLASSES = 14
MOST_PICTURES = 4
WIDEST = 64  # pixels shown of a picture's side


def result_table(comparison: Comparison) -> Table:
    """Accuracy over folds, paired differences to the first method, time."""
    first = comparison.methods[0]
    spans = comparison.pooled[first].spans is not None
    header = ["method", "accuracy %", f"minus {first}", "95 % interval", "instances all right %"]
    if spans:
        header.append("span F1 %")
    header.append("seconds")
    rows = []
    for name in comparison.methods:
        accuracy = 100 * comparison.accuracies(name)
        difference = Estimate.paired(accuracy, 100 * comparison.accuracies(first))
        row = [name, Estimate.of(accuracy).show()]
        row += ["", ""] if name == first else [difference.show(sign=True), _interval(difference)]
        row.append(f"{100 * np.mean([t.scores.whole for t in comparison.of(name)]):.1f}")
        if spans:
            row.append(f"{100 * _spans(comparison, name):.2f}")
        row.append(f"{np.mean([t.seconds for t in comparison.of(name)]):.2f}")
        rows.append(row)
    note = (
        f"Means over {comparison.n_folds} folds ± standard error; differences are paired by fold. Training sets of "
        "folds overlap, so intervals are a guide rather than a proof. Missing labels do not count; seconds are per "
        "training."
    )
    return Table("Test accuracy on the same folds", header, rows, note)


def sections(comparison: Comparison, data: Dataset) -> list[Section]:
    """The sections of the page."""
    warned = [Text(sentence) for sentence in comparison.warnings()]
    out = [
        Section("result", "Result", [*warned, result_table(comparison), *_statuses(comparison)]),
        *_curves(comparison),
        Section("classes", "Classes", [_bars(comparison)]),
    ]
    if data.kind == "grid":
        out.append(Section("pictures", "Pictures", strips(comparison, data)))
    return out


def _interval(difference: Estimate) -> str:
    if not np.isfinite(difference.se):
        return ""
    return f"[{difference.low:+.2f}, {difference.high:+.2f}]"


def _spans(comparison: Comparison, name: str) -> float:
    rates = comparison.pooled[name].spans
    return 0.0 if rates is None else rates.f1


def _statuses(comparison: Comparison) -> list[Text]:
    """How training ended for each method; with counts if its folds differ."""
    out = []
    for name in comparison.methods:
        counts = Counter(trial.status for trial in comparison.of(name))
        if len(counts) == 1:
            sentences = list(counts)
        else:
            sentences = [f"({n} of {counts.total()}) {status}" for status, n in counts.items()]
        out.append(Text(f"{name}: {' '.join(sentences)}"))
    return out


def _curves(comparison: Comparison) -> list[Section]:
    """Accuracies by the size of the training set, where there are several, and objectives."""
    shares = sorted({t.share for t in comparison.trials})
    learning = []
    training = []
    for k, name in enumerate(comparison.methods):
        estimates = [Estimate.of(100 * comparison.accuracies(name, share)) for share in shares]
        sizes = [float(np.mean([t.n_train for t in comparison.of(name, share)])) for share in shares]
        errors = [e.se if np.isfinite(e.se) else 0.0 for e in estimates]
        learning.append(Series(name, sizes, [e.mean for e in estimates], errors, k))
        objective = comparison.of(name)[0].objectives
        start = objective[0] if len(objective) and objective[0] > 0 else 1.0
        training.append(Series(name, list(range(len(objective))), (objective / start).tolist(), None, k))
    drawings = []
    notes = []
    if any(len(set(series.x)) > 1 for series in learning):
        axes = ("training instances", "accuracy, %")
        drawings.append(line_chart("Accuracy by size of the training set", *axes, learning))
        notes.append("Bars are standard errors over folds.")
    title = "Learning curves" if drawings else "Training"
    if any(len(series.x) > 1 for series in training):
        axes = ("recorded iteration", "share of the first value")
        drawings.append(line_chart("Objective in training, first fold", *axes, training))
        notes.append("Objectives of different methods are different functions; only how they fall can be compared.")
    return [Section("curves", title, [Figure("Learning and training", drawings, " ".join(notes))])] if drawings else []


def _bars(comparison: Comparison) -> Figure:
    support = {label: rates.support for label, rates in comparison.pooled[comparison.methods[0]].by_class.items()}
    shown = sorted(support, key=lambda label: -support[label])[:MOST_CLASSES]
    values = [(name, [comparison.pooled[name].by_class[label].f1 for label in shown]) for name in comparison.methods]
    note = f"The {MOST_CLASSES} most frequent of {len(support)} classes." if len(support) > MOST_CLASSES else ""
    drawing = bar_chart("F1 by class, %", [f"{label} ({support[label]})" for label in shown], values)
    title = "F1 of every class (number of labelled sites), predictions pooled over folds"
    return Figure(title, [drawing], note, columns=1)


def strips(comparison: Comparison, data: Dataset) -> list[Text | Table | Figure]:
    """Input, given labels, predictions and uncertainty of the first pictures."""
    out: list[Text | Table | Figure] = []
    ptr = comparison.truth.ptr
    for b, shape in enumerate(data.shapes[:MOST_PICTURES]):
        sites = slice(int(ptr[b]), int(ptr[b + 1]))
        drawings = [scalar_picture("input", _sized(_grey(data.X[b])))]
        drawings.append(label_picture("labels given", _labels(comparison.truth.states[sites], shape)))
        for name in comparison.methods:
            drawings.append(label_picture(name, _labels(comparison.states[name][sites], shape)))
        doubt = _sized(1.0 - comparison.certainty[sites].reshape(shape))
        drawings.append(scalar_picture("uncertainty", doubt, 0.0, 1.0 - 1.0 / comparison.vocabulary.n_classes))
        out.append(Figure(data.place(b), [strip(data.place(b), drawings)], columns=1))
    note = (
        "Predictions are by models that did not see the picture. Uncertainty is 1 - max p of "
        f"{comparison.methods[0]}: black is certain, white undecided. Pale labels are missing."
    )
    out.append(Text(note))
    return out


def _grey(x: Any) -> Floats:
    """Mean of the first (up to three) features, which are the colours of a picture."""
    array = np.asarray(x["x"] if isinstance(x, dict) else x)
    if array.dtype == object:
        return np.zeros(array.shape[:2])
    return np.asarray(array[..., : min(3, array.shape[-1])].mean(axis=-1))


def _labels(states: Ints, shape: tuple[int, ...]) -> Ints:
    return np.asarray(_sized(states.reshape(shape)))


def _sized(values: Any) -> Any:
    """Large pictures thinned to every k-th pixel, small ones enlarged by repeating pixels."""
    step = max(1, -(-max(values.shape) // WIDEST))
    return enlarged(values[::step, ::step])


def lead(comparison: Comparison, data: Dataset) -> str:
    """The page in two sentences."""
    methods = ", ".join(comparison.methods)
    labelled = comparison.pooled[comparison.methods[0]].n_sites
    sites = len(comparison.truth.observed)
    return (
        f"{methods} on {data.name}: {len(data)} instances with {sites} sites, {labelled} of them labelled, "
        f"{comparison.vocabulary.n_classes} classes. Every method was trained and judged on the same "
        f"{comparison.n_folds} folds."
    )


def facts(settings: dict[str, Any], versions: dict[str, str], seconds: float) -> Sequence[tuple[str, str]]:
    """Settings, versions and time for the foot of the page."""
    listed = [(name, str(value)) for name, value in settings.items() if value is not None]
    return [*listed, ("seconds", f"{seconds:.1f}"), *versions.items()]

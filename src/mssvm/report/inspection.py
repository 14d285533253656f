"""The page of one model: its summary, the course of training, its largest weights, and the tables between labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mssvm.report.charts import Series, heat_map, line_chart
from mssvm.report.model import Figure, Section, Table, Text

MOST_LABELS = 14  # most labels of a table that is drawn
MOST_TABLES = 12


def sections(estimator: Any, summary: Mapping[str, Any], weights: Sequence[Any]) -> list[Section]:
    """The sections of the page; ``weights`` are those to list."""
    model = Table("What it is", ["", ""], [[name, str(value)] for name, value in summary.items()])
    words = [Text(line) for line in estimator.diagnose().splitlines()]
    header = ["block", "feature", "states", "weight"]
    rows = [[w.block, w.feature, " ".join(str(state) for state in w.states), f"{w.value:+.4f}"] for w in weights]
    title = f"The {len(weights)} largest of {len(estimator.coef_)} weights"
    return [
        Section("model", "Model", [model]),
        Section("training", "Training", [*words, *_objective(estimator)]),
        Section("weights", "Weights", [Table(title, header, rows, n_labels=3), *_tables(estimator)]),
    ]


def _objective(estimator: Any) -> list[Figure]:
    history = estimator.history_
    if len(history) < 2:
        return []
    objective = np.asarray(history["objective"], dtype=np.float64)
    positive = objective[objective > 0]
    wide_range = len(positive) == len(objective) and positive.max() > 100 * positive.min()
    line = Series(type(estimator).__name__, list(range(len(objective))), objective.tolist())
    drawing = line_chart("Objective in training", "recorded iteration", "objective", [line], log_y=bool(wide_range))
    temperatures = set(zip(history["eps_y"].tolist(), history["eps_h"].tolist(), strict=True))
    note = ""
    if len(temperatures) > 1:
        note = "Temperatures fell on the way, and with each the objective is another function."
    return [Figure("How the objective fell", [drawing], note)]


def _tables(estimator: Any) -> list[Figure]:
    """Weights of pairs of labels without features, as coloured tables."""
    encoder = estimator.encoder_
    labels = [str(c) for c in estimator.labels_.classes]
    blocks = [b for b in encoder.blocks if b.source is None and b.axes == ("label", "label")]
    if not blocks or len(labels) > MOST_LABELS:
        return []
    tables = {b.name: encoder.layout.view(estimator.coef_, b.name).reshape(b.cards) for b in blocks[:MOST_TABLES]}
    bound = max(float(np.abs(table).max()) for table in tables.values())
    drawings = []
    for name, table in tables.items():
        texts = [[f"{v:+.2f}" for v in row] for row in table]
        drawings.append(heat_map(name, labels, labels, table.tolist(), "first", "second label", texts, bound))
    note = "Blue raises the score of a pair of labels, orange lowers it."
    if len(blocks) > MOST_TABLES:
        note += f" The first {MOST_TABLES} of {len(blocks)} tables."
    return [Figure("Weights between labels", drawings, note, columns=1 if len(labels) > 5 else 2)]

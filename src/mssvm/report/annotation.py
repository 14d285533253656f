"""The page on annotators: a summary of each, sites worth a second look, and who needs help."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mssvm.annotators import AnnotatorSummary, AnnotatorTable, Doubt, Review
from mssvm.annotators.table import favoured
from mssvm.report.charts import heat_map
from mssvm.report.model import Figure, Section, Table, Text

MOST_LABELS = 14  # most labels of a confusion table that is drawn
MOST_DRAWN = 6  # annotators whose table is drawn: those who are least accurate
MOST_ROWS = 50  # most rows of the table of annotators
ENOUGH_VOTES = 10  # least number of votes of an annotator whose table is drawn


def sections(review: Review, place: Callable[[int, int], str]) -> list[Section]:
    """The sections of the page; ``place`` says where a site (instance, site) is."""
    return [
        Section("help", "Who needs help", _help(review)),
        Section("doubts", "Worth a second look", _doubts(review.doubts, place)),
        Section("annotators", "Annotators", [_table(review.table), *_confusion(review.table)]),
    ]


def _table(table: AnnotatorTable) -> Table:
    rows = []
    for row in _least_accurate_first(table):
        interval = f"{row.accuracy:.1%} [{row.interval[0]:.1%}, {row.interval[1]:.1%}]"
        cells = [str(row.name), str(row.n_votes), f"{row.coverage:.1%}", interval]
        rows.append([*cells, favoured(row, table.classes)])
    header = ["annotator", "votes", "coverage", "accuracy", "votes too often for"]
    note = (
        "Accuracy is the expected share of votes for the true label, with a 95% interval; the least accurate is first."
    )
    return Table("Every annotator", header, rows, note)


def _least_accurate_first(table: AnnotatorTable) -> list[AnnotatorSummary]:
    return sorted(table, key=lambda row: row.accuracy)


def _confusion(table: AnnotatorTable) -> list[Figure]:
    """Confusion tables of the least accurate annotators."""
    if len(table.classes) > MOST_LABELS:
        return []
    labels = [str(label) for label in table.classes]
    drawings: list[str] = []
    for row in _least_accurate_first(table):
        if row.n_votes < ENOUGH_VOTES or len(drawings) == MOST_DRAWN:
            continue
        values = row.confusion.tolist()
        texts = [[f"{share:.0%}" for share in shares] for shares in values]
        drawings.append(heat_map(str(row.name), labels, labels, values, "truth", "vote", texts, 1.0))
    if not drawings:
        return []
    columns = 1 if len(labels) > 5 else 2
    note = "A row has the shares of the votes where its label is true."
    return [Figure("How the least accurate annotators vote", drawings, note, columns)]


def _help(review: Review) -> Sequence[Text | Table | Figure]:
    if not review.habits:
        return [Text("No annotator has a frequent mistake.")]
    rows = [
        [str(habit.annotator), str(habit.truth), str(habit.vote), f"{habit.share:.0%}", f"{habit.n_sites:.0f}"]
        for habit in review.habits
    ]
    header = ["annotator", "truth", "vote", "share", "sites"]
    return [Table("Frequent mistakes", header, rows, "Those on most sites are first.", n_labels=3)]


def _doubts(doubts: Sequence[Doubt], place: Callable[[int, int], str]) -> Sequence[Text | Table | Figure]:
    if not doubts:
        return [Text("Annotators agree wherever several voted.")]
    rows = []
    for doubt in doubts:
        votes = "; ".join(f"{name}: {vote}" for name, vote in doubt.votes.items())
        rows.append([place(doubt.instance, doubt.site), votes, str(doubt.label), f"{doubt.probability:.2f}"])
    header = ["site", "votes", "label", "probability"]
    return [Table("Annotators disagree, and the model is unsure", header, rows, n_labels=2)]

"""The parts of a report. All strings are plain text, escaped when written; figures are SVG made by this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of text under a header. The first ``n_labels`` columns name the row; ``strong`` rows stand out."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    n_labels: int = 1
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Figure:
    """SVG drawings under one caption, ``columns`` side by side where there is room, and the key of their colours."""

    caption: str
    drawings: Sequence[str]
    note: str = ""
    columns: int = 2
    key: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and its verdict.

    ``place`` is where the paper makes it, ``verdict`` the direction found, ``effect`` the difference by reading in
    ``unit`` and ``paper`` the paper's; ``cells`` counts the verdicts of single comparisons, ``groups`` pools them by
    reading, and ``evidence`` lists them.
    """

    number: str
    text: str
    place: str
    verdict: str
    effect: str
    paper: str
    cells: str
    groups: Sequence[tuple[str, str]]
    evidence: Sequence[tuple[str, str]]
    unit: str = "points"


@dataclass(frozen=True)
class Section:
    """A heading and its content; ``claims`` also appear in the table of all claims near the top."""

    name: str
    title: str
    items: Sequence[Text | Table | Figure]
    claims: Sequence[Claim] = ()

"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from mssvm.core.text import printable
from mssvm.report import Table as ReportTable


def shown(value: Any) -> Text:
    """A value as users gave it, on the terminal."""
    return Text(printable(str(value)))


def pairs(title: str, rows: Iterable[tuple[str, Any]]) -> Table:
    """Names and values under a title."""
    table = Table(title=shown(title), show_header=False, min_width=min(len(title), 78))
    for name, value in rows:
        table.add_row(name, shown(value))
    return table


def columns(title: str, names: Iterable[str], rows: Iterable[Iterable[Any]], n_labels: int = 1) -> Table:
    """Rows under headings; the first ``n_labels`` columns are text, the others numbers."""
    table = Table(title=shown(title))
    for k, name in enumerate(names):
        table.add_column(name, justify="left" if k < n_labels else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(shown, row))
    return table


def of_report(table: ReportTable, prefix: str = "", without: Container[str] = ()) -> Table:
    """A table of a page on the terminal, without some of its columns."""
    kept = [k for k, heading in enumerate(table.header) if heading not in without]
    rows = ([row[k] for k in kept] for row in table.rows)
    made = columns(prefix + table.caption, [table.header[k] for k in kept], rows, table.n_labels)
    made.caption = None if prefix else shown(table.note)
    return made

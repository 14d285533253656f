"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from mssvm.core.text import printable
from mssvm.report import Table as ReportTable


def shown(value: Any) -> Text:
    """A value as terminal text, without control characters or markup."""
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
        table.add_row(*(shown(cell) for cell in row))
    return table


def of_report(table: ReportTable, prefix: str = "", without: Container[str] = ()) -> Table:
    """A table of a report as a table on the terminal, without the columns named in ``without``."""
    selected = [k for k, heading in enumerate(table.header) if heading not in without]
    header = [table.header[k] for k in selected]
    rows = ([row[k] for k in selected] for row in table.rows)
    terminal_table = columns(prefix + table.caption, header, rows, table.n_labels)
    terminal_table.caption = None if prefix else shown(table.note)
    return terminal_table

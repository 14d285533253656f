"""One self-contained HTML file: no scripts, fonts or images from elsewhere; readable on paper and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from mssvm.report.model import Claim, Figure, Section, Table, Text

MARKS = {"as claimed": "✓", "undecided": "○", "opposite": "✗", "by reading": "◐"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HEADER = (
    "",
    "claim",
    "direction",
    "effect by reading",
    "paper",
    "cells decided",
)
FITS_PAGE = 9  # columns; wider tables are set smaller
FITS_PHONE = 3  # columns; the rows of wider tables are cards on a phone
SUMMARY = "summary"  # the section that stands before the claims
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    settings: Sequence[Table] = (),
) -> str:
    """The report; ``facts`` (versions, seed, time) and tables of ``settings`` stand at the end."""
    style = files("mssvm.report").joinpath("page.css").read_text("utf-8")
    claims = sorted((claim for section in sections for claim in section.claims), key=_claim_order)
    body = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(lead)}</p>', _contents(sections)]
    body += [_section(s) for s in sections if s.name == SUMMARY]
    if claims:
        body.append(_claims(claims))
    body += [_section(s) for s in sections if s.name != SUMMARY]
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts)
    tables = "".join(_table(table) for table in settings)
    first = f'<div class="wide"><table class="facts">{rows}</table></div>'
    body.append(f'<section id="settings"><h2>Settings</h2>{first}{tables}</section>')
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _claim_order(claim: Claim) -> tuple[int, str]:
    """By number, then by letter: 2, 10, 10a."""
    return int(claim.number.rstrip(LETTERS)), claim.number


def _contents(sections: Sequence[Section]) -> str:
    links = " · ".join(f'<a href="#{escape(s.name)}">{escape(s.name)}</a>' for s in sections)
    return f'<nav>{links} · <a href="#settings">settings</a></nav>'


def _claims(claims: Sequence[Claim]) -> str:
    """The table of all claims."""
    rows = "".join(
        f"<tr><td>{escape(c.number)}</td><td>{escape(c.text)} <small>{escape(c.place)}</small></td>"
        f"<td>{_verdict(c.verdict)}</td><td>{_lines(c.effect)} <small>{escape(c.unit)}</small></td>"
        f"<td{_name('paper', bool(c.paper))}>{_lines(c.paper)}</td>"
        f"<td{_name('cells', True)}>{escape(c.cells)}</td></tr>"
        for c in claims
    )
    head = "".join(f"<th>{name}</th>" for name in HEADER)
    return (
        '<section id="claims"><h2>Claims</h2><div class="wide"><table class="claims">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _section(section: Section) -> str:
    parts = [f'<section id="{escape(section.name)}"><h2>{escape(section.title)}</h2>']
    for item in section.items:
        if isinstance(item, Text):
            parts.append(f"<p>{escape(item.text)}</p>")
        elif isinstance(item, Table):
            parts.append(_table(item))
        else:
            parts.append(_figure(item))
    parts += [_claim(c) for c in section.claims]
    return "".join(parts) + "</section>"


def _table(table: Table) -> str:
    marks = [" class=l" if j < table.n_labels else "" for j in range(len(table.header))]
    head = "".join(f"<th{mark}>{escape(h)}</th>" for mark, h in zip(marks, table.header, strict=True))
    rows = []
    many = len(table.header) > FITS_PHONE
    for k, row in enumerate(table.rows):
        labels = "".join(f'<th scope="row">{escape(cell)}</th>' for cell in row[: table.n_labels])
        named = zip(table.header[table.n_labels :], row[table.n_labels :], strict=True)
        figures = "".join(f"<td{_name(header, many)}>{_figures(cell)}</td>" for header, cell in named)
        strong = " class=strong" if k in table.strong else ""
        rows.append(f"<tr{strong}>{labels}{figures}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    kind = "".join(("many" if many else "", " dense" if len(table.header) > FITS_PAGE else ""))
    return (
        f'<div class="wide"><table class="{kind}"><caption>{escape(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}"
    )


def _name(header: str, named: bool) -> str:
    """The name of a cell's column, which a narrow screen shows beside the cell instead of in a head line."""
    return f' data-name="{escape(header)}"' if named else ""


def _figures(text: str) -> str:
    """Escaped figures with no line break inside a mean with its error, nor inside an interval."""
    return escape(text).replace(" ± ", "\u00a0±\u00a0").replace(", ", ",\u00a0")


def _lines(text: str) -> str:
    """Escaped figures, those of each reading on a line."""
    return _figures(text).replace("; ", "<br>")


def _figure(figure: Figure) -> str:
    note = f'<p class="note">{escape(figure.note)}</p>' if figure.note else ""
    drawings = "".join(f"<div>{d}</div>" for d in figure.drawings)
    row = f'<div class="row" style="--n:{figure.columns}">{drawings}</div>'
    key = f'<div class="key">{figure.key}</div>' if figure.key else ""
    return f"<figure><figcaption>{escape(figure.caption)}</figcaption>{key}{row}{note}</figure>"


def _claim(claim: Claim) -> str:
    shown = (*claim.groups, *claim.evidence)
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{_figures(v)}</td></tr>" for k, v in shown)
    head = f"{_verdict(claim.verdict)} Claim {claim.number}: {escape(claim.text)} {_figures(claim.effect)} {claim.unit}"
    return f'<details class="claim"><summary>{head}</summary><div class="wide"><table>{rows}</table></div></details>'


def _verdict(verdict: str) -> str:
    kind = escape(verdict.replace(" ", "-"))
    return f'<span class="verdict {kind}">{MARKS.get(verdict, "")} {escape(verdict)}</span>'

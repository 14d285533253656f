"""Generated parts of pages: what stands between two marker lines, written anew or compared."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def keep(about: str | None, mark: str, results: str, page: str, text_of: Callable[[Path], str]) -> int:
    """Replace the part ``mark`` of a page by the text of a file of results. With --check nothing is written, and the
    exit code says whether the page agrees."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / results)
    parser.add_argument("--page", type=Path, default=ROOT / page)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    before = args.page.read_text("utf-8")
    begin = f"<!-- {mark}: begin -->"
    end = f"<!-- {mark}: end -->"
    head, rest = before.split(begin)
    after = f"{head}{begin}\n{text_of(args.results)}\n{end}{rest.split(end)[1]}"
    if args.check:
        return int(before != after)
    args.page.write_text(after, "utf-8")
    return 0

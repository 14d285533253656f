"""Decision 0012, our layout beside other libraries: the files that it names are there, with what it says is in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "mssvm"
ROOTS = (SOURCES, SOURCES / "engines" / "native" / "cpp", ROOT)


def found(name: str, before: Path | None) -> Path | None:
    """The file or folder of this name; a file may be named after its folder (``optim/``: ``lbfgs.py``)."""
    roots = ROOTS if before is None else (*ROOTS, before, before.parent)
    return next((root / name for root in roots if (root / name).exists()), None)


def test_our_side_of_every_row_is_in_its_file() -> None:
    text = (ROOT / "docs" / "decisions" / "0012-beside-other-libraries.md").read_text("utf-8")
    n_files = 0
    n_names = 0
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) < 4:
            continue
        path = None
        for span in re.findall(r"`([^`]+)`", cells[2]):
            if re.search(r"/|\.(py|hpp)$", span):
                path = found(span, path)
                assert path is not None, f"{span} is gone"
                n_files += 1
            elif path is not None and path.is_file() and span.isidentifier():
                assert re.search(rf"\b{span}\b", path.read_text("utf-8")), f"{span} is not in {path.name}"
                n_names += 1
    assert n_files > 15 and n_names > 10

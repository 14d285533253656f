"""The pages of ``docs/``: every example runs and prints what it says, every link between pages leads somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WITH_TORCH = {"deep.md", "export.md", "transformers.md"}  # run by tests/with_torch and tests/with_hf


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in WITH_TORCH], ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_examples_of_pages_run(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([\w./-]*\.md)(#[\w-]+)?\)", page.read_text("utf-8")):
        path = (page.parent / target).resolve()
        assert path.is_file(), f"{page.name} links to {target}"
        headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
        anchors = {"#" + re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        assert not anchor or anchor in anchors, f"{page.name} links to {target}{anchor}"


def test_every_question_has_its_page() -> None:
    text = (DOCS / "questions.md").read_text("utf-8")
    rows = re.findall(r"^\| (?!question|---)(.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert len(rows) >= 20 and all("](" in answer for _, answer in rows)


def test_the_readme_is_short() -> None:
    assert len((DOCS.parent / "README.md").read_text("utf-8").splitlines()) < 150


def test_the_version_is_the_same_everywhere() -> None:
    files = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md")
    project, citation, changes = ((DOCS.parent / name).read_text("utf-8") for name in files)
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    cited = re.search(r"^version: (.+)\ndate-released: (.+)$", citation, re.MULTILINE)
    latest = re.search(r"^## (\d.+) \((.+)\)$", changes, re.MULTILINE)
    assert version and cited and latest
    assert cited.groups() == latest.groups() and version.group(1) == latest.group(1)

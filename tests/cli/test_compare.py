"""``mssvm compare`` and the scores behind it: numbers, and pages that are whole and safe."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cli.test_commands import run, write_chains
from mssvm.cli import main
from mssvm.data import weak_pictures
from mssvm.data.embedded import write_pictures
from mssvm.data.labels import LabelVocabulary
from mssvm.data.metrics import evaluate, is_bio, spans


def test_spans_against_worked_examples() -> None:
    assert spans(["B-NP", "I-NP", "O", "I-VP", "B-VP"]) == [(0, 2, "NP"), (3, 4, "VP"), (4, 5, "VP")]
    assert spans(["B-NP", "I-VP"]) == [(0, 1, "NP"), (1, 2, "VP")]
    assert is_bio(["O", "B-NP", "I-NP"]) and is_bio(["B", "I", "O"]) and not is_bio(["a", "b"]) and not is_bio([0, 1])
    space = LabelVocabulary(("B", "I", "O"))

    def f1(gold: list[object], said: list[str]) -> tuple[float, int]:
        shapes = [(len(gold),)]
        found = evaluate(space, space.encode([gold], shapes), space.encode([said], shapes).states)
        assert found.spans is not None
        return found.spans.f1, found.spans.support

    assert f1(["B", "I", "O", "B"], ["B", "I", "O", "B"]) == (1.0, 2)
    assert f1(["B", "I", "O", "B"], ["B", "O", "O", "B"]) == (0.5, 2)
    # What touches a missing label counts on neither side.
    assert f1([None, "I", "O", "B"], ["B", "I", "O", "B"]) == (1.0, 1)
    assert f1(["B", None, "O", "B"], ["B", "I", "O", "B"]) == (1.0, 1)


class Page(HTMLParser):
    """Tags of a page, addresses in it, and whether every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.addresses += [str(v) for k, v in attrs if k in ("src", "href", "action", "srcset", "data", "xlink:href")]
        if tag not in ("meta", "br", "img", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Pages of comparisons of chains with hostile labels, and of pictures."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = ("<script>alert(1)</script>", "B&\"'", "O")
    data = write_chains(folder / "<b>chains.jsonl", 24, 0, classes=hostile)
    pictures = write_pictures(folder / "pictures", weak_pictures(4, 4, 6, share=0.3))
    out = {}
    for name, arguments in (
        ("chains", [data, "--methods", "hcrf,crf", "--cv", "3", "--max-iter", "15"]),
        ("pictures", [pictures, "--methods", "crf", "--cv", "2", "--max-iter", "15", "--no-curves"]),
    ):
        assert main(["compare", *map(str, arguments), "--html", str(folder / f"{name}.html")]) == 0
        out[name] = (folder / f"{name}.html").read_text()
    return out


@pytest.mark.parametrize(("name", "drawings"), [("chains", 3), ("pictures", 2 + 4)])
def test_pages_are_whole_and_ask_for_nothing(pages: dict[str, str], name: str, drawings: int) -> None:
    page = Page(pages[name])
    assert page.open == [] and page.counts["table"] >= 2 and page.counts["svg"] == drawings
    assert page.counts["figure"] == (2 if name == "chains" else 6)
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(page.counts)
    assert all(address.startswith("#") for address in page.addresses)
    assert "url(" not in pages[name] and "@import" not in pages[name]
    assert re.search(r"https?://", pages[name]) is None


def test_text_of_users_is_escaped(pages: dict[str, str]) -> None:
    assert "<script>alert" not in pages["chains"] and "<b>chains" not in pages["chains"]
    assert "&lt;script&gt;alert" in pages["chains"] or "&lt;script&gt;al" in pages["chains"]


def test_compare_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_chains(tmp_path / "train.jsonl", 40, 0)
    code, out, _ = run(capsys, "compare", data, "--methods", "hcrf,crf", "--cv", 3, "--no-curves", "--json")
    found = json.loads(out)["methods"]
    assert code == 0 and list(found) == ["HCRF", "CRF"]
    assert found["HCRF"]["difference"]["mean"] == 0.0
    # Without hidden variables the two are one model.
    assert found["CRF"]["accuracy_by_fold"] == found["HCRF"]["accuracy_by_fold"]
    assert found["CRF"]["accuracy"]["mean"] == pytest.approx(np.mean(found["CRF"]["accuracy_by_fold"]))


def test_methods_without_hidden_variables_are_compared_beside_those_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_chains(tmp_path / "train.jsonl", 30, 0)
    options = ("--hidden", 2, "--cv", 2, "--max-iter", 5, "--no-curves", "--json")
    code, out, _ = run(capsys, "compare", data, "--methods", "hcrf,crf", *options)
    found = json.loads(out)["methods"]
    assert code == 0 and list(found) == ["HCRF", "CRF"]
    assert found["CRF"]["accuracy_by_fold"] != found["HCRF"]["accuracy_by_fold"]

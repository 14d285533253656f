"""The studio in a real browser: paint, see, undo, reload, save, kill and come back, for pictures and for text.

Run by ``make test-studio``, which needs Chromium and installs Playwright's driver; it brings no browser of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from studio.serving import two_colours

BROWSER = which("chromium") or which("chromium-browser") or which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
LEARNED = re.compile("^learned in")
SECONDS = 60_000.0  # milliseconds that the learner may take on a busy machine


class Command:
    """``mssvm studio`` as a user runs it."""

    def __init__(self, place: Path) -> None:
        command = [sys.executable, "-m", "mssvm", "studio", str(place), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found is not None
        self.address = found[0]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.fail("make test-studio needs Chromium; install it (chromium on Debian).")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """A page that may log no error."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield opened
    opened.close()
    # A killed studio ends the connections of its page (net::ERR_...).
    assert [error for error in errors if "net::ERR_" not in error] == []


@pytest.fixture
def pictures(tmp_path: Path) -> Iterator[Command]:
    command = Command(two_colours(tmp_path / "pictures"))
    yield command
    if command.process.poll() is None:
        command.kill()


def paint(page: Page, key: str, x: float) -> None:
    """A stroke of a class from top to bottom, at a share of the canvas's width."""
    page.keyboard.press(key)
    box = page.locator("#stage canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + x * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + x * box["width"], box["y"] + 0.7 * box["height"], steps=8)
    page.mouse.up()


def colour_at(page: Page, x: float, y: float) -> list[int]:
    """Red, green and blue on the canvas, at shares of its size."""
    found: list[int] = page.evaluate(
        """([x, y]) => {
          const canvas = document.querySelector("#stage canvas");
          const pixel = canvas.getContext("2d").getImageData(x * canvas.width, y * canvas.height, 1, 1).data;
          return [...pixel].slice(0, 3);
        }""",
        [x, y],
    )
    return found


def open_and_paint(page: Page, command: Command) -> None:
    page.goto(command.address)
    expect(page.locator("#item-name")).to_contain_text("two.png")
    paint(page, "1", 0.3)
    paint(page, "2", 0.7)
    expect(page.locator("#status")).to_have_text(LEARNED, timeout=SECONDS)
    page.wait_for_function("() => document.querySelector('#counts').textContent.startsWith('2 marks')")


def test_paint_see_undo_reload_and_save(page: Page, pictures: Command, tmp_path: Path) -> None:
    page.goto(pictures.address)
    expect(page.locator("#item-name")).to_contain_text("two.png")
    page.wait_for_timeout(500)
    before = colour_at(page, 0.3, 0.15)
    open_and_paint(page, pictures)
    page.wait_for_timeout(1000)
    after = colour_at(page, 0.3, 0.15)
    assert after != before, "the prediction lies over the picture, beside the strokes too"
    page.keyboard.press("p")
    page.wait_for_timeout(300)
    assert colour_at(page, 0.3, 0.15) == before
    page.keyboard.press("p")
    page.keyboard.press("z")
    expect(page.locator("#counts")).to_contain_text("1 mark,")
    page.keyboard.press("Z")
    expect(page.locator("#counts")).to_contain_text("2 marks")
    page.reload()
    expect(page.locator("#counts")).to_contain_text("2 marks")
    expect(page.locator("#status")).to_have_text(LEARNED, timeout=SECONDS)
    page.keyboard.press("s")
    expect(page.locator("#status")).to_contain_text("wrote 3 files")
    assert (tmp_path / "pictures" / "masks" / "two.png").is_file()


def test_a_killed_studio_comes_back_with_every_stroke(page: Page, pictures: Command, tmp_path: Path) -> None:
    open_and_paint(page, pictures)
    pictures.kill()
    again = Command(tmp_path / "pictures")
    try:
        page.goto(again.address)
        expect(page.locator("#counts")).to_contain_text("2 marks")
        expect(page.locator("#status")).to_have_text(LEARNED, timeout=SECONDS)
    finally:
        again.kill()


def test_two_tabs_and_a_suggestion(page: Page, browser: Any, pictures: Command) -> None:
    open_and_paint(page, pictures)
    other = browser.new_page()
    other.goto(pictures.address)
    expect(other.locator("#counts")).to_contain_text("2 marks")
    page.keyboard.press("z")
    expect(other.locator("#counts")).to_contain_text("1 mark,")
    page.keyboard.press("Z")
    expect(page.locator("#status")).to_have_text(LEARNED, timeout=SECONDS)
    page.click("#suggest")
    expect(page.locator("#status")).not_to_have_class(re.compile("error"))
    other.close()


def test_words_are_marked_by_mouse_and_keys(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Ann met Bob .\nBob saw Ann .\nThen Ann left .\n")
    command = Command(path)
    try:
        page.goto(command.address)
        expect(page.locator(".word")).to_have_count(4)
        page.keyboard.press("2")
        page.locator(".word").nth(0).click()
        page.locator(".word").nth(2).click()
        expect(page.locator(".word.given")).to_have_count(2)
        page.keyboard.press("a")
        expect(page.locator(".word.given")).to_have_count(4)
        page.keyboard.press("ArrowRight")
        expect(page.locator(".word").nth(0)).to_have_text("Bob")
        expect(page.locator(".word").nth(0)).to_have_attribute("data-tag", "B-span", timeout=SECONDS)
        page.keyboard.press("Enter")
        expect(page.locator(".word.given")).to_have_count(4)
        page.keyboard.press("s")
        expect(page.locator("#status")).to_contain_text("notes.labels")
        assert (tmp_path / "notes.labels.conll").is_file()
    finally:
        command.kill()


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Command]:
    path = tmp_path / "notes.txt"
    path.write_text("Ann met Bob .\nBob saw Ann .\nThen Ann left .\n")
    command = Command(path)
    yield command
    if command.process.poll() is None:
        command.kill()


def mark_names(page: Page) -> None:
    """Mark the names of the first sentence by mouse, and the rest of it as outside."""
    page.keyboard.press("2")
    page.locator(".word").nth(0).click()
    page.locator(".word").nth(2).click()
    expect(page.locator(".word.given")).to_have_count(2)
    page.keyboard.press("a")
    expect(page.locator(".word.given")).to_have_count(4)


def test_predictions_are_accepted_and_rejected_by_keys(page: Page, notes: Command, tmp_path: Path) -> None:
    page.goto(notes.address)
    expect(page.locator(".word")).to_have_count(4)
    mark_names(page)
    page.keyboard.press("ArrowRight")
    words = page.locator(".word")
    expect(words.nth(0)).to_have_text("Bob")
    expect(words.nth(0)).to_have_attribute("data-tag", "B-span", timeout=SECONDS)
    page.keyboard.press("j")
    expect(words.nth(0)).to_be_focused()
    expect(words.nth(0)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("y")
    expect(words.nth(0)).to_have_class(re.compile("given"))
    expect(words.nth(1)).to_be_focused()
    page.keyboard.press("j")
    expect(words.nth(2)).to_be_focused()
    expect(words.nth(2)).to_have_attribute("data-tag", "B-span", timeout=SECONDS)
    page.keyboard.press("x")
    expect(words.nth(3)).to_be_focused()
    expect(words.nth(2)).not_to_have_attribute("data-tag", "B-span", timeout=SECONDS)
    expect(page.locator("#counts")).to_contain_text("6 marks")
    page.reload()
    expect(page.locator("#counts")).to_contain_text("6 marks")
    notes.kill()
    again = Command(tmp_path / "notes.txt")
    try:
        page.goto(again.address)
        expect(page.locator("#counts")).to_contain_text("6 marks")
        page.keyboard.press("ArrowRight")
        expect(words.nth(0)).to_have_class(re.compile("given"))
        page.keyboard.press("z")
        expect(page.locator("#counts")).to_contain_text("5 marks")
    finally:
        again.kill()


def set_name(page: Page, name: str) -> None:
    page.fill("#annotator", name)
    page.keyboard.press("Enter")


def test_two_people_and_what_they_disagree_on(page: Page, browser: Any, notes: Command) -> None:
    page.goto(notes.address)
    expect(page.locator(".word")).to_have_count(4)
    set_name(page, "ann")
    mark_names(page)
    expect(page.locator("#people li")).to_have_count(1)
    expect(page.locator("#disagreement")).to_be_hidden()
    other = browser.new_context().new_page()
    other.goto(notes.address)
    expect(other.locator(".word.given")).to_have_count(4)
    set_name(other, "bob")
    other.keyboard.press("2")
    other.locator(".word").nth(1).click()
    for tab in (page, other):
        expect(tab.locator("#people li")).to_have_count(2)
        expect(tab.locator(".word.disputed")).to_have_text(["met"])
        expect(tab.locator(".votes th[scope=row]").nth(0)).to_have_text("ann")
        expect(tab.locator(".votes td").nth(0)).to_have_text("O")
        expect(tab.locator(".votes td").nth(1)).to_have_text("B-span")
    other.keyboard.press("ArrowRight")
    expect(other.locator(".word").nth(0)).to_have_text("Bob")
    other.keyboard.press("d")
    expect(other.locator(".word").nth(0)).to_have_text("Ann")
    expect(page.locator("#people")).to_contain_text("right", timeout=SECONDS)
    other.reload()
    expect(other.locator("#annotator")).to_have_value("bob")
    expect(other.locator(".votes td")).to_have_count(3, timeout=SECONDS)
    other.keyboard.press("z")
    expect(page.locator(".votes td")).to_have_count(0)
    expect(page.locator("#people li")).to_have_count(1)
    other.close()


def test_disagreements_are_outlined_on_a_picture(page: Page, pictures: Command) -> None:
    page.goto(pictures.address)
    expect(page.locator("#item-name")).to_contain_text("two.png")
    set_name(page, "ann")
    paint(page, "1", 0.3)
    paint(page, "2", 0.7)
    set_name(page, "bob")
    paint(page, "1", 0.7)
    expect(page.locator("#disagreement")).to_contain_text("1 item")
    expect(page.locator("#status")).to_have_text(LEARNED, timeout=SECONDS)
    page.wait_for_timeout(500)
    outlined = "() => window.countOutline()"
    page.evaluate(
        """() => {
          window.countOutline = () => {
            const canvas = document.querySelector("#stage canvas");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4) {
              if (data[i] === 214 && data[i + 1] === 0 && data[i + 2] === 150) count += 1;
            }
            return count;
          };
        }"""
    )
    assert page.evaluate(outlined) > 50
    page.keyboard.press("g")
    page.wait_for_timeout(300)
    assert page.evaluate(outlined) == 0


def test_people_beside_each_other_on_a_series(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "series.jsonl"
    path.write_text('{"x": [[0], [0.1], [3], [3.1], [0], [0.2]]}\n{"x": [[0], [3], [3.2]]}\n')
    command = Command(path)
    try:
        page.goto(command.address)
        canvas = page.locator(".series canvas")
        expect(canvas).to_be_visible()

        def drag(first: float, last: float) -> None:
            box = canvas.bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + first * box["width"], box["y"] + 40)
            page.mouse.down()
            page.mouse.move(box["x"] + last * box["width"], box["y"] + 40, steps=4)
            page.mouse.up()

        set_name(page, "ann")
        page.keyboard.press("1")
        drag(0.05, 0.3)
        page.keyboard.press("2")
        drag(0.4, 0.6)
        expect(page.locator("#counts")).to_contain_text("2 marks")
        set_name(page, "bob")
        drag(0.2, 0.3)
        expect(page.locator("#disagreement")).to_contain_text("1 item")
        expect(page.locator("#status")).to_have_text(LEARNED, timeout=SECONDS)
        page.keyboard.press("j")
        page.keyboard.press("y")
        expect(page.locator("#counts")).to_contain_text("4 marks")
    finally:
        command.kill()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_at_any_width(browser: Any, pictures: Command, width: int, scheme: str) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    opened.goto(pictures.address)
    expect(opened.locator("#item-name")).to_contain_text("two.png")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for button in opened.locator("button:visible").all():
        assert button.evaluate("node => (node.textContent + (node.ariaLabel ?? '')).trim() !== ''")
    opened.close()

"""The built site (``make docs``) in a real browser: pages load without an error, and nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

SITE = Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"
PAGES = sorted(path for path in SITE.rglob("*.html"))
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--enable-logging=stderr"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--log-level=0"]
ELSEWHERE = "http://127.0.0.1:9/picture.png"

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


def visit(page: Path, folder: Path, width: int = 1280) -> tuple[str, list[str], set[str]]:
    """The page's elements, what its console says, and the addresses it asks for that are not files."""
    log = folder / "net.json"
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    command += ["--dump-dom", f"--log-net-log={log}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = re.findall(r"CONSOLE[^\n]*", done.stderr)
    params = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    urls = [p["url"] for p in params if str(p.get("initiator", "")).startswith(("file:", "null")) and "url" in p]
    return done.stdout, said, {url for url in urls if not url.startswith(("file:", "data:"))}


class Links(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        elif tag in ("link", "script", "img") and given.get("rel") not in ("next", "prev", "index", "search"):
            self.loads += [given[name] for name in ("href", "src") if name in given]


@cache
def links_of(page: Path) -> Links:
    return Links(page.read_text("utf-8"))


def test_there_are_pages() -> None:
    assert len(PAGES) > 25, "run make docs first"


@needs_browser
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_page_loads_in_a_browser(page: Path, tmp_path: Path) -> None:
    dom, said, asked = visit(page, tmp_path)
    assert not said and not asked
    assert 'role="main"' in dom and "</html>" in dom


@needs_browser
def test_a_request_or_an_error_would_have_been_noticed(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(f'<html><body><h1>x</h1><img src="{ELSEWHERE}"><script>nothing()</script></body></html>', "utf-8")
    _, said, asked = visit(page, tmp_path)
    assert asked == {ELSEWHERE} and any("nothing is not defined" in line for line in said)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_of_the_page_resolve_and_it_loads_only_its_own_files(page: Path) -> None:
    links = links_of(page)
    assert not [url for url in links.loads if re.match(r"(https?:)?//", url)]
    for url in links.loads + [url for url in links.leads if not re.match(r"[a-z]+:", url)]:
        target, anchor = urldefrag(url)
        path = (page.parent / unquote(target.split("?")[0])).resolve() if target else page
        assert path.is_file(), f"{page.name} refers to {url}"
        if anchor and path.suffix == ".html":
            assert unquote(anchor) in links_of(path).anchors, f"{page.name} refers to {url}"


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])  # no headless window is narrower
def test_no_page_is_wider_than_the_window(width: int, tmp_path: Path) -> None:
    probe = "<script>document.title = document.documentElement.scrollWidth</script></body>"
    for page in PAGES:
        copy = page.with_name(f"probe-{width}-{page.name}")
        try:
            copy.write_text(page.read_text("utf-8").replace("</body>", probe), "utf-8")
            dom = visit(copy, tmp_path, width)[0]
        finally:
            copy.unlink()
        found = re.search(r"<title>(\d+)</title>", dom)
        assert found is not None and int(found.group(1)) <= width, page.name

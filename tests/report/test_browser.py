"""The report in a real browser: everything is there, and no request leaves the page."""

import json
import re
import shutil
import subprocess

import pytest

from report.test_report import whole

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

ELSEWHERE = "http://127.0.0.1:9/picture.png"

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


def browse(folder, html, *arguments):
    path = folder / "report.html"
    path.write_text(html, "utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def visit(folder, html):
    """The page's elements, and every address that it, not the browser for itself, asked for."""
    log = folder / "net.json"
    dom = browse(folder, html, "--dump-dom", f"--log-net-log={log}")
    params = [e.get("params", {}) for e in json.loads(log.read_text())["events"]]
    asked = {p["url"] for p in params if "url" in p and str(p.get("initiator", "")).startswith(("file:", "null"))}
    return dom, asked - {(folder / "report.html").as_uri()}


@needs_browser
def test_every_table_and_figure_is_shown_and_no_request_leaves_the_page(tmp_path):
    html = whole()
    dom, requested = visit(tmp_path, html)
    for tag in ("svg", "table", "figure", "section", "details"):
        assert len(re.findall(f"<{tag}[ >]", dom)) == len(re.findall(f"<{tag}[ >]", html)) > 0
    assert requested == set()


@needs_browser
def test_a_request_would_have_been_noticed(tmp_path):
    html = re.sub(r"<meta http-equiv[^>]*>", "", whole()).replace("</body>", f'<img src="{ELSEWHERE}"></body>')
    assert visit(tmp_path, html)[1] == {ELSEWHERE}


@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_nothing_is_wider_than_the_window(tmp_path, width):
    probe = "<script>document.title=String(document.documentElement.scrollWidth)</script>"
    # Only this probe needs a script: the page itself forbids them.
    html = re.sub(r"<meta http-equiv[^>]*>", "", whole()).replace("</body>", probe + "</body>")
    dom = browse(tmp_path, html, "--dump-dom", f"--window-size={width},900")
    title = re.search(r"<title>(\d+)</title>", dom)
    assert title is not None and int(title.group(1)) <= width

"""The page of ``mssvm compare`` in a real browser: it is all there, asks for nothing and logs nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mssvm.cli import main
from mssvm.data import weak_pictures
from mssvm.data.embedded import write_chunking, write_pictures
from report.test_browser import BROWSER, FLAGS, browse, needs_browser, visit


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    pictures = write_pictures(folder / "pictures", weak_pictures(4, 4, 6, share=0.3))
    arguments = ["compare", str(pictures), "--methods", "crf,hcrf", "--cv", "2", "--max-iter", "10"]
    assert main([*arguments, "--html", str(folder / "r.html")]) == 0
    return (folder / "r.html").read_text("utf-8")


@needs_browser
def test_tables_and_figures_are_there_and_nothing_is_requested(html: str, tmp_path: Path) -> None:
    dom, requested = visit(tmp_path, html)
    for tag in ("table", "svg", "figure", "section"):
        assert len(re.findall(f"<{tag}[ >]", dom)) == len(re.findall(f"<{tag}[ >]", html)) > 1
    assert requested == set()


def console(html: str, folder: Path) -> list[str]:
    """What the page logs, errors of blocked content among it."""
    path = folder / "page.html"
    path.write_text(html, "utf-8")
    flags = [*FLAGS, "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [str(BROWSER), *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@needs_browser
def test_no_error_is_logged(html: str, tmp_path: Path) -> None:
    assert console(html, tmp_path) == []


@needs_browser
def test_an_error_would_have_been_noticed(html: str, tmp_path: Path) -> None:
    assert console(html.replace("</body>", "<script>nothing()</script></body>"), tmp_path)


@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_the_page_of_a_model_fits_and_asks_for_nothing(width: int, tmp_path: Path) -> None:
    train, _ = write_chunking(tmp_path)
    model, page = tmp_path / "m.st", tmp_path / "m.html"
    assert main(["fit", str(train), "-o", str(model), "--method", "crf", "--max-iter", "5"]) == 0
    assert main(["inspect", str(model), "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    assert visit(tmp_path, text)[1] == set() and console(text, tmp_path) == []
    probe = "<script>document.title=String(document.documentElement.scrollWidth)</script></body>"
    wide = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", probe)
    found = re.search(r"<title>(\d+)</title>", browse(tmp_path, wide, "--dump-dom", f"--window-size={width},900"))
    assert found is not None and int(found.group(1)) <= width

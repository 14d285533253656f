"""The scripts of the gallery run, draw their pictures, and find what the page says."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import matplotlib
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "gallery"
sys.path.insert(0, str(FOLDER))
WITH_TORCH = {"deep_chain"}
SAID = {
    "annotators": lambda f: f["aggregated"] > 0.92 > 0.75 > f["majority"],
    "tagging": lambda f: f["f1"] > 0.95 and abs(f["f1_few"] - f["alone_few"]) < 0.1,
    "gestures": lambda f: f["right"] > 0.95 > f["right_by_means"],
    "scribbles": lambda f: f["right"] > 0.95 > f["right_alone"],
    "multilabel": lambda f: f["tree"] > f["none"],
    "marginal_map": lambda f: f["joint MAP"] > 0.1 and f["least"] > -1e-9,
    "learning_curves": lambda f: min(f["HCRF"], f["MSSVM"], f["LSSVM"]) > f["CRF on labelled runs"],
    "helices": lambda f: f["segments"] > 0.8 > 0.5 > f["chain"],
    "dials": lambda f: f["highest"] - f["lowest"] < 0.05,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_script_draws_its_picture(name: str, tmp_path: Path) -> None:
    matplotlib.use("Agg")
    found = import_module(name).main(tmp_path)
    matplotlib.pyplot.close("all")
    assert SAID[name](found), found
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.png"]


def test_the_page_shows_every_script_and_its_picture() -> None:
    page = (FOLDER.parent / "gallery.md").read_text("utf-8")
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == set(SAID) | WITH_TORCH == {path.stem for path in FOLDER.glob("*.png")}
    assert all(f"gallery/{name}.py" in page and f"gallery/{name}.png" in page for name in names)

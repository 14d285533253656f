"""Image folders through the command line: masks in the training's colours, how unsure they are, which edges."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mssvm as ms
from mssvm.cli import main
from mssvm.cli.masks import colours_of
from mssvm.data import read, weak_pictures
from mssvm.data.embedded import landscape, write_pictures
from mssvm.data.readers import png
from mssvm.estimators.plots import entropy
from mssvm.experiments import demo
from mssvm.report.pictures import colour_picture

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import bench_scribbles

PALETTE = [[10, 20, 30], [200, 0, 0], [0, 200, 0], [0, 0, 200]]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures with palette masks, and a model of them."""
    folder = tmp_path_factory.mktemp("pictures")
    pictures = weak_pictures(3, 6, 8, share=0.4, noise=20.0)
    write_pictures(folder / "data", pictures)
    for k, picture in enumerate(pictures):
        (folder / "data" / "masks" / f"{k:03d}.png").write_bytes(png.encode(picture.given, PALETTE))
    assert main(["fit", str(folder / "data"), "-o", str(folder / "m.st"), "--method", "crf"]) == 0
    return folder


def test_masks_are_indexed_pictures_in_the_colours_of_the_training(folder, tmp_path, capsys) -> None:
    out = tmp_path / "found"
    code, text, _ = run(capsys, "predict", folder / "m.st", folder / "data", "-o", out, "--uncertainty")
    assert code == 0 and f"Wrote 3 masks to {out / 'masks'}" in text
    model = ms.load(folder / "m.st")
    data = read(folder / "data")
    marginals = model.predict_marginals(data.X)
    for k, y in enumerate(model.predict(data.X)):
        picture = Image.open(out / "masks" / f"{k:03d}.png")
        assert picture.mode == "P" and np.reshape(picture.getpalette()[:12], (4, 3)).tolist() == PALETTE
        assert np.array_equal(np.array(picture), y)
        unsure = np.array(Image.open(out / "uncertainty" / f"{k:03d}.png"))
        assert np.array_equal(unsure, np.round(255 * entropy(marginals[k])))
    (tmp_path / "again" / "images").mkdir(parents=True)
    for name in ("images", "masks"):
        (tmp_path / "again" / name).mkdir(exist_ok=True)
    for k in range(3):
        for name, home in (("images", folder / "data"), ("masks", out)):
            (tmp_path / "again" / name / f"{k:03d}.png").write_bytes((home / name / f"{k:03d}.png").read_bytes())
    again = read(tmp_path / "again")
    assert all(np.array_equal(a, b) for a, b in zip(again.labels, model.predict(data.X), strict=True))


def test_without_uncertainty_there_are_masks_alone(folder, tmp_path, capsys) -> None:
    assert run(capsys, "predict", folder / "m.st", folder / "data", "-o", tmp_path / "found")[0] == 0
    assert [p.name for p in (tmp_path / "found").iterdir()] == ["masks"]
    lines = tmp_path / "found.jsonl"
    assert run(capsys, "predict", folder / "m.st", folder / "data", "-o", lines)[0] == 0
    assert len(lines.read_text().splitlines()) == 3


def test_what_a_folder_cannot_hold_is_refused(folder, tmp_path, capsys) -> None:
    for more, words in (
        (("-o", tmp_path / "found", "--marginals"), "need JSON lines"),
        (("-o", tmp_path / "p.jsonl", "--uncertainty"), "needs an image folder, and a folder for -o"),
        (("--uncertainty",), "needs an image folder"),
    ):
        code, _, err = run(capsys, "predict", folder / "m.st", folder / "data", *more)
        assert code == 2 and words in err and len(err.splitlines()) == 1
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "predict", folder / "m.st", folder / "data", "-o", tmp_path / "file" / "found")
    assert code == 2 and "cannot be made" in err


def test_masks_of_the_data_are_not_overwritten(folder, tmp_path, capsys) -> None:
    (tmp_path / "link").symlink_to(folder / "data")
    before = [path.read_bytes() for path in sorted((folder / "data" / "masks").iterdir())]
    for out in (folder / "data", tmp_path / "link"):
        code, _, err = run(capsys, "predict", folder / "m.st", folder / "data", "-o", out)
        assert code == 2 and "it is an input of this command" in err and len(err.splitlines()) == 1
    assert [path.read_bytes() for path in sorted((folder / "data" / "masks").iterdir())] == before


def test_colours_of_classes() -> None:
    indices, colours = colours_of(["#0000ff", "#ff0000"], None)
    assert indices.tolist() == [0, 1] and colours.tolist() == [[0, 0, 255], [255, 0, 0]]
    indices, colours = colours_of([0, 3, 200], PALETTE)
    assert indices.tolist() == [0, 3, 200] and colours[:4].tolist() == PALETTE and len(colours) == 201
    assert colours_of(["cat", "dog"], None)[0].tolist() == [0, 1]
    assert len(np.unique(colours_of(list(range(8)), None)[1], axis=0)) == 8


def test_entropy_is_a_share_of_the_largest_possible() -> None:
    p = np.array([[[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]]])
    assert entropy(p) == pytest.approx(np.array([[0.0, 1.0, np.log(2) / np.log(3)]]))


def test_a_palette_is_read_of_indexed_pictures_only() -> None:
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert png.palette_of(png.encode(grey), "p.png") is None
    assert png.palette_of(png.encode(grey % 4, PALETTE), "p.png") == PALETTE
    assert np.array_equal(png.decode(png.encode(grey % 4, PALETTE), "p.png")[..., 0], grey % 4)


def test_edges_follow_the_data_unless_named(folder, tmp_path, capsys) -> None:
    assert ms.load(folder / "m.st").structure_.edges == "contrast"
    data = folder / "data"
    model = tmp_path / "m.st"
    assert run(capsys, "fit", data, "-o", model, "--edges", "free", "--max-iter", 1)[0] == 0
    assert ms.load(model).structure_.edges == "free"
    grids = tmp_path / "g.jsonl"
    grids.write_text('{"x": [[[0.1], [0.9]], [[0.2], [0.8]]], "y": [[0, 1], [0, null]]}\n')
    assert run(capsys, "fit", grids, "-o", model, "--max-iter", 1)[0] == 0
    assert ms.load(model).structure_.edges == "free"
    chains = tmp_path / "c.jsonl"
    chains.write_text('{"x": [[0.1], [0.9]], "y": [0, 1]}\n')
    code, _, err = run(capsys, "fit", chains, "-o", model, "--edges", "contrast")
    assert code == 2 and "--edges is for grids" in err


@pytest.mark.slow
def test_scribbled_discs_are_found_from_defaults(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(bench_scribbles, "SEEDS", range(2))
    bench_scribbles.write(tmp_path / "data")
    assert run(capsys, "fit", tmp_path / "data", "-o", tmp_path / "m.st")[0] == 0
    assert run(capsys, "predict", tmp_path / "m.st", tmp_path / "data", "-o", tmp_path / "found")[0] == 0
    for seed in range(2):
        _, given, truth = bench_scribbles.picture(seed)
        found = np.array(Image.open(tmp_path / "found" / "masks" / f"{seed}.png"))
        assert bench_scribbles.overlap(found, truth, given) >= 0.85


def test_the_demonstration_paints_a_landscape(tmp_path, capsys, monkeypatch) -> None:
    scene = landscape(12, 18, share=0.3, seed=3)
    assert np.array_equal(scene.pixels, landscape(12, 18, share=0.3, seed=3).pixels)
    assert np.unique(scene.truth).tolist() == [0, 1, 2, 3]
    assert np.all((scene.given == scene.truth) | (scene.given == 255)) and (scene.given != 255).mean() >= 0.3
    monkeypatch.setattr(demo, "landscape", lambda seed: scene)
    files = demo.write_files(tmp_path)
    commands = [arguments for _, arguments in demo.commands(files, tmp_path) if str(files.landscape) in arguments]
    assert [arguments[0] for arguments in commands] == ["fit", "predict"]
    assert all(run(capsys, *arguments)[0] == 0 for arguments in commands)
    figure, text = demo.painted(tmp_path, 3).items
    titles = [re.search(r"<title>(.*?)</title>", drawing)[1] for drawing in figure.drawings]
    assert titles == ["picture", "labels given", "predicted", "uncertainty"]
    found = np.array(Image.open(tmp_path / "painted" / "masks" / "000.png"))
    right = (found == scene.truth)[scene.given == 255].mean()
    assert f"{right:.1%} came out right" in text.text and right > 0.7


def test_colours_are_drawn_as_rectangles_of_one_colour() -> None:
    pixels = np.zeros((2, 4, 3), dtype=np.uint8)
    pixels[0, 2:] = 255, 0, 0
    drawing = colour_picture("two", pixels)
    assert drawing.count("<rect") == 3 and drawing.count('fill="#ff0000"') == 1

"""Scribbled discs: six pictures of 64 x 64, each a noisy disc of which 5% of the pixels were labelled by thin strokes.

Picture k is made with seed k: a disc of value 1 on ground of value 0, noise of standard deviation 0.5 on every pixel,
in grey (-1.5 is black, 2.5 white). Strokes are random walks one pixel wide that keep their direction for a while and
stay in their class; half of the labels lie in the disc.

Fits and predicts through the command line, with its defaults and with other edges, and says how well disc and
prediction overlap on the pixels without a label. With --straight all strokes are horizontal; with --raw a model sees
the pixel alone instead of the features of an image folder (from Python then).

Run: python benchmarks/bench_scribbles.py --folder FOLDER    keeps images/, masks/ (255 is missing), truth/ and found/
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import common_data
import numpy as np
from rich.console import Console

import mssvm as ms
from mssvm.cli import main as command
from mssvm.data import read
from mssvm.data.readers import png

SIDE = 64
NOISE = 0.5
SHARE = 0.05
SEEDS = range(6)
MISSING = 255


def picture(seed: int, along: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grey values, the labels given (MISSING elsewhere) and all labels, as bytes; ``along`` has horizontal strokes."""
    rng = np.random.default_rng(seed)
    radius = rng.uniform(0.2, 0.32) * SIDE
    centre = rng.uniform(radius + 3, SIDE - radius - 3, 2)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    truth = ((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2).astype(np.uint8)
    values = truth + rng.normal(0, NOISE, truth.shape)
    given = np.full(truth.shape, MISSING, dtype=np.uint8)
    for label in (0, 1):
        while (given == label).mean() < SHARE / 2:
            (straight if along else stroke)(given, truth, label, rng)
    return np.clip((values + 1.5) / 4 * 255, 0, 255).astype(np.uint8), given, truth


def stroke(given: np.ndarray, truth: np.ndarray, label: int, rng: np.random.Generator) -> None:
    """One stroke of up to 20 pixels within the class, from a random pixel of it."""
    at = rng.choice(np.argwhere(truth == label)).astype(float)
    angle = rng.uniform(0, 2 * np.pi)
    for _ in range(20):
        i, j = np.round(at).astype(int)
        inside = 0 <= i < SIDE and 0 <= j < SIDE and truth[i, j] == label
        if not inside or (given == label).mean() >= SHARE / 2:
            return
        given[i, j] = label
        angle += rng.normal(0, 0.3)
        at += np.array([np.sin(angle), np.cos(angle)])


def write(folder: Path, along: bool = False) -> None:
    """The image folder, with the truth beside it."""
    for seed in SEEDS:
        for name, pixels in zip(("images", "masks", "truth"), picture(seed, along), strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{seed}.png").write_bytes(png.encode(pixels))


def overlap(found: np.ndarray, truth: np.ndarray, given: np.ndarray) -> float:
    """Intersection over union of the disc, on the pixels without a label."""
    found = found == 1
    truth = truth == 1
    rest = given == MISSING
    return float((found & truth & rest).sum() / ((found | truth) & rest).sum())


def straight(given: np.ndarray, truth: np.ndarray, label: int, rng: np.random.Generator) -> None:
    """The same as ``stroke``, to the right."""
    i, j = rng.choice(np.argwhere(truth == label))
    for at in range(j, min(j + 20, SIDE)):
        if truth[i, at] != label or (given == label).mean() >= SHARE / 2:
            return
        given[i, at] = label


def by_command(folder: Path, method: str, edges: str | None) -> list[np.ndarray]:
    """Masks of all pictures as ``mssvm fit`` and ``mssvm predict`` write them."""
    model = str(folder / "model.safetensors")
    out = folder / "found"
    chosen = [] if edges is None else ["--edges", edges]
    for line in (
        ["fit", str(folder), "-o", model, "--method", method, *chosen],
        ["predict", model, str(folder), "-o", str(out), "--uncertainty"],
    ):
        if command(line):
            raise SystemExit(f"mssvm {' '.join(line)} failed")
    return [png.decode((out / "masks" / f"{seed}.png").read_bytes(), "mask")[..., 0] for seed in SEEDS]


def by_pixel(folder: Path, method: str, edges: str | None) -> list[np.ndarray]:
    """The same from the pixels themselves, without the means around them."""
    data = read(folder)
    X = [x[..., :1] for x in data.X]
    model = getattr(ms, method.upper())(ms.Grid(edges=edges or "contrast"), random_state=0)
    return list(model.fit(X, data.labels).predict(X))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--straight", action="store_true")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--methods", nargs="*", default=["mssvm", "crf"])
    parser.add_argument("--edges", nargs="*", default=[None, "associative", "free"])
    args = parser.parse_args()
    name = "scribbles" + "_straight" * args.straight + "_raw" * args.raw
    rows = []
    console = Console()
    with tempfile.TemporaryDirectory() as place:
        folder = args.folder or Path(place)
        write(folder, args.straight)
        for method in args.methods:
            for edges in args.edges:
                with common_data.Clock() as clock:
                    found = (by_pixel if args.raw else by_command)(folder, method, edges)
                pictures = [picture(seed, args.straight) for seed in SEEDS]
                each = [overlap(mask, truth, given) for mask, (_, given, truth) in zip(found, pictures, strict=True)]
                rows.append({"method": method, "edges": edges or "default", "overlap": each, "seconds": clock.cpu})
                console.print(rows[-1])
    common_data.write(name, {"rows": rows})


if __name__ == "__main__":
    main()

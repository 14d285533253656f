"""The picture at the head of the README: a partly labelled sentence and a scribbled picture, before and after.

python tools/front_picture.py [docs/front.png]
"""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import mssvm as ms
from mssvm.data.embedded import MISSING, chunking, landscape

COLOURS = ["#2b4c7e", "#7fb069", "#e6aa68", "#ca3c25"]
GREY = "#d9d9d9"


def sentence(axes: plt.Axes) -> None:
    """Half of the tags are missing in training; those of one of the sentences are filled in."""
    data = chunking("train")
    model = ms.HCRF(ms.Chain(), random_state=0).fit(data.X, data.labels)
    b = next(b for b, tags in enumerate(data.labels) if len(tags) == 9 and 3 <= tags.count(None) <= 5)
    words = [next(name[2:] for name in site if name.startswith("w=")) for site in data.X[b]]
    rows = [("given", data.labels[b]), ("found", [str(t) for t in model.predict(data.X[b : b + 1])[0]])]
    for y, (name, tags) in enumerate(rows):
        axes.text(-0.6, 1 - y, name, ha="right", va="center", fontsize=9, color="#555555")
        for i, tag in enumerate(tags):
            kind = "O" if tag is None else tag.split("-")[-1]
            shade = GREY if tag is None else COLOURS[colour_of(kind)]
            axes.add_patch(plt.Rectangle((i - 0.45, 0.68 - y), 0.9, 0.62, color=shade, lw=0))
            axes.text(
                i,
                1 - y,
                "?" if tag is None else tag,
                ha="center",
                va="center",
                fontsize=8,
                color="#555555" if tag is None else "white",
            )
    for i, word in enumerate(words):
        axes.text(i, 1.75, word, ha="center", va="center", fontsize=9)
    axes.set_xlim(-1.6, len(words) - 0.4)
    axes.set_ylim(-0.6, 2.1)
    axes.axis("off")


def colour_of(kind: str) -> int:
    return {"NP": 0, "VP": 1, "PP": 2}.get(kind, 3)


def picture(axes: list[plt.Axes]) -> None:
    scene = landscape(seed=0)
    x = scene.pixels / 255.0
    given = np.where(scene.given == MISSING, None, scene.given.astype(object))
    model = ms.MSSVM(ms.Grid(edges="contrast"), random_state=0).fit([x], [given])
    found = np.asarray(model.predict([x])[0])
    classes = {c: k for k, c in enumerate(model.classes_.tolist())}
    strokes = np.array([[np.nan if v is None else classes[v] for v in row] for row in given])
    painted = np.vectorize(classes.get)(found)
    colours = ListedColormap(COLOURS[: len(classes)])
    axes[0].imshow(scene.pixels)
    axes[1].imshow(np.full((*strokes.shape, 3), 0.93))
    axes[1].imshow(strokes, cmap=colours, vmin=0, vmax=len(classes) - 1, interpolation="nearest")
    axes[2].imshow(painted, cmap=colours, vmin=0, vmax=len(classes) - 1)
    for ax, name in zip(axes, ("picture", "strokes given", "labels found"), strict=True):
        ax.set_title(name, fontsize=9, color="#555555")
        ax.set_xticks([])
        ax.set_yticks([])


def main(path: str = "docs/front.png") -> None:
    figure = plt.figure(figsize=(9.0, 3.6), dpi=110)
    grid = figure.add_gridspec(2, 3, height_ratios=[1, 1.5], hspace=0.2, wspace=0.06)
    sentence(figure.add_subplot(grid[0, :]))
    picture([figure.add_subplot(grid[1, k]) for k in range(3)])
    figure.savefig(path, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A picture from a few strokes of labels."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms


def main(folder: Path) -> dict[str, float]:
    pictures = ms.data.weak_pictures(n=3, height=30, width=45, share=0.05, noise=40.0, seed=1)
    X = [picture.pixels / 255.0 for picture in pictures]
    y = [np.where(picture.given > 2, None, picture.given.astype(object)) for picture in pictures]
    truth = [picture.truth for picture in pictures]
    model = ms.MSSVM(ms.Grid(edges="contrast"), random_state=0).fit(X, y)
    alone = ms.LatentClassifier(hidden=1)  # every pixel by its own colour
    seen = [np.array(labels != None) for labels in y]  # noqa: E711 (site by site)
    alone.fit(
        np.concatenate([x[s] for x, s in zip(X, seen, strict=True)]),
        np.concatenate([labels[s] for labels, s in zip(y, seen, strict=True)]).astype(int),
    )
    found = {"right": model.score(X, truth), "labelled": float(np.mean([s.mean() for s in seen]))}
    pixels = np.concatenate([x.reshape(-1, 3) for x in X])
    found["right_alone"] = float(alone.score(pixels, np.concatenate(truth, None)))
    figure, panels = plt.subplots(1, 4, figsize=(9, 2.3), layout="constrained")
    model.plot_image(X[0], y[0], axes=panels)
    figure.suptitle(
        f"{found['labelled']:.0%} of the pixels labelled: {found['right']:.1%} right, "
        f"{found['right_alone']:.1%} pixel by pixel",
        fontsize=9,
    )
    figure.savefig(folder / "scribbles.png", dpi=90)
    return found


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

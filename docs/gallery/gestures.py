"""Gestures of a hand: one label a sequence, explained by hidden states that nobody labels."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

KINDS = ("circle", "zigzag", "square")


def gesture(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Points (T, 2) of a stroke of any length and speed, begun anywhere."""
    t = np.sort(rng.random(rng.integers(25, 45)))
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) * 2.0 - 1.0
    if kind == "circle":
        points = np.stack([np.cos(2 * np.pi * t), np.sin(2 * np.pi * t)], axis=1)
    elif kind == "zigzag":
        points = np.stack([2 * t - 1, 2 * np.abs((4 * t) % 2 - 1) - 1], axis=1)
    else:
        points = np.stack([np.interp(4 * t, range(5), corners[:, k]) for k in (0, 1)], axis=1)
    return points * rng.uniform(0.5, 1.5, size=2) + 0.03 * rng.normal(size=points.shape)


def features(points: np.ndarray) -> np.ndarray:
    """Where the hand moves, site by site: the cosine and sine of the direction, and of twice the angle."""
    angle = np.arctan2(*np.gradient(points, axis=0).T[::-1])
    return np.stack([np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)], axis=1)


def main(folder: Path) -> dict[str, float]:
    rng = np.random.default_rng(0)
    y = [KINDS[k] for k in rng.integers(3, size=120)]
    strokes = [gesture(kind, rng) for kind in y]
    X = [features(points) for points in strokes]
    model = ms.HCRF(ms.SequenceLabel(hidden=4), random_state=0).fit(X[:60], y[:60])
    plain = ms.LatentClassifier(hidden=1).fit(np.stack([x.mean(axis=0) for x in X[:60]]), y[:60])
    found = {"right": model.score(X[60:], y[60:])}
    found["right_by_means"] = float(plain.score(np.stack([x.mean(axis=0) for x in X[60:]]), y[60:]))
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    for ax, kind in zip(panels, KINDS, strict=True):
        b = 60 + y[60:].index(kind)
        states = model.predict_hidden(X[b : b + 1])[0]
        ax.plot(*strokes[b].T, color="#d9d9d9", zorder=1)
        ax.scatter(*strokes[b].T, c=states, cmap="tab10", vmin=0, vmax=9, s=18)
        ax.set(title=f"{kind}: found {model.predict(X[b : b + 1])[0]}", xticks=[], yticks=[], aspect="equal")
    title = f"hidden states along the stroke; {found['right']:.0%} right, {found['right_by_means']:.0%} by means"
    figure.suptitle(title, fontsize=9)
    figure.savefig(folder / "gestures.png", dpi=90)
    return found


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

"""Several labels of one row, most of them missing: labels that are linked fill each other in."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

SHARES, DRAWS = (0.0, 0.3, 0.6, 0.8, 0.9), 4


def sample(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Six labels, each mostly the one before it; features see every label through noise."""
    y = np.zeros((n, 6))
    y[:, 0] = rng.random(n) < 0.5
    for k in range(1, 6):
        y[:, k] = np.where(rng.random(n) < 0.9, y[:, k - 1], 1 - y[:, k - 1])
    return (2 * y - 1) @ rng.normal(size=(6, 6)) * 0.3 + rng.normal(size=(n, 6)), y


def main(folder: Path) -> dict[str, float]:
    rng = np.random.default_rng(0)
    right = {"tree": np.zeros(len(SHARES)), "none": np.zeros(len(SHARES))}
    for _ in range(DRAWS):
        X, y = sample(450, rng)
        hide = rng.random((150, 6))
        for k, share in enumerate(SHARES):
            given = np.where(hide < share, np.nan, y[:150])
            for graph, scores in right.items():
                model = ms.HCRF(ms.MultiLabel(graph), random_state=0).fit(X[:150], given)
                scores[k] += model.score(X[150:], y[150:]) / DRAWS
    figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    for scores, name in zip(right.values(), ("linked by a tree", "one classifier each"), strict=True):
        ax.plot(SHARES, scores, "o-", label=name)
    ax.set(xlabel="share of labels missing in training", ylabel="labels right on test rows")
    ax.legend(frameon=False)
    figure.savefig(folder / "multilabel.png", dpi=90)
    return {name: float(scores.mean()) for name, scores in right.items()}


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

"""The two dials: test accuracy for pairs of temperatures; members of the family are corners of one picture."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

DIAL = (0.0, 0.25, 0.5, 1.0)
CORNERS = {(0.0, 0.0): "LSSVM", (0.0, 1.0): "MSSVM", (1.0, 1.0): "LA-CRF"}


def chains(n: int, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Three labels whose next one depends on the last and on a hidden switch that the features hint at."""
    X, y = [], []
    for _ in range(n):
        switch = rng.integers(2, size=12)
        tags = [int(rng.integers(3))]
        for t in range(1, 12):
            step = 1 if switch[t] else 2
            follows = rng.random() < 0.85
            tags.append((tags[-1] + step) % 3 if follows else int(rng.integers(3)))
        y.append(np.array(tags))
        seen = np.eye(3)[y[-1]] * 0.8 + rng.normal(size=(12, 3))
        X.append(np.concatenate([seen, (2 * switch[:, None] - 1) + rng.normal(size=(12, 1))], axis=1))
    return X, y


def main(folder: Path) -> dict[str, float]:
    rng = np.random.default_rng(0)
    (X, y), (X_test, y_test) = chains(40, rng), chains(150, rng)
    right = np.zeros((len(DIAL), len(DIAL)))
    for (i, j), _ in np.ndenumerate(right):
        model = ms.UnifiedSSVM(ms.Chain(hidden=2), eps_y=DIAL[i], eps_h=DIAL[j], C=0.3, random_state=0)
        right[i, j] = model.fit(X, y).score(X_test, y_test)
    figure, ax = plt.subplots(figsize=(4.6, 3.8), layout="constrained")
    shown = ax.imshow(right, origin="lower", cmap="viridis")
    for (i, j), value in np.ndenumerate(right):
        name = CORNERS.get((DIAL[i], DIAL[j]), "")
        dark = value < right.min() + 0.6 * np.ptp(right)
        ax.text(j, i, f"{name}\n{value:.3f}".strip(), ha="center", va="center", fontsize=7, color="w" if dark else "k")
    ax.set(xlabel="eps_h: temperature of hidden variables", ylabel="eps_y: temperature of outputs")
    ax.set_xticks(range(len(DIAL)), DIAL)
    ax.set_yticks(range(len(DIAL)), DIAL)
    figure.colorbar(shown, label="labels right on test chains")
    figure.savefig(folder / "dials.png", dpi=90)
    return {"lowest": float(right.min()), "highest": float(right.max())}


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

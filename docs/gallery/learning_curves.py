"""Members of the family as labels go missing: whole sequences with gaps, against the labelled runs between the gaps."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

SHARES = (0.0, 0.3, 0.6, 0.8, 0.9)


def chains(n: int, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Labels that mostly go around a circle of four, seen through noise."""
    X, y = [], []
    for _ in range(n):
        steps = rng.choice([0, 1, 2], p=[0.15, 0.8, 0.05], size=15)
        y.append(np.cumsum(steps) % 4)
        X.append(1.2 * np.eye(4)[y[-1]] + rng.normal(size=(15, 4)))
    return X, y


def runs(x: np.ndarray, tags: list) -> list[tuple[np.ndarray, list]]:
    """The labelled stretches of a chain, as chains of their own."""
    cuts = [0, *(t + k for t, tag in enumerate(tags) if tag is None for k in (0, 1)), len(tags)]
    spans = [(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True) if a < b and None not in tags[a:b]]
    return [(x[a:b], tags[a:b]) for a, b in spans]


def main(folder: Path) -> dict[str, float]:
    rng = np.random.default_rng(0)
    (X, y), (X_test, y_test) = chains(40, rng), chains(100, rng)
    hide = [rng.random(15) for _ in X]
    right: dict[str, list[float]] = {name: [] for name in ("HCRF", "MSSVM", "LSSVM", "CRF on labelled runs")}
    for share in SHARES:
        given = [
            [None if gone else int(v) for gone, v in zip(h < share, tags, strict=True)]
            for h, tags in zip(hide, y, strict=True)
        ]
        for name, scores in right.items():
            if name in ("HCRF", "MSSVM", "LSSVM"):
                model = getattr(ms, name)(ms.Chain(), C=0.3, random_state=0).fit(X, given)
            else:
                parts = [part for x, tags in zip(X, given, strict=True) for part in runs(x, tags)]
                model = ms.CRF(ms.Chain(), C=0.3).fit(*map(list, zip(*parts, strict=True)))
            scores.append(model.score(X_test, y_test))
    figure, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    for name, scores in right.items():
        ax.plot(SHARES, scores, "o--" if "runs" in name else "o-", label=name)
    ax.set(xlabel="share of labels missing in training", ylabel="labels right on test chains")
    ax.legend(frameon=False)
    figure.savefig(folder / "learning_curves.png", dpi=90)
    return {name: scores[-1] for name, scores in right.items()}


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

"""Chunks of sentences, of whose tags half or more are missing in training, and some ambiguous."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

KEPT, DRAWS = (1.0, 0.5, 0.3, 0.2), 3  # of the tags that are there; which, by chance


def alone(X: list, y: list) -> ms.CRF:
    """Every tag that is known by its own features, as a chain of one site."""
    pairs = [(site, tag) for x, tags in zip(X, y, strict=True) for site, tag in zip(x, tags, strict=True)]
    sites = [([site], [tag]) for site, tag in pairs if isinstance(tag, str)]
    return ms.CRF(ms.Chain()).fit(*map(list, zip(*sites, strict=True)))


def main(folder: Path) -> dict[str, float]:
    train, test = ms.data.chunking("train"), ms.data.chunking("test")
    rng, missing, f1 = np.random.default_rng(0), np.zeros(len(KEPT)), np.zeros((2, len(KEPT)))
    for k, kept in enumerate(KEPT):
        for _ in range(DRAWS):
            y = [[tag if rng.random() < kept else None for tag in tags] for tags in train.labels]
            missing[k] += np.mean([tag is None for tags in y for tag in tags]) / DRAWS
            model = ms.HCRF(ms.Chain(), random_state=0).fit(train.X, y)  # missing tags are summed over
            for i, fitted in enumerate((model, alone(train.X, y))):
                f1[i, k] += ms.metrics.span_f1(test.labels, fitted.predict(test.X)) / DRAWS
    b = max(range(len(test)), key=lambda b: 8 <= len(test.X[b]) <= 12)
    words = [next(name[2:] for name in site if name.startswith("w=")) for site in test.X[b]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2), width_ratios=[3, 2], layout="constrained")
    model.plot_marginals(test.X[b], test.labels[b], ax=left)
    left.set_xticks(range(len(words)), words, rotation=40, ha="right")
    left.set_xlabel("")
    left.set_title(f"a test sentence, {missing[-1]:.0%} missing in training; crosses: truth", fontsize=9)
    for name, scores in zip(("sentences with gaps", "known tags alone"), f1, strict=True):
        right.plot(missing, scores, "o-", label=name)
    right.set(xlabel="share of tags missing in training", ylabel="F1 of chunks on test sentences")
    right.legend(frameon=False)
    figure.savefig(folder / "tagging.png", dpi=90)
    return {"f1": float(f1[0, 0]), "f1_few": float(f1[0, -1]), "alone_few": float(f1[1, -1])}


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

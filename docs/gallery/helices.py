"""Helices of made-up membrane proteins: a chain and a model of segments, and how sure they are of each helix."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

REACH = 4  # residues to either side that a feature averages over


def protein(rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """Hydropathies and labels: helices of about 21 residues between loops of any length; one residue tells little."""
    labels: list[str] = []
    for _ in range(rng.integers(3, 7)):
        labels += ["loop"] * int(rng.geometric(1 / 12) + 2)
        labels += ["helix"] * int(np.clip(rng.normal(21, 2), 15, 27))
    labels += ["loop"] * int(rng.geometric(1 / 12) + 2)
    hydropathy = rng.normal(size=len(labels)) + np.array([0.8 if label == "helix" else -0.4 for label in labels])
    return hydropathy, labels


def features(hydropathy: np.ndarray) -> np.ndarray:
    """The residue itself, and the average around it."""
    around = np.convolve(np.pad(hydropathy, REACH, mode="edge"), np.ones(2 * REACH + 1) / (2 * REACH + 1), "valid")
    return np.stack([hydropathy, around], axis=1)


def with_gaps(labels: list[str], rng: np.random.Generator) -> list[str | None]:
    """Labels with two stretches of 20 residues missing."""
    given: list[str | None] = list(labels)
    for start in rng.integers(len(labels) - 20, size=2):
        given[start : start + 20] = [None] * 20
    return given


def all_right(found: list[str], truth: list[str]) -> bool:
    """As many helices as there are, each overlapping its own by 10 residues."""
    spans = []
    for labels in (found, truth):
        edges = np.flatnonzero(np.diff([0, *(label == "helix" for label in labels), 0]))
        spans.append(edges.reshape(-1, 2))
    if len(spans[0]) != len(spans[1]):
        return False
    overlap = np.minimum(spans[0][:, 1], spans[1][:, 1]) - np.maximum(spans[0][:, 0], spans[1][:, 0])
    return bool(np.all(overlap >= 10))


def main(folder: Path) -> dict[str, float]:
    rng = np.random.default_rng(3)
    train = [protein(rng) for _ in range(60)]
    test = [protein(rng) for _ in range(100)]
    X, X_test = ([features(h) for h, _ in part] for part in (train, test))
    y = [with_gaps(labels, rng) for _, labels in train]

    chain = ms.CRF(ms.Chain()).fit(X, y)
    segments = ms.CRF(ms.Segments(max_length={"helix": 30, "loop": 100})).fit(X, y)
    right = {}
    for name, model in (("chain", chain), ("segments", segments)):
        found = model.predict(X_test)
        right[name] = [all_right(labels.tolist(), truth) for labels, (_, truth) in zip(found, test, strict=True)]
    whole = {name: float(np.mean(answers)) for name, answers in right.items()}

    lengths = [len(truth) for _, truth in test]
    b = next(k for k, n in enumerate(lengths) if 120 < n < 190 and not right["chain"][k])
    hydropathy, truth = test[b]
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(9.5, 5.2), sharex=True, layout="constrained")
    site = np.arange(len(truth))
    top.plot(site, features(hydropathy)[:, 1], color="0.3", linewidth=1)
    top.set_ylabel("hydropathy")
    top.set_title("one protein: what is seen, and its helices (grey)", fontsize=9)
    helix = chain.classes_.tolist().index("helix")
    for name, model, colour in (("chain", chain, "tab:orange"), ("segments", segments, "tab:blue")):
        p = model.predict_marginals(X_test[b : b + 1])[0][:, helix]
        middle.plot(site, p, color=colour, label=f"{name}: {whole[name]:.0%} of 100 proteins with all helices right")
    middle.set_ylabel("p(helix)")
    middle.set_ylim(-0.03, 1.5)
    middle.set_yticks([0, 0.5, 1])
    middle.legend(frameon=False, loc="upper left", ncols=2, fontsize=8)
    for start, stop, label, p in segments.predict_segments(X_test[b : b + 1])[0]:
        if label == "helix":
            bottom.barh(0.25, stop - start, left=start, height=0.3, color="tab:blue", alpha=0.25 + 0.7 * p)
            bottom.text((start + stop) / 2, 0.25, f"{p:.2f}", ha="center", va="center", fontsize=8)
    begins = segments.predict_boundaries(X_test[b : b + 1])[0]
    bottom.vlines(site, 0.5, 0.5 + 0.5 * begins, color="tab:red", linewidth=1.5)
    bottom.set_yticks([0.25, 0.75], ["segments found,\nwith probability", "p(a segment\nbegins here)"], fontsize=8)
    bottom.set_ylim(0, 1.05)
    bottom.set_xlabel("residue")
    edges = np.flatnonzero(np.diff([0, *(label == "helix" for label in truth), 0])).reshape(-1, 2)
    for axes in (top, middle, bottom):
        for start, stop in edges:
            axes.axvspan(start - 0.5, stop - 0.5, color="0.88", zorder=0)
    figure.savefig(folder / "helices.png", dpi=90)
    return whole


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

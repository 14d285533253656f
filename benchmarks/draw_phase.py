"""What ``bench_phase.py`` found: the verdict on each prediction of ``phase.toml``, and the picture.

    python benchmarks/draw_phase.py [--results benchmarks/results/phase.json] [--out docs/phase.png]

The picture needs the extra ``plot``.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from mssvm.experiments.statistics import Estimate

HERE = Path(__file__).resolve().parent
SHOWN = {  # member: (decoder of decode="auto", colour, marker)
    "HCRF": ("marginal", "#2f8f4e", "o"),
    "eps_y = 0.5": ("map", "#1f5fae", "s"),
    "MSSVM": ("map", "#d1611c", "^"),
}
NOTHING = 2.0  # points above the most frequent label
LEARNABLE = 5.0  # points of Bayes above it


class Place:
    """The trials of one cell."""

    def __init__(self, cell: list[Any], trials: list[dict[str, Any]], fails_above: float) -> None:
        self.labels, self.noise = cell[:2]
        self.missing, self.hidden = cell[2:]
        self.trials = trials
        self.dominated = self.truth("dominated")
        self.lead = Estimate.of([self._accuracy(t, "HCRF") - self._accuracy(t, "MSSVM") for t in trials])
        self.fails = self.lead.low > fails_above
        self.works = self.lead.high < fails_above

    def truth(self, name: str) -> float:
        return float(np.mean([t["bayes"][name] for t in self.trials]))

    def _accuracy(self, trial: dict[str, Any], member: str) -> float:
        decoder = "marginal" if member == "HCRF" else "map"
        return float(trial[member][decoder]["accuracy"])

    def accuracy(self, member: str) -> float:
        return float(np.mean([self._accuracy(t, member) for t in self.trials]))

    def nothing(self, member: str) -> bool:
        constant = self.truth("constant")
        return self.accuracy(member) < constant + NOTHING and self.truth("accuracy") > constant + LEARNABLE

    def share(self, member: str) -> float:
        """Of what can be learned: 0 is the most frequent label, 1 the model that made the data."""
        constant = self.truth("constant")
        return (self.accuracy(member) - constant) / (self.truth("accuracy") - constant)

    def named(self) -> str:
        return f"K={self.labels} noise={self.noise:g} missing={self.missing:g} ({self.lead.interval()})"


def places(kept: dict[str, Any]) -> list[Place]:
    grouped = defaultdict(list)
    for trial in kept["trials"]:
        grouped[tuple(trial["cell"])].append(trial)
    return [Place(list(cell), trials, kept["protocol"]["fails_above"]) for cell, trials in sorted(grouped.items())]


def border(found: list[Place], level: float) -> float:
    """The value of dominated at which an isotonic fit of the lead falls below ``level``."""
    x = np.array([place.dominated for place in found])
    lead = np.array([place.lead.mean for place in found])
    fit = IsotonicRegression(increasing=False).fit(x, lead)
    grid = np.linspace(0, 1, 1001)
    above = grid[fit.predict(np.clip(grid, x.min(), x.max())) > level]
    return float(above.max(initial=0.0))


def verdicts(found: list[Place], level: float) -> list[str]:
    """A line for every prediction, and the cells that contradict it."""
    low = [p for p in found if p.dominated < 0.5]
    high = [p for p in found if p.dominated > 0.9]
    two = [p for p in found if p.labels == 2]
    failing = [p for p in found if p.fails]
    lines = [
        f"{len(found)} cells, trials a cell: {sorted({len(p.trials) for p in found})}",
        f"P1 fails in {sum(p.fails for p in low)} of {len(low)} cells with dominated < 0.5; "
        f"works in {sum(p.works for p in high)} of {len(high)} with dominated > 0.9 and fails in "
        f"{[p.named() for p in high if p.fails]}; not failing below 0.5: {[p.named() for p in low if not p.fails]}",
        f"P2 two labels: fails in {[p.named() for p in two if p.fails]} of {len(two)}",
        f"P3 learns nothing at dominated {sorted(round(p.dominated, 2) for p in found if p.nothing('MSSVM'))}; "
        f"HCRF {[p.named() for p in found if p.nothing('HCRF')]}",
    ]
    for member in ("eps_y = 0.25", "eps_y = 0.5", "LossAugmentedCRF"):
        won = [(p.accuracy(member) - p.accuracy("MSSVM")) / p.lead.mean for p in failing]
        lines.append(f"P4 {member} wins back {np.mean(won):.2f} of the lead over {len(failing)} failing cells")
    for missing in sorted({p.missing for p in found}):
        lines.append(
            f"P5 border at {border([p for p in found if p.missing == missing], level):.2f}, missing {missing:g}"
        )
    return lines


def draw(found: list[Place], out: Path) -> None:
    """Lead of HCRF over MSSVM by noise and labels, and what each member learns against dominated sites."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 12, "axes.titlesize": 12})
    figure = plt.figure(figsize=(16, 9), layout="constrained")
    figure.suptitle(
        "Where no label has more than half of the probability, margins fall behind", fontsize=18, weight="bold"
    )
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    panels = sorted({(p.hidden, p.missing) for p in found})
    for axes, (hidden, missing) in zip(above.subplots(1, len(panels)), panels, strict=True):
        image = draw_leads(axes, [p for p in found if (p.hidden, p.missing) == (hidden, missing)])
        what = "hidden topics" if hidden else "no hidden variables"
        axes.set_title(f"{what},\n{100 * missing:.0f}% of the labels missing")
    above.colorbar(image, ax=above.axes, label="HCRF - MSSVM, points", shrink=0.9)
    titles = {0: "chains without hidden variables", 2: "a hidden topic between neighbours"}
    for axes, (hidden, title) in zip(below.subplots(1, len(titles), sharey=True), titles.items(), strict=True):
        draw_shares(axes, [p for p in found if p.hidden == hidden])
        axes.set_title(title)
    below.axes[0].set_ylabel("learned, % of what can be\n(0: most frequent label)")
    below.axes[0].legend(loc="lower right", title="open: 90% missing")
    below.supxlabel(
        "share of sites at which one label has more than half of the probability (▲ above: fewer than half); "
        "C by cross-validation, means of 20 trials a cell",
        fontsize=12,
    )
    figure.savefig(out, dpi=100)


def draw_leads(axes: Any, cells: list[Place]) -> Any:
    """A map of the lead over labels and noise."""
    labels = sorted({p.labels for p in cells})
    noises = sorted({p.noise for p in cells})
    by_place = {(p.noise, p.labels): p for p in cells}
    lead = np.array([[by_place[noise, k].lead.mean for k in labels] for noise in noises])
    image = axes.imshow(lead, origin="lower", cmap="YlOrRd", vmin=0, vmax=30, aspect="auto")
    for (row, column), value in np.ndenumerate(lead):
        place = by_place[noises[row], labels[column]]
        ink = "white" if value > 18 else "black"
        mark = "\n▲" if place.dominated < 0.5 else ""
        axes.text(column, row, f"{value:+.1f}{mark}", ha="center", va="center", color=ink, fontsize=11)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set_xlabel("labels")
    axes.set_ylabel("noise")
    return image


def draw_shares(axes: Any, cells: list[Place]) -> None:
    """What members learn of what can be learned, by the share of dominated sites."""
    axes.axvspan(0, 0.5, color="#d1611c", alpha=0.07)
    for member, (_, colour, marker) in SHOWN.items():
        dense = [p for p in cells if p.missing < 0.9]
        sparse = [p for p in cells if p.missing == 0.9]
        for shown, face in ((dense, colour), (sparse, "none")):
            xs = [p.dominated for p in shown]
            ys = [100 * p.share(member) for p in shown]
            style = {"marker": marker, "s": 60, "facecolors": face, "edgecolors": colour}
            axes.scatter(xs, ys, label=member if face != "none" else None, **style)
    axes.set_xlim(0, 1.02)
    axes.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "phase.json")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "phase.png")
    args = parser.parse_args()
    kept = json.loads(args.results.read_text())
    level = kept["protocol"]["fails_above"]
    found = places(kept)
    for hidden in (0, 2):
        print(f"hidden states: {hidden}")
        print("\n".join(verdicts([p for p in found if p.hidden == hidden], level)))
    draw(found, args.out)


if __name__ == "__main__":
    main()

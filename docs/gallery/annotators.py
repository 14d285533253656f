"""Six annotators of different skill, one of them an adversary: what each is like, and the truth behind their votes."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import mssvm as ms

ACCURACIES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.1)  # of the annotators a0 to a5


def main(folder: Path) -> dict[str, float]:
    crowd = ms.annotators.simulate(150, 25, 3, ACCURACIES, coverage=0.5, signal=0.8, seed=4)
    settings = ms.Annotators(context="none", strength=2.0, diagonal=5.0, max_iter=40)
    clf = ms.HCRF(ms.Chain(), annotators=settings, random_state=0).fit(crowd.X, crowd.votes)

    truth = np.concatenate(crowd.truth)
    found = clf.aggregate(crowd.X, crowd.votes)
    right = float(np.mean(np.concatenate(found) == truth))
    by_majority = ms.annotators.majority(crowd.votes)
    majority = float(np.mean(np.concatenate(by_majority) == truth))

    figure, (left, right_panel) = plt.subplots(1, 2, figsize=(9.5, 3.4), width_ratios=[2, 3], layout="constrained")
    clf.plot_annotators(ax=left)
    names = [text.get_text() for text in left.get_yticklabels()]
    known = [ACCURACIES[int(name[1:])] for name in names]
    left.scatter(known, range(len(names)), marker="x", color="tab:red", zorder=3, label="known accuracy")
    left.legend(frameon=False, loc="upper right")
    left.set_title("annotators: estimate and 95% interval", fontsize=9)

    b = 1
    rows = {name: [np.nan if vote is None else vote for vote in votes] for name, votes in crowd.votes[b].items()}
    rows |= {"majority": by_majority[b], "aggregated": found[b], "truth": crowd.truth[b]}
    right_panel.imshow(np.array(list(rows.values()), dtype=float), cmap="Set2", vmin=0, vmax=7, aspect="auto")
    right_panel.axhline(len(ACCURACIES) - 0.5, color="black", linewidth=1)
    right_panel.set_yticks(range(len(rows)), list(rows))
    right_panel.set_xlabel("site")
    right_panel.set_title(f"one chain; all chains: majority {majority:.0%} right, aggregated {right:.0%}", fontsize=9)
    figure.savefig(folder / "annotators.png", dpi=90)
    return {"aggregated": right, "majority": majority}


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))

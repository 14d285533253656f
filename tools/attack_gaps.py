"""Random SSVM and LSSVM fits on grids: none with a negative gap may be called converged, or end without a warning.

    python tools/attack_gaps.py [--fits N] [--seed S] [--json FILE]

Grids of 6x6 to 12x12 sites with two or three classes, of any noise and any C, are fitted for a few iterations by the
solvers that know gaps, with inference that is far from exact: messages alone, few sweeps, or the usual search.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
from attack import options, report
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms

ROUGH = 1e-8  # relative to an objective: a gap below this is negative, and not rounded so
SOLVERS = (
    ms.solvers.BCFW(max_iter=10, check_every=2),
    ms.solvers.CuttingPlane(max_iter=15),
    ms.solvers.LBFGS(max_iter=10, schedule=(1.0, 0.25)),
    ms.solvers.CCCP(ms.solvers.BCFW(max_iter=6, check_every=2), max_iter=3),
)
INFERENCES = (
    ms.inference.Propagate("fast", starts=("cold",), max_sweeps=2),
    ms.inference.Propagate("fast", starts=("marginals", "regions")),
    ms.inference.Propagate("fast"),
)


def discs(rng: np.random.Generator, n: int, side: int, n_classes: int, noise: float) -> tuple[list[Any], list[Any]]:
    """Images of discs on a ground, one for every further class, seen through noise."""
    row, column = np.mgrid[:side, :side]
    X, y = [], []
    for _ in range(n):
        labels = np.zeros((side, side), dtype=np.int64)
        for k in range(1, n_classes):
            centre, radius = rng.uniform(0.25 * side, 0.75 * side, 2), rng.uniform(0.15, 0.35) * side
            labels[np.hypot(row - centre[0], column - centre[1]) < radius] = k
        seen = np.eye(n_classes)[labels][..., 1:] + noise * rng.normal(size=(side, side, n_classes - 1))
        X.append(np.concatenate([seen, np.ones((side, side, 1))], axis=-1))
        y.append(labels)
    return X, y


def fitted(rng: np.random.Generator) -> tuple[Any, bool]:
    """One fit, and whether it warned that it had not converged."""
    n_classes = int(rng.integers(2, 4))
    X, y = discs(rng, int(rng.integers(2, 5)), int(rng.integers(6, 13)), n_classes, float(rng.uniform(0.3, 2.0)))
    solver, latent = SOLVERS[rng.integers(len(SOLVERS))], bool(rng.integers(2))
    if latent:
        y = [np.where(rng.random(labels.shape) < 0.7, labels, -1) for labels in y]
        solver = SOLVERS[rng.integers(2, 4)]
    member = ms.LSSVM if latent else ms.SSVM
    model = member(
        ms.Grid(), C=float(10 ** rng.uniform(-1.0, 1.0)), solver=solver, random_state=0, missing_label=-1,
        inference=INFERENCES[rng.integers(len(INFERENCES))], classes=range(n_classes), init="zeros",
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, y)
    return model, any(issubclass(w.category, ConvergenceWarning) for w in told)


def complaints(model: Any, warned: bool) -> list[str]:
    """What is wrong with what a fitted model says of its gaps."""
    training, rows = model.training_, model.history_
    met = bool(np.any(rows["gap"] < -ROUGH * np.maximum(1.0, np.abs(rows["objective"]))))
    negative = met or training["negative_gaps"] > 0 or training["gap"] < -ROUGH * max(1.0, abs(training["objective"]))
    if not negative:
        return []
    wrong = []
    if training["outcome"] in ("converged", "completed"):
        wrong.append(f"called {training['outcome']}")
    if "missed maxima" not in model.status_ or "missed maxima" not in model.diagnose():
        wrong.append("not said to have missed maxima")
    if training["certified"]:
        wrong.append("called certified")
    if not warned:
        wrong.append("without a warning")
    return wrong


def run(fits: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How the fits ended, and what was wrong."""
    counts, failed = Counter[str](), list[str]()
    for k in range(fits):
        model, warned = fitted(np.random.default_rng([seed, k]))
        counts[model.training_["outcome"]] += 1
        failed += [f"fit {k}: {text}: {model.status_}" for text in complaints(model, warned)]
    return counts, failed


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts, failed = run(args.fits, args.seed)
    return report({"fits": args.fits, "ended": dict(counts), "failed": failed}, args.json)


if __name__ == "__main__":
    sys.exit(main())

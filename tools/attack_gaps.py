"""Random SSVM and LSSVM fits on grids: none with a negative gap may be called converged, or end without a warning.

    python tools/attack_gaps.py [--fits N] [--seed S] [--json FILE] [--defaults]

Grids of 6x6 to 12x12 sites with two or three classes, of any noise and any C, are fitted for a few iterations by the
solvers that know gaps, with inference that is far from exact: messages alone, few sweeps, or the usual search. With
--defaults they are fitted by ``SSVM(Grid())`` as it is, and no gap may be negative at all.
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

ROUGH = 1e-8  # relative to an objective: a gap below minus this is negative beyond rounding
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
    X = []
    y = []
    for _ in range(n):
        labels = np.zeros((side, side), dtype=np.int64)
        for k in range(1, n_classes):
            centre = rng.uniform(0.25 * side, 0.75 * side, 2)
            radius = rng.uniform(0.15, 0.35) * side
            labels[np.hypot(row - centre[0], column - centre[1]) < radius] = k
        seen = np.eye(n_classes)[labels][..., 1:] + noise * rng.normal(size=(side, side, n_classes - 1))
        X.append(np.concatenate([seen, np.ones((side, side, 1))], axis=-1))
        y.append(labels)
    return X, y


def fitted(rng: np.random.Generator) -> tuple[Any, bool]:
    """One fit, and whether it warned that it had not converged."""
    n_classes = int(rng.integers(2, 4))
    X, y = discs(rng, int(rng.integers(2, 5)), int(rng.integers(6, 13)), n_classes, float(rng.uniform(0.3, 2.0)))
    solver = SOLVERS[rng.integers(len(SOLVERS))]
    latent = bool(rng.integers(2))
    if latent:
        y = [np.where(rng.random(labels.shape) < 0.7, labels, -1) for labels in y]
        solver = SOLVERS[rng.integers(2, 4)]
    member = ms.LSSVM if latent else ms.SSVM
    model = member(
        ms.Grid(),
        C=float(10 ** rng.uniform(-1.0, 1.0)),
        solver=solver,
        random_state=0,
        missing_label=-1,
        inference=INFERENCES[rng.integers(len(INFERENCES))],
        classes=range(n_classes),
        init="zeros",
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return model, any(issubclass(w.category, ConvergenceWarning) for w in caught)


def by_default(rng: np.random.Generator) -> Any:
    """One fit of ``SSVM(Grid())`` with every label known."""
    n_classes = int(rng.integers(2, 4))
    X, y = discs(rng, int(rng.integers(2, 5)), int(rng.integers(6, 13)), n_classes, float(rng.uniform(0.3, 2.0)))
    model = ms.SSVM(ms.Grid(), C=float(10.0 ** rng.uniform(-2, 1)), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def is_negative(model: Any) -> bool:
    """Whether a gap was below zero, beyond rounding."""
    training = model.training_
    rows = model.history_
    met = bool(np.any(rows["gap"] < -ROUGH * np.maximum(1.0, np.abs(rows["objective"]))))
    ended = training["gap"] < -ROUGH * max(1.0, abs(training["objective"]))
    return bool(met or ended or training["negative_gaps"] > 0)


def complaints(model: Any, warned: bool) -> list[str]:
    """Errors in what a fitted model reports about negative gaps."""
    training = model.training_
    if not is_negative(model):
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
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for k in range(fits):
        model, warned = fitted(np.random.default_rng([seed, k]))
        counts[model.training_["outcome"]] += 1
        failed += [f"fit {k}: {text}: {model.status_}" for text in complaints(model, warned)]
    return counts, failed


def run_defaults(fits: int, seed: int) -> tuple[Counter[str], list[str]]:
    """The same of ``SSVM(Grid())``; a negative gap is wrong."""
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for k in range(fits):
        model = by_default(np.random.default_rng([seed, k]))
        counts[model.training_["outcome"]] += 1
        counts["certified"] += bool(model.training_["certified"])
        if is_negative(model):
            failed.append(f"fit {k}: a gap of {model.training_['gap']}: {model.status_}")
    return counts, failed


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defaults", action="store_true")
    args = parser.parse_args()
    counts, failed = (run_defaults if args.defaults else run)(args.fits, args.seed)
    return report({"fits": args.fits, "ended": dict(counts), "failed": failed}, args.json)


if __name__ == "__main__":
    sys.exit(main())

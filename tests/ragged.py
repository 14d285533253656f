"""Small ragged data sets and members to run the estimator tests on."""

from __future__ import annotations

from typing import Any

import numpy as np

import mssvm as ms


def sequences(n: int, seed: int = 0, noise: float = 0.7) -> tuple[list[Any], list[Any]]:
    """Sequences of length 1 to 6 whose labels tend to go round a, b, c."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        states = [int(rng.integers(3))]
        for _ in range(int(rng.integers(0, 6))):
            states.append((states[-1] + int(rng.random() < 0.7)) % 3)
        X.append(np.eye(3)[states] + rng.normal(0, noise, (len(states), 3)))
        y.append(["abc"[s] for s in states])
    return X, y


def thinned(y: list[Any], share: float, seed: int = 0) -> list[Any]:
    """The same labels with a share of them missing."""
    rng = np.random.default_rng(seed)
    return [[ms.MISSING if rng.random() < share else label for label in item] for item in y]


def same(a: Any, b: Any) -> bool:
    """Whether two ragged answers agree in every bit."""
    return len(a) == len(b) and all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


QUICK: dict[str, Any] = {"max_iter": 15, "random_state": 0}

# Every member with the structure it is tried on; hidden variables where it can have them.
MEMBERS: dict[str, Any] = {
    "CRF": lambda: ms.CRF(**QUICK),
    "SSVM": lambda: ms.SSVM(**QUICK),
    "HCRF": lambda: ms.HCRF(ms.Chain(hidden=2), **QUICK),
    "LSSVM": lambda: ms.LSSVM(ms.Chain(hidden=2), **QUICK),
    "MSSVM": lambda: ms.MSSVM(ms.Chain(hidden=2), **QUICK),
    "LossAugmentedCRF": lambda: ms.LossAugmentedCRF(ms.Chain(hidden=2), **QUICK),
    "EpsilonSSVM": lambda: ms.EpsilonSSVM(ms.Chain(hidden=2), eps=0.5, **QUICK),
    "UnifiedSSVM": lambda: ms.UnifiedSSVM(ms.Chain(hidden=2), eps_y=0.5, eps_h=1.0, **QUICK),
    "M3E": lambda: ms.M3E(ms.Chain(hidden=2), **{**QUICK, "max_iter": 3}),
    "ModLat": lambda: ms.ModLat(ms.Chain(hidden=2), n_rounds=2, **{**QUICK, "max_iter": 3}),
}

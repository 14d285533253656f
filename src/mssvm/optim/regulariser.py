"""R(w) = 1/2 sum_j r_j w_j^2, with some weights held non-negative.

The paper's objective is 1/2 |w|^2 + C sum_i U_i: strength 1, and C in the problem. The form lambda/2 |w|^2 + sum_i U_i
is strength lambda and C = 1. Weights with r_j = 0 are not regularised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, UnsupportedError


@dataclass(frozen=True, eq=False)
class Regulariser:
    """Quadratic regulariser with one strength for all weights or one each, and a mask of weights kept >= 0."""

    strength: float | Floats = 1.0
    nonnegative: Bools | None = None

    def __post_init__(self) -> None:
        r = np.asarray(self.strength, dtype=np.float64)
        if r.ndim > 1 or not np.all(np.isfinite(r)) or np.any(r < 0):
            raise InputError("strength of a regulariser needs finite numbers >= 0, one for all weights or one each.")

    def check(self, n_weights: int) -> None:
        """Raise unless strengths and mask fit ``n_weights`` weights."""
        r = np.asarray(self.strength)
        if r.ndim == 1 and r.shape != (n_weights,):
            raise InputError(f"the regulariser has {len(r)} strengths for {n_weights} weights.")
        if self.nonnegative is not None and np.shape(self.nonnegative) != (n_weights,):
            raise InputError(f"the mask nonnegative has shape {np.shape(self.nonnegative)} for {n_weights} weights.")

    def strengths(self, n_weights: int) -> Floats:
        """r as a vector."""
        return np.broadcast_to(np.asarray(self.strength, dtype=np.float64), (n_weights,)).copy()

    def value(self, w: Floats) -> float:
        with np.errstate(over="ignore"):  # a diverging run is reported as such, by an infinite objective
            return 0.5 * float(np.sum(self.strength * w * w))

    def gradient(self, w: Floats) -> Floats:
        return np.asarray(self.strength * w)

    def project(self, w: Floats) -> Floats:
        """The nearest weights that keep the non-negative ones >= 0."""
        if self.nonnegative is None:
            return w
        return np.where(self.nonnegative & (w < 0), 0.0, w)

    def stationarity(self, w: Floats, gradient: Floats) -> Floats:
        """The gradient without the components that only push a bounded weight further below its bound."""
        if self.nonnegative is None:
            return gradient
        return np.where(self.nonnegative & (w <= 0) & (gradient > 0), 0.0, gradient)

    def demand_dual(self, n_weights: int, solver: str) -> Floats:
        """r, or a refusal: solvers that work in the dual need w = v / r."""
        r = self.strengths(n_weights)
        if np.any(r <= 0):
            raise UnsupportedError(
                f"{solver} needs a strength > 0 on every weight, but {int((r <= 0).sum())} have 0; "
                "use LBFGS or Subgradient, or give them a small strength."
            )
        return r

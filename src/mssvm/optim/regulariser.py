"""R(w) = sum_j (r_j (w_j - c_j)^2 / 2 + a_j |w_j|), some weights held non-negative; c is zero unless given.

The paper's objective is 1/2 |w|^2 + C sum_i U_i: strength 1, and C in the problem. The form lambda/2 |w|^2 + sum_i U_i
is strength lambda and C = 1. Weights with r_j = a_j = 0 are not regularised. With absolute values (a_j > 0, the lasso
and the elastic net) R has kinks at zero, and at the minimum many weights are exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, UnsupportedError


@dataclass(frozen=True, eq=False)
class Regulariser:
    """R(w) of the formula above: ``strength`` is r, ``absolute`` is a, ``center`` is c (None: zero).

    ``strength`` and ``absolute`` are one number for all weights, or one each; ``nonnegative`` is a mask.
    ``has_absolute``: R has kinks at zero, which only LBFGS can handle; ``kinked``: it has kinks or bounds there.

    >>> ms.solvers.Regulariser(strength=2.0, absolute=1.0).value(np.array([3.0, -1.0]))
    14.0
    """

    strength: float | Floats = 1.0
    nonnegative: Bools | None = None
    absolute: float | Floats = 0.0
    center: Floats | None = None
    has_absolute: bool = field(init=False, repr=False)
    kinked: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("strength", "absolute"):
            r = np.asarray(getattr(self, name), dtype=np.float64)
            if r.ndim > 1 or not np.all(np.isfinite(r)) or np.any(r < 0):
                raise InputError(f"{name} of a regulariser needs finite numbers >= 0, one for all weights or one each.")
        absolute = bool(np.any(np.asarray(self.absolute) > 0))
        bounded = self.nonnegative is not None and bool(np.any(self.nonnegative))
        object.__setattr__(self, "has_absolute", absolute)
        object.__setattr__(self, "kinked", absolute or bounded)

    def strengths(self, n_weights: int) -> Floats:
        """r as a vector that is not written to; raises unless strengths and mask fit ``n_weights`` weights."""
        for r in (np.asarray(self.strength), np.asarray(self.absolute)):
            if r.ndim == 1 and r.shape != (n_weights,):
                raise InputError(f"the regulariser has {len(r)} strengths for {n_weights} weights.")
        if self.nonnegative is not None and np.shape(self.nonnegative) != (n_weights,):
            raise InputError(f"the mask nonnegative has shape {np.shape(self.nonnegative)} for {n_weights} weights.")
        if self.center is not None and np.shape(self.center) != (n_weights,):
            raise InputError(f"the center has shape {np.shape(self.center)} for {n_weights} weights.")
        return np.broadcast_to(np.asarray(self.strength, dtype=np.float64), (n_weights,))

    def kinks(self, n_weights: int) -> Bools:
        """Weights with a kink or a bound at zero."""
        bounded = False if self.nonnegative is None else self.nonnegative
        return np.broadcast_to((np.asarray(self.absolute) > 0) | bounded, (n_weights,))

    def value(self, w: Floats) -> float:
        with np.errstate(over="ignore"):  # a diverging run is reported as such, by an infinite objective
            distance = w if self.center is None else w - self.center
            squares = 0.5 * float(np.sum(self.strength * distance * distance))
        if not self.has_absolute:
            return squares
        return squares + float(np.sum(self.absolute * np.abs(w)))

    def least_with(self, slope: Floats) -> float:
        """min over w of R(w) + slope @ w; -inf where a weight without a penalty has a slope."""
        r = self.strengths(len(slope))
        constant = 0.0
        if self.center is not None:
            # r (w - c)^2 / 2 + s w = r w^2 / 2 + (s - r c) w + r c^2 / 2
            constant = 0.5 * float(np.sum(r * self.center**2))
            slope = slope - r * self.center
        pull = np.maximum(np.abs(slope) - self.absolute, 0.0)
        if self.nonnegative is not None:
            pull = np.where(self.nonnegative & (slope > 0), 0.0, pull)
        if np.any((r == 0) & (pull > 0)):
            return -np.inf
        return constant - 0.5 * float(np.sum(np.divide(pull**2, r, out=np.zeros(len(slope)), where=r > 0)))

    def gradient(self, w: Floats) -> Floats:
        """Gradient of the squares; ``stationarity`` adds the subgradient of the absolute values."""
        distance = w if self.center is None else w - self.center
        return np.asarray(self.strength * distance)

    def project(self, w: Floats) -> Floats:
        """The nearest weights that keep the non-negative ones >= 0."""
        if self.nonnegative is None:
            return w
        return np.where(self.nonnegative & (w < 0), 0.0, w)

    def within(self, w: Floats, start: Floats, slope: Floats) -> Floats:
        """``project``, and zero where w has left the orthant of a step from ``start`` along -slope."""
        if self.has_absolute:
            orthant = np.where(start != 0, np.sign(start), -np.sign(slope))
            w = np.where((np.asarray(self.absolute) > 0) & (w * orthant <= 0), 0.0, w)
        return self.project(w)

    def stationarity(self, w: Floats, gradient: Floats) -> Floats:
        """The smallest subgradient of the objective, given the gradient of its smooth part: zero at a minimum.

        Components that only push a bounded weight further below its bound are left out.
        """
        if self.has_absolute:
            a = self.absolute
            at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - a, 0.0)
            gradient = np.where(w != 0, gradient + a * np.sign(w), at_zero)
        if self.nonnegative is None:
            return gradient
        return np.where(self.nonnegative & (w <= 0) & (gradient > 0), 0.0, gradient)

    def demand_smooth(self, solver: str) -> None:
        """Raise if there are absolute values, which ``solver`` cannot handle."""
        if self.has_absolute:
            raise UnsupportedError(f"{solver} cannot handle the absolute values of an L1 penalty; use LBFGS.")

    def demand_dual(self, n_weights: int, solver: str) -> Floats:
        """r; raises unless R is smooth with all r_j > 0 and no center, since solvers that work in the dual need w = v /
        r."""
        self.demand_smooth(solver)
        if self.center is not None:
            raise UnsupportedError(f"{solver} cannot stay near earlier weights; use LBFGS, Adam or Subgradient.")
        r = self.strengths(n_weights)
        if np.any(r <= 0):
            raise UnsupportedError(
                f"{solver} needs a strength > 0 on every weight, but {int((r <= 0).sum())} have 0; "
                "use LBFGS or Subgradient, or give them a small strength."
            )
        return r

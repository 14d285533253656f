"""The interface that solvers see: numbers only. A ``Problem`` is a sum over instances of differences of convex
functions of w.

    loss(w) = sum_i c_i (plus_i(w) - minus_i(w)),      c_i = C * weight_i

Solvers add the regulariser. Everything returned is already summed with the c_i, except ``values`` (raw, per instance).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np

from mssvm.core.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation: per-instance values, their weighted total, its gradient, and what inference reported.

    ``converged`` counts the inference calls that converged, ``floored`` the instances whose U+ was raised to U-.
    """

    values: Floats
    total: float
    gradient: Floats
    plus_calls: int = 0
    minus_calls: int = 0
    converged: int = 0
    floored: int = 0
    exact: bool = True

    @classmethod
    def union(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """The evaluation of the union of disjoint sets of instances, in order."""
        if len(parts) == 1:
            return parts[0]
        total = parts[0].total
        gradient = parts[0].gradient.copy()
        for part in parts[1:]:
            total += part.total
            gradient += part.gradient
        values = np.concatenate([part.values for part in parts])
        return cls(
            values,
            total,
            gradient,
            plus_calls=sum(part.plus_calls for part in parts),
            minus_calls=sum(part.minus_calls for part in parts),
            converged=sum(part.converged for part in parts),
            floored=sum(part.floored for part in parts),
            exact=all(part.exact for part in parts),
        )


class Problem(Protocol):
    """A sum over ``n_instances`` of differences of convex functions of ``n_weights`` weights."""

    @property
    def n_instances(self) -> int: ...

    @property
    def n_weights(self) -> int: ...

    @property
    def scale(self) -> Floats:
        """c_i = C * weight_i of each instance."""
        ...

    @property
    def n_sites(self) -> int:
        """Number of labelled sites, for objectives per site."""
        ...

    @property
    def temperatures(self) -> tuple[float, float]: ...

    @property
    def log_outputs(self) -> Floats:
        """log |Y_i|: tempering the outputs at eps changes plus_i by at most eps * log |Y_i|."""
        ...

    @property
    def convex(self) -> bool:
        """Whether ``minus`` is linear in w (single labels and nothing hidden), so that the whole problem is convex."""
        ...

    def at(self, eps_y: float, eps_h: float) -> Self:
        """The same problem at other temperatures."""
        ...

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        """By how much plus_i and minus_i (raw) can rise, at most, when the temperatures are raised to these."""
        ...

    def plus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        """Convex part, over the named instances (default all)."""
        ...

    def minus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        """The convex function that is subtracted."""
        ...

    def difference(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        """plus - minus in one pass."""
        ...

    @property
    def has_atoms(self) -> bool:
        """Whether ``atom``, ``features_of`` and ``scores_of`` answer for single instances."""
        ...

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        """plus_i (raw) and the coordinates mu_i of its gradient, which is ``features_of(i, mu_i)``."""
        ...

    def features_of(self, i: int, mu: Floats) -> Floats:
        """The features of instance i expected under mu: the linear map from its coordinates to weight space."""
        ...

    def scores_of(self, i: int, w: Floats) -> Floats:
        """The transpose of ``features_of``: ``features_of(i, mu) @ w == mu @ scores_of(i, w)``."""
        ...


@runtime_checkable
class Minorised(Protocol):
    """A problem that can prove a lower bound on its loss."""

    def minorant(self, w: Floats, temperatures: tuple[float, float]) -> tuple[float, Floats] | None:
        """Value and gradient at w of a linear function that is at no weights above the loss; None if none is known.

        ``temperatures`` are those at which w was found.
        """
        ...

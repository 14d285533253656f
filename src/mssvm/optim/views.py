"""Views of a ``Problem``: one that passes all on, one that counts, and one with its subtracted part linearised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.objectives.problem import Part, Problem


@dataclass(frozen=True, eq=False)
class View:
    """``problem`` as it is."""

    problem: Problem

    @property
    def n_instances(self) -> int:
        return self.problem.n_instances

    @property
    def n_weights(self) -> int:
        return self.problem.n_weights

    @property
    def scale(self) -> Floats:
        return self.problem.scale

    @property
    def n_sites(self) -> int:
        return self.problem.n_sites

    @property
    def convex(self) -> bool:
        return self.problem.convex

    @property
    def temperatures(self) -> tuple[float, float]:
        return self.problem.temperatures

    @property
    def log_outputs(self) -> Floats:
        return self.problem.log_outputs

    def at(self, eps_y: float, eps_h: float) -> Self:
        return replace(self, problem=self.problem.at(eps_y, eps_h))

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        return self.problem.tempering(eps_y, eps_h)

    def plus(self, w: Floats, which: Ints | None = None) -> Part:
        return self.problem.plus(w, which)

    def minus(self, w: Floats, which: Ints | None = None) -> Part:
        return self.problem.minus(w, which)

    def difference(self, w: Floats, which: Ints | None = None) -> Part:
        return self.problem.difference(w, which)

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        return self.problem.atom(w, i)

    def lift(self, i: int, mu: Floats) -> Floats:
        return self.problem.lift(i, mu)

    def pull(self, i: int, w: Floats) -> Floats:
        return self.problem.pull(i, w)


@dataclass
class Tally:
    """Running counts. ``reported`` is the number of calls that said whether they converged."""

    plus_calls: int = 0
    minus_calls: int = 0
    reported: int = 0
    converged: int = 0
    rescued: int = 0
    exact: bool = True

    def add(self, part: Part) -> Part:
        self.plus_calls += part.plus_calls
        self.minus_calls += part.minus_calls
        self.reported += part.plus_calls + part.minus_calls
        self.converged += part.converged
        self.rescued += part.floored
        self.exact = self.exact and part.exact
        return part


@dataclass(frozen=True, eq=False)
class Meter(View):
    """``problem`` with every call entered in ``tally``; the same problem at other temperatures shares the tally."""

    tally: Tally

    def plus(self, w: Floats, which: Ints | None = None) -> Part:
        return self.tally.add(self.problem.plus(w, which))

    def minus(self, w: Floats, which: Ints | None = None) -> Part:
        return self.tally.add(self.problem.minus(w, which))

    def difference(self, w: Floats, which: Ints | None = None) -> Part:
        return self.tally.add(self.problem.difference(w, which))

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        self.tally.plus_calls += 1
        return self.problem.atom(w, i)


@dataclass(frozen=True, eq=False)
class Linearised(View):
    """CCCP's convex inner problem: the subtracted part replaced by its tangent u.w - constant.

    The tangent is known only as a sum over instances; each is given a share of it in proportion to c_i.
    """

    u: Floats
    constant: float

    @classmethod
    def of(cls, problem: Problem, w: Floats, minus: Part) -> Linearised:
        """The tangent at w, where ``minus`` was evaluated."""
        return cls(problem, minus.gradient, float(minus.gradient @ w) - minus.total)

    @property
    def convex(self) -> bool:
        return True

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        return self.problem.tempering(eps_y, eps_h)[0], np.zeros(self.n_instances)

    def minus(self, w: Floats, which: Ints | None = None) -> Part:
        scale = self.scale if which is None else self.scale[which]
        total = float(self.scale.sum()) or 1.0
        share = float(scale.sum()) / total
        value = float(self.u @ w) - self.constant
        return Part(np.full(len(scale), value / total), share * value, share * self.u)

    def difference(self, w: Floats, which: Ints | None = None) -> Part:
        high, low = self.problem.plus(w, which), self.minus(w, which)
        values, gradient = high.values - low.values, high.gradient - low.gradient
        return replace(high, values=values, total=high.total - low.total, gradient=gradient)

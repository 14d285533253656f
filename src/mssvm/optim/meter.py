"""A ``Problem`` that counts what is asked of it: inference calls, convergence, rescues, exactness."""

from __future__ import annotations

from dataclasses import dataclass

from mssvm.arrays import Floats, Ints
from mssvm.objectives.problem import Part, Problem


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
        self.rescued += part.rescued
        self.exact = self.exact and part.exact
        return part


@dataclass(frozen=True, eq=False)
class Meter:
    """``problem`` with every call entered in ``tally``; views at other temperatures share the tally."""

    problem: Problem
    tally: Tally

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

    def at(self, eps_y: float, eps_h: float) -> Meter:
        return Meter(self.problem.at(eps_y, eps_h), self.tally)

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        return self.problem.tempering(eps_y, eps_h)

    def plus(self, w: Floats, which: Ints | None = None) -> Part:
        return self.tally.add(self.problem.plus(w, which))

    def minus(self, w: Floats, which: Ints | None = None) -> Part:
        return self.tally.add(self.problem.minus(w, which))

    def difference(self, w: Floats, which: Ints | None = None) -> Part:
        return self.tally.add(self.problem.difference(w, which))

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        self.tally.plus_calls += 1
        return self.problem.atom(w, i)

    def lift(self, i: int, mu: Floats) -> Floats:
        return self.problem.lift(i, mu)

    def pull(self, i: int, w: Floats) -> Floats:
        return self.problem.pull(i, w)

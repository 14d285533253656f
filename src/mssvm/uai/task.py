"""An inference task about one model: which variables are maximised, which summed, what is observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mssvm.core.potentials import Query
from mssvm.uai.model import FactorModel, Problem


@dataclass(frozen=True, eq=False)
class Task:
    """PR and MAR sum over everything; MAP maximises over everything, MMAP over ``asked`` with the rest summed."""

    name: str
    problem: Problem
    query: Query
    asked: tuple[int, ...]
    eps_y: float
    eps_h: float

    @classmethod
    def of(cls, name: str, model: FactorModel, evidence: Mapping[int, int], asked: Sequence[int] | None = None) -> Task:
        problem = model.problem()
        everything = tuple(range(model.n_vars))
        outputs = {"PR": (), "MAR": (), "MAP": everything}.get(name, tuple(asked or ()))
        eps_y, eps_h = {"PR": (1.0, 1.0), "MAR": (1.0, 1.0), "MAP": (0.0, 0.0)}.get(name, (0.0, 1.0))
        return cls(name, problem, problem.query(outputs, evidence), outputs, eps_y, eps_h)

    @property
    def maximises(self) -> bool:
        return self.eps_y == 0.0

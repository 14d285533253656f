"""Factor models of UAI files, p(x) ~ prod_a f_a(x_a), as a ``Batch`` with potentials, and tasks about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology


@dataclass(frozen=True, eq=False)
class UaiModel:
    """Nonnegative tables, C-ordered in scope order; scopes of any order, also empty.

    ``labels`` are the names that variables carry in the file (0 .. n-1 unless the format allows others).
    """

    cards: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    tables: tuple[Floats, ...]
    kind: str = "MARKOV"
    labels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.labels:
            object.__setattr__(self, "labels", tuple(range(len(self.cards))))
        for f, (scope, table) in enumerate(zip(self.scopes, self.tables, strict=True)):
            size = int(np.prod([self.cards[v] for v in scope], dtype=object))
            if table.shape != (size,):
                raise InputError(f"factor {f} has a table of shape {table.shape}; its scope needs ({size},).")

    @property
    def n_vars(self) -> int:
        return len(self.cards)

    def problem(self) -> UaiProblem:
        """theta = log tables; factors of order one become unaries, of order zero the constant."""
        unary = [np.zeros(card) for card in self.cards]
        constant = 0.0
        scopes: list[tuple[int, ...]] = []
        tables: list[Floats] = []
        for scope, table in zip(self.scopes, self.tables, strict=True):
            with np.errstate(divide="ignore"):
                log_table = np.log(table)
            if not scope:
                constant += float(log_table[0])
            elif len(scope) == 1:
                unary[scope[0]] = unary[scope[0]] + log_table
            else:
                scopes.append(scope)
                tables.append(log_table)
        batch = Batch.build([Topology(self.cards, tuple(scopes))])
        theta = Potentials(np.concatenate([np.zeros(0), *unary]), np.concatenate([np.zeros(0), *tables]))
        return UaiProblem(batch, theta, constant)


@dataclass(frozen=True, eq=False)
class UaiProblem:
    """One instance ready for inference; ``constant`` is to be added to every value."""

    batch: Batch
    theta: Potentials
    constant: float

    def query(self, outputs: Sequence[int], evidence: Mapping[int, int]) -> Query:
        """The named variables are outputs, the others hidden; evidence is a mask of allowed states."""
        output = np.zeros(self.batch.n_vars, dtype=bool)
        output[list(outputs)] = True
        variables = np.fromiter(evidence.keys(), dtype=np.int64, count=len(evidence))
        states = np.fromiter(evidence.values(), dtype=np.int64, count=len(evidence))
        return Query.of(self.batch, output).clamp(self.batch, variables, states)


@dataclass(frozen=True, eq=False)
class UaiTask:
    """PR and MAR sum over everything; MAP maximises over everything, MMAP over ``asked`` with the rest summed."""

    name: str
    problem: UaiProblem
    query: Query
    asked: tuple[int, ...]
    eps_y: float
    eps_h: float

    @classmethod
    def of(cls, name: str, model: UaiModel, evidence: Mapping[int, int], asked: Sequence[int] = ()) -> UaiTask:
        problem = model.problem()
        everything = tuple(range(model.n_vars))
        if name in ("PR", "MAR"):
            outputs: tuple[int, ...] = ()
            eps_y = 1.0
            eps_h = 1.0
        elif name == "MAP":
            outputs = everything
            eps_y = 0.0
            eps_h = 0.0
        else:
            outputs = tuple(asked)
            eps_y = 0.0
            eps_h = 1.0
        return cls(name, problem, problem.query(outputs, evidence), outputs, eps_y, eps_h)

    @property
    def maximises(self) -> bool:
        return self.eps_y == 0.0

"""The engine protocol in plain NumPy: slow, but short enough to be read as its definition.

``exact`` eliminates one variable after the other from a list of tables, ``messages`` passes messages one factor at a
time, ``chains`` is the bound by chains, ``features`` is one sparse matrix. ``inference`` decides which queries run, and
in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from mssvm.core.arrays import Bools, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch
from mssvm.engines.base import ExactSettings, Features, ParallelMap
from mssvm.engines.reference.chains import ReferenceChainPlan
from mssvm.engines.reference.exact import ReferencePlan
from mssvm.engines.reference.features import linear
from mssvm.engines.reference.messages import ReferenceMessagePlan


@dataclass(frozen=True)
class ReferenceEngine:
    """The reference engine: one instance and one table at a time."""

    threads: int = 1
    name = "reference"
    idle = 1

    @property
    def parallel_map(self) -> ParallelMap:
        return _in_turn

    def exact(self, batch: Batch, settings: ExactSettings) -> ReferencePlan:
        return ReferencePlan(batch, settings)

    def messages(self, batch: Batch) -> ReferenceMessagePlan:
        return ReferenceMessagePlan(batch)

    def chains(self, batch: Batch, instances: Ints, hidden: Bools | None) -> ReferenceChainPlan:
        if hidden is not None:
            raise UnsupportedError("the reference engine has the decomposition bound at one temperature only.")
        return ReferenceChainPlan(batch, instances)

    def linear(self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> Features:
        return linear(batch, terms, offset, n_weights)


def _in_turn(function: Any, *columns: Any) -> list[Any]:
    return list(starmap(function, zip(*columns, strict=True)))

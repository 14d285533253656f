"""Settings of the decomposition bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import Engine
from mssvm.inference.decomposition.plan import DecompositionPlan

BLOCK_INSTANCES = 128  # instances of a block: vectors enough for 16 threads
BLOCK_NUMBERS = 1 << 26  # upper limit on the entries of messages and tables of a block, per neighbour of a variable


@dataclass(frozen=True)
class Decompose(Settings):
    """A convergent upper bound on pairwise graphs with cycles, tree-reweighted; exact on forests.

    The graph is taken apart into chains (a grid into its rows and columns) that share their variables' scores, and
    messages shift these between chains until every variable has the same marginals in all of them. The bound falls with
    every sweep. Values are upper bounds, marginals their gradients; ``Status`` has a lower bound too. Training and
    prediction must use the same inference: weights fit the inference that they were trained with.

    Parameters
    ----------
    sweeps : largest number of sweeps of an answer that starts without messages.
    warm_sweeps : sweeps of every evaluation in training, which continues from the messages of the last one.
    tolerance : the bound has converged when a sweep lowers it by at most this, per variable and unit of temperature.
    memory_limit, operations_limit : what exact inference may use on an instance, where it is exact.
    threads : threads of the engine where none is given; results do not depend on it.
    certified : with missing or hidden labels the difference of two bounds that training minimises is not itself a
        bound. With "report", ``diagnose`` says what the true objective is at most at the weights found. If True, a
        second stage starts from these weights, subtracts mean field instead, and minimises what is an upper bound of
        the true objective. It certifies, and does not predict better.

    >>> ms.HCRF(ms.Chain(), inference=ms.inference.Decompose(), random_state=0).fit(X, y).score(X, y)
    1.0
    """

    sweeps: int = 200
    warm_sweeps: int = 3
    tolerance: float = 1e-5
    memory_limit: int = 1 << 30
    operations_limit: float = 1e6
    threads: int = 1
    certified: bool | Literal["report"] = False

    def __post_init__(self) -> None:
        if not isinstance(self.certified, bool) and self.certified != "report":
            raise InputError(f'certified must be True, False or "report", not {shown(self.certified)}.')

    @cached_property
    def _engine(self) -> Engine:
        return engine_of("auto", self.threads)

    def converges(self, batch: Batch) -> bool:
        """Whether small changes of weights change all values little, so that L-BFGS can minimise them."""
        return True

    def block_states(self, batch: Batch) -> int:
        """The least number of states that training evaluates at once: enough instances for all threads."""
        largest = int(np.diff(batch.unary_ptr[batch.var_ptr]).max(initial=0))
        return min(BLOCK_INSTANCES * largest, BLOCK_NUMBERS // (int(batch.cards.max(initial=1)) + 1))

    def plan(self, batch: Batch, engine: Engine | None = None) -> DecompositionPlan:
        """The bound on a batch, on an engine (default: the usual one with ``threads`` threads)."""
        return DecompositionPlan(self, batch, engine or self._engine)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        return self.plan(batch).bind(query, eps_y, eps_h)(theta)

"""Exact inference on any graph, or a refusal before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import METHODS, Engine, ExactPlan, ExactSettings


@dataclass(frozen=True)
class Exact(Settings):
    """PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta without approximation, or a MemoryLimitError before allocating.

    Parameters
    ----------
    memory_limit : bytes of workspace that an instance may need.
    threads : threads of the engine where none is given; results do not depend on it.
    restarts, seed : of the search for elimination orders.
    methods : those that an engine may choose from, cheapest first; without "side by side" every instance is computed
        alone, more slowly, and its result does not depend on the last bits of anything else in the batch. Without
        "elimination", which is exact on any graph, instances on which no other method is exact are refused.

    >>> ms.HCRF(ms.Chain(hidden=2), inference=ms.inference.Exact(), random_state=0).fit(X, y).training_["exact"]
    True
    """

    memory_limit: int = 4 << 30
    threads: int = 1
    restarts: int = 8
    seed: int = 0
    methods: tuple[str, ...] = METHODS

    def __post_init__(self) -> None:
        if isinstance(self.methods, str) or not self.methods or any(name not in METHODS for name in self.methods):
            known = ", ".join(map(repr, METHODS))
            raise InputError(f"methods must be a tuple of some of {known}, got {shown(self.methods)}.")

    def plan(self, batch: Batch, engine: Engine | None = None) -> ExactPlan:
        settings = ExactSettings(self.memory_limit, self.restarts, self.seed, tuple(self.methods))
        return (engine or engine_of("auto", self.threads)).exact(batch, settings)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        return self.plan(batch).bind(query, eps_y, eps_h)(theta)

"""Marginal MAP within a time limit, as an inference: the search of ``search`` on every instance of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.inference.base import Inference
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.exact import Exact
from mssvm.uai.search import AnytimeSearch, SearchProgress, SearchResult, warm


@dataclass(frozen=True)
class Anytime:
    """Marginal MAP within a time limit per instance (seconds), as an inference at eps_y = 0.

    ``starts`` are inferences whose decoded outputs the search begins with. mu is that of the outputs found, computed
    exactly within ``memory_limit`` bytes.
    """

    time_limit: float = 20.0
    ibound: int = 14
    memory_limit: int = 4 << 30
    seed: int = 0
    starts: tuple[Inference, ...] = ()
    report: Callable[[SearchProgress], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not (self.time_limit >= 0.0 and 1 <= self.ibound <= 32):
            raise InputError(f"time_limit must be >= 0 and ibound 1 to 32, got {self.time_limit} and {self.ibound}.")

    def search(self, batch: Batch, b: int, theta: Potentials, query: Query, eps_h: float) -> SearchResult:
        """The search on instance b; what has to be compiled for it is compiled before its time begins."""
        warm(self.starts)
        one = batch.select([b])
        rows = slice(int(batch.var_ptr[b]), int(batch.var_ptr[b + 1]))
        alone = Query(query.output[rows], query.allowed[batch.state_span(b)])
        tables = np.zeros(one.n_table_entries)
        for at, source, size in zip(one.table_at, batch.table_at[batch.factor_ptr[b] :], one.table_sizes, strict=False):
            tables[at : at + size] = theta.tables[source : source + size]
        scores = Potentials(theta.unary[batch.state_span(b)], tables)
        starts = tuple(lambda s=start: s(one, scores, alone, 0.0, eps_h).decode(one) for start in self.starts)
        instance = OneInstance.of(one, 0, scores, alone)
        return AnytimeSearch(instance, eps_h, self.ibound, self.time_limit, self.seed, starts, self.report).run()

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        if eps_y != 0.0:
            raise UnsupportedError(f"anytime search maximises over outputs and needs eps_y = 0, got {eps_y}.")
        theta.check(batch)
        query.check(batch)
        found = [self.search(batch, b, theta, query, eps_h) for b in range(len(batch))]
        states = np.concatenate([np.zeros(0, dtype=np.int64), *(f.states for f in found)])
        outputs = np.flatnonzero(query.output)
        clamped = query.clamp(batch, outputs, states[outputs])
        belief = Exact(self.memory_limit)(batch, theta, clamped, 0.0, eps_h)
        return replace(belief, status=_status(belief.value, found))


def _status(value: Floats, found: list[SearchResult]) -> Status:
    n = len(found)
    proven = np.array([f.proven for f in found], dtype=bool)
    upper = np.array([f.upper for f in found])
    sweeps = np.ones(n, dtype=np.int64)
    return Status(("anytime search",) * n, proven, proven, sweeps, upper - value, value.copy(), upper)

"""Anytime marginal MAP: an incumbent and an upper bound that only ever improve (paper eq. 5 at eps_y = 0).

``AnytimeSearch`` (``search``) does the work on one instance; ``Anytime`` has its settings, and runs it on every
instance of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.inference.base import Inference
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.exact import Exact
from mssvm.inference.propagation import Propagate
from mssvm.uai.incumbent import SearchProgress
from mssvm.uai.search import AnytimeSearch, SearchResult, Start, Starts, Suggestion

InferenceCall = tuple[Batch, Potentials, Query, float, float]


@dataclass(frozen=True)
class Anytime:
    """Marginal MAP within a time limit per instance (seconds), as an inference at eps_y = 0.

    The search begins with the decoded outputs of the inferences ``starts``. Others follow the first of them, some at
    once, some later and only if bounds stay far apart:

        the first was                                  then
        exact for its own model                        ``closer`` ones later
        not exact, but better than all before          ``coarser`` ones at once; ``again`` later if none was exact
        not exact, and no better, but only a little    ``coarser`` ones later
        much worse than the best                       none

    ``closer`` inferences are closer to the model than the first, ``coarser`` ones less close, ``again`` has more time.
    mu holds the marginals given the outputs found, computed exactly within ``memory_limit`` bytes. A ``deadline`` is a
    moment of the monotonic clock. Tables have at most ``2**ibound`` entries; where time and memory allow, bounds on the
    whole output space use tables up to ``2**widest`` times as large, and the evaluation of a single assignment tables
    up to 64 times as large. With several ``threads`` one proves and the others search locally and help it; ``report``
    is called on any of them, one after the other.
    """

    time_limit: float = 20.0
    ibound: int = 16
    memory_limit: int = 4 << 30
    seed: int = 0
    starts: tuple[Inference, ...] = ()
    report: Callable[[SearchProgress], None] | None = field(default=None, compare=False)
    deadline: float = np.inf
    widest: int = 0
    again: tuple[Inference, ...] = ()
    closer: tuple[Inference, ...] = ()
    coarser: tuple[Inference, ...] = ()
    threads: int = 1

    def __post_init__(self) -> None:
        if not (self.time_limit >= 0.0 and 1 <= self.ibound <= 32):
            raise InputError(f"time_limit must be >= 0 and ibound 1 to 32, got {self.time_limit} and {self.ibound}.")
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")

    def search(self, batch: Batch, b: int, theta: Potentials, query: Query, eps_h: float) -> SearchResult:
        """Search for the best outputs of instance b."""
        single, scores, single_query = _single_instance(batch, b, theta, query)
        call = (single, scores, single_query, 0.0, eps_h)
        starts = Starts(
            first=tuple(_start(inference, call) for inference in self.starts),
            closer=tuple(_start(inference, call) for inference in self.closer),
            coarser=tuple(_start(inference, call) for inference in self.coarser),
            again=tuple(_start(inference, call) for inference in self.again),
        )
        instance = OneInstance.of(single, 0, scores, single_query)
        return AnytimeSearch(self, instance, eps_h, starts).run()

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        if eps_y != 0.0:
            raise UnsupportedError(f"anytime search maximises over outputs and needs eps_y = 0, got {eps_y}.")
        theta.check(batch)
        query.check(batch)
        results = [self.search(batch, b, theta, query, eps_h) for b in range(len(batch))]
        states = np.concatenate([np.zeros(0, dtype=np.int64), *(result.states for result in results)])
        outputs = np.flatnonzero(query.output)
        clamped = query.clamp(batch, outputs, states[outputs])
        belief = Exact(self.memory_limit)(batch, theta, clamped, 0.0, eps_h)
        return replace(belief, status=_status(belief.value, results))


def _single_instance(batch: Batch, b: int, theta: Potentials, query: Query) -> tuple[Batch, Potentials, Query]:
    """Instance b as a batch of its own, with its potentials and query."""
    single = batch.select([b])
    variables = slice(int(batch.var_ptr[b]), int(batch.var_ptr[b + 1]))
    states = batch.state_span(b)
    tables = np.zeros(single.n_table_entries)
    sources = batch.table_at[batch.factor_ptr[b] :]
    for target, source, size in zip(single.table_at, sources, single.table_sizes, strict=False):
        tables[target : target + size] = theta.tables[source : source + size]
    return single, Potentials(theta.unary[states], tables), Query(query.output[variables], query.allowed[states])


def _start(inference: Inference, call: InferenceCall) -> Start:
    """A function from seconds to the outputs that this inference decodes."""

    def suggest(seconds: float) -> Suggestion:
        belief = within_seconds(inference, seconds, call)
        return Suggestion(belief.decode(call[0]), bool(belief.status.exact[0]))

    return suggest


def within_seconds(inference: Inference, seconds: float, call: InferenceCall) -> Belief:
    """The inference's belief; propagation makes as many sweeps as fit in the time, judging by its first."""
    if isinstance(inference, Propagate):
        began = monotonic()
        replace(inference, max_sweeps=1)(*call)
        seconds_per_sweep = max(monotonic() - began, 1e-9)
        sweeps = int(np.clip(seconds / seconds_per_sweep - 1.0, 1, inference.max_sweeps))
        inference = replace(inference, max_sweeps=sweeps)
    return inference(*call)


def _status(value: Floats, results: list[SearchResult]) -> Status:
    n = len(results)
    proven = np.array([result.proven for result in results], dtype=bool)
    upper = np.array([result.upper for result in results])
    sweeps = np.ones(n, dtype=np.int64)
    return Status(("anytime search",) * n, proven, proven, sweeps, upper - value, value.copy(), upper)

"""Exact inference for the instances within its limits, propagation or a bound for all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch, mask_from_indices
from mssvm.engines import engine_of
from mssvm.engines.base import BoundQuery, Engine, ExactPlan, ExactSettings, Pair, Plan, TwoCalls

if TYPE_CHECKING:
    from mssvm.inference.decomposition.plan import DecompositionPlan

WIDE = ("propagate", "decompose")  # methods for instances on which exact inference does not fit


@dataclass(frozen=True)
class Auto(Settings):
    """``Exact`` for instances whose elimination fits the limits, ``wide`` for the others (see ``Status.method``).

    Parameters
    ----------
    memory_limit : bytes of workspace that exact inference may use on an instance.
    operations_limit : table entries that exact inference may visit in a call on an instance.
    sweeps : exact inference may also visit as many table entries as this number of sweeps of propagation: chains with
        factors of three labels are then exact whatever their length.
    effort : of propagation: "fast", "normal", "careful" or a number.
    wide : the method where exact inference does not fit: "propagate" (belief propagation) or "decompose" (a
        convergent upper bound, on graphs whose factors join two variables; belief propagation on others).
    threads : threads of the engine where none is given; results do not depend on it.
    seed : of propagation.

    >>> ms.HCRF(ms.Chain(), inference=ms.inference.Auto(operations_limit=1e6)).fit(X, y).score(X, y)
    1.0
    """

    memory_limit: int = 1 << 30
    operations_limit: float = 2e8
    sweeps: float = 0.0
    effort: int | str = "normal"
    threads: int = 1
    seed: int = 0
    wide: str = "propagate"

    def __post_init__(self) -> None:
        if self.wide not in WIDE:
            raise InputError(f"wide is {self.wide!r}; it must be one of {', '.join(map(repr, WIDE))}.")

    def converges(self, batch: Batch) -> bool:
        """Whether small changes of weights change all values little, so that L-BFGS can minimise them."""
        return self.wide == "decompose" and bool(batch.pairwise.all())

    def block_states(self, batch: Batch) -> int:
        """States of a batch that training evaluates at once, at least."""
        if not self.converges(batch) or not has_cycles(batch).any():
            return 0
        from mssvm.inference.decomposition import Decompose  # its kernels are loaded only when used

        return Decompose().block_states(batch)

    def plan(self, batch: Batch, engine: Engine | None = None) -> AutoPlan:
        engine = engine or engine_of("auto", self.threads)
        operations = np.maximum(self.operations_limit, self.sweeps * entries_per_sweep(batch))
        settings = ExactSettings(self.memory_limit, operations_limit=float(operations.max(initial=0.0)))
        return AutoPlan(self, batch, engine, engine.exact(batch, settings), operations)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        return self.plan(batch).bind(query, eps_y, eps_h)(theta)


def has_cycles(batch: Batch) -> Bools:
    """Per instance: are there more factors than a forest can have, so that the graph must have a cycle?"""
    return np.asarray(np.diff(batch.factor_ptr) >= np.maximum(np.diff(batch.var_ptr), 1))


def entries_per_sweep(batch: Batch) -> Floats:
    """Per instance: table entries that a sweep of propagation visits, those of every factor once for each variable."""
    visited = [float((graph.scope_sizes * graph.table_sizes).sum()) for graph in batch.topologies]
    return np.array(visited)[batch.topology_of]


@dataclass(frozen=True, eq=False)
class AutoPlan:
    """The plans of a batch by every method; all but the exact one are made when an instance needs them. ``operations``
    has the table entries that exact inference may visit in every instance."""

    settings: Auto
    batch: Batch
    engine: Engine
    exact: ExactPlan
    operations: Floats

    @cached_property
    def _propagation(self) -> Plan:
        from mssvm.inference.propagation import Propagate  # its kernels are loaded only when used

        return Propagate(effort=self.settings.effort, seed=self.settings.seed).plan(self.batch, self.engine)

    def fits(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is exact inference within the limits?

        Two temperatures restrict the order of elimination, so an instance that is too wide at one temperature is too
        wide at two. One temperature is measured first: that costs one search per graph, while two temperatures need a
        search for every pattern of roles.
        """
        if eps_y != eps_h and self._cyclic.any():
            narrow = self.fits(query, eps_h, eps_h)
            if not narrow.any():
                return narrow
        costs = self.exact.costs(query, eps_y, eps_h)
        enough_memory = costs.bytes <= self.settings.memory_limit
        return enough_memory & (costs.operations <= self.operations)

    @cached_property
    def _cyclic(self) -> Bools:
        """Per instance: does it certainly have a cycle?"""
        return has_cycles(self.batch)

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> BoundQuery:
        query.check(self.batch)
        return self._bind(query, eps_y, eps_h, self.fits(query, eps_y, eps_h), instances)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        fits = self.fits(query, eps_y, eps_h)
        bounded = self.settings.wide == "decompose"
        # A search for elimination orders takes as long as many sweeps, and its orders would not be used.
        if bounded and not fits.any():
            narrower_fits = fits
        else:
            narrower_fits = self.fits(narrower, eps_y, eps_h)
        if fits.all() and narrower_fits.all():
            return self.exact.pair(query, narrower, eps_y, eps_h)
        query.check(self.batch)
        narrower.check(self.batch)
        if bounded:  # the difference of two bounds; forests are exact there too
            narrower_fits = narrower_fits & fits
        known = bool(np.all(narrower.n_allowed(self.batch) == 1))
        plus = self._bind(query, eps_y, eps_h, fits, side="plus", known=known)
        minus = self._bind(narrower, eps_y, eps_h, narrower_fits, side="minus")
        if not bounded:
            return TwoCalls(plus, minus)
        from mssvm.inference.decomposition.plan import bound_pair  # its kernels are loaded only when used

        return bound_pair(plus, minus)

    def memory(self) -> dict[str, Floats]:
        return self._decomposition.memory() if "_decomposition" in self.__dict__ else {}

    def recall(self, name: str, messages: Floats) -> None:
        self._decomposition.recall(name, messages)

    def precise(self) -> AutoPlan:
        """This plan with decomposition bounds that sweep for longer, for proofs."""
        plan = replace(self)
        plan.__dict__["_decomposition"] = self._decomposition.precise()
        return plan

    def factor_weights(self, instances: Ints) -> Floats:
        """By factor, rho of its chain in the decomposition bound of the named instances."""
        return self._decomposition.factor_weights(instances)

    @cached_property
    def _decomposition(self) -> DecompositionPlan:
        from mssvm.inference.decomposition import Decompose  # its kernels are loaded only when used

        return Decompose(memory_limit=self.settings.memory_limit).plan(self.batch, self.engine)

    def _bind(
        self,
        query: Query,
        eps_y: float,
        eps_h: float,
        fits: Bools,
        instances: Ints | None = None,
        side: str = "",
        known: bool = False,
    ) -> BoundQuery:
        """Each instance by its method; ``side`` names the query in training, which continues from earlier messages;
        ``known``: all labels are known."""
        named = mask_from_indices(instances, len(self.batch))
        if not (named & ~fits).any():
            return self.exact.bind(query, eps_y, eps_h, instances)
        bounded = named & ~fits & self.batch.pairwise & (self.settings.wide == "decompose")
        propagated = named & ~fits & ~bounded
        parts: list[tuple[Bools, BoundQuery]] = []
        if (named & fits).any():
            parts.append((fits, self.exact.bind(query, eps_y, eps_h, np.flatnonzero(named & fits))))
        if bounded.any():
            bound = self._decomposition.bound(query, eps_y, eps_h, np.flatnonzero(bounded), side, known)
            parts.append((bounded, bound))
        if propagated.any():
            parts.append((propagated, self._propagation.bind(query, eps_y, eps_h, np.flatnonzero(propagated))))
        answer = parts[0][1]
        for mine, part in parts[1:]:
            answer = ByMethod(~mine, answer, part)
        return answer


@dataclass(frozen=True, eq=False)
class ByMethod:
    """The answers of two methods as one belief; ``from_first`` masks the instances of the first."""

    from_first: Bools
    first: BoundQuery
    second: BoundQuery

    def __call__(self, theta: Potentials) -> Belief:
        return merge_beliefs(self.first(theta), self.second(theta), self.from_first)


def merge_beliefs(first: Belief, second: Belief, from_first: Bools) -> Belief:
    """One belief of two, each with marginals zero on the other's instances; ``from_first`` masks those of the first."""

    def choose(name: str) -> AnyArray:
        return np.asarray(np.where(from_first, getattr(first.status, name), getattr(second.status, name)))

    both_methods = zip(first.status.method, second.status.method, from_first, strict=True)
    status = Status(
        method=tuple(one if use_first else two for one, two, use_first in both_methods),
        exact=choose("exact"),
        converged=choose("converged"),
        sweeps=choose("sweeps"),
        residual=choose("residual"),
        lower=choose("lower"),
        upper=choose("upper"),
    )
    mu = Marginals(first.mu.unary + second.mu.unary, first.mu.tables + second.mu.tables)
    return replace(first, value=np.where(from_first, first.value, second.value), mu=mu, status=status)

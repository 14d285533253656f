"""The engine protocol: the only interface between inference and compiled code (CPU, GPU, or plain NumPy).

    engine.exact(batch)     -> Plan          exact nested power sums (paper eq. 5) on any graph
    engine.messages(batch)  -> MessagePlan   belief propagation (``engines.messages``)
    engine.linear(batch, terms, offset, n_weights) -> Features    scores of linear models, and their transpose
    plan.bind(query, eps_y, eps_h) -> BoundQuery    strategies, orders, masks and workspaces are resolved here, once
    bound_query(theta)      -> Belief        run many times
    features.joined(pair, cost) -> Joined    from weights to values and gradient in one call, where an engine can

Plan once, bind once, run many: engines cache no bound queries, so a caller that runs a query often keeps it. How a
batch is run (lanes, sub-blocks, threads) is up to the engine and never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, log2
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import MemoryLimitError, UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status, segment_argmax
from mssvm.core.segments import SegmentLayout
from mssvm.core.terms import Term
from mssvm.core.topology import Batch
from mssvm.engines.messages import MessagePlan


class ParallelMap(Protocol):
    """``function`` of every row of ``columns``; results in order (``core.threads.Workers.parallel_map``)."""

    def __call__(self, function: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]: ...


class BoundQuery(Protocol):
    """A query at a pair of temperatures with everything but the potentials resolved: inference that is ready to run."""

    def __call__(self, theta: Potentials) -> Belief:
        """PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta of every instance, its gradient, and its status.

        A query of a subset of the instances leaves the others at value 0 and marginals 0, with an empty method.
        """
        ...


@dataclass(frozen=True, eq=False)
class Paired:
    """Values of a query (plus) and of a narrower one (minus), and the difference of their gradients, plus - minus.

    ``floored`` counts the instances whose plus value was below the minus value and was raised to it.
    """

    plus: Floats
    minus: Floats
    mu: Marginals
    plus_status: Status
    minus_status: Status
    floored: int = 0

    @classmethod
    def of(cls, plus: Belief, minus: Belief, floored: int = 0) -> Paired:
        return cls(plus.value, minus.value, plus.mu - minus.mu, plus.status, minus.status, floored)


class Pair(Protocol):
    """Paired inference: a query and a narrower one (U+ and U-), each alone or both in one call that shares work."""

    @property
    def plus(self) -> BoundQuery: ...

    @property
    def minus(self) -> BoundQuery: ...

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired: ...


class Plan(Protocol):
    """Inference on one batch, before roles, masks and temperatures are known."""

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> BoundQuery:
        """Resolve a query at a pair of temperatures, for some instances (default all)."""
        ...

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        """Resolve two queries that are always evaluated together."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A plan whose paired queries continue from the messages of earlier calls, which a checkpoint must store."""

    def memory(self) -> dict[str, Floats]:
        """The messages, by name."""
        ...

    def recall(self, name: str, messages: Floats) -> None:
        """Let the next call continue from these messages."""
        ...


METHODS = ("given states", "side by side", "tree recursion", "conditioning", "clustering", "elimination")


@dataclass(frozen=True)
class ExactSettings:
    """Limits of exact inference: bytes of workspace, restarts and seed of the search for elimination orders, and the
    methods to choose from (for engines that have several).

    With a finite ``operations_limit`` an engine may report costs beyond it, or beyond ``memory_limit``, as infinite.
    """

    memory_limit: int = 4 << 30
    restarts: int = 8
    seed: int = 0
    methods: tuple[str, ...] = METHODS
    operations_limit: float = inf


@dataclass(frozen=True, eq=False)
class Costs:
    """Predicted cost of exact inference per instance: induced width, bytes of workspace, table entries visited."""

    width: Ints
    bytes: Floats
    operations: Floats


class ExactBoundQuery(BoundQuery, Protocol):
    """Exact inference that can also compute values alone, or values and maximisers."""

    def value(self, theta: Potentials) -> Floats:
        """The values alone."""
        ...

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        """At eps_y = 0: values and maximising states; -1 for hidden variables unless eps_h = 0, and for every free
        variable of an instance without an allowed assignment."""
        ...


class ExactPlan(Plan, Protocol):
    """Exact inference on one batch; ``costs`` allocates nothing.

    Without ``marginals`` a bound query has ``value`` and ``decode`` only, and needs about half the memory.
    """

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None, marginals: bool = True
    ) -> ExactBoundQuery: ...

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs: ...


class Features(Protocol):
    """A linear model bound to the features of one batch."""

    def forward(self, w: Floats) -> Potentials:
        """theta at the weights ``w``."""
        ...

    def adjoint(self, mu: Marginals) -> Floats:
        """(d theta / d w)^T mu: for linear models the expected features."""
        ...


Joined = Callable[[Floats], tuple[Floats, Floats, Floats]]


@runtime_checkable
class JoiningFeatures(Features, Protocol):
    """Features of an engine that computes values and their gradient from weights in one call.

    One call holds the interpreter's lock once; three calls would make threads wait for it three times.
    """

    def joined(self, pair: Pair, cost: Potentials | None) -> Joined | None:
        """A function of w: the values of U+ (of scores with ``cost``) and of U-, and Phi^T (mu+ - mu-).

        It equals ``forward``, ``pair`` and ``adjoint`` in turn. None where an engine cannot join these.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """An implementation of inference. ``name`` is the string for estimators, ``threads`` the number it may use.

    >>> isinstance(ms.engines.engine_of("native"), ms.engines.Engine)
    True
    """

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def idle(self) -> int:
        """Number of threads that ``parallel_map`` would use now: 1 for a caller that itself runs inside it."""
        ...

    def exact(self, batch: Batch, settings: ExactSettings) -> ExactPlan: ...

    def messages(self, batch: Batch) -> MessagePlan: ...

    def linear(self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> Features:
        """theta = Phi w + offset (None: 0), Phi being the sum of the terms, and Phi^T mu."""
        ...

    @property
    def parallel_map(self) -> ParallelMap:
        """Maps a function over the rows of columns on this engine's threads; results in order."""
        ...


@runtime_checkable
class SegmentingEngine(Engine, Protocol):
    """An engine that also sums over segmentations."""

    def segments(self, batch: Batch, layout: SegmentLayout) -> Plan: ...


@dataclass(frozen=True, eq=False)
class TwoCalls:
    """Paired inference as two bound queries, one after the other."""

    plus: BoundQuery
    minus: BoundQuery

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        minus = self.minus(theta_minus)
        return Paired.of(self.plus(theta_plus), minus)


def decoded(batch: Batch, query: Query, belief: Belief, eps_h: float) -> Ints:
    """States of ``ExactBoundQuery.decode`` from the marginals of a call at eps_y = 0."""
    unknown = (~query.output & (eps_h > 0.0)) | (belief.value == -inf)[batch.owner]
    free = query.n_allowed(batch) > 1
    only_allowed = segment_argmax(query.allowed.astype(np.float64), batch.unary_ptr)
    return np.where(free, np.where(unknown, -1, belief.decode(batch)), only_allowed)


def check_decodable(eps_y: float) -> None:
    """Raise unless there is a maximum over outputs to decode."""
    if eps_y != 0.0:
        raise UnsupportedError(f"decode needs eps_y = 0, got {eps_y}; decode the marginals of a call instead.")


def too_large(instance: int, width: int, needed: int, limit: int, advice: str = "") -> MemoryLimitError:
    """The error for an instance whose elimination needs more bytes than allowed."""
    return MemoryLimitError(
        f"instance {instance} needs {in_bytes(needed)} for exact elimination (width {width}), more than memory_limit = "
        f"{in_bytes(limit)}; use belief propagation or raise memory_limit{advice}."
    )


def in_bytes(n: int) -> str:
    """A number of bytes as text: ``3.2 GiB``, or a power of two beyond all units."""
    if n >= 1 << 60:
        return f"2^{log2(n):.0f} bytes"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"

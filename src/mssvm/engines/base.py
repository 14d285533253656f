"""What an engine is: the one door between inference and compiled code (CPU, GPU, or plain NumPy).

    engine.exact(batch)     -> Plan          exact nested power sums (paper eq. 5) on any graph
    engine.messages(batch)  -> MessagePlan   belief propagation: what a search over starts needs (``engines.messages``)
    engine.linear(batch, terms, offset, n_weights) -> Features    scores of linear models, and their transpose
    plan.bind(query, eps_y, eps_h) -> Bound  routes, orders, masks, kernels and scratch are resolved here, once
    bound(theta)            -> Belief        run many times
    features.joined(pair, cost) -> Joined    from weights to values and gradient, where an engine can join these

Plan once, bind once, run many: nothing is looked up by identity, whoever calls often holds its bounds. How a batch is
run (lanes, sub-blocks, threads) is the engine's own business and never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, log2
from typing import Any, Protocol, runtime_checkable

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import MemoryLimitError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status, Term
from mssvm.core.topology import Batch
from mssvm.engines.messages import MessagePlan


class ParallelMap(Protocol):
    """``function`` of every row of ``columns``; results in order (``core.threads.Workers.parallel_map``)."""

    def __call__(self, function: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]: ...


class Bound(Protocol):
    """Inference with everything but the potentials resolved."""

    def __call__(self, theta: Potentials) -> Belief:
        """PS_{outputs}[eps_y] PS_{hidden}[eps_h] theta of every instance, its gradient, and what is known about it.

        A bound of some instances leaves the others at value 0, marginals 0 and ``Status.nothing``.
        """
        ...


@dataclass(frozen=True, eq=False)
class Paired:
    """Values under a query and under a narrower one, and the difference of their gradients, plus - minus.

    ``floored`` counts the instances whose first value had to be raised to the second.
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
    def plus(self) -> Bound: ...

    @property
    def minus(self) -> Bound: ...

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired: ...


class Plan(Protocol):
    """Inference on one batch, before roles, masks and temperatures are known."""

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> Bound:
        """Resolve a query at a pair of temperatures, for some instances (default all)."""
        ...

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        """Resolve two queries that are always asked together."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A plan whose paired queries go on from the messages of earlier calls: part of a checkpoint."""

    def memory(self) -> dict[str, Floats]:
        """The messages, by name."""
        ...

    def recall(self, name: str, messages: Floats) -> None:
        """Let the next call go on from these."""
        ...


METHODS = ("given states", "side by side", "tree recursion", "conditioning", "clustering", "elimination")


@dataclass(frozen=True)
class ExactSettings:
    """What exact inference may do: bytes of workspace, restarts and seed of the search for elimination orders, and
    the methods that an engine which has several may choose from (one that has not ignores them).

    Under a finite ``operations_limit`` costs that are beyond it or beyond ``memory_limit`` need not be worked out: they
    may be given as infinite."""

    memory_limit: int = 4 << 30
    restarts: int = 8
    seed: int = 0
    methods: tuple[str, ...] = METHODS
    operations_limit: float = inf


@dataclass(frozen=True, eq=False)
class Costs:
    """What exact inference would take, per instance: induced width, bytes of workspace, table entries visited."""

    width: Ints
    bytes: Floats
    operations: Floats


class ExactBound(Bound, Protocol):
    """Exact inference that can also be asked for less than marginals."""

    def value(self, theta: Potentials) -> Floats:
        """The values alone."""
        ...

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        """At eps_y = 0: values and maximising states; -1 for hidden variables unless eps_h = 0, and for every free
        variable of an instance without an allowed assignment."""
        ...


class ExactPlan(Plan, Protocol):
    """Exact inference on one batch; ``costs`` is known before anything is allocated.

    Without ``marginals`` a bound answers ``value`` and ``decode`` only, in about half the memory.
    """

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None, marginals: bool = True
    ) -> ExactBound: ...

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs: ...


class Features(Protocol):
    """A model bound to the inputs of one batch: kernels, folding of tied tables and checks are resolved."""

    def forward(self, w: Floats) -> Potentials:
        """theta at the weights ``w``."""
        ...

    def adjoint(self, mu: Marginals) -> Floats:
        """(d theta / d w)^T mu: for linear models the expected features."""
        ...


Joined = Callable[[Floats], tuple[Floats, Floats, Floats]]


@runtime_checkable
class JoiningFeatures(Features, Protocol):
    """Features of an engine that can go from weights to values and their gradient without a stop: threads wait for the
    interpreter wherever they come back to it."""

    def joined(self, pair: Pair, cost: Potentials | None) -> Joined | None:
        """The values of U+ (of scores with ``cost``) and of U- at weights w, and Phi^T (mu+ - mu-): what ``forward``,
        ``pair`` and ``adjoint`` give. None where these cannot be joined."""
        ...


@runtime_checkable
class Engine(Protocol):
    """A way to run inference. ``name`` is what estimators call it, ``threads`` how many it may use.

    >>> isinstance(ms.engines.engine_of("native"), ms.engines.Engine)
    True
    """

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def idle(self) -> int:
        """How many threads ``each`` would use here: one inside work that it runs."""
        ...

    def exact(self, batch: Batch, settings: ExactSettings) -> ExactPlan: ...

    def messages(self, batch: Batch) -> MessagePlan: ...

    def linear(self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> Features:
        """theta = Phi w + offset (None: 0), Phi being the sum of the terms, and Phi^T mu."""
        ...

    @property
    def parallel_map(self) -> ParallelMap:
        """Runs a function on every row of some columns, on this engine's threads; results in order."""
        ...


@dataclass(frozen=True, eq=False)
class TwoCalls:
    """Paired inference as two bounds, one after the other."""

    plus: Bound
    minus: Bound

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        minus = self.minus(theta_minus)
        return Paired.of(self.plus(theta_plus), minus)


def too_large(instance: int, width: int, needed: int, limit: int, advice: str = "") -> MemoryLimitError:
    """The refusal of an instance whose elimination would need more bytes than allowed."""
    return MemoryLimitError(
        f"instance {instance} needs {in_bytes(needed)} for exact elimination (width {width}), more than memory_limit = "
        f"{in_bytes(limit)}; use belief propagation or raise memory_limit{advice}."
    )


def in_bytes(n: int) -> str:
    """Bytes for a reader: ``3.2 GiB``, or a power of two when no unit fits."""
    if n >= 1 << 60:
        return f"2^{log2(n):.0f} bytes"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"

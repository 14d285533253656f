"""Which instances of a batch are exact and which are bounded by chains; the messages that training continues from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.components import acyclic
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import BoundQuery, Engine, ExactPlan, ExactSettings, Pair, Paired, TwoCalls
from mssvm.engines.decomposition import ChainPlan, ChainRun, Waiting, chains_of, compute_together, marginals_of
from mssvm.inference.decomposition.answer import ChainAnswer, ChainTask

if TYPE_CHECKING:
    from mssvm.inference.decomposition.decompose import Decompose

KNOWN_SWEEPS = 20  # least number of sweeps of an evaluation where all labels are known
PROOF_TOLERANCE = 1e-8  # largest tolerance of a proof: errors of marginals add up over all variables


@dataclass(frozen=True, eq=False)
class FreeRoles:
    """The variables of a query with several allowed states; by instance, whether some of them are outputs, some are
    hidden, and whether they have fewer factors than a cycle needs. Counting is faster than following the factors."""

    free: Bools
    has_output: Bools
    has_hidden: Bools
    may_be_forest: Bools

    @classmethod
    def of(cls, batch: Batch, query: Query) -> FreeRoles:
        free = query.n_allowed(batch) > 1
        n_outputs = np.bincount(batch.owner[free & query.output], minlength=len(batch))
        n_hidden = np.bincount(batch.owner[free & ~query.output], minlength=len(batch))
        may_be_forest = np.ones(len(batch), dtype=bool)
        if batch.pairwise.all():
            ends = batch.scope_vars.reshape(-1, 2)
            joined = free[ends[:, 0]] & free[ends[:, 1]]
            n_joined = np.bincount(batch.factor_owner[joined], minlength=len(batch))
            may_be_forest = n_joined < np.maximum(n_outputs + n_hidden, 1)
        return cls(free, n_outputs > 0, n_hidden > 0, may_be_forest)


@dataclass(frozen=True, eq=False)
class DecompositionPlan:
    """The bound on one batch.

    ``runs`` are the messages of training, by side, number of temperatures (one or two) and instances; messages are
    scores, which are valid at any temperatures. ``recalled`` are the messages of a checkpoint until ``run`` first needs
    them. ``_swept`` names the runs that were swept with tables other than zero.
    """

    settings: Decompose
    batch: Batch
    engine: Engine
    runs: dict[str, ChainRun] = field(default_factory=dict, repr=False)
    recalled: dict[str, Floats] = field(default_factory=dict, repr=False)
    _plans: dict[tuple[bytes, bytes], ChainPlan] = field(default_factory=dict, repr=False)
    _swept: set[str] = field(default_factory=set, repr=False)
    _counted: list[tuple[Query, FreeRoles]] = field(default_factory=list, repr=False)

    @cached_property
    def exact(self) -> ExactPlan:
        limits = self.settings
        settings = ExactSettings(limits.memory_limit, operations_limit=limits.operations_limit)
        return self.engine.exact(self.batch, settings)

    @cached_property
    def host(self) -> Engine:
        """The engine itself if it can anneal, else one of the host: for labellings and their improvement."""
        return self.engine if hasattr(self.engine, "anneal") else engine_of("auto", self.engine.threads)

    def chains(self, instances: Ints, hidden: Bools | None) -> ChainPlan:
        """The chains of some instances, laid out once; ``hidden`` variables have a temperature of their own."""
        key = instances.tobytes(), b"" if hidden is None else hidden.tobytes()
        if key not in self._plans:
            self._plans[key] = chains_of(self.engine, self.batch, instances, hidden)
        return self._plans[key]

    def factor_weights(self, instances: Ints) -> Floats:
        """By factor, rho of its chain in the bound of the named instances."""
        return self.chains(instances, None).factor_weights()

    def precise(self) -> DecompositionPlan:
        """This plan with answers that are precise enough for proofs; it shares the chains."""
        tolerance = min(self.settings.tolerance, PROOF_TOLERANCE)
        return replace(self, settings=replace(self.settings, tolerance=tolerance))

    def memory(self) -> dict[str, Floats]:
        return {name: run.state for name, run in self.runs.items() if name in self._swept}

    def recall(self, name: str, messages: Floats) -> None:
        self.runs.pop(name, None)
        self._swept.discard(name)
        self.recalled[name] = messages

    def run(self, task: ChainTask, side: str, theta: Potentials) -> tuple[ChainRun, bool]:
        """The chains of a task with the messages of its side of training, and whether they begin without messages.

        They also begin without messages at the first theta whose tables are not all zero: the messages of earlier
        calls are rounding errors then.
        """
        if not side:
            return task.run(), True
        name = f"{side}-{2 if task.nested else 1}-{blake2b(task.instances.tobytes(), digest_size=8).hexdigest()}"
        if name in self.recalled:
            self.runs[name] = task.run()
            self.runs[name].restore(self.recalled.pop(name))
            self._swept.add(name)
        cold = name not in self._swept and bool(np.any(theta.tables))
        if cold:
            self.runs.pop(name, None)  # messages of sweeps without tables are rounding errors
            self._swept.add(name)
        if name not in self.runs:
            self.runs[name] = task.run()
        return self.runs[name], cold

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> BoundQuery:
        """Every call begins without messages and sweeps until the bound has converged."""
        return self.bound(query, eps_y, eps_h, instances, "")

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        """Two queries of training: each call continues from the messages of the last one."""
        plus = self.bound(query, eps_y, eps_h, None, "plus", bool(np.all(narrower.n_allowed(self.batch) == 1)))
        return BothBounds(plus, self.bound(narrower, eps_y, eps_h, None, "minus"))

    def bound(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None, side: str, known: bool = False
    ) -> DecompositionBoundQuery:
        """The bound of some instances.

        With a ``side`` (of training) calls continue from the messages of the last one; with "" every call begins
        without messages. If all labels are ``known``, training is convex and has a certificate, which is read from
        the messages: more sweeps pay then.
        """
        query.check(self.batch)
        eps_y = temperature(eps_y, "eps_y")
        eps_h = temperature(eps_h, "eps_h")
        every = np.arange(len(self.batch)) if instances is None else np.asarray(instances, dtype=np.int64)
        fits = self._fits(query, eps_y, eps_h, every)
        exact = every[fits]
        others = every[~fits]
        wide = others[~self.batch.pairwise[others]]
        if len(wide):
            raise UnsupportedError(
                f"instance {int(wide[0])} has factors of more than two variables, which are not taken apart into "
                "chains; use inference='auto' or 'propagate'."
            )
        bound = self.exact.bind(query, eps_y, eps_h, exact) if len(exact) else None
        tasks = [ChainTask(self, query, *task) for task in self._tasks(query, eps_y, eps_h, others)]
        sweeps = max(self.settings.warm_sweeps, KNOWN_SWEEPS if known else 1)
        return DecompositionBoundQuery(self, bound, exact, tasks, side, sweeps)

    def _fits(self, query: Query, eps_y: float, eps_h: float, instances: Ints) -> Bools:
        """Whether an instance has no cycle among its free variables and exact inference is cheap there."""
        roles = self._roles(query)
        if not roles.may_be_forest[instances].any():
            return np.zeros(len(instances), dtype=bool)
        forest = acyclic(self.batch, roles.free)
        if not forest[instances].any():
            return np.zeros(len(instances), dtype=bool)
        costs = self.exact.costs(query, eps_y, eps_h)
        limits = self.settings
        cheap = (costs.bytes <= limits.memory_limit) & (costs.operations <= limits.operations_limit)
        return np.asarray((forest & cheap)[instances])

    def _roles(self, query: Query) -> FreeRoles:
        """Counted once a query: training binds the same two at several temperatures."""
        for known, roles in self._counted:
            if known.output is query.output and known.allowed is query.allowed:
                return roles
        roles = FreeRoles.of(self.batch, query)
        self._counted[:] = [*self._counted, (query, roles)][-2:]
        return roles

    def _tasks(self, query: Query, eps_y: float, eps_h: float, instances: Ints) -> Iterator[tuple[Ints, float, float]]:
        """Instances with the temperatures that matter to them: those of roles that free variables have."""
        roles = self._roles(query)
        has_output = roles.has_output[instances]
        has_hidden = roles.has_hidden[instances]
        both = has_output & has_hidden & (eps_y != eps_h)
        at_y = has_output & ~both
        for chosen, *eps in ((both, eps_y, eps_h), (at_y, eps_y, eps_y), (~both & ~at_y, eps_h, eps_h)):
            if chosen.any():
                yield instances[chosen], eps[0], eps[1]


@dataclass(frozen=True, eq=False)
class DecompositionBoundQuery:
    """A query at a pair of temperatures: exact inference on some instances, chains on the others."""

    plan: DecompositionPlan
    exact: BoundQuery | None
    exact_instances: Ints
    tasks: list[ChainTask]
    side: str
    warm_sweeps: int

    def __call__(self, theta: Potentials) -> Belief:
        return self.begin(theta).result()

    def begin(self, theta: Potentials) -> BegunBound:
        """Begin, on a device perhaps without waiting."""
        theta.check(self.plan.batch)
        if self.exact is not None and not self.tasks:
            return BegunBound(partial(self.exact, theta), [])
        mu = marginals_of(self.plan.engine, self.plan.batch)
        answers = [ChainAnswer(task, theta, mu, self.side, self.warm_sweeps) for task in self.tasks]
        for answer in answers:
            answer.begin()

        def result() -> Belief:
            belief = _nothing(self.plan.batch, mu)
            if self.exact is not None:
                exact = self.exact(theta)
                mu.add(exact.mu)
                belief = replace(exact, value=exact.value.copy(), mu=mu)
            for answer in answers:
                belief = answer.result(belief)
            return belief

        return BegunBound(result, [answer.wait for answer in answers if self.side])


@dataclass(frozen=True)
class BegunBound:
    """A call that has begun: ``result`` waits for it; in training ``waiting`` has the answers of its chains."""

    result: Callable[[], Belief]
    waiting: list[Waiting]


@dataclass(frozen=True, eq=False)
class BothBounds:
    """Paired inference by two bounds, which a device, or the threads of the host, may compute at the same time."""

    plus: DecompositionBoundQuery
    minus: DecompositionBoundQuery

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        minus = self.minus.begin(theta_minus)
        plus = self.plus.begin(theta_plus)
        compute_together(plus.waiting, minus.waiting)
        narrower = minus.result()
        return Paired.of(plus.result(), narrower)


def bound_pair(plus: BoundQuery, minus: BoundQuery) -> Pair:
    """A pair of queries, which begin together where both are bounds."""
    if isinstance(plus, DecompositionBoundQuery) and isinstance(minus, DecompositionBoundQuery):
        return BothBounds(plus, minus)
    return TwoCalls(plus, minus)


def _nothing(batch: Batch, mu: Marginals) -> Belief:
    """Zeros for all instances; ``mu`` is filled later."""
    n = len(batch)
    status = Status(
        ("",) * n,
        np.zeros(n, dtype=bool),
        np.zeros(n, dtype=bool),
        np.zeros(n, dtype=np.int64),
        np.full(n, np.inf),
        np.full(n, np.nan),
        np.full(n, np.nan),
    )
    return Belief(np.zeros(n), mu, status)

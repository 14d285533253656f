"""How ``mssvm infer`` answers: exactly, by propagation and search, by bounds, or by whichever fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import MemoryLimitError
from mssvm.core.potentials import Belief, Query
from mssvm.engines.base import METHODS, Costs, ExactPlan
from mssvm.inference.bounds import Bounded, MiniBucket
from mssvm.inference.enumerate import score
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.uai.anytime import Anytime
from mssvm.uai.search import TOLERANCE, Found, Progress
from mssvm.uai.task import Task

# Exact elimination visits table entries at about this rate; only used to decide whether it fits in the time limit.
SECONDS_PER_ENTRY = 1e-7
# Restarts of the search for an elimination order: the second number only where the first found none that fits.
RESTARTS = (8, 40)
# Searches and propagation never build a table of more than 2**SMALL entries.
SMALL = 14
BOUND_IBOUND = 12


@dataclass(frozen=True)
class Settings:
    """Limits of one command, and whom to tell about progress."""

    time_limit: float
    memory_limit: int
    seed: int
    report: Callable[[Progress], None] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """``value`` in nats, of ``states`` where there are any; ``lower`` <= optimum <= ``upper`` unless NaN."""

    value: float
    exact: bool
    converged: bool
    lower: float
    upper: float
    method: str
    states: Ints | None = None
    marginals: list[Floats] | None = None

    def shifted(self, constant: float) -> Answer:
        """The answer with the model's constant factors put back."""
        return replace(self, value=self.value + constant, lower=self.lower + constant, upper=self.upper + constant)


def exact(task: Task, settings: Settings) -> Answer:
    """Bucket elimination within the memory limit."""
    return _eliminated(task, settings, _elimination(task, settings)[0])


def _elimination(task: Task, settings: Settings) -> tuple[ExactPlan, Costs]:
    """Elimination with a plan for this task, and what it will cost."""
    for restarts in RESTARTS:
        exact = Exact(settings.memory_limit, restarts=restarts, seed=settings.seed, methods=METHODS[-1:])
        plan = exact.plan(task.problem.batch)
        costs = plan.costs(task.query, task.eps_y, task.eps_h, marginals=task.name == "MAR")
        if costs.bytes[0] <= settings.memory_limit:
            break
    return plan, costs


def _eliminated(task: Task, settings: Settings, plan: ExactPlan) -> Answer:
    p = task.problem
    bound = plan.bind(task.query, task.eps_y, task.eps_h, marginals=task.name == "MAR")
    if task.maximises:
        _, states = bound.decode(p.theta)
        value = _evaluate(task, states, settings)
        return Answer(value, True, True, value, value, "elimination", states).shifted(p.constant)
    if task.name == "PR":
        value, marginals = float(bound.value(p.theta)[0]), None
    else:
        belief = bound(p.theta)
        value, marginals = float(belief.value[0]), _per_variable(task, belief.mu.unary)
    return Answer(value, True, True, value, value, "elimination", None, marginals).shifted(p.constant)


def bp(task: Task, settings: Settings) -> Answer:
    """Belief propagation; for MAP and marginal MAP it starts an anytime search. Tables stay small throughout."""
    p = task.problem
    if task.maximises:
        starts = tuple(_propagation(settings.seed, start) for start in ("sum_first", "annealed"))
        return _searched(task, settings, starts)
    propagate = replace(_propagation(settings.seed), max_sweeps=1000)
    upper = MiniBucket(SMALL, seed=settings.seed, time_limit=0.5 * settings.time_limit)
    bounded = Bounded(propagate, upper, SMALL, settings.seed)
    belief = bounded(p.batch, p.theta, task.query, 1.0, 1.0, bound=True)
    return _from_belief(task, belief).shifted(p.constant)


def bound(task: Task, settings: Settings) -> Answer:
    """The mini-bucket bound; its own back-substitution is the assignment of MAP and marginal MAP."""
    p = task.problem
    mini_bucket = MiniBucket(BOUND_IBOUND, seed=settings.seed, time_limit=settings.time_limit)
    upper = float(mini_bucket(p.batch, p.theta, task.query, task.eps_y, task.eps_h)[0])
    if task.maximises:
        value, found = -np.inf, None
        for seconds in (0.0, settings.time_limit):
            # Outputs that the bound suggests may be impossible; only then is a search worth its time.
            if value == -np.inf < upper or found is None:
                search = Anytime(seconds, BOUND_IBOUND, seed=settings.seed, report=settings.report)
                found = search.search(p.batch, 0, p.theta, task.query, task.eps_h)
                value = _evaluate(task, found.states, settings)
        assert found is not None
        upper = min(upper, found.upper)
        answer = Answer(value, _closed(value, upper), True, value, upper, "mini-bucket bound", found.states)
        return answer.shifted(p.constant)
    propagate = _propagation(settings.seed)
    belief = propagate(p.batch, p.theta, task.query, 1.0, 1.0)
    lower = float(Bounded(propagate, ibound=BOUND_IBOUND).lower(p.batch, p.theta, task.query, 1.0, 1.0, belief)[0])
    marginals = _per_variable(task, belief.mu.unary) if task.name == "MAR" else None
    close = task.name == "PR" and _closed(lower, upper)
    answer = Answer(upper, close, bool(belief.status.converged[0]), lower, upper, "mini-bucket bound", None, marginals)
    return answer.shifted(p.constant)


def auto(task: Task, settings: Settings) -> Answer:
    """Exact if it fits in memory and time, else propagation and search."""
    plan, costs = _elimination(task, settings)
    seconds = costs.operations[0] * SECONDS_PER_ENTRY
    if costs.bytes[0] <= settings.memory_limit and seconds <= settings.time_limit:
        try:
            return _eliminated(task, settings, plan)
        except KeyboardInterrupt:
            return bp(task, replace(settings, time_limit=0.0))
    return bp(task, settings)


def _searched(task: Task, settings: Settings, starts: tuple[Propagate, ...]) -> Answer:
    p = task.problem
    search = Anytime(settings.time_limit, SMALL, settings.memory_limit, settings.seed, starts, settings.report)
    found = search.search(p.batch, 0, p.theta, task.query, task.eps_h)
    value, lower = (found.value, found.value) if found.evaluated else _revalued(task, found, settings)
    name = "propagation and search"
    return Answer(value, found.proven, found.proven, lower, found.upper, name, found.states).shifted(p.constant)


def _revalued(task: Task, found: Found, settings: Settings) -> tuple[float, float]:
    """Value and lower bound of outputs whose hidden part is too wide for small tables.

    Exact if memory allows; else an estimate by propagation, which is no bound.
    """
    try:
        value = _evaluate(task, found.states, settings)
        return value, value
    except MemoryLimitError:
        p = task.problem
        query = _given(task, found.states)
        return float(_propagation(settings.seed)(p.batch, p.theta, query, task.eps_h, task.eps_h).value[0]), float(
            "nan"
        )


def _propagation(seed: int, *starts: str) -> Propagate:
    """Messages on the model's own factors: nothing is merged, so no table is larger than the model's."""
    return Propagate("normal", merging=False, max_sweeps=100, seed=seed, starts=starts or None)


def _evaluate(task: Task, states: Ints, settings: Settings) -> float:
    """Exact value of an assignment: its score for MAP, the hidden variables summed out for marginal MAP."""
    p = task.problem
    if (states[task.query.output] < 0).any():
        return float("-inf")
    if task.name == "MAP":
        return float(score(p.batch, p.theta, states)[0])
    plan = Exact(settings.memory_limit, seed=settings.seed, methods=METHODS[-1:]).plan(p.batch)
    return float(plan.bind(_given(task, states), 0.0, task.eps_h, marginals=False).value(p.theta)[0])


def _given(task: Task, states: Ints) -> Query:
    outputs = np.flatnonzero(task.query.output)
    return task.query.clamp(task.problem.batch, outputs, states[outputs])


def _from_belief(task: Task, belief: Belief) -> Answer:
    status = belief.status
    value = float(belief.value[0])
    return Answer(
        # An estimate outside its certificate is certainly wrong; the nearest end is not.
        min(max(value, float(status.lower[0])), float(status.upper[0])),
        bool(status.exact[0]) or (task.name == "PR" and _closed(float(status.lower[0]), float(status.upper[0]))),
        bool(status.converged[0]),
        float(status.lower[0]),
        float(status.upper[0]),
        status.method[0],
        None,
        _per_variable(task, belief.mu.unary) if task.name == "MAR" else None,
    )


def _closed(lower: float, upper: float) -> bool:
    """Whether a certificate leaves nothing open but rounding."""
    return upper <= lower + TOLERANCE * max(1.0, abs(lower))


def _per_variable(task: Task, unary: Floats) -> list[Floats]:
    return np.split(unary, task.problem.batch.unary_ptr[1:-1]) if task.problem.batch.n_vars else []

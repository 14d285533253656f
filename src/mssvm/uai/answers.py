"""How ``mssvm infer`` answers: exactly, by propagation and search, by bounds, or by whichever fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isfinite, log
from time import monotonic

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InfeasibleError, MemoryLimitError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines.base import Costs, ExactPlan
from mssvm.inference.base import Inference
from mssvm.inference.bounds import Bounded, MiniBucket
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import score
from mssvm.inference.exact import Exact
from mssvm.inference.propagation import Propagate
from mssvm.inference.toulbar2 import Toulbar2
from mssvm.uai.anytime import TOLERANCE, Anytime, SearchProgress, SearchResult
from mssvm.uai.files import format_map, format_mar, format_mmap, format_pr
from mssvm.uai.model import UaiTask
from mssvm.uai.support import Support

# Exact elimination visits table entries at about this rate; only used to decide whether it fits in the time limit.
SECONDS_PER_ENTRY = 1e-7
# Restarts of the search for an elimination order: the second number only where the first found none that fits.
RESTARTS = (8, 40)
# Propagation never builds a table of more than 2**SMALL entries, a search none of more than 2**SEARCH_IBOUND.
SMALL = 14
SEARCH_IBOUND = 16
# Processor time of joint MAP as a start.
JOINT_SECONDS = 1.0
BOUND_IBOUND = 12


@dataclass(frozen=True)
class AnswerLimits:
    """Limits of one answer (an end by the monotonic clock, bytes), the seed of random choices, and whom to tell about
    progress, and of every answer that is better than those before."""

    deadline: float
    memory_limit: int
    seed: int
    report: Callable[[SearchProgress], None] | None = None
    keep: Callable[[Answer], None] | None = None

    @property
    def left(self) -> float:
        """Seconds."""
        return max(self.deadline - monotonic(), 0.0)

    def kept(self, found: Answer) -> None:
        """Let an answer be known, unless it is impossible."""
        if self.keep is not None and found.value > -np.inf:
            self.keep(found)


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

    def solution(self, task: UaiTask) -> str:
        """In the UAI solution format."""
        if task.name == "PR":
            return format_pr(self.value / log(10.0))
        if self.marginals is not None:
            return format_mar(self.marginals)
        assert self.states is not None
        if task.name == "MAP":
            return format_map(self.states)
        return format_mmap([(v, int(self.states[v])) for v in task.asked])

    def fields(self, task: UaiTask) -> dict[str, object]:
        """As what a JSON object holds; bounds that are not known are null."""
        states, marginals = self.states, self.marginals
        return {
            "task": task.name,
            "value_ln": self.value,
            "value_log10": self.value / log(10.0),
            "assignment": None if states is None else [[v, int(states[v])] for v in task.asked],
            "marginals": None if marginals is None else [[float(x) for x in p] for p in marginals],
            "exact": self.exact,
            "converged": self.converged,
            "lower_bound_ln": self.lower if isfinite(self.lower) else None,
            "upper_bound_ln": self.upper if isfinite(self.upper) else None,
            "method": self.method,
        }


def answer(task: UaiTask, method: str, limits: AnswerLimits) -> Answer:
    """The answer of a method of ``METHODS``, the model's constant factors included; raises if nothing is possible."""

    def whole(found: Answer) -> Answer:
        c = task.problem.constant
        return replace(found, value=found.value + c, lower=found.lower + c, upper=found.upper + c)

    keep = limits.keep
    if keep is not None:
        limits = replace(limits, keep=lambda found: keep(whole(found)))
        _first(task, limits)
    found = whole(METHODS[method](task, limits))
    if found.value == -np.inf:
        raise InfeasibleError(
            "no assignment has positive probability under this model and evidence."
            if found.exact or found.upper == -np.inf
            else "no assignment of positive probability was found in the time given; raise --time-limit."
        )
    return found


def _first(task: UaiTask, limits: AnswerLimits) -> None:
    """Keep any assignment, then one that a search made possible, before anything that may take long.

    The score of a complete assignment is a lower bound on what is asked for.
    """
    p, best = task.problem, -np.inf
    support = Support(OneInstance.of(p.batch, 0, p.theta, task.query))
    unary, at = support.instance.unary, p.batch.unary_ptr
    marginals = None
    if task.name == "MAR":
        shares = np.exp(unary - np.repeat(np.maximum.reduceat(unary, at[:-1]), p.batch.cards))
        shares /= np.repeat(np.add.reduceat(shares, at[:-1]), p.batch.cards)
        marginals = _per_variable(task, Marginals(shares, p.theta.tables))
    finders: tuple[Callable[[], Ints | None], ...] = (support.greedy, lambda: support.find(limits.deadline))
    for find in finders:
        states = find()
        value = -np.inf if states is None else support.score(states)
        if states is not None and value > best:
            best, outputs = value, np.where(task.query.output, states, -1) if task.maximises else None
            limits.kept(Answer(value, False, False, value, np.nan, "first assignment", outputs, marginals))


def exact(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Bucket elimination within the memory limit."""
    return _eliminated(task, limits, _plan(task, limits)[0])


def _plan(task: UaiTask, limits: AnswerLimits) -> tuple[ExactPlan, Costs]:
    """A plan of elimination that fits the memory limit, if one is found, and what it will cost."""
    for restarts in RESTARTS:
        plan = _elimination(limits, restarts).plan(task.problem.batch)
        costs = plan.costs(task.query, task.eps_y, task.eps_h, marginals=task.name == "MAR")
        if costs.bytes[0] <= limits.memory_limit:
            break
    return plan, costs


def _elimination(limits: AnswerLimits, restarts: int) -> Exact:
    return Exact(limits.memory_limit, restarts=restarts, seed=limits.seed, methods=("elimination",))


def _eliminated(task: UaiTask, limits: AnswerLimits, plan: ExactPlan) -> Answer:
    theta, states, marginals = task.problem.theta, None, None
    bound = plan.bind(task.query, task.eps_y, task.eps_h, marginals=task.name == "MAR")
    if task.maximises:
        states = bound.decode(theta)[1]
        value = _evaluate(task, states, limits)
    elif task.name == "MAR":
        belief = bound(theta)
        value, marginals = float(belief.value[0]), _per_variable(task, belief.mu)
    else:
        value = float(bound.value(theta)[0])
    return Answer(value, True, True, value, value, "elimination", states, marginals)


def bp(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Belief propagation; for MAP and marginal MAP it starts an anytime search. Tables stay small throughout."""
    if task.maximises:
        return _searched(task, limits)
    p = task.problem
    propagate = replace(_propagation(limits.seed), max_sweeps=1000)
    belief = propagate(p.batch, p.theta, task.query, 1.0, 1.0)
    limits.kept(_from_belief(task, belief))
    upper = MiniBucket(SMALL, seed=limits.seed, time_limit=0.5 * limits.left)
    bounded = Bounded(lambda *_: belief, upper, SMALL, limits.seed)
    return _from_belief(task, bounded(p.batch, p.theta, task.query, 1.0, 1.0, bound=True))


def bound(task: UaiTask, limits: AnswerLimits) -> Answer:
    """The mini-bucket bound; its own back-substitution is the assignment of MAP and marginal MAP."""
    p, name = task.problem, "mini-bucket bound"
    mini_bucket = MiniBucket(BOUND_IBOUND, seed=limits.seed, time_limit=0.5 * limits.left)
    upper = float(mini_bucket(p.batch, p.theta, task.query, task.eps_y, task.eps_h)[0])
    if task.maximises:
        value, found = -np.inf, None
        for seconds in (0.0, limits.left):
            # Outputs that the bound suggests may be impossible; only then is a search worth its time.
            if value == -np.inf < upper or found is None:
                search = Anytime(seconds, BOUND_IBOUND, seed=limits.seed, report=_told(limits, name))
                found = search.search(p.batch, 0, p.theta, task.query, task.eps_h)
                value = _evaluate(task, found.states, limits)
        assert found is not None
        upper = min(upper, found.upper)
        return Answer(value, _closed(value, upper), True, value, upper, name, found.states)
    propagate = _propagation(limits.seed)
    belief = propagate(p.batch, p.theta, task.query, 1.0, 1.0)
    limits.kept(Answer(upper, False, False, np.nan, upper, name, None, _per_variable(task, belief.mu)))
    lower = float(Bounded(propagate, ibound=BOUND_IBOUND).lower(p.batch, p.theta, task.query, 1.0, 1.0, belief)[0])
    close = task.name == "PR" and _closed(lower, upper)
    marginals = _per_variable(task, belief.mu)
    return Answer(upper, close, bool(belief.status.converged[0]), lower, upper, name, None, marginals)


def auto(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Exact if it fits in memory and time, else propagation and search."""
    plan, costs = _plan(task, limits)
    seconds = costs.operations[0] * SECONDS_PER_ENTRY
    if costs.bytes[0] <= limits.memory_limit and seconds <= limits.left:
        return _eliminated(task, limits, plan)
    return bp(task, limits)


Method = Callable[[UaiTask, AnswerLimits], Answer]
METHODS: Mapping[str, Method] = {"auto": auto, "exact": exact, "bp": bp, "bound": bound}


def _searched(task: UaiTask, limits: AnswerLimits) -> Answer:
    p, name = task.problem, "propagation and search"
    starts: tuple[Inference, ...] = tuple(_propagation(limits.seed, start) for start in ("sum_first", "annealed"))
    if find_spec("pytoulbar2") is not None:
        starts = (_joint_map, *starts)
    told, deadline = _told(limits, name), limits.deadline
    search = Anytime(limits.left, SEARCH_IBOUND, limits.memory_limit, limits.seed, starts, told, deadline)
    found = search.search(p.batch, 0, p.theta, task.query, task.eps_h)
    value, lower = (found.value, found.value) if found.evaluated else _revalued(task, found, limits)
    return Answer(value, found.proven, found.proven, lower, found.upper, name, found.states)


def _joint_map(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
    """The hidden variables maximised too: a start, whatever the temperatures; state 0 where nothing is found."""
    return Toulbar2(JOINT_SECONDS).attempt(batch, theta, query)[0]


def _told(limits: AnswerLimits, name: str) -> Callable[[SearchProgress], None]:
    """Keeps every incumbent of a search, and reports."""

    def told(at: SearchProgress) -> None:
        lower = at.lower if at.evaluated else np.nan
        limits.kept(Answer(at.lower, False, False, lower, at.upper, name, at.states))
        if limits.report is not None:
            limits.report(at)

    return told


def _revalued(task: UaiTask, found: SearchResult, limits: AnswerLimits) -> tuple[float, float]:
    """Value and lower bound of outputs whose hidden part is too wide for small tables.

    Exact if memory allows; else an estimate by propagation, which is no bound.
    """
    try:
        value = _evaluate(task, found.states, limits)
        return value, value
    except MemoryLimitError:
        p, query = task.problem, _given(task, found.states)
        belief = _propagation(limits.seed)(p.batch, p.theta, query, task.eps_h, task.eps_h)
        return float(belief.value[0]), float("nan")


def _propagation(seed: int, *starts: str) -> Propagate:
    """Messages on the model's own factors: nothing is merged, so no table is larger than the model's."""
    return Propagate("normal", merging=False, max_sweeps=100, seed=seed, starts=starts or None)


def _evaluate(task: UaiTask, states: Ints, limits: AnswerLimits) -> float:
    """Exact value of an assignment: its score for MAP, the hidden variables summed out for marginal MAP."""
    p = task.problem
    if (states[task.query.output] < 0).any():
        return float("-inf")
    if task.name == "MAP":
        return float(score(p.batch, p.theta, states)[0])
    plan = _elimination(limits, RESTARTS[0]).plan(p.batch)
    return float(plan.bind(_given(task, states), 0.0, task.eps_h, marginals=False).value(p.theta)[0])


def _given(task: UaiTask, states: Ints) -> Query:
    outputs = np.flatnonzero(task.query.output)
    return task.query.clamp(task.problem.batch, outputs, states[outputs])


def _from_belief(task: UaiTask, belief: Belief) -> Answer:
    status = belief.status
    lower, upper = float(status.lower[0]), float(status.upper[0])
    known = bool(status.exact[0]) or (task.name == "PR" and _closed(lower, upper))
    # An estimate outside its certificate is certainly wrong; the nearest end is not.
    value = min(max(float(belief.value[0]), lower), upper)
    marginals = _per_variable(task, belief.mu)
    return Answer(value, known, bool(status.converged[0]), lower, upper, status.method[0], None, marginals)


def _closed(lower: float, upper: float) -> bool:
    """Whether a certificate leaves nothing open but rounding."""
    return upper <= lower + TOLERANCE * max(1.0, abs(lower))


def _per_variable(task: UaiTask, mu: Marginals | None) -> list[Floats] | None:
    """The marginal of every variable, where the task asks for marginals."""
    if task.name != "MAR" or mu is None:
        return None
    batch = task.problem.batch
    return np.split(mu.unary, batch.unary_ptr[1:-1]) if batch.n_vars else []

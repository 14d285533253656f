"""Answers to UAI tasks: exactly, by propagation and search, by bounds, or by the best of these that fits the limits."""

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
from mssvm.uai.anytime import Anytime, within_seconds
from mssvm.uai.files import format_map, format_mar, format_mmap, format_pr
from mssvm.uai.incumbent import TOLERANCE, SearchProgress
from mssvm.uai.model import UaiProblem, UaiTask
from mssvm.uai.partition import Partition, SumProgress
from mssvm.uai.quick_bound import quick_bound, quick_lower_bound
from mssvm.uai.reduction import possible, reduced, summed
from mssvm.uai.search import SearchResult
from mssvm.uai.support import Support

# Exact elimination visits table entries at about this rate; only used to decide whether it fits in the time limit.
SECONDS_PER_ENTRY = 1e-7
SECONDS_PER_SUMMED_ENTRY = 5e-8
# Restarts of the search for an elimination order: the second number only if the first found none that fits.
RESTARTS = (8, 40)
# Propagation never builds a table of more than 2**SMALL entries; those of a search have at most 2**SEARCH_IBOUND,
# except to bound the whole instance (WIDEST) and to evaluate single assignments.
SMALL = 14
SEARCH_IBOUND = 16
# If there is time, a search may bound the whole instance with tables larger by this power of two.
WIDEST = 4
# Mini-buckets of the method "bound" have at most 2**BOUND_IBOUND entries.
BOUND_IBOUND = 12
CONDITIONING_NAME = "conditioning"
ENCLOSED_NAME = "propagation and conditioning"
BOUND_NAME = "mini-bucket bound"
SEARCH_NAME = "propagation and search"
# Processor time of joint MAP as a start: this share of the remaining time, but between these two numbers of seconds.
JOINT_SHARE = 0.1
JOINT_SECONDS = (1.0, 10.0)
# Joint MAP first sums out hidden variables where tables of this many entries suffice. Where it was not proven, it is
# repeated with fewer or none (0) summed out, which often is proven at once; where it was, with larger tables.
JOINT_ENTRIES = 256
CLOSER_ENTRIES = (1024, 4096)
COARSER_ENTRIES = (0, 16)
# Processor time of joint MAP where it is tried again.
AGAIN_SHARE = 0.25
AGAIN_SECONDS = (1.0, 40.0)
# Methods that, for PR and MAR, first remove the states that arc consistency and evidence rule out.
ON_POSSIBLE_STATES = ("auto", "exact")
# Propagation before bounds of log Z takes at most this share of the time.
PROPAGATION_SHARE = 0.1
TINY = 1e-300  # stands for a sum of zero in a denominator: a variable without a possible state has marginals of 0
# Sweeps of propagation: as the start of a search, and as an answer by itself.
START_SWEEPS = 100
ANSWER_SWEEPS = 1000


@dataclass(frozen=True)
class AnswerLimits:
    """Limits of one answer, the seed of its random choices, and two callbacks.

    ``deadline`` is a moment of the monotonic clock, ``memory_limit`` a number of bytes, ``threads`` those of a search.
    ``report`` receives the progress of searches, ``keep`` every answer that is better than those before.
    """

    deadline: float
    memory_limit: int
    seed: int
    report: Callable[[SearchProgress], None] | None = None
    keep: Callable[[Answer], None] | None = None
    threads: int = 1

    @property
    def seconds_left(self) -> float:
        return max(self.deadline - monotonic(), 0.0)

    def keep_possible(self, candidate: Answer) -> None:
        """Pass a preliminary answer to ``keep``, unless its probability is zero."""
        if self.keep is not None and candidate.value > -np.inf:
            self.keep(candidate)


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a task: its ``value`` in nats, with bounds ``lower`` <= true value <= ``upper`` (NaN: unknown).

    For MAP and marginal MAP ``value`` is that of the assignment ``states``, and the true value is the maximum.

    ``marginal_bounds`` are lower and upper bounds on the true marginals, where they are known.
    """

    value: float
    exact: bool
    converged: bool
    lower: float
    upper: float
    method: str
    states: Ints | None = None
    marginals: list[Floats] | None = None
    marginal_bounds: tuple[list[Floats], list[Floats]] | None = None

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
        """The fields of a JSON object; unknown bounds are null."""
        assignment = None
        if self.states is not None:
            assignment = [[v, int(self.states[v])] for v in task.asked]
        least, most = self.marginal_bounds or (None, None)
        return {
            "task": task.name,
            "value_ln": self.value,
            "value_log10": self.value / log(10.0),
            "assignment": assignment,
            "marginals": _numbers(self.marginals),
            "marginals_lower": _numbers(least),
            "marginals_upper": _numbers(most),
            "exact": self.exact,
            "converged": self.converged,
            "lower_bound_ln": _finite_or_none(self.lower),
            "upper_bound_ln": _finite_or_none(self.upper),
            "method": self.method,
        }


def _numbers(marginals: list[Floats] | None) -> list[list[float]] | None:
    """One list per variable."""
    return None if marginals is None else [[float(x) for x in p] for p in marginals]


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None


def answer(task: UaiTask, method: str, limits: AnswerLimits) -> Answer:
    """The answer of a method of ``METHODS``, the model's constant factors included; raises if nothing is possible."""
    asked = task
    states = np.arange(task.problem.batch.n_states)
    if task.name == "MMAP":
        task = reduced(task)
    elif not task.maximises and method in ON_POSSIBLE_STATES:
        task, states = possible(task)
        task = reduced(task, leaves=task.name == "PR")

    enclosed = [-np.inf, np.inf]

    def to_asked(found: Answer) -> Answer:
        """An answer to the smaller task as one to the task asked. Bounds of log Z only ever improve, as all answers
        bound the same number."""
        found = _of_all_states(_with_constant(found, task), asked, states)
        if task.maximises or found.exact:
            return found
        enclosed[0] = float(np.fmax(enclosed[0], found.lower))
        enclosed[1] = float(np.fmin(enclosed[1], found.upper))
        lower, upper = enclosed
        return replace(found, lower=lower, upper=upper, value=min(max(found.value, lower), upper))

    keep = limits.keep
    if keep is not None:
        better = _BestSoFar()
        limits = replace(limits, keep=lambda candidate: keep(to_asked(better(candidate))))
        _keep_first_assignments(task, limits)
    result = to_asked(_with_quick_bound(METHODS[method](task, limits), task))
    if result.value > -np.inf:
        return result
    if result.exact or result.upper == -np.inf:
        raise InfeasibleError("no assignment has positive probability under this model and evidence.")
    raise InfeasibleError("no assignment of positive probability was found in the time given; raise --time-limit.")


class _BestSoFar:
    """The better of an assignment and those before it, with the lowest upper bound.

    A search begins with assignments of its own, which may be worse than one that is kept already. Estimates are not
    compared; nor are answers without an assignment, whose bounds are those of a sum.
    """

    def __init__(self) -> None:
        self.best: Answer | None = None

    def __call__(self, found: Answer) -> Answer:
        best = self.best
        if found.states is None or np.isnan(found.lower):
            return found
        if best is not None:
            upper = float(np.fmin(best.upper, found.upper))
            found = replace(max(best, found, key=lambda candidate: candidate.lower), upper=upper)
        self.best = found
        return found


def _with_quick_bound(result: Answer, task: UaiTask) -> Answer:
    """The answer with its upper bound lowered to ``quick_bound`` where that is lower."""
    if result.exact:
        return result
    problem = task.problem
    quick = quick_bound(OneInstance.of(problem.batch, 0, problem.theta, task.query), task.eps_h)
    upper = quick if np.isnan(result.upper) else min(quick, result.upper)
    if task.name == "PR" and result.value > upper:
        # Propagation estimated a value above the upper bound.
        result = replace(result, value=upper)
    return replace(result, upper=upper)


def _with_constant(result: Answer, task: UaiTask) -> Answer:
    """The answer with the model's constant factors, which inference leaves out."""
    constant = task.problem.constant
    return replace(
        result,
        value=result.value + constant,
        lower=result.lower + constant,
        upper=result.upper + constant,
    )


def _of_all_states(found: Answer, task: UaiTask, states: Ints) -> Answer:
    """The answer with marginals over all states of a task: zero except at the possible ``states``."""
    if found.marginals is None:
        return found

    def expanded(marginals: list[Floats]) -> list[Floats]:
        flat = np.zeros(task.problem.batch.n_states)
        flat[states] = np.concatenate([np.zeros(0), *marginals])
        return _split(task, flat)

    bounds = found.marginal_bounds
    if found.exact and bounds is None:
        bounds = found.marginals, found.marginals
    if bounds is not None:
        bounds = expanded(bounds[0]), expanded(bounds[1])
    return replace(found, marginals=expanded(found.marginals), marginal_bounds=bounds)


def _keep_first_assignments(task: UaiTask, limits: AnswerLimits) -> None:
    """Keep a greedy assignment, then one found by constraint search, before anything that may take long.

    The score of a complete assignment is a lower bound on every task's value.
    """
    problem = task.problem
    support = Support(OneInstance.of(problem.batch, 0, problem.theta, task.query))
    marginals = None
    if task.name == "MAR":
        marginals = _split(task, _unary_softmax(support.instance))
    finders: tuple[Callable[[], Ints | None], ...] = (support.greedy, lambda: support.find(limits.deadline))
    best = -np.inf
    for find in finders:
        states = find()
        if states is None:
            continue
        value = support.score(states)
        if value > best:
            best = value
            outputs = np.where(task.query.output, states, -1) if task.maximises else None
            limits.keep_possible(
                Answer(
                    value=value,
                    exact=False,
                    converged=False,
                    lower=value,
                    upper=np.nan,
                    method="first assignment",
                    states=outputs,
                    marginals=marginals,
                )
            )


def _keep_quick_bounds(task: UaiTask, limits: AnswerLimits) -> None:
    """Keep bounds of log Z by one pass over the tables; the lower one is the value."""
    problem = task.problem
    instance = OneInstance.of(problem.batch, 0, problem.theta, task.query)
    lower = quick_lower_bound(instance)
    upper = quick_bound(instance, task.eps_h)
    marginals = None
    if task.name == "MAR":
        marginals = _split(task, _unary_softmax(instance))
    limits.keep_possible(Answer(lower, False, False, lower, upper, "quick bounds", None, marginals))


def _unary_softmax(instance: OneInstance) -> Floats:
    """Marginals of the unary scores alone, variable by variable."""
    unary = instance.unary
    topology = instance.topology
    starts = topology.unary_ptr[:-1]
    cards = topology.cards
    highest = np.maximum.reduceat(unary, starts)
    shares = np.exp(unary - np.repeat(np.where(highest > -np.inf, highest, 0.0), cards))
    shares /= np.repeat(np.maximum(np.add.reduceat(shares, starts), TINY), cards)
    return np.asarray(shares)


def exact(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Bucket elimination within the memory limit."""
    plan, _ = _plan(task, limits)
    return _eliminate(task, limits, plan)


def _plan(task: UaiTask, limits: AnswerLimits) -> tuple[ExactPlan, Costs]:
    """A plan of elimination and its costs; one that fits the memory limit, if the search for orders finds one."""
    for restarts in RESTARTS:
        plan = _elimination(limits, restarts).plan(task.problem.batch)
        costs = plan.costs(task.query, task.eps_y, task.eps_h, marginals=task.name == "MAR")
        if costs.bytes[0] <= limits.memory_limit:
            break
    return plan, costs


def _elimination(limits: AnswerLimits, restarts: int) -> Exact:
    return Exact(limits.memory_limit, restarts=restarts, seed=limits.seed, methods=("elimination",))


def _eliminate(task: UaiTask, limits: AnswerLimits, plan: ExactPlan) -> Answer:
    theta = task.problem.theta
    states = None
    marginals = None
    bound = plan.bind(task.query, task.eps_y, task.eps_h, marginals=task.name == "MAR")
    if task.maximises:
        states = bound.decode(theta)[1]
        value = _evaluate(task, states, limits)
    elif task.name == "MAR":
        belief = bound(theta)
        value = float(belief.value[0])
        marginals = _per_variable(task, belief.mu)
    else:
        value = float(bound.value(theta)[0])
    return Answer(value, True, True, value, value, "elimination", states, marginals)


def bp(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Belief propagation; for MAP and marginal MAP it starts an anytime search. Tables stay small throughout."""
    if task.maximises:
        return _search(task, limits)
    problem = task.problem
    propagate = replace(_propagation(limits.seed), max_sweeps=ANSWER_SWEEPS)
    belief = propagate(problem.batch, problem.theta, task.query, 1.0, 1.0)
    limits.keep_possible(_from_belief(task, belief))
    upper = MiniBucket(SMALL, seed=limits.seed, time_limit=0.5 * limits.seconds_left)
    bounded = Bounded(lambda *_: belief, upper, SMALL, limits.seed)
    return _from_belief(task, bounded(problem.batch, problem.theta, task.query, 1.0, 1.0, bound=True))


def bound(task: UaiTask, limits: AnswerLimits) -> Answer:
    """The mini-bucket bound; its own back-substitution is the assignment of MAP and marginal MAP."""
    problem = task.problem
    mini_bucket = MiniBucket(BOUND_IBOUND, seed=limits.seed, time_limit=0.5 * limits.seconds_left)
    upper = float(mini_bucket(problem.batch, problem.theta, task.query, task.eps_y, task.eps_h)[0])
    if task.maximises:
        return _bounded_maximum(task, limits, upper)
    return _bounded_sum(task, limits, upper)


def _bounded_maximum(task: UaiTask, limits: AnswerLimits, upper: float) -> Answer:
    """The outputs that mini-buckets suggest, with ``upper``; a search for others if these are impossible."""
    value, result = _search_bound(task, limits, 0.0)
    if value == -np.inf < upper:
        value, result = _search_bound(task, limits, limits.seconds_left)
    upper = min(upper, result.upper)
    return Answer(value, _closed(value, upper), True, value, upper, BOUND_NAME, result.states)


def _search_bound(task: UaiTask, limits: AnswerLimits, seconds: float) -> tuple[float, SearchResult]:
    problem = task.problem
    search = Anytime(seconds, BOUND_IBOUND, seed=limits.seed, report=_progress_callback(limits, BOUND_NAME))
    result = search.search(problem.batch, 0, problem.theta, task.query, task.eps_h)
    return _evaluate(task, result.states, limits), result


def _bounded_sum(task: UaiTask, limits: AnswerLimits, upper: float) -> Answer:
    """``upper`` as the value, with a lower bound and marginals by propagation."""
    problem = task.problem
    propagate = _propagation(limits.seed)
    belief = propagate(problem.batch, problem.theta, task.query, 1.0, 1.0)
    marginals = _per_variable(task, belief.mu)
    limits.keep_possible(Answer(upper, False, False, np.nan, upper, BOUND_NAME, None, marginals))
    bounded = Bounded(propagate, ibound=BOUND_IBOUND)
    lower = float(bounded.lower(problem.batch, problem.theta, task.query, 1.0, 1.0, belief)[0])
    closed = task.name == "PR" and _closed(lower, upper)
    converged = bool(belief.status.converged[0])
    return Answer(upper, closed, converged, lower, upper, BOUND_NAME, None, marginals)


def auto(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Exact if it fits in memory and time; else propagation and search for maxima, bounds from both sides for sums."""
    if not task.maximises:
        _keep_quick_bounds(task, limits)
    plan, costs = _plan(task, limits)
    rate = SECONDS_PER_ENTRY if task.maximises else SECONDS_PER_SUMMED_ENTRY
    if costs.bytes[0] <= limits.memory_limit and costs.operations[0] * rate <= limits.seconds_left:
        return _eliminate(task, limits, plan)
    if task.maximises:
        return bp(task, limits)
    return _enclose(task, limits)


def _enclose(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Bounds of log Z and of marginals by conditioning, part by part; propagation estimates what is left."""
    problem = task.problem
    call = (problem.batch, problem.theta, task.query, 1.0, 1.0)
    propagate = replace(_propagation(limits.seed), max_sweeps=ANSWER_SWEEPS)
    belief = within_seconds(propagate, PROPAGATION_SHARE * limits.seconds_left, call)
    converged = bool(belief.status.converged[0])

    def answer_of(progress: SumProgress) -> Answer:
        exact = progress.closed or (task.name == "PR" and _closed(progress.lower, progress.upper))
        method = CONDITIONING_NAME if exact else ENCLOSED_NAME
        marginals = None
        bounds = None
        if task.name == "MAR":
            marginals = _split(task, progress.marginals)
            bounds = _split(task, progress.least), _split(task, progress.most)
        return Answer(
            value=progress.value,
            exact=exact,
            converged=exact or converged,
            lower=progress.lower,
            upper=progress.upper,
            method=method,
            marginals=marginals,
            marginal_bounds=bounds,
        )

    support = Support(OneInstance.of(problem.batch, 0, problem.theta, task.query))
    partition = Partition(
        problem.batch,
        problem.theta,
        task.query,
        belief,
        memory_limit=limits.memory_limit,
        deadline=limits.deadline,
        seed=limits.seed,
        lower=support.score(belief.decode(problem.batch)),
        marginals=task.name == "MAR",
        report=lambda progress: limits.keep_possible(answer_of(progress)),
    )
    return answer_of(partition.run())


Method = Callable[[UaiTask, AnswerLimits], Answer]
METHODS: Mapping[str, Method] = {"auto": auto, "exact": exact, "bp": bp, "bound": bound}


def _search(task: UaiTask, limits: AnswerLimits) -> Answer:
    """Anytime search from joint MAP (if toulbar2 is installed) and two kinds of propagation."""
    problem = task.problem
    starts: tuple[Inference, ...] = (
        _propagation(limits.seed, "sum_first"),
        _propagation(limits.seed, "annealed"),
    )
    again: tuple[Inference, ...] = ()
    closer: tuple[Inference, ...] = ()
    coarser: tuple[Inference, ...] = ()
    if find_spec("pytoulbar2") is not None:
        seconds = float(np.clip(JOINT_SHARE * limits.seconds_left, *JOINT_SECONDS))
        starts = (_joint_map(seconds, JOINT_ENTRIES), *starts)
        closer = tuple(_joint_map(seconds, entries) for entries in CLOSER_ENTRIES)
        coarser = tuple(_joint_map(seconds, entries) for entries in COARSER_ENTRIES)
        longer = float(np.clip(AGAIN_SHARE * limits.seconds_left, *AGAIN_SECONDS))
        again = (_joint_map(longer, COARSER_ENTRIES[0]),)
    search = Anytime(
        time_limit=limits.seconds_left,
        ibound=SEARCH_IBOUND,
        memory_limit=limits.memory_limit,
        seed=limits.seed,
        starts=starts,
        report=_progress_callback(limits, SEARCH_NAME),
        deadline=limits.deadline,
        widest=WIDEST,
        again=again,
        closer=closer,
        coarser=coarser,
        threads=limits.threads,
    )
    result = search.search(problem.batch, 0, problem.theta, task.query, task.eps_h)
    value = result.value
    lower = result.value
    if not result.evaluated:
        value, lower = _reevaluate(task, result.states, limits)
    return Answer(value, result.proven, result.proven, lower, result.upper, SEARCH_NAME, result.states)


def _joint_map(seconds: float, entries: int) -> Inference:
    """MAP with hidden variables maximised too, as a start of the search; state 0 where nothing is found.

    Hidden variables that can be summed out in tables of at most ``entries`` are, and have state 0 as well.
    """
    solver = Toulbar2(seconds)

    def infer(batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        smaller = summed(UaiTask("MMAP", UaiProblem(batch, theta, 0.0), query, (), eps_y, eps_h), entries)
        return solver.attempt(smaller.problem.batch, smaller.problem.theta, smaller.query)[0]

    return infer


def _progress_callback(limits: AnswerLimits, name: str) -> Callable[[SearchProgress], None]:
    """A callback that keeps every incumbent of a search as an answer, and reports."""

    def callback(progress: SearchProgress) -> None:
        lower = progress.lower if progress.evaluated else np.nan
        limits.keep_possible(Answer(progress.lower, False, False, lower, progress.upper, name, progress.states))
        if limits.report is not None:
            limits.report(progress)

    return callback


def _reevaluate(task: UaiTask, states: Ints, limits: AnswerLimits) -> tuple[float, float]:
    """Value and lower bound of outputs whose hidden part is too wide for small tables.

    Exact if memory allows; else an estimate by propagation, which is no bound.
    """
    try:
        value = _evaluate(task, states, limits)
        return value, value
    except MemoryLimitError:
        problem = task.problem
        query = _clamp_outputs(task, states)
        belief = _propagation(limits.seed)(problem.batch, problem.theta, query, task.eps_h, task.eps_h)
        return float(belief.value[0]), float("nan")


def _propagation(seed: int, *starts: str) -> Propagate:
    """Messages on the model's own factors: nothing is merged, so no table is larger than the model's."""
    return Propagate("normal", merging=False, max_sweeps=START_SWEEPS, seed=seed, starts=starts or None)


def _evaluate(task: UaiTask, states: Ints, limits: AnswerLimits) -> float:
    """Exact value of an assignment: its score for MAP, the hidden variables summed out for marginal MAP."""
    problem = task.problem
    if (states[task.query.output] < 0).any():
        return float("-inf")
    if task.name == "MAP":
        return float(score(problem.batch, problem.theta, states)[0])
    plan = _elimination(limits, RESTARTS[0]).plan(problem.batch)
    bound = plan.bind(_clamp_outputs(task, states), 0.0, task.eps_h, marginals=False)
    return float(bound.value(problem.theta)[0])


def _clamp_outputs(task: UaiTask, states: Ints) -> Query:
    outputs = np.flatnonzero(task.query.output)
    return task.query.clamp(task.problem.batch, outputs, states[outputs])


def _from_belief(task: UaiTask, belief: Belief) -> Answer:
    status = belief.status
    lower = float(status.lower[0])
    upper = float(status.upper[0])
    exact = bool(status.exact[0]) or (task.name == "PR" and _closed(lower, upper))
    # An estimate outside of its bounds is certainly wrong; the nearer bound may be right.
    value = min(max(float(belief.value[0]), lower), upper)
    marginals = _per_variable(task, belief.mu)
    return Answer(value, exact, bool(status.converged[0]), lower, upper, status.method[0], None, marginals)


def _closed(lower: float, upper: float) -> bool:
    """Whether the bounds differ by no more than rounding."""
    return upper <= lower + TOLERANCE * max(1.0, abs(lower))


def _per_variable(task: UaiTask, mu: Marginals | None) -> list[Floats] | None:
    """The marginal of every variable if the task asks for marginals, else None."""
    if task.name != "MAR" or mu is None:
        return None
    return _split(task, mu.unary)


def _split(task: UaiTask, values: Floats) -> list[Floats]:
    """Values of all states, variable by variable."""
    batch = task.problem.batch
    if batch.n_vars == 0:
        return []
    return np.split(values, batch.unary_ptr[1:-1])

"""From labelled data to weights: encode, pose the problem, solve it from one or several starts, keep the lowest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from mssvm.core import checks
from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Term
from mssvm.core.progress import ProgressLine, left
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.core.topology import spans, spread
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.estimators.plan import (
    LARGEST_SEED,
    SMOOTHED,
    TrainingPlan,
    class_weights,
    inference_of,
    instance_weights,
    label_weights,
    mean_per_instance,
    n_starts,
    starts,
)
from mssvm.estimators.prediction import Predictor, agreement, request
from mssvm.inference.base import Inference, Planner
from mssvm.losses.losses import Zero, inputs_for
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.models.partial import ActiveWeights, FixedWeights, has_optional_weights
from mssvm.objectives.problem import Problem
from mssvm.objectives.training import Look, TrainingProblem
from mssvm.objectives.unified import Sample, Unified
from mssvm.optim import BCFW, LBFGS, Callback, Checkpoint, Regulariser, Row, Solution, Validation
from mssvm.optim.solver import best_of
from mssvm.structures import Encoder
from mssvm.structures.encoded import Encoded, to_sample

Context = Callable[[], AbstractContextManager[Any]]
ENDED = {
    "converged": "Training converged.",
    "completed": "Training ran all its epochs; whether more would lower the objective is not known.",
    "budget": "Training used up its iterations before it converged; raise max_iter.",
    "uncertified": "Training ended and is not certified: inference missed maxima; use inference with more effort.",
    "stalled": "Training stalled: no step lowered the objective further.",
    "diverged": "Training diverged; scale the features or lower C.",
    "stopped": "Training was stopped by a callback.",
    "early": "Training stopped early, at the best validation score.",
    "time": "Training reached its time limit; the best weights so far were kept.",
    "interrupted": "Training was interrupted; the best weights so far were kept.",
}


FEW_WEIGHTS = 1000  # for which cutting planes close a gap in tens of rounds
NEARLY = 1e-3  # of the objective at weights of zero: what counts as no better
AT_ZERO = (
    "The weights ended at zero, or no better than there, and predictions ignore the features. That can be the optimum: "
    "a margin is inconsistent where no label has more than half of the probability. Use a likelihood (CRF, or HCRF "
    "with hidden variables) or eps_y > 0; with hidden variables also another start (init='hcrf' or 'random', n_init)."
)


def below_majority(right: int, labelled: int, class_counts: Sequence[int]) -> str:
    """What is said of weights that predict fewer of the labelled sites than the most frequent class alone, if they
    do."""
    most = max(class_counts, default=0)
    if right >= most:
        return ""
    return (
        f"At these weights {right} of {labelled} training labels are predicted, fewer than the {most} of the most "
        "frequent class; try other inference, more effort (inference=ms.inference.Auto(effort='careful')) or another "
        "start."
    )


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Labelled data for early stopping: training ends after ``patience`` scores in a row without a new highest one,
    taken every ``every`` iterations, and the weights with the highest score are kept.

    ``hidden`` is as in ``predict``. What is wrong with the data is raised inside the context ``naming()``, which can
    put it into other words.

    >>> ms.HCRF(ms.Chain(), random_state=0).fit(X, y, validation=ms.HeldOut(X, y, patience=2)).score(X, y)
    1.0
    """

    X: Any
    y: Any
    hidden: Any = None
    patience: int = 5
    every: int = 1
    naming: Context = nullcontext


@dataclass(frozen=True, eq=False)
class Following:
    """Who follows a training, as ``fit`` is told."""

    predictor: Predictor
    callback: Callback | None = None
    validation: HeldOut | Validation | tuple[Any, Any] | None = None
    checkpoint: Checkpoint | str | Path | None = None
    time_limit: float | None = None

    def check(self) -> None:
        """Raise unless every follower is of a kind that ``fit`` takes."""
        if self.time_limit is not None:
            checks.number(self.time_limit, "time_limit", above=0.0, unit=" of seconds")
        if self.callback is not None and not callable(self.callback):
            given = checks.shown(self.callback)
            raise InputError(f"callback must be a function of a row and the weights, got {given}.")
        if self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint):
            checks.path(self.checkpoint, "checkpoint")
        held = self.validation
        pair = isinstance(held, (tuple, list)) and len(held) == 2
        if held is not None and not pair and not isinstance(held, (HeldOut, Validation)):
            raise InputError(f"validation must be a pair (X, y), HeldOut or Validation, got {checks.shown(held)}.")


class Census(NamedTuple):
    """How many sites there are: in all, with labels, with several candidates; and of every class."""

    sites: int
    sites_labelled: int
    sites_candidates: int
    class_counts: list[int]


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned about labels and features of training data, wherever these are."""

    plan: TrainingPlan
    encoder: Encoder
    n_instances: int
    census: Census

    @property
    def where(self) -> Callable[[], str] | None:
        """What tells of the machines that have the data, where it is not this one."""
        return None

    def regulariser(self, taken: Callable[[Any], Any]) -> Regulariser:
        """1/2 |w|^2, or with other strengths for the blocks named in ``penalties``, and a share of absolute values;
        bounds are the structure's. ``taken`` leaves out the weights that training does not see."""
        penalties, ratio, nonnegative = self.plan.penalties, self.plan.l1_ratio, self.encoder.weight_masks.nonnegative
        bounded = taken(nonnegative) if nonnegative.any() else None
        if penalties is None:
            return Regulariser(1.0 - ratio, bounded, ratio)
        if not hasattr(penalties, "items"):
            raise InputError(f"penalties must map names of blocks of weights to strengths, got {penalties!r}.")
        strengths = taken(self.encoder.layout.per_weight(dict(penalties)))
        return Regulariser((1.0 - ratio) * strengths, bounded, ratio * strengths)


@dataclass(frozen=True, eq=False)
class TrainingData(Learned):
    """The training data as the layers below see them."""

    encoded: Encoded
    observed: Labels
    sample: Sample

    @classmethod
    def of(
        cls, plan: TrainingPlan, X: Any, y: Any, sample_weight: Any, allowed: Any, earlier: Encoder | None
    ) -> TrainingData:
        """Learn (or, in a warm start, keep) the vocabularies of X and y, and lay the data out."""
        if y is None:
            raise InputError(f"{plan.name} requires y to be passed, but the target y is None.")
        structure = plan.structure
        if earlier is None:
            labels = LabelVocabulary.learn(y, structure.depth, plan.classes, plan.missing_label)
            encoder, parsed = structure.compile(X, labels, y)
            encoded = encoder.assemble(parsed)
        else:
            labels = earlier.vocabulary
            encoder = Encoder(structure, earlier.schema, labels)
            encoded = encoder.encode(X)
        observed = labels.encode(y, encoded.labels.shapes)
        permitted = None if allowed is None else labels.encode(allowed, encoded.labels.shapes, "allowed")
        weight = instance_weights(sample_weight, len(encoded.batch))
        per_site = None
        if plan.class_weight is not None:
            per_site = label_weights(class_weights(plan.class_weight, labels, observed), observed)
            if isinstance(plan.objective.loss, Zero):
                # A likelihood has no loss to weigh, so instances are weighed by their labels instead.
                weight, per_site = weight * mean_per_instance(per_site, observed), None
        if len(encoded.hidden.vars) and not plan.may_hide:
            raise no_hidden(plan.name)
        sample = to_sample(encoded, observed, weight, per_site, permitted, plan.objective.loss)
        n_labelled, counts = int(observed.observed.sum()), observed.mask[observed.single].sum(axis=0).tolist()
        census = Census(len(observed.observed), n_labelled, n_labelled - int(observed.single.sum()), counts)
        return cls(plan, encoder, len(encoded.batch), census, encoded, observed, sample)

    def seen(self) -> Bools:
        """False on the weights of sparse features of sites for labels that are not among those given to any such site;
        known weights stay, seen or not."""
        batch, labels = self.encoded.batch, self.observed
        of_labels = spread(self.encoded.labels.vars, batch.n_vars)
        sparse: list[Term] = []
        others: list[Term] = []
        for term in self.encoded.inputs.terms:
            mine = term.target == "unary" and has_optional_weights(term)
            mine = mine and bool(of_labels[batch.state_var[term.at[term.at >= 0]]].all())
            (sparse if mine else others).append(term)
        keep = np.ones(self.encoder.model.n_weights, dtype=bool)
        for terms, kept in ((sparse, False), (others, True)):
            for term in terms:
                starts = np.unique(term.block)
                keep[spans(starts, np.full(len(starts), term.block_size))] = kept
        given = np.zeros(batch.n_states)
        given[self.encoded.states_at] = (labels.mask & labels.observed[:, None]).ravel()
        met = LinearInputs(batch, tuple(replace(term, features=abs(term.features)) for term in sparse))
        count = LinearModel(len(keep)).adjoint(Marginals(given, np.zeros(batch.n_mu_entries)), met)
        model = self.encoder.model
        known = model.known if isinstance(model, FixedWeights) else False
        return np.asarray(keep | (count > 0) | known)

    def pose(self, inference: Inference) -> TrainingProblem:
        """The problem of these data; with ``only_seen`` over the weights that were."""
        plan, model, sample = self.plan, self.encoder.model, self.sample
        if plan.only_seen:
            active = ActiveWeights.of(model, self.encoded.inputs, self.seen())
            sample = replace(sample, inputs=active.inputs(inputs_for(plan.objective.loss, self.encoded.inputs)))
            return TrainingProblem(plan.objective, active, sample, inference, plan.C, plan.engine)
        return TrainingProblem(plan.objective, model, sample, inference, plan.C, plan.engine)

    def look(self, problem: TrainingProblem, w: Floats) -> list[Look]:
        """At every block of the problem."""
        batch = self.encoded.batch
        hidden = spread(self.encoded.hidden.vars, batch.n_vars)[self.sample.labelled[batch.owner]]
        return problem.engine.each(methodcaller("look", w, hidden, problem.sample.batch.var_ptr), problem.bound)


def no_hidden(name: str) -> InputError:
    """What a member says to a structure with hidden variables that it cannot have."""
    return InputError(
        f"{name} has no hidden variables, but the structure has; "
        "use MSSVM, LSSVM or HCRF, or a structure with hidden=0 (--hidden 0)."
    )


class TrainingLine:
    """A callback that keeps a line of progress up to date; ``begin`` tells it what it follows."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self._part, self._most, self._later = "", 0, 0
        self._where: Callable[[], str] | None = None

    def begin(self, most: int, start: int, n_starts: int, where: Callable[[], str] | None = None) -> None:
        """A solver that stops after ``most`` iterations (0: not known) begins at one of several starts; ``where`` tells
        of the machines that work for it."""
        self._where = where
        self._part = f"start {start} of {n_starts}, " if n_starts > 1 else ""
        self._most, self._later = most, n_starts - start

    def __call__(self, row: Row, w: Floats) -> None:
        self.line.say(self.text(row))

    def text(self, row: Row) -> str:
        """What is shown of one row of the trace, whose seconds count from the start of the first of several runs."""
        rate = row.iteration / max(row.seconds, 1e-9)
        text = f"{self._part}iteration {row.iteration}, {rate:.3g}/s, objective {row.objective:.6g}"
        for name, value in (("gap", row.gap), ("gradient", row.gradient_norm)):
            text += f", {name} {value:.2g}" if np.isfinite(value) else ""
        if np.isfinite(row.converged) and row.converged < 1:
            text += f", {row.converged:.0%} of inference converged"
        text += f", temperatures {row.eps_y:g} and {row.eps_h:g}"
        if self._most and row.iteration:
            done = min(row.iteration / (self._most * (1 + self._later)), 1.0)
            text += f", at most {left(row.seconds, done)} left"
        return text if self._where is None else f"{text}, {self._where()}"


@dataclass(eq=False)
class Training:
    """One call of ``fit``: the problem, its solver and its followers. ``whole`` puts left-out weights back."""

    data: Any  # TrainingData or ShardedTrainingData
    follow: Following
    began: float = field(default_factory=monotonic)
    calls: int = 0
    seed: int = 0
    warm: bool = False

    def __post_init__(self) -> None:
        data, plan = self.data, self.data.plan
        self.plan = plan
        self.follow.check()
        self.inference = inference_of(plan.inference, plan.memory_limit, 1, data.n_instances, self._wide())
        self.problem = data.pose(self.inference)
        self.model = self.problem.model
        # Of an array over all weights, the entries of those that training sees.
        self.taken = self.model.take if isinstance(self.model, ActiveWeights) else np.asarray
        if not self.problem.n_instances:
            raise InputError("no site of y is labelled; training needs at least one label.")
        self.regulariser = data.regulariser(self.taken)
        self.whole = self.model.fill
        self.validation = None if self.follow.validation is None else self._validation(self.follow.validation)
        self._lines: list[TrainingLine] = []

    @property
    def planner(self) -> Planner:
        return Planner(self.inference, self.plan.engine)

    def _wide(self) -> str:
        """What "auto" does on wide graphs: the bound where L-BFGS minimises it, on data and kernels at hand."""
        plan = self.plan
        smooth = plan.solver in ("auto", "lbfgs") if isinstance(plan.solver, str) else isinstance(plan.solver, LBFGS)
        able = plan.engine.name == "native" and isinstance(self.data, TrainingData)
        own = plan.strategy is None and isinstance(plan.objective, Unified)
        return "decompose" if smooth and able and own and not self._cuts() else "propagate"

    def _cuts(self) -> bool:
        """Whether maxima are all that is asked, of two states each and every label known: what minimum cuts can prove,
        and cutting planes then certify."""
        sample, objective = self.data.sample, self.plan.objective
        known = int(np.count_nonzero(sample.query.allowed & sample.truth)) == sample.batch.n_vars
        return bool(known and objective.eps_y == 0.0 and sample.batch.cards.max(initial=1) <= 2)

    def run(self, warm: Floats | None) -> tuple[Floats, Solution, dict[str, Any]]:
        """Minimise from every start and keep the lowest: all weights, the solution, and figures about the training."""
        plan, data = self.plan, self.data
        hidden = self.taken(data.encoder.weight_masks.hidden)
        self.warm = warm is not None
        init = plan.init if warm is None else warm
        init = init if isinstance(init, str) else self.taken(np.asarray(init))
        solutions, objectives = list[Solution](), list[float]()
        with ProgressLine(plan.name, quiet=0.0) if plan.verbose else nullcontext() as line:
            self._lines = [] if line is None else [TrainingLine(line)]
            if isinstance(self.follow.callback, TrainingLine):
                self._lines.append(self.follow.callback)
            self.n_starts = n_starts(init, self.problem, hidden, plan.n_init)
            for w0 in starts(init, self.problem, hidden, plan.n_init, plan.rng, self.regulariser):
                self.seed = int(plan.rng.randint(LARGEST_SEED))
                self._start = len(solutions) + 1
                by_turns = plan.strategy
                minimised = by_turns(self.problem, w0, self.minimise) if by_turns else self.minimise(self.problem, w0)
                solutions.append(minimised)
                objectives.append(float(minimised.objective))
                if minimised.outcome.cut_short:
                    break
        best = best_of(solutions)
        return self.whole(best.w), best, summary(self, best, objectives)

    def minimise(self, problem: Problem, w0: Floats) -> Solution:
        """Minimise one problem; the k-th call has checkpoint number k, so that a resumed training repeats none."""
        with ONE_BLAS_THREAD:
            first = problem.difference(w0) if self.plan.solver == "auto" else None
        missing = 1.0 - self.data.census.sites_labelled / self.data.census.sites
        dual = partial(self._has_dual, problem)
        exact = first is None or (first.exact and self._exact_when_smoothed(problem, w0))
        bounded = not exact and self._converges()
        cuts = first is not None and first.exact and not exact and problem.n_weights <= FEW_WEIGHTS
        solver = self.plan.solver_for(exact, cuts, dual, missing, self.seed, bounded)
        self.calls += 1
        if self.warm:
            solver = solver.near()
        for line in self._lines:
            line.begin(solver.limit(problem.temperatures), self._start, self.n_starts, self.data.where)
        given, spent = self.follow, monotonic() - self.began
        file = Checkpoint(given.checkpoint) if isinstance(given.checkpoint, (str, Path)) else given.checkpoint
        found: Solution = solver.minimize(
            problem,
            w0,
            regulariser=self.regulariser,
            callback=None if given.callback is None and not self._lines else self._told,
            validation=self.validation,
            time_limit=None if given.time_limit is None else given.time_limit - spent,
            checkpoint=None if file is None else file.numbered(self.calls),
            first=first,
        )
        return found

    def _exact_when_smoothed(self, problem: Problem, w0: Floats) -> bool:
        """Whether inference that is exact at the target temperatures is so where L-BFGS begins: minimum cuts are exact
        at temperature 0 only."""
        begin = (max(problem.temperatures[0], SMOOTHED[0]), max(problem.temperatures[1], SMOOTHED[0]))
        if begin == problem.temperatures:
            return True
        with ONE_BLAS_THREAD:
            return problem.at(*begin).difference(w0).exact

    def _converges(self) -> bool:
        """Whether approximate inference changes little with the weights, as a bound does and a search does not."""
        ask = getattr(self.inference, "converges", None)
        sample = getattr(self.data, "sample", None)
        return ask is not None and sample is not None and bool(ask(sample.batch))

    def no_better_than_zero(self, chosen: Solution) -> bool:
        """Whether a margin ended where weights of zero are as good, up to a share of ``NEARLY``."""
        objective = self.plan.objective
        if self.plan.strategy is not None or objective.eps_y > 0.0 or isinstance(objective.loss, Zero):
            return False
        zero = np.zeros_like(chosen.w)
        if np.array_equal(chosen.w, zero):
            return True
        return bool(chosen.objective >= (1.0 - NEARLY) * self.problem.difference(zero).total)

    def _has_dual(self, problem: Problem) -> bool:
        """Whether BCFW can solve it: single instances at hand, a maximum, nothing missing, all weights
        regularised, its planes in memory."""
        if not problem.has_atoms:
            return False
        size, regulariser = 8 * BCFW.n_planes * self.problem.plane_size, self.regulariser
        penalised = not regulariser.has_absolute and bool(np.all(regulariser.strengths(problem.n_weights) > 0))
        return problem.convex and problem.temperatures[0] == 0 and penalised and size <= self.plan.memory_limit

    def _told(self, row: Row, w: Floats) -> bool | None:
        for line in self._lines:
            line(row, w)
        callback = self.follow.callback
        return None if callback is None or callback in self._lines else callback(row, self.whole(w))

    def _validation(self, given: HeldOut | Validation | tuple[Any, Any]) -> Validation:
        """Scores of held-out data as a function of the weights that training sees."""
        if isinstance(given, Validation):
            theirs = given.score
            return replace(given, score=lambda w: theirs(self.whole(w)))
        held = given if isinstance(given, HeldOut) else HeldOut(*given)
        encoder, decode = self.data.encoder, self.follow.predictor
        with held.naming():
            held_out = request(encoder, np.zeros(encoder.layout.n_weights), self.planner, decode, held.X, held.hidden)
            vocabulary = encoder.vocabulary.widened(held.y, self.plan.structure.depth)
            truth = vocabulary.encode(held.y, held_out.encoded.labels.shapes)
        inputs, sites = held_out.encoded.inputs, held_out.encoded.labels
        ones = np.ones(len(inputs.batch))
        features = encoder.model.bind(inputs, self.planner.engine)
        bound = decode(self.planner, inputs, held_out.query)

        def score(w: Floats) -> float:
            belief = bound(features.forward(self.whole(w)))
            return agreement(belief.decode(inputs.batch)[sites.vars], truth, ones)

        return Validation(score, held.patience, held.every)


def summary(training: Training, chosen: Solution, objectives: list[float]) -> dict[str, Any]:
    """Everything worth knowing about a training, as JSON values, for ``diagnosis`` to put into words. A closing pass
    over every block tells which methods of inference ran, and how much each hidden state is used given labels."""
    last, certificate = chosen.trace[-1] if chosen.trace else None, chosen.certificate
    methods, used = Counter[str](), dict[int, tuple[Any, int]]()
    exact, converged, answers = True, 0, 0
    right = 0
    for found in training.data.look(training.problem, chosen.w):
        right += found.right
        methods.update(found.methods)
        exact, converged, answers = exact and found.exact, converged + found.converged, answers + found.n
        for card, (total, n) in found.usage.items():
            before = used.get(card, (0.0, 0))
            used[card] = before[0] + total, before[1] + n
    usage = []
    for _, (total, n) in sorted(used.items()):
        usage.append((total / n).tolist())
    kind, names = "exact" if exact else "approximate", ", ".join(sorted(methods)) or "none"
    at_zero = training.no_better_than_zero(chosen)
    status = f"{ENDED[chosen.outcome.value]} Inference was {kind} ({names})."
    if at_zero:
        status += f" {AT_ZERO}"
    worse = below_majority(right, training.data.census.sites_labelled, training.data.census.class_counts)
    if worse:
        status += f" {worse}"
    return {
        "objective": float(chosen.objective),
        "outcome": chosen.outcome.value,
        "status": status,
        "at_zero": at_zero,
        "sites_right": right,
        "message": chosen.message,
        "certificate": certificate.sentence,
        "augmented": not isinstance(training.plan.objective.loss, Zero),
        "gap": float(certificate.gap),
        "certified": bool(certificate.certifies),
        "negative_gaps": int(certificate.negative_gaps),
        "restarts": objectives,
        "floored": int(last.floored) if last else 0,
        "seconds": float(last.seconds) if last else 0.0,
        "instances": training.data.n_instances,
        "instances_labelled": int(training.problem.n_instances),
        **training.data.census._asdict(),
        "methods": dict(sorted(methods.items())),
        "exact": exact,
        "converged_share": converged / answers,
        "hidden_usage": usage,
    }

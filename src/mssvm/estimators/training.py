"""From labelled data to weights: encode, pose the problem, solve it from one or several starts, keep the lowest.

``TrainingData`` is X and y as the layers below see them, ``FitHooks`` the callbacks and limits of one call of ``fit``,
``Training`` the call itself, and ``summary`` the figures that ``status_`` and ``diagnose`` put into words.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from mssvm.core import checks
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Term
from mssvm.core.progress import ProgressLine, left
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.core.topology import mask_from_indices, spans
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
from mssvm.estimators.prediction import KnownLabels, Predictor, agreement, request
from mssvm.inference.base import Inference, Planner
from mssvm.losses.losses import Zero, inputs_for
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.models.partial import ActiveWeights, FixedWeights, has_optional_weights
from mssvm.objectives.problem import Problem
from mssvm.objectives.training import BoundBlock, InferenceSummary, TrainingProblem
from mssvm.objectives.unified import Sample
from mssvm.optim import BCFW, Callback, Checkpoint, Regulariser, Row, Solution, Validation
from mssvm.optim.solver import best_of
from mssvm.structures import Encoder
from mssvm.structures.encoded import Encoded, to_sample

Context = Callable[[], AbstractContextManager[Any]]
P = TypeVar("P")
"""The type of a problem: ``TrainingProblem``, or ``ShardedProblem`` on a cluster."""
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
    """A sentence about weights that predict fewer of the labelled sites than the most frequent class alone; "" for
    better ones."""
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

    ``hidden_sites`` is as in ``predict`` (``hidden`` is its old name, for one more release). Errors about the data are
    raised inside the context ``naming()``, which can reword them.

    >>> ms.HCRF(ms.Chain(), random_state=0).fit(X, y, validation=ms.HeldOut(X, y, patience=2)).score(X, y)
    1.0
    """

    X: Any
    y: Any
    hidden_sites: Any = None
    patience: int = 5
    every: int = 1
    naming: Context = nullcontext
    hidden: InitVar[Any] = None

    def __post_init__(self, hidden: Any) -> None:
        if hidden is not None:
            warnings.warn(
                "HeldOut(hidden=) is called hidden_sites= now; the old name will go in the next release.",
                FutureWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "hidden_sites", hidden)


@dataclass(frozen=True, eq=False)
class FitHooks:
    """The hooks of one call of ``fit``; ``predictor`` decides the labels that are scored for early stopping."""

    predictor: Predictor
    callback: Callback | None = None
    validation: HeldOut | Validation | tuple[Any, Any] | None = None
    checkpoint: Checkpoint | str | Path | None = None
    time_limit: float | None = None

    def check(self) -> None:
        """Raise ``InputError`` if a hook is of a type that ``fit`` does not take."""
        if self.time_limit is not None:
            checks.number(self.time_limit, "time_limit", above=0.0, unit=" of seconds")
        if self.callback is not None and not callable(self.callback):
            shown = checks.shown(self.callback)
            raise InputError(f"callback must be a function of a row and the weights, got {shown}.")
        if self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint):
            checks.path(self.checkpoint, "checkpoint")
        held = self.validation
        pair = isinstance(held, (tuple, list)) and len(held) == 2
        if held is not None and not pair and not isinstance(held, (HeldOut, Validation)):
            raise InputError(f"validation must be a pair (X, y), HeldOut or Validation, got {checks.shown(held)}.")


class Census(NamedTuple):
    """Numbers of sites: in all, with labels, with several candidates; and of every class as a single label."""

    sites: int
    sites_labelled: int
    sites_candidates: int
    class_counts: list[int]


@dataclass(frozen=True, eq=False)
class FittedData(ABC, Generic[P]):
    """Training data with the labels and features learned from them, in memory or on a cluster."""

    plan: TrainingPlan
    encoder: Encoder
    n_instances: int
    census: Census

    @property
    def where(self) -> Callable[[], str] | None:
        """A function that describes the machines which hold the data; None: this machine."""
        return None

    @abstractmethod
    def pose(self, inference: Inference) -> P:
        """The problem of these data."""

    @abstractmethod
    def look(self, problem: P, w: Floats) -> list[InferenceSummary]:
        """Figures about inference in every block of the problem, at the weights w."""

    def regulariser(self, taken: Callable[[Any], Any]) -> Regulariser:
        """1/2 |w|^2, or with other strengths for the blocks named in ``penalties``, and a share of absolute values;
        bounds are the structure's. ``taken`` leaves out the weights that training does not see."""
        penalties = self.plan.penalties
        ratio = self.plan.l1_ratio
        nonnegative = self.encoder.weight_masks.nonnegative
        bounded = taken(nonnegative) if nonnegative.any() else None
        if penalties is None:
            return Regulariser(1.0 - ratio, bounded, ratio)
        if not hasattr(penalties, "items"):
            raise InputError(f"penalties must map names of blocks of weights to strengths, got {penalties!r}.")
        strengths = taken(self.encoder.layout.per_weight(dict(penalties)))
        return Regulariser((1.0 - ratio) * strengths, bounded, ratio * strengths)


@dataclass(frozen=True, eq=False)
class TrainingData(FittedData[TrainingProblem]):
    """Training data in memory: encoded X, the labels, and both as a sample."""

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
            encoder, parsed = Encoder.learn(structure, X, labels, y)
            encoded = encoder.encode_parsed(parsed)
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
                weight = weight * mean_per_instance(per_site, observed)
                per_site = None
        if len(encoded.hidden.vars) and not plan.may_hide:
            raise no_hidden(plan.name)
        sample = to_sample(encoded, observed, weight, per_site, permitted, plan.objective.loss)
        n_labelled = int(observed.observed.sum())
        counts = observed.mask[observed.single].sum(axis=0).tolist()
        census = Census(len(observed.observed), n_labelled, n_labelled - int(observed.single.sum()), counts)
        return cls(plan, encoder, len(encoded.batch), census, encoded, observed, sample)

    def seen(self) -> Bools:
        """False on the weights of sparse features of sites for labels that no site with the feature has; fixed weights
        are True."""
        batch = self.encoded.batch
        labels = self.observed
        has_label = mask_from_indices(self.encoded.labels.vars, batch.n_vars)
        optional: list[Term] = []
        required: list[Term] = []
        for term in self.encoded.inputs.terms:
            is_optional = term.target == "unary" and has_optional_weights(term)
            if is_optional and bool(has_label[batch.state_var[term.at[term.at >= 0]]].all()):
                optional.append(term)
            else:
                required.append(term)
        seen = np.ones(self.encoder.model.n_weights, dtype=bool)
        for term in optional:
            seen[_weights_of(term)] = False
        for term in required:  # last: a block may have terms of both sorts
            seen[_weights_of(term)] = True
        # The adjoint of the labels' indicators sums |feature| over the sites with a label.
        indicators = np.zeros(batch.n_states)
        indicators[self.encoded.states_at] = (labels.mask & labels.observed[:, None]).ravel()
        magnitudes = LinearInputs(batch, tuple(replace(term, features=abs(term.features)) for term in optional))
        total = LinearModel(len(seen)).adjoint(Marginals(indicators, np.zeros(batch.n_mu_entries)), magnitudes)
        seen |= total > 0
        model = self.encoder.model
        if isinstance(model, FixedWeights):
            seen |= model.known
        return seen

    def pose(self, inference: Inference) -> TrainingProblem:
        """The problem of these data; with ``only_seen`` over the ``seen`` weights."""
        plan = self.plan
        model = self.encoder.model
        if not plan.only_seen:
            return TrainingProblem(plan.objective, model, self.sample, inference, plan.C, plan.engine)
        active = ActiveWeights.of(model, self.encoded.inputs, self.seen())
        inputs = active.inputs(inputs_for(plan.objective.loss, self.encoded.inputs))
        sample = replace(self.sample, inputs=inputs)
        return TrainingProblem(plan.objective, active, sample, inference, plan.C, plan.engine)

    def look(self, problem: TrainingProblem, w: Floats) -> list[InferenceSummary]:
        batch = self.encoded.batch
        hidden = mask_from_indices(self.encoded.hidden.vars, batch.n_vars)[self.sample.labelled[batch.owner]]
        var_ptr = problem.sample.batch.var_ptr

        def look_at(block: BoundBlock) -> InferenceSummary:
            return block.look(w, hidden, var_ptr)

        return problem.engine.parallel_map(look_at, problem.bound)


def _weights_of(term: Term) -> Ints:
    """The weights that a term uses."""
    starts = np.unique(term.block)
    return spans(starts, np.full(len(starts), term.block_size))


def no_hidden(name: str) -> InputError:
    """The error of a member without hidden variables that is given a structure with some."""
    return InputError(
        f"{name} has no hidden variables, but the structure has; "
        "use MSSVM, LSSVM or HCRF, or a structure with hidden=0 (--hidden 0)."
    )


class TrainingLine:
    """A callback that shows progress on one line of the terminal; ``begin`` is called at every start."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self._start = ""
        self._most_iterations = 0
        self._starts_left = 0
        self._where: Callable[[], str] | None = None

    def begin(self, most: int, start: int, n_starts: int, where: Callable[[], str] | None = None) -> None:
        """A solver that stops after ``most`` iterations (0: unknown) begins at one of several starts; ``where``
        describes the machines that work for it."""
        self._where = where
        self._start = f"start {start} of {n_starts}, " if n_starts > 1 else ""
        self._most_iterations = most
        self._starts_left = n_starts - start

    def __call__(self, row: Row, w: Floats) -> None:
        self.line.say(self.text(row))

    def text(self, row: Row) -> str:
        """One row of the trace, whose seconds count from the start of the first of several runs, as a line."""
        rate = row.iteration / max(row.seconds, 1e-9)
        text = f"{self._start}iteration {row.iteration}, {rate:.3g}/s, objective {row.objective:.6g}"
        for name, value in (("gap", row.gap), ("gradient", row.gradient_norm)):
            if np.isfinite(value):
                text += f", {name} {value:.2g}"
        if np.isfinite(row.converged) and row.converged < 1:
            text += f", {row.converged:.0%} of inference converged"
        text += f", temperatures {row.eps_y:g} and {row.eps_h:g}"
        if self._most_iterations and row.iteration:
            done = min(row.iteration / (self._most_iterations * (1 + self._starts_left)), 1.0)
            text += f", at most {left(row.seconds, done)} left"
        if self._where is None:
            return text
        return f"{text}, {self._where()}"


@dataclass(eq=False)
class Training:
    """One call of ``fit``: the problem, its solver and the hooks. ``taken`` are the weights that training sees, of an
    array over all weights; ``whole`` is the inverse."""

    data: FittedData[Any]
    hooks: FitHooks
    began: float = field(default_factory=monotonic)
    calls: int = 0
    seed: int = 0
    warm: bool = False

    def __post_init__(self) -> None:
        data = self.data
        plan = data.plan
        self.plan = plan
        self.hooks.check()
        self.inference = inference_of(plan.inference, plan.memory_limit, 1, data.n_instances)
        self.problem = data.pose(self.inference)
        self.model = self.problem.model
        self.taken = self.model.take if isinstance(self.model, ActiveWeights) else np.asarray
        if not self.problem.n_instances:
            raise InputError("no site of y is labelled; training needs at least one label.")
        self.regulariser = data.regulariser(self.taken)
        self.whole = self.model.fill
        self.validation = None if self.hooks.validation is None else self._validation(self.hooks.validation)
        self._lines: list[TrainingLine] = []

    @property
    def planner(self) -> Planner:
        return Planner(self.inference, self.plan.engine)

    def run(self, warm: Floats | None) -> tuple[Floats, Solution, dict[str, Any]]:
        """Minimise from every start and keep the lowest: all weights, the solution, and figures about the training."""
        plan = self.plan
        hidden = self.taken(self.data.encoder.weight_masks.hidden)
        self.warm = warm is not None
        init = plan.init if warm is None else warm
        if not isinstance(init, str):
            init = self.taken(np.asarray(init))
        solutions: list[Solution] = []
        objectives: list[float] = []
        with ProgressLine(plan.name, quiet=0.0) if plan.verbose else nullcontext() as line:
            self._lines = [] if line is None else [TrainingLine(line)]
            if isinstance(self.hooks.callback, TrainingLine):
                self._lines.append(self.hooks.callback)
            self.n_starts = n_starts(init, self.problem, hidden, plan.n_init)
            for w0 in starts(init, self.problem, hidden, plan.n_init, plan.rng, self.regulariser):
                self.seed = int(plan.rng.randint(LARGEST_SEED))
                self._start = len(solutions) + 1
                if plan.strategy is None:
                    solution = self.minimise(self.problem, w0)
                else:
                    solution = plan.strategy(self.problem, w0, self.minimise)
                solutions.append(solution)
                objectives.append(float(solution.objective))
                if solution.outcome.cut_short:
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
        cuts = first is not None and first.exact and not exact and problem.n_weights <= FEW_WEIGHTS
        solver = self.plan.solver_for(exact, cuts, dual, missing, self.seed)
        self.calls += 1
        if self.warm:
            solver = solver.for_warm_start()
        for line in self._lines:
            line.begin(solver.limit(problem.temperatures), self._start, self.n_starts, self.data.where)
        solution: Solution = solver.minimize(
            problem,
            w0,
            regulariser=self.regulariser,
            callback=self._callback(),
            validation=self.validation,
            time_limit=self._time_left(),
            checkpoint=self._checkpoint(),
            first=first,
        )
        return solution

    def _callback(self) -> Callback | None:
        if self.hooks.callback is None and not self._lines:
            return None
        return self._on_row

    def _time_left(self) -> float | None:
        if self.hooks.time_limit is None:
            return None
        return self.hooks.time_limit - (monotonic() - self.began)

    def _checkpoint(self) -> Checkpoint | None:
        checkpoint = self.hooks.checkpoint
        if isinstance(checkpoint, (str, Path)):
            checkpoint = Checkpoint(checkpoint)
        if checkpoint is None:
            return None
        return checkpoint.numbered(self.calls)

    def _exact_when_smoothed(self, problem: Problem, w0: Floats) -> bool:
        """Whether inference that is exact at the target temperatures is also exact at the first ones of L-BFGS: minimum
        cuts are exact at temperature 0 only."""
        begin = (max(problem.temperatures[0], SMOOTHED[0]), max(problem.temperatures[1], SMOOTHED[0]))
        if begin == problem.temperatures:
            return True
        with ONE_BLAS_THREAD:
            return problem.at(*begin).difference(w0).exact

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
        """Whether BCFW can solve the problem: single instances are accessible, outputs are maximised, nothing is
        missing, all weights are regularised, and its planes fit into memory."""
        if not problem.has_atoms:
            return False
        regulariser = self.regulariser
        size = 8 * BCFW.n_planes * self.problem.plane_size
        penalised = not regulariser.has_absolute and bool(np.all(regulariser.strengths(problem.n_weights) > 0))
        return problem.convex and problem.temperatures[0] == 0 and penalised and size <= self.plan.memory_limit

    def _on_row(self, row: Row, w: Floats) -> bool | None:
        """Pass a row of the trace on to the progress line and to the user's callback."""
        for line in self._lines:
            line(row, w)
        callback = self.hooks.callback
        if callback is None or callback in self._lines:
            return None
        return callback(row, self.whole(w))

    def _validation(self, validation: HeldOut | Validation | tuple[Any, Any]) -> Validation:
        """Scores of held-out data as a function of the weights that training sees."""
        if isinstance(validation, Validation):
            score_whole = validation.score
            return replace(validation, score=lambda w: score_whole(self.whole(w)))
        held = validation if isinstance(validation, HeldOut) else HeldOut(*validation)
        encoder = self.data.encoder
        predictor = self.hooks.predictor
        with held.naming():
            known = KnownLabels(held.hidden_sites)
            held_out = request(encoder, np.zeros(encoder.layout.n_weights), self.planner, predictor, held.X, known)
            vocabulary = encoder.vocabulary.widened(held.y, self.plan.structure.depth)
            truth = vocabulary.encode(held.y, held_out.encoded.labels.shapes)
        inputs = held_out.encoded.inputs
        sites = held_out.encoded.labels
        ones = np.ones(len(inputs.batch))
        features = encoder.model.bind(inputs, self.planner.engine)
        bound = predictor(self.planner, inputs, held_out.query)

        def score(w: Floats) -> float:
            belief = bound(features.forward(self.whole(w)))
            return agreement(belief.decode(inputs.batch)[sites.vars], truth, ones)

        return Validation(score, held.patience, held.every)


def summary(training: Training, chosen: Solution, objectives: list[float]) -> dict[str, Any]:
    """Figures about a training, as JSON values, which ``diagnosis`` puts into words. A closing pass over every block
    counts the methods of inference that ran, and how much each hidden state is used given the labels."""
    last = chosen.trace[-1] if chosen.trace else None
    certificate = chosen.certificate
    blocks = training.data.look(training.problem, chosen.w)
    right = sum(block.right for block in blocks)
    exact = all(block.exact for block in blocks)
    converged = sum(block.converged for block in blocks)
    answers = sum(block.n for block in blocks)
    methods = Counter[str]()
    for block in blocks:
        methods.update(block.methods)
    kind = "exact" if exact else "approximate"
    names = ", ".join(sorted(methods)) or "none"
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
        "hidden_usage": _hidden_usage(blocks),
    }


def _hidden_usage(blocks: Sequence[InferenceSummary]) -> list[list[float]]:
    """Mean probabilities of the states of hidden variables, for every number of states."""
    totals: dict[int, Any] = {}
    counts = Counter[int]()
    for block in blocks:
        for card, (total, n) in block.usage.items():
            totals[card] = totals.get(card, 0.0) + total
            counts[card] += n
    return [(totals[card] / counts[card]).tolist() for card in sorted(totals)]

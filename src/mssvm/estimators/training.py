"""From labelled data to weights: encode, pose the problem, solve it from one or several starts, keep the lowest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.data.labels import Labels, LabelSpace
from mssvm.engines import engine_of
from mssvm.estimators import resolve
from mssvm.estimators.progress import Progress
from mssvm.estimators.starts import LARGEST_SEED, starts
from mssvm.estimators.support import check_support, supported
from mssvm.inference.base import Inference
from mssvm.losses.losses import Loss, Zero, inputs_for
from mssvm.models.linear import LinearModel
from mssvm.models.partial import FixedWeights
from mssvm.objectives.base import Objective
from mssvm.objectives.problem import Problem
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import Outcome, Regulariser, Solution
from mssvm.optim.start import best_of
from mssvm.structures import Encoder, Schema, Structure
from mssvm.structures.encoded import Encoded, to_sample

Minimise = Callable[[Problem, Floats], Solution]
"""A solver with its regulariser and progress line."""


@dataclass(frozen=True, eq=False)
class Data:
    """The training data as the layers below see them, with what was learned about labels and features."""

    encoder: Encoder
    encoded: Encoded
    observed: Labels
    sample: Sample

    @property
    def structure(self) -> Structure:
        return self.encoder.structure

    @property
    def space(self) -> Schema:
        return self.encoder.schema

    @property
    def labels(self) -> LabelSpace:
        return self.encoder.vocabulary

    @property
    def model(self) -> LinearModel | FixedWeights:
        return self.encoder.model


@dataclass(frozen=True, eq=False)
class Trained:
    """The chosen solution, and figures about the training that ``diagnose`` puts into words (JSON values only)."""

    w: Floats
    solution: Solution
    summary: dict[str, Any]


def read(
    params: Any, X: Any, y: Any, sample_weight: Any, allowed: Any, earlier: tuple[Schema, LabelSpace] | None
) -> Data:
    """Learn (or, in a warm start, keep) the vocabularies of X and y, and lay the data out."""
    if y is None:
        raise InputError(f"{type(params).__name__} requires y to be passed, but the target y is None.")
    structure = resolve.structure_of(params.structure)
    if earlier is None:
        labels = LabelSpace.learn(y, structure.depth, params.classes, params.missing_label)
        encoder, parsed = structure.compile(X, labels)
        encoded = encoder.assemble(parsed)
    else:
        encoder, labels = structure.encoder(*earlier), earlier[1]
        encoded = encoder.encode(X)
    observed = labels.encode(y, encoded.labels.shapes)
    permitted = None if allowed is None else labels.encode(allowed, encoded.labels.shapes, "allowed")
    weight = instance_weights(sample_weight, len(encoded))
    per_class = resolve.class_weights(params.class_weight, labels, observed)
    per_site = None
    if per_class is not None:
        per_site = resolve.site_weights(per_class, observed)
        if isinstance(params._loss(), Zero):
            # A likelihood has no loss to weigh, so instances are weighed by their labels instead.
            weight, per_site = weight * resolve.mean_per_instance(per_site, observed), None
    sample = to_sample(encoded, observed, weight, per_site, permitted, params._loss())
    return Data(encoder, encoded, observed, sample)


def instance_weights(sample_weight: Any, n: int) -> Floats:
    """One finite number >= 0 per instance."""
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n,) or not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise InputError(f"sample_weight needs one finite number >= 0 for each of the {n} instances.")
    if not weights.any():
        raise InputError("every sample weight is zero; at least one instance must count.")
    return weights


def train(params: Any, data: Data, objective: Callable[[Loss], Objective], warm: Floats | None, name: str) -> Trained:
    """Minimise the objective from every start and keep the lowest."""
    threads = resolve.threads_of(params.n_jobs)
    inference = resolve.inference_of(params.inference, params.memory_limit, 1, len(data.encoded))
    C = float(resolve.positive(params.C, "C"))
    seen = supported(data.model, data.encoded, data.observed) if check_support(params.support) else None
    model = seen or data.model
    sample = data.sample
    if seen is not None:
        sample = replace(sample, inputs=seen.inputs(inputs_for(params._loss(), data.encoded.inputs)))
    problem = TrainingProblem(objective(params._loss()), model, sample, inference, C, engine_of("auto", threads))
    if not problem.n_instances:
        raise InputError("no site of y is labelled; training needs at least one label.")
    rng = check_random_state(params.random_state)
    hidden = data.encoder.hidden_weights
    init = params.init if warm is None else warm
    n_init = int(resolve.positive(params.n_init, "n_init", whole=True))
    regulariser = penalty(params, data)
    if seen is not None:
        hidden, init = seen.take(hidden), init if isinstance(init, str) else seen.take(np.asarray(init))
        regulariser = Regulariser(seen.take(regulariser.strengths(data.model.n_weights)))
    solutions: list[Solution] = []
    # Blocks of instances are the unit of parallel work (n_jobs); threads inside BLAS would only wait for each other.
    with threadpool_limits(1, "blas"), Progress(name, bool(params.verbose), n_init) as progress:
        for w0 in starts(init, problem, hidden, n_init, rng, regulariser):
            progress.start = len(solutions)
            solutions.append(_solve(params, problem, w0, rng, regulariser, progress))
            if solutions[-1].outcome is Outcome.INTERRUPTED:
                break
    chosen = best_of(solutions)
    summary = _summary(problem, data, chosen, solutions)
    return Trained(model.fill(chosen.w), chosen, summary)


def penalty(params: Any, data: Data) -> Regulariser:
    """1/2 |w|^2, or with other strengths for the blocks named in ``penalties``."""
    if params.penalties is None:
        return Regulariser()
    if not hasattr(params.penalties, "items"):
        raise InputError(f"penalties must map names of blocks of weights to strengths, got {params.penalties!r}.")
    return Regulariser(data.encoder.layout.per_weight(dict(params.penalties)))


def _solve(
    params: Any,
    problem: TrainingProblem,
    w0: Floats,
    rng: np.random.RandomState,
    regulariser: Regulariser,
    progress: Progress,
) -> Solution:
    seed = int(rng.randint(LARGEST_SEED))
    exact = params.solver != "auto" or problem.difference(w0).exact
    solver = resolve.solver_of(params.solver, exact, params.max_iter, params.tol, seed)

    def minimise(problem: Problem, w: Floats) -> Solution:
        return solver.minimize(problem, w, regulariser=regulariser, callback=progress)

    solution: Solution = params._solve(problem, w0, minimise)
    return solution


def _summary(problem: TrainingProblem, data: Data, chosen: Solution, solutions: list[Solution]) -> dict[str, Any]:
    """Everything worth knowing about the training, as JSON values."""
    objectives = [float(s.objective) for s in solutions]
    last = chosen.trace[-1] if chosen.trace else None
    labels = data.observed
    certificate = chosen.certificate
    return {
        "objective": float(chosen.objective),
        "outcome": chosen.outcome.value,
        "message": chosen.message,
        "certificate": certificate.sentence,
        "gap": float(certificate.gap),
        "certified": bool(certificate.certifies),
        "negative_gaps": int(certificate.negative_gaps),
        "restarts": objectives,
        "rescued": int(last.rescued) if last else 0,
        "seconds": float(last.seconds) if last else 0.0,
        "instances": len(data.encoded),
        "instances_labelled": int(problem.n_instances),
        "sites": len(labels.observed),
        "sites_labelled": int(labels.observed.sum()),
        "sites_candidates": int((labels.observed & ~labels.single).sum()),
        "class_counts": [int(c) for c in labels.mask[labels.single].sum(axis=0)],
        **_closing_pass(problem, data, problem.inference, chosen.w),
    }


def _closing_pass(problem: TrainingProblem, data: Data, inference: Inference, w: Floats) -> dict[str, Any]:
    """Inference once more, with and without the labels: which methods ran, and how much each hidden state is used."""
    sample = problem.sample
    theta = problem.model.forward(w, sample.inputs)
    free = inference(sample.batch, theta, sample.query, *problem.temperatures)
    belief = inference(sample.batch, theta, sample.truth_query, *problem.temperatures)
    methods, counts = np.unique(np.asarray(free.status.method, dtype=str), return_counts=True)
    converged = np.concatenate([free.status.converged, belief.status.converged])
    out: dict[str, Any] = {
        "methods": {str(m): int(c) for m, c in zip(methods, counts, strict=True)},
        "exact": bool(free.status.exact.all() and belief.status.exact.all()),
        "converged_share": float(converged.mean()),
        "hidden_usage": [],
    }
    kept = np.flatnonzero(data.sample.labelled) if len(sample) != len(data.encoded) else np.arange(len(sample))
    hidden = data.encoded.select(kept).hidden if len(sample) != len(data.encoded) else data.encoded.hidden
    cards = sample.batch.cards[hidden.vars]
    for card in np.unique(cards).tolist():
        members = hidden.vars[cards == card]
        mu = belief.mu.unary[sample.batch.unary_ptr[members][:, None] + np.arange(card)]
        out["hidden_usage"].append([float(p) for p in mu.mean(axis=0)])
    return out

"""Training on votes: expectation maximisation over the true labels, by rounds.

A round estimates the annotators' confusion tables from probabilities of the true labels, then lowers the objective in
which the votes are evidence for the true labels (``annotators``), then computes these probabilities anew:

    J(w, p) = R(w) + C sum_i [ PS_y PS_h (theta + Delta)  -  PS_y PS_h (theta + evidence_p) ]  -  C log prior(p)

With eps_y = eps_h = 1 and no loss this is the penalised likelihood of the votes. A margin is scaled by the expected
loss of each label, 1 - p(y_t | votes, x): ordinary labels are the limit of perfect annotators.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from mssvm.annotators import Annotators, AnnotatorTable
from mssvm.annotators.baselines import vote_shares
from mssvm.annotators.confusion import Confusion
from mssvm.annotators.votes import RawVotes, Votes
from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Potentials
from mssvm.data.labels import LabelVocabulary
from mssvm.estimators.hooks import FitHooks
from mssvm.estimators.plan import TrainingPlan, inference_for
from mssvm.estimators.prediction import PredictionRequest
from mssvm.estimators.training import Training
from mssvm.estimators.training_data import TrainingData
from mssvm.inference.base import Planner
from mssvm.losses import Zero
from mssvm.objectives.unified import Unified
from mssvm.optim import Outcome, Solution
from mssvm.structures import Encoder
from mssvm.structures.encoded import Encoded

ITERATIONS = 20  # iterations of the solver in every round but the last


@dataclass(frozen=True, eq=False)
class CrowdFit:
    """The result of learning from votes: encoder, weights, figures of the training, confusion tables, and a summary of
    the annotators."""

    encoder: Encoder
    w: Floats
    solution: Solution
    training: dict[str, Any]
    confusion: Confusion
    table: AnnotatorTable


def fit(
    plan: TrainingPlan, settings: Annotators, X: Any, y: Any, weight: Any, allowed: Any, hooks: FitHooks
) -> CrowdFit:
    """Learn weights and confusion tables from votes ``y``."""
    if not isinstance(plan.objective, Unified):
        raise UnsupportedError(
            f"{plan.name} has an objective of its own; annotators are for the members of one family."
        )
    raw = RawVotes.parse(y, plan.structure.depth, plan.missing_label)
    classes = tuple(plan.classes) if plan.classes is not None else raw.classes(plan.missing_label)
    labels = raw.labels(classes)
    data = TrainingData.of(replace(plan, classes=classes), X, labels, weight, allowed, None)
    votes = Votes.encode(raw, np.diff(data.encoded.labels.ptr), data.encoder.vocabulary)
    if not len(votes):
        raise InputError("y holds no votes; leave annotators out, or give votes as {annotator: label}.")
    rounds = Rounds(data, votes, settings, hooks)
    return rounds.run()


class Rounds:
    """The rounds of one training."""

    def __init__(self, data: TrainingData, votes: Votes, settings: Annotators, hooks: FitHooks) -> None:
        self.data = data
        self.votes = votes
        self.settings = settings
        self.hooks = hooks
        self.sequential = settings.sequential(data.plan.structure.depth)
        self.truth = TruthPosterior(data)
        self.gold = data.observed.single
        self._began = monotonic()
        self._calls = 0  # number of solver calls so far: every call has its own checkpoint file

    def run(self) -> CrowdFit:
        """Rounds until the probabilities of true labels converge; in the last one the solver converges, too."""
        # Without pseudo-votes, unanimous votes would make tables of zeros and ones, which no features could ever
        # contradict.
        posterior = vote_shares(self.votes, doubt=1.0)
        posterior[self.gold] = self.data.observed.mask[self.gold]
        w: Floats | None = None
        moved = np.inf
        for number in range(1, self.settings.max_iter + 1):
            is_last = number == self.settings.max_iter or moved < self.settings.tol
            confusion = Confusion.estimate(self.votes, posterior, self.settings, self.sequential)
            evidence = confusion.evidence(self.votes, self.settings.weight)
            evidence[self.gold] = 0.0
            w, solution, training = self._lower(posterior, evidence, w, None if is_last else ITERATIONS)
            updated = self.truth(w, evidence)
            moved = float(np.abs(updated - posterior).sum(axis=1).mean())
            posterior = updated
            if is_last or solution.outcome.cut_short or solution.outcome is Outcome.STOPPED:
                break
        if moved >= self.settings.tol:
            warnings.warn(
                f"probabilities of the true labels still move by {moved:.2g} a site after {number} rounds; "
                "raise Annotators(max_iter=...) or tol.",
                ConvergenceWarning,
                stacklevel=5,
            )
        assert w is not None, "there is at least one round"
        training = {**training, "rounds": number, "moved": moved, "votes": len(self.votes)}
        table = AnnotatorTable.of(self.votes, posterior, self.data.encoder.vocabulary.classes)
        return CrowdFit(self.data.encoder, w, solution, training, confusion, table)

    def _lower(
        self, posterior: Floats, evidence: Floats, w: Floats | None, max_iter: int | None
    ) -> tuple[Floats, Solution, dict[str, Any]]:
        """Lower the objective in the weights, the tables being fixed."""
        data = self.data
        plan = data.plan
        if max_iter is not None and isinstance(plan.solver, str):
            plan = replace(plan, max_iter=min(max_iter, plan.max_iter or max_iter))
        sample = replace(data.sample, evidence=_over_states(data.encoded, evidence))
        if not isinstance(plan.objective.loss, Zero):
            voted = ~data.observed.single & data.observed.observed
            expected_loss = np.where(voted[:, None], 1.0 - posterior, 0.0)
            sample = replace(sample, extra_loss=_over_states(data.encoded, expected_loss))
        training = Training(replace(data, plan=plan, sample=sample), self.hooks, self._began, self._calls)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            lowered = training.run(w)
        self._calls = training.calls
        return lowered


def with_votes(
    request: PredictionRequest,
    vocabulary: LabelVocabulary,
    confusion: Confusion,
    table: AnnotatorTable,
    weight: float,
    votes: Any,
) -> PredictionRequest:
    """A request whose scores include the evidence of votes; gold labels among these are clamped."""
    encoded = request.encoded
    depth = len(encoded.labels.shapes[0]) if encoded.labels.shapes else 0
    raw = RawVotes.parse(votes, depth, vocabulary.missing_label)
    names = [row.name for row in table]
    flat = Votes.encode(raw, np.diff(encoded.labels.ptr), vocabulary, names)
    evidence = confusion.evidence(flat, weight)
    gold = vocabulary.encode(raw.labels(vocabulary.classes), encoded.labels.shapes, "votes")
    return replace(request.restricted(gold), evidence=_over_states(encoded, evidence))


class TruthPosterior:
    """Probabilities of the true labels given votes and features, as a function of weights and evidence."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data
        plan = data.plan
        inference = inference_for(data.encoder, plan.inference, plan.memory_limit, 1, data.n_instances)
        planner = Planner(inference, plan.engine)
        batch = data.encoded.batch
        self.bound = planner(batch).bind(data.sample.truth_query, 1.0, 1.0)
        self.features = data.encoder.model.bind(data.encoded.inputs, plan.engine)

    def __call__(self, w: Floats, evidence: Floats) -> Floats:
        theta = self.features.forward(w)
        observed = Potentials(theta.unary + _over_states(self.data.encoded, evidence), theta.tables)
        return self.data.encoded.over_sites(self.bound(observed).mu.unary)


def _over_states(encoded: Encoded, by_site: Floats) -> Floats:
    """An array (sites, classes) over all states of the batch, zero on other variables."""
    out = np.zeros(encoded.batch.n_states)
    out[encoded.states_at] = by_site.ravel()
    return out

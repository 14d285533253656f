"""Training data as the layers below see them: encoded X, labels, and both as the sample of a problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from mssvm.core import checks
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Marginals
from mssvm.core.terms import Term
from mssvm.core.topology import mask_from_indices, spans
from mssvm.data.labels import Labels
from mssvm.estimators.plan import TrainingPlan, class_weights, instance_weights, label_weights, mean_per_instance
from mssvm.inference.base import Inference
from mssvm.losses import SpanLoss, Zero
from mssvm.losses.base import inputs_for
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.models.partial import ActiveWeights, FixedWeights, has_optional_weights
from mssvm.objectives.bound_block import BoundBlock
from mssvm.objectives.sample import Sample
from mssvm.objectives.summary import InferenceSummary
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified
from mssvm.optim import Regulariser
from mssvm.structures import Encoder, Segments
from mssvm.structures.continued import MovedWeights, moved_weights, widened_encoder
from mssvm.structures.encoded import Encoded, to_sample

P = TypeVar("P")
"""The type of a problem: ``TrainingProblem``, or ``ShardedProblem`` on a cluster."""


class Earlier(NamedTuple):
    """What an earlier training learned: its encoder and its weights."""

    encoder: Encoder
    w: Floats


class Census(NamedTuple):
    """Numbers of sites: in total, with labels, with several candidates, and with each class as their single label."""

    sites: int
    sites_labelled: int
    sites_candidates: int
    class_counts: list[int]


@dataclass(frozen=True, eq=False)
class FittedData(ABC, Generic[P]):
    """Training data with the labels and features learned from them, in memory or on a cluster; ``moved`` are the
    weights of an earlier training, by their names (None: there was none)."""

    plan: TrainingPlan
    encoder: Encoder
    n_instances: int
    census: Census
    moved: MovedWeights | None = field(default=None, kw_only=True)

    @property
    def where(self) -> Callable[[], str] | None:
        """A function that describes the machines which hold the data; None: this machine."""
        return None

    @abstractmethod
    def pose(self, inference: Inference) -> P:
        """The problem of these data."""

    @abstractmethod
    def summaries(self, problem: P, w: Floats) -> list[InferenceSummary]:
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
        by_block: dict[str, float] = {}
        for name, strength in penalties.items():
            by_block[name] = checks.number(strength, f"penalties[{checks.shown(name)}]", low=0.0)
        strengths = taken(self.encoder.layout.per_weight(by_block))
        return Regulariser((1.0 - ratio) * strengths, bounded, ratio * strengths)


@dataclass(frozen=True, eq=False)
class TrainingData(FittedData[TrainingProblem]):
    """Training data in memory: encoded X, the labels, and both as a sample."""

    encoded: Encoded
    observed: Labels
    sample: Sample

    @classmethod
    def of(
        cls, plan: TrainingPlan, X: Any, y: Any, sample_weight: Any, allowed: Any, earlier: Earlier | None
    ) -> TrainingData:
        """Learn the vocabularies of X and y (or extend those of an ``earlier`` training), and lay the data out."""
        if y is None:
            raise InputError(f"{plan.name} requires y to be passed, but the target y is None.")
        structure = plan.structure
        if earlier is None:
            moved = None
            labels = structure.learn_labels(y, plan.classes, plan.missing_label)
            encoder, parsed = Encoder.learn(structure, X, labels, y)
        else:
            encoder, parsed = widened_encoder(structure, earlier.encoder, X, y, plan.classes, plan.missing_label)
            moved = moved_weights(earlier.w, earlier.encoder, encoder)
            labels = encoder.vocabulary
        if not encoder.layout.n_weights:
            raise InputError("the model has no weights, as no instance has a factor; give factors.")
        encoded = encoder.encode_parsed(parsed)
        plan = _on_segments(plan, encoder, encoded)
        observed = encoder.encode_labels(y, encoded.labels.shapes)
        permitted = None if allowed is None else encoder.encode_labels(allowed, encoded.labels.shapes, "allowed")
        weight = instance_weights(sample_weight, len(encoded.batch))
        by_class = None if plan.class_weight is None else class_weights(plan.class_weight, labels, observed)
        per_instance, per_site = weighed(by_class, isinstance(plan.objective.loss, Zero), observed)
        if per_instance is not None:
            weight = weight * per_instance
        if len(encoded.hidden.vars) and not plan.may_hide:
            raise no_hidden(plan.name)
        sample = to_sample(encoded, observed, weight, per_site, permitted, plan.objective.loss)
        n_labelled = int(observed.observed.sum())
        counts = observed.mask[observed.single].sum(axis=0).tolist()
        census = Census(len(observed.observed), n_labelled, n_labelled - int(observed.single.sum()), counts)
        return cls(plan, encoder, len(encoded.batch), census, encoded, observed, sample, moved=moved)

    def seen(self) -> Bools:
        """Mask of the weights to train. A weight of a sparse feature and a label is left out if no site has both; fixed
        weights stay in, and so do those that an earlier training learned."""
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
        for term in required:  # after the other terms: a block may have terms of both kinds
            seen[_weights_of(term)] = True
        # The adjoint of the labels' indicators sums |feature| over the sites with a label.
        indicators = np.zeros(batch.n_states)
        indicators[self.encoded.states_at] = (labels.mask & labels.observed[:, None]).ravel()
        magnitudes = LinearInputs(batch, tuple(replace(term, features=abs(term.features)) for term in optional))
        total = LinearModel(len(seen)).adjoint(Marginals(indicators, np.zeros(batch.n_mu_entries)), magnitudes)
        seen |= total > 0
        if self.moved is not None:
            seen |= self.moved.w != 0
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

    def summaries(self, problem: TrainingProblem, w: Floats) -> list[InferenceSummary]:
        batch = self.encoded.batch
        hidden = mask_from_indices(self.encoded.hidden.vars, batch.n_vars)[self.sample.labelled[batch.owner]]
        var_ptr = problem.sample.batch.var_ptr

        def summarize(block: BoundBlock) -> InferenceSummary:
            return block.summarize(w, hidden, var_ptr)

        return problem.engine.parallel_map(summarize, problem.bound)


def _on_segments(plan: TrainingPlan, encoder: Encoder, encoded: Encoded) -> TrainingPlan:
    """The plan, with the layout of segments in its loss if that is ``SpanLoss``; raises if the structure has none."""
    objective = plan.objective
    own = plan.strategy is not None or not isinstance(objective, Unified)
    if encoded.segments is not None and own:
        raise UnsupportedError(f"{plan.name} is not defined on segments; use MSSVM, LSSVM, HCRF or another member.")
    if not isinstance(objective, Unified) or not isinstance(objective.loss, SpanLoss):
        return plan
    if not isinstance(encoder.structure, Segments):
        name = type(encoder.structure).__name__
        raise InputError(f"the loss 'spans' is for the structure Segments, not {name}; use 'hamming'.")
    layout = encoder.structure.segment_layout(encoder.schema, encoder.vocabulary)
    return replace(plan, objective=replace(objective, loss=replace(objective.loss, layout=layout)))


def _weights_of(term: Term) -> Ints:
    """The weights that a term uses."""
    starts = np.unique(term.block)
    return spans(starts, np.full(len(starts), term.block_size))


def weighed(weights: Floats | None, likelihood: bool, labels: Labels) -> tuple[Floats | None, Floats | None]:
    """Weights of instances and of sites from those of the classes (None: all 1): a likelihood has no loss to scale, so
    instances are weighted by their labels instead."""
    if weights is None:
        return None, None
    per_site = label_weights(weights, labels)
    if likelihood:
        return mean_per_instance(per_site, labels), None
    return None, per_site


def no_hidden(name: str) -> InputError:
    """The error for a structure with hidden variables in a member that does not have them, such as CRF."""
    return InputError(
        f"{name} has no hidden variables, but the structure has; "
        "use MSSVM, LSSVM or HCRF, or a structure with hidden=0 (--hidden 0)."
    )

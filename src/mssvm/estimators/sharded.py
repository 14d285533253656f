"""Shards on a cluster: as training data for ``Training``, and as inputs of a fitted model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import UnsupportedError
from mssvm.data.dataset import Dataset
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.data.shards import ShardedDataset
from mssvm.estimators.plan import TrainingPlan, class_weights
from mssvm.estimators.prediction import agreement
from mssvm.estimators.training_data import Census, Earlier, FittedData, no_hidden, weighed
from mssvm.inference.base import Inference
from mssvm.losses import Zero
from mssvm.objectives.summary import InferenceSummary
from mssvm.parallel import answers
from mssvm.parallel.cluster import current
from mssvm.parallel.problem import ShardedProblem, Surveyed
from mssvm.parallel.store import agreed
from mssvm.structures.continued import moved_weights, widened

if TYPE_CHECKING:
    from mssvm.estimators.base import StructuredEstimator


@dataclass(frozen=True, eq=False)
class ShardedTrainingData(FittedData[ShardedProblem]):
    """Shards after a first reading, with the labels and features learned from them."""

    surveyed: Surveyed

    @classmethod
    def of(cls, plan: TrainingPlan, data: ShardedDataset, earlier: Earlier | None) -> ShardedTrainingData:
        """Let the workers read the shards, and merge their vocabularies (or extend those of an ``earlier``
        training)."""
        if plan.only_seen:
            raise UnsupportedError("support='seen' looks at all data at once; on a cluster use support='all'.")
        if plan.strategy is not None:
            raise UnsupportedError(
                f"{plan.name} alternates between two models on one machine; use MSSVM, LSSVM or HCRF."
            )
        surveyed = Surveyed.of(current(), data, plan.structure, plan.missing_label)
        labels = cls._vocabulary(plan, surveyed)
        encoder = agreed(surveyed.surveys, surveyed.names, plan.structure, labels, data.hashed)
        moved = None
        if earlier is not None:
            encoder = widened(plan.structure, earlier.encoder, encoder)
            moved = moved_weights(earlier.w, earlier.encoder, encoder)
        if not plan.may_hide and any(len(encoder.topology(key).hidden) for key in surveyed.kinds):
            raise no_hidden(plan.name)
        census = cls._census(surveyed, encoder.vocabulary)
        return cls(plan, encoder, surveyed.n_instances, census, surveyed, moved=moved)

    @staticmethod
    def _vocabulary(plan: TrainingPlan, surveyed: Surveyed) -> LabelVocabulary:
        labels: dict[Hashable, None] = {}
        for label in surveyed.labels:
            candidates = label if isinstance(label, frozenset) else (label,)
            labels.update(dict.fromkeys(candidates))
        return LabelVocabulary.learn([list(labels)], 1, plan.classes, plan.missing_label)

    @property
    def where(self) -> Callable[[], str]:
        return self.surveyed.cluster.summary

    @staticmethod
    def _census(surveyed: Surveyed, vocabulary: LabelVocabulary) -> Census:
        n_sites = sum(survey.n_sites for survey in surveyed.surveys)
        n_candidates = 0
        single: Counter[Hashable] = Counter()
        for label, n in surveyed.labels.items():
            candidates = label if isinstance(label, frozenset) else (label,)
            if len(candidates) > 1:
                n_candidates += n
            else:
                (only,) = candidates
                single[only] += n
        counts = [single[c] for c in vocabulary.classes]
        return Census(n_sites, surveyed.labels.total(), n_candidates, counts)

    def pose(self, inference: Inference) -> ShardedProblem:
        plan = self.plan
        weights = None
        if plan.class_weight is not None:
            # Every different label is one site, which counts as often as the label appears.
            listed: list[Any] = []
            for label in self.surveyed.labels:
                listed.append(sorted(label, key=repr) if isinstance(label, frozenset) else label)
            labels = self.encoder.vocabulary.encode([listed], [(len(listed),)])
            times = np.array(list(self.surveyed.labels.values()), dtype=np.float64)
            weights = class_weights(plan.class_weight, self.encoder.vocabulary, labels, times)
        weigh = partial(weighed, weights, isinstance(plan.objective.loss, Zero))
        return self.surveyed.pose(self.encoder, plan.objective, inference, plan.C, plan.engine, weigh)

    def summaries(self, problem: ShardedProblem, w: Floats) -> list[InferenceSummary]:
        return problem.summaries(w)


@dataclass(frozen=True)
class Answers:
    """Predictions and scores of a fitted estimator on shards, computed by the cluster of the innermost context."""

    estimator: StructuredEstimator

    def _predictor(self, decode: str | None) -> Callable[[Dataset], Any]:
        return partial(predict_part, self.estimator, decode)

    def predict(self, data: ShardedDataset, decode: str | None, output: str | Path | None) -> Any:
        """Labels of all shards in order, or the names of the files that have them."""
        if output is not None:
            return answers.to_files(current(), data, self._predictor(decode), output)
        labels = answers.each_shard(current(), data, answers.predicted, self._predictor(decode))
        return list(chain.from_iterable(labels))

    def compared(self, data: ShardedDataset, decode: str | None) -> tuple[LabelVocabulary, Labels, Labels]:
        """The classes of model and data, and the labels given and predicted."""
        shapes: list[tuple[int, ...]] = []
        given: list[Any] = []
        predicted: list[Any] = []
        for shard in answers.each_shard(current(), data, answers.compared, self._predictor(decode)):
            shard_shapes, shard_given, shard_predicted = shard
            shapes += shard_shapes
            given += shard_given
            predicted += shard_predicted
        vocabulary = self.estimator.labels_.widened(given, self.estimator.structure_.depth)
        return vocabulary, vocabulary.encode(given, shapes), vocabulary.encode(predicted, shapes)

    def score(self, data: ShardedDataset, decode: str | None) -> float:
        """Share of labelled sites predicted right."""
        _, given, predicted = self.compared(data, decode)
        return agreement(predicted.states, given, np.ones(len(given.ptr) - 1))


def predict_part(estimator: StructuredEstimator, decode: str | None, part: Dataset) -> Any:
    """Predicted labels of a part of a shard."""
    return estimator.predict(part.X, decode=decode, hidden_sites=part.hidden)

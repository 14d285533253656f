"""Shards on a cluster: as training data, as ``Training`` sees them, and as questions to a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import UnsupportedError
from mssvm.data.dataset import Dataset
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.data.shards import ShardedDataset
from mssvm.estimators.plan import TrainingPlan, class_weights, label_weights, mean_per_instance
from mssvm.estimators.prediction import agreement
from mssvm.estimators.training import Census, FittedData, no_hidden
from mssvm.inference.base import Inference
from mssvm.losses import Zero
from mssvm.objectives.summary import InferenceSummary
from mssvm.parallel import answers
from mssvm.parallel.cluster import current
from mssvm.parallel.problem import ShardedProblem, Surveyed
from mssvm.parallel.store import agreed
from mssvm.structures import Encoder


@dataclass(frozen=True, eq=False)
class ShardedTrainingData(FittedData):
    """Shards that were read, with what was learned about labels and features."""

    surveyed: Surveyed

    @classmethod
    def of(cls, plan: TrainingPlan, data: ShardedDataset, earlier: Encoder | None) -> ShardedTrainingData:
        """Have the shards read, and agree on (or, in a warm start, keep) the vocabularies."""
        if plan.only_seen:
            raise UnsupportedError("support='seen' looks at all data at once; on a cluster use support='all'.")
        if plan.strategy is not None:
            raise UnsupportedError(f"{plan.name} takes turns over its data on one machine; use MSSVM, LSSVM or HCRF.")
        surveyed = Surveyed.of(current(), data, plan.structure, plan.missing_label)
        if earlier is None:
            labels = cls._vocabulary(plan, surveyed)
            encoder = agreed(surveyed.surveys, surveyed.names, plan.structure, labels, data.hashed)
        else:
            encoder = Encoder(plan.structure, earlier.schema, earlier.vocabulary)
        if not plan.may_hide and any(len(encoder.kind(key).hidden) for key in surveyed.kinds):
            raise no_hidden(plan.name)
        return cls(plan, encoder, surveyed.n_instances, cls._census(surveyed, encoder.vocabulary), surveyed)

    @staticmethod
    def _vocabulary(plan: TrainingPlan, surveyed: Surveyed) -> LabelVocabulary:
        met = dict.fromkeys(chain.from_iterable(k if isinstance(k, frozenset) else (k,) for k in surveyed.labels))
        return LabelVocabulary.learn([list(met)], 1, plan.classes, plan.missing_label)

    @property
    def where(self) -> Callable[[], str]:
        return self.surveyed.cluster.told

    @staticmethod
    def _census(surveyed: Surveyed, vocabulary: LabelVocabulary) -> Census:
        labels, sites = surveyed.labels, sum(survey.n_sites for survey in surveyed.surveys)
        several = sum(n for label, n in labels.items() if isinstance(label, frozenset) and len(label) > 1)
        single: dict[Hashable, int] = {}
        for label, n in labels.items():
            if not isinstance(label, frozenset) or len(label) == 1:
                one = next(iter(label)) if isinstance(label, frozenset) else label
                single[one] = single.get(one, 0) + n
        counts = [single.get(c, 0) for c in vocabulary.classes]
        return Census(sites, labels.total(), several, counts)

    def pose(self, inference: Inference) -> ShardedProblem:
        """The problem of these data."""
        plan, weights = self.plan, None
        if plan.class_weight is not None:
            keys = list(self.surveyed.labels)
            listed: list[Any] = [sorted(k, key=repr) if isinstance(k, frozenset) else k for k in keys]
            met = self.encoder.vocabulary.encode([listed], [(len(listed),)])
            times = np.array([self.surveyed.labels[k] for k in keys], dtype=np.float64)
            weights = class_weights(plan.class_weight, self.encoder.vocabulary, met, times)
        weigh = partial(weighed, weights, isinstance(plan.objective.loss, Zero))
        return self.surveyed.pose(self.encoder, plan.objective, inference, plan.C, plan.engine, weigh)

    def look(self, problem: ShardedProblem, w: Floats) -> list[InferenceSummary]:
        """At every block of the problem."""
        return problem.look(w)


@dataclass(frozen=True)
class Answers:
    """What a fitted estimator says of shards, on the cluster of the innermost context."""

    estimator: Any

    def _ask(self, decode: str | None) -> Callable[[Dataset], Any]:
        return partial(ask, self.estimator, decode)

    def predict(self, data: ShardedDataset, decode: str | None, output: str | Path | None) -> Any:
        """Labels of all shards in order, or the names of the files that have them."""
        if output is not None:
            return answers.to_files(current(), data, self._ask(decode), output)
        found = answers.each_shard(current(), data, answers.predicted, self._ask(decode))
        return list(chain.from_iterable(found))

    def compared(self, data: ShardedDataset, decode: str | None) -> tuple[LabelVocabulary, Labels, Labels]:
        """The classes met, and the labels given and predicted."""
        shapes, given, found = map(
            list, map(chain.from_iterable, zip(*answers.each_shard(
                current(), data, answers.compared, self._ask(decode)
            ), strict=True))
        )  # fmt: skip
        vocabulary = self.estimator.labels_.widened(given, self.estimator.structure_.depth)
        return vocabulary, vocabulary.encode(given, shapes), vocabulary.encode(found, shapes)

    def score(self, data: ShardedDataset, decode: str | None) -> float:
        """Share of labelled sites predicted right."""
        _, given, found = self.compared(data, decode)
        return agreement(found.states, given, np.ones(len(given.ptr) - 1))


def ask(estimator: Any, decode: str | None, part: Dataset) -> Any:
    """The labels of some instances."""
    return estimator.predict(part.X, decode=decode, hidden=part.hidden)


def weighed(weights: Floats | None, likelihood: bool, labels: Labels) -> tuple[Floats | None, Floats | None]:
    """Weights of instances and of sites by those of the classes: a likelihood has no loss to weigh, so instances are
    weighed by their labels instead."""
    if weights is None:
        return None, None
    per_site = label_weights(weights, labels)
    return (mean_per_instance(per_site, labels), None) if likelihood else (None, per_site)

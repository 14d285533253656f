"""Several methods on the same folds of one data set, so that their differences are paired."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.data.dataset import Dataset
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.data.metrics import Scores, evaluate

Progress = Callable[[int, int], None]
"""Called with the number of trainings done and the number of all."""


@dataclass(frozen=True, eq=False)
class FoldScore:
    """One training on a share of the instances outside a fold, judged on the fold."""

    method: str
    fold: int
    n_train: int
    share: float
    scores: Scores
    seconds: float
    objectives: Floats
    status: str
    nothing_learned: str = ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """All trials; ``pooled`` scores the predictions of every instance by the model that did not see it."""

    methods: tuple[str, ...]
    n_folds: int
    trials: Sequence[FoldScore]
    pooled: Mapping[str, Scores]
    vocabulary: LabelVocabulary
    truth: Labels
    states: Mapping[str, Ints]
    certainty: Floats = field(repr=False)

    def of(self, method: str, share: float = 1.0) -> list[FoldScore]:
        """Trials of a method, fold by fold."""
        return [t for t in self.trials if t.method == method and t.share == share]

    def accuracies(self, method: str, share: float = 1.0) -> Floats:
        return np.array([t.scores.accuracy for t in self.of(method, share)])

    def warnings(self) -> list[str]:
        """A sentence for every method whose margin learned nothing in some folds, and what to do."""
        out = []
        for method in self.methods:
            failures = [t.nothing_learned for t in self.of(method) if t.nothing_learned]
            if failures:
                out.append(f"{method}, {len(failures)} of {self.n_folds} folds: {failures[0]}")
        return out


def compare(
    estimators: Mapping[str, Any], data: Dataset, n_folds: int, seed: int, shares: Sequence[float], progress: Progress
) -> Comparison:
    """Train every estimator on every fold, and on each smaller share of it for the learning curves."""
    if not 2 <= n_folds <= len(data):
        raise InputError(f"{data.name} has {len(data)} instances; --cv needs a number from 2 to that.")
    first = next(iter(estimators.values()))
    shapes = data.shapes
    with data.places():
        vocabulary = LabelVocabulary.learn(
            data.labels, first.structure.depth, first.classes, first.missing_label, places=True
        )
        truth = vocabulary.encode(data.labels, shapes)
    states = {name: np.zeros(len(truth.observed), dtype=np.int64) for name in estimators}
    certainty = np.zeros(len(truth.observed))
    folds = list(KFold(n_folds, shuffle=True, random_state=seed).split(np.zeros(len(data))))
    trials: list[FoldScore] = []
    n_all = len(folds) * len(estimators) * len(shares)
    for fold, (inside, outside) in enumerate(folds):
        shuffled = np.random.default_rng([seed, fold]).permutation(inside)
        sites = _sites(truth, outside)
        if not truth.observed[sites].any():
            raise InputError(f"{data.name}: fold {fold + 1} has no labelled site to judge by; use a smaller --cv.")
        for share in shares:
            train = data.select(np.sort(shuffled[: max(round(share * len(shuffled)), 1)]))
            for name, estimator in estimators.items():
                if len(trials) < len(estimators):
                    _warm_up(estimator, train, vocabulary)
                began = monotonic()
                model = _fit(estimator, train, vocabulary)
                seconds = monotonic() - began
                predicted = _states(model, data.select(outside), vocabulary)
                scores = evaluate(vocabulary, truth.select(outside), predicted)
                objectives = np.array(model.history_["objective"])
                outcome = (model.status_, model.training_.get("nothing_learned", ""))
                trials.append(FoldScore(name, fold, len(train), share, scores, seconds, objectives, *outcome))
                if share == 1.0:
                    states[name][sites] = predicted
                    if estimator is first:
                        certainty[sites] = _certainty(model, data.select(outside))
                progress(len(trials), n_all)
    pooled = {name: evaluate(vocabulary, truth, predicted) for name, predicted in states.items()}
    return Comparison(tuple(estimators), n_folds, trials, pooled, vocabulary, truth, states, certainty)


def _fit(estimator: Any, train: Dataset, vocabulary: LabelVocabulary, **hooks: Any) -> Any:
    with train.places():
        return clone(estimator).set_params(classes=vocabulary.classes).fit(train.X, train.labels, **hooks)


def _warm_up(estimator: Any, train: Dataset, vocabulary: LabelVocabulary) -> None:
    """Train for one iteration, so that imports at first use do not count as training time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training itself will say the same
        _fit(estimator, train, vocabulary, callback=lambda row, w: True)


def _states(model: Any, test: Dataset, vocabulary: LabelVocabulary) -> Ints:
    with test.places():
        predicted = model.predict(test.X, hidden_sites=test.hidden)
    return vocabulary.encode(predicted, test.shapes).states


def _certainty(model: Any, test: Dataset) -> Floats:
    """Probability of the most probable class of every site."""
    marginals = model.predict_marginals(test.X, hidden_sites=test.hidden)
    return np.concatenate([np.asarray(p).reshape(-1, p.shape[-1]).max(axis=1) for p in marginals])


def _sites(truth: Labels, instances: Ints) -> Ints:
    return np.concatenate([np.arange(truth.ptr[b], truth.ptr[b + 1]) for b in instances])

"""The base class of all members: ``fit`` and ``partial_fit``.

Their parameters are in ``parameters``, the methods of a fitted model in ``fitted``.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from dataclasses import replace
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sklearn.exceptions import ConvergenceWarning

from mssvm.annotators import Annotators
from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.memory import memory_errors_explained
from mssvm.data.shards import ShardedDataset
from mssvm.data.tensors import as_arrays
from mssvm.estimators import plan, prediction
from mssvm.estimators.docstrings import documented
from mssvm.estimators.feature_names import check_names, names_of
from mssvm.estimators.fitted import FittedMethods
from mssvm.estimators.hooks import FitHooks, HeldOut
from mssvm.estimators.training import Training
from mssvm.estimators.training_data import Earlier, TrainingData
from mssvm.optim import Callback, Checkpoint, Solution, Validation

if TYPE_CHECKING:
    from mssvm.estimators.sharded import ShardedTrainingData


@documented
class StructuredEstimator(FittedMethods):
    """A structured predictor learned from labels that may be missing or ambiguous.

    Minimises 1/2 |w|^2 + C sum_i weight_i U_i(w) (paper eq. 5); members differ in the temperatures and loss of U_i.

    Parameters
    ----------
    {structure}
    {common}
    """

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        allowed: Any = None,
        *,
        callback: Callback | None = None,
        validation: HeldOut | Validation | tuple[Any, Any] | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        time_limit: float | None = None,
    ) -> Self:
        """Learn from instances X with labels y.

        Parameters
        ----------
        X, y : sequences of instances and of their labels, or X a ``ShardedDataset``, which has both
        sample_weight : one number per instance
        allowed : labels in the shape of y
            The candidate labels of every site, beyond what y says (MISSING: any label).
        callback : function of a row of the history and the weights
            Called at every recorded iteration; training stops where it returns True.
        validation : pair (X, y), HeldOut or Validation
            Early stopping: the weights with the highest score on these data are kept. ``HeldOut`` also sets how often
            they are scored and when to give up; ``Validation`` takes any function that scores the weights.
        checkpoint : path or Checkpoint
            The state of training is saved in files of this name, with a number for each start. Training resumes from
            these files if they exist; delete them when the model is saved.
        time_limit : float
            Seconds after which training stops with the best weights so far: a pass over the data is finished first.

        >>> clf = ms.HCRF(ms.Chain(), random_state=0).fit(X, y, time_limit=10.0)
        >>> clf.classes_.tolist()
        ['B', 'I', 'O']
        """
        self._check_any(y)
        hooks = FitHooks(self._validated_by(), callback, validation, checkpoint, time_limit)
        if self.annotators is not None:
            self._fit_votes(self.annotators, X, y, sample_weight, allowed, hooks)
            return self
        with memory_errors_explained():
            return self._fit(X, y, sample_weight, allowed, hooks)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        allowed: Any = None,
        *,
        callback: Callback | None = None,
        validation: HeldOut | Validation | tuple[Any, Any] | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        time_limit: float | None = None,
    ) -> Self:
        """Continue learning from further instances, without the earlier ones.

        Minimises 1/2 |w - w_last|^2 + C sum_i weight_i U_i(w) over the instances given: the last weights take the place
        of zero in the regulariser. Labels and named features that appear for the first time get weights, which start
        at zero. The first call is ``fit``. If the earlier data are still available, ``fit`` on all data with
        ``warm_start=True`` is better: it minimises the objective of all data and takes little longer
        (docs/continue.md).

        Parameters
        ----------
        X, y, sample_weight, allowed, callback, validation, checkpoint, time_limit : see ``fit``

        >>> clf = ms.CRF(ms.Chain()).partial_fit(X[:1], y[:1])
        >>> clf.partial_fit(X, y).score(X, y)
        1.0
        """
        if not hasattr(self, "coef_"):
            return self.fit(
                X,
                y,
                sample_weight,
                allowed,
                callback=callback,
                validation=validation,
                checkpoint=checkpoint,
                time_limit=time_limit,
            )
        if self.annotators is not None:
            raise UnsupportedError("partial_fit does not learn about annotators; fit all votes again.")
        if self.l1_ratio:
            raise UnsupportedError(
                "partial_fit stays near the last weights by a squared penalty, which does not go with an L1 penalty; "
                "use l1_ratio=0, or fit all data again with warm_start=True."
            )
        self._check_any(y)
        hooks = FitHooks(self._validated_by(), callback, validation, checkpoint, time_limit)
        with memory_errors_explained():
            earlier = Earlier(self.encoder_, self.coef_)
            return self._train(X, y, sample_weight, allowed, hooks, earlier, anchored=True)

    def _check_any(self, y: Any) -> None:
        if length_hint(y, 1) == 0:
            raise InputError(f"y is empty; {type(self).__name__} needs at least one instance with a label.")

    def _fit(self, X: Any, y: Any, sample_weight: Any, allowed: Any, hooks: FitHooks) -> Self:
        """Learn from labels, not from votes of annotators."""
        earlier = None
        if self.warm_start and hasattr(self, "coef_"):
            earlier = Earlier(self.encoder_, self.coef_)
        return self._train(X, y, sample_weight, allowed, hooks, earlier)

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        allowed: Any,
        hooks: FitHooks,
        earlier: Earlier | None,
        anchored: bool = False,
    ) -> Self:
        """Learn from labels, after an ``earlier`` training if given; ``anchored``: regularise towards its weights."""
        X = as_arrays(X)
        y = as_arrays(y)
        if earlier is not None and not isinstance(X, ShardedDataset):
            check_names(X, getattr(self, "feature_names_in_", None))
        names = names_of(X)
        data = self._data(X, y, sample_weight, allowed, earlier)
        hooks = replace(hooks, predictor=self._validated_by(data.encoder.vocabulary.classes))
        start = None
        center = None
        if data.moved is not None:
            start = plan.continued_start(data.moved, data.encoder.weight_masks.hidden, data.plan.rng)
            center = data.moved.w if anchored else None
        self.coef_, solution, self.training_ = Training(data, hooks, center=center).run(start)
        self._keep_encoder(data.encoder)
        self._keep_names(names)
        self._keep_outcome(solution)
        return self

    def _validated_by(self, classes: Iterable[Hashable] = ()) -> prediction.Predictor:
        """The predictor whose labels early stopping scores."""
        if self._decoder(None, True, classes) == "map":
            return self._predictor
        # The label of largest marginal has the least expected Hamming loss.
        return prediction.AtTemperatures(1.0, self.eps_h)

    def _fit_votes(
        self, annotators: Annotators, X: Any, votes: Any, sample_weight: Any, allowed: Any, hooks: FitHooks
    ) -> None:
        """Learn from the votes of several annotators."""
        from mssvm.estimators import crowd  # imported only when there are votes

        fitted = crowd.fit(self._plan(), annotators, X, votes, sample_weight, allowed, hooks)
        self.coef_ = fitted.w
        self.training_ = fitted.training
        self.annotators_ = fitted.table
        self.confusion_ = fitted.confusion
        self._keep_encoder(fitted.encoder)
        self._keep_outcome(fitted.solution)

    def _keep_outcome(self, solution: Solution) -> None:
        """Set the attributes that describe the training, and warn if it did not finish."""
        self.temperatures_ = (1.0, float(self.eps_h))
        self.history_ = solution.history
        self.n_iter_ = len(solution.trace)
        self.objective_ = self.training_["objective"]
        self.status_ = self.training_["status"]
        if solution.outcome.unfinished:
            warnings.warn(f"{self.status_} {solution.message}", ConvergenceWarning, stacklevel=4)
        elif self.training_.get("worse") or self.training_.get("nothing_learned"):
            warnings.warn(self.status_, ConvergenceWarning, stacklevel=4)

    def _data(
        self, X: Any, y: Any, sample_weight: Any, allowed: Any, earlier: Earlier | None
    ) -> TrainingData | ShardedTrainingData:
        if not isinstance(X, ShardedDataset):
            return TrainingData.of(self._plan(), X, y, sample_weight, allowed, earlier)
        from mssvm.estimators.sharded import ShardedTrainingData  # Dask is imported only when used

        if any(given is not None for given in (y, sample_weight, allowed)):
            raise InputError("shards hold their labels; y, sample_weight and allowed are for data in memory.")
        return ShardedTrainingData.of(self._plan(), X, earlier)

    def _keep_names(self, names: AnyArray | None) -> None:
        """Keep the names of the columns of data frames, as scikit-learn does; data without names leave no attribute."""
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

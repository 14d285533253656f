"""Flat classification with hidden states: theta(x, y, h) = x . w[y, h] + b[y, h] on ordinary matrices X."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.errors import InputError
from mssvm.estimators.members import UnifiedSSVM
from mssvm.structures import SequenceLabel

# Parameters that are passed on to the structured estimator.
SHARED = ("eps_y", "eps_h", "C", "solver", "engine", "max_iter", "tol", "n_init", "random_state", "n_jobs", "verbose")


class LatentClassifier(ClassifierMixin, BaseEstimator):
    """A multiclass classifier whose classes have several prototypes; a hidden variable says which prototype an instance
    has.

    Parameters
    ----------
    hidden : int
        Hidden states (prototypes) of every class; 1 is multinomial logistic regression at the default temperatures.
    eps_y, eps_h : float
        Temperatures of label and hidden variable: (1, 1) likelihood, (0, 1) MSSVM, (0, 0) LSSVM.
    margin : bool
        Whether training demands a margin (the 0-1 loss in the objective); None: if and only if eps_y is 0.
    C, solver, engine, max_iter, tol, n_init, random_state, n_jobs, verbose :
        As in the structured estimators.
    class_weight : None, "balanced" or a dict
        With ``margin`` the class weights scale the loss, otherwise the instances.

    >>> points, labels = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]]), [1, 1, 0, 1, 1]     # two prototypes of 1
    >>> ms.LatentClassifier(hidden=2, C=100.0, random_state=0).fit(points, labels).score(points, labels)
    1.0
    """

    def __init__(
        self,
        hidden: int = 2,
        *,
        eps_y: float = 1.0,
        eps_h: float = 1.0,
        margin: bool | None = None,
        C: float = 1.0,
        class_weight: Any = None,
        solver: Any = "auto",
        engine: Any = "auto",
        max_iter: int | None = None,
        tol: float | None = None,
        n_init: int = 1,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.eps_y = eps_y
        self.eps_h = eps_h
        self.margin = margin
        self.C = C
        self.class_weight = class_weight
        self.solver = solver
        self.engine = engine
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows of features and one class each."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self.classes_, states = np.unique(y, return_inverse=True)
        present = np.bincount(states, weights=weight, minlength=len(self.classes_)) > 0
        if len(self.classes_) < 2:
            raise ValueError(f"LatentClassifier needs two classes or more, but y has one class, {self.classes_[0]!r}.")
        if present.sum() < 2:
            raise ValueError("LatentClassifier needs two classes or more; the weights leave less than two classes.")
        margin = self.margin
        if margin is None:
            margin = self.eps_y == 0
        self.model_ = UnifiedSSVM(
            SequenceLabel(hidden=self.hidden),
            loss="hamming" if margin else "zero",
            class_weight=self._weights_by_state(),
            classes=range(len(self.classes_)),
            **{name: getattr(self, name) for name in SHARED},
        )
        self.model_.fit(_rows(X), states, weight)
        self.coef_ = self.model_.coef_
        self.n_iter_ = self.model_.n_iter_
        self.status_ = self.model_.status_
        return self

    def predict(self, X: Any) -> AnyArray:
        """The most probable class of every row."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Floats:
        """p(y | x) ~ exp PS_h[eps_h] theta(x, y, h); columns in the order of ``classes_``."""
        return np.asarray(self._request(X).marginals(1.0, self.eps_h))

    def predict_hidden(self, X: Any) -> AnyArray:
        """The hidden state of every row, the most probable given its predicted class."""
        request = self._request(X)
        return np.asarray(request.states(request.map(), request.encoded.hidden))

    def _request(self, X: Any) -> Any:
        check_is_fitted(self, "model_")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return self.model_._request(_rows(X))

    def _weights_by_state(self) -> Any:
        """``class_weight`` with class numbers as keys, because the labels of the structured model are numbers."""
        if self.class_weight is None or isinstance(self.class_weight, str):
            return self.class_weight
        if not isinstance(self.class_weight, Mapping):
            raise InputError(f"class_weight must be None, 'balanced' or a dict, got {self.class_weight!r}.")
        classes = self.classes_.tolist()
        weights = {}
        for label, weight in self.class_weight.items():
            if label not in classes:
                raise InputError(f"class_weight names {label!r}, which is not among the classes of y.")
            weights[classes.index(label)] = weight
        return weights

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _rows(X: Any) -> list[Any]:
    """Every row as a sequence of length one."""
    if sparse.issparse(X):
        return [X[i : i + 1] for i in range(X.shape[0])]
    return list(X[:, None, :])

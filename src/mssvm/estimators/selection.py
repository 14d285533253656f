"""Cross-validated predictions of ragged data, which scikit-learn's own function would try to stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from mssvm.core.errors import InputError


def cross_val_predict(
    estimator: Any, X: Any, y: Any, *, cv: Any = None, method: str = "predict", params: Mapping[str, Any] | None = None
) -> Any:
    """The answer for every instance by a clone of ``estimator`` trained on the folds that do not hold it.

    ``cv`` is a number of folds, a splitter or an iterable of splits; the test folds must cover every instance once.
    ``params`` go to fit; those with one entry per instance are split along. Returns what ``method`` returns: a list, or
    an array where an instance has one label.

    >>> [len(tags) for tags in ms.cross_val_predict(ms.CRF(classes=["B", "I", "O"]), X, y, cv=2)]
    [3, 4]
    """
    from sklearn.model_selection import check_cv  # slow to import: it loads half of scikit-learn

    n = len(X)
    answers: list[Any] = [None] * n
    seen = np.zeros(n, dtype=np.int64)
    stacked = False
    for train, test in check_cv(cv, y).split(np.zeros(n), np.zeros(n)):
        extra = {}
        for name, value in (params or {}).items():
            extra[name] = _safe_indexing(value, train) if _per_instance(value, n) else value
        fitted = clone(estimator).fit(_safe_indexing(X, train), _safe_indexing(y, train), **extra)
        part = getattr(fitted, method)(_safe_indexing(X, test))
        stacked = isinstance(part, np.ndarray)
        seen[test] += 1
        for i, answer in zip(test, part, strict=True):
            answers[i] = answer
    if np.any(seen != 1):
        raise InputError("the test folds of cv must cover every instance exactly once.")
    if stacked:
        return np.stack(answers)
    return answers


def _per_instance(value: Any, n: int) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, Mapping)) and len(value) == n

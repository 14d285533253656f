"""Features of ragged data with mean 0 and standard deviation 1 over all sites: a scikit-learn transformer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
from safetensors.numpy import save as to_bytes
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.data.graphs import Graph

OUTPUTS = ("default", "pandas")


class Standardise(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """Subtracts the mean and divides by the standard deviation of every feature, taken over all sites.

    Parameters
    ----------
    with_mean : bool
        Whether the mean is subtracted; sparse matrices need False, because they would become dense.
    with_std : bool
        Whether to divide by the standard deviation (constant features are divided by 1).

    X is what estimators take: a list of arrays with the features on the last axis (sequences, pictures), of sparse
    matrices, of ``{"x": ..., "edge_x": ...}`` or of ``Graph``, whose edges stay as they are; or one array of any number
    of axes. ``make_pipeline(Standardise(), MSSVM(Chain()))`` is an estimator. A pipeline has no ``save``; save its two
    parts, ``pipe[0].save(...)`` and ``pipe[1].save(...)``, and put them together again with ``make_pipeline``.

    Attributes
    ----------
    mean_, scale_ : what is subtracted, and divided by
    n_features_in_, feature_names_in_ : the latter where X holds data frames

    >>> scaled = ms.features.Standardise().fit_transform([np.array([[1.0], [3.0]]), np.array([[2.0]])])
    >>> [part.ravel().round(2).tolist() for part in scaled]
    [[-1.22, 1.22], [0.0]]
    """

    def __init__(self, *, with_mean: bool = True, with_std: bool = True) -> None:
        self.with_mean = with_mean
        self.with_std = with_std

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn mean and standard deviation of every feature."""
        from sklearn.preprocessing import StandardScaler  # takes long to import, and most runs do not need it

        instances = _instances(X)
        tables = [_features(x, b) for b, x in enumerate(instances)]
        widths = {table.shape[-1] for table in tables if table.shape[0]}
        if len(widths) != 1:
            reason = f"instances have {sorted(widths)} features" if widths else "there are no sites"
            raise InputError(f"{reason}; every site needs the same number of features.")
        self.n_features_in_ = widths.pop()
        any_sparse = any(sparse.issparse(table) for table in tables)
        if any_sparse and self.with_mean:
            raise InputError("sparse features would fill up; use Standardise(with_mean=False).")
        tables = [table for table in tables if table.shape[0]]
        stacked = sparse.vstack(tables, format="csr") if any_sparse else np.concatenate(tables)
        scaler = StandardScaler(with_mean=self.with_mean, with_std=self.with_std).fit(stacked)
        self.mean_: Floats = scaler.mean_ if self.with_mean else np.zeros(self.n_features_in_)
        self.scale_: Floats = scaler.scale_ if self.with_std else np.ones(self.n_features_in_)
        frame = X if hasattr(X, "columns") else next(iter(instances))
        if hasattr(frame, "columns"):
            self.feature_names_in_ = np.array(frame.columns, dtype=object)
        return self

    def transform(self, X: Any) -> Any:
        """X in new units; arrays where X holds arrays."""
        check_is_fitted(self, "scale_")
        if _is_one_instance(X):
            return self._transformed(X, 0)
        return [self._transformed(x, b) for b, x in enumerate(X)]

    def inverse_transform(self, X: Any) -> Any:
        """X in the units it had."""
        check_is_fitted(self, "scale_")
        back = Standardise()
        back.scale_ = 1.0 / self.scale_
        back.mean_ = -self.mean_ * back.scale_
        back.n_features_in_ = self.n_features_in_
        return back.transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> AnyArray:
        """``input_features`` if given, else the columns of data frames, else x0, x1, ..."""
        check_is_fitted(self, "scale_")
        names = input_features
        if names is None:
            names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        return np.asarray(names, dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """ "pandas" gives every instance as a data frame with the names of its features, "default" as an array."""
        if transform not in (None, *OUTPUTS):
            raise InputError(f"transform must be one of {', '.join(map(repr, OUTPUTS))}, got {transform!r}.")
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's ``clone`` copies this attribute
        return self

    def save(self, path: str | Path) -> None:
        """Write it to a safetensors file that ``Standardise.load`` reads back; loading executes nothing."""
        check_is_fitted(self, "scale_")
        settings = {"parameters": self.get_params(), "names": list(getattr(self, "feature_names_in_", []))}
        with replacing(Path(path)) as file:
            file.write(to_bytes({"mean": self.mean_, "scale": self.scale_}, {"standardise": json.dumps(settings)}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The transformer that ``save`` wrote."""
        try:
            with safetensors.safe_open(Path(path), framework="numpy") as file:
                settings = json.loads(file.metadata()["standardise"])
                loaded = cls(**settings["parameters"])
                loaded.mean_ = np.asarray(file.get_tensor("mean"))
                loaded.scale_ = np.asarray(file.get_tensor("scale"))
            loaded.n_features_in_ = len(loaded.scale_)
            if settings["names"]:
                loaded.feature_names_in_ = np.array(settings["names"], dtype=object)
        except Exception:  # whatever error the parser raises, the message to the user is the same
            raise InputError(f"{Path(path).name} is not a file written by Standardise.save; save it again.") from None
        return loaded

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        return tags

    def _transformed(self, x: Any, b: int) -> Any:
        if isinstance(x, Graph):
            return replace(x, nodes=self._transformed(x.nodes, b))
        if isinstance(x, Mapping) and "x" in x:
            return {**x, "x": self._transformed(x["x"], b)}
        table = _table(x, b)
        if table.shape[0] and table.shape[-1] != self.n_features_in_:
            reason = f"{table.shape[-1]} features per site, but the mean was learned from {self.n_features_in_}."
            raise InputError(reason, instance=b)
        if sparse.issparse(table):
            if np.any(self.mean_):
                raise InputError("sparse features would fill up; use Standardise(with_mean=False).", instance=b)
            return sparse.csr_array(table.multiply(1.0 / self.scale_))
        if table.size:
            table = (table - self.mean_) / self.scale_
        container = getattr(self, "_sklearn_output_config", {}).get("transform") or get_config()["transform_output"]
        if container != "pandas" or table.ndim != 2:
            return table
        from pandas import DataFrame  # only where the user asked for data frames

        return DataFrame(table, columns=self.get_feature_names_out(), index=getattr(x, "index", None))


def _is_one_instance(X: Any) -> bool:
    """Whether X is one array, sparse matrix or data frame instead of a list of instances."""
    return not isinstance(X, list) and (hasattr(X, "shape") or hasattr(X, "columns"))


def _instances(X: Any) -> Any:
    return [X] if _is_one_instance(X) else X


def _table(x: Any, b: int) -> Any:
    if sparse.issparse(x):
        return sparse.csr_array(x)
    try:
        table = np.asarray(x, dtype=np.float64)
    except (ValueError, TypeError):
        table = np.zeros(())
    if table.ndim == 0 or not np.isfinite(table).all():
        raise InputError("features must be a table of finite numbers; impute or encode them first.", instance=b)
    return table


def _features(x: Any, b: int) -> Any:
    """The features of the sites of one instance as rows."""
    if isinstance(x, Graph):
        x = x.nodes
    elif isinstance(x, Mapping) and "x" in x:
        x = x["x"]
    table = _table(x, b)
    if sparse.issparse(table):
        return table
    if not table.size:
        return np.zeros((0, 0))
    return table.reshape(-1, table.shape[-1])

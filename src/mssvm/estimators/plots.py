"""Plots of a model with matplotlib (the extra ``plot``), and its representation in notebooks."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.entropy import entropy as nats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.data.labels import plain
from mssvm.structures import Weight

PANEL = 3.2  # inches


class Plots(BaseEstimator):
    """``plot_*`` methods of estimators. Each draws into ``ax``, or into new axes, and returns the axes."""

    history_: Any

    def plot_objective(self, ax: Any = None) -> Any:
        """The objective of every recorded iteration at the member's own temperatures, and the lower bound if there is
        one."""
        check_is_fitted(self, "coef_")
        history = self.history_
        rows = history[(history["eps_y"] == history["eps_y"][-1]) & (history["eps_h"] == history["eps_h"][-1])]
        ax = _axes(ax)
        ax.plot(rows["iteration"], rows["objective"], label="objective")
        bounded = np.isfinite(rows["gap"])
        if bounded.any():
            lower = np.minimum.accumulate(rows["objective"])[bounded] - rows["gap"][bounded]
            ax.plot(rows["iteration"][bounded], lower, linestyle="--", label="lower bound")
            ax.legend()
        ax.set(xlabel="iteration", ylabel="objective", title=type(self).__name__)
        return ax

    def plot_weights(self, top: int = 20, ax: Any = None) -> Any:
        """The ``top`` weights that are largest in absolute value, as bars."""
        model: Any = self
        weights = model.weights_table(top)[::-1]
        names = [_weight_name(weight) for weight in weights]
        ax = _axes(ax, height=0.4 + 0.22 * len(weights))
        ax.barh(np.arange(len(weights)), [w.value for w in weights])
        ax.set_yticks(np.arange(len(weights)), names)
        ax.axvline(0.0, color="black", linewidth=0.8)
        ax.set(xlabel="weight")
        return ax

    def plot_marginals(self, x: Any, y: Any = None, ax: Any = None) -> Any:
        """The probability of every class at every site of one sequence; crosses mark the labels ``y`` where given."""
        model: Any = self
        p = np.asarray(model.predict_marginals([x])[0])
        if p.ndim != 2:
            raise InputError("plot_marginals draws one sequence; plot_image is for grids.")
        ax = _axes(ax, width=2.0 * PANEL)
        image = ax.imshow(p.T, vmin=0.0, vmax=1.0, cmap="Greys", aspect="auto", interpolation="nearest")
        classes = [str(plain(c)) for c in model.classes_]
        ax.set_yticks(np.arange(len(classes)), classes)
        ax.set(xlabel="site", ylabel="class")
        ax.figure.colorbar(image, ax=ax, label="probability")
        if y is not None:
            states = _states(model, y, (len(p),))
            ax.scatter(np.flatnonzero(states >= 0), states[states >= 0], marker="x", color="tab:red", label="label")
        return ax

    def plot_annotators(self, most: int = 30, ax: Any = None) -> Any:
        """The accuracy of every annotator with its 95% interval, the least accurate on top; at most ``most`` of them.

        The area of a dot grows with the number of votes.
        """
        check_is_fitted(self, "annotators_")
        model: Any = self
        rows = sorted(model.annotators_, key=lambda row: row.accuracy)[:most][::-1]
        accuracy = np.array([row.accuracy for row in rows])
        low = accuracy - np.array([row.interval[0] for row in rows])
        high = np.array([row.interval[1] for row in rows]) - accuracy
        n_votes = np.array([row.n_votes for row in rows], dtype=np.float64)
        places = np.arange(len(rows))
        ax = _axes(ax, height=0.6 + 0.22 * len(rows))
        ax.errorbar(accuracy, places, xerr=np.maximum([low, high], 0.0), fmt="none", color="tab:gray", zorder=1)
        ax.scatter(accuracy, places, s=6 + 24 * n_votes / max(n_votes.max(initial=0.0), 1.0), zorder=2)
        ax.set_yticks(places, [str(row.name) for row in rows])
        ax.set(xlabel="accuracy", title="Annotators", xlim=(0.0, 1.02))
        return ax

    def plot_image(self, x: Any, y: Any = None, axes: Any = None) -> Any:
        """Panels of one image: the image itself (its first three features, or the first one), the labels given in
        ``y``, the labels predicted, and the uncertainty of every pixel; without ``y`` three panels."""
        model: Any = self
        p = np.asarray(model.predict_marginals([x])[0])
        if p.ndim != 3:
            raise InputError("plot_image draws one grid; plot_marginals is for sequences.")
        best = _states(model, model.predict([x])[0].tolist(), p.shape[:2])
        panels: list[tuple[str, AnyArray]] = [("image", _picture(x)), ("predicted", best), ("uncertainty", entropy(p))]
        if y is not None:
            panels.insert(1, ("labels given", _states(model, y, p.shape[:2])))
        if axes is None:
            size = (PANEL * len(panels), PANEL * p.shape[0] / p.shape[1] + 0.4)
            axes = _pyplot().subplots(1, len(panels), figsize=size)[1]
        if len(axes) != len(panels):
            raise InputError(f"plot_image draws {len(panels)} panels, and axes has {len(axes)}.")
        for ax, (title, values) in zip(axes, panels, strict=True):
            if title in ("predicted", "labels given"):
                labels = np.ma.masked_less(values, 0)  # missing labels stay blank
                ax.imshow(labels, interpolation="nearest", vmin=0, vmax=max(p.shape[2] - 1, 9), cmap="tab10")
            else:
                ax.imshow(values, interpolation="nearest", cmap="gray")
            ax.set(title=title, xticks=[], yticks=[])
        return axes

    def _html_repr(self) -> str:
        """For notebooks: scikit-learn's diagram, and the diagnosis of a fitted model."""
        diagram: str = estimator_html_repr(self)
        if not hasattr(self, "coef_"):
            return diagram
        model: Any = self
        return diagram + "".join(f"<p>{escape(line)}</p>" for line in model.diagnose().splitlines())


def entropy(p: Floats) -> Floats:
    """Entropy of the distributions along the last axis, as a share of the largest possible."""
    return np.asarray(np.clip(nats(p) / np.log(max(p.shape[-1], 2)), 0.0, 1.0))


def _states(model: Any, y: Any, shape: tuple[int, ...]) -> AnyArray:
    """Class numbers of one instance's labels, -1 where there is none or more than one."""
    labels = model.encoder_.encode_labels([y], (shape,))
    return np.where(labels.observed & labels.single, labels.mask.argmax(axis=1), -1).reshape(shape)


def _picture(x: Any) -> AnyArray:
    """Features as an image: three of them within [0, 1] are colours, else the first is grey."""
    features = x
    if isinstance(x, dict):
        features = x["x"]
    elif isinstance(x, tuple):
        features = x[0]
    values = np.asarray(features, dtype=np.float64)
    colours = values[..., :3]
    if values.shape[2] >= 3 and colours.min() >= 0 and colours.max() <= 1:
        return colours
    return values[..., 0]


def _weight_name(weight: Weight) -> str:
    """Block, feature (unless it is the constant one) and states."""
    parts = [weight.block]
    if weight.feature != "1":
        parts.append(weight.feature)
    parts += [str(state) for state in weight.states]
    return " ".join(parts)


def _axes(ax: Any, width: float = 1.6 * PANEL, height: float = PANEL) -> Any:
    if ax is not None:
        return ax
    return _pyplot().subplots(figsize=(width, height))[1]


def _pyplot() -> Any:
    try:
        return import_module("matplotlib.pyplot")
    except ImportError:
        raise UnsupportedError('plots need matplotlib; run pip install "mssvm[plot]".') from None

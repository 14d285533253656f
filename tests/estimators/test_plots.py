"""Plots: what is drawn is what the model says; matplotlib is needed for nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.estimators.plots import entropy

matplotlib.use("Agg")
from matplotlib import pyplot


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def tagger() -> Any:
    rng = np.random.default_rng(0)
    y = [["a" if v else "b" for v in rng.integers(2, size=6)] for _ in range(8)]
    X = [rng.normal(size=(6, 1)) + 2 * (np.array(tags) == "a")[:, None] for tags in y]
    return ms.SSVM(ms.Chain(), solver="bcfw", random_state=0).fit(X, y), X, y


@pytest.fixture(scope="module")
def painter() -> Any:
    rng = np.random.default_rng(0)
    y = np.indices((5, 7))[1] // 4
    X = [np.clip(0.3 * rng.normal(size=(5, 7, 3)) + 0.6 * y[..., None], 0, 1) for _ in range(2)]
    given = [
        [
            [None if v else int(k) for v, k in zip(m, r, strict=True)]
            for m, r in zip(rng.random((5, 7)) < 0.5, y, strict=True)
        ]
        for _ in X
    ]
    return ms.CRF(ms.Grid(edges="contrast"), max_iter=5, random_state=0).fit(X, given), X, given


def test_objective_and_its_lower_bound(tagger: Any) -> None:
    model = tagger[0]
    ax = model.plot_objective()
    curve, bound = ax.get_lines()
    assert np.array_equal(curve.get_ydata(), model.history_["objective"])
    assert np.all(bound.get_ydata() <= model.objective_ + 1e-9)
    gap = model.history_["objective"].min() - bound.get_ydata()[-1]
    assert gap == pytest.approx(model.history_["gap"][-1])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["objective", "lower bound"]


def test_only_the_last_temperatures_of_a_homotopy_are_shown(painter: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = [rng.normal(size=(4, 1)) for _ in range(4)], [[0, 1, 1, 0]] * 4
    model = ms.SSVM(ms.Chain(), random_state=0).fit(X, y)
    own = model.history_["eps_y"] == 0.0
    assert 0 < own.sum() < len(own)
    assert np.array_equal(model.plot_objective().get_lines()[0].get_ydata(), model.history_["objective"][own])


def test_weights_are_bars(tagger: Any) -> None:
    _, ax = pyplot.subplots()
    assert tagger[0].plot_weights(top=3, ax=ax) is ax
    largest = tagger[0].weights_table(3)
    assert [bar.get_width() for bar in ax.patches] == [w.value for w in largest[::-1]]
    assert ax.get_yticklabels()[-1].get_text().startswith(largest[0].block)
    assert len(pyplot.get_fignums()) == 1


def test_marginals_of_one_sequence(tagger: Any) -> None:
    model, X, y = tagger
    ax = model.plot_marginals(X[0], [None, *y[0][1:]])
    assert np.allclose(ax.get_images()[0].get_array(), model.predict_marginals(X[:1])[0].T)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    marks = ax.collections[0].get_offsets()
    assert marks[:, 0].tolist() == [1, 2, 3, 4, 5] and marks[:, 1].tolist() == ["ab".index(v) for v in y[0][1:]]


@pytest.mark.slow
def test_image_with_labels_prediction_and_uncertainty(painter: Any) -> None:
    model, X, y = painter
    axes = model.plot_image(X[0], y[0])
    assert [ax.get_title() for ax in axes] == ["image", "labels given", "predicted", "uncertainty"]
    pictures = [ax.get_images()[0].get_array() for ax in axes]
    image, given = pictures[:2]
    found, unsure = pictures[2:]
    assert np.array_equal(image, X[0])
    assert np.array_equal(np.ma.getmaskarray(given), np.array(y[0], dtype=object) == None)  # noqa: E711
    assert np.array_equal(found, model.predict(X[:1])[0])
    assert np.allclose(unsure, entropy(model.predict_marginals(X[:1])[0]))
    assert len(model.plot_image(X[0])) == 3


def test_what_cannot_be_drawn_is_refused(tagger: Any, painter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="plot_image is for grids"):
        painter[0].plot_marginals(painter[1][0])
    with pytest.raises(InputError, match="plot_marginals is for sequences"):
        tagger[0].plot_image(tagger[1][0])
    with pytest.raises(InputError, match="draws 3 panels, and axes has 2"):
        painter[0].plot_image(painter[1][0], axes=pyplot.subplots(1, 2)[1])
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(UnsupportedError, match=r"mssvm\[plot\]"):
        tagger[0].plot_objective()


def test_notebooks_show_how_training_went(tagger: Any) -> None:
    model = tagger[0]
    assert "SSVM" in model._repr_html_() and "Training converged." in model._repr_html_()
    assert model._repr_mimebundle_()["text/html"].count("<p>") == len(model.diagnose().splitlines())
    assert "<p>" not in ms.SSVM()._repr_html_()

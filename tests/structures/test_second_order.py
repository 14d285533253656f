"""Chains of second order: exact at every pair of temperatures, learned, saved, and refused where they do not fit."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.potentials import Query
from mssvm.data.labels import LabelVocabulary
from mssvm.engines import engine_of
from mssvm.inference import Auto
from mssvm.inference.base import Planner
from mssvm.inference.enumerate import Enumerate
from mssvm.structures import Encoder
from mssvm.structures.encoded import to_query

PAIRS = list(product((0.0, 0.5, 1.0), repeat=2))


def instances(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, 2)) for n in (4, 1, 2, 3, 5)]


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("strength", [1.0, 300.0, 3e4])
@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
def test_inference_is_exact(eps_y: float, eps_h: float, strength: float, hidden: int) -> None:
    structure = ms.Chain(order=2, hidden=hidden, forbidden=[("a", "b")])
    encoder, parsed = Encoder.learn(structure, instances()[: 3 if hidden else 5], LabelVocabulary(("a", "b", "c")))
    encoded = encoder.encode_parsed(parsed)
    batch = encoded.batch
    rng = np.random.default_rng(1)
    theta = encoder.model.forward(strength * rng.normal(size=encoder.model.n_weights), encoded.inputs)
    query = to_query(encoded)
    missing = rng.random(batch.n_vars) < 0.4  # these labels are hidden
    query = Query(query.output & ~missing, query.allowed)
    planner = Planner(Auto(), engine_of("native"))
    found = planner(batch).bind(query, eps_y, eps_h)(theta)
    expected = Enumerate()(batch, theta, query, eps_y, eps_h)
    assert found.status.exact.all()
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-10, atol=1e-9)
    if eps_y > 0 and eps_h > 0:
        np.testing.assert_allclose(found.mu.unary, expected.mu.unary, atol=1e-7)
        np.testing.assert_allclose(found.mu.tables, expected.mu.tables, atol=1e-7)


def test_what_follows_two_labels_is_learned(tmp_path: Path) -> None:
    """Labels repeat with period three, a a b, so that one label does not tell the next, and two do."""
    rng = np.random.default_rng(0)
    X = []
    y = []
    for _ in range(20):
        start = int(rng.integers(3))
        tags = ["aab"[(start + t) % 3] for t in range(12)]
        shown = np.array([[1.0 if tag == "b" else -1.0] for tag in tags])
        shown[3:] = 0.0  # the rest has no features
        X.append(shown)
        y.append([tag if rng.random() < 0.7 else ms.MISSING for tag in tags])
    second = ms.HCRF(ms.Chain(order=2)).fit(X, y)
    first = ms.HCRF(ms.Chain()).fit(X, y)
    assert second.score(X, y) > 0.99 > first.score(X, y)
    assert "exact" in second.status_
    second.save(tmp_path / "m.safetensors")
    again = ms.load(tmp_path / "m.safetensors")
    assert again.structure.order == 2
    for one, two in zip(second.predict_marginals(X), again.predict_marginals(X), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("order", [0, 3, 1.5, "2"])
def test_other_orders_are_refused(order: object) -> None:
    with pytest.raises(ms.errors.MssvmError, match="order"):
        ms.CRF(ms.Chain(order=order)).fit(instances(), [["a"] * len(x) for x in instances()])


def test_parameters_given_by_position_keep_their_places() -> None:
    chain = ms.Chain(2, False, True, False, [("a", "b")])
    assert (chain.hidden, chain.direct, chain.forbidden, chain.order) == (2, True, [("a", "b")], 1)


@pytest.mark.parametrize("missing", [False, True])
def test_training_is_exact_however_many_labels_and_sites(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    """Beyond the limits of a pass, too: with 45 labels, sentences of 13 words were propagated."""
    monkeypatch.setattr("mssvm.estimators.plan.PASS_OPERATIONS", 1.0)
    monkeypatch.setattr("mssvm.estimators.plan.INSTANCE_OPERATIONS", 1.0)
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(30, 2)) for _ in range(3)]
    y = [[None if missing and t % 7 == 0 else "abc"[int(v > 0)] for t, v in enumerate(x[:, 0])] for x in X]
    clf = ms.MSSVM(ms.Chain(order=2), max_iter=3, classes="abc").fit(X, y)
    assert clf.training_["exact"] and clf.predict(X, return_status=True)[1].exact.all()

"""A third engine, by ``engine=``: it counts what is asked of it, and every member trains and predicts through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.reference import ReferenceEngine


class CountingPlan:
    """A plan whose bounds and pairs count their calls."""

    def __init__(self, engine: CountingEngine, plan: Any) -> None:
        self.engine, self.plan, self.costs = engine, plan, plan.costs

    def bind(self, *query: Any, **settings: Any) -> Callable[..., Any]:
        return self.engine.counted("bound", self.plan.bind(*query, **settings))

    def pair(self, *queries: Any) -> Any:
        pair = self.plan.pair(*queries)
        both = self.engine.counted("pair", pair)
        both.plus = self.engine.counted("bound", pair.plus)  # type: ignore[attr-defined]
        both.minus = self.engine.counted("bound", pair.minus)  # type: ignore[attr-defined]
        return both


class CountingEngine:
    """The reference engine behind a counter."""

    name, threads, idle = "counting", 1, 1

    def __init__(self) -> None:
        self.inner, self.calls = ReferenceEngine(), Counter[str]()
        self.parallel_map = self.inner.parallel_map

    def counted(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*theta: Any) -> Any:
            self.calls[what] += 1
            return function(*theta)

        return call

    def exact(self, *batch: Any) -> CountingPlan:
        return CountingPlan(self, self.inner.exact(*batch))

    def messages(self, batch: Any) -> Any:
        self.calls["messages"] += 1
        return self.inner.messages(batch)

    def linear(self, *terms: Any) -> Any:
        self.calls["features"] += 1
        return self.inner.linear(*terms)


def chains(rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    X = [rng.normal(size=(n, 2)) for n in (3, 4, 2, 3)]
    return X, [[None if rng.random() < 0.2 else "ab"[int(v)] for v in x[:, 0] > 0] for x in X]


def grids(rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    X = [rng.normal(size=(2, 2, 2)) for _ in range(3)]
    return X, [(x[..., 0] > 0).astype(int) for x in X]


def graphs(rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    X = [ms.Graph(rng.normal(size=(3, 2)), np.array([[0, 1], [1, 2], [0, 2]])) for _ in range(3)]
    return X, [(g.nodes[:, 0] > 0).astype(int).tolist() for g in X]


DATA = {"chain": (chains, ms.Chain), "grid": (grids, ms.Grid), "graph": (graphs, ms.GraphModel)}
MEMBERS = {
    "MSSVM": ms.MSSVM,
    "LSSVM": ms.LSSVM,
    "HCRF": ms.HCRF,
    "EpsilonSSVM": ms.EpsilonSSVM,
    "CRF": ms.CRF,
    "LossAugmentedCRF": ms.LossAugmentedCRF,
    "UnifiedSSVM": ms.UnifiedSSVM,
    "SSVM": ms.SSVM,
    "M3E": ms.M3E,
    "ModLat": ms.ModLat,
}


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_runs_through_a_third_engine(member: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, structure = DATA[kind]
    X, y = make(np.random.default_rng(3))
    hidden = 0 if member in ("SSVM", "CRF") or kind == "graph" else 2
    linked = {"linked": False} if hidden else {}
    settings = {"max_iter": 4, "random_state": 0}
    theirs = MEMBERS[member](structure(hidden=hidden, **linked), **settings).fit(X, y)

    def refuse(*_: Any) -> None:
        raise AssertionError("the compiled engine was asked")

    for name in ("exact", "messages", "linear"):
        monkeypatch.setattr(NativeEngine, name, refuse)
    engine = CountingEngine()
    ours = MEMBERS[member](structure(hidden=hidden, **linked), engine=engine, **settings).fit(X, y)
    trained = sum(engine.calls[what] for what in ("bound", "pair"))
    assert trained >= 3 and engine.calls["features"] >= 1
    assert ours.objective_ == pytest.approx(theirs.objective_, rel=1e-6)
    ours.coef_ = theirs.coef_
    predicted = ours.predict(X)
    assert sum(engine.calls[what] for what in ("bound", "pair")) > trained
    monkeypatch.undo()
    for one, two in zip(predicted, theirs.predict(X), strict=True):
        np.testing.assert_array_equal(one, two)


def test_propagation_through_a_third_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = grids(np.random.default_rng(5))
    monkeypatch.setattr(NativeEngine, "messages", None)
    engine = CountingEngine()
    model = ms.MSSVM(ms.Grid(), engine=engine, inference="propagate", max_iter=2, random_state=0).fit(X, y)
    trained = engine.calls["messages"]
    assert trained and not engine.calls["bound"] and not engine.calls["pair"]
    model.predict(X)
    assert engine.calls["messages"] > trained


@pytest.mark.parametrize("engine", ["fortran", 3, None])
def test_an_unknown_engine_is_refused(engine: Any) -> None:
    X, y = chains(np.random.default_rng(0))
    with pytest.raises(InputError, match="engine"):
        ms.CRF(engine=engine).fit(X, y)

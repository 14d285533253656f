"""Every public entry point with every bad input: only the package's own errors, or scikit-learn's, may come out.

    python tools/attack_matrix.py [--sample N] [--seed S] [--json FILE]

A case is one call: a member on a structure with one part of X, y, a parameter or an argument replaced by something bad.
It must return, or raise ``MssvmError`` (or scikit-learn's ``NotFittedError``), within ``LIMIT`` seconds.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attack import options, report
from scipy import sparse
from sklearn.exceptions import NotFittedError

import mssvm as ms

LIMIT = 5
ALLOWED = (ms.errors.MssvmError, NotFittedError)
MEMBERS = ("CRF", "HCRF", "LSSVM", "M3E", "MSSVM", "SSVM", "EpsilonSSVM", "LossAugmentedCRF", "ModLat", "UnifiedSSVM")
VISIBLE = ("CRF", "SSVM")  # members without hidden variables

NUMBERS = (0, -1, 1.5, float("nan"), float("inf"), 1e300, 10**400, True, None, "1", "x", [1], {}, object, 1j, b"1")
THINGS = (None, 5, -1.5, "abc", b"ab", True, [], {}, set(), object(), np.array(3.0), float("nan"), 1j, len)

PARAMETERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("C", "n_init", "max_iter", "tol", "n_jobs"), NUMBERS),
    "memory_limit": (*NUMBERS, 1),
    "random_state": ("x", -1, 1.5, 2**32, [1], {}, object()),
    **dict.fromkeys(("loss", "solver", "engine", "support", "structure"), THINGS),
    "inference": THINGS[:-1],  # any function may be one
    "init": (*THINGS, [float("nan")], [1.0], [[1.0]], ["a"], np.zeros(10**6), 1e300),
    "class_weight": (
        *THINGS,
        {"zz": 1.0},
        {"a": -1.0},
        {"a": float("nan")},
        {"a": "x"},
        {"a": 0.0, "b": 0.0},
        {"a": None},
    ),
    "classes": (*THINGS, ["a", "a"], [None], [["a"]], ["a"], "ab", {"a": 1}, [float("nan")]),
    "missing_label": ([], {}, set(), np.array([1, 2]), "a", -1, -100, float("nan")),
    "penalties": (*THINGS, {"zz": 1.0}, {"unary": -1.0}, {"unary": "x"}, {"unary": float("nan")}, {1: 1.0}),
}
OWN = {
    "M3E": {"alpha": NUMBERS},
    "ModLat": {"beta": NUMBERS, "latent_weight": NUMBERS, "n_rounds": NUMBERS},
    "EpsilonSSVM": {"eps": NUMBERS},
    "UnifiedSSVM": {"eps_y": NUMBERS, "eps_h": NUMBERS},
}
STATES = (-1, 0, 1.5, "x", 10**6, 10**30, [2], {"h": "x"}, {"h": 0}, {"h": 10**9}, {None: 2}, object())
SHAPES: dict[str, tuple[Any, ...]] = {
    "hidden": STATES,
    "forbidden": (
        *THINGS,
        "bio",
        "bioes",
        "iob",
        "",
        [("a",)],
        [("a", "zz")],
        ["ab"],
        [("a", "b", "a")],
        {"x": 5},
        {"edge": [5]},
        [5],
        [None],
    ),
    "allowed": (*THINGS, {"zz": ["a"]}, {"": 5}, {"": ["zz"]}, [["a"]]),
    "fixed": (*THINGS, {"zz": 1.0}, {"unary": "x"}, {"unary": float("nan")}, {"unary": [1.0, 2.0]}, {5: 1}),
    "forced": (*THINGS, {"a": 5}, {"zz": "a"}, {"a": "zz"}),
    "neighbours": THINGS,
    "pool": THINGS,
}


def bad_x(good: list[Any]) -> Iterator[Any]:
    """X as a whole, and with its first instance replaced."""
    yield from THINGS
    yield from (iter(good), "abc", {"a": good}, np.array(good[0], dtype=object), good[0])
    for item in bad_instances(good[0]):
        yield [item, *good[1:]]


def bad_instances(item: Any) -> Iterator[Any]:
    yield from THINGS
    yield from ([None], [[]], [[], []], [[1.0], [1.0, 2.0]], [["a"]], [{}], [{"a": None}], [{"a": [1]}], [[None]])
    if isinstance(item, np.ndarray):
        for value in (np.nan, np.inf, 1e300, -1e300):
            changed = item.copy()
            changed.flat[0] = value
            yield changed
        yield from (item.astype(complex) + 1j, item.astype("datetime64[s]"), item.astype(str), item.astype(object))
        yield from (np.ma.masked_array(item, item > 0), item[..., :0], item[:0], item[..., None], item.T, item[0])
        yield from (item.astype(bool), item[..., :1], item.astype("timedelta64[s]"))
        yield sparse.csr_array(item.reshape(len(item), -1))
        yield [[10**400] * item.shape[-1]] * len(item)
        yield np.rec.fromarrays([item.ravel()])


def bad_y(good: list[Any]) -> Iterator[Any]:
    yield from THINGS
    yield from (iter(good), good[:-1], [*good, good[0]], np.array(5), "abc", [None] * len(good))
    first = good[0]
    nested = np.array(first, dtype=object)
    odd = ("\ud800", float("inf"), 10**400, {"a": 1}, [], [[]], {None}, frozenset(), ("a", ["b"]), "zz")
    odd = (*odd, -1, -100, -100.0, {-1, 0}, {"a", -100}, np.int64(-1), np.float64("nan"), np.str_("a"))
    for label in (*THINGS, *odd):
        changed = nested.copy()
        if nested.ndim:
            changed.flat[0] = None
            changed = changed.tolist()
            place = changed
            while isinstance(place[0], list):
                place = place[0]
            place[0] = label
        else:
            changed = label
        yield [changed, *good[1:]]
    yield [np.ma.masked_array(np.zeros(3), [True, False, False]), *good[1:]]
    yield [np.array(["2020-01-01"] * 3, dtype="datetime64[D]"), *good[1:]]
    yield from ([first, None], [np.array(0)] * len(good), [[first]] * len(good))


@dataclass(frozen=True)
class Kind:
    """A structure with small good data."""

    name: str
    make: Callable[..., Any]
    X: list[Any]
    y: list[Any]
    settings: tuple[str, ...]


def kinds() -> list[Kind]:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 2)) for n in (3, 4)]
    labels = [["a", "b", "a"], ["b", None, "a", "b"]]
    images = [rng.normal(size=(2, 3, 2)) for _ in range(2)]
    masks = [[["a", "b", "a"], ["b", "a", None]], [["b"] * 3, ["a"] * 3]]
    graphs = [ms.Graph(r, [[0, 1], [1, 2]]) for r in rows]
    factors = [ms.FactorInput(["y", "y"], {"pair": [[0, 1]], "own": ([[0], [1]], r[:2])}) for r in rows]
    common = ("hidden", "forbidden", "fixed")
    return [
        Kind("chain", ms.Chain, rows, labels, (*common, "forced")),
        Kind("grid", ms.Grid, images, masks, (*common, "neighbours")),
        Kind("graph", ms.GraphModel, graphs, labels, (*common, "allowed")),
        Kind("factors", ms.FactorModel, factors, [["a", "b"], ["b", None]], (*common, "allowed")),
        Kind("sequence", partial(ms.SequenceLabel, hidden=2), rows, ["a", "b"], ("hidden", "fixed", "pool")),
    ]


@dataclass(frozen=True)
class Case:
    """One call; ``label`` names it."""

    label: str
    call: Callable[[], Any]


def estimator(member: str, kind: Kind, shape: dict[str, Any] | None = None, **settings: Any) -> Any:
    parameters = {"structure": kind.make(**(shape or {})), "max_iter": 2, "random_state": 0, **settings}
    return getattr(ms, member)(**parameters)


def members_of(kind: Kind) -> tuple[str, ...]:
    return tuple(m for m in MEMBERS if kind.name != "sequence" or m not in VISIBLE)


def cases() -> Iterator[Case]:
    """All of them, in a fixed order."""
    for kind in kinds():
        fitted: dict[str, Any] = {}

        def model(member: str, kind: Kind = kind, fitted: dict[str, Any] = fitted) -> Any:
            if member not in fitted:
                fitted[member] = estimator(member, kind).fit(kind.X, kind.y)
            return fitted[member]

        for member in members_of(kind):
            where = f"{member}, {kind.name}"
            yield from _fits(member, kind, where)
            yield from _asks(partial(model, member), kind, where)
            yield from _settings(member, kind, where)
    yield from _inputs()
    yield from _clumsy()


def _fits(member: str, kind: Kind, where: str) -> Iterator[Case]:
    def fit(X: Any, y: Any, **arguments: Any) -> Any:
        return estimator(member, kind).fit(X, y, **arguments)

    for n, X in enumerate(bad_x(kind.X)):
        yield Case(f"{where}: fit, bad X {n} ({shown(X)})", partial(fit, X, kind.y))
    for n, y in enumerate(bad_y(kind.y)):
        yield Case(f"{where}: fit, bad y {n} ({shown(y)})", partial(fit, kind.X, y))
    for name in ("sample_weight", "allowed", "callback", "validation", "checkpoint", "time_limit"):
        for value in (*THINGS, [1.0, float("nan")], [[1.0], [2.0]], ["x", "y"], (kind.X, None)):
            fine = {"callback": callable(value), "checkpoint": isinstance(value, (str, bytes))}
            if value is None or fine.get(name, False):
                continue
            yield Case(f"{where}: fit, {name}={shown(value)}", partial(fit, kind.X, kind.y, **{name: value}))


def _asks(model: Callable[[], Any], kind: Kind, where: str) -> Iterator[Case]:
    def ask(method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(model(), method)(*arguments, **named)

    for n, X in enumerate(bad_x(kind.X)):
        yield Case(f"{where}: predict, bad X {n} ({shown(X)})", partial(ask, "predict", X))
    for n, y in enumerate(bad_y(kind.y)):
        yield Case(f"{where}: score, bad y {n} ({shown(y)})", partial(ask, "score", kind.X, y))
        yield Case(f"{where}: decision_gap, bad y {n} ({shown(y)})", partial(ask, "decision_gap", kind.X, y))
    for name in ("hidden", "given", "allowed", "decode"):
        for value in THINGS:
            if value is not None:
                call = partial(ask, "predict", kind.X, **{name: value})
                yield Case(f"{where}: predict, {name}={shown(value)}", call)
    for k in (*NUMBERS, 10**9):
        yield Case(f"{where}: predict_topk, k={shown(k)}", partial(ask, "predict_topk", kind.X, k))
    for path in (5, None, "", "\0", "x" * 300, object()):
        yield Case(f"{where}: save({shown(path)})", partial(ask, "save", path))


def _settings(member: str, kind: Kind, where: str) -> Iterator[Case]:
    def fit(shape: dict[str, Any], **settings: Any) -> Any:
        return estimator(member, kind, shape, **settings).fit(kind.X, kind.y)

    for name, values in (*PARAMETERS.items(), *OWN.get(member, {}).items()):
        for value in values:
            yield Case(f"{where}: {name}={shown(value)}", partial(fit, {}, **{name: value}))
    for name in kind.settings:
        for value in SHAPES[name]:
            yield Case(f"{where}: {kind.name}({name}={shown(value)})", partial(fit, {name: value}))


def _inputs() -> Iterator[Case]:
    """Constructors of instances, and the functions of modules."""
    nodes = np.zeros((3, 2))
    pairs = [[0, 1]]
    for value in (*THINGS, [[0, 9]], [[0.5, 1]], [["a", "b"]], [[0, 0]], [[0]], [[None, 1]]):
        yield Case(f"Graph(edges={shown(value)})", partial(ms.Graph, nodes, value))
        yield Case(f"Graph(nodes={shown(value)})", partial(ms.Graph, value, pairs))
        for name in ("edge_features", "node_types", "edge_types"):
            yield Case(f"Graph({name}={shown(value)})", partial(ms.Graph, nodes, pairs, **{name: value}))
        yield Case(f"FactorInput(variables={shown(value)})", partial(ms.FactorInput, value, {"a": pairs}))
        yield Case(f"FactorInput(factors={shown(value)})", partial(ms.FactorInput, ["y"] * 3, value))
        yield Case(f"FactorInput(factors={{a: {shown(value)}}})", partial(ms.FactorInput, ["y"] * 3, {"a": value}))
        yield Case(f"load({shown(value)})", partial(ms.load, value))


def _clumsy() -> Iterator[Case]:
    """Calls that newcomers make: metrics with labels of the wrong form, data in the wrong nesting, no labels at all."""
    for name in ("site_accuracy", "instance_accuracy", "flat_f1", "span_f1", "span_report", "label_report"):
        metric = getattr(ms.metrics, name)
        for y in (*THINGS, [["a", -100]], [["B-x", "I-x"]], [[1, 0]], [[[1]]], ["ab"], [[None]], [[{"a", "b"}]]):
            yield Case(f"metrics.{name}({shown(y)}, labels)", partial(metric, y, [["a", "b"]]))
            yield Case(f"metrics.{name}(labels, {shown(y)})", partial(metric, [["a", "b"]], y))
        for value in THINGS:
            yield Case(
                f"metrics.{name}(missing_label={shown(value)})", partial(metric, [[0]], [[0]], missing_label=value)
            )
    X = [np.eye(2)[[0, 1]], np.eye(2)[[1, 0, 0]]]
    y = [["a", "b"], ["b", "a", "a"]]
    pairs: dict[str, tuple[Any, Any]] = {
        "nothing": ([], []),
        "no labels": (X, [None, None]),
        "X without a batch axis": (X[0], y[0]),
        "y without a batch axis": (X, y[0]),
        "y as text": (X, ["ab", "baa"]),
        "a label an instance": (X, ["a", "b"]),
        "one-hot labels": (X, [np.eye(2)[[0, 1]], np.eye(2)[[1, 0, 0]]]),
        "probabilities": (X, [[0.2, 0.8], [0.5, 0.5, 0.1]]),
        "swapped": (y, X),
        "missing as -1": (X, [[0, -1], [1, 0, 0]]),
        "missing as text": (X, [["a", "?"], ["b", "a", "nan"]]),
        "features and names": ([X[0], [{"w": 1}] * 3], y),
        "ragged features": ([[[1.0], [1.0, 2.0]], X[1]], y),
        "labels of two types": (X, [["a", 1], ["b", "a", "a"]]),
        "a generator": ((x for x in X), y),
        "a generator of labels": (X, (labels for labels in y)),
        "a data set": (ms.data.chunking("test"), None),
    }
    for name, (given, labels) in pairs.items():
        yield Case(f"CRF, clumsy: {name}", partial(ms.CRF(ms.Chain(), max_iter=2).fit, given, labels))
    model = ms.CRF(ms.Chain(), max_iter=2).fit(X, y)
    for name, (given, labels) in pairs.items():
        yield Case(f"predict, clumsy: {name}", partial(model.predict, given))
        yield Case(f"score, clumsy: {name}", partial(model.score, given, labels))


def shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


class Late(BaseException):
    """The call took too long; not an ``Exception``, so that nothing catches it."""


def tried(case: Case, limit: float = LIMIT) -> tuple[str, str]:
    """The outcome of a case: "answered" or "refused", or "raw" or "late" and the place in the code."""

    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            case.call()
        return "answered", ""
    except ALLOWED:
        return "refused", ""
    except Late:
        return "late", "".join(traceback.format_exc().splitlines()[-3:-1])
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        own = [f for f in traceback.extract_tb(error.__traceback__) if "/mssvm/" in f.filename]
        at = own[-1] if own else frame
        return "raw", f"{type(error).__name__}: {str(error)[:90]} @ {Path(at.filename).name}:{at.lineno} {at.name}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def warm_up() -> None:
    """Load what good inputs need, so that the time limit is one of the calls themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds():
            for member in members_of(kind):
                model = estimator(member, kind).fit(kind.X, kind.y)
                model.predict(kind.X)
                model.predict_marginals(kind.X)
                if kind.name == "grid":
                    with suppress(ms.errors.UnsupportedError):  # M3E has no approximate inference
                        estimator(member, kind, memory_limit=1).fit(kind.X, kind.y).predict(kind.X)
                else:
                    model.predict_topk(kind.X, 2)


def run(sample: int | None, seed: int, limit: float = LIMIT) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Counts of the outcomes, and the cases that failed."""
    chosen = list(cases())
    if sample is not None:
        picked = np.random.default_rng(seed).choice(len(chosen), min(sample, len(chosen)), replace=False)
        chosen = [chosen[i] for i in np.sort(picked)]
    counts: Counter[str] = Counter()
    failed = []
    warm_up()
    for case in chosen:
        outcome, where = tried(case, limit)
        counts[outcome] += 1
        if outcome in ("raw", "late"):
            failed.append((f"{outcome}: {case.label}", where))
    return counts, failed


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.monotonic()
    counts, failed = run(args.sample, args.seed)
    lines = [f"{label}: {where}" for label, where in failed]
    return report({"counts": counts, "failed": lines, "seconds": round(time.monotonic() - began, 1)}, args.json)


if __name__ == "__main__":
    sys.exit(main())

"""Make the saved models beside this file, and ``expected.json``: what each of them answered when it was written.

    python tests/saved/make.py [--only NAME ...]

One small model for every member and structure that can be trained together, and some more for parameters that files
keep. ``tests/estimators/test_saved.py`` loads the files, asks them about the same inputs (``data``) and wants the same
answers, so they say whether a later version still reads and understands models of this one. Do not run this to make
that test pass: files are only added, or written anew with a new format on purpose.

All but ``FactorInput`` and the objects in ``extras`` comes from the top of the package; everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

import mssvm as ms

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"
N_INSTANCES, N_TRAINED = 7, 5
WORDS, INTEGERS = ("noun", "other", "verb"), (0, 1, 2)

Data = tuple[list[Any], Any]


# --------------------------------------------------------------------------------------------------- inputs


def _labels(rng: np.random.Generator, shape: Any, classes: tuple[Any, ...]) -> tuple[Any, Any]:
    """States in which neighbours tend to follow each other, and the labels with one in six missing."""
    size = int(np.prod(shape))
    states = (np.cumsum(rng.random(size) < 0.5) + rng.integers(len(classes))) % len(classes)
    labels = np.empty(size, dtype=object)
    labels[:] = [ms.MISSING if rng.random() < 1 / 6 else classes[s] for s in states]
    labels[0] = classes[states[0]]  # no instance without a label
    return states, labels.reshape(shape)


def _features(rng: np.random.Generator, states: Any, n_classes: int) -> Any:
    """One noisy column for each class."""
    return np.eye(n_classes)[states] + rng.normal(0, 0.6, (len(states), n_classes))


def chain_data(classes: tuple[Any, ...], edges: bool = False) -> Data:
    """Sequences of 1 to 5 positions with dense features, where asked with features of transitions."""
    rng = np.random.default_rng(1)
    X: list[Any] = []
    y = []
    for k in range(N_INSTANCES):
        states, labels = _labels(rng, (1 + (k + 3) % 5,), classes)
        x = _features(rng, states, len(classes))
        X.append({"x": x, "edge_x": rng.normal(size=(len(x) - 1, 2))} if edges else x)
        y.append(labels.tolist())
    return X, y


def named_data() -> Data:
    """Sequences of dicts of named features, whose labels keep the constraints of ``named``; some candidate sets."""
    rng = np.random.default_rng(2)
    after = {None: "BO", "B": "IO", "I": "IO", "O": "BO"}
    X, y = [], []
    for k in range(N_INSTANCES):
        before: str | None = None
        items, labels = [], []
        for t in range(2 + k % 3):
            before = str(rng.choice(list(after[before])))
            guess = before if rng.random() < 0.8 else "O"
            items.append({f"looks={guess}": True, "long": float(rng.random()), "first": t == 0})
            draw = rng.random()
            label: Any = before
            if draw < 0.15:
                label = ms.MISSING
            elif draw < 0.25:
                label = {before, "O"}
            labels.append(label)
        X.append(items)
        y.append(labels)
    return X, y


def grid_data(classes: tuple[Any, ...]) -> Data:
    """Pictures of 2 x 2 and 2 x 3 pixels."""
    rng = np.random.default_rng(3)
    X, y = [], []
    for k in range(N_INSTANCES):
        shape = (2, 2 + k % 2)
        states, labels = _labels(rng, shape, classes)
        X.append(_features(rng, states, len(classes)).reshape(*shape, -1))
        y.append(labels.tolist())
    return X, y


def graph_data(classes: tuple[Any, ...]) -> Data:
    """Cycles of 3 and 4 nodes with two types of nodes and of edges, and features of edges."""
    rng = np.random.default_rng(4)
    X, y = [], []
    for k in range(N_INSTANCES):
        n = 3 + k % 2
        states, labels = _labels(rng, (n,), classes)
        edges = [(i, (i + 1) % n) for i in range(n)]
        types = [("p", "q")[i % 2] for i in range(n)]
        kinds = ["round" if i == n - 1 else "on" for i in range(n)]
        x = _features(rng, states, len(classes))
        X.append(ms.Graph(x, edges, rng.normal(size=(n, 1)), node_types=types, edge_types=kinds))
        y.append(labels.tolist())
    return X, y


def factor_data(classes: tuple[Any, ...], hidden: bool) -> Data:
    """Words with features, factors of two and of three of them, and where asked one hidden topic over all."""
    from mssvm.data.graphs import FactorInput

    rng = np.random.default_rng(5)
    X, y = [], []
    for k in range(N_INSTANCES):
        n = 3 + k % 2
        states, labels = _labels(rng, (n,), classes)
        factors: dict[str, Any] = {
            "word": ([(i,) for i in range(n)], _features(rng, states, len(classes))),
            "pair": [(i, i + 1) for i in range(n - 1)],
            "triple": [(0, 1, 2)],
        }
        if hidden:
            factors["topic"] = [(n, i) for i in range(n)]
        X.append(FactorInput([*(["w"] * n), *(["topic"] if hidden else [])], factors))
        y.append(labels.tolist())
    return X, y


def sequence_data(classes: tuple[Any, ...]) -> Data:
    """Whole sequences of one class each; one label is missing."""
    rng = np.random.default_rng(6)
    y: list[Any] = [classes[k % len(classes)] for k in range(N_INSTANCES)]
    X = [_features(rng, np.full(1 + k % 4, k % len(classes)), len(classes)) for k in range(N_INSTANCES)]
    y[3] = ms.MISSING
    return X, y


# --------------------------------------------------------------------------------------------------- models

FORBIDDEN = [("O", "I"), (None, "I")]
TWO = ("no", "yes")

# Name, whether there are hidden variables, the structure, and its inputs.
STRUCTURES: dict[str, tuple[bool, Callable[[], Any], Callable[[], Data]]] = {
    "chain": (False, lambda: ms.Chain(), lambda: chain_data(WORDS)),
    "named": (False, lambda: ms.Chain(ends=True, forbidden=FORBIDDEN), named_data),
    "grid": (False, lambda: ms.Grid(), lambda: grid_data(INTEGERS)),
    "graph": (False, lambda: ms.GraphModel(), lambda: graph_data(WORDS)),
    "factor": (False, lambda: ms.FactorModel(), lambda: factor_data(TWO, False)),
    "chain-hidden": (True, lambda: ms.Chain(hidden=2), lambda: chain_data(INTEGERS)),
    "chain-linked": (True, lambda: ms.Chain(hidden=2, linked=True, direct=True), lambda: chain_data(WORDS)),
    "named-hidden": (True, lambda: ms.Chain(hidden=2, forbidden=FORBIDDEN), named_data),
    "grid-hidden": (True, lambda: ms.Grid(hidden=2), lambda: grid_data(TWO)),
    "graph-hidden": (True, lambda: ms.GraphModel(hidden=2, linked=False), lambda: graph_data(TWO)),
    "factor-hidden": (True, lambda: ms.FactorModel(hidden={"topic": 2}), lambda: factor_data(INTEGERS, True)),
    "sequence": (True, lambda: ms.SequenceLabel(hidden=2), lambda: sequence_data(WORDS)),
}

COMMON: dict[str, Any] = {"max_iter": 6, "random_state": 0}

# Name, whether it takes hidden variables, and the member on a structure.
MEMBERS: dict[str, tuple[bool, Callable[..., Any]]] = {
    "MSSVM": (True, lambda s, **p: ms.MSSVM(s, **p)),
    "LSSVM": (True, lambda s, **p: ms.LSSVM(s, **p)),
    "HCRF": (True, lambda s, **p: ms.HCRF(s, **p)),
    "EpsilonSSVM": (True, lambda s, **p: ms.EpsilonSSVM(s, eps=0.3, **p)),
    "LossAugmentedCRF": (True, lambda s, **p: ms.LossAugmentedCRF(s, **p)),
    "M3E": (True, lambda s, **p: ms.M3E(s, alpha=1.5, **p)),
    "ModLat": (True, lambda s, **p: ms.ModLat(s, beta=0.2, n_rounds=2, **p)),
    "UnifiedSSVM": (True, lambda s, **p: ms.UnifiedSSVM(s, eps_y=0.2, eps_h=0.7, **p)),
    "SSVM": (False, lambda s, **p: ms.SSVM(s, **p)),
    "CRF": (False, lambda s, **p: ms.CRF(s, **p)),
}


def extras() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Models with parameters of other kinds: the structure whose inputs they use, and how they are made."""
    fixed = {"transition": {("noun", "verb"): 0.5}, "bias": 0.0}
    weights = {"noun": 2.0, "verb": 0.5}
    limits = {"allowed": {"p": list(WORDS)}, "forbidden": {"on": [("verb", "other")]}}
    joint = {"triple": [("no", "no", "no"), ("yes", "no", "yes")]}
    return {
        "MSSVM.class-weight": (
            "chain",
            lambda: ms.MSSVM(ms.Chain(hidden=2), class_weight=weights, penalties={"bias": 0.5}, **COMMON),
        ),
        "CRF.class-weight": ("chain", lambda: ms.CRF(class_weight="balanced", **COMMON)),
        "SSVM.fixed": ("chain", lambda: ms.SSVM(ms.Chain(fixed=fixed), solver="adam", **COMMON)),
        "CRF.classes": (
            "chain",
            lambda: ms.CRF(ms.Chain(forced={"noun": ["noun", "other"]}), classes=("verb", "noun", "other"), **COMMON),
        ),
        "CRF.seen": ("named", lambda: ms.CRF(ms.Chain(forbidden=FORBIDDEN), support="seen", **COMMON)),
        "LSSVM.cccp": ("chain-hidden", lambda: ms.LSSVM(ms.Chain(hidden=2), solver="cccp", **COMMON)),
        "SSVM.cutting-plane": ("grid", _with_cutting_planes),
        "MSSVM.propagate": ("grid-hidden", lambda: ms.MSSVM(ms.Grid(hidden=2), inference="propagate", **COMMON)),
        "HCRF.between": ("grid-hidden", lambda: ms.HCRF(ms.Grid(hidden=2, linked=False, direct=True), **COMMON)),
        "HCRF.linked-graph": ("graph", lambda: ms.HCRF(ms.GraphModel(hidden=2, directed=False), **COMMON)),
        "CRF.allowed": ("graph", lambda: ms.CRF(ms.GraphModel(**limits), classes=(*WORDS, "none"), **COMMON)),
        "SSVM.forbidden": ("factor", lambda: ms.SSVM(ms.FactorModel(forbidden=joint), **COMMON)),
        "HCRF.pooled": ("sequence", lambda: ms.HCRF(ms.SequenceLabel(2, per_class=False, pool="mean"), **COMMON)),
        "MSSVM.edges": ("chain-edges", lambda: ms.MSSVM(ms.Chain(hidden=2, direct=True), init="hcrf", **COMMON)),
        "MSSVM.objects": ("chain", _with_objects),
    }


def _with_objects() -> Any:
    """Solver, loss and inference as objects, which files keep by name."""
    from mssvm.inference.exact import Exact
    from mssvm.losses import WeightedHamming
    from mssvm.optim import CCCP, Subgradient

    loss = WeightedHamming(np.array([1.0, 2.0, 0.5]))
    solver = CCCP(Subgradient(max_iter=2, rate=0.1), max_iter=2)
    return ms.MSSVM(ms.Chain(hidden=2), loss=loss, solver=solver, inference=Exact(), random_state=0)


def _with_cutting_planes() -> Any:
    from mssvm.optim import CCCP, CuttingPlane

    return ms.SSVM(ms.Grid(neighbours=8), solver=CCCP(CuttingPlane(max_iter=5), max_iter=2), random_state=0)


def data(inputs: str) -> Data:
    """The inputs and labels of a kind; models are fitted to the first ``N_TRAINED`` instances."""
    return chain_data(INTEGERS, edges=True) if inputs == "chain-edges" else STRUCTURES[inputs][2]()


def cases() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Every model by the name of its file: its inputs, and how it is made."""
    out: dict[str, tuple[str, Callable[[], Any]]] = {}
    for structure, (hidden, build, _) in STRUCTURES.items():
        for member, (takes_hidden, make) in MEMBERS.items():
            if takes_hidden or not hidden:
                out[f"{member}.{structure}"] = (structure, lambda make=make, build=build: make(build(), **COMMON))
    return out | extras()


# --------------------------------------------------------------------------------------------------- answers


def answers(model: Any, X: list[Any], y: Any) -> dict[str, Any]:
    """Predictions, marginals and score as JSON holds them."""
    return {
        "predict": [np.asarray(item).tolist() for item in model.predict(X)],
        "marginals": [np.asarray(item).tolist() for item in model.predict_marginals(X)],
        "score": float(model.score(X, y)),
    }


def main() -> None:
    """Fit and save every model, then write down what the files, loaded again, answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of models; the others keep their files")
    only = parser.parse_args().only
    known = json.loads(EXPECTED.read_text("utf-8")) if only and EXPECTED.exists() else {}
    for name, (inputs, make) in cases().items():
        if only and name not in only:
            continue
        began = monotonic()
        X, y = data(inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # six iterations do not converge
            model = make().fit(X[:N_TRAINED], y[:N_TRAINED])
        path = HERE / f"{name}.safetensors"
        model.save(path)
        known[name] = {"inputs": inputs, **answers(ms.load(path), X, y)}
        score = known[name]["score"]
        print(f"{name:32} {path.stat().st_size:6d} bytes  score {score:.3f}  {monotonic() - began:.1f} s", flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(known[name], sort_keys=True)}" for name in sorted(known)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    size = sum(p.stat().st_size for p in HERE.iterdir() if p.is_file())
    print(f"{len(known)} models, {size / 1000:.0f} kB in all")


if __name__ == "__main__":
    main()

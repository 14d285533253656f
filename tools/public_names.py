"""Every public name: whether its docstring names all parameters and has an example that runs, and its result a type.

    python tools/public_names.py            # one line a name that lacks something, and the coverage

Public is what ``__all__`` of ``mssvm`` and of its doors (``ms.solvers``, ``ms.losses``, ...) holds, and the methods of
estimators and of their inputs. In the examples ``np`` is NumPy, ``ms`` this package, ``X`` and ``y`` are two short
chains, ``clf`` is a model fitted to them and ``folder`` an empty folder. PyTorch's names are counted where it is
installed; ``layer`` is a ``StructuredLoss`` there, and ``scores`` are those of one chain of two sites.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
import tempfile
import warnings
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms

METHODS = {
    "UnifiedSSVM": (
        "fit",
        "predict",
        "predict_marginals",
        "predict_proba",
        "predict_hidden",
        "predict_topk",
        "predict_segments",
        "predict_boundaries",
        "sample_segments",
        "decision_gap",
        "score",
        "calibrate",
        "aggregate",
        "diagnose",
        "weights_table",
        "save",
    ),
    "Graph": ("from_adjacency",),
    "FactorInput": ("with_features",),
}
PROTOCOLS = (ms.losses.Loss, ms.engines.Engine)
TORCH = {"StructuredLoss": ("decode", "marginals", "log_partition", "entropy", "sample", "topk")}
EVERYWHERE = {  # said once
    "self",
    "cls",
    "X",
    "y",
    "y_true",
    "y_pred",
    "votes",
    "hidden",
    "given",
    "allowed",
    "sample_weight",
    "scores",
    "shape",
}


def public(torch: bool = False) -> dict[str, Any]:
    """Every public name and its object; with ``torch`` those of ``mssvm.torch`` instead."""
    names: dict[str, Any] = {}
    doors = ["torch"] if torch else ["", *(name for name in ms.__all__ if inspect.ismodule(getattr(ms, name)))]
    for door in doors:
        module = getattr(ms, door) if door else ms
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, (ModuleType, str)) and getattr(value, "__module__", "").startswith("mssvm"):
                names[f"{door}.{name}".lstrip(".")] = value
    methods = {f"torch.{owner}": own for owner, own in TORCH.items()} if torch else METHODS
    for owner, own in methods.items():
        for name in own:
            names[f"{owner}.{name}"] = inspect.getattr_static(names[owner], name)
    return names


def documented(value: Any) -> Any:
    """The function or class behind a descriptor."""
    return getattr(value, "__func__", None) or getattr(value, "fn", value)


def unsaid(value: Any) -> list[str]:
    """Parameters that the docstring does not name."""
    value = documented(value)
    without = inspect.isclass(value) and (issubclass(value, (tuple, Enum, Warning)) or value in PROTOCOLS)
    if without or not callable(value):
        return []
    given = {p.name for p in inspect.signature(value).parameters.values()} - EVERYWHERE
    bases = [base for base in getattr(value, "__mro__", (value,)) if base.__module__.startswith("mssvm")]
    text = " ".join(inspect.getdoc(base) or "" for base in bases)
    return sorted(name for name in given if not re.search(rf"\b{name}\b", text))


def world(folder: Path) -> dict[str, Any]:
    """The variables that the examples use."""
    X = [np.eye(3)[[0, 1, 2]], np.eye(3)[[2, 0, 1, 1]]]
    y = [["B", "I", "O"], ["O", "B", "I", "I"]]
    clf = ms.MSSVM(ms.Chain(hidden=2), random_state=0).fit(X, y)
    given = {"np": np, "ms": ms, "X": X, "y": y, "clf": clf, "folder": folder, "warnings": warnings}
    if find_spec("torch"):
        import torch

        scores = {"node": torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), "edge": torch.zeros(2, 2)}
        given |= {"torch": torch, "scores": scores, "layer": ms.torch.StructuredLoss(ms.Chain(), eps_y=0.0, eps_h=1.0)}
    return given


def faults(name: str, value: Any, given: dict[str, Any]) -> list[str]:
    """The defects of a public name's docstring."""
    text = inspect.getdoc(documented(value) if callable(documented(value)) else type(value)) or ""
    examples = doctest.DocTestParser().get_doctest(text, {**given}, name, None, None)
    out = []
    missing = unsaid(value)
    if missing:
        out.append(f"does not name {', '.join(missing)}")
    if inspect.isfunction(documented(value)) and "return" not in documented(value).__annotations__:
        out.append("does not say what it returns")
    if not examples.examples:
        return [*out, "has no example"]
    failures: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        runner.run(examples, out=failures.append)
    return [*out, *failures]


def main() -> int:
    lacking = {}
    names = public() | (public(torch=True) if find_spec("torch") else {})
    with tempfile.TemporaryDirectory() as folder:
        given = world(Path(folder))
        for name, value in names.items():
            defects = faults(name, value, given)
            if defects:
                lacking[name] = defects
                print(f"{name}: {'; '.join(defects)}")
    n = len(names)
    print(f"{n - len(lacking)} of {n} public names say what they take and return, and have an example that runs")
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main())

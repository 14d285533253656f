"""From the parameters of an estimator to the objects below: the only place where names stand for solvers and losses.

"auto" means                                    exact inference          approximate inference
    smooth members (eps_y > 0, eps_h > 0)       L-BFGS                   Subgradient (Adam, averaged)
    members with a maximum                      L-BFGS with homotopy     Subgradient (Adam, averaged)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import cpu_count
from typing import Any

import numpy as np
from sklearn.base import clone

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.data.labels import Labels, LabelSpace
from mssvm.inference.auto import Auto
from mssvm.inference.base import Inference
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.losses.losses import Hamming, Loss, Zero
from mssvm.optim import BCFW, CCCP, LBFGS, CuttingPlane, Scaling, Solver, Subgradient
from mssvm.structures import Chain, Structure


@dataclass(frozen=True)
class Named:
    """A solver by name, and what it calls its number of iterations."""

    solver: Solver[Any]
    iterations: str


SOLVERS = {
    "lbfgs": Named(LBFGS(), "max_iterations"),
    "cccp": Named(CCCP(), "max_outer"),
    "bcfw": Named(BCFW(), "max_passes"),
    "cutting-plane": Named(CuttingPlane(), "max_rounds"),
    "subgradient": Named(Subgradient(), "n_epochs"),
    "adam": Named(Subgradient(n_epochs=40, scaling=Scaling.ADAM), "n_epochs"),
}
PASS_OPERATIONS = 1e8  # table entries that exact inference may visit in one pass over the training data
INSTANCE_OPERATIONS = 1e6  # and, however many instances there are, in one of them
LOSSES: dict[str, Loss] = {"hamming": Hamming(), "zero": Zero()}


def structure_of(structure: Any) -> Structure:
    """A copy of the structure, so that later changes to the parameter leave a fitted model alone."""
    if structure is None:
        return Chain()
    if not isinstance(structure, Structure):
        raise InputError(f"structure must be a structure such as Chain() or Grid(), got {structure!r}.")
    copy: Structure = clone(structure)
    return copy


def loss_of(loss: Any, default: str) -> Loss:
    """A loss by name or as an object; None is the member's own."""
    if loss is None:
        return LOSSES[default]
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InputError(f"loss must be one of {', '.join(map(repr, LOSSES))} or a loss object, got {loss!r}.")
        return LOSSES[loss]
    if not hasattr(loss, "delta"):
        raise InputError(f"loss must be a name or an object with a method delta, got {loss!r}.")
    given: Loss = loss
    return given


def threads_of(n_jobs: Any) -> int:
    """Number of threads: None is one, negative numbers count back from all cores."""
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer)) or n_jobs == 0:
        raise InputError(f"n_jobs must be None or a whole number other than 0, got {n_jobs!r}.")
    return int(n_jobs) if n_jobs > 0 else max(1, (cpu_count() or 1) + 1 + int(n_jobs))


def inference_of(inference: Any, memory_limit: Any, threads: int, n_trained: int = 0) -> Inference:
    """Inference by name, or any inference object. Training visits its ``n_trained`` instances hundreds of times,
    so there "auto" propagates fast, and is exact only where a pass over all of them is within ``PASS_OPERATIONS``."""
    if callable(inference):
        given: Inference = inference
        return given
    if not isinstance(inference, str) or inference not in ("auto", "exact", "propagate"):
        raise InputError(f"inference must be 'auto', 'exact', 'propagate' or an inference object, got {inference!r}.")
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, (int, np.integer)) or memory_limit < 1:
        raise InputError(f"memory_limit must be a whole number of bytes >= 1, got {memory_limit!r}.")
    if inference == "propagate":
        return Propagate(threads=threads)
    if inference == "exact":
        return Exact(memory_limit=int(memory_limit), threads=threads)
    automatic = Auto(memory_limit=int(memory_limit), threads=threads)
    if n_trained:
        limit = min(automatic.operations_limit, max(PASS_OPERATIONS / n_trained, INSTANCE_OPERATIONS))
        automatic = replace(automatic, operations_limit=limit, effort="fast")
    return automatic


def solver_of(solver: Any, exact: bool, max_iter: Any, tol: Any, seed: int) -> Solver[Any]:
    """A solver by name with the estimator's settings, or a solver object as it is."""
    if isinstance(solver, Solver):
        if max_iter is not None or tol is not None:
            raise InputError("max_iter and tol belong to solvers given by name; set them in the solver object instead.")
        return solver
    name = ("lbfgs" if exact else "adam") if solver == "auto" else solver
    if not isinstance(name, str) or name not in SOLVERS:
        raise InputError(
            f"solver must be 'auto', one of {', '.join(map(repr, SOLVERS))}, or a solver object, got {solver!r}."
        )
    known = SOLVERS[name]
    settings: dict[str, Any] = {}
    if max_iter is not None:
        settings[known.iterations] = positive(max_iter, "max_iter", whole=True)
    if tol is not None:
        settings["tolerance"] = positive(tol, "tol")
        if name == "lbfgs":
            settings["gradient_tolerance"] = float(np.sqrt(settings["tolerance"]) / 10)
    if hasattr(known.solver, "seed"):
        settings["seed"] = seed
    made: Solver[Any] = replace(known.solver, **settings)  # type: ignore[type-var]
    return made


def positive(value: Any, name: str, whole: bool = False) -> Any:
    """A finite number > 0, or an error."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not (np.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a {'whole' if whole else 'finite'} number > 0, got {value!r}.")
    return value


def class_weights(given: Any, space: LabelSpace, labels: Labels) -> Floats | None:
    """One weight per class; "balanced" is sites / (classes * sites of the class), candidate sets counting in shares."""
    if given is None:
        return None
    if isinstance(given, str):
        if given != "balanced":
            raise InputError(f"class_weight must be None, 'balanced' or a dict, got {given!r}.")
        seen = labels.mask[labels.observed]
        count = (seen / np.maximum(seen.sum(axis=1, keepdims=True), 1)).sum(axis=0)
        return np.where(count > 0, count.sum() / (space.n_classes * np.maximum(count, 1e-300)), 1.0)
    if not hasattr(given, "items"):
        raise InputError(f"class_weight must be None, 'balanced' or a dict, got {given!r}.")
    weights = np.ones(space.n_classes)
    for label, weight in given.items():
        weights[space.index(label, "class_weight")] = weight
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise InputError("class_weight needs finite numbers >= 0.")
    return weights


def site_weights(weights: Floats, labels: Labels) -> Floats:
    """The weight of every site's label: the mean over a candidate set, 1 where missing."""
    share = labels.mask / np.maximum(labels.mask.sum(axis=1, keepdims=True), 1)
    return np.where(labels.observed, share @ weights, 1.0)


def mean_per_instance(values: Floats, labels: Labels) -> Floats:
    """Mean over the labelled sites of every instance, 1 where it has none."""
    n = len(labels.ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(labels.ptr))
    count = np.bincount(owner, weights=labels.observed, minlength=n)
    total = np.bincount(owner, weights=values * labels.observed, minlength=n)
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)

"""The parameters of an estimator as one frozen description of its training, made once and passed down.

Names become objects here, by the tables of ``core.registry``. "auto" means

                                                exact inference                approximate inference
    smooth members (eps_y > 0, eps_h > 0)       L-BFGS                         Subgradient (Adam, averaged)
    members that maximise (a temperature of 0)  L-BFGS through ``SMOOTHED`` or BCFW or cutting planes where all is
                                                ``SPARSE_SMOOTHED``            labelled and outputs are maximised,
                                                                               else Subgradient (Adam, averaged)

Approximate inference that is a convergent bound ("decompose") is treated like exact inference.

A solver given by name minimises the objective at the member's own temperatures. "auto" ends at the temperature of the
best predictions, which is higher (docs/defaults.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from mssvm.core import checks
from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.core.registry import INFERENCES, LOSSES, NAMED_LOSSES, SOLVERS
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.engines.base import Engine
from mssvm.inference.base import Inference
from mssvm.losses import Loss
from mssvm.objectives.base import Objective
from mssvm.objectives.problem import Problem
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import LBFGS, Regulariser, Solution, Solver, random_start
from mssvm.optim.alternate import Minimise
from mssvm.optim.solver import PLAIN
from mssvm.structures import Chain, Encoder, Structure
from mssvm.structures.continued import MovedWeights

PASS_OPERATIONS = 1e7  # table entries that exact inference may visit in one pass over the training data
INSTANCE_OPERATIONS = 1e6  # table entries that it may visit in one instance, however many instances there are
SWEEPS = 12.0  # or as many entries as these sweeps of propagation visit: fast propagation makes no fewer
SUPPORTS = ("all", "seen")
STARTS = ("auto", "zeros", "random", "hcrf")
LARGEST_SEED = np.iinfo(np.int32).max
SMOOTHED = (1.0, 0.25)  # temperatures of the L-BFGS that "auto" chooses
SPARSE_SMOOTHED = (1.0, 0.5)  # its temperatures where labels are sparse
BOUNDED_TOLERANCE = 1e-3  # its tolerance on convergent bounds, whose messages converge together with the weights
SPARSE = 2 / 3  # share of missing labels above which labels are sparse

Strategy = Callable[[TrainingProblem, Floats, Minimise], Solution]
"""How a member uses a solver: once on its problem, or alternately on two problems."""


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """The part of a training that does not depend on the data: the estimator's parameters, with names replaced by
    objects where that needs no data. ``name`` is the member's; ``engine`` has the number of threads."""

    name: str
    structure: Structure
    objective: Objective
    strategy: Strategy | None
    solver: Any
    max_iter: int | None
    tol: float | None
    inference: Any
    memory_limit: int
    engine: Engine
    C: float
    init: Any
    n_init: int
    class_weight: str | Mapping[Hashable, float] | None
    classes: Iterable[Hashable] | None
    missing_label: Hashable
    penalties: Mapping[str, float] | None
    l1_ratio: float
    only_seen: bool
    may_hide: bool
    rng: np.random.RandomState
    verbose: bool

    def solver_for(
        self, exact: bool, cuts: bool, dual: Callable[[], bool], missing: float, seed: int, bounded: bool = False
    ) -> Solver[Any]:
        """The solver object of the plan, or the solver of that name with the estimator's settings.

        "auto" depends on the problem. ``exact``: inference is exact, also at the first temperatures of L-BFGS;
        ``cuts``: minimum cuts make it exact at the target temperatures, and the weights are few; ``dual``: whether BCFW
        can solve the problem; ``missing``: the share of missing labels; ``bounded``: values are convergent bounds.
        """
        solver = self.solver
        settings: dict[str, Any] = {}
        if isinstance(solver, Solver):
            if self.max_iter is not None or self.tol is not None:
                reason = "max_iter and tol belong to solvers given by name; set them in the solver object instead."
                raise InputError(reason)
            return solver
        if solver == "auto" and (exact or bounded or self.l1_ratio > 0):  # absolute values are for L-BFGS alone
            solver = "lbfgs"
            settings["schedule"] = SPARSE_SMOOTHED if missing > SPARSE else SMOOTHED
            if bounded:
                settings["tolerance"] = BOUNDED_TOLERANCE
        elif solver == "auto":
            solver = self._dual_solver(cuts) if dual() else "adam"
        if not isinstance(solver, str) or solver not in SOLVERS:
            raise InputError(f"solver must be 'auto', one of {_listed(SOLVERS)}, or a solver object, got {solver!r}.")
        entry = SOLVERS[solver]
        if self.max_iter is not None:
            settings["max_iter"] = checks.count(self.max_iter, "max_iter", 1)
        if self.tol is not None:
            settings["tolerance"] = checks.number(self.tol, "tol", above=0.0)
        kind: type[Solver[Any]] = resolve_name(entry.place)
        if hasattr(kind, "seed"):
            settings["seed"] = seed
        return kind(**{**entry.settings, **settings})

    def _dual_solver(self, cuts: bool) -> str:
        """Cutting planes where minimum ``cuts`` find exact maxima: planes of the whole sum then close the gap in tens
        of rounds. BCFW where inference is approximate and more planes are needed."""
        return "cutting-plane" if cuts else "bcfw"


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
    name = default if loss is None else loss
    if isinstance(name, str):
        if name not in NAMED_LOSSES:
            raise InputError(f"loss must be one of {_listed(NAMED_LOSSES)} or a loss object, got {loss!r}.")
        named: Loss = resolve_name(LOSSES[name].place)()
        return named
    if not hasattr(loss, "delta"):
        raise InputError(f"loss must be a name or an object with a method delta, got {loss!r}.")
    loss_object: Loss = loss
    return loss_object


def inference_of(
    inference: Any,
    memory_limit: Any,
    threads: int,
    n_trained: int = 0,
    wide: str = "propagate",
    effort: str = "fast",
) -> Inference:
    """Inference by name, or any inference object. Training visits its ``n_trained`` instances hundreds of times,
    so in training "auto" uses fast propagation, and exact inference only where a pass over all instances is within
    ``PASS_OPERATIONS`` or takes no longer than propagation; ``wide`` is the method where exact inference is too
    expensive. Predictions leave these arguments out unless the bound trained the model."""
    if callable(inference):
        inference_object: Inference = inference
        return inference_object
    if not isinstance(inference, str) or inference not in INFERENCES:
        raise InputError(f"inference must be {_listed(INFERENCES)} or an inference object, got {inference!r}.")
    settings = {"threads": threads}
    n_bytes = checks.count(memory_limit, "memory_limit", 1, unit=" of bytes")
    if inference not in ("propagate", "toulbar2"):
        settings["memory_limit"] = n_bytes
    named = resolve_name(INFERENCES[inference].place)(**settings)
    if inference == "auto" and n_trained:
        operations = min(named.operations_limit, max(PASS_OPERATIONS / n_trained, INSTANCE_OPERATIONS))
        named = replace(named, operations_limit=operations, sweeps=SWEEPS, effort=effort, wide=wide)
    made: Inference = named
    return made


def inference_for(encoder: Encoder, inference: Any, memory_limit: Any, threads: int, *trained: Any) -> Inference:
    """The structure's own inference if it has one, otherwise ``inference_of`` the parameters."""
    own = encoder.structure.inference(encoder)
    if own is None:
        return inference_of(inference, memory_limit, threads, *trained)
    if inference not in ("auto", "exact"):
        name = type(encoder.structure).__name__
        raise InputError(f"{name} has exact inference of its own; leave out inference={checks.shown(inference)}.")
    return own


def generator_of(random_state: Any) -> np.random.RandomState:
    """A random generator from ``random_state``, which is None, a seed or a generator, as in scikit-learn."""
    try:
        generator: np.random.RandomState = check_random_state(random_state)
    except ValueError:
        kinds = "None, a whole number below 2**32 or a RandomState"
        raise InputError(f"random_state must be {kinds}, got {checks.shown(random_state)}.") from None
    return generator


def only_seen(support: Any) -> bool:
    """Whether to keep only the weights whose feature and label were seen together."""
    if not isinstance(support, str) or support not in SUPPORTS:
        raise InputError(f"support must be one of {_listed(SUPPORTS)}, got {checks.shown(support)}.")
    return bool(support == "seen")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def instance_weights(sample_weight: Any, n: int) -> Floats:
    """One finite number >= 0 per instance."""
    if sample_weight is None:
        return np.ones(n)
    needs = (
        f"one finite number >= 0 for each of the {n} instances; sites cannot be weighted one by one, as a likelihood "
        "is not a sum over sites: use class_weight, or leave labels missing."
    )
    weights = checks.numbers(sample_weight, "sample_weight", needs)
    if weights.shape != (n,) or np.any(weights < 0):
        raise InputError(f"sample_weight needs {needs}")
    if not weights.any():
        raise InputError("every sample weight is zero; at least one instance must count.")
    return weights


def class_weights(
    class_weight: Any, vocabulary: LabelVocabulary, labels: Labels, times: Floats | None = None
) -> Floats:
    """The weights of the classes. "balanced" is sites / (classes * sites of the class); a candidate set counts in equal
    shares for its members, and site s counts ``times[s]`` times (default once)."""
    weights = np.ones(vocabulary.n_classes)
    if isinstance(class_weight, str) and class_weight == "balanced":
        candidates = labels.mask[labels.observed]
        share = candidates / np.maximum(candidates.sum(axis=1, keepdims=True), 1)
        if times is not None:
            share = share * times[labels.observed, None]
        count = share.sum(axis=0)
        weights = np.where(count > 0, count.sum() / (vocabulary.n_classes * np.maximum(count, 1e-300)), 1.0)
    elif not hasattr(class_weight, "items"):
        raise InputError(f"class_weight must be None, 'balanced' or a dict, got {class_weight!r}.")
    else:
        for label, weight in class_weight.items():
            where = f"class_weight[{checks.shown(label)}]"
            weights[vocabulary.index(label, "class_weight")] = checks.number(weight, where, low=0.0)
    if not weights.any():
        raise InputError("class_weight is zero for every class; at least one must count.")
    return weights


def label_weights(weights: Floats, labels: Labels) -> Floats:
    """The weight of every site's label: the mean over a candidate set, 1 where it is missing."""
    share = labels.mask / np.maximum(labels.mask.sum(axis=1, keepdims=True), 1)
    return np.where(labels.observed, share @ weights, 1.0)


def mean_per_instance(values: Floats, labels: Labels) -> Floats:
    """Mean over the labelled sites of every instance, 1 where it has none."""
    n = len(labels.ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(labels.ptr))
    count = np.bincount(owner, weights=labels.observed, minlength=n)
    total = np.bincount(owner, weights=values * labels.observed, minlength=n)
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)


# ----------------------------------------------------------------------------------------- where to start

# With hidden variables at eps_h > 0, w = 0 is a trap: all states of a hidden variable receive the same gradient there,
# so their weights stay equal for ever. Small random weights on the features that touch hidden states break the tie; a
# short likelihood fit is a better start when most labels are missing.


def starts(
    init: Any, problem: Problem, hidden: Bools, n_init: int, rng: np.random.RandomState, regulariser: Regulariser
) -> Iterator[Floats]:
    """Starting weights of every restart; only one start where all would be the same or the problem has a single
    minimum.

    ``init`` is a name of ``STARTS`` or an array; ``hidden`` marks the weights that touch hidden variables.
    """
    n = problem.n_weights
    if not isinstance(init, str):
        needs = f"{n} finite numbers, one per weight; it has shape {np.shape(init)}."
        array = checks.numbers(init, "init as an array", needs)
        if array.shape != (n,):
            raise InputError(f"init as an array needs {needs}")
        yield array.copy()
    elif init not in STARTS:
        raise InputError(f"init must be one of {', '.join(map(repr, STARTS))} or an array of weights, got {init!r}.")
    elif init == "zeros":
        yield zero_start(problem, hidden)
    else:
        random = np.ones(n, dtype=bool) if init == "random" else hidden
        for _ in range(n_starts(init, problem, hidden, n_init)):
            w = random_start(n, seed=int(rng.randint(LARGEST_SEED)), hidden=random)
            if init == "hcrf":
                w = hcrf_start(problem, w, regulariser=regulariser)
            yield w


def continued_start(moved: MovedWeights, hidden: Bools, rng: np.random.RandomState) -> Floats:
    """Weights of an earlier training; new weights of hidden variables are small and random, to break the tie between
    hidden states."""
    new = moved.new & hidden
    if not new.any():
        return moved.w
    return moved.w + random_start(len(new), seed=int(rng.randint(LARGEST_SEED)), hidden=new)


def n_starts(init: Any, problem: Problem, hidden: Bools, n_init: int) -> int:
    """How many different starts there are."""
    is_random = isinstance(init, str) and init != "zeros" and (init == "random" or bool(hidden.any()))
    if not is_random or problem.convex:
        return 1
    return n_init


def zero_start(problem: Problem, hidden: Bools) -> Floats:
    """All zeros, with a warning if that freezes the hidden states."""
    if problem.temperatures[1] > 0 and np.any(hidden):
        warnings.warn(
            "w = 0 with eps_h > 0: all states of a hidden variable get the same gradient and stay identical for ever; "
            "use init='auto' or 'random' unless hidden and labelled variables share their features.",
            MssvmWarning,
            stacklevel=2,
        )
    return np.zeros(problem.n_weights)


@runtime_checkable
class HasLikelihood(Protocol):
    """A problem that knows the likelihood of the same model and sample: temperatures 1 and no loss."""

    def likelihood(self) -> Problem: ...


def hcrf_start(problem: Problem, w0: Floats, *, regulariser: Regulariser = PLAIN, max_iter: int = 30) -> Floats:
    """Weights of a short likelihood fit from ``w0``; a problem without ``likelihood`` is fitted at temperatures 1."""
    smooth = problem.likelihood() if isinstance(problem, HasLikelihood) else problem.at(1.0, 1.0)
    return LBFGS(max_iter=max_iter).minimize(smooth, w0, regulariser=regulariser).w

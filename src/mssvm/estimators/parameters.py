"""The parameters of all members: their constructor, and the objective, decoder and training plan that follow from
them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import wraps
from pkgutil import resolve_name
from typing import Any, ClassVar, ParamSpec

from sklearn.base import BaseEstimator

from mssvm.annotators import Annotators
from mssvm.core import checks
from mssvm.core.errors import InputError
from mssvm.core.registry import DECODERS, MEMBERS, STRUCTURES, Member
from mssvm.data.chunks import is_bio
from mssvm.engines import engine_of
from mssvm.estimators import plan, prediction
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.base import Objective
from mssvm.objectives.unified import Unified
from mssvm.structures import Chain, Structure

P = ParamSpec("P")


def _with_common_parameters(constructor: Callable[..., None]) -> inspect.Signature:
    """The signature of a member's constructor, which takes the common parameters as ``**common``."""
    parameters = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters[name] = parameter
    for name, parameter in inspect.signature(StructuredParameters.__init__).parameters.items():
        parameters.setdefault(name, parameter)
    return inspect.Signature(list(parameters.values()))


def _points_to_structures(constructor: Callable[P, None]) -> Callable[P, None]:
    """The constructor, with an error for parameters of structures (``MSSVM(hidden=2)``) that says where they belong."""
    known = inspect.signature(constructor).parameters

    @wraps(constructor)
    def checked(*args: P.args, **settings: P.kwargs) -> None:
        for name, value in settings.items():
            structures = [] if name in known else _structures_with(name)
            if structures:
                member = type(args[0]).__name__
                given = [type(argument).__name__ for argument in args[1:]]
                structure = given[0] if given and given[0] in structures else structures[0]
                proper = f"{member}({structure}({name}={checks.shown(value)}))"
                raise TypeError(f"{name} is a parameter of the structure, not of {member}; write {proper}.")
        constructor(*args, **settings)

    return checked


def _structures_with(parameter: str) -> list[str]:
    """The names of the structures that have the parameter."""
    names = []
    for entry in STRUCTURES.values():
        if parameter in inspect.signature(resolve_name(entry.place)).parameters:
            names.append(entry.name)
    return names


class StructuredParameters(BaseEstimator):
    """The constructor of every member, and the objective, decoder and training plan that its parameters describe."""

    member: ClassVar[Member] = MEMBERS["UnifiedSSVM"]
    eps_y: float
    eps_h: float

    @_points_to_structures
    def __init__(
        self,
        structure: Structure | None = None,
        *,
        C: float = 1.0,
        loss: str | Loss | None = None,
        solver: Any = "auto",
        inference: Any = "auto",
        engine: Any = "auto",
        device: str | None = None,
        init: Any = "auto",
        n_init: int = 1,
        class_weight: str | Mapping[Hashable, float] | None = None,
        classes: Iterable[Hashable] | None = None,
        missing_label: Hashable = None,
        decode: str = "auto",
        penalties: Mapping[str, float] | None = None,
        l1_ratio: float = 0.0,
        support: str = "all",
        max_iter: int | None = None,
        tol: float | None = None,
        memory_limit: int = 1 << 30,
        n_jobs: int | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        annotators: Annotators | None = None,
        verbose: bool = False,
    ) -> None:
        self.structure = structure
        self.C = C
        self.loss = loss
        self.solver = solver
        self.inference = inference
        self.engine = engine
        self.device = device
        self.init = init
        self.n_init = n_init
        self.class_weight = class_weight
        self.classes = classes
        self.missing_label = missing_label
        self.decode = decode
        self.penalties = penalties
        self.l1_ratio = l1_ratio
        self.support = support
        self.max_iter = max_iter
        self.tol = tol
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.warm_start = warm_start
        self.annotators = annotators
        self.verbose = verbose

    def __init_subclass__(cls) -> None:
        """Look up the member's row in the table of members, and add the common parameters to the signature of its
        constructor, from which scikit-learn reads the names of all parameters."""
        super().__init_subclass__()
        cls.member = MEMBERS.get(cls.__name__, cls.member)
        for name, temperature in (("eps_y", cls.member.eps_y), ("eps_h", cls.member.eps_h)):
            if temperature is not None and name not in vars(cls):
                setattr(cls, name, temperature)
        if "__init__" in vars(cls):
            vars(cls)["__init__"].__signature__ = _with_common_parameters(cls.__init__)

    # ------------------------------------------------------------------------------------- overridden by members

    def _loss(self) -> Loss:
        loss = plan.loss_of(self.loss, self.member.loss)
        if self.member.loss == "zero" and not isinstance(loss, Zero):
            raise InputError(f"{type(self).__name__} is a likelihood without a loss; use LossAugmentedCRF to have one.")
        return loss

    def _objective(self, loss: Loss) -> Objective:
        return Unified(self.eps_y, self.eps_h, loss)

    _strategy: plan.Strategy | None = None  # None: one problem is solved; ModLat alternates between two

    @property
    def _predictor(self) -> prediction.Predictor:
        """argmax_y PS_h[eps_h] theta: the decoder for which the objective bounds the loss (paper Lemma 1)."""
        return prediction.AtTemperatures(0.0, self.eps_h)

    def _decoder(self, decode: str | None, exact: bool, classes: Iterable[Hashable] = ()) -> str:
        """ "map" or "marginal": the argument ``decode``, or the estimator's parameter if that is None.

        "auto" is resolved by the rule of docs/decoding.md, which depends on whether inference in training was ``exact``
        and whether ``classes`` are BIO tags, which only a labelling of the whole sequence keeps legal.
        """
        chosen = self.decode if decode is None else decode
        if chosen not in DECODERS:
            raise InputError(f"decode must be 'map', 'marginal' or 'auto', got {chosen!r}.")
        if chosen != "auto":
            return chosen
        if exact and is_bio(classes) and isinstance(plan.structure_of(self.structure), Chain):
            return "map"
        eps_y = checks.temperature(self.eps_y, "eps_y")
        eps_h = checks.temperature(self.eps_h, "eps_h")
        summed = eps_y >= 1 or (eps_h >= 1 and not exact)
        return "marginal" if summed and isinstance(self._loss(), (Zero, Hamming)) else "map"

    def _plan(self) -> plan.TrainingPlan:
        """The parameters as a description of the training."""
        return plan.TrainingPlan(
            name=type(self).__name__,
            structure=plan.structure_of(self.structure),
            objective=self._objective(self._loss()),
            strategy=self._strategy,
            solver=self.solver,
            max_iter=self.max_iter,
            tol=self.tol,
            inference=self.inference,
            memory_limit=self.memory_limit,
            engine=engine_of(self.engine, self.n_jobs, self.device),
            C=checks.number(self.C, "C", above=0.0),
            init=self.init,
            n_init=checks.count(self.n_init, "n_init", 1),
            class_weight=self.class_weight,
            classes=self.classes,
            missing_label=self.missing_label,
            penalties=self.penalties,
            l1_ratio=checks.number(self.l1_ratio, "l1_ratio", low=0.0, high=1.0),
            only_seen=plan.only_seen(self.support),
            may_hide=self.member.hidden,
            rng=plan.generator_of(self.random_state),
            verbose=bool(self.verbose),
        )

    def __sklearn_tags__(self) -> Any:
        """Ragged input, and labels that may be missing: scikit-learn's checks on plain matrices do not apply."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = "structured"
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags

"""The base class of all members: parameters, ``fit``, and the methods of a fitted model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import wraps
from operator import length_hint
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mssvm.annotators import Annotators, AnnotatorTable
from mssvm.annotators.confusion import Confusion
from mssvm.core import checks
from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.memory import one_sentence_for_memory
from mssvm.core.registry import DECODERS, MEMBERS, STRUCTURES, Member
from mssvm.data.labels import LabelVocabulary
from mssvm.data.metrics import is_bio
from mssvm.data.shards import ShardedDataset
from mssvm.data.tensors import as_arrays
from mssvm.engines import engine_of
from mssvm.estimators import diagnosis, persist, plan, prediction
from mssvm.estimators.availability import available_where
from mssvm.estimators.calibration import best_temperature
from mssvm.estimators.docstrings import documented
from mssvm.estimators.feature_names import check_names, names_of
from mssvm.estimators.hooks import FitHooks, HeldOut
from mssvm.estimators.kbest import check_k, gap_to_second, k_best
from mssvm.estimators.outcome import BOUNDED
from mssvm.estimators.plots import Plots
from mssvm.estimators.prediction import CompiledQueries, KnownLabels, PredictionRequest
from mssvm.estimators.prediction_status import PredictionStatus
from mssvm.estimators.segmenting import SegmentAnswers
from mssvm.estimators.suggestion import Pool, Suggestion, feature_lengths
from mssvm.estimators.training import Training
from mssvm.estimators.training_data import Earlier, TrainingData
from mssvm.inference.base import Planner
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.base import Objective
from mssvm.objectives.unified import Unified
from mssvm.optim import Callback, Checkpoint, Solution, Validation
from mssvm.structures import Chain, Encoder, Schema, Structure, Weight

if TYPE_CHECKING:
    from mssvm.estimators.sharded import Answers, ShardedTrainingData

P = ParamSpec("P")


def _with_common_parameters(constructor: Callable[..., None]) -> inspect.Signature:
    """The signature of a member's constructor, which takes the common parameters as ``**common``."""
    parameters = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters[name] = parameter
    for name, parameter in inspect.signature(StructuredEstimator.__init__).parameters.items():
        parameters.setdefault(name, parameter)
    return inspect.Signature(list(parameters.values()))


def _points_to_structures(constructor: Callable[P, None]) -> Callable[P, None]:
    """The constructor with an error for parameters of structures (``MSSVM(hidden=2)``) that says where to put them."""
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


def _check_one_label(estimator: StructuredEstimator) -> None:
    """Raise ``AttributeError`` unless every instance has one label, whose probabilities are one row of a matrix."""
    structure = plan.structure_of(estimator.structure)
    if structure.depth:
        name = type(structure).__name__
        raise AttributeError(
            f"{type(estimator).__name__} has no attribute 'predict_proba' on a {name}, whose instances have several "
            "labels each; predict_marginals has the probabilities of every site."
        )


@documented
class StructuredEstimator(SegmentAnswers, Plots):
    """A structured predictor learned from labels that may be missing or ambiguous.

    Minimises 1/2 |w|^2 + C sum_i weight_i U_i(w) (paper eq. 5); members differ in the temperatures and loss of U_i.

    Parameters
    ----------
    {structure}
    {common}
    """

    member: ClassVar[Member] = MEMBERS["UnifiedSSVM"]
    eps_y: float
    eps_h: float
    encoder_: Encoder
    coef_: Floats
    _compiled: CompiledQueries | None = None  # nothing is cached before a fit
    temperatures_: tuple[float, float]
    annotators_: AnnotatorTable
    confusion_: Confusion
    prediction_status_: PredictionStatus
    feature_names_in_: AnyArray

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

    # ------------------------------------------------------------------------------------- learning

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        allowed: Any = None,
        *,
        callback: Callback | None = None,
        validation: HeldOut | Validation | tuple[Any, Any] | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        time_limit: float | None = None,
    ) -> Self:
        """Learn from instances X with labels y.

        Parameters
        ----------
        X, y : sequences of instances and of their labels, or X a ``ShardedDataset``, which has both
        sample_weight : one number per instance
        allowed : labels in the shape of y
            Restricts, site by site, which labels are possible at all (MISSING: any).
        callback : function of a row of the history and the weights
            Called at every recorded iteration; training stops where it returns True.
        validation : pair (X, y), HeldOut or Validation
            Early stopping: the weights with the highest score on these data are kept. ``HeldOut`` also says after how
            many scores, ``Validation`` is any score of the weights.
        checkpoint : path or Checkpoint
            Training saves itself under this name and a number for each start, and resumes from these files if they
            exist; delete them when the model is saved.
        time_limit : float
            Seconds after which training stops with the best weights so far: a pass over the data is finished first.

        >>> clf = ms.HCRF(ms.Chain(), random_state=0).fit(X, y, time_limit=10.0)
        >>> clf.classes_.tolist()
        ['B', 'I', 'O']
        """
        if length_hint(y, 1) == 0:
            raise InputError(f"y is empty; {type(self).__name__} needs at least one instance with a label.")
        hooks = FitHooks(self._validated_by(), callback, validation, checkpoint, time_limit)
        if self.annotators is not None:
            self._fit_votes(self.annotators, X, y, sample_weight, allowed, hooks)
            return self
        with one_sentence_for_memory():
            return self._fit(X, y, sample_weight, allowed, hooks)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        allowed: Any = None,
        *,
        callback: Callback | None = None,
        validation: HeldOut | Validation | tuple[Any, Any] | None = None,
        checkpoint: Checkpoint | str | Path | None = None,
        time_limit: float | None = None,
    ) -> Self:
        """Go on learning from further instances, without the earlier ones.

        Minimises 1/2 |w - w_last|^2 + C sum_i weight_i U_i(w) over the instances given: the last weights take the place
        of zero in the regulariser. Labels and named features that appear for the first time get weights, which start
        at zero. The first call is ``fit``. Where the earlier data are still there, ``fit`` on all of them with
        ``warm_start=True`` is better: it minimises the objective of all data and takes little longer
        (docs/continue.md).

        Parameters
        ----------
        X, y, sample_weight, allowed, callback, validation, checkpoint, time_limit : see ``fit``

        >>> clf = ms.CRF(ms.Chain()).partial_fit(X[:1], y[:1])
        >>> clf.partial_fit(X, y).score(X, y)
        1.0
        """
        if not hasattr(self, "coef_"):
            return self.fit(
                X,
                y,
                sample_weight,
                allowed,
                callback=callback,
                validation=validation,
                checkpoint=checkpoint,
                time_limit=time_limit,
            )
        if self.annotators is not None:
            raise UnsupportedError("partial_fit does not learn about annotators; fit all votes again.")
        if self.l1_ratio:
            raise UnsupportedError(
                "partial_fit stays near the last weights by a squared penalty, which does not go with an L1 penalty; "
                "use l1_ratio=0, or fit all data again with warm_start=True."
            )
        if length_hint(y, 1) == 0:
            raise InputError(f"y is empty; {type(self).__name__} needs at least one instance with a label.")
        hooks = FitHooks(self._validated_by(), callback, validation, checkpoint, time_limit)
        with one_sentence_for_memory():
            earlier = Earlier(self.encoder_, self.coef_)
            return self._train(X, y, sample_weight, allowed, hooks, earlier, anchored=True)

    def _fit(self, X: Any, y: Any, sample_weight: Any, allowed: Any, hooks: FitHooks) -> Self:
        """Learn from labels, not from votes of annotators."""
        earlier = None
        if self.warm_start and hasattr(self, "coef_"):
            earlier = Earlier(self.encoder_, self.coef_)
        return self._train(X, y, sample_weight, allowed, hooks, earlier)

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        allowed: Any,
        hooks: FitHooks,
        earlier: Earlier | None,
        anchored: bool = False,
    ) -> Self:
        """Learn from labels, after an ``earlier`` training if given; ``anchored``: regularise towards its weights."""
        X = as_arrays(X)
        y = as_arrays(y)
        if earlier is not None and not isinstance(X, ShardedDataset):
            check_names(X, getattr(self, "feature_names_in_", None))
        names = names_of(X)
        data = self._data(X, y, sample_weight, allowed, earlier)
        hooks = replace(hooks, predictor=self._validated_by(data.encoder.vocabulary.classes))
        start = None
        center = None
        if data.moved is not None:
            start = plan.continued_start(data.moved, data.encoder.weight_masks.hidden, data.plan.rng)
            center = data.moved.w if anchored else None
        self.coef_, solution, self.training_ = Training(data, hooks, center=center).run(start)
        self._keep_encoder(data.encoder)
        self._keep_names(names)
        self._keep_outcome(solution)
        return self

    def _validated_by(self, classes: Iterable[Hashable] = ()) -> prediction.Predictor:
        """The predictor whose labels early stopping scores."""
        if self._decoder(None, True, classes) == "map":
            return self._predictor
        return prediction.AtTemperatures(
            1.0, self.eps_h
        )  # the label of largest marginal has the least expected Hamming loss

    def _fit_votes(
        self, annotators: Annotators, X: Any, votes: Any, sample_weight: Any, allowed: Any, hooks: FitHooks
    ) -> None:
        """Learn from the votes of several annotators."""
        from mssvm.estimators import crowd  # imported only when there are votes

        fitted = crowd.fit(self._plan(), annotators, X, votes, sample_weight, allowed, hooks)
        self.coef_ = fitted.w
        self.training_ = fitted.training
        self.annotators_ = fitted.table
        self.confusion_ = fitted.confusion
        self._keep_encoder(fitted.encoder)
        self._keep_outcome(fitted.solution)

    def _keep_outcome(self, solution: Solution) -> None:
        """Set the attributes that describe the training, and warn if it did not finish."""
        self.temperatures_ = (1.0, float(self.eps_h))
        self.history_ = solution.history
        self.n_iter_ = len(solution.trace)
        self.objective_ = self.training_["objective"]
        self.status_ = self.training_["status"]
        if solution.outcome.unfinished:
            warnings.warn(f"{self.status_} {solution.message}", ConvergenceWarning, stacklevel=4)
        elif self.training_.get("worse") or self.training_.get("nothing_learned"):
            warnings.warn(self.status_, ConvergenceWarning, stacklevel=4)

    def _data(
        self, X: Any, y: Any, sample_weight: Any, allowed: Any, earlier: Earlier | None
    ) -> TrainingData | ShardedTrainingData:
        if not isinstance(X, ShardedDataset):
            return TrainingData.of(self._plan(), X, y, sample_weight, allowed, earlier)
        from mssvm.estimators.sharded import ShardedTrainingData  # Dask is imported only when used

        if not (y is sample_weight is allowed is None):
            raise InputError("shards hold their labels; y, sample_weight and allowed are for data in memory.")
        return ShardedTrainingData.of(self._plan(), X, earlier)

    def _keep_names(self, names: AnyArray | None) -> None:
        """Keep the names of the columns of data frames, as scikit-learn does; data without names leave no attribute."""
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _keep_encoder(self, encoder: Encoder) -> None:
        """Keep the encoder of a fitted or loaded model, with a cache of the inference that predictions compile."""
        self.encoder_ = encoder
        self._compiled = CompiledQueries()

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

    @property
    def structure_(self) -> Structure:
        """The structure of the fitted model."""
        return self.encoder_.structure

    @property
    def schema_(self) -> Schema:
        """The features that were learned: their number, names and types."""
        return self.encoder_.schema

    @property
    def space_(self) -> Schema:
        """The old name of ``schema_``, for one more release."""
        warnings.warn(
            "space_ is called schema_ now; the old name will go in the next release.", FutureWarning, stacklevel=2
        )
        return self.schema_

    @property
    def labels_(self) -> LabelVocabulary:
        """The vocabulary of labels."""
        return self.encoder_.vocabulary

    @property
    def classes_(self) -> AnyArray:
        return self.encoder_.vocabulary.array

    @property
    def n_features_in_(self) -> int:
        return self.encoder_.schema.n_features

    # ------------------------------------------------------------------------------------- prediction

    def predict(
        self,
        X: Any,
        *,
        decode: str | None = None,
        hidden_sites: Any = None,
        given: Any = None,
        allowed: Any = None,
        output: str | Path | None = None,
        return_status: bool = False,
        hidden: Any = None,
    ) -> Any:
        """Labels of X, a list of arrays in the shape of y (one flat array where an instance has one label).

        ``decode`` overrides the estimator's parameter unless it is None. ``hidden_sites`` (masks in the shape of y)
        makes label sites hidden; they get their most probable label given the rest. ``given`` (labels in the shape of
        y, MISSING where unknown) holds known labels fixed, ``allowed`` restricts to candidates. X may be a
        ``ShardedDataset``; with ``output``, a folder, its labels go into one file per shard, whose names are returned.
        ``return_status`` adds a ``PredictionStatus``: whether inference was exact, converged, and by how much values
        can be off; ``prediction_status_`` is that of the last call. ``hidden`` is the old name of ``hidden_sites``, for
        one more release.

        >>> clf.predict(X)[0].tolist(), clf.predict(X, given=[["I", None, None], None])[0].tolist()
        (['B', 'I', 'O'], ['I', 'I', 'O'])
        """
        known = _known_labels(hidden_sites, given, allowed, hidden)
        if isinstance(X, ShardedDataset):
            if known is not prediction.NOTHING_KNOWN or return_status:
                raise InputError("hidden_sites, given, allowed and return_status are for data in memory.")
            return self._sharded().predict(X, decode, output)
        if output is not None:
            raise InputError("output is for a ShardedDataset; labels of data in memory are returned.")
        request = self._request(X, known)
        labels = request.encoded.labels.split(self.labels_.decode(self._decided(request, decode)))
        status = self._keep_status(request)
        return (labels, status) if return_status else labels

    def _keep_status(self, request: PredictionRequest) -> PredictionStatus:
        """Keep the status of a request's answers as that of the last call; warn where inference did not converge."""
        self.prediction_status_ = PredictionStatus.of(request.statuses)
        if not self.prediction_status_.converged.all():
            advice = "A larger memory_limit may allow exact inference; labels can still be right."
            warnings.warn(f"{self.prediction_status_} {advice}", ConvergenceWarning, stacklevel=3)
        return self.prediction_status_

    def _decided(self, request: PredictionRequest, decode: str | None) -> Ints:
        """The predicted state of every label site."""
        if self._decoder(decode, self.training_["exact"], self.labels_.classes) == "map":
            return request.states(request.map(), request.encoded.labels)
        return request.least_risk(self._risk(), *self.temperatures_)

    def _risk(self) -> Any:
        """The loss whose expectation decode="marginal" minimises: the member's own, Hamming for likelihoods."""
        loss = self._loss()
        if not hasattr(loss, "expected"):
            raise InputError(f"decode='marginal' needs a loss with a method expected, which {loss!r} has not.")
        return Hamming() if isinstance(loss, Zero) else loss

    def predict_marginals(
        self,
        X: Any,
        *,
        hidden_sites: Any = None,
        given: Any = None,
        allowed: Any = None,
        return_status: bool = False,
        hidden: Any = None,
    ) -> Any:
        """Probability of every class (last axis, in the order of ``classes_``) at every site.

        These are the marginals of p(y | x) ~ exp PS_h[eps_h] theta(x, y, h) with the member's eps_h: estimates of
        probabilities for likelihoods, scores for members with a margin until ``calibrate`` has seen held-out data.
        ``hidden_sites``, ``given``, ``allowed`` and ``return_status`` are as in ``predict`` (``hidden`` is the old name
        of the first).

        >>> clf.predict_marginals(X)[1].sum(axis=-1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        request = self._request(X, _known_labels(hidden_sites, given, allowed, hidden))
        probabilities = request.encoded.labels.split(request.marginals(*self.temperatures_))
        status = self._keep_status(request)
        return (probabilities, status) if return_status else probabilities

    @available_where(_check_one_label)
    def predict_proba(self, X: Any) -> Floats:
        """Probability of every class (columns, in the order of ``classes_``) of instances with one label each.

        >>> one = ms.HCRF(ms.SequenceLabel(hidden=2), random_state=0).fit(X, ["a", "b"])
        >>> one.predict_proba(X).shape
        (2, 2)
        """
        probabilities: Floats = self.predict_marginals(X)
        return probabilities

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit the temperature of probabilities to labelled data that training has not seen, by least log loss.

        Divides the weights by one number wherever probabilities are computed: in ``predict_marginals`` and in decisions
        by them. ``temperatures_`` has the result; decode="map" does not change. Missing labels, and labels
        unseen in training, do not count.

        The number is the best of a grid from 1/32 to 32, refined, as the loss can have several minima.
        ``training_["calibration"]`` has the ``temperature``, its ``log_loss``, and whether it is ``at_edge`` of this
        interval, where the loss still falls (as on data where the model makes no errors), and ``diagnose`` says so.

        >>> other = ms.HCRF(ms.Chain(), random_state=0).fit(X, y).calibrate(X, y)          # better: data not trained on
        >>> other.temperatures_[0] < 1.0
        True
        """
        request = self._request(X)
        shapes = request.encoded.labels.shapes
        labels = self.labels_.encode_met(self.structure_.site_labels(y, shapes), shapes)
        calibrated = best_temperature(request, labels, self.eps_h)
        self.temperatures_ = (calibrated.temperature, calibrated.temperature * float(self.eps_h))
        self.training_ = {**self.training_, "calibration": asdict(calibrated)}
        return self

    def aggregate(self, X: Any, votes: Any, *, decode: str | None = None, marginals: bool = False) -> Any:
        """The true labels of X given features and votes, in the shape of y; with ``marginals`` also probabilities.

        ``votes`` are as in ``fit``; an annotator unseen in training gets the pooled confusion table of all others.
        ``decode`` is as in ``predict``.

        >>> crowd = [{"ann": y[0], "bob": y[0]}, {"ann": y[1]}]
        >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(), random_state=0).fit(X, crowd)
        >>> fitted.aggregate(X, crowd)[0].tolist()
        ['B', 'I', 'O']
        """
        check_is_fitted(self, "confusion_")
        from mssvm.estimators import crowd  # imported only when there are votes

        weight = 1.0 if self.annotators is None else self.annotators.weight
        request = crowd.with_votes(self._request(X), self.labels_, self.confusion_, self.annotators_, weight, votes)
        labels = request.encoded.labels.split(self.labels_.decode(self._decided(request, decode)))
        self._keep_status(request)
        if not marginals:
            return labels
        return labels, request.encoded.labels.split(request.marginals(*self.temperatures_))

    def suggest(
        self, X: Any, n: int = 10, *, given: Any = None, by: str = "margin", unit: str = "site", spacing: int = 1
    ) -> list[Suggestion]:
        """What to label next: up to ``n`` sites (or instances) of X, the most useful first.

        ``given`` are labels in the shape of y that are known already (MISSING elsewhere): probabilities are those given
        them, and they are not suggested. ``by`` is "margin", "entropy", "change" (of the model, expected) or "random";
        ``unit`` is "site" or "instance". Suggested sites alternate between the labels that the model predicts, and
        of sites within ``spacing`` steps of each other only one is suggested.

        >>> [suggestion.instance for suggestion in clf.suggest(X, n=2, unit="instance")] in ([0, 1], [1, 0])
        True
        """
        request = self._request(X, KnownLabels(given=given))
        sites = request.encoded.labels
        known = np.zeros(len(sites.vars), dtype=bool)
        if given is not None:
            known = self.labels_.encode(given, sites.shapes, "given").single
        lengths = feature_lengths(request.encoded)
        pool = Pool(request.marginals(*self.temperatures_), lengths, known, sites.ptr, sites.shapes)
        return pool.suggest(n, by, unit, spacing, check_random_state(self.random_state))

    def predict_hidden(
        self, X: Any, *, hidden_sites: Any = None, given: Any = None, allowed: Any = None, hidden: Any = None
    ) -> Any:
        """States of the structure's hidden variables, each the most probable given the predicted outputs.

        ``hidden_sites``, ``given`` and ``allowed`` are as in ``predict`` (``hidden`` is the old name of the first).

        >>> [len(states) for states in clf.predict_hidden(X)]              # one between every two labels
        [2, 3]
        """
        request = self._request(X, _known_labels(hidden_sites, given, allowed, hidden))
        states = request.states(request.map(), request.encoded.hidden)
        return request.encoded.hidden.split(self.structure_.hidden_states(states))

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        hidden_sites: Any = None,
        given: Any = None,
        allowed: Any = None,
        hidden: Any = None,
    ) -> tuple[list[list[Any]], list[Floats]]:
        """The k best different outputs of every instance, best first, and their scores PS_h[eps_h] theta.

        Always exact: an error is raised where inference is not. Fewer than k if there are fewer outputs.
        ``hidden_sites``, ``given`` and ``allowed`` are as in ``predict`` (``hidden`` is the old name of the first).

        >>> labels, scores = clf.predict_topk(X, k=2)
        >>> labels[0][0].tolist(), bool(scores[0][0] > scores[0][1])
        (['B', 'I', 'O'], True)
        """
        request = self._request(X, _known_labels(hidden_sites, given, allowed, hidden))
        sites = request.encoded.labels
        first_variable = request.encoded.batch.var_ptr
        labels: list[list[Any]] = []
        scores: list[Floats] = []
        for b, outputs in enumerate(k_best(request, check_k(k))):
            label_vars = sites.vars[sites.ptr[b] : sites.ptr[b + 1]] - first_variable[b]
            decoded = []
            for _, states in outputs:
                output = self.labels_.decode(states[label_vars]).reshape(sites.shapes[b])
                decoded.append(output[()])  # one label, without an axis, as a scalar
            labels.append(decoded)
            scores.append(np.array([score for score, _ in outputs]))
        return labels, scores

    def decision_gap(self, X: Any, y: Any = None) -> Floats:
        """By how much the best output beats the second best, or the best output that agrees with y (then >= 0).

        Differences of scores PS_h[eps_h] theta per instance. y may hold missing labels and candidate sets.

        >>> (clf.decision_gap(X) > 0).tolist(), clf.decision_gap(X, y).round(6).tolist()
        ([True, True], [0.0, 0.0])
        """
        request = self._request(X)
        if y is None:
            return gap_to_second(request)
        labels = self.encoder_.encode_labels(y, request.encoded.labels.shapes)
        return np.maximum(request.map().value - request.restricted(labels).map().value, 0.0)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, decode: str | None = None) -> float:
        """Share of labelled sites predicted right; missing sites do not count, any candidate is right, and a label
        unseen in training is wrong. ``decode`` is as in ``predict``; X may be a ``ShardedDataset``.

        >>> clf.score(X, y), clf.score(X, [["B", "B", None], None])
        (1.0, 0.5)
        """
        if isinstance(X, ShardedDataset):
            return self._sharded().score(X, decode)
        request = self._request(X)
        shapes = request.encoded.labels.shapes
        sites = self.structure_.site_labels(y, shapes)
        labels = self.labels_.widened(sites, self.structure_.depth).encode(sites, shapes)
        weight = plan.instance_weights(sample_weight, len(request.encoded.batch))
        return prediction.agreement(self._decided(request, decode), labels, weight)

    def _sharded(self) -> Answers:
        check_is_fitted(self, "coef_")
        from mssvm.estimators.sharded import Answers  # Dask is imported only when used

        return Answers(self)

    def _known(self, given: Any, allowed: Any) -> KnownLabels:
        return _known_labels(None, given, allowed, None)

    def _request(self, X: Any, known: KnownLabels = prediction.NOTHING_KNOWN) -> PredictionRequest:
        check_is_fitted(self, "coef_")
        with one_sentence_for_memory():
            return self._encoded_request(as_arrays(X), known)

    def _encoded_request(self, X: Any, known: KnownLabels) -> PredictionRequest:
        check_names(X, getattr(self, "feature_names_in_", None))
        engine = engine_of(self.engine, self.n_jobs, self.device)
        settings = (self.inference, self.memory_limit, engine.threads, *self._trained_by())
        inference = plan.inference_for(self.encoder_, *settings)
        planner = Planner(inference, engine)
        return prediction.request(self.encoder_, self.coef_, planner, self._predictor, X, known, self._compiled)

    def _trained_by(self) -> tuple[Any, ...]:
        """The last arguments of ``inference_of`` (n_trained, wide, effort), so that "auto" predicts with the bound if
        it was trained with the bound: weights learned with one inference do not suit another."""
        trained = getattr(self, "training_", {})
        if BOUNDED not in trained.get("methods", {}):
            return ()
        return trained["instances"], "decompose", "normal"

    # ------------------------------------------------------------------------------------- inspection

    def diagnose(self) -> str:
        """A few sentences: whether training converged, how far from the optimum it can be, what inference it used, how
        much restarts differ, how much was labelled, and which hidden states are unused.

        >>> "converged" in clf.diagnose()
        True
        """
        check_is_fitted(self, "coef_")
        return diagnosis.paragraph(self.training_, self.labels_)

    def weights_table(self, top: int | None = None) -> list[Weight]:
        """Every weight with its block, feature and states; ``top`` keeps the largest in absolute value.

        >>> best = clf.weights_table(top=1)[0]
        >>> abs(best.value) == max(abs(row.value) for row in clf.weights_table())
        True
        """
        check_is_fitted(self, "coef_")
        rows = list(self.encoder_.weights(self.coef_))
        if top is None:
            return rows
        rows.sort(key=lambda row: -abs(row.value))
        return rows[: check_k(top)]

    def to_torch(self) -> Any:
        """The fitted model as a PyTorch module (``mssvm.torch.StructuredLinear``); its ``to_estimator`` is the
        inverse."""
        check_is_fitted(self, "coef_")
        from mssvm.torch import StructuredLinear  # torch is imported only when used

        if not isinstance(self._objective(self._loss()), Unified):
            raise UnsupportedError(f"{type(self).__name__} has an objective of its own, which the layer does not have.")
        return StructuredLinear(self)

    def to_onnx(self, path: str | Path, *, decode: str | None = None, dtype: str = "float64") -> None:
        """Write a model on chains with dense features to an ONNX file: scores, best labels and marginals.

        The file's inputs are ``x`` (batch, sites, features), padded, and ``lengths`` (batch,), both of any size, and
        for models with features of links ``edge_x`` (batch, sites, features), whose last row is unused. Its outputs are
        ``states`` (batch, sites), positions in ``classes_`` with -100 beyond the length, and ``marginals``. They agree
        with ``predict`` (``decode`` as there) and ``predict_marginals``; ``classes`` are in the metadata. ``dtype``
        "float32" makes the file half as large, but near-ties may be decided differently. Needs the extra ``onnx``.
        """
        check_is_fitted(self, "coef_")
        from mssvm.torch.onnx import estimator_to_onnx  # torch is imported only when used

        estimator_to_onnx(self, path, dtype, self._decoder(decode, self.training_["exact"], self.labels_.classes))

    def save(self, path: str | Path) -> None:
        """Write the model to ``path`` (one file, safetensors with JSON metadata); ``mssvm.load`` reads it back.

        >>> clf.save(folder / "m.safetensors")
        >>> ms.load(folder / "m.safetensors").score(X, y)
        1.0
        """
        check_is_fitted(self, "coef_")
        persist.save(self, path)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def __sklearn_tags__(self) -> Any:
        """Ragged input, and labels that may be missing: scikit-learn's checks on plain matrices do not apply."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = "structured"
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags


def _known_labels(hidden_sites: Any, given: Any, allowed: Any, hidden: Any) -> KnownLabels:
    """What a caller of ``predict`` knows about the labels; ``hidden`` is the old name of ``hidden_sites``."""
    if hidden is not None:
        if hidden_sites is not None:
            raise InputError("hidden is the old name of hidden_sites; give hidden_sites only.")
        warnings.warn(
            "hidden= is called hidden_sites= now; the old name will go in the next release.",
            FutureWarning,
            stacklevel=3,
        )
        hidden_sites = hidden
    if hidden_sites is None and given is None and allowed is None:
        return prediction.NOTHING_KNOWN
    return KnownLabels(hidden_sites, given, allowed)

"""The common face of all members: parameters, fit, and everything that can be asked of a fitted model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from mssvm.core import checks
from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.registry import DECODERS, MEMBERS, Member
from mssvm.data.labels import LabelVocabulary
from mssvm.data.shards import ShardedDataset
from mssvm.engines import engine_of
from mssvm.estimators import diagnosis, persist, plan, prediction
from mssvm.estimators.plots import Plots
from mssvm.estimators.prediction import PredictionRequest
from mssvm.estimators.training import Following, HeldOut, Training, TrainingData
from mssvm.inference.base import Planner
from mssvm.losses.losses import Hamming, Loss, Zero
from mssvm.objectives.unified import Objective, Unified
from mssvm.optim import Callback, Checkpoint, Validation
from mssvm.structures import Encoder, Schema, Structure, Weight

if TYPE_CHECKING:
    from mssvm.estimators.sharded import Answers, ShardedTrainingData

BOUNDED = "decomposition bound"  # as inference names it
SECTION = "Parameters\n----------\n"
EXAMPLE = """
>>> ms.{name}(ms.Chain({hidden}), random_state=0).fit(X, y).predict(X)[0].tolist()
['B', 'I', 'O']
"""


def _one_label(estimator: StructuredEstimator) -> bool:
    """Whether an instance has one label, so that its probabilities are a row."""
    return plan.structure_of(estimator.structure).depth == 0


class StructuredEstimator(Plots):
    """A structured predictor learned from labels that may be missing or ambiguous.

    Minimises 1/2 |w|^2 + C sum_i weight_i U_i(w) (paper eq. 5); members differ in the temperatures and loss of U_i.

    Parameters
    ----------
    structure : Structure
        What is labelled and how it hangs together; None is ``Chain()``.
    C : float
        Weight of the data against the regulariser; a sum over instances, as in the paper.
    loss : None, "hamming", "zero" or a loss object
        Delta; None is the member's own (Hamming, or none for likelihoods).
    solver : "auto", "lbfgs", "cccp", "bcfw", "cutting-plane", "subgradient", "adam" or a solver object
        "auto" is L-BFGS with exact inference, for members with a maximum at temperatures that fall to where they
        predict best ("lbfgs": further, to the minimum of the objective itself), and so it is with a convergent bound
        ("decompose"). With propagation it is "bcfw" for members with a maximum where every label is known, otherwise
        "adam": subgradient descent with Adam's rates and averaging ("subgradient" has AdaGrad's).
    inference : "auto", "exact", "decompose", "propagate", "toulbar2" or an inference object
        "auto" is exact wherever ``memory_limit`` allows. Elsewhere it is "decompose" on graphs of pairs, a convergent
        upper bound, which predicts what it trained, and "propagate", belief propagation, on other graphs and with
        solvers other than L-BFGS; ``status_`` says which.
        "toulbar2" (extra ``map``) maximises on loopy graphs, with proofs: for eps_y = eps_h = 0 (SSVM, LSSVM).
    engine : "auto", "native", "torch" or an engine object
        What runs inference; results do not depend on it beyond rounding.
    device : None or a PyTorch device such as "cuda"
        Short for ``engine=`` with the torch engine there; needs the extra ``torch``.
    init : "auto", "zeros", "random", "hcrf" or an array of weights
        "auto" starts at zero, except weights of hidden variables, which start at small random values. "hcrf" starts
        from a short likelihood fit, which helps members with a maximum when most labels are missing.
    n_init : int
        Number of random starts; the lowest objective wins. Problems with one minimum are solved once.
    class_weight : None, "balanced" or a dict
        Scales the loss of every site by the weight of its label. A likelihood has no loss, so there it scales
        each instance by the mean weight of its labels.
    classes : iterable of labels
        All classes, where y may lack some.
    missing_label : label
        A value of y that stands for a missing label, beside ``MISSING``, None and NaN.
    decode : "map", "marginal" or "auto"
        How ``predict`` and ``score`` decide unless told otherwise: "map" takes the best output as a whole, hidden
        variables eliminated at eps_h, for which the objective bounds the loss; "marginal" the labels of least expected
        loss, for Hamming the most probable label of every site. "auto" is "marginal" for likelihoods (eps_y >= 1), and
        with eps_h >= 1 where inference in training was approximate, else "map" (docs/decoding.md has the evidence).
    penalties : mapping of block of weights to strength
        Other strengths of the regulariser than 1; 0 leaves a block free.
    l1_ratio : float
        Share rho of absolute values in the regulariser, sum_j strength_j ((1 - rho) w_j^2 / 2 + rho |w_j|): 0 is the
        paper's, 1 the lasso, between lies the elastic net. Above 0 many weights become exactly 0, and the solver must
        be L-BFGS, which "auto" then is.
    support : "all" or "seen"
        "seen" leaves out, as zero, the weights of sparse or named features of a site for labels that the feature was
        never seen with, as crfsuite does by default: a small part of the weights of a large vocabulary remains.
    max_iter, tol : int, float
        Iterations and tolerance of a solver given by name; None is its own.
    memory_limit : int
        Bytes that exact inference may use.
    n_jobs : int
        Threads of an engine given by name; None is one, -1 all cores. Results do not depend on it.
    random_state : int, RandomState or None
        Seed or generator of random starts and solvers.
    warm_start : bool
        Start from the weights of the last fit, with its classes and features, and at the last temperature of L-BFGS.
        There is no ``partial_fit``: the objective is one of all data, so fit all of them again, from where it ended.
    verbose : bool
        Keep a line of progress on the terminal.

    Attributes
    ----------
    classes_, coef_, n_features_in_, n_iter_, objective_
    history_ : record array, one row per recorded iteration (objective, gap, calls, seconds, temperatures, ...)
    status_ : str, how training ended and what inference it rests on, in a sentence
    training_ : dict of figures behind ``status_`` and ``diagnose()``
    temperatures_ : those of outputs and hidden variables in probabilities, (1, eps_h) unless calibrated
    """

    member: ClassVar[Member] = MEMBERS["UnifiedSSVM"]
    eps_y: float
    eps_h: float
    encoder_: Encoder
    coef_: Floats
    temperatures_: tuple[float, float]

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
        self.verbose = verbose

    def __init_subclass__(cls) -> None:
        """Give a member its row of the table of members, and its constructor and docstring the common parameters."""
        super().__init_subclass__()
        cls.member = MEMBERS.get(cls.__name__) or cls.member
        for name, eps in (("eps_y", cls.member.eps_y), ("eps_h", cls.member.eps_h)):
            if eps is not None and name not in vars(cls):
                setattr(cls, name, eps)
        if "__init__" in vars(cls):
            own = [p for p in inspect.signature(cls.__init__).parameters.values() if p.kind is not p.VAR_KEYWORD]
            common = inspect.signature(StructuredEstimator.__init__).parameters
            merged = [*own, *(p for name, p in common.items() if name not in {p.name for p in own})]
            vars(cls)["__init__"].__signature__ = inspect.Signature(merged)
        about, _, described = inspect.cleandoc(cls.__doc__ or "").partition(SECTION)
        common_ones = inspect.cleandoc(StructuredEstimator.__doc__ or "").partition(SECTION)[2]
        first, second, rest = common_ones.partition("C : float")
        own_ones = f"{described.strip()}\n" if described else ""
        example = EXAMPLE.format(name=cls.__name__, hidden="hidden=2" if cls.member.hidden else "")
        cls.__doc__ = f"{about.strip()}\n\n{SECTION}{first}{own_ones}{second}{rest}\n{example}"

    # ------------------------------------------------------------------------------------- what members may change

    def _loss(self) -> Loss:
        loss = plan.loss_of(self.loss, self.member.loss)
        if self.member.loss == "zero" and not isinstance(loss, Zero):
            raise InputError(f"{type(self).__name__} is a likelihood without a loss; use LossAugmentedCRF to have one.")
        return loss

    def _objective(self, loss: Loss) -> Objective:
        return Unified(self.eps_y, self.eps_h, loss)

    _strategy: plan.Strategy | None = None  # one call of the solver, unless a member takes turns

    @property
    def _predictor(self) -> prediction.Predictor:
        """argmax_y PS_h[eps_h] theta: the decoder for which the objective bounds the loss (paper Lemma 1)."""
        return prediction.AtTemperatures(0.0, self.eps_h)

    def _decoder(self, decode: str | None, exact: bool) -> str:
        """One of "map" and "marginal": as asked for, else by the parameter; "auto" is the rule of docs/decoding.md.
        ``exact``: whether inference in training is."""
        chosen = self.decode if decode is None else decode
        if chosen not in DECODERS:
            raise InputError(f"decode must be 'map', 'marginal' or 'auto', got {chosen!r}.")
        if chosen != "auto":
            return chosen
        summed = self.eps_y >= 1 or (self.eps_h >= 1 and not exact)
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
            Training saves itself under this name and a number for each start, and goes on from these files if they are
            there; delete them when the model is saved.
        time_limit : float
            Seconds after which training stops with the best weights so far: a pass over the data is finished first.

        >>> clf = ms.HCRF(ms.Chain(), random_state=0).fit(X, y, time_limit=10.0)
        >>> clf.classes_.tolist()
        ['B', 'I', 'O']
        """
        again = bool(self.warm_start) and hasattr(self, "coef_")
        earlier = self.encoder_ if again else None
        data = self._data(X, y, sample_weight, allowed, earlier)
        # The largest of the posterior marginals is the best label for Hamming.
        best = self._decoder(None, exact=True) == "map"
        predictor = self._predictor if best else prediction.AtTemperatures(1.0, self.eps_h)
        follow = Following(predictor, callback, validation, checkpoint, time_limit)
        self.coef_, solution, self.training_ = Training(data, follow).run(self.coef_ if again else None)
        self.encoder_ = data.encoder
        self.temperatures_ = (1.0, float(self.eps_h))
        self.history_ = solution.history
        self.n_iter_ = len(solution.trace)
        self.objective_ = self.training_["objective"]
        self.status_ = self.training_["status"]
        if solution.outcome.unfinished:
            warnings.warn(f"{self.status_} {solution.message}", ConvergenceWarning, stacklevel=3)
        return self

    def _data(
        self, X: Any, y: Any, sample_weight: Any, allowed: Any, earlier: Encoder | None
    ) -> TrainingData | ShardedTrainingData:
        if not isinstance(X, ShardedDataset):
            return TrainingData.of(self._plan(), X, y, sample_weight, allowed, earlier)
        from mssvm.estimators.sharded import ShardedTrainingData  # Dask is imported only when used

        if not (y is sample_weight is allowed is None):
            raise InputError("shards hold their labels; y, sample_weight and allowed are for data in memory.")
        return ShardedTrainingData.of(self._plan(), X, earlier)

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
        """The structure learned on."""
        return self.encoder_.structure

    @property
    def space_(self) -> Schema:
        """What was learned about features."""
        return self.encoder_.schema

    @property
    def labels_(self) -> LabelVocabulary:
        """What was learned about labels."""
        return self.encoder_.vocabulary

    @property
    def classes_(self) -> AnyArray:
        return self.encoder_.vocabulary.array

    @property
    def n_features_in_(self) -> int:
        return self.encoder_.schema.n_features

    # ------------------------------------------------------------------------------------- asking

    def predict(
        self,
        X: Any,
        *,
        decode: str | None = None,
        hidden: Any = None,
        given: Any = None,
        allowed: Any = None,
        output: str | Path | None = None,
    ) -> Any:
        """Labels of X, a list of arrays in the shape of y (one flat array where an instance has one label).

        ``decode`` is as the estimator's parameter, which None stands for. ``hidden`` (masks in the shape of y) makes
        label sites hidden; they get their most probable label given the rest. ``given`` (labels in the shape of y,
        MISSING where unknown) holds known labels fixed, ``allowed`` restricts to candidates. X may be a
        ``ShardedDataset``; with ``output``, a folder, its labels go into one file a shard, whose names are returned.

        >>> clf.predict(X)[0].tolist(), clf.predict(X, given=[["I", None, None], None])[0].tolist()
        (['B', 'I', 'O'], ['I', 'I', 'O'])
        """
        if isinstance(X, ShardedDataset):
            if not (hidden is given is allowed is None):
                raise InputError("hidden, given and allowed are for data in memory.")
            return self._sharded().predict(X, decode, output)
        if output is not None:
            raise InputError("output is for a ShardedDataset; labels of data in memory are returned.")
        request = self._request(X, hidden, given, allowed)
        return request.encoded.labels.split(self.labels_.decode(self._decided(request, decode)))

    def _decided(self, request: PredictionRequest, decode: str | None) -> Ints:
        """The predicted state of every label site."""
        if self._decoder(decode, self.training_["exact"]) == "map":
            return request.states(request.map(), request.encoded.labels)
        loss = self._loss()
        if not hasattr(loss, "expected"):
            raise InputError(f"decode='marginal' needs a loss with a method expected, which {loss!r} has not.")
        return request.least_risk(Hamming() if isinstance(loss, Zero) else loss, *self.temperatures_)

    def predict_marginals(self, X: Any, *, hidden: Any = None, given: Any = None, allowed: Any = None) -> Any:
        """Probability of every class (last axis, in the order of ``classes_``) at every site.

        These are the marginals of p(y | x) ~ exp PS_h[eps_h] theta(x, y, h) with the member's eps_h: estimates of
        probabilities for likelihoods, scores for members with a margin until ``calibrate`` has seen held-out data.

        >>> clf.predict_marginals(X)[1].sum(axis=-1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        request = self._request(X, hidden, given, allowed)
        return request.encoded.labels.split(request.marginals(*self.temperatures_))

    @available_if(_one_label)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Floats:
        """Probability of every class (columns, in the order of ``classes_``) of instances with one label each.

        >>> one = ms.HCRF(ms.SequenceClass(hidden=2), random_state=0).fit(X, ["a", "b"])
        >>> one.predict_proba(X).shape
        (2, 2)
        """
        found: Floats = self.predict_marginals(X)
        return found

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit the temperature of probabilities to labelled data that training has not seen, by least log loss.

        Divides the weights by one number wherever probabilities are computed: in ``predict_marginals`` and in decisions
        by them. ``temperatures_`` tells it; decode="map" does not change. Labels that are missing, or that training
        never met, do not count.

        The number is the best of a grid from 1/32 to 32, refined, as the loss can have several minima.
        ``training_["calibration"]`` has the ``temperature``, its ``log_loss``, and whether it is ``at_edge`` of this
        interval, where the loss still falls (as on data that the model has no error on), and ``diagnose`` says so.

        >>> other = ms.HCRF(ms.Chain(), random_state=0).fit(X, y).calibrate(X, y)          # better: data not trained on
        >>> other.temperatures_[0] < 1.0
        True
        """
        request = self._request(X)
        labels = self.labels_.encode_met(y, request.encoded.labels.shapes)
        found = prediction.best_temperature(request, labels, self.eps_h)
        self.temperatures_ = (found.temperature, found.temperature * float(self.eps_h))
        self.training_ = {**self.training_, "calibration": asdict(found)}
        return self

    def predict_hidden(self, X: Any, *, hidden: Any = None, given: Any = None, allowed: Any = None) -> Any:
        """States of the structure's hidden variables, each the most probable given the predicted outputs.

        >>> [len(states) for states in clf.predict_hidden(X)]              # one between every two labels
        [2, 3]
        """
        request = self._request(X, hidden, given, allowed)
        return request.encoded.hidden.split(request.states(request.map(), request.encoded.hidden))

    def predict_topk(
        self, X: Any, k: int = 5, *, hidden: Any = None, given: Any = None, allowed: Any = None
    ) -> tuple[list[list[Any]], list[Floats]]:
        """The k best different outputs of every instance, best first, and their scores PS_h[eps_h] theta.

        Exact, or refused in words where inference is not exact. Fewer than k where there are fewer outputs.

        >>> labels, scores = clf.predict_topk(X, k=2)
        >>> labels[0][0].tolist(), bool(scores[0][0] > scores[0][1])
        (['B', 'I', 'O'], True)
        """
        request = self._request(X, hidden, given, allowed)
        sites, first = request.encoded.labels, request.encoded.batch.var_ptr
        labels: list[list[Any]] = []
        scores = []
        for b, found in enumerate(prediction.k_best(request, prediction.check_k(k))):
            mine = sites.vars[sites.ptr[b] : sites.ptr[b + 1]] - first[b]
            rows = [self.labels_.decode(states[mine]).reshape(sites.shapes[b]) for _, states in found]
            labels.append([row[()] for row in rows])
            scores.append(np.array([score for score, _ in found]))
        return labels, scores

    def decision_gap(self, X: Any, y: Any = None) -> Floats:
        """How far the best output is ahead: of the second best, or of the best output that agrees with y (then >= 0).

        Differences of scores PS_h[eps_h] theta per instance. y may hold missing labels and candidate sets.

        >>> (clf.decision_gap(X) > 0).tolist(), clf.decision_gap(X, y).round(6).tolist()
        ([True, True], [0.0, 0.0])
        """
        request = self._request(X)
        if y is None:
            return prediction.gap_to_second(request)
        labels = self.labels_.encode(y, request.encoded.labels.shapes)
        return np.maximum(request.map().value - request.restricted(labels.mask).map().value, 0.0)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, decode: str | None = None) -> float:
        """Share of labelled sites predicted right; missing sites do not count, any candidate is right, and a label that
        training never met is wrong. ``decode`` is as in ``predict``; X may be a ``ShardedDataset``.

        >>> clf.score(X, y), clf.score(X, [["B", "B", None], None])
        (1.0, 0.5)
        """
        if isinstance(X, ShardedDataset):
            return self._sharded().score(X, decode)
        request = self._request(X)
        labels = self.labels_.widened(y, self.structure_.depth).encode(y, request.encoded.labels.shapes)
        weight = plan.instance_weights(sample_weight, len(request.encoded.batch))
        return prediction.agreement(self._decided(request, decode), labels, weight)

    def _sharded(self) -> Answers:
        check_is_fitted(self, "coef_")
        from mssvm.estimators.sharded import Answers  # Dask is imported only when used

        return Answers(self)

    def _request(self, X: Any, hidden: Any = None, given: Any = None, allowed: Any = None) -> PredictionRequest:
        check_is_fitted(self, "coef_")
        engine = engine_of(self.engine, self.n_jobs, self.device)
        inference = plan.inference_of(self.inference, self.memory_limit, engine.threads, *self._trained_by())
        known = (self.encoder_, self.coef_, Planner(inference, engine), self._predictor)
        return prediction.request(*known, X, hidden, given, allowed)

    def _trained_by(self) -> tuple[Any, ...]:
        """What "auto" needs to know to predict as it trained: weights of one inference are not those of another."""
        trained = getattr(self, "training_", {})
        if BOUNDED not in trained.get("methods", {}):
            return ()
        return trained["instances"], "decompose", "normal"

    # ------------------------------------------------------------------------------------- looking inside

    def diagnose(self) -> str:
        """In words: whether training converged, how far from the optimum it can be, what inference it rests on, how far
        restarts lie apart, how much was labelled, and which hidden states are unused.

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
        return rows if top is None else sorted(rows, key=lambda row: -abs(row.value))[: prediction.check_k(top)]

    def to_torch(self) -> Any:
        """The fitted model as a PyTorch module (``mssvm.torch.StructuredLinear``); its ``to_estimator`` leads back."""
        check_is_fitted(self, "coef_")
        from mssvm.torch import StructuredLinear  # torch is imported only when used

        if not isinstance(self._objective(self._loss()), Unified):
            raise UnsupportedError(f"{type(self).__name__} has an objective of its own, which the layer does not have.")
        return StructuredLinear(self)

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

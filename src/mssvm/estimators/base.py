"""The common face of all members: parameters, fit, and everything that can be asked of a fitted model."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.potentials import Belief, Potentials
from mssvm.data.labels import LabelSpace
from mssvm.estimators import decoding, diagnosis, kbest, persist, resolve, training
from mssvm.inference.base import Inference
from mssvm.losses.losses import Loss
from mssvm.objectives.base import Objective
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified
from mssvm.optim import Row, Solution
from mssvm.structures import Schema, Structure, Weight


class StructuredEstimator(BaseEstimator):
    """A structured predictor learned from labels that may be missing or ambiguous.

    Minimises 1/2 |w|^2 + C sum_i weight_i U_i(w) (paper eq. 6); members differ in the temperatures and loss of U_i.

    Parameters
    ----------
    structure : Structure
        What is labelled and how it hangs together; None is ``Chain()``.
    C : float
        Weight of the data against the regulariser; a sum over instances, as in the paper.
    loss : None, "hamming", "zero" or a loss object
        Delta; None is the member's own (Hamming, or none for likelihoods).
    solver : "auto", "lbfgs", "cccp", "bcfw", "cutting-plane", "subgradient", "adam" or a solver object
        "auto" is L-BFGS with exact inference (through falling temperatures where the member has a maximum), otherwise
        "adam": subgradient descent with Adam's rates and averaging ("subgradient" has AdaGrad's).
    inference : "auto", "exact", "propagate" or an inference object
        "auto" is exact wherever ``memory_limit`` allows and belief propagation elsewhere; ``status_`` says which.
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
    penalties : mapping of block of weights to strength
        Other strengths of the regulariser than 1; 0 leaves a block free.
    support : "all" or "seen"
        "seen" leaves out, as zero, the weights of sparse or named features of a site for labels that the feature was
        never seen with, as crfsuite does by default: a small part of the weights of a large vocabulary remains.
    max_iter, tol : settings of a solver given by name; None is its own.
    memory_limit : bytes that exact inference may use.
    n_jobs : threads; results do not depend on it.
    random_state : seed or generator of random starts and solvers.
    warm_start : bool
        Start from the weights of the last fit, with its classes and features.
    verbose : bool
        Keep a line of progress on the terminal.

    Attributes
    ----------
    classes_, coef_, n_features_in_, n_iter_, objective_
    history_ : record array, one row per recorded iteration (objective, gap, calls, seconds, temperatures, ...)
    status_ : str, how training ended and what inference it rests on, in a sentence
    training_ : dict of figures behind ``status_`` and ``diagnose()``
    """

    eps_y: float
    eps_h: float
    default_loss: ClassVar[str] = "hamming"
    structure_: Structure
    space_: Schema
    labels_: LabelSpace
    coef_: Floats

    def __init__(
        self,
        structure: Structure | None = None,
        *,
        C: float = 1.0,
        loss: str | Loss | None = None,
        solver: Any = "auto",
        inference: Any = "auto",
        init: Any = "auto",
        n_init: int = 1,
        class_weight: str | Mapping[Hashable, float] | None = None,
        classes: Iterable[Hashable] | None = None,
        missing_label: Hashable = None,
        penalties: Mapping[str, float] | None = None,
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
        self.init = init
        self.n_init = n_init
        self.class_weight = class_weight
        self.classes = classes
        self.missing_label = missing_label
        self.penalties = penalties
        self.support = support
        self.max_iter = max_iter
        self.tol = tol
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    # ------------------------------------------------------------------------------------- what members may change

    def _loss(self) -> Loss:
        return resolve.loss_of(self.loss, self.default_loss)

    def _objective(self, loss: Loss) -> Objective:
        return Unified(self.eps_y, self.eps_h, loss)

    def _solve(self, problem: TrainingProblem, w0: Floats, minimise: training.Minimise) -> Solution:
        return minimise(problem, w0)

    def _best(self, inference: Inference, sample: Sample, theta: Potentials) -> Belief:
        """argmax_y PS_h[eps_h] theta: the decoder for which the objective bounds the loss (paper Lemma 1)."""
        return inference(sample.batch, theta, sample.query, 0.0, self.eps_h)

    def _check_data(self, data: training.Data) -> None:
        """Raise if the member cannot learn from these data."""

    # ------------------------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None, allowed: Any = None) -> Self:
        """Learn from instances X with labels y.

        ``sample_weight`` has one number per instance; ``allowed`` has the shape of y and restricts, site by site,
        which labels are possible at all (MISSING: any).
        """
        again = bool(self.warm_start) and hasattr(self, "coef_")
        earlier = (self.space_, self.labels_) if again else None
        data = training.read(self, X, y, sample_weight, allowed, earlier)
        self._check_data(data)
        trained = training.train(self, data, self._objective, self.coef_ if again else None, type(self).__name__)
        self.structure_, self.space_, self.labels_ = data.structure, data.space, data.labels
        self.coef_ = trained.w
        self.classes_ = data.labels.array
        self.n_features_in_ = data.space.n_features
        trace = trained.solution.trace
        self.history_ = persist.records({name: trained.solution.column(name) for name in Row._fields})
        self.n_iter_ = len(trace)
        self.objective_ = trained.summary["objective"]
        self.training_ = trained.summary
        self.status_ = diagnosis.sentence(trained.summary)
        return self

    # ------------------------------------------------------------------------------------- asking

    def predict(
        self, X: Any, *, decode: str = "map", hidden: Any = None, given: Any = None, allowed: Any = None
    ) -> Any:
        """Labels of X, a list of arrays in the shape of y (one flat array where an instance has one label).

        decode="map" gives the best output (hidden variables eliminated at the member's eps_h), "marginal" the most
        probable label of every site, which minimises the expected Hamming loss of a likelihood. ``hidden`` (masks in
        the shape of y) makes label sites hidden; they get their most probable label given the rest. ``given`` (labels
        in the shape of y, MISSING where unknown) holds known labels fixed, ``allowed`` restricts to candidates.
        """
        if decode not in ("map", "marginal"):
            raise InputError(f"decode must be 'map' or 'marginal', got {decode!r}.")
        question = self._ask(X, hidden, given, allowed)
        states = decoding.map_states(question) if decode == "map" else question.marginals().argmax(axis=1)
        return question.encoded.labels.split(self.labels_.decode(states))

    def predict_marginals(self, X: Any, *, hidden: Any = None, given: Any = None, allowed: Any = None) -> Any:
        """Probability of every class (last axis, in the order of ``classes_``) at every site.

        These are the marginals of p(y, h | x) ~ exp theta(x, y, h), all variables at temperature 1, whatever the
        member: estimates of probabilities for likelihoods, scores without calibration for members with a margin.
        """
        question = self._ask(X, hidden, given, allowed)
        return question.encoded.labels.split(question.marginals())

    def predict_hidden(self, X: Any, *, hidden: Any = None, given: Any = None, allowed: Any = None) -> Any:
        """States of the structure's hidden variables, each the most probable given the predicted outputs."""
        return decoding.hidden_states(self._ask(X, hidden, given, allowed))

    def predict_topk(
        self, X: Any, k: int = 5, *, hidden: Any = None, given: Any = None, allowed: Any = None
    ) -> tuple[list[list[Any]], list[Floats]]:
        """The k best different outputs of every instance, best first, and their scores PS_h[eps_h] theta.

        Exact, or refused in words where inference is not exact. Fewer than k where there are fewer outputs.
        """
        question = self._ask(X, hidden, given, allowed)
        sites, first = question.encoded.labels, question.encoded.batch.var_ptr
        labels: list[list[Any]] = []
        scores = []
        for b, found in enumerate(kbest.k_best(question, kbest.check_k(k))):
            mine = sites.vars[sites.ptr[b] : sites.ptr[b + 1]] - first[b]
            rows = [self.labels_.decode(states[mine]).reshape(sites.shapes[b]) for _, states in found]
            labels.append([row[()] for row in rows])
            scores.append(np.array([score for score, _ in found]))
        return labels, scores

    def decision_gap(self, X: Any, y: Any = None) -> Floats:
        """How far the best output is ahead: of the second best, or of the best output that agrees with y (then >= 0).

        Differences of scores PS_h[eps_h] theta per instance. y may hold missing labels and candidate sets.
        """
        question = self._ask(X, None, None, None)
        if y is None:
            return kbest.gap_to_second(question)
        labels = self.labels_.encode(y, question.encoded.labels.shapes)
        return np.maximum(question.map().value - question.restricted(labels.mask).map().value, 0.0)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of labelled sites predicted right; missing sites do not count, any candidate is right."""
        question = self._ask(X, None, None, None)
        labels = self.labels_.encode(y, question.encoded.labels.shapes)
        weight = training.instance_weights(sample_weight, len(question))
        return decoding.agreement(decoding.map_states(question), labels.observed, labels.mask, labels.ptr, weight)

    def _ask(self, X: Any, hidden: Any, given: Any, allowed: Any) -> decoding.Question:
        check_is_fitted(self, "coef_")
        threads = resolve.threads_of(self.n_jobs)
        inference = resolve.inference_of(self.inference, self.memory_limit, threads)
        learned = (self.structure_, self.space_, self.labels_)
        return decoding.ask(*learned, X, hidden, given, allowed, self.coef_, inference, self._best)

    # ------------------------------------------------------------------------------------- looking inside

    def diagnose(self) -> str:
        """In words: whether training converged, how far from the optimum it can be, what inference it rests on, how far
        restarts lie apart, how much was labelled, and which hidden states are unused."""
        check_is_fitted(self, "coef_")
        return diagnosis.paragraph(self.training_, self.labels_)

    def weights_table(self, top: int | None = None) -> list[Weight]:
        """Every weight with its block, feature and states; ``top`` keeps the largest in absolute value."""
        check_is_fitted(self, "coef_")
        rows = list(self.structure_.encoder(self.space_, self.labels_).weights(self.coef_))
        return rows if top is None else sorted(rows, key=lambda row: -abs(row.value))[: kbest.check_k(top)]

    def save(self, path: str | Path) -> None:
        """Write the model to one file (safetensors with JSON metadata); ``mssvm.load`` reads it back."""
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

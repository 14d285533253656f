"""The attributes and methods of a fitted model: predictions, inspection and files."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mssvm.annotators import AnnotatorTable
from mssvm.annotators.confusion import Confusion
from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.memory import memory_errors_explained
from mssvm.data.labels import LabelVocabulary
from mssvm.data.shards import ShardedDataset
from mssvm.data.tensors import as_arrays
from mssvm.engines import engine_of
from mssvm.estimators import diagnosis, persist, plan, prediction
from mssvm.estimators.availability import available_where
from mssvm.estimators.calibration import best_temperature
from mssvm.estimators.feature_names import check_names
from mssvm.estimators.kbest import check_k, gap_to_second, k_best
from mssvm.estimators.outcome import BOUNDED
from mssvm.estimators.parameters import StructuredParameters
from mssvm.estimators.plots import Plots
from mssvm.estimators.prediction import CompiledQueries, KnownLabels, PredictionRequest
from mssvm.estimators.prediction_status import PredictionStatus
from mssvm.estimators.segmenting import SegmentAnswers
from mssvm.estimators.suggestion import Pool, Suggestion, feature_lengths
from mssvm.inference.base import Planner
from mssvm.losses import Hamming, Zero
from mssvm.objectives.unified import Unified
from mssvm.structures import Encoder, Schema, Structure, Weight

if TYPE_CHECKING:
    from mssvm.estimators.sharded import Answers


def _check_one_label(estimator: StructuredParameters) -> None:
    """Raise ``AttributeError`` unless every instance has one label, whose probabilities are one row of a matrix."""
    structure = plan.structure_of(estimator.structure)
    if structure.depth:
        name = type(structure).__name__
        raise AttributeError(
            f"{type(estimator).__name__} has no attribute 'predict_proba' on a {name}, whose instances have several "
            "labels each; predict_marginals has the probabilities of every site."
        )


class FittedMethods(SegmentAnswers, Plots, StructuredParameters):
    """The attributes and methods of an estimator that was fitted or loaded."""

    encoder_: Encoder
    coef_: Floats
    _compiled: CompiledQueries | None = None  # nothing is cached before a fit
    temperatures_: tuple[float, float]
    annotators_: AnnotatorTable
    confusion_: Confusion
    prediction_status_: PredictionStatus
    feature_names_in_: AnyArray

    def _keep_encoder(self, encoder: Encoder) -> None:
        """Keep the encoder of a fitted or loaded model, with a cache of the inference that predictions compile."""
        self.encoder_ = encoder
        self._compiled = CompiledQueries()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

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
        ``return_status`` adds a ``PredictionStatus``: whether inference was exact, converged, and a bound on the error
        of its values; ``prediction_status_`` is the status of the last call. ``hidden`` is the old name of
        ``hidden_sites``, for one more release.

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

        The weights are divided by one number wherever probabilities are computed: in ``predict_marginals`` and in
        decisions that use them. ``temperatures_`` has the result; decode="map" does not change. Missing labels, and
        labels unseen in training, do not count.

        The number is the best of a grid from 1/32 to 32, refined, as the loss can have several minima.
        ``training_["calibration"]`` has the ``temperature``, its ``log_loss``, and whether it is ``at_edge`` of this
        interval, where the loss still falls (as on data where the model makes no errors), and ``diagnose`` says so.

        >>> other = ms.HCRF(ms.Chain(), random_state=0).fit(X, y).calibrate(X, y)          # better: data not trained on
        >>> other.temperatures_[0] < 1.0
        True
        """
        request = self._request(X)
        shapes = request.encoded.labels.shapes
        labels = self.labels_.encode_seen(self.structure_.site_labels(y, shapes), shapes)
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
            known = self.encoder_.encode_labels(given, sites.shapes, "given").single
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
        """By how much the best output beats the second best or, with y, the best output that agrees with y (then >= 0).

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
        with memory_errors_explained():
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
        the model was trained with the bound: weights learned with one inference do not suit another."""
        trained = getattr(self, "training_", {})
        if trained.get("methods", {}).keys().isdisjoint(BOUNDED):
            return ()
        return trained["instances"], "decompose", "normal"

    # ------------------------------------------------------------------------------------- inspection

    def diagnose(self) -> str:
        """A few sentences: whether training converged, how far from the optimum it can be, which inference it used, how
        much restarts differ, how many sites were labelled, and which hidden states are unused.

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

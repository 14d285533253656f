"""Predictions of models on ``Segments`` beyond labels of sites: spans with probabilities, boundaries, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.checks import count
from mssvm.core.errors import InputError
from mssvm.core.segments import SpanPotentials, segmentation_of
from mssvm.estimators import plan
from mssvm.estimators.availability import available_where
from mssvm.estimators.prediction import AtTemperatures
from mssvm.structures import Segments

if TYPE_CHECKING:
    from mssvm.estimators.prediction import PredictionRequest


class Segment(NamedTuple):
    """Sites start .. stop - 1 with a label, and the probability that the segmentation has exactly this segment."""

    start: int
    stop: int
    label: Any
    probability: float


def _check_segments(estimator: Any) -> None:
    """Raise ``AttributeError`` unless the structure is one of segments."""
    structure = plan.structure_of(estimator.structure)
    if not isinstance(structure, Segments):
        name = type(structure).__name__
        raise AttributeError(
            f"{type(estimator).__name__} has no segments on a {name}; use the structure Segments, or predict_marginals "
            "for the probabilities of every site."
        )


class SegmentAnswers:
    """The methods of estimators whose structure is ``Segments``."""

    if TYPE_CHECKING:
        encoder_: Any
        temperatures_: tuple[float, float]
        labels_: Any
        training_: Any
        _request: Any
        _known: Any
        _decoder: Any
        _keep_status: Any
        _risk: Any

    @available_where(_check_segments)
    def predict_segments(
        self, X: Any, *, decode: str | None = None, given: Any = None, allowed: Any = None
    ) -> list[list[Segment]]:
        """The segments (start, stop, label, probability) of every instance of X, in order.

        ``decode``, ``given`` and ``allowed`` are as in ``predict``. The probability is that of a segment with exactly
        these sites and this label, under the distribution of ``predict_marginals``.

        >>> segmenter = ms.CRF(ms.Segments(max_length=3)).fit(X, y)
        >>> [segment[:3] for segment in segmenter.predict_segments(X)[0]]
        [(0, 1, 'B'), (1, 2, 'I'), (2, 3, 'O')]
        """
        request: PredictionRequest = self._request(X, self._known(given, allowed))
        layout = self.encoder_.structure.inference(self.encoder_).layout
        if self._decoder(decode, self.training_["exact"]) == "map":
            best = request.map()
        else:
            best = request.least_risk_outputs(self._risk(), *self.temperatures_)
        spans = segmentation_of(layout, request.encoded.batch, best.mu.unary)
        scored = SpanPotentials(request.theta.unary, request.theta.tables, spans, np.zeros(len(spans)))
        bound = AtTemperatures(*self.temperatures_)(request.planner, request.encoded.inputs, request.query)
        belief = bound(scored)
        request.statuses.append(belief.status)
        self._keep_status(request)
        probabilities = np.asarray(belief.extras.get("spans", np.zeros(0)))
        labels = self.labels_.decode(spans.label).tolist()
        out: list[list[Segment]] = [[] for _ in range(len(request.encoded.batch))]
        for k, b in enumerate(spans.instance.tolist()):
            segment = Segment(int(spans.start[k]), int(spans.stop[k]), labels[k], float(min(probabilities[k], 1.0)))
            out[b].append(segment)
        return out

    @available_where(_check_segments)
    def predict_boundaries(self, X: Any, *, given: Any = None, allowed: Any = None) -> list[Floats]:
        """The probability, at every site, that a segment begins there; ``given`` and ``allowed`` as in ``predict``.

        >>> segmenter = ms.CRF(ms.Segments(max_length=3)).fit(X, y)
        >>> segmenter.predict_boundaries(X)[0].round(6).tolist()[0]
        1.0
        """
        request: PredictionRequest = self._request(X, self._known(given, allowed))
        unary = request.posterior(*self.temperatures_).mu.unary
        assert request.encoded.segments is not None
        begins = unary[request.encoded.segments.boundary + 1]
        self._keep_status(request)
        split: list[Floats] = request.encoded.labels.split(begins)
        return split

    @available_where(_check_segments)
    def sample_segments(
        self, X: Any, n: int = 1, *, given: Any = None, allowed: Any = None, random_state: Any = None
    ) -> list[list[list[tuple[int, int, Any]]]]:
        """``n`` segmentations of every instance, independent draws from the distribution of ``predict_marginals``.

        A segmentation is a list of (start, stop, label). ``given`` and ``allowed`` are as in ``predict``.

        >>> segmenter = ms.CRF(ms.Segments(max_length=3)).fit(X, y)
        >>> len(segmenter.sample_segments(X, n=4, random_state=0)[0])
        4
        """
        request: PredictionRequest = self._request(X, self._known(given, allowed))
        draws = count(n, "n", 1)
        seed = int(plan.generator_of(random_state).randint(plan.LARGEST_SEED))
        bound = AtTemperatures(*self.temperatures_)(request.planner, request.encoded.inputs, request.query)
        if not hasattr(bound, "sample"):
            raise InputError("samples need the structure's own inference; leave out the parameter inference.")
        classes = self.labels_.classes
        out = []
        for rows in bound.sample(request.theta, draws, seed):
            out.append([_spans_of(row, classes) for row in rows])
        return out


def _spans_of(row: Any, classes: tuple[Any, ...]) -> list[tuple[int, int, Any]]:
    """Spans from a row of states: the label of every site, plus the number of labels where a segment begins."""
    starts = np.flatnonzero(row >= len(classes)).tolist()
    stops = [*starts, len(row)][1:]
    return [(a, b, classes[int(row[a]) - len(classes)]) for a, b in zip(starts, stops, strict=True)]

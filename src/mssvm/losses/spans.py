"""The loss on segments: true spans that are missed, and predicted spans that are wrong.

Delta(s_i, s) = number of known spans that s does not have + number of segments of s that are known to be wrong

A segment is known to be wrong where it begins inside a known span or at the first site of one that it does not equal.
With all spans known this is the size of the symmetric difference. Sites without boundaries cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError
from mssvm.core.potentials import Potentials
from mssvm.core.segments import SegmentLayout, SpanPotentials, Spans
from mssvm.core.topology import Batch
from mssvm.losses.base import ScaledLoss, refuse_site_weights


@dataclass(frozen=True)
class SpanLoss(ScaledLoss):
    """Number of wrong and of missed spans times ``scale``; ``normalize`` divides by the number of labelled sites.

    For ``Segments`` only, which fill in the ``layout``.

    >>> ms.SSVM(ms.Segments(max_length=3), loss=ms.losses.SpanLoss(scale=2.0)).fit(X, y).score(X, y)
    1.0
    """

    normalize: bool = False
    scale: float = 1.0
    layout: SegmentLayout | None = None

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        if self.layout is None:
            raise InputError("SpanLoss is for the structure Segments; use 'hamming' with others.")
        refuse_site_weights("SpanLoss", output, site_weight)
        unary = np.zeros(batch.n_states)
        per_instance = self._per_instance(batch, output)
        columns: list[tuple[int, int, int, int]] = []
        costs: list[float] = []
        for b, n in enumerate(self.layout.sites(batch).tolist()):
            first = int(batch.unary_ptr[batch.var_ptr[b]])
            labels = truth[first : first + n * self.layout.labels].reshape(n, -1)
            at = first + n * self.layout.labels
            boundary = truth[at : at + 2 * n].reshape(n, 2)
            spans = known_spans(labels, boundary)
            cost = float(per_instance[b])
            inside = boundary[:, 0] & ~boundary[:, 1]
            starts = at + 1 + 2 * np.arange(n)
            # A segment is wrong if it begins inside a span, or at the first site of one. Every segmentation begins a
            # segment at the first site, so that boundary holds the constant: all spans are missed. A segment that
            # equals a span takes both costs back.
            unary[starts[inside]] = cost
            unary[starts[[start for start, _, _ in spans]]] = cost
            unary[starts[0]] += cost * len(spans)
            for start, stop, label in spans:
                columns.append((b, start, stop, label))
                costs.append(-2.0 * cost)
        spans_of_batch = Spans(*np.array(columns, dtype=np.int64).reshape(-1, 4).T.copy())
        return SpanPotentials(unary, np.zeros(batch.n_table_entries), spans_of_batch, np.array(costs))

    def _per_instance(self, batch: Batch, output: Bools) -> Floats:
        """By instance, the cost of one wrong or missed span."""
        if not self.normalize:
            return np.full(len(batch), self.scale)
        labelled = np.bincount(batch.owner, weights=output, minlength=len(batch))
        return np.asarray(self.scale / np.maximum(labelled, 1.0))


def known_spans(labels: Bools, boundary: Bools) -> list[tuple[int, int, int]]:
    """Spans (start, stop, label) whose boundaries and label are known, from two masks of what labels admit: ``labels``
    (sites, classes), and ``boundary`` (sites, 2): whether a site may be inside a segment, and whether one may begin
    there."""
    n = len(labels)
    single = labels.sum(axis=1) == 1
    begins = boundary[:, 1] & ~boundary[:, 0]
    free = boundary[:, 1] & boundary[:, 0]
    cuts = np.append(np.flatnonzero(begins | free), n)
    out = []
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        closed = stop == n or bool(begins[stop])
        if closed and begins[start] and single[start:stop].all():
            states = labels[start:stop].argmax(axis=1)
            if np.all(states == states[0]):
                out.append((start, stop, int(states[0])))
    return out

"""The status of a prediction: whether inference was exact, whether it converged, and by how much answers can be off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.potentials import Status


@dataclass(frozen=True, eq=False)
class PredictionStatus:
    """Per instance: the ``method`` of inference, whether its answer is ``exact``, whether it ``converged``.

    ``gap`` bounds how far the value of the answer can be from the true one (the score of the best labelling, or the log
    partition function), NaN where no bounds were computed. Printed, it is one sentence.

    >>> labels, status = clf.predict(X, return_status=True)
    >>> bool(status.exact.all()), str(status).startswith("Inference was exact")
    (True, True)
    """

    method: tuple[str, ...]
    exact: Bools
    converged: Bools
    gap: Floats

    @classmethod
    def of(cls, statuses: Sequence[Status]) -> PredictionStatus:
        """Of all inference calls that led to one answer: exact and converged if every one was, the widest gap."""
        first = statuses[0]
        exact = np.logical_and.reduce([status.exact for status in statuses])
        converged = np.logical_and.reduce([status.converged for status in statuses])
        gap = np.maximum.reduce([status.upper - status.lower for status in statuses])
        return cls(first.method, exact, converged, np.where(exact, 0.0, gap))

    @classmethod
    def joined(cls, parts: Sequence[PredictionStatus]) -> PredictionStatus:
        """The status of the instances of several calls together."""
        return cls(
            tuple(name for part in parts for name in part.method),
            np.concatenate([part.exact for part in parts]),
            np.concatenate([part.converged for part in parts]),
            np.concatenate([part.gap for part in parts]),
        )

    def __str__(self) -> str:
        names = ", ".join(sorted(set(self.method))) or "none"
        n = len(self.exact)
        if self.exact.all():
            return f"Inference was exact ({names})."
        text = f"Inference was approximate on {n - int(self.exact.sum())} of {n} instances ({names})"
        stopped = n - int(self.converged.sum())
        text += f"; it did not converge on {stopped}" if stopped else "; it converged"
        known = self.gap[~self.exact]
        known = known[np.isfinite(known)]
        if len(known):
            text += f"; values are within {known.max():.3g} of the true ones"
        return text + "."

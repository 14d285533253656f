"""Exact inference on semi-Markov models, whose batches are laid out by ``core.segments``."""

from __future__ import annotations

from dataclasses import dataclass

from mssvm.core.errors import UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.segments import SegmentLayout
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import Engine, Plan, SegmentingEngine


@dataclass(frozen=True)
class SegmentInference(Settings):
    """PS_segmentations[eps_y] PS_hidden[eps_h] theta, exact at every pair of temperatures.

    The segmentation is the output: site labels are a function of it, and what is known of them restricts it.
    """

    layout: SegmentLayout

    def plan(self, batch: Batch, engine: Engine | None = None) -> Plan:
        chosen = engine or engine_of()
        if not isinstance(chosen, SegmentingEngine):
            raise UnsupportedError(
                f"Segments run on the native and torch engines only, not on {chosen.name!r}; leave out engine, and "
                "install a build with compiled kernels."
            )
        return chosen.segments(batch, self.layout)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        return self.plan(batch).bind(query, eps_y, eps_h)(theta)

"""The engine for CPUs: kernels in C++, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mssvm.core.arrays import Bools, Ints
from mssvm.core.potentials import Potentials
from mssvm.core.segments import SegmentLayout
from mssvm.core.terms import Term
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch
from mssvm.engines.base import ExactPlan, ExactSettings, Features
from mssvm.engines.messages import MessagePlan
from mssvm.engines.native.anneal import anneal
from mssvm.engines.native.exact import NativePlan
from mssvm.engines.native.features import LinearFeatures
from mssvm.engines.native.messages import NativeMessagePlan
from mssvm.engines.native.segments import SegmentPlan
from mssvm.engines.native.trws import ChainPlan


@dataclass(frozen=True)
class NativeEngine(Workers):
    """Scaled probabilities in vector lanes where they are safe, scores elsewhere; threads never change a result."""

    log_space: bool = False  # eliminate in log space throughout, as if no range were safe
    name = "native"

    def exact(self, batch: Batch, settings: ExactSettings) -> ExactPlan:
        return NativePlan(batch, settings, self, self.log_space)

    def messages(self, batch: Batch) -> MessagePlan:
        return NativeMessagePlan(batch, self)

    def chains(self, batch: Batch, instances: Ints, hidden: Bools | None) -> ChainPlan:
        return ChainPlan(batch, instances, self, hidden)

    def anneal(
        self, batch: Batch, theta: Potentials, allowed: Bools, instances: Ints, rounds: Ints, states: Ints
    ) -> None:
        """Replace the states of the named pairwise instances by labellings that score no less."""
        anneal(batch, theta, allowed, instances, rounds, states, self.idle)

    def segments(self, batch: Batch, layout: SegmentLayout) -> SegmentPlan:
        return SegmentPlan(batch, layout, self)

    def linear(self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> Features:
        return LinearFeatures(batch, terms, offset, n_weights)

"""How U+(w) - U-(w) and its gradient are evaluated on a block: one mathematics, three ways to compute it.

    JoinedDifference       the engine goes from weights to values and gradient in one call
    LinearMinusDifference  single labels, nothing hidden: U- is linear in theta and its marginals are constant
    PairedDifference       both parts by inference, in one call that may share work

``bind_difference`` chooses once for a block and a pair of temperatures. All three compute

    sum_i c_i (U_i+ - U_i-)     and     sum_i c_i (d theta / d w)^T (mu_i+ - mu_i-).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Marginals, Potentials, ScoreIndex
from mssvm.core.topology import Batch
from mssvm.engines.base import Joined, JoiningFeatures
from mssvm.objectives.base import Parts
from mssvm.objectives.blocks import Block
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.unified import UnifiedParts


class Difference(Protocol):
    """plus - minus of every instance of a block at weights w, their weighted sum, and its gradient."""

    def __call__(self, w: Floats) -> Evaluation: ...


def bind_difference(block: Block, parts: Parts, single_labels: bool) -> Difference:
    """The cheapest way for this block; ``single_labels``: the labels admit one state of every variable."""
    joined = _joined_by_engine(block, parts)
    if joined is not None:
        return JoinedDifference(block, joined)
    if single_labels and block.sample.evidence is None and isinstance(parts, UnifiedParts):
        return LinearMinusDifference.of(block, parts)
    return PairedDifference(block, parts)


def _joined_by_engine(block: Block, parts: Parts) -> Joined | None:
    """The engine's own way from weights to values and gradient, if it has one for this model and inference."""
    if not isinstance(parts, UnifiedParts) or not isinstance(block.features, JoiningFeatures) or not block.one_scale:
        return None
    if block.sample.evidence is not None:
        return None
    return block.features.joined(parts.pair, parts.delta)


@dataclass(frozen=True, eq=False)
class PairedDifference:
    """Both parts by inference."""

    block: Block
    parts: Parts

    def __call__(self, w: Floats) -> Evaluation:
        both = self.parts.difference(self.block.features.forward(w))
        self.block.check(both.minus)
        return self.block.evaluation(
            both.plus - both.minus,
            both.mu,
            (both.plus_status, both.minus_status),
            plus_calls=len(self.block),
            minus_calls=len(self.block),
            floored=both.floored,
        )


@dataclass(frozen=True, eq=False)
class LinearMinusDifference:
    """U+ by inference, U- by a sum of scores: its gradient is the same at all w."""

    block: Block
    parts: UnifiedParts
    minus: LinearMinus
    minus_gradient: Floats

    @classmethod
    def of(cls, block: Block, parts: UnifiedParts) -> LinearMinusDifference:
        batch = block.sample.batch
        labels = parts.minus(Potentials.zeros(batch))
        block.check(labels.value)
        return cls(block, parts, LinearMinus(batch, labels.mu), block.gradient(labels.mu))

    def __call__(self, w: Floats) -> Evaluation:
        n = len(self.block)
        theta = self.block.features.forward(w)
        minus = self.minus.value(theta, n)
        self.block.check(minus)
        plus, floored = self.parts.plus(theta, known_minus=minus)
        evaluation = self.block.evaluation(
            plus.value - minus, plus.mu, (plus.status,), plus_calls=n, minus_calls=n, floored=floored
        )
        gradient = evaluation.gradient - self.minus_gradient
        return replace(evaluation, gradient=gradient, converged=evaluation.converged + n)


@dataclass(frozen=True, eq=False)
class JoinedDifference:
    """Values and gradient in one call of the engine, which offers it only where inference is exact."""

    block: Block
    joined: Joined

    def __call__(self, w: Floats) -> Evaluation:
        n = len(self.block)
        plus, minus, gradient = self.joined(w)
        self.block.check(minus)
        value = plus - minus
        self.block.check(value)
        scale = self.block.scale
        return Evaluation(
            values=value,
            total=float(scale @ value),
            gradient=scale[0] * gradient,
            plus_calls=n,
            minus_calls=n,
            converged=2 * n,
        )


class LinearMinus:
    """U- of single labels with nothing hidden, a linear function: <mu, theta> with constant marginals mu."""

    def __init__(self, batch: Batch, mu: Marginals) -> None:
        entries = np.flatnonzero(mu.tables)
        labels = np.flatnonzero(mu.unary)
        # A label marks one state of every variable; variables that only hold scores may have no state marked.
        owner = batch.owner if len(labels) == batch.n_vars else batch.owner[batch.state_var[labels]]
        self.index = ScoreIndex(labels, owner, *batch.mu_entries(entries), mu.tables[entries])

    def value(self, theta: Potentials, n: int) -> Floats:
        """<mu_i, theta_i> of each of n instances."""
        return theta.sums(self.index, n)

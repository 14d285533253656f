"""The unified objective (paper eq. 5): the difference of two nested power sums.

    U_i  = U_i+ - U_i-
    U_i+ = PS_y[eps_y] PS_h[eps_h] (theta + Delta)        all allowed states
    U_i- = PS_y[eps_y] PS_h[eps_h]  theta                 outputs restricted to what the labels admit
    dU_i/dtheta = mu+ - mu-                               (Lemma 2)

With single labels U_i- is the paper's PS_h[eps_h] theta(y_i, .); with candidate sets it is the power sum over the set.
Both parts are one call of the same inference with different masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.checks import temperature
from mssvm.core.potentials import Belief, Marginals, Potentials
from mssvm.core.registry import LOSSES, MEMBERS
from mssvm.engines.base import Pair, Paired, Plan
from mssvm.inference.base import Planner
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.base import Parts
from mssvm.objectives.sample import Sample


@dataclass(frozen=True)
class Unified:
    """U(theta; eps_y, eps_h) with a loss Delta: the family's two dials."""

    eps_y: float
    eps_h: float
    loss: Loss = field(default_factory=Hamming)

    def __post_init__(self) -> None:
        temperature(self.eps_y, "eps_y")
        temperature(self.eps_h, "eps_h")

    def at(self, eps_y: float, eps_h: float) -> Unified:
        """The same objective at other temperatures."""
        return replace(self, eps_y=eps_y, eps_h=eps_h)

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> UnifiedParts:
        pair = plan.pair(sample.query, sample.truth_query, self.eps_y, self.eps_h)
        free = isinstance(self.loss, Zero) and sample.extra_loss is None
        return UnifiedParts(sample, None if free else delta, pair)


@dataclass(frozen=True, eq=False)
class UnifiedParts(Parts):
    """U+ and U- on a sample; without a loss (``delta`` None) they differ in their masks alone."""

    sample: Sample
    delta: Potentials | None
    pair: Pair

    def minus(self, theta: Potentials) -> Belief:
        """U- and its gradient."""
        return self.pair.minus(theta)

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        """U+ and its gradient, and the number of instances floored at U-.

        U+ >= U- always, because the labels are among the states that U+ ranges over and cost no loss. Approximate
        inference can miss that; such instances take the value and gradient of U- instead, so U_i >= 0 holds.
        """
        belief = self.pair.plus(theta if self.delta is None else theta + self.delta)
        if bool(belief.status.exact.all()):
            return belief, 0
        floor = self.minus(theta)
        low = (belief.value < floor.value) & ~belief.status.exact
        return (_take(self.sample, belief, floor, low), int(low.sum())) if low.any() else (belief, 0)

    def difference(self, theta: Potentials) -> Paired:
        """U+ and U- together, floored likewise: the difference and its gradient are then 0."""
        found = self.pair(theta if self.delta is None else theta + self.delta, theta)
        low = (found.plus < found.minus) & ~found.plus_status.exact
        if not low.any():
            return found
        mu = found.mu.scaled(self.sample.batch, (~low).astype(np.float64))
        return replace(found, plus=np.maximum(found.plus, found.minus), mu=mu, floored=int(low.sum()))


def _take(sample: Sample, belief: Belief, other: Belief, instances: Bools) -> Belief:
    """``belief`` with value and gradient of ``other`` on the masked instances."""
    states, entries = instances[sample.batch.owner][sample.batch.state_var], instances[sample.batch.mu_owner]
    mu = Marginals(
        np.where(states, other.mu.unary, belief.mu.unary), np.where(entries, other.mu.tables, belief.mu.tables)
    )
    return replace(belief, value=np.where(instances, other.value, belief.value), mu=mu)


def of_member(name: str, loss: Loss | None = None) -> Unified:
    """The objective of a member by its row of the paper's Table 1; without a loss, with the row's own."""
    row = MEMBERS[name]
    assert row.eps_y is not None and row.eps_h is not None, f"{name} has temperatures of its own"
    return Unified(row.eps_y, row.eps_h, loss or LOSSES[row.loss].load()())


lssvm = partial(of_member, "LSSVM")
mssvm = partial(of_member, "MSSVM")
hcrf = partial(of_member, "HCRF")
loss_augmented_likelihood = partial(of_member, "LossAugmentedCRF")


# Without hidden variables eps_h has nothing to act on, and the rows above become:
ssvm = lssvm
crf = hcrf
softmax_margin = loss_augmented_likelihood

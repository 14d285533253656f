"""The unified objective (paper eq. 5): the difference of two nested power sums on a labelled sample.

    U_i  = U_i+ - U_i-
    U_i+ = PS_y[eps_y] PS_h[eps_h] (theta + Delta)        all allowed states
    U_i- = PS_y[eps_y] PS_h[eps_h]  theta                 outputs restricted to what the labels admit
    dU_i/dtheta = mu+ - mu-                               (Lemma 2)

With single labels U_i- is the paper's PS_h[eps_h] theta(y_i, .); with candidate sets it is the power sum over the set;
with soft labels (``Sample.evidence``, the votes of annotators) their log likelihood is added to its scores.
Both parts are one call of the same inference with different masks. The members of the family at the end of the file
are the rows of the paper's Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pkgutil import resolve_name

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.checks import temperature
from mssvm.core.potentials import Belief, Marginals, Potentials
from mssvm.core.registry import LOSSES, MEMBERS
from mssvm.engines.base import Pair, Paired, Plan
from mssvm.inference.base import Planner
from mssvm.losses import Hamming, Loss, Zero, ZeroOne
from mssvm.objectives.base import Parts
from mssvm.objectives.sample import Sample
from mssvm.objectives.zero_one import ZeroOneParts


@dataclass(frozen=True)
class Unified:
    """U(theta; eps_y, eps_h) with a loss Delta: the two temperatures choose the member of the family."""

    eps_y: float
    eps_h: float
    loss: Loss = field(default_factory=Hamming)

    def __post_init__(self) -> None:
        temperature(self.eps_y, "eps_y")
        temperature(self.eps_h, "eps_h")

    def at(self, eps_y: float, eps_h: float) -> Unified:
        """The same objective at other temperatures."""
        return replace(self, eps_y=eps_y, eps_h=eps_h)

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> UnifiedParts | ZeroOneParts:
        if isinstance(self.loss, ZeroOne):
            return ZeroOneParts.of(sample, delta, plan, self.eps_y, self.eps_h, self.loss.scale)
        pair = plan.pair(sample.query, sample.truth_query, self.eps_y, self.eps_h)
        if isinstance(self.loss, Zero) and sample.extra_loss is None:
            return UnifiedParts(sample, None, pair)
        return UnifiedParts(sample, delta, pair)


@dataclass(frozen=True, eq=False)
class UnifiedParts(Parts):
    """U+ and U- on a sample; without a loss (``delta`` None) they differ in their masks alone."""

    sample: Sample
    delta: Potentials | None
    pair: Pair

    def minus(self, theta: Potentials) -> Belief:
        """U- and its gradient."""
        return self.pair.minus(self._observed(theta))

    def _observed(self, theta: Potentials) -> Potentials:
        """The scores of U-: theta, with the evidence of soft labels."""
        evidence = self.sample.evidence
        return theta if evidence is None else replace(theta, unary=theta.unary + evidence)

    def augmented(self, theta: Potentials) -> Potentials:
        """theta + Delta."""
        return theta if self.delta is None else theta + self.delta

    def plus(self, theta: Potentials, known_minus: Floats | None = None) -> tuple[Belief, int]:
        """U+ and its gradient, and the number of instances floored at U-.

        U+ >= U- always, because the labels are among the states that U+ ranges over and cost no loss. Approximate
        inference can violate that; such instances take the value and gradient of U- instead, so U_i >= 0 holds. Where
        the values of U- are known, its inference runs only if there is such an instance.
        """
        belief = self.pair.plus(self.augmented(theta))
        approximate = ~belief.status.exact
        if not approximate.any():
            return belief, 0
        if known_minus is not None and not np.any((belief.value < known_minus) & approximate):
            return belief, 0
        floor = self.minus(theta)
        too_low = (belief.value < floor.value) & approximate
        if not too_low.any():
            return belief, 0
        return _replace_instances(self.sample, belief, floor, too_low), int(too_low.sum())

    def difference(self, theta: Potentials) -> Paired:
        """U+, U- and mu+ - mu- in one call; instances floored as in ``plus`` have difference and gradient 0."""
        both = self.pair(self.augmented(theta), self._observed(theta))
        too_low = (both.plus < both.minus) & ~both.plus_status.exact
        if not too_low.any():
            return both
        mu = both.mu.scaled(self.sample.batch, (~too_low).astype(np.float64))
        return replace(both, plus=np.maximum(both.plus, both.minus), mu=mu, floored=int(too_low.sum()))


def _replace_instances(sample: Sample, belief: Belief, substitute: Belief, instances: Bools) -> Belief:
    """``belief`` with value and gradient of ``substitute`` on the masked instances."""
    states = instances[sample.batch.owner][sample.batch.state_var]
    entries = instances[sample.batch.mu_owner]
    unary = np.where(states, substitute.mu.unary, belief.mu.unary)
    tables = np.where(entries, substitute.mu.tables, belief.mu.tables)
    value = np.where(instances, substitute.value, belief.value)
    return replace(belief, value=value, mu=Marginals(unary, tables))


def of_member(name: str, loss: Loss | None = None) -> Unified:
    """The objective of a member by its row of the paper's Table 1, with the loss of that row unless another is
    given."""
    row = MEMBERS[name]
    assert row.eps_y is not None and row.eps_h is not None, f"{name} has temperatures of its own"
    return Unified(row.eps_y, row.eps_h, loss or resolve_name(LOSSES[row.loss].place)())


lssvm = partial(of_member, "LSSVM")
mssvm = partial(of_member, "MSSVM")
hcrf = partial(of_member, "HCRF")
loss_augmented_likelihood = partial(of_member, "LossAugmentedCRF")


# Without hidden variables eps_h has no effect, and the rows above have other names:
ssvm = lssvm
crf = hcrf
softmax_margin = loss_augmented_likelihood

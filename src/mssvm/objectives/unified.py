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

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.potentials import Belief, Marginals, Potentials
from mssvm.core.power import check_temperature
from mssvm.core.topology import Batch
from mssvm.inference.base import Contrast, Inference
from mssvm.losses.losses import Hamming, Loss, Zero
from mssvm.objectives.base import Difference, difference_of_parts
from mssvm.objectives.sample import Sample


@dataclass(frozen=True)
class Unified:
    """U(theta; eps_y, eps_h) with a loss Delta: the family's two dials."""

    eps_y: float
    eps_h: float
    loss: Loss = field(default_factory=Hamming)

    def __post_init__(self) -> None:
        check_temperature(self.eps_y, "eps_y")
        check_temperature(self.eps_h, "eps_h")

    def at(self, eps_y: float, eps_h: float) -> Unified:
        """The same objective at other temperatures."""
        return replace(self, eps_y=eps_y, eps_h=eps_h)

    def minus(self, inference: Inference, sample: Sample, theta: Potentials) -> Belief:
        """U- and its gradient."""
        return inference(sample.batch, theta, sample.truth_query, self.eps_y, self.eps_h)

    def plus(
        self, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials, minus: Belief | None = None
    ) -> tuple[Belief, int]:
        """U+ and its gradient, and the number of instances whose value had to be raised to U-.

        U+ >= U- always, because the labels are among the states that U+ ranges over and cost no loss. Approximate
        inference can miss that; such instances take the value and gradient of U- instead, so U_i >= 0 holds.
        """
        belief = inference(sample.batch, theta + delta, sample.query, self.eps_y, self.eps_h)
        if bool(belief.status.exact.all()):
            return belief, 0
        floor = minus if minus is not None else self.minus(inference, sample, theta)
        low = (belief.value < floor.value) & ~belief.status.exact
        return (_take(sample.batch, belief, floor, low), int(low.sum())) if low.any() else (belief, 0)

    def difference(self, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials) -> Difference:
        """U+ and U-; without a loss they differ in their masks alone, and some graphs need only one pass for both."""
        contrast: Contrast | None = getattr(inference, "contrast", None)
        if contrast is not None and isinstance(self.loss, Zero) and sample.extra_loss is None:
            found = contrast(sample.batch, theta, sample.query, sample.truth_query, self.eps_y, self.eps_h)
            if found is not None:
                return Difference(*found, converged=2 * len(sample), exact=True)
        return difference_of_parts(self, inference, sample, theta, delta)


def _take(batch: Batch, belief: Belief, other: Belief, which: Bools) -> Belief:
    """``belief`` with value and gradient of ``other`` on the instances ``which``."""
    states = which[batch.owner][batch.state_var]
    entries = which[batch.mu_owner]
    mu = Marginals(
        np.where(states, other.mu.unary, belief.mu.unary), np.where(entries, other.mu.tables, belief.mu.tables)
    )
    return replace(belief, value=np.where(which, other.value, belief.value), mu=mu)


def lssvm(loss: Loss | None = None) -> Unified:
    """Latent structured SVM: max over outputs and hidden (paper eq. 4)."""
    return Unified(0.0, 0.0, loss or Hamming())


def mssvm(loss: Loss | None = None) -> Unified:
    """Marginal structured SVM: max over outputs, sum over hidden (paper eq. 3)."""
    return Unified(0.0, 1.0, loss or Hamming())


def hcrf() -> Unified:
    """Hidden conditional random field: negative conditional log-likelihood; no loss."""
    return Unified(1.0, 1.0, Zero())


def loss_augmented_likelihood(loss: Loss | None = None) -> Unified:
    """Likelihood with the loss inside the partition function; without hidden variables, softmax-margin."""
    return Unified(1.0, 1.0, loss or Hamming())


def eps_extension(eps: float, loss: Loss | None = None) -> Unified:
    """One temperature for outputs and hidden."""
    return Unified(eps, eps, loss or Hamming())


# Without hidden variables eps_h has nothing to act on, and the rows above become:
ssvm = lssvm
crf = hcrf
softmax_margin = loss_augmented_likelihood

"""Max-margin min-entropy models (Miller, Kumar, Packer, Goodman, Koller, AISTATS 2012) as an objective.

The score of an output is minus its generalised Renyi entropy, up to a constant in y:

    S_alpha(y) = [LSE_h(alpha s) - LSE_h(s)] / (alpha - 1) = b PS_h[1/alpha](s) - a PS_h[1](s),
    b = alpha / (alpha - 1),   a = 1 / (alpha - 1);            alpha = inf: PS_h[0](s), the latent structured SVM
    U_i = PS_y[eps_y] (S_alpha(y) + Delta) - S_alpha(y_i);     eps_y = 0 is the model, eps_y > 0 its smoothing

Given the outputs, hidden components are independent, so S_alpha is a sum of tables over their borders and the outer
power sum is ordinary inference on the graph of outputs. One of the two terms of S_alpha enters with a minus sign;
adding that term, summed over *all* border states, to both parts makes each of them convex without changing U.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, sum_by
from mssvm.core.checks import number, temperature
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines.base import BoundQuery, Plan
from mssvm.inference.base import Planner
from mssvm.inference.components import Components
from mssvm.losses import Hamming, Loss
from mssvm.objectives.base import Parts
from mssvm.objectives.sample import Sample


@dataclass(frozen=True, eq=False)
class ComponentScores:
    """S_alpha at ``theta`` of every component and border state.

    ``subtracted`` is the term of S_alpha with the negative coefficient, as a positive number; ``beliefs`` are the
    inference answers of both terms.
    """

    theta: Potentials
    scores: Floats
    subtracted: Floats
    beliefs: list[Belief]


@dataclass(frozen=True)
class RenyiMargin:
    """The M3E objective with entropy order ``alpha`` > 0, alpha != 1; needs exact inference."""

    alpha: float = 2.0
    loss: Loss = field(default_factory=Hamming)
    eps_y: float = 0.0

    def __post_init__(self) -> None:
        temperature(self.eps_y, "eps_y")
        if self.alpha != np.inf:
            number(self.alpha, "alpha", above=0.0)
        if self.alpha == 1.0:
            raise InputError(
                f"alpha must be > 0 and not 1, got {self.alpha!r}; near the Shannon entropy take alpha = 1.001."
            )

    @property
    def eps_h(self) -> float:
        """Hidden variables enter at the fixed temperatures 1 and 1/alpha."""
        return 1.0

    @property
    def terms(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """(coefficient, temperature) of the two power sums of S_alpha."""
        if np.isinf(self.alpha):
            return (1.0, 0.0), (0.0, 1.0)
        return (self.alpha / (self.alpha - 1), 1 / self.alpha), (-1 / (self.alpha - 1), 1.0)

    def at(self, eps_y: float, eps_h: float) -> RenyiMargin:
        return replace(self, eps_y=eps_y)

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> RenyiParts:
        return RenyiParts(self, sample.components, sample.query, sample.truth_query, delta, planner)

    def decoder(self, batch: Batch, query: Query, planner: Planner) -> RenyiParts:
        """The parts without labels: only ``decode`` of them is meaningful."""
        return RenyiParts(self, Components.of(batch, query), query, query, Potentials.zeros(batch), planner)


class RenyiParts(Parts):
    """Both parts of U on a sample: scores of hidden components, and power sums over the outputs that border them."""

    def __init__(
        self, objective: RenyiMargin, view: Components, query: Query, truth: Query, delta: Potentials, planner: Planner
    ) -> None:
        self.objective = objective
        self.view = view
        self.batch = view.source
        self.query = query
        self.truth = truth
        self.delta = delta
        self.planner = planner
        components = planner(view.batch)
        self._inner = [_exactly(components, view.query, eps) for _, eps in objective.terms]
        self._outputs = planner(view.outputs)
        self._scored: ComponentScores | None = None

    @cached_property
    def _plus(self) -> BoundQuery:
        return _exactly(self._outputs, self.view.output_query(self.query), self.objective.eps_y)

    @cached_property
    def _minus(self) -> BoundQuery:
        return _exactly(self._outputs, self.view.output_query(self.truth), self.objective.eps_y)

    @cached_property
    def _best(self) -> BoundQuery:
        return _exactly(self._outputs, self.view.output_query(self.query), 0.0)

    def minus(self, theta: Potentials) -> Belief:
        return self._part(self._minus, theta, theta)

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        return self._part(self._plus, theta, theta + self.delta), 0

    def decode(self, theta: Potentials) -> Belief:
        """The maximising outputs of S_alpha, and for hidden variables their marginals given these."""
        outer_theta, constant = self.view.output_theta(theta, self._scores(theta).scores)
        best = self._best(outer_theta)
        clamped = self.query.clamp(self.batch, np.flatnonzero(self.query.output), best.decode(self.view.outputs))
        given_outputs = _exactly(self.planner(self.batch), clamped, 1.0)(theta)
        return replace(given_outputs, value=best.value + constant)

    def _part(self, outer_bound: BoundQuery, theta: Potentials, outer_theta: Potentials) -> Belief:
        """PS_y[eps_y] of S_alpha, made convex, and its gradient in theta; ``outer_theta`` has the scores of outputs."""
        view = self.view
        inner = self._scores(theta)
        potentials, constant = view.output_theta(outer_theta, inner.scores)
        outer = outer_bound(potentials)
        weights = view.weights(outer.mu)
        terms = [(belief.mu, self._coefficients(k, weights)) for k, belief in enumerate(inner.beliefs)]
        value = outer.value + constant + sum_by(view.owner, inner.subtracted, len(self.batch))
        return replace(outer, value=value, mu=view.scatter(terms, outer.mu))

    def _coefficients(self, k: int, weights: Floats) -> Floats:
        """Coefficient of term k's gradient in each component: its share in S, plus the convexifying sum over all."""
        coefficient = self.objective.terms[k][0]
        return coefficient * weights + max(-coefficient, 0.0)

    def _scores(self, theta: Potentials) -> ComponentScores:
        """The scores of all components, cached for the last theta: both parts of U are evaluated one after the other.

        A component without an allowed assignment scores -inf; its score does not vary, so it subtracts nothing.
        """
        if self._scored is not None and self._scored.theta is theta:
            return self._scored
        inner = self.view.component_theta(theta)
        beliefs = [bound(inner) for bound in self._inner]
        possible = beliefs[0].value > -np.inf
        scores = np.where(possible, 0.0, -np.inf)
        subtracted = np.zeros(len(self.view.batch))
        for (coefficient, _), belief in zip(self.objective.terms, beliefs, strict=True):
            value = np.where(possible, belief.value, 0.0)
            scores += coefficient * value
            subtracted += max(-coefficient, 0.0) * value
        self._scored = ComponentScores(theta, scores, subtracted, beliefs)
        return self._scored


def _exactly(plan: Plan, query: Query, eps: float) -> BoundQuery:
    """Inference at one temperature that raises where it is not exact: estimates give no bound and no certificate."""
    bound = plan.bind(query, eps, eps)

    def exact(theta: Potentials) -> Belief:
        belief = bound(theta)
        if not belief.status.exact.all():
            method = belief.status.method[int(np.flatnonzero(~belief.status.exact)[0])]
            raise UnsupportedError(
                f"M3E needs exact inference, but {method} answered for a part of the model; give exact inference more "
                "memory, or use a member that propagation can train, such as MSSVM."
            )
        return belief

    return exact

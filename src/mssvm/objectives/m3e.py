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

import numpy as np

from mssvm.core.arrays import Floats, sum_by
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.power import check_temperature
from mssvm.core.topology import Batch
from mssvm.inference.base import Inference
from mssvm.inference.components import Collapse
from mssvm.inference.remember import WhileAlive
from mssvm.losses.losses import Hamming, Loss
from mssvm.objectives.base import Difference, difference_of_parts
from mssvm.objectives.sample import Sample


@dataclass(frozen=True, eq=False)
class Scored:
    """S_alpha of every piece, the term that is subtracted in it (as a positive number), both terms' beliefs."""

    scores: Floats
    subtracted: Floats
    beliefs: list[Belief]


@dataclass(frozen=True)
class M3E:
    """The M3E objective with entropy order ``alpha`` > 0, alpha != 1; needs exact inference."""

    alpha: float = 2.0
    loss: Loss = field(default_factory=Hamming)
    eps_y: float = 0.0
    _known: WhileAlive[Sample, Collapse] = field(default_factory=WhileAlive, repr=False, compare=False)
    _scored: WhileAlive[Potentials, Scored] = field(default_factory=WhileAlive, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_temperature(self.eps_y, "eps_y")
        if not self.alpha > 0 or self.alpha == 1.0:
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

    def at(self, eps_y: float, eps_h: float) -> M3E:
        return replace(self, eps_y=eps_y)

    def minus(self, inference: Inference, sample: Sample, theta: Potentials) -> Belief:
        return self._part(inference, sample, theta, theta, sample.truth_query, self.eps_y)

    def plus(
        self, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials, minus: Belief | None = None
    ) -> tuple[Belief, int]:
        return self._part(inference, sample, theta, theta + delta, sample.query, self.eps_y), 0

    def difference(self, inference: Inference, sample: Sample, theta: Potentials, delta: Potentials) -> Difference:
        return difference_of_parts(self, inference, sample, theta, delta)

    def decode(self, inference: Inference, sample: Sample, theta: Potentials) -> Belief:
        """The maximising outputs of S_alpha, and for hidden variables their marginals given these."""
        view = self._collapse(sample)
        scores = self._scores(inference, view, theta).scores
        outer_theta, constant = view.output_theta(theta, scores)
        best = _exactly(inference, view.outputs, outer_theta, view.output_query(sample.query), 0.0)
        chosen = np.flatnonzero(sample.query.output)
        clamped = sample.query.clamp(sample.batch, chosen, best.decode(view.outputs))
        return replace(_exactly(inference, sample.batch, theta, clamped, 1.0), value=best.value + constant)

    def _collapse(self, sample: Sample) -> Collapse:
        return self._known.get(sample, lambda: Collapse.of(sample.batch, sample.query))

    def _part(
        self,
        inference: Inference,
        sample: Sample,
        theta: Potentials,
        outer_theta: Potentials,
        query: Query,
        eps_y: float,
    ) -> Belief:
        """PS_y[eps_y] of S_alpha (with what ``outer_theta`` adds to outputs), made convex; its gradient in theta."""
        view = self._collapse(sample)
        # Both parts of U are asked for at the same theta, one after the other.
        inner = self._scored.get(theta, lambda: self._scores(inference, view, theta))
        potentials, constant = view.output_theta(outer_theta, inner.scores)
        outer = _exactly(inference, view.outputs, potentials, view.output_query(query), eps_y)
        weights = view.piece_weights(outer.mu)
        mu = view.scatter(inner.beliefs[0].mu, self._lift(0, weights), outer.mu)
        rest = view.scatter(inner.beliefs[1].mu, self._lift(1, weights), None)
        value = outer.value + constant + sum_by(view.piece_owner, inner.subtracted, len(sample))
        return replace(outer, value=value, mu=Marginals(mu.unary + rest.unary, mu.tables + rest.tables))

    def _lift(self, k: int, weights: Floats) -> Floats:
        """Coefficient of term k's gradient in each piece: its share in S, plus the convexifying sum over all pieces."""
        coefficient = self.terms[k][0]
        return coefficient * weights + max(-coefficient, 0.0)

    def _scores(self, inference: Inference, view: Collapse, theta: Potentials) -> Scored:
        """The scores of all pieces.

        A piece without an allowed assignment scores -inf and, having no part that varies, subtracts nothing.
        """
        pieces = view.piece_theta(theta)
        beliefs = [_exactly(inference, view.pieces, pieces, view.piece_query, eps) for _, eps in self.terms]
        possible = beliefs[0].value > -np.inf
        scores = np.where(possible, 0.0, -np.inf)
        subtracted = np.zeros(len(view.pieces))
        for (coefficient, _), belief in zip(self.terms, beliefs, strict=True):
            value = np.where(possible, belief.value, 0.0)
            scores += coefficient * value
            subtracted += max(-coefficient, 0.0) * value
        return Scored(scores, subtracted, beliefs)


def _exactly(inference: Inference, batch: Batch, theta: Potentials, query: Query, eps: float) -> Belief:
    """The belief at one temperature, or a refusal: scores that are estimates would make no bound and no certificate."""
    belief = inference(batch, theta, query, eps, eps)
    if not belief.status.exact.all():
        method = belief.status.method[int(np.flatnonzero(~belief.status.exact)[0])]
        raise UnsupportedError(
            f"M3E needs exact inference, but {method} answered for a part of the model; give exact inference more "
            "memory, or use a member that propagation can train, such as MSSVM."
        )
    return belief

"""A block with the objective bound to it at a pair of temperatures: U+, U- and their difference at any weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.engines.base import BoundQuery
from mssvm.inference.decomposition.consistent import ProvingPlan, proven_point
from mssvm.objectives.base import Parts
from mssvm.objectives.blocks import Block
from mssvm.objectives.difference import Difference, LinearMinusDifference, bind_difference
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.summary import InferenceSummary, summarize_inference
from mssvm.objectives.unified import UnifiedParts


@dataclass(frozen=True, eq=False)
class BoundBlock:
    """Values, weighted sums and gradients of an objective on a block; all work that does not depend on w has been done.

    ``single_labels``: the labels admit one state of every variable, so that the unified objective's U- is linear.
    """

    block: Block
    parts: Parts
    temperatures: tuple[float, float]
    single_labels: bool

    def plus(self, w: Floats) -> Evaluation:
        """U+ and its gradient."""
        belief, floored = self.parts.plus(self.block.features.forward(w))
        return self.block.evaluation(
            belief.value, belief.mu, (belief.status,), plus_calls=len(self.block), floored=floored
        )

    def minus(self, w: Floats) -> Evaluation:
        """U- and its gradient."""
        belief = self.parts.minus(self.block.features.forward(w))
        return self.block.evaluation(belief.value, belief.mu, (belief.status,), minus_calls=len(self.block))

    def difference(self, w: Floats) -> Evaluation:
        """U+ - U- and its gradient."""
        return self._difference(w)

    def minorant(self, w: Floats, temperatures: tuple[float, float]) -> tuple[float, Floats] | None:
        """sum_i c_i (<theta + Delta, mu_i> + eps_y H(mu_i) - theta(y_i)) and its gradient in w, for fixed marginals mu.

        The marginals are found at smoothed ``temperatures``. The sum is linear in w and at no w above the objective
        that training minimises. None where labels are missing or answers are neither exact nor decomposition bounds.
        """
        difference = self._difference
        plan = self.block.plan
        if not isinstance(difference, LinearMinusDifference) or not isinstance(self.parts, UnifiedParts):
            return None
        if not isinstance(plan, ProvingPlan):
            return None
        theta = self.block.features.forward(w)
        found = proven_point(
            plan, self.block.sample.query, self.parts.augmented(theta), *temperatures, self.temperatures[0]
        )
        if found is None:
            return None
        value, mu = found
        total = float(self.block.scale @ (value - difference.minus.value(theta, len(self.block))))
        return total, self.block.gradient(mu) - difference.minus_gradient

    @cached_property
    def _difference(self) -> Difference:
        return bind_difference(self.block, self.parts, self.single_labels)

    def summarize(self, w: Floats, hidden: Bools, var_ptr: Ints) -> InferenceSummary:
        """The summary of inference at w; ``hidden`` (variables) and ``var_ptr`` are those of the whole sample."""
        first = var_ptr[self.block.first]
        in_block = hidden[first : first + self.block.sample.batch.n_vars]
        free, clamped = self._bounds()
        return summarize_inference(self.block.sample, free, clamped, self.block.features.forward(w), in_block)

    def _bounds(self) -> tuple[BoundQuery, BoundQuery]:
        """Inference over all states, and over those that the labels admit."""
        if isinstance(self.parts, UnifiedParts):
            return self.parts.pair.plus, self.parts.pair.minus
        sample = self.block.sample
        free = self.block.plan.bind(sample.query, *self.temperatures)
        return free, self.block.plan.bind(sample.truth_query, *self.temperatures)

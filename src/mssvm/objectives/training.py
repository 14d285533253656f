"""The training problem of the unified family: model, sample and inference joined into a ``Problem``.

Instances are evaluated in fixed blocks and summed in fixed order, so results carry the same bits on any number of
threads. Instances without a labelled site are dropped at the door: they contribute 0 whatever the temperatures.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InfeasibleError, InputError
from mssvm.core.potentials import Belief, Marginals, Potentials
from mssvm.core.topology import Batch
from mssvm.inference.base import Inference
from mssvm.models.base import Model
from mssvm.objectives.base import Objective
from mssvm.objectives.problem import Part
from mssvm.objectives.sample import Sample
from mssvm.objectives.unified import hcrf

BLOCK_STATES = 1 << 15
SINGLES_KEPT = 1 << 14


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive instances with their loss tables, ready to be evaluated at any w; ``first`` is the first's number."""

    sample: Sample
    delta: Potentials
    first: int


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """C sum_i weight_i U_i(w) for a unified objective, a model, a labelled sample and an inference method."""

    objective: Objective
    model: Model[Any]
    sample: Sample
    inference: Inference
    C: float = 1.0
    threads: int = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.C) and self.C > 0):
            raise InputError(f"C must be a finite number > 0, got {self.C!r}.")
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")
        if not self.sample.labelled.all():
            labelled = np.flatnonzero(self.sample.labelled)
            object.__setattr__(self, "sample", self.sample.select(labelled))

    @property
    def n_instances(self) -> int:
        return len(self.sample)

    @property
    def n_weights(self) -> int:
        return self.model.n_weights

    @property
    def n_sites(self) -> int:
        return self.sample.n_labelled_sites

    @property
    def temperatures(self) -> tuple[float, float]:
        return self.objective.eps_y, self.objective.eps_h

    @property
    def log_outputs(self) -> Floats:
        return self.sample.log_outputs

    @cached_property
    def scale(self) -> Floats:
        return self.C * self.sample.weight

    @property
    def convex(self) -> bool:
        return bool(np.all(self.sample.truth_query.n_allowed(self.sample.batch) == 1))

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        """d PS_eps / d eps is an entropy, hence at most the log of the number of assignments."""
        rise_y, rise_h = max(eps_y - self.objective.eps_y, 0.0), max(eps_h - self.objective.eps_h, 0.0)
        hidden = rise_h * self.sample.log_hidden
        return rise_y * self.sample.log_outputs + hidden, rise_y * self.sample.log_truth + hidden

    def at(self, eps_y: float, eps_h: float) -> TrainingProblem:
        moved = replace(self, objective=self.objective.at(eps_y, eps_h))
        object.__setattr__(moved, "_cut", self._cut)  # the blocks do not depend on the temperatures
        return moved

    def likelihood(self) -> TrainingProblem:
        """The hidden conditional random field of the same model and sample: temperatures 1 and no loss."""
        return replace(self, objective=hcrf())

    def plus(self, w: Floats, which: Ints | None = None) -> Part:
        return self._sum(which, lambda block, scale: self._plus(w, block, scale))

    def minus(self, w: Floats, which: Ints | None = None) -> Part:
        return self._sum(which, lambda block, scale: self._minus(w, block, scale))

    def difference(self, w: Floats, which: Ints | None = None) -> Part:
        return self._sum(which, lambda block, scale: self._difference(w, block, scale))

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        block = self._cut.single(i)
        theta = self.model.forward(w, block.sample.inputs)
        belief, _ = self.objective.plus(self.inference, block.sample, theta, block.delta)
        _check(belief.value, block)
        return float(belief.value[0]), np.concatenate([belief.mu.unary, belief.mu.tables])

    def features_of(self, i: int, mu: Floats) -> Floats:
        block = self._cut.single(i)
        n = block.sample.batch.n_states
        return self.model.adjoint(Marginals(mu[:n], mu[n:]), block.sample.inputs)

    def scores_of(self, i: int, w: Floats) -> Floats:
        theta = self.model.forward(w, self._cut.single(i).sample.inputs)
        fixed, allowed = self._fixed(i)
        return np.where(allowed, np.concatenate([theta.unary, theta.tables]) - fixed, 0.0)

    @cached_property
    def _fixed(self) -> Callable[[int], tuple[Floats, Bools]]:
        """Scores of instance i that do not depend on w, and which entries they allow.

        Forbidden entries carry no marginal; as zeros they leave products with mu finite.
        """

        def compute(i: int) -> tuple[Floats, Bools]:
            zero = self.model.forward(np.zeros(self.n_weights), self._cut.single(i).sample.inputs)
            scores = np.concatenate([zero.unary, zero.tables])
            return np.where(np.isfinite(scores), scores, 0.0), np.isfinite(scores)

        return lru_cache(SINGLES_KEPT)(compute)

    @cached_property
    def _cut(self) -> _Cut:
        # A block makes one dense gradient, which must not cost more than the block itself.
        return _Cut(self.sample, self.objective, max(BLOCK_STATES, self.model.gradient_size // 4))

    def _sum(self, which: Ints | None, evaluate: Callable[[Block, Floats], Part]) -> Part:
        if which is None:
            jobs = [(block, self.scale[ids]) for ids, block in self._cut.blocks]
        else:
            jobs = [(self._cut.single(int(i)), self.scale[i : i + 1]) for i in which]
        if not jobs:
            return Part(np.zeros(0), 0.0, np.zeros(self.n_weights))
        if self.threads == 1 or len(jobs) == 1:
            parts = [evaluate(*job) for job in jobs]
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                parts = list(pool.map(lambda job: evaluate(*job), jobs))
        return reduce(Part.__add__, parts)

    def _minus(self, w: Floats, block: Block, scale: Floats) -> Part:
        theta = self.model.forward(w, block.sample.inputs)
        belief = self.objective.minus(self.inference, block.sample, theta)
        return self._one_part(block, scale, belief, 0, len(scale))

    def _plus(self, w: Floats, block: Block, scale: Floats) -> Part:
        theta = self.model.forward(w, block.sample.inputs)
        belief, floored = self.objective.plus(self.inference, block.sample, theta, block.delta)
        return self._one_part(block, scale, belief, len(scale), 0, floored)

    def _one_part(
        self, block: Block, scale: Floats, belief: Belief, plus_calls: int, minus_calls: int, floored: int = 0
    ) -> Part:
        _check(belief.value, block)
        known = int(belief.status.converged.sum()), floored, bool(belief.status.exact.all())
        return self._part(block, scale, belief.value, belief.mu, (plus_calls, minus_calls, *known))

    def _difference(self, w: Floats, block: Block, scale: Floats) -> Part:
        theta = self.model.forward(w, block.sample.inputs)
        found = self.objective.difference(self.inference, block.sample, theta, block.delta)
        _check(found.low, block)
        _check(found.high, block)
        calls = (len(scale), len(scale), found.converged, found.floored, found.exact)
        return self._part(block, scale, found.high - found.low, found.mu, calls)

    def _part(
        self, block: Block, scale: Floats, value: Floats, mu: Marginals, calls: tuple[int, int, int, int, bool]
    ) -> Part:
        """``calls``: those of plus and minus, those that converged, those floored, and whether all were exact."""
        if np.all(scale == scale[0]):
            gradient = scale[0] * self.model.adjoint(mu, block.sample.inputs)
        else:
            gradient = self.model.adjoint(weigh(block.sample.batch, mu, scale), block.sample.inputs)
        return Part(value, float(scale @ value), gradient, *calls)


class _Cut:
    """The sample cut into fixed blocks, and single instances on demand; shared by all temperatures."""

    def __init__(self, sample: Sample, objective: Objective, block_states: int) -> None:
        self._sample, self._objective = sample, objective
        self.blocks = [(ids, self._block(ids)) for ids in sample.blocks(block_states)]
        self.single = lru_cache(SINGLES_KEPT)(lambda i: self._block(np.array([i])))

    def _block(self, ids: Ints) -> Block:
        sample, loss = self._sample.select(ids), self._objective.loss
        delta = loss.delta(sample.batch, sample.query.output, sample.truth, sample.site_weight)
        if sample.extra_loss is not None:
            delta = replace(delta, unary=delta.unary + sample.extra_loss)
        return Block(sample, delta, int(ids[0]))


def weigh(batch: Batch, mu: Marginals, scale: Floats) -> Marginals:
    """mu of every instance multiplied by its scale."""
    return Marginals(mu.unary * scale[batch.owner][batch.state_var], mu.tables * scale[batch.mu_owner])


def _check(value: Floats, block: Block) -> None:
    """Raise unless every instance has an allowed assignment."""
    bad = np.flatnonzero(~np.isfinite(value))
    if len(bad):
        raise InfeasibleError(
            f"instance {block.first + int(bad[0])} of those with labels has value {value[bad[0]]}; its labels "
            "contradict the forbidden entries of the model, or the weights are beyond all bounds."
        )

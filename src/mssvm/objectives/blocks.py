"""A sample cut into fixed blocks of consecutive instances, whose evaluations are summed in fixed order.

The cut is a function of data, model and engine, never of the number of threads, so that results have the same bits on
any number of them. A block holds what does not depend on temperatures: loss tables, features of the model, the plan of
inference and the weights c_i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InfeasibleError
from mssvm.core.potentials import Marginals, Potentials, Status
from mssvm.core.topology import offsets
from mssvm.engines.base import Engine, Features, Plan
from mssvm.inference.base import Planner
from mssvm.models.base import Model
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.sample import Sample

BLOCK_STATES = 1 << 17
MAX_UNCUT_BLOCKS = 2  # a sample no larger than this number of blocks is not cut: the engine's threads share it


def block_ptr(ends: Ints, model: Model[Any], engine: Engine, least: int = 0) -> Ints:
    """Offsets of the fixed blocks of consecutive instances; ``ends`` is the cumulative number of states, ``least`` is
    the smallest number of states that inference allows in a block."""
    # A block makes one dense gradient, which must not cost more than the block itself.
    gradient_size: int = getattr(model, "gradient_size", model.n_weights)
    states = max(getattr(engine, "block_states", BLOCK_STATES), gradient_size // 4, least)
    if ends[-1] <= MAX_UNCUT_BLOCKS * states:
        states = max(ends[-1], 1)
    sizes = np.bincount((ends - 1) // states)
    return offsets(sizes[sizes > 0].astype(np.int64))


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive instances of a sample; ``first`` is the number of the first, ``scale`` their weights c_i."""

    sample: Sample
    delta: Potentials
    features: Features
    plan: Plan
    scale: Floats
    first: int

    def __len__(self) -> int:
        return len(self.scale)

    @cached_property
    def one_scale(self) -> bool:
        """Whether all instances have the same weight, which then multiplies the gradient instead of the marginals."""
        return bool(np.all(self.scale == self.scale[0]))

    def gradient(self, mu: Marginals) -> Floats:
        """sum_i c_i (d theta / d w)^T mu_i."""
        if not self.one_scale:
            return self.features.adjoint(mu.scaled(self.sample.batch, self.scale))
        gradient: Floats = self.scale[0] * self.features.adjoint(mu)
        return gradient

    def evaluation(
        self,
        value: Floats,
        mu: Marginals,
        statuses: Sequence[Status],
        *,
        plus_calls: int = 0,
        minus_calls: int = 0,
        floored: int = 0,
    ) -> Evaluation:
        """Per-instance values, their weighted sum and its gradient; ``statuses`` are those of the inference calls."""
        self.check(value)
        return Evaluation(
            values=value,
            total=float(self.scale @ value),
            gradient=self.gradient(mu),
            plus_calls=plus_calls,
            minus_calls=minus_calls,
            converged=sum(int(np.count_nonzero(status.converged)) for status in statuses),
            floored=floored,
            exact=all(bool(status.exact.all()) for status in statuses),
        )

    def check(self, value: Floats) -> None:
        """Raise unless every instance has an allowed assignment."""
        if np.isfinite(value).all():
            return
        bad = int(np.flatnonzero(~np.isfinite(value))[0])
        reason = "its labels contradict what the structure forbids; correct them, mark some as MISSING, or forbid less."
        if not np.isneginf(value[bad]):
            reason = f"its value is {value[bad]}: the weights have diverged; scale the features or lower C."
        raise InfeasibleError(reason, what="instances with labels", instance=self.first + bad)


@dataclass(frozen=True, eq=False)
class SampleBlocks:
    """All blocks of a sample in order, and single instances as blocks of their own, made on demand."""

    planner: Planner
    all: list[Block]
    single: Callable[[int], Block]

"""The training problem: objective, model, labelled sample and inference as a ``Problem``, sum_i c_i U_i(w).

    theta = features.forward(w)      U+, U- and mu+ - mu- = parts(theta)      gradient = features.adjoint(mu+ - mu-)

Instances are evaluated in fixed blocks and summed in fixed order, so results have the same bits on any number of
threads. Instances without a labelled site are dropped first: they contribute 0 at any temperatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any
from weakref import ref

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import Engine, Remembering
from mssvm.inference.base import Inference, Planner
from mssvm.inference.decomposition.certified import CertifiedPlan
from mssvm.losses import Zero, ZeroOne
from mssvm.models.base import Model
from mssvm.objectives.base import Objective
from mssvm.objectives.blocks import Block, SampleBlocks, block_ptr
from mssvm.objectives.bound_block import BoundBlock
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.sample import Sample
from mssvm.objectives.sums import in_order
from mssvm.objectives.unified import Unified, hcrf

MAX_SINGLES = 1 << 14  # instances whose single blocks are cached


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """C sum_i weight_i U_i(w) for an objective, a model, a labelled sample, and an inference on an engine."""

    objective: Objective
    model: Model[Any]
    sample: Sample
    inference: Inference
    C: float = 1.0
    engine: Engine = field(default_factory=engine_of)
    one_block: bool = False  # the sample is a block of a larger one
    certified: bool = False  # the loss is an upper bound of the true one
    n_instances: int = field(init=False, repr=False)
    n_weights: int = field(init=False, repr=False)
    temperatures: tuple[float, float] = field(init=False, repr=False)
    scale: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.C) and self.C > 0):
            raise InputError(f"C must be a finite number > 0, got {self.C!r}.")
        if not self.sample.labelled.all():
            labelled = np.flatnonzero(self.sample.labelled)
            object.__setattr__(self, "sample", self.sample.select(labelled))
        object.__setattr__(self, "n_instances", len(self.sample.batch))
        object.__setattr__(self, "n_weights", self.model.n_weights)
        object.__setattr__(self, "temperatures", (self.objective.eps_y, self.objective.eps_h))
        object.__setattr__(self, "scale", self.C * self.sample.weight)

    @property
    def n_sites(self) -> int:
        return int(self.sample.query.output.sum())

    @cached_property
    def log_outputs(self) -> Floats:
        return self.sample.log_states(self.sample.query, self.sample.at_eps_y)

    @property
    def convex(self) -> bool:
        # Every variable has at least one admitted state: exactly one each if there are as many as variables.
        admitted = self.sample.query.allowed & self.sample.truth
        return int(np.count_nonzero(admitted)) == self.sample.batch.n_vars

    @property
    def has_atoms(self) -> bool:
        return True

    @property
    def plane_size(self) -> int:
        """Numbers in the coordinates (``atom``) of all instances."""
        return self.sample.batch.n_states + self.sample.batch.n_mu_entries

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        """d PS_eps / d eps is an entropy, hence at most the log of the number of assignments."""
        rise_y = max(eps_y - self.objective.eps_y, 0.0)
        rise_h = max(eps_h - self.objective.eps_h, 0.0)
        if rise_y == rise_h == 0.0:
            return np.zeros(self.n_instances), np.zeros(self.n_instances)
        sample = self.sample
        output = sample.at_eps_y
        hidden = rise_h * sample.log_states(sample.query, ~output)
        plus = rise_y * sample.log_states(sample.query, output) + hidden
        minus = rise_y * sample.log_states(sample.truth_query, output) + hidden
        return plus, minus

    def at(self, eps_y: float, eps_h: float) -> TrainingProblem:
        """The same problem at other temperatures, cached with its bound blocks."""
        owner = self._cache_owner() or self
        cache = owner._at_temperatures
        if (eps_y, eps_h) not in cache:
            problem = replace(self, objective=self.objective.at(eps_y, eps_h))
            # The blocks do not depend on the temperatures.
            object.__setattr__(problem, "_blocks", self._blocks)
            object.__setattr__(problem, "_cache_owner", ref(owner))
            cache[eps_y, eps_h] = problem
        return cache[eps_y, eps_h]

    @cached_property
    def _cache_owner(self) -> ref[TrainingProblem]:
        """A weak reference to the problem whose cache holds this one, so that blocks are freed when training ends."""
        return ref(self)

    @cached_property
    def _at_temperatures(self) -> dict[tuple[float, float], TrainingProblem]:
        """Cache of the problems at other temperatures."""
        return {}

    def memory(self) -> dict[str, Floats]:
        """Copies of the messages that the blocks' plans keep between evaluations, by name."""
        out = {}
        for number, block in enumerate(self._blocks.all):
            if isinstance(block.plan, Remembering):
                for name, array in block.plan.memory().items():
                    out[f"{number}/{name}"] = array.copy()
        return out

    def recall(self, memory: Mapping[str, Floats]) -> None:
        """Restore the messages that ``memory`` returned; the next evaluation starts from them."""
        for name, array in memory.items():
            number, _, rest = name.partition("/")
            plan = self._blocks.all[int(number)].plan
            if isinstance(plan, Remembering):
                plan.recall(rest, array)

    def likelihood(self) -> TrainingProblem:
        """The hidden conditional random field of the same model and sample: temperatures 1 and no loss."""
        return replace(self, objective=hcrf())

    @property
    def certifiable(self) -> bool:
        """Whether ``as_certified`` is possible: the unified objective by inference that bounds values from above."""
        unified = isinstance(self.objective, Unified) and not isinstance(self.objective.loss, ZeroOne)
        converges: Callable[[Batch], bool] | None = getattr(self.inference, "converges", None)
        return unified and converges is not None and converges(self.sample.batch)

    def as_certified(self) -> TrainingProblem:
        """The problem whose loss is an upper bound of the true loss: U- is bounded from below where it is not exact.

        It shares blocks and messages with this problem.
        """
        problem = replace(self, certified=True)
        blocks = self._blocks

        def certified(block: Block) -> Block:
            return replace(block, plan=CertifiedPlan(block.plan, block.sample.batch))

        def single(i: int) -> Block:
            return certified(blocks.single(i))

        shared = SampleBlocks(
            blocks.planner, [certified(block) for block in blocks.all], lru_cache(MAX_SINGLES)(single)
        )
        object.__setattr__(problem, "_blocks", shared)
        return problem

    def plus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum(lambda block: block.plus(w), instances)

    def minus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum(lambda block: block.minus(w), instances)

    def difference(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum(lambda block: block.difference(w), instances)

    def minorant(self, w: Floats, temperatures: tuple[float, float]) -> tuple[float, Floats] | None:
        """A linear function of the weights, given by its value and gradient at ``w``, that is at no weights above the
        loss (where inference computes bounds, the loss made of these bounds); None where no such function is proven."""
        parts = [block.minorant(w, temperatures) for block in self.bound]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not known:
            return None
        return sum(total for total, _ in known), np.sum([gradient for _, gradient in known], axis=0)

    def _sum(self, evaluate: Callable[[BoundBlock], Evaluation], instances: Ints | None) -> Evaluation:
        """Sum over all blocks, or over the named instances as blocks of their own."""
        blocks = self.bound if instances is None else [self._single(int(i)) for i in instances]
        evaluations: list[Evaluation] = self.engine.parallel_map(evaluate, blocks)
        if not evaluations:
            return Evaluation(np.zeros(0), 0.0, np.zeros(self.n_weights))
        if instances is None:
            return in_order(evaluations)
        return Evaluation.union(evaluations)

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        single = self._single(i)
        belief = single.parts.plus(single.block.features.forward(w))[0]
        single.block.check(belief.value)
        return float(belief.value[0]), np.concatenate([belief.mu.unary, belief.mu.tables])

    def features_of(self, i: int, mu: Floats) -> Floats:
        block = self._single(i).block
        n = block.sample.batch.n_states
        return block.features.adjoint(Marginals(mu[:n], mu[n:]))

    def scores_of(self, i: int, w: Floats) -> Floats:
        theta = self._single(i).block.features.forward(w)
        fixed, allowed = self._fixed(i)
        return np.where(allowed, np.concatenate([theta.unary, theta.tables]) - fixed, 0.0)

    @cached_property
    def _fixed(self) -> Callable[[int], tuple[Floats, Bools]]:
        """By instance i: its scores that do not depend on w, and the mask of entries that are not forbidden.

        Forbidden entries carry no marginal; as zeros they leave products with mu finite.
        """

        def fixed_scores(i: int) -> tuple[Floats, Bools]:
            theta = self._single(i).block.features.forward(np.zeros(self.n_weights))
            scores = np.concatenate([theta.unary, theta.tables])
            allowed = np.isfinite(scores)
            return np.where(allowed, scores, 0.0), allowed

        return lru_cache(MAX_SINGLES)(fixed_scores)

    @cached_property
    def _blocks(self) -> SampleBlocks:
        planner = Planner(self.inference, self.engine)
        bare = replace(self)  # a copy without blocks: the blocks below would otherwise keep themselves alive

        def single(i: int) -> Block:
            return bare._block(np.array([i]), planner)

        blocks = [self._block(ids, planner) for ids in self._cut()]
        return SampleBlocks(planner, blocks, lru_cache(MAX_SINGLES)(single))

    def _cut(self) -> list[Ints]:
        """The instances of each block."""
        if not self.n_instances:
            return []
        instances = np.arange(self.n_instances)
        if self.one_block:
            return [instances]
        batch = self.sample.batch
        wanted: Callable[[Batch], int] | None = getattr(self.inference, "block_states", None)
        least = 0 if wanted is None else wanted(batch)
        cuts = block_ptr(batch.unary_ptr[batch.var_ptr][1:], self.model, self.engine, least)
        return np.split(instances, cuts[1:-1])

    def _block(self, ids: Ints, planner: Planner) -> Block:
        sample = self.sample
        if len(ids) < self.n_instances:
            sample = sample.select(ids)
        return Block(
            sample=sample,
            delta=self._loss_tables(sample),
            features=self.model.bind(sample.inputs, self.engine),
            plan=planner(sample.batch),
            scale=self.C * sample.weight,
            first=int(ids[0]),
        )

    def _loss_tables(self, sample: Sample) -> Potentials:
        """Delta of every state and table entry; without the zero-one loss, which the unified objective adds itself."""
        batch = sample.batch
        loss = self.objective.loss
        if isinstance(loss, Zero) or (isinstance(loss, ZeroOne) and isinstance(self.objective, Unified)):
            # Broadcast zeros take no memory.
            delta = Potentials(np.broadcast_to(0.0, batch.n_states), np.broadcast_to(0.0, batch.n_table_entries))
        else:
            delta = loss.delta(batch, sample.query.output, sample.truth, sample.site_weight)
        if sample.extra_loss is None:
            return delta
        return replace(delta, unary=delta.unary + sample.extra_loss)

    @cached_property
    def bound(self) -> list[BoundBlock]:
        """The blocks with the objective bound to them."""
        return [self._bind(block) for block in self._blocks.all]

    @cached_property
    def _single(self) -> Callable[[int], BoundBlock]:
        """By instance i: that instance as a block of its own."""

        def bind_single(i: int) -> BoundBlock:
            return self._bind(self._blocks.single(i))

        return lru_cache(MAX_SINGLES)(bind_single)

    def _bind(self, block: Block) -> BoundBlock:
        parts = self.objective.bind(block.sample, block.delta, block.plan, self._blocks.planner)
        n_admitted = block.sample.truth_query.n_allowed(block.sample.batch)
        single_labels = isinstance(self.objective, Unified) and bool(np.all(n_admitted == 1))
        return BoundBlock(block, parts, self.temperatures, single_labels)

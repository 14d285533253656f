"""The training problem of the unified family: model, sample and inference joined into a ``Problem``.

Instances are evaluated in fixed blocks and summed in fixed order, so results carry the same bits on any number of
threads. Instances without a labelled site are dropped at the door: they contribute 0 whatever the temperatures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import repeat
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InfeasibleError, InputError
from mssvm.core.potentials import Marginals, Picked, Potentials, Status
from mssvm.core.topology import Batch, offsets
from mssvm.engines import engine_of
from mssvm.engines.base import Engine, Features, Joined, JoiningFeatures, Plan, Remembering
from mssvm.inference.base import Inference, Planner
from mssvm.losses import Zero
from mssvm.models.base import Model
from mssvm.objectives.problem import Part
from mssvm.objectives.sums import in_order
from mssvm.objectives.unified import Objective, Parts, Sample, Unified, UnifiedParts, hcrf

BLOCK_STATES = 1 << 17
WHOLE = 2  # blocks up to which a sample stays in one piece, which the engine spreads over its threads itself
SINGLES = 1 << 14  # instances of which what single evaluations need is remembered


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """C sum_i weight_i U_i(w) for a unified objective, a model, a labelled sample, and an inference on an engine."""

    objective: Objective
    model: Model[Any]
    sample: Sample
    inference: Inference
    C: float = 1.0
    engine: Engine = field(default_factory=engine_of)
    one_block: bool = False  # the sample is a block of a larger one
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
        return self.sample.log_states(self.sample.query, self.sample.query.output)

    @property
    def convex(self) -> bool:
        sample = self.sample  # every variable has a state left, so one each if there are as many as variables
        return int(np.count_nonzero(sample.query.allowed & sample.truth)) == sample.batch.n_vars

    @property
    def has_atoms(self) -> bool:
        return True

    @property
    def plane_size(self) -> int:
        """Numbers in the coordinates (``atom``) of all instances."""
        return self.sample.batch.n_states + self.sample.batch.n_mu_entries

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        """d PS_eps / d eps is an entropy, hence at most the log of the number of assignments."""
        rise_y, rise_h = max(eps_y - self.objective.eps_y, 0.0), max(eps_h - self.objective.eps_h, 0.0)
        if rise_y == rise_h == 0.0:
            return np.zeros(self.n_instances), np.zeros(self.n_instances)
        sample, output = self.sample, self.sample.query.output
        hidden, plus = rise_h * sample.log_states(sample.query, ~output), sample.log_states(sample.query, output)
        return rise_y * plus + hidden, rise_y * sample.log_states(sample.truth_query, output) + hidden

    def at(self, eps_y: float, eps_h: float) -> TrainingProblem:
        """The same problem at other temperatures; what was bound at them before is still bound."""
        known = self._blocks.at
        if (eps_y, eps_h) not in known:
            known[eps_y, eps_h] = moved = replace(self, objective=self.objective.at(eps_y, eps_h))
            object.__setattr__(moved, "_blocks", self._blocks)  # the blocks do not depend on the temperatures
        return known[eps_y, eps_h]

    def memory(self) -> dict[str, Floats]:
        """Copies of the messages that the blocks' plans keep between evaluations, by name."""
        out = {}
        for number, block in enumerate(self._blocks.all):
            if isinstance(block.plan, Remembering):
                for name, array in block.plan.memory().items():
                    out[f"{number}/{name}"] = array.copy()
        return out

    def recall(self, memory: Mapping[str, Floats]) -> None:
        """Go on from the messages that ``memory`` gave."""
        for name, array in memory.items():
            number, _, rest = name.partition("/")
            plan = self._blocks.all[int(number)].plan
            if isinstance(plan, Remembering):
                plan.recall(rest, array)

    def likelihood(self) -> TrainingProblem:
        """The hidden conditional random field of the same model and sample: temperatures 1 and no loss."""
        return replace(self, objective=hcrf())

    def plus(self, w: Floats, instances: Ints | None = None) -> Part:
        return self._evaluate(methodcaller("plus", w), instances)

    def minus(self, w: Floats, instances: Ints | None = None) -> Part:
        return self._evaluate(methodcaller("minus", w), instances)

    def difference(self, w: Floats, instances: Ints | None = None) -> Part:
        return self._evaluate(methodcaller("difference", w), instances)

    def _evaluate(self, part: Callable[[BoundBlock], Part], instances: Ints | None) -> Part:
        """A part of every block, or of the named instances as blocks of their own, as one."""
        chosen = self.bound if instances is None else [self._single(int(i)) for i in instances]
        parts: list[Part] = self.engine.each(part, chosen)
        if not parts:
            return Part(np.zeros(0), 0.0, np.zeros(self.n_weights))
        if len(parts) == 1:
            return parts[0]
        return in_order(parts) if instances is None else Part.union(parts)

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        single = self._single(i)
        belief = single.parts.plus(single.block.features.forward(w))[0]
        single.check(belief.value)
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
        """By instance i: its scores that do not depend on w, and which entries they allow.

        Forbidden entries carry no marginal; as zeros they leave products with mu finite.
        """

        def compute(i: int) -> tuple[Floats, Bools]:
            zero = self._single(i).block.features.forward(np.zeros(self.n_weights))
            scores = np.concatenate([zero.unary, zero.tables])
            return np.where(np.isfinite(scores), scores, 0.0), np.isfinite(scores)

        return lru_cache(SINGLES)(compute)

    @cached_property
    def _blocks(self) -> SampleBlocks:
        planner, batch = Planner(self.inference, self.engine), self.sample.batch
        every = [np.arange(len(batch))] if len(batch) else []
        if every and not self.one_block:
            every = np.split(every[0], block_ptr(batch.unary_ptr[batch.var_ptr][1:], self.model, self.engine)[1:-1])
        single = lru_cache(SINGLES)(lambda i: self._block(np.array([i]), planner))
        return SampleBlocks(planner, list(map(self._block, every, repeat(planner))), single)

    def _block(self, ids: Ints, planner: Planner) -> Block:
        sample, loss = self.sample if len(ids) == self.n_instances else self.sample.select(ids), self.objective.loss
        if isinstance(loss, Zero):
            sizes = sample.batch.n_states, sample.batch.n_table_entries
            delta = Potentials(*(np.broadcast_to(0.0, n) for n in sizes))
        else:
            delta = loss.delta(sample.batch, sample.query.output, sample.truth, sample.site_weight)
        if sample.extra_loss is not None:
            delta = replace(delta, unary=delta.unary + sample.extra_loss)
        features = self.model.bind(sample.inputs, self.engine)
        return Block(sample, delta, features, planner(sample.batch), int(ids[0]))

    @cached_property
    def bound(self) -> list[BoundBlock]:
        """The blocks with the objective bound to them."""
        return list(map(self._bind, self._blocks.all))

    @cached_property
    def _single(self) -> Callable[[int], BoundBlock]:
        """By instance i: that instance as a block of its own."""
        return lru_cache(SINGLES)(lambda i: self._bind(self._blocks.single(i)))

    def _bind(self, block: Block) -> BoundBlock:
        parts = self.objective.bind(block.sample, block.delta, block.plan, self._blocks.planner)
        one = block.sample.truth_query.n_allowed(block.sample.batch) == 1
        single = isinstance(self.objective, Unified) and bool(np.all(one))
        scale = self.C * block.sample.weight
        return BoundBlock(block, parts, scale, bool(np.all(scale == scale[0])), self.temperatures, single)


def block_ptr(ends: Ints, model: Model[Any], engine: Engine) -> Ints:
    """Where the fixed blocks of consecutive instances begin and the last ends, whatever the threads; ``ends`` is the
    states up to and with each instance."""
    # A block makes one dense gradient, which must not cost more than the block itself.
    size: int = getattr(model, "gradient_size", model.n_weights)
    states = max(getattr(engine, "block_states", BLOCK_STATES), size // 4)
    sizes = np.bincount((ends - 1) // (states if ends[-1] > WHOLE * states else max(ends[-1], 1)))
    return offsets(sizes[sizes > 0].astype(np.int64))


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive instances with their loss tables and plan; ``first`` is the number of the first."""

    sample: Sample
    delta: Potentials
    features: Features
    plan: Plan
    first: int


@dataclass(frozen=True, eq=False)
class SampleBlocks:
    """The sample cut into fixed blocks, a function of the data alone, and single instances on demand; shared by all
    temperatures (``at`` holds the problems at those asked for so far)."""

    planner: Planner
    all: list[Block]
    single: Callable[[int], Block]
    at: dict[tuple[float, float], TrainingProblem] = field(default_factory=dict)


class LinearMinus:
    """U- of single labels with nothing hidden, a linear function: <mu, theta> with constant marginals mu."""

    def __init__(self, batch: Batch, mu: Marginals, gradient: Floats) -> None:
        entries = np.flatnonzero(mu.tables)  # a label marks one state of every variable
        self.picked = Picked(np.flatnonzero(mu.unary), batch.owner, *batch.mu_entries(entries), mu.tables[entries])
        self.gradient = gradient

    def value(self, theta: Potentials, n: int) -> Floats:
        """Of every instance."""
        return theta.sums(self.picked, n)


class Look(NamedTuple):
    """Inference on a block at some weights: which methods ran on how many instances, whether all were exact, how many
    of ``n`` answers had converged; the sums of the marginals of hidden variables by their number of states, and how
    many these are; and at how many labelled sites the best state is among the labels."""

    methods: Counter[str]
    exact: bool
    converged: int
    n: int
    usage: dict[int, tuple[Floats, int]]
    right: int


@dataclass(frozen=True, eq=False)
class BoundBlock:
    """A block with the objective bound to it at a pair of temperatures: ready to be evaluated at any w. ``one_scale``:
    all instances have the same; ``single``: what is subtracted is the score of single labels, nothing being hidden."""

    block: Block
    parts: Parts
    scale: Floats
    one_scale: bool
    temperatures: tuple[float, float]
    single: bool = False

    def plus(self, w: Floats) -> Part:
        belief, floored = self.parts.plus(self.block.features.forward(w))
        return self._part(belief.value, belief.mu, (belief.status,), floored, plus=len(self.scale))

    def minus(self, w: Floats) -> Part:
        belief = self.parts.minus(self.block.features.forward(w))
        return self._part(belief.value, belief.mu, (belief.status,), minus=len(self.scale))

    @cached_property
    def _minus(self) -> LinearMinus:
        batch = self.block.sample.batch
        mu = self.parts.minus(Potentials.zeros(batch)).mu
        return LinearMinus(batch, mu, self._gradient(mu))

    @cached_property
    def _joined(self) -> Joined | None:
        features = self.block.features
        if isinstance(self.parts, UnifiedParts) and isinstance(features, JoiningFeatures) and self.one_scale:
            return features.joined(self.parts.pair, self.parts.delta)
        return None

    def difference(self, w: Floats) -> Part:
        n = len(self.scale)
        if self._joined is not None:
            plus, minus, gradient = self._joined(w)
            self.check(minus)
            self.check(value := plus - minus)
            return Part(value, float(self.scale @ value), self.scale[0] * gradient, n, n, 2 * n)
        theta = self.block.features.forward(w)
        if not self.single:
            found = self.parts.difference(theta)
            self.check(found.minus)
            both = found.plus_status, found.minus_status
            return self._part(found.plus - found.minus, found.mu, both, found.floored, n, n)
        minus = self._minus.value(theta, n)
        self.check(minus)
        belief, floored = self.parts.plus(theta)
        part = self._part(belief.value - minus, belief.mu, (belief.status,), floored, n, n)
        gradient = part.gradient - self._minus.gradient
        return replace(part, gradient=gradient, converged=n + part.converged)

    def _part(
        self, value: Floats, mu: Marginals, known: Sequence[Status], floored: int = 0, plus: int = 0, minus: int = 0
    ) -> Part:
        self.check(value)
        converged, exact = 0, True
        for status in known:
            converged += int(np.count_nonzero(status.converged))
            exact = exact and bool(status.exact.all())
        return Part(value, float(self.scale @ value), self._gradient(mu), plus, minus, converged, floored, exact)

    def _gradient(self, mu: Marginals) -> Floats:
        features, scale = self.block.features, self.scale
        if self.one_scale:
            gradient: Floats = scale[0] * features.adjoint(mu)
            return gradient
        return features.adjoint(mu.scaled(self.block.sample.batch, scale))

    def look(self, w: Floats, hidden: Bools, var_ptr: Ints) -> Look:
        """Which inference answers here, and how much each state of the ``hidden`` variables is used given labels; these
        and ``var_ptr`` are those of the whole sample."""
        sample, theta, parts = self.block.sample, self.block.features.forward(w), self.parts
        if isinstance(parts, UnifiedParts):
            free, given = parts.pair.plus, parts.pair.minus
        else:
            queries = sample.query, sample.truth_query
            free, given = (self.block.plan.bind(query, *self.temperatures) for query in queries)
        batch, belief, usage = sample.batch, free(theta), dict[int, tuple[Floats, int]]()
        right = sample.truth[batch.unary_ptr[:-1] + belief.decode(batch)] & sample.query.output
        methods, exact, converged = Counter(belief.status.method), belief.status.exact, belief.status.converged
        mine, cards = np.flatnonzero(hidden[var_ptr[self.block.first] :][: batch.n_vars]), np.diff(batch.unary_ptr)
        if len(mine) or not exact.all():
            belief = given(theta)
            exact, converged = np.append(exact, belief.status.exact), np.append(converged, belief.status.converged)
        for card in np.unique(cards[mine]).tolist():
            members = mine[cards[mine] == card]
            mu = belief.mu.unary[batch.unary_ptr[members][:, None] + np.arange(card)]
            usage[card] = mu.sum(axis=0), len(members)
        return Look(methods, bool(exact.all()), int(converged.sum()), len(converged), usage, int(right.sum()))

    def check(self, value: Floats) -> None:
        """Raise unless every instance has an allowed assignment."""
        if np.isfinite(value).all():
            return
        bad = int(np.flatnonzero(~np.isfinite(value))[0])
        raise InfeasibleError(
            f"instance {self.block.first + bad} of those with labels has value {value[bad]}; its labels "
            "contradict the forbidden entries of the model, or the weights are beyond all bounds."
        )

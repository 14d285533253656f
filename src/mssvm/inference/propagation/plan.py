"""Plan of propagation, before any potentials: roles, tasks, hidden components, forests, tie-breaking noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.components import HiddenComponents, acyclic, hidden_components
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query, segment_argmax
from mssvm.core.topology import Batch, ranks
from mssvm.engines.base import Engine, Pair, TwoCalls
from mssvm.engines.messages import MessagePlan, Temperatures
from mssvm.inference.propagation.call import PropagationCall
from mssvm.inference.propagation.effort import Effort
from mssvm.inference.propagation.merging import Merging
from mssvm.inference.propagation.uniforms import uniforms

if TYPE_CHECKING:
    from mssvm.inference.propagation.propagate import Propagate

# Numbers of the random sequence of tie-breaking noise.
NOISE_STREAM = 1 << 20


@dataclass(frozen=True, eq=False)
class MessageTask:
    """Instances that need the same kind of run: at one temperature, at two, or a search (eps_y = 0).

    ``components`` are those of the hidden variables, given outputs and variables with one allowed state.
    """

    instances: Ints
    temperatures: Temperatures
    components: HiddenComponents | None = None
    merging: Merging | None = None


@dataclass(frozen=True, eq=False)
class PropagationPlan:
    """Message passing on one batch."""

    settings: Propagate
    batch: Batch
    engine: Engine

    @cached_property
    def messages(self) -> MessagePlan:
        return self.engine.messages(self.batch)

    @cached_property
    def noise(self) -> Floats:
        """Tie-breaking noise, a function of the position of a state in its instance."""
        position = ranks(self.batch.unary_ptr[self.batch.var_ptr])
        return uniforms(position, self.settings.seed, NOISE_STREAM)

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> PropagationBoundQuery:
        """Resolve a query at a pair of temperatures, for some instances (default all)."""
        query.check(self.batch)
        eps_y = temperature(eps_y, "eps_y")
        eps_h = temperature(eps_h, "eps_h")
        if instances is None:
            instances = np.arange(len(self.batch))
        return PropagationBoundQuery(self, query, eps_y, eps_h, np.asarray(instances))

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        """Resolve two queries that are always evaluated together."""
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))


class PropagationBoundQuery:
    """Propagation for a query at a pair of temperatures, with everything resolved but the potentials."""

    def __init__(self, plan: PropagationPlan, query: Query, eps_y: float, eps_h: float, instances: Ints) -> None:
        batch = plan.batch
        self.plan = plan
        self.batch = batch
        self.query = query
        self.instances = instances
        self.effort: Effort = plan.settings.budget()
        self.free: Bools = query.n_allowed(batch) > 1
        self.forest = acyclic(batch, self.free)
        self.has_output = np.bincount(batch.owner[self.free & query.output], minlength=len(batch)) > 0
        self.tasks = self._tasks(eps_y, eps_h)

    @cached_property
    def only_state(self) -> Ints:
        """The first allowed state of every variable: the only one where it is not free."""
        return segment_argmax(self.query.allowed.astype(np.float64), self.batch.unary_ptr)

    def __call__(self, theta: Potentials) -> Belief:
        return self.run(theta)

    def run(self, theta: Potentials, candidates: Sequence[Ints] = (), messages: Floats | None = None) -> Belief:
        """The answer; ``candidates``: assignments whose outputs are judged too; ``messages``: a warm start."""
        theta.check(self.batch)
        call = PropagationCall(self, theta, candidates, messages)
        for task in self.tasks:
            call.answer(task)
        return call.belief()

    def _tasks(self, eps_y: float, eps_h: float) -> list[MessageTask]:
        """Sort instances by the temperatures that matter to them: clamped variables and absent roles do not."""
        hidden = self.free & ~self.query.output
        has_hidden = np.bincount(self.batch.owner[hidden], minlength=len(self.batch))[self.instances] > 0
        has_output = self.has_output[self.instances]
        both = has_output & has_hidden
        if eps_h == 0.0 < eps_y and both.any():
            raise UnsupportedError(
                f"instance {int(self.instances[both][0])} has outputs at eps_y = {eps_y} and hidden variables at "
                "eps_h = 0, where hidden messages are undefined; use exact elimination or a small positive eps_h."
            )
        only_outputs = has_output & ~has_hidden
        tasks = []
        if both.any():
            tasks.append(self._task(self.instances[both], eps_y, eps_h))
        if not has_output.all():
            tasks.append(self._task(self.instances[~has_output], eps_h, eps_h))
        if only_outputs.any():
            tasks.append(self._task(self.instances[only_outputs], eps_y, eps_y))
        return tasks

    def _task(self, instances: Ints, eps_y: float, eps_h: float) -> MessageTask:
        if eps_y == eps_h > 0.0:
            return MessageTask(instances, Temperatures.one(self.batch.n_vars, eps_y))
        outputs = np.ones(self.batch.n_vars, dtype=bool) if eps_h == 0.0 else self.query.output
        components = hidden_components(self.batch, outputs | ~self.free)
        merging = None
        if self.plan.settings.merging:
            has_components = np.diff(components.ptr)[instances] > 0
            worthwhile = self.forest[instances] | has_components | (eps_y > 0.0)
            merging = Merging.of(self, components, instances[worthwhile])
        return MessageTask(instances, Temperatures(outputs, eps_y, eps_h), components, merging)

"""One call of propagation: what has become of every instance so far, and sums at positive eps_y."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Belief, Marginals, Potentials, Status
from mssvm.core.topology import spans
from mssvm.engines.messages import Conditional, MessageRun, Schedule, Temperatures
from mssvm.inference.propagation.effort import Effort
from mssvm.inference.propagation.search import OutputSearch

if TYPE_CHECKING:
    from mssvm.inference.propagation.plan import MessageTask, PropagationBound


class PropagationCall:
    """Values, marginals and the report in progress. During a search ``value`` and ``y`` are the best so far."""

    def __init__(
        self, bound: PropagationBound, theta: Potentials, candidates: Sequence[Ints], messages: Floats | None
    ) -> None:
        batch, n = bound.batch, len(bound.batch)
        self.bound, self.theta, self.candidates, self.messages = bound, theta, candidates, messages
        self.effort, self.tolerance = bound.effort, bound.effort.schedule.tolerance
        self.model = bound.plan.messages.load(theta, bound.query, bound.plan.noise)
        # Sums over merged regions are put together here; all else stays with the engine.
        merged = any(task.merging is not None and task.temperatures.eps_y > 0.0 for task in bound.tasks)
        self.value, self.mu = np.zeros(n), Marginals.zeros(batch) if merged else self.model.marginals()
        self.y = np.full(batch.n_vars, -1, dtype=np.int64)
        self.exact, self.converged = np.zeros((2, n), dtype=bool)
        self.sweeps, self.residual = np.zeros(n, dtype=np.int64), np.full(n, np.inf)
        self.lower, self.upper = np.full((2, n), np.nan)
        self.method = np.full(n, "", dtype=object)
        self.regions = messages is None and "regions" in bound.effort.starts and self.model.relabel is not None
        self.kept = np.zeros(bound.batch.message_ptr[-1]) if bound.plan.settings.keep_messages else None

    def answer(self, task: MessageTask) -> None:
        """Everything about the instances of one task."""
        t, instances, merged = task.temperatures, task.instances, None
        conditional = None if task.components is None else self.model.given(task.components, t.eps_h)
        if task.merging is not None and conditional is not None:
            if t.eps_y > 0.0:
                self._sum_merged(task, conditional)
                instances = np.setdiff1d(instances, task.merging.instances)
            else:
                merged = task.merging.load(self.theta, conditional)
        if t.eps_y == 0.0:
            self.value[instances] = -np.inf
            self.method[instances] = "mixed-product"
        if len(instances):
            if conditional is not None and t.eps_y == 0.0:
                OutputSearch(self, task, instances, conditional, merged).run()
            else:
                runs = [self._hold_clamped(self.fresh_run(instances, t), instances) for _ in range(1 + self.regions)]
                self._sum(runs, t, instances)
        if t.eps_y > 0.0:
            self.converged[instances] = self.residual[instances] <= self.tolerance
            self.method[instances] = "sum-product" if t.eps_y == t.eps_h else "two-temperature propagation"
            self.exact[instances] = self.bound.forest[instances] & self.converged[instances] & (t.eps_y == t.eps_h)

    def fresh_run(self, instances: Ints, t: Temperatures, noisy: bool = False) -> MessageRun:
        """Messages of the instances of a task, as scaled probabilities where the settings allow them."""
        return self.model.run(instances, t if self.bound.plan.settings.scaled else None, noisy)

    def belief(self) -> Belief:
        """The result. An instance of value -inf has weight zero everywhere, as with ``power_sum``."""
        none = self.value == -np.inf
        if none.any():
            self.mu.clear(self.bound.batch, none)
        lower, upper = (np.where(self.exact, self.value, end) for end in (self.lower, self.upper))
        method = tuple(str(m) for m in self.method)
        status = Status(method, self.exact, self.converged, self.sweeps, self.residual, lower, upper)
        return Belief(self.value, self.mu, status, {} if self.kept is None else {"messages": self.kept})

    def keep(self, run: MessageRun, instances: Ints) -> None:
        """Keep the messages of a run, if that is wanted."""
        if self.kept is not None:
            rows = self.message_rows(instances)
            self.kept[rows] = run.log_messages(instances)[rows]

    def message_rows(self, instances: Ints) -> Ints:
        """Entries of log-messages of the named instances."""
        ptr = self.bound.batch.message_ptr
        return spans(ptr[instances], np.diff(ptr)[instances])

    # --- eps_y > 0 ---------------------------------------------------------------------------------------------------

    def _hold_clamped(self, run: MessageRun, instances: Ints) -> MessageRun:
        """``run`` told of the variables with one allowed state, as a search is of those whose states it tries."""
        if not self.bound.free.all():
            run.hold(instances, ~self.bound.free, self.bound.only_state)
        return run

    def _sum(self, runs: list[MessageRun], t: Temperatures, instances: Ints) -> None:
        """Sums by one run, or by the better of two."""
        run, forest = runs[0], self.bound.forest[instances]
        run.start(instances, self.messages)
        loopy, schedule = instances[~forest], self.effort.schedule
        cold = loopy if self.messages is None else loopy[:0]
        if not forest.any() or not (schedule.damping or schedule.flooding or self.messages is not None):
            self._converge(run, instances, cold, t)
        else:
            # On forests neither a warm start serves nor damping, and all messages at once take longer.
            plain = replace(self.effort, schedule=Schedule(tolerance=self.tolerance))
            self._converge(run, loopy, cold, t)
            run.start(instances[forest], None)
            self._converge(run, instances[forest], cold[:0], t, plain)
        chosen = [instances]
        if self.regions:
            again = self._try_regions(run, runs[1], instances[~forest], t)
            better = np.zeros(len(self.value), dtype=bool)
            better[again] = True
            chosen = [instances[~better[instances]], again]
        for run, some in zip(runs, chosen, strict=True):
            run.beliefs(some, t, self.value, self.mu)
            self.keep(run, some)

    def _converge(
        self, run: MessageRun, instances: Ints, loopy: Ints, t: Temperatures, effort: Effort | None = None
    ) -> None:
        (effort or self.effort).converge(run, instances, loopy, t)
        self.sweeps[instances] += run.sweeps[instances]
        self.residual[instances] = run.residual[instances]
        self.converged[instances] = run.residual[instances] <= self.tolerance

    def _try_regions(self, run: MessageRun, again: MessageRun, loopy: Ints, t: Temperatures) -> Ints:
        """A second run from the decoded states improved by regions; the instances that have a higher value by it.

        Sums given y are left alone: their value is compared with that of other y, found without this.
        """
        bound = self.bound
        pairwise = loopy[bound.batch.pairwise[loopy] & bound.has_output[loopy]]
        if not len(pairwise):
            return pairwise
        run.decode(pairwise, self.y)
        assert self.model.relabel is not None
        moved, messages = self.model.relabel(pairwise, bound.free, self.y)
        first, second = np.zeros((2, len(self.value)))
        run.beliefs(moved, t, first, None)
        known = self.residual[moved], self.converged[moved]
        again.start(moved, messages)
        self._converge(again, moved, moved[:0], t)
        again.beliefs(moved, t, second, None)
        better = second[moved] > first[moved]
        for kept, before in zip((self.residual, self.converged), known, strict=True):
            kept[moved[~better]] = before[~better]
        return moved[better]

    def _sum_merged(self, task: MessageTask, conditional: Conditional) -> None:
        """Sum-product at eps_y over merged regions."""
        merging, batch = task.merging, self.bound.batch
        assert merging is not None
        run, beliefs = merging.load(self.theta, conditional).run(), Marginals.zeros(merging.batch)
        t = Temperatures.one(batch.n_vars, task.temperatures.eps_y)

        instances = merging.instances
        run.start(instances, None)
        self._converge(run, instances, instances[~merging.forest[instances]], t)
        run.beliefs(instances, t, self.value, beliefs)
        self.exact[instances] = merging.forest[instances] & self.converged[instances]
        merging.expect(beliefs, conditional, self.mu)
        self.method[merging.instances] = "sum-product over merged regions"

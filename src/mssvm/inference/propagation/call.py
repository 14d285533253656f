"""One call of propagation: the report on every instance in progress, and sums at positive eps_y."""

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
    from mssvm.inference.propagation.merging import Merging
    from mssvm.inference.propagation.plan import MessageTask, PropagationBoundQuery


class PropagationCall:
    """Values, marginals and the report in progress. During a search ``value`` and ``y`` are the best so far."""

    def __init__(
        self, bound_query: PropagationBoundQuery, theta: Potentials, candidates: Sequence[Ints], messages: Floats | None
    ) -> None:
        batch = bound_query.batch
        n = len(batch)
        self.bound_query = bound_query
        self.theta = theta
        self.candidates = candidates
        self.messages = messages
        self.effort = bound_query.effort
        self.tolerance = bound_query.effort.schedule.tolerance
        self.model = bound_query.plan.messages.load(theta, bound_query.query, bound_query.plan.noise)
        self.value = np.zeros(n)
        # Sums over merged regions add to NumPy arrays; all other marginals stay in the engine's own.
        merged = any(task.merging is not None and task.temperatures.eps_y > 0.0 for task in bound_query.tasks)
        self.mu = Marginals.zeros(batch) if merged else self.model.marginals()
        self.y = np.full(batch.n_vars, -1, dtype=np.int64)
        self.exact = np.zeros(n, dtype=bool)
        self.converged = np.zeros(n, dtype=bool)
        self.sweeps = np.zeros(n, dtype=np.int64)
        self.residual = np.full(n, np.inf)
        self.lower = np.full(n, np.nan)
        self.upper = np.full(n, np.nan)
        self.method = np.full(n, "", dtype=object)
        self._try_regions = (
            messages is None and "regions" in bound_query.effort.starts and self.model.relabel is not None
        )
        self._kept_messages = np.zeros(batch.message_ptr[-1]) if bound_query.plan.settings.keep_messages else None

    def answer(self, task: MessageTask) -> None:
        """Answer for the instances of one task."""
        conditional = None
        if task.components is not None:
            conditional = self.model.given(task.components, task.temperatures.eps_h)
        if task.temperatures.eps_y > 0.0:
            self._answer_sums(task, conditional)
            return
        assert conditional is not None
        self._search_outputs(task, conditional)

    def belief(self) -> Belief:
        """The result. An instance of value -inf has weight zero everywhere, as with ``power_sum``."""
        impossible = self.value == -np.inf
        if impossible.any():
            self.mu.clear(self.bound_query.batch, impossible)
        status = Status(
            method=tuple(str(method) for method in self.method),
            exact=self.exact,
            converged=self.converged,
            sweeps=self.sweeps,
            residual=self.residual,
            lower=np.where(self.exact, self.value, self.lower),
            upper=np.where(self.exact, self.value, self.upper),
        )
        extras: dict[str, object] = {} if self._kept_messages is None else {"messages": self._kept_messages}
        return Belief(self.value, self.mu, status, extras)

    def keep(self, run: MessageRun, instances: Ints) -> None:
        """Keep the messages of a run for the caller, if ``keep_messages`` is set."""
        if self._kept_messages is not None:
            rows = self.message_rows(instances)
            self._kept_messages[rows] = run.log_messages(instances)[rows]

    def message_rows(self, instances: Ints) -> Ints:
        """Entries of log-messages of the named instances."""
        ptr = self.bound_query.batch.message_ptr
        return spans(ptr[instances], np.diff(ptr)[instances])

    # --- eps_y = 0 ---------------------------------------------------------------------------------------------------

    def _search_outputs(self, task: MessageTask, conditional: Conditional) -> None:
        merged = None
        if task.merging is not None:
            merged = task.merging.load(self.theta, conditional)
        self.value[task.instances] = -np.inf
        self.method[task.instances] = "mixed-product"
        if len(task.instances):
            OutputSearch(self, task, conditional, merged).run()

    def fresh_run(self, instances: Ints, temperatures: Temperatures, noisy: bool = False) -> MessageRun:
        """New messages of the instances of a task, as scaled probabilities where the settings allow them."""
        return self.model.run(instances, temperatures if self.bound_query.plan.settings.scaled else None, noisy)

    # --- eps_y > 0 ---------------------------------------------------------------------------------------------------

    def _answer_sums(self, task: MessageTask, conditional: Conditional | None) -> None:
        """Sums over merged regions where these are small enough, elsewhere by messages of all variables."""
        temperatures = task.temperatures
        instances = task.instances
        if task.merging is not None and conditional is not None:
            self._sum_merged(task.merging, conditional, temperatures.eps_y)
            instances = np.setdiff1d(instances, task.merging.instances)
        if len(instances):
            self._sum(instances, temperatures)
        one_temperature = temperatures.eps_y == temperatures.eps_h
        self.converged[instances] = self.residual[instances] <= self.tolerance
        self.method[instances] = "sum-product" if one_temperature else "two-temperature propagation"
        self.exact[instances] = self.bound_query.forest[instances] & self.converged[instances] & one_temperature

    def _new_run(self, instances: Ints, temperatures: Temperatures) -> MessageRun:
        """A run in which variables with one allowed state are held at it, as outputs under trial are in a search."""
        run = self.fresh_run(instances, temperatures)
        if not self.bound_query.free.all():
            run.hold(instances, ~self.bound_query.free, self.bound_query.only_state)
        return run

    def _sum(self, instances: Ints, temperatures: Temperatures) -> None:
        """Sums by one run or, with regions, by the better of two."""
        run = self._new_run(instances, temperatures)
        second_run = self._new_run(instances, temperatures) if self._try_regions else None
        self._run_sums(run, instances, temperatures)
        if second_run is None:
            self._finish_sums(run, instances, temperatures)
            return
        improved = self._improve_by_regions(run, second_run, instances, temperatures)
        self._finish_sums(run, np.setdiff1d(instances, improved), temperatures)
        self._finish_sums(second_run, improved, temperatures)

    def _run_sums(self, run: MessageRun, instances: Ints, temperatures: Temperatures) -> None:
        """One run to convergence, from the caller's messages or from uniform ones."""
        run.start(instances, self.messages)
        forest = self.bound_query.forest[instances]
        loopy = instances[~forest]
        warm_start = self.messages is not None
        cold_loopy = loopy[:0] if warm_start else loopy
        schedule = self.effort.schedule
        if not forest.any() or not (schedule.damping or schedule.flooding or warm_start):
            self._converge(run, instances, cold_loopy, temperatures)
            return
        # Forests need neither a warm start nor damping, and flooding would take longer.
        plain = replace(self.effort, schedule=Schedule(tolerance=self.tolerance))
        self._converge(run, loopy, cold_loopy, temperatures)
        run.start(instances[forest], None)
        self._converge(run, instances[forest], loopy[:0], temperatures, plain)

    def _finish_sums(self, run: MessageRun, instances: Ints, temperatures: Temperatures) -> None:
        run.beliefs(instances, temperatures, self.value, self.mu)
        self.keep(run, instances)

    def _converge(
        self,
        run: MessageRun,
        instances: Ints,
        loopy: Ints,
        temperatures: Temperatures,
        effort: Effort | None = None,
    ) -> None:
        """Run to convergence, the ``loopy`` instances after a warm-up, and report on it."""
        (effort or self.effort).converge(run, instances, loopy, temperatures)
        self.sweeps[instances] += run.sweeps[instances]
        self.residual[instances] = run.residual[instances]
        self.converged[instances] = run.residual[instances] <= self.tolerance

    def _improve_by_regions(
        self, run: MessageRun, second_run: MessageRun, instances: Ints, temperatures: Temperatures
    ) -> Ints:
        """A second run from the decoded states improved by regions; returns the instances whose value it raises.

        Sums given y are left alone: they are compared with sums given other y, which are computed without this step.
        """
        bound_query = self.bound_query
        loopy = instances[~bound_query.forest[instances]]
        pairwise = loopy[bound_query.batch.pairwise[loopy] & bound_query.has_output[loopy]]
        if not len(pairwise):
            return pairwise
        run.decode(pairwise, self.y)
        assert self.model.relabel is not None
        moved, messages = self.model.relabel(pairwise, bound_query.free, self.y)
        first_value = np.zeros(len(self.value))
        second_value = np.zeros(len(self.value))
        run.beliefs(moved, temperatures, first_value, None)
        first_residual = self.residual[moved]
        first_converged = self.converged[moved]
        second_run.start(moved, messages)
        self._converge(second_run, moved, moved[:0], temperatures)
        second_run.beliefs(moved, temperatures, second_value, None)
        better = second_value[moved] > first_value[moved]
        self.residual[moved[~better]] = first_residual[~better]
        self.converged[moved[~better]] = first_converged[~better]
        return moved[better]

    def _sum_merged(self, merging: Merging, conditional: Conditional, eps_y: float) -> None:
        """Sum-product at eps_y over merged regions."""
        instances = merging.instances
        temperatures = Temperatures.one(self.bound_query.batch.n_vars, eps_y)
        run = merging.load(self.theta, conditional).run()
        run.start(instances, None)
        self._converge(run, instances, instances[~merging.forest[instances]], temperatures)
        beliefs = Marginals.zeros(merging.batch)
        run.beliefs(instances, temperatures, self.value, beliefs)
        merging.expect(beliefs, conditional, self.mu)
        self.exact[instances] = merging.forest[instances] & self.converged[instances]
        self.method[instances] = "sum-product over merged regions"
